//! The end of a worker process, and the samples that it leaves.

use std::time::{Duration, Instant};

use crate::produce::failure::Failure;
use crate::produce::processes::worker::{ATTEMPTS, Chunk, PAUSES, PoolTask, Worker, WorkerProcess};
use crate::produce::processes::{TaskOutcome, Trouble};

/// Time that a process gets to end by itself, after its connection has ended.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two checks whether the pool has ended, while a process is ending.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which a killed process that is still there is reported, and between two such reports. A process that
/// waits for storage ends only when the storage has answered.
const SLOW_END: Duration = Duration::from_secs(60);
/// Longest time for a killed process to end. Storage that answers at all has answered by then. It is longer than a
/// zygote that is importing takes to report the end of a fork server, which ends the wait as well.
const LONGEST_END: Duration = Duration::from_secs(900);

impl Chunk {
    /// Returns for each sample whether the process has begun it and not finished it.
    fn begun(&self) -> impl Iterator<Item = bool> {
        self.tasks.iter().enumerate().map(|(index, task)| {
            let age = self.assigned.get(index).and_then(|a| a.handle.age());
            task.is_some() && age.is_some()
        })
    }
}

impl Worker {
    /// Replaces the process. `why` is empty if it ended by itself.
    pub(super) fn lost(&mut self, why: &str) {
        self.forget_want();
        if self.process_pool.is_over() {
            return;
        }
        let name = self.name();
        let Some(WorkerProcess { number, pid, .. }) = self.process.take() else {
            return self.blame(&name, why, why);
        };
        let Some(exited) = self.reap(number, pid, why) else {
            return;
        };
        let how = if why.is_empty() { exited } else { why.into() };
        tracing::warn!(
            worker = self.id,
            pid,
            how,
            "a worker of user code is replaced"
        );
        self.blame(&name, &how, why);
        // Without a pause, processes that end at once would be forked over and over.
        if !self.process_pool.is_over() {
            std::thread::sleep(self.pause);
        }
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// Ends a process, and returns how it ended once it is gone. `why` is empty if it ends by itself. Returns `None` if
    /// the pool has ended meanwhile; it is ended here if nobody will tell how the process ends.
    ///
    /// The process must be gone before its slots are given to anybody else, because it may still be writing them. Nor
    /// may an iterable dataset be iterated twice at the same time: its stream has one worker, whose next process is
    /// started after this. PyTorch's workers of the former process are gone as well. They hold its socket too, so the
    /// socket is not lost before they have ended. If the process is killed here, the kernel sends them SIGKILL
    /// (`end_with_parent` in `_processes.py`) before it reports that their parent has ended.
    pub(super) fn reap(&mut self, number: u32, pid: u32, why: &str) -> Option<String> {
        self.wait_for_end(number, pid, why).unwrap_or_else(|why| {
            self.end_pool(why);
            None
        })
    }

    /// Waits until a process is gone, and kills it unless it ends by itself. Returns how it ended, or `None` if the pool
    /// has ended meanwhile.
    ///
    /// # Errors
    /// With the reason why its end will not be known.
    fn wait_for_end(&self, number: u32, pid: u32, why: &str) -> Result<Option<String>, String> {
        let fork_server = &self.process_pool.fork_server;
        if why.is_empty()
            && let Some(how) = fork_server.exited(number, GRACE)?
        {
            return Ok(Some(how));
        }
        fork_server.kill(number);
        let killed = Instant::now();
        let mut next_report = SLOW_END;
        while !self.process_pool.is_over() {
            if let Some(how) = fork_server.exited(number, CHECK_INTERVAL)? {
                return Ok(Some(how));
            }
            let waited = killed.elapsed();
            if waited >= LONGEST_END {
                let (id, waited) = (self.id, waited.as_secs());
                return Err(format!(
                    "its worker {id} (process {pid}) is still there {waited} s after it was killed"
                ));
            }
            if waited >= next_report {
                next_report += SLOW_END;
                tracing::warn!(
                    worker = self.id,
                    pid,
                    seconds = waited.as_secs(),
                    "a worker of user code was killed and is still there, perhaps because its storage does not answer: \
                     its samples wait until it is gone"
                );
            }
        }
        Ok(None)
    }

    /// Ends the pool, because it cannot go on with its fork server.
    pub(super) fn end_pool(&mut self, why: String) {
        self.give_back();
        self.process_pool.end(Trouble::ForkServer(why));
    }

    /// Returns the sample that is to blame for the end of the process, as an index into the samples of all chunks.
    /// `why` is empty if the process ended by itself.
    fn at_fault(&self, why: &str) -> Option<usize> {
        let begun = self
            .chunks
            .iter()
            .flat_map(Chunk::begun)
            .position(|begun| begun);
        // A process that has made samples, and ended before it began the next one, may have been killed together with
        // others. A sample that is given to several of these is not at fault.
        if why.is_empty() && self.has_made {
            return begun;
        }
        // The oldest. Processes that end at once, or do nothing, would otherwise be replaced for ever.
        let mut tasks = self.chunks.iter().flat_map(|chunk| &chunk.tasks);
        begun.or_else(|| tasks.position(Option::is_some))
    }

    /// Takes the samples of a process that is gone, and marks the one at fault. `why` is empty if the process ended by
    /// itself.
    fn blame(&mut self, name: &str, how: &str, why: &str) {
        // The process is gone, so its written samples are complete. An error here changes nothing.
        let _ = self.take_written();
        let at_fault = self.at_fault(why);
        let mut tasks: Vec<Option<PoolTask>> = std::mem::take(&mut self.chunks)
            .into_iter()
            .flat_map(|chunk| chunk.tasks)
            .collect();
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, Mutex};

    use coprep_protocol::code::{Channel, ENTRIES, SampleRequest, entry};
    use coprep_shared_memory::task_table::{TaskHandle, TaskTable};

    use super::*;
    use crate::produce::deadline_queue::Deadline;
    use crate::produce::processes::fork_server::ForkServer;
    use crate::produce::processes::task::LargeRoom;
    use crate::produce::processes::{Begin, ProcessPool, Task, TaskEstimate};

    const LIMIT: Duration = Duration::from_secs(60);
    const KILLED: &str = "was killed by signal 9, SIGKILL";

    /// Returns a worker's thread, the process's end of its fork server, and the reasons why its pool ended.
    fn worker() -> (Worker, Channel, Arc<Mutex<Vec<String>>>) {
        let (fork_server, process) = ForkServer::of_test(2);
        let process_pool = ProcessPool::new(fork_server, 2, LIMIT, None, false);
        let troubles = Arc::new(Mutex::new(Vec::new()));
        let told = troubles.clone();
        process_pool.on_trouble(move |trouble| told.lock().unwrap().push(trouble.to_string()));
        (Worker::new(process_pool, 0), process, troubles)
    }

    fn say(process: &Channel, event: &str) {
        process.send(event.as_bytes(), &[]).unwrap();
    }

    fn is_asked_to_kill(process: &mut Channel) -> bool {
        let request = process.receive(LIMIT).unwrap().unwrap();
        String::from_utf8(request).unwrap().contains("kill")
    }

    #[test]
    fn a_process_that_dies_slowly_does_not_end_the_pool() {
        let (mut worker, mut process, troubles) = worker();
        let fork_server = std::thread::spawn(move || {
            assert!(is_asked_to_kill(&mut process));
            // Meanwhile the fork server fails at something else.
            say(
                &process,
                r#"{"event": "failed", "worker": 1, "message": "cannot fork"}"#,
            );
            say(
                &process,
                r#"{"event": "failed", "message": "cannot unmap"}"#,
            );
            std::thread::sleep(3 * CHECK_INTERVAL);
            let exited = format!(r#"{{"event": "exited", "worker": 0, "how": "{KILLED}"}}"#);
            say(&process, &exited);
            process
        });
        assert_eq!(worker.reap(0, 7, "took too long").as_deref(), Some(KILLED));
        assert!(!worker.process_pool.is_over());
        assert!(troubles.lock().unwrap().is_empty());
        drop(fork_server.join().unwrap());
    }

    #[test]
    fn a_pool_whose_fork_server_ends_says_how_it_ended() {
        let (mut worker, mut process, troubles) = worker();
        let fork_server = std::thread::spawn(move || assert!(is_asked_to_kill(&mut process)));
        assert_eq!(worker.reap(0, 7, "took too long"), None);
        fork_server.join().unwrap();
        assert_eq!(
            *troubles.lock().unwrap(),
            ["the process that runs its dataset's code: it ended (signal: 9)"]
        );
    }

    #[test]
    fn a_process_that_cannot_be_killed_ends_the_pool_with_the_reason() {
        let (mut worker, process, troubles) = worker();
        say(
            &process,
            r#"{"event": "failed", "worker": 0, "message": "cannot kill: not permitted"}"#,
        );
        assert_eq!(worker.reap(0, 7, "took too long"), None);
        assert_eq!(
            *troubles.lock().unwrap(),
            ["the process that runs its dataset's code: cannot kill: not permitted"]
        );
    }

    #[test]
    fn nobody_waits_for_a_process_of_a_pool_that_is_over() {
        let (mut worker, _process, troubles) = worker();
        let process_pool = worker.process_pool.clone();
        let dismissing = std::thread::spawn(move || drop(process_pool.dismiss()));
        assert_eq!(worker.reap(0, 7, "took too long"), None);
        dismissing.join().unwrap();
        assert!(troubles.lock().unwrap().is_empty());
    }

    /// A sample that is bound to a slot.
    struct Sample;

    impl Task for Sample {
        fn begin(&mut self) -> Begin {
            Begin::Make
        }

        fn request(&self) -> SampleRequest {
            SampleRequest {
                id: 0,
                slot: Some((0, 0)),
                is_offered: false,
                keep: false,
                visit: 0,
                cached: (0, 0),
            }
        }

        fn lasting_id(&self) -> Option<u32> {
            None
        }

        fn estimate(&self) -> TaskEstimate {
            TaskEstimate::default()
        }

        fn offer(&mut self, _: &TaskHandle) -> Option<(u32, u32)> {
            None
        }

        fn put_back(&mut self) {}

        fn bind(&mut self, _: bool) -> (u32, u32) {
            (0, 0)
        }

        fn room(&mut self, _: u64) -> LargeRoom {
            LargeRoom::Unwanted
        }

        fn finish(self: Box<Self>, _: TaskOutcome) {}
    }

    /// Gives a sample to a process, which ends, and returns the number of ends for which the sample is blamed then.
    fn blamed_for(has_made: bool, begins: bool) -> u32 {
        let (mut worker, process, _) = worker();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let task_table = TaskTable::create(ENTRIES).unwrap();
        worker.process = Some(WorkerProcess {
            number: 0,
            pid: 7,
            channel: Channel::new(ours),
            scratch: Vec::new(),
            task_table: task_table.clone(),
            next_chunk: 0,
        });
        worker.has_made = has_made;
        let task = PoolTask::new(Box::new(Sample), Deadline::default());
        worker.give(vec![task]).unwrap();
        if begins {
            assert!(task_table.begin(entry(0, 0)));
        }
        drop(theirs);
        say(
            &process,
            &format!(r#"{{"event": "exited", "worker": 0, "how": "{KILLED}"}}"#),
        );
        worker.lost("");
        worker.process_pool.next(Duration::ZERO).unwrap().attempts
    }

    #[test]
    fn a_sample_is_blamed_if_it_was_begun_or_its_process_never_made_any() {
        assert_eq!(blamed_for(true, true), 1);
        assert_eq!(blamed_for(false, true), 1);
        assert_eq!(blamed_for(false, false), 1);
        assert_eq!(blamed_for(true, false), 0);
    }
}
