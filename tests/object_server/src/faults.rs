//! Faults that a test asks for.

use std::time::Duration;

use crate::request::Query;

/// Faults of a server. `every` counts the requests for objects: of 20, the 20th, the 40th and so on have the fault.
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
    /// Answers with another range than the one that was asked for.
    pub wrong_range_every: u64,
    /// Part of the keys that have the faults of single objects. Empty for all.
    pub only: String,
}

/// What goes wrong with one answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Error,
    Reset,
    Stall,
    WrongRange,
}

impl Faults {
    /// Returns the fault of the `number`th request for an object.
    pub(crate) fn of(&self, number: u64, key: &str) -> Option<Fault> {
        let faults = [
            (self.error_every, Fault::Error),
            (self.reset_every, Fault::Reset),
            (self.stall_every, Fault::Stall),
            (self.wrong_range_every, Fault::WrongRange),
        ];
        let is_due = |every: u64| every > 0 && number.is_multiple_of(every);
        let due = faults.iter().find(|(every, _)| is_due(*every));
        due.filter(|_| key.contains(&self.only))
            .map(|(_, fault)| *fault)
    }

    /// Reads faults from the query of a request that controls the server.
    pub(crate) fn from_query(query: &Query) -> Faults {
        let number = |name: &str| query.get(name).and_then(|n| n.parse().ok()).unwrap_or(0);
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
            wrong_range_every: number("wrong_range_every"),
            only: query.get("only").unwrap_or_default().to_owned(),
        }
    }
}
