//! Reads that no thread waits for.
//!
//! A store that answers after 50 ms must be asked for hundreds of samples at a time. With a thread for each of them, every
//! answer would wake its thread, and take the processor from one that decodes.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reading::Reading;
use super::{ObjectRef, RemoteStore};

/// The bytes of a sample, and the time that it took to read them.
pub struct ReadBytes {
    /// The content.
    pub bytes: Vec<u8>,
    /// Time from the request to the last byte.
    pub took: Duration,
}

/// A read that no thread waits for, and that was not started yet.
pub struct DetachedRead {
    store: Arc<RemoteStore>,
    reading: Reading,
}

impl RemoteStore {
    /// Returns a read of an object, or of a range of it. Returns `None` if a thread has to read it, because the store does
    /// not answer at present: only [`RemoteStore::read`] is patient.
    pub(crate) fn detached_read(
        self: &Arc<Self>,
        object: ObjectRef,
        range: Option<Range<u64>>,
    ) -> Option<DetachedRead> {
        if self.health.is_outage() {
            return None;
        }
        // A key that is no path is an error of the read that waits.
        let path = self.path(&object.key).ok()?;
        let length = range.as_ref().map(|range| range.end - range.start);
        let reading = self.reading(&path, object, range, length);
        Some(DetachedRead {
            store: self.clone(),
            reading,
        })
    }
}

impl DetachedRead {
    /// Starts the read. `arrived` is called once, on an I/O thread: with the bytes, or with `None` if there are none. The
    /// caller then reads the sample once more, by a thread, which knows how to be patient and what to report.
    pub fn start(self, arrived: impl FnOnce(Option<ReadBytes>) + Send + 'static) {
        let DetachedRead { store, reading } = self;
        let (health, received) = (store.health.clone(), store.io.received());
        let began = Instant::now();
        // An I/O thread must not drop the store, and with the last one the I/O threads, so it is not given the store.
        store.io.spawn(reading.run(), move |read| {
            let bytes = read.and_then(Result::ok);
            arrived(bytes.map(|bytes| {
                health.answered();
                received.count(bytes.len() as u64);
                ReadBytes {
                    bytes,
                    took: began.elapsed(),
                }
            }));
        });
    }
}
