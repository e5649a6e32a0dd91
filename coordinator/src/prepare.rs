//! One sample's way from storage, or the cache, into its slot.
//!
//! A sample is fetched once and decoded once per preparation, and never copied on the way: a file that
//! will be cached in its encoded form is read straight into the cache, a decoded one is decoded there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::sample_cache::{Form, Meta};
use coprep_pipeline::{Dataset, DecodedView, Pipeline, SampleKey, Scratch};
use coprep_protocol::message::{CacheForm, SampleError};

use crate::caches::Cache;

/// What a sample is made by.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) cache: Option<Arc<Cache>>,
}

/// What a worker thread brings: memory that is used again for every sample.
pub(crate) struct Tools {
    scratch: Scratch,
    file: Vec<u8>,
}

/// What a preparation took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) fetch: Duration,
    pub(crate) prep: Duration,
    pub(crate) fetched_bytes: u64,
}

/// Where a preparation failed, and why.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) stage: &'static str,
    pub(crate) message: String,
    /// Of user code: the worker, for people.
    pub(crate) worker: String,
    /// Of user code: the exception, packed for the job.
    pub(crate) exception: Vec<u8>,
}

type Prepared = Result<Cost, Failure>;

impl Tools {
    pub(crate) fn new() -> Self {
        Tools {
            scratch: Scratch::new(),
            file: Vec::new(),
        }
    }
}

impl Recipe {
    /// Prepares sample `key.id` into `out`, and caches it if there is room.
    ///
    /// A panic of an operator is a failure of that sample, not of the coordinator.
    pub(crate) fn prepare(&self, key: SampleKey, tools: &mut Tools, out: &mut [u8]) -> Prepared {
        guarded(tools, |tools| match &self.cache {
            None => self.prepare_from_storage(key, tools, out),
            Some(cache) => self.prepare_cached(cache, key, tools, out),
        })
    }

    /// Brings sample `id` into the cache, if it is not there and there is room. Prepares nothing else.
    pub(crate) fn admit(&self, id: u32, tools: &mut Tools) -> Prepared {
        let Some(cache) = &self.cache else {
            return Ok(Cost::default());
        };
        if cache.store.get(id).is_some() {
            return Ok(Cost::default());
        }
        guarded(tools, |tools| self.admit_to(cache, id, tools))
    }

    fn prepare_from_storage(&self, key: SampleKey, tools: &mut Tools, out: &mut [u8]) -> Prepared {
        let fetched = self.fetch(key.id, tools)?;
        Ok(fetched.plus(self.prepare_fetched(key, tools, out)?))
    }

