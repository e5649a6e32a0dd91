//! Departures: the ranks that left their job in order, kept for its ranks that attach later.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_protocol::message::{Attach, Departure};
use coprep_shared_memory::lock::lock;

use crate::Result;
use crate::registry::Registry;
use crate::stream::Leaver;

/// Bounds of the departures that are kept: their number, their bytes, and their age.
const MOST: usize = 4096;
const MOST_BYTES: usize = 64 << 20;
const KEPT: Duration = Duration::from_secs(3600);

/// The latest departures. A rank that loses its connection attaches again within seconds.
#[derive(Default)]
pub(crate) struct Departures(Mutex<VecDeque<(Instant, Departure)>>);

impl Departures {
    fn kept(&self) -> MutexGuard<'_, VecDeque<(Instant, Departure)>> {
        let mut kept = lock(&self.0);
        kept.retain(|(since, _)| since.elapsed() < KEPT);
        kept
    }

    /// Keeps a departure, and drops the oldest ones beyond the bounds.
    fn keep(&self, departure: &Departure) {
        let mut kept = self.kept();
        kept.retain(|(_, d)| (d.token, d.rank) != (departure.token, departure.rank));
        kept.push_back((Instant::now(), departure.clone()));
        let mut all: usize = kept.iter().map(|(_, d)| bytes(d)).sum();
        while kept.len() > MOST || all > MOST_BYTES {
            let dropped = kept.pop_front();
            all -= dropped.map_or(0, |(_, d)| bytes(&d));
        }
    }

    fn of(&self, tokens: &[u128], told: Option<u128>) -> Vec<Departure> {
        let kept = self.kept();
        let is_of = |token: u128| tokens.contains(&token) || told == Some(token);
        let those = kept.iter().filter(|(_, d)| is_of(d.token));
        those.map(|(_, departure)| departure.clone()).collect()
    }
}

fn bytes(departure: &Departure) -> usize {
    departure.resume.delivered.len() + departure.resume.skipped.len()
}

impl Registry {
    /// Returns the known departures of the job of a rank that attaches.
    pub(super) fn departed(&self, request: &Attach) -> Vec<Departure> {
        self.departures.of(&request.tokens, request.told)
    }

    /// Handles the orderly departure of a rank. Tells the ranks that are attached, and the ones that attach later. Returns
    /// `true` if all other ranks of its job are attached, or have left as well.
    ///
    /// # Errors
    /// When the departure is inconsistent.
    pub(crate) fn leave(&self, departure: &Departure) -> Result<bool> {
        Leaver::check(departure)?;
        // Kept before the streams are told, because a rank that attaches looks here once it is in its stream.
        self.departures.keep(departure);
        let streams = self.streams();
        let told = streams.iter().map(|stream| stream.depart(departure));
        Ok(told.collect::<Result<Vec<_>>>()?.contains(&true))
    }
}

#[cfg(test)]
mod tests {
    use coprep_protocol::message::ResumePoint;

    use super::*;

    fn departure(token: u128, rank: u32, bytes: usize) -> Departure {
        Departure {
            token,
            rank,
            resume: ResumePoint {
                epoch: 0,
                delivered: vec![0; bytes],
                batches: 1,
                is_done: true,
                skipped: Vec::new(),
                carried: Vec::new(),
            },
        }
    }

    #[test]
    fn a_rank_has_left_one_job_once() {
        let departures = Departures::default();
        for (token, rank, bytes) in [(7, 0, 1), (7, 1, 1), (8, 0, 1), (7, 0, 2)] {
            departures.keep(&departure(token, rank, bytes));
        }
        assert_eq!(
            departures.of(&[7], None),
            [departure(7, 1, 1), departure(7, 0, 2)]
        );
        assert_eq!(departures.of(&[8], None), [departure(8, 0, 1)]);
        assert_eq!(departures.of(&[9], None), []);
    }

    #[test]
    fn the_oldest_ones_make_room() {
        let departures = Departures::default();
        (0..2 * MOST as u32).for_each(|rank| departures.keep(&departure(7, rank, 0)));
        let kept = departures.of(&[7], None);
        assert_eq!((kept.len(), kept[0].rank), (MOST, MOST as u32));
        departures.keep(&departure(8, 0, MOST_BYTES));
        departures.keep(&departure(8, 1, 1));
        assert_eq!(departures.of(&[8], None), [departure(8, 1, 1)]);
        departures.keep(&departure(8, 2, MOST_BYTES + 1));
        assert_eq!(departures.of(&[8], None), [], "one alone is too much");
    }
}
