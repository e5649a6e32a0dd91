//! Work that is done once for all clients that need it: listing a dataset, reserving a cache, opening a stream.
//!
//! Such work may take long, or never end, because storage may be slow or dead. So it runs in a thread of its own, a
//! *flight*, which holds no lock. The first client that needs its result begins it. Clients that need the same result
//! while it lasts join it, and no other client waits. A table of flights lies in the registry under the lock that also
//! holds the results, so that a newcomer finds either the result or the flight.
//!
//! A wait ends with the result, or when the [`FlightParty`] that waits gives up. A flight may ask whether anybody still
//! waits for it.
//!
//! **Locks.** The state of a flight is locked for moments, alone or within the registry's lock, never around it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_shared_memory::lock::{lock, unpoisoned};

use crate::error::invalid;
use crate::{Error, Result};

/// Time between two checks of the party that waits.
const TICK: Duration = Duration::from_millis(200);

/// A party that waits for a flight.
pub(crate) trait FlightParty {
    /// Called now and then during a wait, with the step that the flight is at and the time when the flight began.
    ///
    /// # Errors
    /// When the party does not wait any longer.
    fn still_waits(&self, step: &str, began: Instant) -> Result<()>;
}

/// The end of a flight.
pub(super) enum FlightOutcome<T> {
    /// The result.
    Done(T),
    /// An error.
    Failed(Error),
    /// Neither a result nor an error: the waiter must check again.
    Nothing,
}

impl<T: Clone> Clone for FlightOutcome<T> {
    fn clone(&self) -> Self {
        match self {
            FlightOutcome::Done(result) => FlightOutcome::Done(result.clone()),
            FlightOutcome::Failed(error) => FlightOutcome::Failed(error.clone()),
            FlightOutcome::Nothing => FlightOutcome::Nothing,
        }
    }
}

/// Work that is done once for all its waiters; see the module.
pub(super) struct Flight<T> {
    began: Instant,
    state: Mutex<FlightState<T>>,
    landed: Condvar,
}

struct FlightState<T> {
    waiters: usize,
    /// The step that is being done now, in words for people.
    step: String,
    outcome: Option<FlightOutcome<T>>,
}

impl<T: Clone> Flight<T> {
    fn state(&self) -> MutexGuard<'_, FlightState<T>> {
        lock(&self.state)
    }

    /// Sets the step that is being done now.
    pub(super) fn step(&self, step: impl Into<String>) {
        self.state().step = step.into();
    }

    /// Returns `true` while somebody waits for the result.
    pub(super) fn is_awaited(&self) -> bool {
        self.state().waiters > 0
    }

    /// Ends the flight. `before` is called with the number of waiters before any of them takes the outcome.
    pub(super) fn land(&self, outcome: FlightOutcome<T>, before: impl FnOnce(usize)) {
        let mut state = self.state();
        before(state.waiters);
        state.outcome = Some(outcome);
        self.landed.notify_all();
    }
}

/// A flight that needs the result of another one waits as long as somebody waits for its own.
impl<T: Clone> FlightParty for Flight<T> {
    fn still_waits(&self, step: &str, _began: Instant) -> Result<()> {
        let mut state = self.state();
        if state.waiters == 0 {
            return Err(invalid("all jobs that waited for the dataset have left"));
        }
        // The jobs that wait are told the innermost step, which is the one that really lasts.
        if state.step != step {
            state.step = step.to_owned();
        }
        Ok(())
    }
}

/// A claim on the outcome of a flight.
pub(super) struct Waiter<T: Clone> {
    flight: Arc<Flight<T>>,
    /// `true` for the waiter for whom the flight was begun.
    pub(super) is_first: bool,
    has_left: bool,
}

impl<T: Clone> Waiter<T> {
    fn new(flight: &Arc<Flight<T>>, is_first: bool) -> Self {
        flight.state().waiters += 1;
        Waiter {
            flight: flight.clone(),
            is_first,
            has_left: false,
        }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// When the party gives up. No outcome is then left that only this waiter could take.
    pub(super) fn wait(mut self, party: &dyn FlightParty) -> Result<FlightOutcome<T>> {
        let flight = self.flight.clone();
        let mut state = flight.state();
        loop {
            if let Some(outcome) = &state.outcome {
                return Ok(outcome.clone());
            }
            let step = state.step.clone();
            // Unlocked for the call, which may send to a client, or lock the flight that waits for this one.
            drop(state);
            let answer = party.still_waits(&step, flight.began);
            state = flight.state();
            if let Err(gone) = answer {
                // The flight may have landed for this waiter meanwhile.
                if state.outcome.is_none() {
                    state.waiters -= 1;
                    self.has_left = true;
                    return Err(gone);
                }
            } else if state.outcome.is_none() {
                let waited = flight.landed.wait_timeout(state, TICK);
                state = unpoisoned(waited).0;
            }
        }
    }
}

impl<T: Clone> Drop for Waiter<T> {
    fn drop(&mut self) {
        if !self.has_left {
            self.flight.state().waiters -= 1;
        }
    }
}

/// The flights under way, by key. The owner keeps the table under a lock.
pub(super) struct Flights<K, T> {
    under_way: Vec<(K, Arc<Flight<T>>)>,
}

impl<K, T> Default for Flights<K, T> {
    fn default() -> Self {
        Flights {
            under_way: Vec::new(),
        }
    }
}

impl<K: PartialEq, T: Clone> Flights<K, T> {
    /// Joins the flight for `key`, if there is one.
    pub(super) fn join(&self, key: &K) -> Option<Waiter<T>> {
        let found = self.under_way.iter().find(|(k, _)| k == key);
        found.map(|(_, flight)| Waiter::new(flight, false))
    }

