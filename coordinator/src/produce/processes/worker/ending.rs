//! The end of a worker process, and the samples that it leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::produce::failure::Failure;
use crate::produce::processes::fork_server::WorkerEnd;
use crate::produce::processes::worker::{ATTEMPTS, Chunk, PAUSES, PoolTask, Worker, WorkerProcess};
use crate::produce::processes::{TaskOutcome, Trouble};

/// Time that a process gets to end by itself, after its connection has ended.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two checks whether the pool has ended, while a process is ending.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which a killed process that is still there is reported, and between two such reports. A process that
/// waits for storage ends only when the storage has answered.
const SLOW_END: Duration = Duration::from_secs(60);
/// Longest time for a killed process to end. Storage that answers at all has answered by then.
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
        let Some(process) = self.process.take() else {
            return self.blame(&name, why, why);
        };
        let exited = match self.reap(&process, why) {
            None => return,
            Some(WorkerEnd::WithServer) => {
                // The process is gone, so its written samples are complete. An error here changes nothing.
                let _ = self.take_written();
                return self.put_back_all();
            }
            Some(WorkerEnd::Alone(how)) => how,
        };
        let how = if why.is_empty() { exited } else { why.into() };
        tracing::warn!(
            worker = self.id,
            pid = process.pid,
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
    /// the pool has ended meanwhile; it is ended here if the process does not end.
    ///
    /// The process must be gone before its slots are given to anybody else, because it may still be writing them. Nor
    /// may an iterable dataset be iterated twice at the same time: its stream has one worker, whose next process is
    /// started after this. PyTorch's workers of the former process are gone as well. They hold its socket too, so the
    /// socket is not lost before they have ended. If the process is killed here, the kernel sends them SIGKILL
    /// (`end_with_parent` in `_processes.py`) before it reports that their parent has ended.
    pub(super) fn reap(&mut self, process: &WorkerProcess, why: &str) -> Option<WorkerEnd> {
        self.wait_for_end(process, why).unwrap_or_else(|why| {
            self.end_pool(why);
            None
        })
    }

    /// Waits until a process is gone, and kills it unless it ends by itself. Returns how it ended, or `None` if the pool
    /// has ended meanwhile.
    ///
    /// # Errors
    /// With the reason, if it does not end.
    fn wait_for_end(
        &self,
        process: &WorkerProcess,
        why: &str,
    ) -> Result<Option<WorkerEnd>, String> {
        let (fork_server, number, pid) = (&process.fork_server, process.number, process.pid);
        if why.is_empty()
            && let Some(end) = fork_server.wait_for_worker(number, GRACE)
        {
            return Ok(Some(end));
        }
        fork_server.kill(number);
        let killed = Instant::now();
        let mut next_report = SLOW_END;
        while !self.process_pool.is_over() {
            if let Some(end) = fork_server.wait_for_worker(number, CHECK_INTERVAL) {
                return Ok(Some(end));
            }
            let waited = killed.elapsed();
            // Nobody kills a worker whose fork server is gone but the kernel, which has tried. The worker may be frozen,
            // or wait for storage. The stream is opened anew with other memory, so that its jobs need not wait for that.
            if waited >= LONGEST_END || fork_server.is_over() {
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
        tasks.extend(self.rest.drain(..).map(Some));
        let together = at_fault.and_then(|index| tasks[index].as_ref()?.together().cloned());
        if let Some(together) = together {
            // Any sample of the call may be at fault. Each is asked for by itself from now on, which shows the one.
            let asked_with = |task: &&mut PoolTask| {
                task.together()
                    .is_some_and(|own| Arc::ptr_eq(own, &together))
            };
            let of_call = tasks.iter_mut().flatten().filter(asked_with);
            of_call.for_each(|task| task.alone = true);
        } else if let Some(mut task) = at_fault.and_then(|index| tasks[index].take()) {
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

    /// Gives all samples of the process back, none of which is at fault.
    pub(super) fn put_back_all(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let given = chunks.into_iter().flat_map(|c| c.tasks).flatten();
        let tasks: Vec<PoolTask> = given.chain(self.rest.drain(..)).collect();
        // The last one first, so that they are made in their order.
        for mut task in tasks.into_iter().rev() {
            task.work.put_back();
            self.process_pool.requeue_first(task);
        }
    }

    /// Drops the remaining samples, because the process pool has ended and nobody will make them.
    pub(super) fn give_back(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let given = chunks.into_iter().flat_map(|c| c.tasks).flatten();
        let tasks = given.chain(self.rest.drain(..));
        tasks.for_each(|task| task.work.finish(TaskOutcome::Dropped));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    use coprep_protocol::code::{Channel, ENTRIES, SampleRequest, Together, entry};
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
        let process_pool = ProcessPool::of_test(fork_server, 2);
        let troubles = Arc::new(Mutex::new(Vec::new()));
        let told = troubles.clone();
        process_pool.on_trouble(move |trouble| told.lock().unwrap().push(trouble.to_string()));
        (Worker::new(process_pool, 0), process, troubles)
    }

    /// Returns a process of this worker, and its end of its socket.
    fn process_of(worker: &Worker) -> (WorkerProcess, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = WorkerProcess {
            fork_server: worker.process_pool.server().unwrap(),
            number: 0,
            pid: 7,
            channel: Channel::new(ours),
            scratch: Vec::new(),
            task_table: TaskTable::create(ENTRIES).unwrap(),
            next_chunk: 0,
        };
        (process, theirs)
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
        let (of_worker, _socket) = process_of(&worker);
        let fork_server = std::thread::spawn(move || {
            assert!(is_asked_to_kill(&mut process));
            // Meanwhile the fork server fails at something else.
            say(
                &process,
                r#"{"event": "failed", "worker": 1, "message": "cannot fork"}"#,
            );
            std::thread::sleep(3 * CHECK_INTERVAL);
            let exited = format!(r#"{{"event": "exited", "worker": 0, "how": "{KILLED}"}}"#);
            say(&process, &exited);
            process
        });
        let end = worker.reap(&of_worker, "took too long");
        assert_eq!(end, Some(WorkerEnd::Alone(KILLED.into())));
        assert!(!worker.process_pool.is_over());
        assert!(troubles.lock().unwrap().is_empty());
        drop(fork_server.join().unwrap());
    }

    #[test]
    fn nobody_waits_for_a_process_of_a_pool_that_is_over() {
        let (mut worker, _process, troubles) = worker();
        let (of_worker, _socket) = process_of(&worker);
        let process_pool = worker.process_pool.clone();
        let dismissing = std::thread::spawn(move || process_pool.dismiss());
        // The fork server of such a pool ends, which may be seen first.
        let end = worker.reap(&of_worker, "took too long");
        assert!(matches!(end, None | Some(WorkerEnd::WithServer)), "{end:?}");
        dismissing.join().unwrap();
        assert!(troubles.lock().unwrap().is_empty());
    }

    /// A sample that is bound to a slot.
    struct Sample {
        together: Option<Arc<Together>>,
    }

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

        fn together(&self) -> Option<&Arc<Together>> {
            self.together.as_ref()
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

    fn task_of(together: Option<&Arc<Together>>) -> PoolTask {
        let sample = Sample {
            together: together.cloned(),
        };
        PoolTask::new(Box::new(sample), Deadline::default())
    }

    /// The end of a process in a test.
    enum Ends {
        Alone,
        WithServer,
    }

    /// Gives a sample to a process, which ends, and returns the number of ends for which the sample is blamed then.
    fn blamed_for(has_made: bool, begins: bool, ends: &Ends) -> u32 {
        let (mut worker, fork_server, _) = worker();
        let (process, socket) = process_of(&worker);
        let task_table = process.task_table.clone();
        worker.process = Some(process);
        worker.has_made = has_made;
        worker.give(vec![task_of(None)]).unwrap();
        if begins {
            assert!(task_table.begin(entry(0, 0)));
        }
        drop(socket);
        let exited = format!(r#"{{"event": "exited", "worker": 0, "how": "{KILLED}"}}"#);
        match ends {
            Ends::Alone => say(&fork_server, &exited),
            Ends::WithServer => drop(fork_server),
        }
        worker.lost("");
        assert!(!worker.process_pool.is_over());
        worker.process_pool.next(Duration::ZERO).unwrap().attempts
    }

    #[test]
    fn a_sample_is_blamed_if_it_was_begun_or_its_process_never_made_any() {
        assert_eq!(blamed_for(true, true, &Ends::Alone), 1);
        assert_eq!(blamed_for(false, true, &Ends::Alone), 1);
        assert_eq!(blamed_for(false, false, &Ends::Alone), 1);
        assert_eq!(blamed_for(true, false, &Ends::Alone), 0);
    }

    #[test]
    fn no_sample_is_blamed_for_the_end_of_a_call_and_each_is_then_made_alone() {
        let (mut worker, fork_server, _) = worker();
        let (process, socket) = process_of(&worker);
        let task_table = process.task_table.clone();
        worker.process = Some(process);
        let together = Arc::new(Together {
            ids: vec![0; 3],
            visit: 0,
        });
        for _ in 0..3 {
            let task = task_of(Some(&together));
            worker.process_pool.submit(Deadline::default(), task.work);
        }
        let mut tasks = worker.take();
        assert_eq!(tasks.len(), 3);
        worker.rest.extend(tasks.pop());
        worker.give(tasks).unwrap();
        assert!(task_table.begin(entry(0, 0)));
        drop(socket);
        say(
            &fork_server,
            &format!(r#"{{"event": "exited", "worker": 0, "how": "{KILLED}"}}"#),
        );
        worker.lost("");
        for _ in 0..3 {
            let tasks = worker.process_pool.next_together(Duration::ZERO);
            let alone: Vec<_> = tasks.iter().map(|t| (t.attempts, t.alone)).collect();
            assert_eq!(alone, [(0, true)]);
        }
    }

    #[test]
    fn no_sample_is_blamed_for_the_end_of_a_fork_server() {
        assert_eq!(blamed_for(true, true, &Ends::WithServer), 0);
        assert_eq!(blamed_for(false, false, &Ends::WithServer), 0);
    }
}
