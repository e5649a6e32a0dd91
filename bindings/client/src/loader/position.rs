//! Where a consumer is: its epoch, and what it was given in it.
//!
//! Pure: no I/O, no clock.

use coprep_protocol::message::Resume;
use roaring::RoaringBitmap;

use crate::error::{Error, Result};

/// Where a consumer is.
///
/// The ranks of a job are dealt their batches in turn, and a rank that has been given all of an epoch does not
/// know whether the others have. So it keeps what it was given until it is given more.
pub(super) struct Position {
    epoch: u64,
    given: RoaringBitmap,
    /// Batches given in the epoch.
    batches: u64,
    has_other_ranks: bool,
    /// The epoch before, until a batch of this one is given, if there are other ranks.
    before: Option<Resume>,
    phase: Phase,
    /// The coordinator is in a later epoch already: another rank had finished ours when it was lost.
    passed: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// `epoch` has not begun, or, after a resume, was left off.
    Before,
    /// In the epoch, and no batch of it was given since it began.
    Untouched,
    /// In the epoch.
    Within,
    /// All of the epoch was given; its end has not been read.
    Complete,
}

impl Position {
    pub(super) fn new(resume: Option<&Resume>, world_size: u32) -> Result<Self> {
        let (epoch, given) = match resume {
            None => (0, RoaringBitmap::new()),
            Some(resume) => (resume.epoch, read(&resume.delivered)?),
        };
        Ok(Position {
            epoch,
            given,
            batches: 0,
            has_other_ranks: world_size > 1,
            before: None,
            phase: Phase::Before,
            passed: None,
        })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    pub(super) fn is_iterating(&self) -> bool {
        self.phase != Phase::Before
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.phase == Phase::Untouched
    }

    pub(super) fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    pub(super) fn is_mid_epoch(&self) -> bool {
        self.phase == Phase::Within
    }

    /// The epoch that is being iterated, or that is next.
    pub(super) fn next_epoch(&self) -> u64 {
        if self.is_complete() {
            self.epoch + 1
        } else {
            self.epoch
        }
    }

    /// Epoch and ids given in it; nothing of the next one after the last batch.
    pub(super) fn state(&self) -> (u64, RoaringBitmap) {
        let given = if self.is_complete() {
            RoaringBitmap::new()
        } else {
            self.given.clone()
        };
        (self.next_epoch(), given)
    }

    /// What to present to a coordinator; None at the very beginning.
    pub(super) fn resume(&self) -> Option<Resume> {
        if self.before.is_some() {
            return self.before.clone();
        }
        if self.has_other_ranks {
            return Some(self.presented());
        }
        let (epoch, given) = self.state();
        (epoch > 0 || !given.is_empty()).then(|| Resume {
            epoch,
            delivered: write(&given),
            batches: self.batches,
        })
    }

    fn presented(&self) -> Resume {
        Resume {
            epoch: self.epoch,
            delivered: write(&self.given),
            batches: self.batches,
        }
    }

    /// The epoch begins, or goes on.
    pub(super) fn begin(&mut self) -> u64 {
        self.phase = Phase::Untouched;
        self.epoch
    }

    /// The coordinator says where it is.
    pub(super) fn attached(&mut self, epoch: u64) -> Result<()> {
        if self.is_complete() {
            // Whatever the other ranks have still to be given.
            self.passed = Some(epoch.max(self.epoch + 1));
            return Ok(());
        }
        if self
            .before
            .as_ref()
            .is_some_and(|before| before.epoch == epoch)
        {
            return Ok(());
        }
        match (epoch.cmp(&self.epoch), self.is_iterating()) {
            (std::cmp::Ordering::Equal, _) => {}
            (std::cmp::Ordering::Greater, true) => self.passed = Some(epoch),
            (std::cmp::Ordering::Greater, false) => self.jump(epoch),
            (std::cmp::Ordering::Less, _) => {
                return Err(Error::Misbehaved(format!(
                    "it is in epoch {epoch}, this job in {}",
                    self.epoch
                )));
            }
        }
        Ok(())
    }

    /// Another epoch is next, and nothing of it was given.
    pub(super) fn jump(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.given.clear();
        self.batches = 0;
        self.before = None;
        self.phase = Phase::Before;
        self.passed = None;
    }

    /// The epoch is over.
    pub(super) fn finish(&mut self) {
        let before = (self.has_other_ranks && self.is_complete()).then(|| self.presented());
        let next = self.passed.unwrap_or(self.epoch + 1);
        self.jump(next);
        self.before = before;
    }

    /// True when the coordinator is in a later epoch, which ends ours.
    pub(super) fn finish_if_passed(&mut self) -> bool {
        let passed = self.passed.is_some() && self.is_iterating();
        if passed {
            self.finish();
        }
        passed
    }

    /// The end of `epoch` was read. True: it is the one being iterated.
    pub(super) fn end(&mut self, epoch: u64) -> Result<bool> {
        // Of an earlier one: it was left after its last batch.
        if epoch < self.epoch {
            return Ok(false);
        }
        self.check(epoch)?;
        self.finish();
        Ok(true)
    }

    /// Fails unless a part of `epoch` may come now.
    pub(super) fn check(&self, epoch: u64) -> Result<()> {
        if epoch == self.epoch {
            return Ok(());
        }
        Err(Error::Misbehaved(format!(
            "an item of epoch {epoch} within epoch {}",
            self.epoch
        )))
    }

    /// A batch is handed to the user.
    pub(super) fn give(&mut self, ids: &[i64], ends_epoch: bool) -> Result<()> {
        for &id in ids {
            let id = u32::try_from(id)
                .map_err(|_| Error::Misbehaved(format!("{id} is no sample id")))?;
            self.given.insert(id);
        }
        self.batches += 1;
        self.before = None;
        self.phase = if ends_epoch {
            Phase::Complete
        } else {
            Phase::Within
        };
        Ok(())
    }
}

/// Roaring's own format, checked as it is read.
pub(super) fn read(bytes: &[u8]) -> Result<RoaringBitmap> {
    RoaringBitmap::deserialize_from(bytes)
        .map_err(|e| Error::Invalid(format!("malformed set of samples: {e}")))
}

/// See [`read`].
pub(super) fn write(set: &RoaringBitmap) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(set.serialized_size());
    // Writing to memory does not fail.
    let _ = set.serialize_into(&mut bytes);
    bytes
}
