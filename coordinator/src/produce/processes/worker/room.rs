//! Room for large samples: a process with a sample that is larger than its slot waits until it is told where to write
//! it.

use std::time::Instant;

use coprep_protocol::code;

use crate::produce::processes::worker::{NOT_GIVEN, Worker};
use crate::produce::processes::{LargeRoom, TaskOutcome};

/// A sample that is larger than its slot.
#[derive(Clone, Copy)]
pub(super) struct Want {
    /// Index of the sample in its chunk.
    index: u32,
    bytes: u64,
    /// `true` if room was not granted at once.
    is_stuck: bool,
}

impl Worker {
    /// Handles the process's request for room to write a sample of `bytes` bytes.
    pub(super) fn wants_room(&mut self, index: u32, bytes: u64) -> Result<(), String> {
        self.check_taken(index, "has a large sample for a slot that it did not take")?;
        self.want = Some(Want {
            index,
            bytes,
            is_stuck: false,
        });
        self.make_room()
    }

    /// Tells the process where to write its large sample, once there is memory for it.
    pub(super) fn make_room(&mut self) -> Result<(), String> {
        let Some(want) = self.want else {
            return Ok(());
        };
        let chunk = self.chunks.front_mut();
        let task = chunk.and_then(|c| c.tasks.get_mut(want.index as usize)?.as_mut());
        let (Some(task), Some(process)) = (task, &self.process) else {
            return Err(NOT_GIVEN.into());
        };
        // A process that waits for room sends nothing, but it may end.
        if process.channel.is_disconnected() {
            return Err(String::new());
        }
        let outcome = match task.work.room(want.bytes) {
            LargeRoom::At(at) => return self.answer_want(Some(at)),
            LargeRoom::Wait => {
                self.note_stuck(want);
                return Ok(());
            }
            LargeRoom::Unwanted => TaskOutcome::Unwanted,
            LargeRoom::Failed(failure) => TaskOutcome::Failed(failure),
        };
        // Answered before the sample leaves its chunk: if the process is gone, another worker is given the sample.
        self.answer_want(None)?;
        let task = self.take_task(want.index)?;
        task.work.finish(outcome);
        Ok(())
    }

    /// Answers the process that waits for room. `None` tells it to drop the sample.
    fn answer_want(&mut self, at: Option<u64>) -> Result<(), String> {
        self.forget_want();
        self.heard = Instant::now();
        let Some(process) = &self.process else {
            return Ok(());
        };
        let told = process.channel.send(&code::room(at), &[]);
        told.map_err(|_| String::new())
    }

    fn note_stuck(&mut self, want: Want) {
        // The process is waiting for others, so its own time limit starts again.
        self.heard = Instant::now();
        if !want.is_stuck {
            self.want = Some(Want {
                is_stuck: true,
                ..want
            });
            self.process_pool.waits_for_room(true);
            // Samples of earlier minibatches go first: they free the memory that this one waits for.
            let process_pool = self.process_pool.clone();
            self.withdraw(|task| process_pool.requeue(task));
        }
    }

    pub(super) fn forget_want(&mut self) {
        if self.want.take().is_some_and(|want| want.is_stuck) {
            self.process_pool.waits_for_room(false);
        }
    }
}
