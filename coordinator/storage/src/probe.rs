//! Timing of a store, for a person who asks whether it works.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::remote::{ListedObject, ObjectRef, RemoteStore};

/// Number of one-byte reads whose median is the latency.
const READS: usize = 5;
/// Most bytes of the object whose reading shows the bandwidth.
const MOST_BYTES: u64 = 16 << 20;

/// Times of reads from a store.
#[derive(Clone, Copy, Debug)]
pub struct ReadTimes {
    /// Median time of a request for one byte.
    pub latency: Duration,
    /// Number of bytes that one further request read.
    pub bytes: u64,
    /// Time of that request.
    pub time: Duration,
}

impl ReadTimes {
    /// Returns the rate of the long read.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

impl RemoteStore {
    /// Reads an object several times: one byte of it, and its beginning. Does not wait for a store that does not answer.
    ///
    /// # Errors
    /// If the object cannot be read.
    pub fn time_reads(&self, object: &ListedObject) -> Result<ReadTimes, Error> {
        let object = ObjectRef {
            key: object.key.clone(),
            size: Some(object.size),
            etag: object.etag.clone(),
        };
        let mut latencies = Vec::new();
        for _ in 0..READS {
            latencies.push(self.time_head(&object, 1)?.1);
        }
        latencies.sort_unstable();
        let (bytes, time) = self.time_head(&object, MOST_BYTES)?;
        Ok(ReadTimes {
            latency: latencies[READS / 2],
            bytes,
            time,
        })
    }

    fn time_head(&self, object: &ObjectRef, most: u64) -> Result<(u64, Duration), Error> {
        let began = Instant::now();
        let heads = self.heads(std::slice::from_ref(object), most);
        let read = heads.into_iter().next().transpose()?;
        Ok((read.unwrap_or_default().len() as u64, began.elapsed()))
    }
}
