//! The contract of a sample cache, which each policy fulfils, and the types of its calls.

use std::ops::Deref;

use crossbeam::epoch::Guard;

use crate::arena::Extent;
use crate::meta::{Form, Meta};

/// Counts of a cache's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes that the cache may hold.
    pub capacity: u64,
    /// Bytes that no other sample can get: entries, their alignment, and reservations in progress.
    pub used: u64,
    /// Number of samples by [`Form`].
    pub entries_by_form: [u64; Form::COUNT],
    /// Bytes of samples by [`Form`].
    pub bytes_by_form: [u64; Form::COUNT],
}

impl Usage {
    /// Returns the number of samples.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries_by_form.iter().sum()
    }

    /// Returns the bytes of all samples.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_by_form.iter().sum()
    }

    /// Returns the usage of a cache in which only payload counts as used.
    pub(crate) fn of_payload(self) -> Usage {
        Usage {
            used: self.bytes(),
            ..self
        }
    }

    pub(crate) fn add(&mut self, form: Form, bytes: u64) {
        self.entries_by_form[form as usize] += 1;
        self.bytes_by_form[form as usize] += bytes;
    }

    pub(crate) fn remove(&mut self, form: Form, bytes: u64) {
        self.entries_by_form[form as usize] -= 1;
        self.bytes_by_form[form as usize] -= bytes;
    }
}

/// A cache of samples.
///
/// - A committed sample is found, whole and unchanged, until the policy evicts it or somebody removes it.
/// - An id has at most one entry, and at most one writer at a time. Other writers are told `None` and do without the
///   cache.
/// - No call blocks for longer than it takes to copy an entry. No call fails: a cache that cannot hold a sample does
///   not hold it.
pub trait SampleCache: Send + Sync {
    /// Returns `true` if the cache holds the sample.
    fn has(&self, id: u32) -> bool {
        self.meta(id).is_some()
    }

    /// Returns the description of the sample, or `None` if the cache does not hold it. It does not count as a use.
    fn meta(&self, id: u32) -> Option<Meta>;

    /// Returns the sample, or `None` if the cache does not hold it.
    fn get(&self, id: u32) -> Option<Hit<'_>>;

    /// Reserves room for a sample of `len` bytes. Returns `None` if the cache is full, the sample is here already or
    /// being written, or there is no such id.
    fn reserve(&self, id: u32, len: usize, meta: Meta) -> Option<Reservation<'_>>;

    /// Removes the sample, so that it can be written anew. A [`Hit`] of it stays as it is.
    fn remove(&self, id: u32);

    /// Returns the counts of the cache's contents.
    fn usage(&self) -> Usage;
}

/// A sample found in the cache.
pub struct Hit<'a> {
    pub(crate) bytes: HitBytes<'a>,
    pub(crate) meta: Meta,
}

pub(crate) enum HitBytes<'a> {
    Arena {
        bytes: &'a [u8],
        /// Keeps the room from being given out again if the sample is removed.
        _guard: Guard,
    },
    Counted(std::sync::Arc<[u8]>),
}

impl Hit<'_> {
    /// Returns the description of the sample's bytes.
    #[must_use]
    pub fn meta(&self) -> Meta {
        self.meta
    }
}

impl Deref for Hit<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            HitBytes::Arena { bytes, .. } => bytes,
            HitBytes::Counted(bytes) => bytes,
        }
    }
}

/// Room for one sample. If it is dropped without [`commit`](Self::commit), the cache does not admit the sample.
#[must_use]
pub struct Reservation<'a> {
    id: u32,
    meta: Meta,
    /// Room to write to, or `None` after the commit.
    room: Option<CacheRoom<'a>>,
}

enum CacheRoom<'a> {
    Arena(&'a dyn ArenaStore, Extent),
    Private(&'a dyn PrivateStore, Vec<u8>),
}

/// A cache over an arena, which finishes the reservations of its samples.
pub(crate) trait ArenaStore {
    fn bytes_mut<'a>(&'a self, extent: &'a mut Extent) -> &'a mut [u8];
    fn admit(&self, id: u32, meta: Meta, extent: Extent);
    fn abandon(&self, id: u32, extent: Extent);
}

/// A cache in private memory, which finishes the reservations of its samples.
pub(crate) trait PrivateStore {
    fn admit(&self, id: u32, meta: Meta, bytes: Vec<u8>);
    fn abandon(&self, id: u32);
}

impl<'a> Reservation<'a> {
    pub(crate) fn in_arena(cache: &'a dyn ArenaStore, id: u32, extent: Extent, meta: Meta) -> Self {
        Reservation {
            id,
            meta,
            room: Some(CacheRoom::Arena(cache, extent)),
        }
    }

    pub(crate) fn in_private(cache: &'a dyn PrivateStore, id: u32, len: usize, meta: Meta) -> Self {
        Reservation {
            id,
            meta,
            room: Some(CacheRoom::Private(cache, vec![0; len])),
        }
    }

    /// Returns the memory for the sample. Its contents are arbitrary until they are written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.room {
            Some(CacheRoom::Arena(cache, extent)) => cache.bytes_mut(extent),
            Some(CacheRoom::Private(_, bytes)) => bytes,
            None => &mut [],
        }
    }

    /// Admits the sample to the cache.
    pub fn commit(mut self) {
        match self.room.take() {
            Some(CacheRoom::Arena(cache, extent)) => cache.admit(self.id, self.meta, extent),
            Some(CacheRoom::Private(cache, bytes)) => cache.admit(self.id, self.meta, bytes),
            None => {}
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        match self.room.take() {
            Some(CacheRoom::Arena(cache, extent)) => cache.abandon(self.id, extent),
            Some(CacheRoom::Private(cache, _)) => cache.abandon(self.id),
            None => {}
        }
    }
}
