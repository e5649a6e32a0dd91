//! The sample cache: samples by id, for all streams of a dataset.
//!
//! [`SampleCache`] is the contract, and each policy is a file with its tests: [`NoEviction`], which coprep
//! uses, [`Lru`], the baseline to compare with, and [`BoundedReuse`], for samples that are used a few times.

mod arena;
mod bounded_reuse;
pub mod index;
mod lru;
mod named;
mod no_eviction;
pub mod table;

use std::ops::Deref;

pub use bounded_reuse::BoundedReuse;
pub use index::Form;
pub use lru::Lru;
pub use named::{LONGEST as LONGEST_NAME, NamedSegment, is_name, list_named, remove_named};
pub use no_eviction::{NoEviction, TakeOver};

/// What a sample is stored as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// How far it is prepared.
    pub form: Form,
    /// Pixels; the caller's.
    pub width: u32,
    /// Pixels; the caller's.
    pub height: u32,
}

impl Meta {
    /// Of something that is no picture.
    #[must_use]
    pub const fn of(form: Form) -> Self {
        Meta {
            form,
            width: 0,
            height: 0,
        }
    }
}

/// What a cache holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes that it may hold.
    pub capacity: u64,
    /// Bytes that cannot be given to another sample: entries, their alignment, and what is being written.
    pub used: u64,
    /// Samples, by [`Form`].
    pub entries_by_form: [u64; Form::COUNT],
    /// Their bytes, by [`Form`].
    pub bytes_by_form: [u64; Form::COUNT],
}

impl Usage {
    /// Samples.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries_by_form.iter().sum()
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_by_form.iter().sum()
    }

    /// Where nothing but payload is counted.
    fn of_payload(self) -> Usage {
        Usage {
            used: self.bytes(),
            ..self
        }
    }

    fn add(&mut self, form: Form, bytes: u64) {
        self.entries_by_form[form as usize] += 1;
        self.bytes_by_form[form as usize] += bytes;
    }

    fn remove(&mut self, form: Form, bytes: u64) {
        self.entries_by_form[form as usize] -= 1;
        self.bytes_by_form[form as usize] -= bytes;
    }
}

/// A cache of samples.
///
/// - A sample that was committed is found, whole and unchanged, until the policy lets it go.
/// - An id has at most one entry, and at most one writer at a time; the others are told None and do without.
/// - Nothing blocks for longer than a copy of an entry takes. Nothing fails: a cache that cannot hold
///   something does not hold it.
pub trait SampleCache: Send + Sync {
    /// Whether a sample is here.
    fn has(&self, id: u32) -> bool {
        self.form(id).is_some()
    }

    /// What a sample is stored as, if it is here. Not counted as a use.
    fn form(&self, id: u32) -> Option<Form>;

    /// A sample, if it is here.
    fn get(&self, id: u32) -> Option<Hit<'_>>;

    /// Room for a sample of `len` bytes. None: full, or here already, or being written, or no such id.
    fn reserve(&self, id: u32, len: usize, meta: Meta) -> Option<Reservation<'_>>;

    /// What it holds.
    fn usage(&self) -> Usage;
}

/// A sample in the cache.
pub struct Hit<'a> {
    bytes: HitBytes<'a>,
    meta: Meta,
}

enum HitBytes<'a> {
    Arena(&'a [u8]),
    Counted(std::sync::Arc<[u8]>),
}

impl Hit<'_> {
    /// What it is stored as.
    #[must_use]
    pub fn meta(&self) -> Meta {
        self.meta
    }
}

impl Deref for Hit<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            HitBytes::Arena(bytes) => bytes,
            HitBytes::Counted(bytes) => bytes,
        }
    }
}

/// Room for one sample. Dropped without [`commit`](Self::commit), nothing is admitted.
#[must_use]
pub struct Reservation<'a> {
    id: u32,
    meta: Meta,
    /// None once committed.
    room: Option<CacheRoom<'a>>,
}

enum CacheRoom<'a> {
    Arena(&'a NoEviction, arena::Extent),
    Private(&'a dyn PrivateStore, Vec<u8>),
}

/// A cache in private memory: what becomes of a reservation there.
trait PrivateStore {
    fn admit(&self, id: u32, meta: Meta, bytes: Vec<u8>);
    fn abandon(&self, id: u32);
}

impl<'a> Reservation<'a> {
    fn in_private(cache: &'a dyn PrivateStore, id: u32, len: usize, meta: Meta) -> Self {
        Reservation {
            id,
            meta,
            room: Some(CacheRoom::Private(cache, vec![0; len])),
        }
    }

    /// Where to write the sample. It holds anything.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.room {
            Some(CacheRoom::Arena(cache, extent)) => cache.bytes_mut(extent),
            Some(CacheRoom::Private(_, bytes)) => bytes,
            None => &mut [],
        }
    }

    /// Admits the sample.
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
