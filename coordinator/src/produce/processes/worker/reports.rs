//! The messages of a worker process, and the samples that it has written.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use coprep_cache::{Form, Meta};
use coprep_costs::MeasuredTimes;
use coprep_protocol::code::{self, Raised, WorkerProgress, WorkerReport};
use coprep_shared_memory::task_table::Written;

use crate::produce::processes::TaskOutcome;
use crate::produce::processes::loading::failure;
use crate::produce::processes::worker::{NOT_GIVEN, PAUSES, PoolTask, TOGETHER, Worker};

impl Worker {
    pub(super) fn report(&mut self, report: WorkerReport) -> std::result::Result<(), String> {
        self.pause = PAUSES.0;
        match report {
            WorkerReport::Written(progress) => self.advanced(progress)?,
            WorkerReport::Ready(index) => self.tell_where(index)?,
            WorkerReport::Raised(index, raised) => self.raised(index, raised)?,
            WorkerReport::TooLarge(index, bytes) => self.wants_room(index, bytes)?,
            WorkerReport::Probed(_) | WorkerReport::Remade(_) => {
                return Err("said what it was not asked".into());
            }
        }
        Ok(())
    }

    fn advanced(&mut self, progress: WorkerProgress) -> std::result::Result<(), String> {
        self.waits = progress.waited_for_nothing();
        self.take_written()?;
        if progress.ends_chunk {
            // Popped only now, because the process may look at the chunk's entries until it has reported the end.
            match self.chunks.pop_front() {
                Some(chunk) if chunk.left == 0 => {}
                Some(chunk) => {
                    self.chunks.push_front(chunk);
                    return Err("ended a chunk before all of its samples".into());
                }
                None => return Err(NOT_GIVEN.into()),
            }
        }
        Ok(())
    }

    /// Finishes the samples that the process has written.
    pub(super) fn take_written(&mut self) -> std::result::Result<(), String> {
        let count = self.chunks.front().map_or(0, |chunk| chunk.assigned.len());
        for index in 0..count {
            let chunk = self.chunks.front();
            let is_there = chunk.is_some_and(|c| c.tasks[index].is_some());
            let written = chunk.and_then(|c| c.assigned[index].handle.written());
            if let Some(written) = written.filter(|_| is_there) {
                self.written(index as u32, &written)?;
                self.heard = Instant::now();
            }
        }
        Ok(())
    }

    /// Called when the process was silent for a while. Withdraws the samples behind one that takes long, for another
    /// worker.
    pub(super) fn check_slow_sample(&mut self) -> std::result::Result<(), String> {
        self.take_written()?;
        // Samples that are made in one call are as slow as each other.
        let Some(chunk) = self.chunks.front().filter(|c| c.together.is_none()) else {
            return Ok(());
        };
        let mut left = (chunk.tasks.iter().zip(&chunk.assigned)).filter(|(task, _)| task.is_some());
        let age = left.find_map(|(_, assigned)| assigned.handle.age());
        if age.is_none_or(|age| age < TOGETHER) {
            return Ok(());
        }
        let process_pool = self.process_pool.clone();
        self.withdraw(|task| process_pool.requeue_first(task));
        Ok(())
    }

