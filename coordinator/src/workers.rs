//! The threads that run pipelines, one pool for all streams.
//!
//! What is due first is begun first, whatever stream it is for; work for a warm-up, when nothing is due.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use coprep_protocol::message::PoolStatus;

use crate::due_queue::{DueQueue, Moment};
use crate::prepare::Tools;
use crate::{Error, Result};

/// Something a worker does.
pub(crate) trait Work: Send {
    fn run(self: Box<Self>, tools: &mut Tools);
}

type Queue = DueQueue<Box<dyn Work>>;

/// The pool.
pub(crate) struct Workers {
    queue: Arc<Queue>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let (queue, stop) = (Arc::new(Queue::new()), Arc::new(AtomicBool::new(false)));
        let start_one = |i| {
            let (queue, stop) = (queue.clone(), stop.clone());
            let builder = std::thread::Builder::new().name(format!("worker-{i}"));
            builder.spawn(move || work(&queue, &stop))
        };
        let threads = (0..count.max(1))
            .map(start_one)
            .collect::<std::io::Result<_>>();
        let threads = threads.map_err(|e| Error::io("cannot start worker threads", e))?;
        Ok(Workers {
            queue,
            stop,
            threads,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn status(&self) -> PoolStatus {
        PoolStatus {
            cpus: self.count() as u32,
            threads: self.count() as u32,
            ..PoolStatus::default()
        }
    }

    /// Something to be begun at `due`, or as soon as a thread is free.
    pub(crate) fn submit(&self, due: Moment, work: Box<dyn Work>) {
        self.queue.push(due, work);
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

fn work(queue: &Queue, stop: &AtomicBool) {
    let mut tools = Tools::new();
    while !stop.load(Ordering::Acquire) {
        if let Some(work) = queue.pop(NAP) {
            work.run(&mut tools);
        }
    }
}
