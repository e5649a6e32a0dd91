//! The CPU time of a worker thread, and the time that it waits.

use std::cell::Cell;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

/// CPU time and waits of this thread so far.
pub(super) struct ThreadUsage {
    cpu: Duration,
    /// Number of times that it gave up its processor to wait for something.
    waits: Option<i64>,
}

impl ThreadUsage {
    pub(super) fn now() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok();
        ThreadUsage {
            cpu: thread_cpu(),
            waits: usage.map(|usage| usage.voluntary_context_switches()),
        }
    }

    /// Returns the CPU seconds since then, and the seconds of `wall` in which the thread did not wait for storage. If
    /// it never gave up its processor, that is all of `wall`, including time in which it waited for a processor.
    pub(super) fn spent(&self, wall: f32) -> (f32, f32) {
        let now = ThreadUsage::now();
        let cpu = now.cpu.saturating_sub(self.cpu).as_secs_f32();
        if now.waits == self.waits {
            (cpu, wall)
        } else {
            (cpu, cpu.min(wall))
        }
    }
}

thread_local! {
    /// CPU time of this thread when it was last read.
    static LAST_CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the CPU time of this thread, by a system call.
pub(super) fn thread_cpu() -> Duration {
    let now =
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    LAST_CPU.set(now);
    now
}

/// Returns the CPU time of this thread since it was last read. It covers one sample and the time between the previous
/// sample and this one; callers cap it at the time of the stages. So each sample needs one reading of the clock and not
/// two, because a system call drives data out of the processor's caches, which costs more than the call.
pub(super) fn cpu_since_last() -> Duration {
    let last = LAST_CPU.get();
    thread_cpu().saturating_sub(last)
}
