//! The health of a store: outages, and the waits of reads until they end.
//!
//! A read that fails because of its store is tried again, with pauses that grow, until the store answers or the patience
//! is over. The patience counts from the first failed try, or from the beginning of the outage if that was earlier. So
//! at the end of the patience all reads fail at about the same moment, and later ones at once, until the store answers.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_shared_memory::lock::{lock, unpoisoned};

/// Pause before the second try, and the longest pause. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A store that does not answer, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct OutageReport {
    /// Name of the store, such as `s3://bucket`.
    pub store: String,
    /// Time since the first failed try.
    pub lasts: Duration,
    /// The last answer, or the reason why there was none.
    pub last_answer: String,
    /// Time until the next try.
    pub next_try: Duration,
    /// Number of reads that wait.
    pub waiting: u32,
}

impl OutageReport {
    /// Takes in what other clients of the store have seen: the outage is the one that lasts longest, and all reads wait.
    pub fn merge(&mut self, other: &OutageReport) {
        let waiting = self.waiting + other.waiting;
        let next_try = self.next_try.min(other.next_try);
        if other.lasts > self.lasts {
            self.clone_from(other);
        }
        (self.waiting, self.next_try) = (waiting, next_try);
    }
}

impl fmt::Display for OutageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} has not answered for {:.0} s ({}); next try in {:.0} s",
            self.store,
            self.lasts.as_secs_f64(),
            self.last_answer,
            self.next_try.as_secs_f64()
        )
    }
}

/// The health of one store; see the module.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    state: Mutex<HealthState>,
    /// Signals that the store has answered, or that nobody may wait any more.
    over: Condvar,
}

#[derive(Debug, Default)]
struct HealthState {
    outage: Option<Outage>,
    /// `true` if nobody may wait any more.
    is_stopped: bool,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    last_answer: String,
    /// Times at which the reads that wait will try again.
    tries: Vec<Instant>,
}

/// The tries of one read.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    first: Option<Instant>,
    pause: Duration,
}

impl StoreHealth {
    fn state(&self) -> MutexGuard<'_, HealthState> {
        lock(&self.state)
    }

    /// Returns `true` if the store did not answer the last time.
    pub(crate) fn is_outage(&self) -> bool {
        self.state().outage.is_some()
    }

    /// Records that the store has answered.
    pub(crate) fn answered(&self) {
        if self.state().outage.take().is_some() {
            self.over.notify_all();
        }
    }

    /// Ends all waits, now and from now on, because the process ends.
    pub(crate) fn stop(&self) {
        self.state().is_stopped = true;
        self.over.notify_all();
    }

    /// Records a failed try, and waits until the next one. Returns the time since the beginning of the outage if the
    /// patience is over.
    pub(crate) fn wait(
        &self,
        tries: &mut Tries,
        answer: &str,
        patience: Duration,
    ) -> Result<(), Duration> {
        let now = Instant::now();
        let first = *tries.first.get_or_insert(now);
        tries.pause = (2 * tries.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        let mut state = self.state();
        if state.is_stopped {
            return Ok(());
        }
        let outage = state.outage.get_or_insert_with(|| Outage {
            since: now,
            last_answer: String::new(),
            tries: Vec::new(),
        });
        answer.clone_into(&mut outage.last_answer);
        let lasted = now - outage.since.min(first);
        if lasted >= patience {
            return Err(lasted);
        }
        let next = now + tries.pause.min(patience - lasted);
        outage.tries.push(next);
        let waited = self.over.wait_timeout(state, next - now);
        let mut state = unpoisoned(waited).0;
        if let Some(outage) = &mut state.outage
            && let Some(at) = outage.tries.iter().position(|&time| time == next)
        {
            outage.tries.swap_remove(at);
        }
        Ok(())
    }

    /// Returns the outage, or `None` if the store answers or was not asked.
    pub(crate) fn report(&self, store: &str) -> Option<OutageReport> {
        let now = Instant::now();
        let state = self.state();
        let outage = state.outage.as_ref()?;
        let next = outage.tries.iter().min().copied();
        Some(OutageReport {
            store: store.to_owned(),
            lasts: now - outage.since,
            last_answer: outage.last_answer.clone(),
            next_try: next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now)),
            waiting: outage.tries.len() as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_until_the_store_answers_and_no_longer() {
        let health = StoreHealth::default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut tries = Tries {
                    pause: LONGEST_PAUSE,
                    ..Tries::default()
                };
                health.wait(&mut tries, "503", Duration::from_secs(600))
            });
            while health.report("s3://b").is_none() {
                std::thread::yield_now();
            }
            let report = health.report("s3://b").unwrap();
            assert_eq!((report.last_answer.as_str(), report.waiting), ("503", 1));
            assert!(report.next_try > LONGEST_PAUSE / 2);
            health.answered();
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        assert!(began.elapsed() < LONGEST_PAUSE);
        assert_eq!(health.report("s3://b"), None);
    }

    #[test]
    fn the_patience_of_all_reads_ends_with_that_of_the_first() {
        let health = StoreHealth::default();
        let patience = Duration::from_millis(300);
        let mut first = Tries::default();
        while health.wait(&mut first, "503", patience).is_ok() {}
        let late = health.wait(&mut Tries::default(), "503", patience);
        assert!(late.unwrap_err() >= patience);
    }
}
