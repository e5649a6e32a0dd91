//! This module records which files of cached samples were looked at since the last job started.
//!
//! A file may be written anew while its sample is cached. A job expects the files as they are when it starts, so each
//! start of a job begins a round, and a cached sample is compared with its file once a round, before it is used.

use std::sync::atomic::{AtomicU32, Ordering};

use coprep_storage::FileVersions;

/// The last round in which each sample's file was looked at.
pub(crate) struct FileLooks {
    round: AtomicU32,
    looked: Box<[AtomicU32]>,
    /// Compares the files that user code has opened. A pipeline's dataset compares its own.
    pub(super) versions: FileVersions,
}

impl FileLooks {
    pub(super) fn new(samples: u32) -> Self {
        FileLooks {
            round: AtomicU32::new(0),
            looked: (0..samples).map(|_| AtomicU32::new(0)).collect(),
            versions: FileVersions::default(),
        }
    }

    /// Begins a round.
    pub(super) fn begin(&self) {
        // Relaxed, here and below: a sample that is used at the same moment belongs to either round.
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the present round, if the sample's file was not looked at in it.
    pub(super) fn due(&self, id: u32) -> Option<u32> {
        let round = self.round.load(Ordering::Relaxed);
        let looked = self.looked.get(id as usize)?.load(Ordering::Relaxed);
        (looked != round).then_some(round)
    }

    /// Records that the sample's file was looked at after `round` had begun.
    pub(super) fn looked(&self, id: u32, round: u32) {
        if let Some(looked) = self.looked.get(id as usize) {
            looked.store(round, Ordering::Relaxed);
        }
    }
}
