//! Faults that a test asks for.

use std::time::Duration;

use crate::request::Query;

/// Faults of a server. `every` counts the requests for objects: of 20, the 20th, the 40th and so on have the fault. A
/// `share`, from 0 to 1, is a probability: whether a request has the fault depends on `seed` and its number alone.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Time before each answer.
    pub latency: Duration,
    /// Status and error code of the answer to every request.
    pub refuse: Option<(u16, String)>,
    /// `true` if connections are closed without an answer.
    pub down: bool,
    /// Answers 503.
    pub error_every: u64,
    /// Resets the connection in the middle of the body.
    pub reset_every: u64,
    /// Says nothing more in the middle of the body.
    pub stall_every: u64,
    /// Pauses for the time `stall` in the middle of the body.
    pub pause_every: u64,
    /// Answers with another range than the one that was asked for.
    pub wrong_range_every: u64,
    /// Answers 503, with this probability.
    pub error_share: f64,
    /// Resets the connection in the middle of the body, with this probability.
    pub reset_share: f64,
    /// Says nothing more in the middle of the body, with this probability.
    pub stall_share: f64,
    /// Answers with another range, with this probability.
    pub wrong_range_share: f64,
    /// Seed of what is drawn.
    pub seed: u64,
    /// Time after which a stalled connection is closed. With zero, long after its reader has given up.
    pub stall: Duration,
    /// Part of the keys that have the faults of single objects. Empty for all.
    pub only: String,
    /// `true` if objects can be listed, and answer 403.
    pub unreadable: bool,
    /// `true` if folders of WebDAV are listed below another folder, as behind a proxy that changes paths.
    pub listed_elsewhere: bool,
    /// Number of the one request for a page of a listing that answers 400, which no client repeats at once. Zero for none.
    pub failing_list: u64,
    /// Most objects of one page of a listing. Zero for as many as the client asks for.
    pub page: usize,
    /// `true` if listings begin with their first object, wherever they are asked to begin, as those of Azurite do.
    pub offsets_ignored: bool,
    /// `true` if listings are in no order of the keys, and begin with their first object, as in a directory bucket of S3.
    pub unordered: bool,
}

/// What goes wrong with one answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Error,
    Reset,
    Stall,
    Pause,
    WrongRange,
}

impl Faults {
    /// Returns the fault of the `number`th request for an object.
    pub(crate) fn of(&self, number: u64, key: &str) -> Option<Fault> {
        let faults = [
            (self.error_every, Fault::Error),
            (self.reset_every, Fault::Reset),
            (self.stall_every, Fault::Stall),
            (self.pause_every, Fault::Pause),
            (self.wrong_range_every, Fault::WrongRange),
        ];
        let is_due = |every: u64| every > 0 && number.is_multiple_of(every);
        let due = faults.iter().find(|(every, _)| is_due(*every));
        due.map(|(_, fault)| *fault)
            .or_else(|| self.drawn(number))
            .filter(|_| key.contains(&self.only))
    }

    /// Draws the fault of the `number`th request.
    fn drawn(&self, number: u64) -> Option<Fault> {
        let shares = [
            (self.error_share, Fault::Error),
            (self.reset_share, Fault::Reset),
            (self.stall_share, Fault::Stall),
            (self.wrong_range_share, Fault::WrongRange),
        ];
        let drawn = uniform(self.seed, number);
        let mut sum = 0.0;
        let drawn = shares.iter().find(|(share, _)| {
            sum += share;
            drawn < sum
        });
        drawn.map(|(_, fault)| *fault)
    }

    /// Reads faults from the query of a request that controls the server.
    pub(crate) fn from_query(query: &Query) -> Faults {
        let number = |name: &str| query.get(name).and_then(|n| n.parse().ok()).unwrap_or(0);
        let share = |name: &str| query.get(name).and_then(|n| n.parse().ok()).unwrap_or(0.0);
        let refuse = query.get("refuse").and_then(|text| {
            let (status, code) = text.split_once(' ')?;
            Some((status.parse().ok()?, code.to_owned()))
        });
        Faults {
            latency: Duration::from_millis(number("latency_ms")),
            refuse,
            down: number("down") > 0,
            error_every: number("error_every"),
            reset_every: number("reset_every"),
            stall_every: number("stall_every"),
            pause_every: number("pause_every"),
            wrong_range_every: number("wrong_range_every"),
            error_share: share("error_share"),
            reset_share: share("reset_share"),
            stall_share: share("stall_share"),
            wrong_range_share: share("wrong_range_share"),
            seed: number("seed"),
            stall: Duration::from_millis(number("stall_ms")),
            only: query.get("only").unwrap_or_default().to_owned(),
            unreadable: number("unreadable") > 0,
            listed_elsewhere: number("listed_elsewhere") > 0,
            failing_list: number("failing_list"),
            page: number("page") as usize,
            offsets_ignored: number("offsets_ignored") > 0,
            unordered: number("unordered") > 0,
        }
    }
}

/// Returns a number from 0 to 1, excluding 1, that looks random: the generator `splitmix64`, from its `number`th state.
fn uniform(seed: u64, number: u64) -> f64 {
    let mut mixed = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // An `f64` holds 53 bits exactly.
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_drawn_alike_each_time() {
        let faults = Faults {
            error_share: 0.05,
            stall_share: 0.01,
            seed: 7,
            ..Faults::default()
        };
        let drawn: Vec<_> = (0..100_000).map(|n| faults.of(n, "key")).collect();
        let share = |fault: Fault| {
            drawn.iter().filter(|one| **one == Some(fault)).count() as f64 / drawn.len() as f64
        };
        assert!((share(Fault::Error) - 0.05).abs() < 0.005);
        assert!((share(Fault::Stall) - 0.01).abs() < 0.002);
        assert!(
            drawn
                == (0..100_000)
                    .map(|n| faults.of(n, "key"))
                    .collect::<Vec<_>>()
        );
        let other = Faults { seed: 8, ..faults };
        assert!(drawn != (0..100_000).map(|n| other.of(n, "key")).collect::<Vec<_>>());
    }
}
