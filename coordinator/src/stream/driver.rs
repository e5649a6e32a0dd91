//! The thread of a stream that checks for work whenever a consumer rings.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use coprep_protocol::poll_interval::poll_every;
use fail::fail_point;

use crate::Result;
use crate::error::os;
use crate::produce::processes::Trouble;
use crate::stream::Stream;

/// Interval at which the driver checks for work even if nobody rings. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause of a driver that has panicked, because it may panic again at once.
const PAUSE: Duration = Duration::from_millis(20);

impl Stream {
    pub(super) fn start_driver(self: &Arc<Self>) -> Result<()> {
        let stream = Arc::downgrade(self);
        let builder = std::thread::Builder::new().name(format!("stream-{}", self.config.id));
        builder
            .spawn(move || drive(&stream))
            .map_err(|e| os("cannot start a thread", e))?;
        Ok(())
    }

    /// Has the driver break the stream off, on behalf of a thread that cannot take the lock.
    pub(super) fn doom(&self) {
        self.doomed.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    fn run_once(self: &Arc<Self>) {
        fail_point!("driver-turn");
        if self.doomed.swap(false, Ordering::AcqRel) {
            self.break_off(&Trouble::Defect("a worker panicked over and over"));
        }
        let next_check = self.pump_until_quiet();
        let longest = poll_every(POLL_INTERVAL);
        let rest = next_check.map_or(longest, |at| at.saturating_duration_since(Instant::now()));
        self.doorbell.wait(rest.min(longest));
        self.engine().disarm();
    }

    /// Checks for work until there is none, and arms every consumer: it rings from now on. Events before that are seen
    /// here. Returns when to check again, if a job lacks buffers that another may hold without reading.
    fn pump_until_quiet(self: &Arc<Self>) -> Option<Instant> {
        let mut engine = self.engine();
        while self.pump(&mut engine) {}
        // From here on every thread that changes something rings: consumers, and threads that free a buffer.
        self.doorbell.set_idle();
        engine.arm();
        while self.pump(&mut engine) {}
        engine.next_check
    }
}

/// Runs the driver, which checks for work whenever a consumer rings.
fn drive(stream: &Weak<Stream>) {
    while let Some(stream) = stream.upgrade() {
        if stream.is_closed() {
            return;
        }
        let ran = catch_unwind(AssertUnwindSafe(|| stream.run_once()));
        if ran.is_err() {
            stream.break_off(&Trouble::Defect("the driver of the stream panicked"));
            // It may panic again, until all jobs have left.
            std::thread::sleep(PAUSE);
        }
    }
}