    /// Withdraws the samples that the process has not begun, and passes each to `another`.
    pub(super) fn withdraw(&mut self, another: impl Fn(PoolTask)) {
        // A chunk that is not quick also keeps the process from being given more.
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.is_quick = false;
        }
        for mut task in self.rest.drain(..) {
            task.work.put_back();
            another(task);
        }
        for chunk in &mut self.chunks {
            for (entry, assigned) in chunk.tasks.iter_mut().zip(&chunk.assigned) {
                if let Some(mut task) = entry.take_if(|_| assigned.handle.withdraw()) {
                    chunk.left -= 1;
                    task.work.put_back();
                    another(task);
                }
            }
        }
    }

    /// Takes a sample out of the oldest chunk. The caller must finish it. Samples left in the chunk are given to
    /// another worker if this one fails.
    pub(super) fn take_task(&mut self, index: u32) -> std::result::Result<PoolTask, String> {
        let chunk = self.chunks.front_mut();
        let entry = chunk.and_then(|c| {
            c.left = c.left.saturating_sub(1);
            c.tasks.get_mut(index as usize)
        });
        entry.and_then(Option::take).ok_or_else(|| NOT_GIVEN.into())
    }

    /// Tells the process where to write a sample that is ready.
    fn tell_where(&mut self, index: u32) -> std::result::Result<(), String> {
        let chunk = self.chunks.front_mut();
        let task = chunk.and_then(|c| c.tasks.get_mut(index as usize)?.as_mut());
        let (Some(task), Some(process)) = (task, &mut self.process) else {
            return Err(NOT_GIVEN.into());
        };
        let (buffer, slot) = task.work.bind(true);
        let message = code::slot(buffer, slot);
        let told = process.channel.send(&message, &[]);
        if let Some(chunk) = self.chunks.front_mut() {
            // The chunk is nearly done, so the next one can be given without waiting for its end.
            chunk.is_quick |= chunk.left == 1;
            if let Some(assigned) = chunk.assigned.get_mut(index as usize) {
                assigned.is_told = true;
            }
        }
        told.map_err(|_| String::new())
    }

    fn written(&mut self, index: u32, written: &Written) -> std::result::Result<(), String> {
        let wall = Duration::from_nanos(written.wall_ns);
        let cpu = Duration::from_nanos(written.cpu_ns).min(wall);
        let dataset = Duration::from_nanos(written.dataset_ns).min(wall);
        self.check_taken(index, "wrote to a slot that it did not take")?;
        if written.kept.1 > 0 {
            self.keep(index, written.kept, dataset)?;
        }
        let task = self.take_task(index)?;
        // Time off the processor without waiting for one is taken to be the dataset's time of reading.
        let fetch = (wall - cpu).mul_f64(self.waits).min(dataset);
        let times = MeasuredTimes {
            // Zero waiting was measured, too. `None` would leave an older, longer measurement in place.
            fetch: Some(fetch.as_secs_f32()),
            decode: MeasuredTimes::stage(dataset - fetch),
            fixed: None,
            random: MeasuredTimes::stage(wall - dataset),
            cpu: MeasuredTimes::stage(cpu),
        };
        self.process_pool.took(&times);
        self.has_made = true;
        let blob = written.blob;
        task.work.finish(TaskOutcome::Made { times, blob });
        Ok(())
    }

    /// Returns an error if the process was offered a slot for the sample and has not taken it.
    pub(super) fn check_taken(&self, index: u32, what: &str) -> std::result::Result<(), String> {
        let chunk = self.chunks.front();
        let assigned = chunk.and_then(|c| c.assigned.get(index as usize));
        if assigned.is_some_and(|t| t.offered.is_some() && !t.is_told && !t.handle.is_taken()) {
            return Err(what.into());
        }
        Ok(())
    }

    /// Admits the value of a deterministic part to the cache. This copy is the only way into the cache, so that no
    /// process of user code can write there.
    fn keep(
        &self,
        index: u32,
        (at, len): (u64, u64),
        dataset: Duration,
    ) -> std::result::Result<(), String> {
        let scratch = self.chunks.front().zip(self.process.as_ref());
        let (Some((chunk, process)), Some(cache)) = (scratch, &self.process_pool.cache) else {
            return Ok(());
        };
        let Some(Some(task)) = chunk.tasks.get(index as usize) else {
            return Err(NOT_GIVEN.into());
        };
        let id = task.work.request().id;
        let Some(file) = process.scratch.get(chunk.number as usize) else {
            return Ok(());
        };
        let form = Form::Decoded;
        // Checked before room is reserved, because the length is only the process's claim.
        let there = file.metadata().map_err(|e| e.to_string())?.len();
        if at.checked_add(len).is_none_or(|end| end > there) {
            return Err("said where a value lies, and it is not there".into());
        }
        let len = usize::try_from(len).map_err(|e| e.to_string())?;
        let offer = [(form, len, dataset.as_secs_f32())];
        if cache.forms.is_some() && cache.choose(id, &offer).is_none() {
            return Ok(());
        }
        if let Some(mut reservation) = cache.store.reserve(id, len, Meta::of(form)) {
            file.read_exact_at(reservation.as_mut_slice(), at)
                .map_err(|e| format!("said where a value lies, and it is not there: {e}"))?;
            reservation.commit();
        }
        Ok(())
    }

    fn raised(&mut self, index: u32, raised: Raised) -> std::result::Result<(), String> {
        let failure = failure(raised, self.name())?;
        let task = self.take_task(index)?;
        task.work.finish(TaskOutcome::Failed(failure));
        Ok(())
    }

    pub(super) fn name(&self) -> String {
        let pid = self.process.as_ref().map_or(0, |process| process.pid);
        format!("{} (process {pid})", self.id)
    }
}
