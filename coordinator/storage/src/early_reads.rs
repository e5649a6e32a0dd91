//! Parts of objects that were read before any job needed them.
//!
//! The index of a tar shard with small samples is made from all of its bytes. The images among them stay in memory until
//! they are used for the first time, so that no request is made for them again. They are kept by the content of their
//! object, and not with a dataset, because a job asks for the number of samples first, and opens the dataset later.
//!
//! **Invariant.** The parts of a process take no more memory than [`EarlyReads::most`]. What has no room is read again.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coprep_shared_memory::lock::lock;

/// Bytes of memory that a part takes beside its content.
const PER_PART: u64 = 128;

/// A part of an object, in memory. Its memory is free again when it is dropped.
pub struct EarlyPart {
    /// The content.
    pub bytes: Vec<u8>,
    /// The share of this part in the time of the request that brought it.
    pub took: Duration,
    counted: u64,
    held: Arc<AtomicU64>,
}

impl Drop for EarlyPart {
    fn drop(&mut self) {
        self.held.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// The parts of one object, by their offsets.
#[derive(Default)]
pub struct EarlyObject(Mutex<HashMap<u64, EarlyPart>>);

impl EarlyObject {
    /// Takes the part at an offset, if there is one of this length.
    pub fn take(&self, at: u64, length: u64) -> Option<EarlyPart> {
        let part = lock(&self.0).remove(&at);
        part.filter(|part| part.bytes.len() as u64 == length)
    }

    /// Returns the first bytes of the part at an offset, `most` at most. The part stays.
    pub fn head(&self, at: u64, most: u64) -> Option<Vec<u8>> {
        let parts = lock(&self.0);
        let bytes = &parts.get(&at)?.bytes;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Some(bytes[..bytes.len().min(most)].to_vec())
    }

    fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

impl fmt::Debug for EarlyObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EarlyObject of {} parts", lock(&self.0).len())
    }
}

/// The parts of all objects; see the module.
pub struct EarlyReads {
    most: u64,
    held: Arc<AtomicU64>,
    objects: Mutex<HashMap<String, Arc<EarlyObject>>>,
}

impl EarlyReads {
    pub(crate) fn new(most: u64) -> Self {
        EarlyReads {
            most,
            held: Arc::default(),
            objects: Mutex::default(),
        }
    }

    /// Returns the bytes of memory that parts take now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Prepares for new parts: if little room is left, drops those of objects that no dataset uses.
    pub fn make_room(&self) {
        if self.held() > self.most / 2 {
            lock(&self.objects).retain(|_, object| Arc::strong_count(object) > 1);
        }
    }

    /// Returns an empty part with room for `length` bytes, or `None` if there is no memory for it.
    #[must_use]
    pub fn reserve(&self, length: u64) -> Option<EarlyPart> {
        let counted = length.checked_add(PER_PART)?;
        let grown = |held: u64| held.checked_add(counted).filter(|&held| held <= self.most);
        let reserved = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        reserved.is_ok().then(|| EarlyPart {
            bytes: Vec::with_capacity(length as usize),
            took: Duration::ZERO,
            counted,
            held: self.held.clone(),
        })
    }

    /// Keeps the parts of an object, by their offsets. `content` identifies the object, its content, and what was read of
    /// it. Parts that were kept for it before are dropped.
    pub fn keep(&self, content: String, parts: HashMap<u64, EarlyPart>) {
        if !parts.is_empty() {
            let object = Arc::new(EarlyObject(Mutex::new(parts)));
            lock(&self.objects).insert(content, object);
        }
    }

    /// Returns `true` if nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut objects = lock(&self.objects);
        objects.retain(|_, object| !object.is_empty());
        objects.is_empty()
    }

    /// Returns the parts of an object, if some are kept.
    #[must_use]
    pub fn find(&self, content: &str) -> Option<Arc<EarlyObject>> {
        lock(&self.objects).get(content).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(reads: &EarlyReads, bytes: &[u8]) -> EarlyPart {
        let mut part = reads.reserve(bytes.len() as u64).expect("there is room");
        part.bytes.extend_from_slice(bytes);
        part
    }

    #[test]
    fn a_part_is_taken_once_and_its_memory_is_free_then() {
        let reads = EarlyReads::new(1000);
        reads.keep("a".into(), HashMap::from([(512, part(&reads, b"image"))]));
        assert_eq!(reads.held(), 5 + PER_PART);
        let object = reads.find("a").expect("it is kept");
        assert_eq!(object.head(512, 2).as_deref(), Some(&b"im"[..]));
        assert!(object.take(0, 5).is_none());
        assert_eq!(object.take(512, 5).expect("it is there").bytes, b"image");
        assert!(object.take(512, 5).is_none());
        assert_eq!(reads.held(), 0);
        assert!(reads.is_empty());
    }

    #[test]
    fn parts_take_no_more_memory_than_they_may() {
        let reads = EarlyReads::new(2 * (100 + PER_PART));
        let parts = [(); 2].map(|()| reads.reserve(100));
        assert!(parts.iter().all(Option::is_some));
        assert!(reads.reserve(0).is_none() && reads.reserve(u64::MAX).is_none());
        drop(parts);
        assert!(reads.reserve(200).is_some());
        assert_eq!(reads.held(), 0);
    }

    #[test]
    fn parts_that_no_dataset_uses_make_room_for_others() {
        let reads = EarlyReads::new(1000);
        let kept = |name: &str| {
            let parts = HashMap::from([(0, part(&reads, &[0; 300]))]);
            reads.keep(name.into(), parts);
        };
        kept("unused");
        reads.make_room();
        assert!(reads.find("unused").is_some());
        kept("used");
        let used = reads.find("used").expect("it is kept");
        reads.make_room();
        assert!(reads.find("unused").is_none() && reads.find("used").is_some());
        assert!(used.take(0, 300).is_some());
        assert_eq!(reads.held(), 0);
    }
}
