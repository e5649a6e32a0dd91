//! The threads that do the I/O of all remote stores of a process.
//!
//! Threads that fetch block on a future, as they block on a local file. The sockets, TLS and HTTP of all of them are
//! served by a few I/O threads. Their CPU time is counted, because a fetching thread would otherwise seem to wait
//! for storage while an I/O thread works for it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coprep_shared_memory::scheduling::yield_to_others;
use futures_util::future::{Either, FutureExt, select};
use nix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind};

/// Number of processors for which a further I/O thread is started. A request of a photograph takes an I/O thread 0.13 ms, so
/// it serves more requests a second than seven processors decode.
const PROCESSORS_EACH: usize = 8;

/// Time between two questions whether anybody still waits for a thread's work.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

thread_local! {
    /// Tells whether anybody still waits for the work of this thread; see [`while_wanted`].
    static IS_WANTED: RefCell<Option<Box<dyn Fn() -> bool>>> = const { RefCell::new(None) };
    /// CPU time of this thread when it was last added to the sum.
    static COUNTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Does work whose waits for stores end with an error once nobody waits for the work any more. Otherwise a store could hold
/// up a listing for ever, by a few bytes every second.
pub fn while_wanted<T>(is_wanted: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> T {
    IS_WANTED.set(Some(Box::new(is_wanted)));
    let done = work();
    IS_WANTED.set(None);
    done
}

/// Waits for a future as long as anybody waits for the work of this thread.
async fn until_unwanted<T>(future: impl Future<Output = T>) -> Result<T, Ended> {
    let mut future = pin!(future);
    loop {
        if let Ok(done) = timeout(ASK_INTERVAL, &mut future).await {
            return Ok(done);
        }
        let is_wanted = IS_WANTED.with_borrow(|is_wanted| is_wanted.as_ref().is_none_or(|f| f()));
        if !is_wanted {
            return Err(Ended::Unwanted);
        }
    }
}

/// Bytes that were received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received(Arc<AtomicU64>);

impl Received {
    pub(crate) fn count(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The end of a future that nobody waits for. It is reported once, also if the future is dropped before it is done.
struct Report<T, F: FnOnce(Option<T>)> {
    then: Option<F>,
    done: Option<T>,
}

impl<T, F: FnOnce(Option<T>)> Report<T, F> {
    /// Reports the end.
    fn end(mut self, done: Option<T>) {
        self.done = done;
    }
}

impl<T, F: FnOnce(Option<T>)> Drop for Report<T, F> {
    fn drop(&mut self) {
        if let Some(then) = self.then.take() {
            then(self.done.take());
        }
    }
}

/// Why a future has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The process ends.
    Stopped,
    /// Nobody waits for the work any more.
    Unwanted,
    Panicked,
}

/// The I/O threads; see the module.
#[derive(Debug)]
pub(crate) struct IoRuntime {
    runtime: Runtime,
    /// CPU time of the I/O threads, in nanoseconds.
    cpu_ns: Arc<AtomicU64>,
    received: Received,
    stopped: watch::Sender<bool>,
}

impl IoRuntime {
    /// Starts the I/O threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start() -> Result<IoRuntime, Error> {
        // It fails if another provider is installed already, which then serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let cpu_ns = Arc::new(AtomicU64::new(0));
        let counted = cpu_ns.clone();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1 + cpus / PROCESSORS_EACH)
            .thread_name("storage-io")
            .enable_all()
            // An answer may wait for a millisecond. It must not take the processor from a thread that decodes, which would
            // cost more than the answer.
            .on_thread_start(|| {
                if let Err(e) = yield_to_others() {
                    tracing::debug!("the threads of remote storage do not yield to others: {e}");
                }
            })
            // A thread is parked whenever it has nothing to do, so the sum is current except during a burst.
            .on_thread_park(move || {
                counted.fetch_add(cpu_since_counted(), Ordering::Relaxed);
            })
            .build()
            .map_err(|e| {
                Error::new(
                    ErrorKind::Read,
                    "cannot start the threads of remote storage",
                )
                .because(e)
            })?;
        Ok(IoRuntime {
            runtime,
            cpu_ns,
            received: Received::default(),
            stopped: watch::Sender::new(false),
        })
    }

    /// Blocks the calling thread until the future is done, or the thread's work is unwanted.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Ended> {
        let future = until_unwanted(future);
        self.runtime.block_on(caught(self.until_stopped(future)))?
    }

    /// Returns the future, which ends with `None` if the process ends first.
    fn until_stopped<T, F: Future<Output = T>>(
        &self,
        future: F,
    ) -> impl Future<Output = Option<T>> + use<T, F> {
        let mut stopped = self.stopped.subscribe();
        async move {
            let stop = pin!(stopped.wait_for(|is_stopped| *is_stopped));
            match select(pin!(future), stop).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            }
        }
    }

    /// Runs a future on an I/O thread, and then calls `then` there: with `None` if the process ends first, or the future
    /// panics. `then` must not block.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
        then: impl FnOnce(Option<T>) + Send + 'static,
    ) {
        let future = self.until_stopped(future);
        let report = Report {
            then: Some(then),
            done: None,
        };
        self.runtime.spawn(async move { report.end(future.await) });
    }

    /// Runs a future on an I/O thread, and blocks the calling thread until it is done.
    ///
    /// The calling thread is woken once. In [`block_on`](Self::block_on) it is woken whenever the future can go on.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Ended> {
        let task = self.runtime.spawn(caught(self.until_stopped(future)));
        // Otherwise the runtime was shut down.
        self.runtime.block_on(task).unwrap_or(Err(Ended::Stopped))
    }

    /// Ends all waits, now and from now on.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Returns the count of received bytes.
    pub(crate) fn received(&self) -> Received {
        self.received.clone()
    }

    /// Returns the CPU time that the I/O threads spend on `bytes` bytes, as they did so far.
    pub(crate) fn cpu_for(&self, bytes: u64) -> Duration {
        let received = self.received.0.load(Ordering::Relaxed).max(1);
        let each = self.cpu_ns.load(Ordering::Relaxed) as f64 / received as f64;
        Duration::from_nanos((each * bytes as f64) as u64)
    }
}

