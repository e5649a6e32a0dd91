//! Samples over which a thread panicked.

use crate::produce::deadline_queue::Deadline;
use crate::produce::failure::Failure;
use crate::produce::threads::PoolWork;
use crate::stream::sample::{Destination, PendingSample};
use coprep_pipeline::Scratch;

/// Number of panics after which a sample breaks its stream off. From the second on, the threads only had to report it.
const MOST_PANICS: u32 = 3;

/// The work of reporting the panic of a thread that had the sample, so that the minibatch still becomes whole.
struct RecoveryWork(PendingSample);

impl PoolWork for RecoveryWork {
    fn run(self: Box<Self>, _: &mut Scratch) {
        self.0.recover();
    }
}

impl PendingSample {
    fn recover(mut self) {
        let is_wanted = self.is_started();
        if let Destination::LateBound(binding) = self.destination {
            // The slot may be gone, together with the stream.
            let bound = self.stream.try_bind(binding);
            self.destination = bound.map_or(Destination::Over, Destination::Bound);
        }
        match self.destination {
            Destination::Over => return,
            Destination::Last(_) => return self.end_minibatch(),
            _ => {}
        }
        if is_wanted && self.replace(Failure::defect()) {
            self.panics = 0;
            self.begin_anew(Deadline::default());
        } else {
            self.end();
        }
    }
}

impl Drop for PendingSample {
    /// Gives a sample that is dropped before it is over, because a thread panicked, to another thread, which reports
    /// it. This is not done here: while a panic unwinds, locks are not poisoned, and another panic would end the
    /// process.
    fn drop(&mut self) {
        let destination = std::mem::replace(&mut self.destination, Destination::Over);
        if matches!(destination, Destination::Over) {
            return;
        }
        if self.panics >= MOST_PANICS {
            return self.stream.doom();
        }
        let again = PendingSample {
            stream: self.stream.clone(),
            destination,
            drawn_for: self.drawn_for.clone(),
            draw: self.draw,
            plan: self.plan,
            is_waiting: self.is_waiting,
            short_since: self.short_since,
            panics: self.panics + 1,
        };
        let threads = &self.stream.workers;
        threads.submit(Deadline::default(), Box::new(RecoveryWork(again)));
    }
}