    fn prepare_cached(
        &self,
        cache: &Cache,
        key: SampleKey,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Prepared {
        if let Some(cost) = self.prepare_hit(cache, key, tools, out)? {
            cache.count_hit();
            return Ok(cost);
        }
        cache.count_miss();
        let admitted = self.admit_to(cache, key.id, tools)?;
        let finished = match self.prepare_hit(cache, key, tools, out)? {
            Some(cost) => cost,
            // Not admitted. An encoded sample was not even read then; a decoded one was, to learn its size.
            None if cache.form == CacheForm::Encoded => {
                self.prepare_from_storage(key, tools, out)?
            }
            None => self.prepare_fetched(key, tools, out)?,
        };
        Ok(admitted.plus(finished))
    }

    fn prepare_hit(
        &self,
        cache: &Cache,
        key: SampleKey,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<Option<Cost>, Failure> {
        let Some(hit) = cache.store.get(key.id) else {
            return Ok(None);
        };
        let start = Instant::now();
        let meta = hit.meta();
        match meta.form {
            Form::Decoded => {
                let view = DecodedView {
                    width: meta.width,
                    height: meta.height,
                    pixels: &hit,
                };
                self.pipeline
                    .prepare_decoded(view, key, &mut tools.scratch, out)
            }
            // Only caches of user code hold these.
            Form::Prepared => return Ok(None),
            Form::Encoded => self
                .pipeline
                .prepare_encoded(&hit, key, &mut tools.scratch, out),
        }
        .map_err(Failure::decode)?;
        Ok(Some(Cost {
            prep: start.elapsed(),
            ..Cost::default()
        }))
    }

    fn prepare_fetched(&self, key: SampleKey, tools: &mut Tools, out: &mut [u8]) -> Prepared {
        let start = Instant::now();
        let Tools { scratch, file } = tools;
        self.pipeline
            .prepare_encoded(file, key, scratch, out)
            .map_err(Failure::decode)?;
        Ok(Cost {
            prep: start.elapsed(),
            ..Cost::default()
        })
    }

    fn fetch(&self, id: u32, tools: &mut Tools) -> Prepared {
        let start = Instant::now();
        self.dataset
            .fetch(id, &mut tools.file)
            .map_err(Failure::fetch)?;
        Ok(Cost {
            fetch: start.elapsed(),
            fetched_bytes: tools.file.len() as u64,
            ..Cost::default()
        })
    }

    fn admit_to(&self, cache: &Cache, id: u32, tools: &mut Tools) -> Prepared {
        match cache.form {
            CacheForm::Encoded => self.admit_encoded(cache, id),
            _ => self.admit_decoded(cache, id, tools),
        }
    }

    /// Reads the file straight into the cache; reads nothing if there is no room.
    fn admit_encoded(&self, cache: &Cache, id: u32) -> Prepared {
        let start = Instant::now();
        let length = self.dataset.file_len(id).map_err(Failure::fetch)?;
        let meta = Meta::of(Form::Encoded);
        let Some(mut place) = cache.store.reserve(id, length as usize, meta) else {
            return Ok(Cost::default());
        };
        self.dataset
            .fetch_into(id, place.as_mut_slice())
            .map_err(Failure::fetch)?;
        place.commit();
        Ok(Cost {
            fetch: start.elapsed(),
            fetched_bytes: length,
            ..Cost::default()
        })
    }

    /// Reads the file, and decodes it straight into the cache if there is room.
    fn admit_decoded(&self, cache: &Cache, id: u32, tools: &mut Tools) -> Prepared {
        let fetched = self.fetch(id, tools)?;
        let start = Instant::now();
        let Tools { scratch, file } = tools;
        let shape = self.pipeline.decoded_size(file).map_err(Failure::decode)?;
        let meta = Meta {
            form: Form::Decoded,
            width: shape.width,
            height: shape.height,
        };
        if let Some(mut place) = cache.store.reserve(id, shape.bytes(), meta) {
            self.pipeline
                .decode_into(file, scratch, place.as_mut_slice())
                .map_err(Failure::decode)?;
            place.commit();
        }
        Ok(fetched.plus(Cost {
            prep: start.elapsed(),
            ..Cost::default()
        }))
    }
}

fn guarded(tools: &mut Tools, run: impl FnOnce(&mut Tools) -> Prepared) -> Prepared {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(tools)));
    caught.unwrap_or_else(|_| {
        *tools = Tools::new();
        Err(Failure::new(
            "prepare",
            "an operator panicked: a defect of coprep, please report it".into(),
        ))
    })
}

impl Failure {
    pub(crate) fn new(stage: &'static str, message: String) -> Self {
        Failure {
            stage,
            message,
            worker: String::new(),
            exception: Vec::new(),
        }
    }

    /// As the jobs are told.
    pub(crate) fn of_sample(self, tag: u64, id: u32, path: String) -> SampleError {
        SampleError {
            tag,
            id,
            path,
            stage: self.stage.into(),
            message: self.message,
            worker: self.worker,
            exception: self.exception,
        }
    }

    fn fetch(error: coprep_pipeline::Error) -> Self {
        Failure::new("fetch", error.to_string())
    }

    fn decode(error: coprep_pipeline::Error) -> Self {
        Failure::new("decode", error.to_string())
    }
}

impl Cost {
    fn plus(self, other: Cost) -> Cost {
        Cost {
            fetch: self.fetch + other.fetch,
            prep: self.prep + other.prep,
            fetched_bytes: self.fetched_bytes + other.fetched_bytes,
        }
    }
}