/// Runs a future, whose panic is an end as others: the clients of stores panic over what a store or a job gives them.
async fn caught<T>(future: impl Future<Output = Option<T>>) -> Result<T, Ended> {
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(done) => done.ok_or(Ended::Stopped),
        Err(_) => Err(Ended::Panicked),
    }
}

/// Returns the nanoseconds of CPU time of this thread since the last call.
fn cpu_since_counted() -> u64 {
    let clock = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let now = clock.map_or(Duration::ZERO, Duration::from);
    let before = COUNTED.replace(now);
    u64::try_from(now.saturating_sub(before).as_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_future_alone() {
        let io = IoRuntime::start().unwrap();
        let panics = || async { std::panic::resume_unwind(Box::new("a defect")) };
        assert_eq!(io.run::<()>(panics()), Err(Ended::Panicked));
        assert_eq!(io.block_on::<()>(panics()), Err(Ended::Panicked));
        assert_eq!(io.run(async { 1 }), Ok(1), "its thread goes on");
    }

    #[test]
    fn a_wait_for_an_io_thread_ends_with_the_process() {
        let io = IoRuntime::start().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| io.run(std::future::pending::<()>()));
            io.stop();
            assert_eq!(waits.join().unwrap(), Err(Ended::Stopped));
        });
        assert_eq!(io.run(std::future::pending::<()>()), Err(Ended::Stopped));
    }

    #[test]
    fn the_end_of_a_future_that_nobody_waits_for_is_reported_once() {
        let io = IoRuntime::start().unwrap();
        let (told, ends) = std::sync::mpsc::channel();
        let report = |name: &'static str| {
            let told = told.clone();
            move |done: Option<u8>| told.send((name, done)).unwrap()
        };
        io.spawn(async { 1 }, report("done"));
        assert_eq!(ends.recv().unwrap(), ("done", Some(1)));
        let panics = async { std::panic::resume_unwind(Box::new("a defect")) };
        io.spawn(panics, report("panicked"));
        assert_eq!(ends.recv().unwrap(), ("panicked", None));
        io.spawn(std::future::pending(), report("stopped"));
        io.stop();
        assert_eq!(ends.recv().unwrap(), ("stopped", None));
        drop(told);
        assert!(ends.recv().is_err(), "no end is reported twice");
    }
}
