//! The threads that run pipelines, one pool for all streams.
//!
//! Work for a minibatch goes before work for a warm-up. Within a kind, first come, first served: the
//! minibatch drawn first is due first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::prepare::Tools;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::{Error, Result};

/// Something a worker does.
pub(crate) trait Work: Send {
    fn run(self: Box<Self>, tools: &mut Tools);
}

/// The pool.
pub(crate) struct Workers {
    due: Sender<Box<dyn Work>>,
    background: Sender<Box<dyn Work>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let (due, due_work) = unbounded();
        let (background, background_work) = unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let start_one = |i| {
            let (due, background, stop) = (due_work.clone(), background_work.clone(), stop.clone());
            let builder = std::thread::Builder::new().name(format!("worker-{i}"));
            builder.spawn(move || work(&due, &background, &stop))
        };
        let threads = (0..count.max(1))
            .map(start_one)
            .collect::<std::io::Result<_>>();
        let threads = threads.map_err(|e| Error::io("cannot start worker threads", e))?;
        Ok(Workers {
            due,
            background,
            stop,
            threads,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Work for a minibatch.
    pub(crate) fn submit(&self, work: Box<dyn Work>) {
        // Fails only when all threads are gone, which `Drop` alone brings about.
        let _ = self.due.send(work);
    }

    /// Work that yields to minibatches.
    pub(crate) fn submit_background(&self, work: Box<dyn Work>) {
        let _ = self.background.send(work);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let this = std::thread::current().id();
        // The last owner may be a piece of work: a thread cannot wait for itself.
        for thread in self
            .threads
            .drain(..)
            .filter(|thread| thread.thread().id() != this)
        {
            let _ = thread.join();
        }
    }
}

/// How long a worker sleeps before it looks whether it should end.
const NAP: Duration = Duration::from_millis(200);

fn work(due: &Receiver<Box<dyn Work>>, background: &Receiver<Box<dyn Work>>, stop: &AtomicBool) {
    let mut tools = Tools::new();
    while !stop.load(Ordering::Acquire) {
        if let Ok(work) = next(due, background) {
            work.run(&mut tools);
        }
    }
}

fn next(
    due: &Receiver<Box<dyn Work>>,
    background: &Receiver<Box<dyn Work>>,
) -> std::result::Result<Box<dyn Work>, RecvTimeoutError> {
    crossbeam::channel::select_biased! {
        recv(due) -> work => work.map_err(|_| RecvTimeoutError::Disconnected),
        recv(background) -> work => work.map_err(|_| RecvTimeoutError::Disconnected),
        default(NAP) => Err(RecvTimeoutError::Timeout),
    }
}