    /// Joins the flight for `key`, if there is one that somebody waits for.
    pub(super) fn join_awaited(&self, key: &K) -> Option<Waiter<T>> {
        let mut all = self.under_way.iter();
        let found = all.find(|(k, flight)| k == key && flight.is_awaited());
        found.map(|(_, flight)| Waiter::new(flight, false))
    }

    /// Begins a flight for `key`. The caller has checked that there is none, and must let it land.
    pub(super) fn begin(&mut self, key: K, step: String) -> (Arc<Flight<T>>, Waiter<T>) {
        let flight = Arc::new(Flight {
            began: Instant::now(),
            state: Mutex::new(FlightState {
                waiters: 0,
                step,
                outcome: None,
            }),
            landed: Condvar::new(),
        });
        self.under_way.push((key, flight.clone()));
        let waiter = Waiter::new(&flight, true);
        (flight, waiter)
    }

    /// Takes a flight that lands out of the table. Returns its key.
    pub(super) fn remove(&mut self, flight: &Arc<Flight<T>>) -> Option<K> {
        let mut all = self.under_way.iter();
        let at = all.position(|(_, f)| Arc::ptr_eq(f, flight))?;
        Some(self.under_way.swap_remove(at).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A party that gives up after this number of checks.
    struct Looks(std::cell::Cell<u32>);

    impl FlightParty for Looks {
        fn still_waits(&self, _step: &str, _began: Instant) -> Result<()> {
            match self.0.get().checked_sub(1) {
                Some(left) => {
                    self.0.set(left);
                    Ok(())
                }
                None => Err(invalid("gone")),
            }
        }
    }

    fn looks(count: u32) -> Looks {
        Looks(std::cell::Cell::new(count))
    }

    #[test]
    fn all_who_wait_are_given_the_one_result() {
        let mut flights = Flights::<u32, u32>::default();
        assert!(flights.join(&7).is_none());
        let (flight, first) = flights.begin(7, "work".into());
        let second = flights.join(&7).unwrap();
        assert!(first.is_first && !second.is_first);
        assert!(flights.join(&8).is_none());
        std::thread::scope(|scope| {
            let waits = [first, second]
                .map(|waiter| scope.spawn(move || waiter.wait(&looks(1000)).unwrap()));
            flights.remove(&flight);
            flight.land(FlightOutcome::Done(5), |waiters| assert_eq!(waiters, 2));
            for wait in waits {
                assert!(matches!(wait.join().unwrap(), FlightOutcome::Done(5)));
            }
        });
        assert!(flights.join(&7).is_none());
    }

    #[test]
    fn a_flight_knows_when_nobody_waits_any_more() {
        let mut flights = Flights::<u32, u32>::default();
        let (flight, first) = flights.begin(7, "work".into());
        let second = flights.join(&7).unwrap();
        assert!(first.wait(&looks(0)).is_err());
        assert!(flight.is_awaited());
        drop(second);
        assert!(!flight.is_awaited());
        assert!(flights.join_awaited(&7).is_none());
        let (_, _next) = flights.begin(7, "work".into());
        assert!(!flights.join_awaited(&7).unwrap().is_first);
        assert!(flight.still_waits("more", Instant::now()).is_err());
        flight.land(FlightOutcome::Nothing, |waiters| assert_eq!(waiters, 0));
    }

    #[test]
    fn who_waits_is_told_the_innermost_step() {
        let (outer, _waiter) = Flights::<u32, u32>::default().begin(1, "outer".into());
        let mut inner = Flights::<u32, u32>::default();
        let (flight, waiter) = inner.begin(2, "listing".into());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.wait(&*outer).is_ok());
            while outer.state().step != "listing" {
                std::thread::yield_now();
            }
            flight.land(FlightOutcome::Done(1), |_| {});
            assert!(waiting.join().unwrap());
        });
    }
}
