//! The end of a worker process, and the samples that it leaves.

use std::time::Duration;

use crate::produce::failure::Failure;
use crate::produce::processes::worker::{ATTEMPTS, Chunk, PAUSES, PoolTask, Worker, WorkerProcess};
use crate::produce::processes::{TaskOutcome, Trouble};

impl Worker {
    /// Replaces the process. `why` is empty if it ended by itself.
    pub(super) fn lost(&mut self, why: &str) {
        self.forget_want();
        if self.process_pool.is_over() {
            return;
        }
        let name = self.name();
        let Some(WorkerProcess { number, pid, .. }) = self.process.take() else {
            return self.blame(&name, why);
        };
        let Some(exited) = self.reap(number, why) else {
            return self.end_pool();
        };
        let how = if why.is_empty() { exited } else { why.into() };
        tracing::warn!(
            worker = self.id,
            pid,
            how,
            "a worker of user code is replaced"
        );
        self.blame(&name, &how);
        // Without a pause, processes that end at once would be forked over and over.
        if !self.process_pool.is_over() {
            std::thread::sleep(self.pause);
        }
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// Ends a process, and returns how it ended once it is gone. `why` is empty if it ends by itself. Returns `None` if
    /// the fork server is gone.
    ///
    /// The process must be gone before its slots are given to anybody else, because it may still be writing them. Nor
    /// may an iterable dataset be iterated twice at the same time: its stream has one worker, whose next process is
    /// started after this. PyTorch's workers of the former process are gone as well. They hold its socket too, so the
    /// socket is not lost before they have ended. If the process is killed here, the kernel sends them SIGKILL
    /// (`end_with_parent` in `_worker.py`) before it reports that their parent has ended.
    pub(super) fn reap(&self, number: u32, why: &str) -> Option<String> {
        let fork_server = &self.process_pool.fork_server;
        let exited = match why {
            "" => fork_server.exited(number, Duration::from_secs(2)),
            _ => None,
        };
        exited.or_else(|| fork_server.kill(number))
    }

    /// Ends the pool, because its fork server is gone.
    pub(super) fn end_pool(&mut self) {
        self.give_back();
        let why = self.process_pool.fork_server.ended().unwrap_or_default();
        self.process_pool
            .end(Trouble::ForkServer(format!("it {why}")));
    }

    /// Blames the sample that the process was making, or the oldest if it had begun none.
    fn blame(&mut self, name: &str, how: &str) {
        // The process is gone, so its written samples are complete. An error here changes nothing.
        let _ = self.take_written();
        let is_at = |chunk: &Chunk, index: usize| {
            let age = chunk.hands.get(index).map(|hand| hand.given.age());
            chunk.tasks[index].is_some() && age.flatten().is_some()
        };
        let begun = self.chunks.front().and_then(|chunk| {
            let mut indices = 0..chunk.tasks.len();
            indices.find(|&index| is_at(chunk, index))
        });
        let mut tasks: Vec<Option<PoolTask>> = std::mem::take(&mut self.chunks)
            .into_iter()
            .flat_map(|chunk| chunk.tasks)
            .collect();
        // `begun` is an index into the oldest chunk, which comes first in this list.
        let at_fault = begun.or_else(|| tasks.iter().position(Option::is_some));
        if let Some(mut task) = at_fault.and_then(|index| tasks[index].take()) {
            task.attempts += 1;
            task.alone = true;
            if task.attempts >= ATTEMPTS {
                let message = format!(
                    "the worker that made it {how}, and so did another before: run it in the job with num_workers=0 \
                     to see what it does"
                );
                let failure = Failure {
                    worker: name.into(),
                    ..Failure::new("dataset", message)
                };
                if let Some(id) = task.work.lasting_id() {
                    self.process_pool.deadly.add(id, failure.clone());
                }
                task.work.finish(TaskOutcome::EndedWorkers(failure));
            } else {
                task.work.put_back();
                self.process_pool.requeue_first(task);
            }
        }
        for mut task in tasks.into_iter().flatten() {
            task.work.put_back();
            self.process_pool.requeue_first(task);
        }
    }

    /// Drops the remaining samples, because the process pool has ended and nobody will make them.
    pub(super) fn give_back(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let tasks = chunks.into_iter().flat_map(|c| c.tasks).flatten();
        tasks.for_each(|task| task.work.finish(TaskOutcome::Dropped));
    }
}
