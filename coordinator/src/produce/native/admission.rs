//! Brings a sample into the cache: as its file is read, as it is decoded, or for a warm-up.

use std::time::{Duration, Instant};

use coprep_cache::{Form, Meta};
use coprep_costs::MeasuredTimes;
use coprep_pipeline::{Dataset, DecodedShape, Scratch};
use coprep_protocol::message::CacheForm;
use coprep_storage::ReadBytes;

use crate::caches::{DatasetCache, WhenFull};
use crate::observe::preparation_cost::PreparationCost;
use crate::produce::failure::Failure;
use crate::produce::native::fetching::fetch_time;
use crate::produce::native::{AdmittedFile, Fetched, Prepared, Recipe, fetch_seconds, guarded};
use crate::produce::threads::marked;

impl Recipe {
    /// Brings sample `id` into the cache, if it is not there and there is room. Prepares nothing else.
    /// `fetched` is the sample if it was fetched before.
    pub(crate) fn admit(
        &self,
        id: u32,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
    ) -> Prepared {
        let Some(cache) = self.cache.as_ref().filter(|_| self.is_to_admit(id)) else {
            return self.admit_to_disk(id, fetched);
        };
        let ahead = fetch_seconds(fetched.as_ref());
        let cost = guarded(ahead, scratch, self.costs.is_on(), |scratch| {
            self.admit_to(cache, id, fetched, scratch)
        });
        if let Ok(cost) = &cost {
            self.costs.record(id, cost);
        }
        cost
    }

    /// Returns `true` if [`admit`](Self::admit) reads the sample from storage or from the local disk.
    pub(crate) fn is_to_fetch_for_admission(&self, id: u32) -> bool {
        self.is_to_admit(id) || self.is_to_fetch_for_disk(id)
    }

    /// Returns `true` if the sample is cached and is to be [compared](Self::look) with its file first.
    pub(crate) fn is_to_look(&self, id: u32) -> bool {
        let cache = self.cache.as_ref();
        cache.is_some_and(|cache| cache.is_to_look(id))
    }

    /// Returns `true` if [`admit`](Self::admit) would bring the sample into memory.
    pub(crate) fn is_to_admit(&self, id: u32) -> bool {
        let cache = self.cache.as_ref();
        cache.is_some_and(|cache| !cache.store.has(id) && cache.may_admit(id))
    }

    fn admit_to(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
    ) -> Prepared {
        match cache.form {
            CacheForm::Encoded if self.is_of_unknown_length(id) => {
                let fetched = self.fetch(id, fetched)?;
                cache.keep(id, fetched.as_encoded(), &fetched.file);
                Ok(self.finish_admission(id, fetched))
            }
            CacheForm::Encoded => {
                self.count_from_here();
                match self.admit_encoded(cache, id, &mut None)? {
                    Some(admitted) => {
                        self.keep_on_disk(id, None, WhenFull::Wait);
                        Ok(admitted.cost)
                    }
                    None => self.admit_to_disk(id, fetched),
                }
            }
            CacheForm::Auto => self.admit_in_best_form(cache, id, fetched, scratch),
            _ => {
                let fetched = self.fetch(id, fetched)?;
                let decoded = self.decode_into_cache(cache, id, &fetched, scratch)?;
                Ok(self.finish_admission(id, fetched).plus(decoded))
            }
        }
    }

    /// Does the same as [`finish`](Self::finish) for a warm-up, which may wait for the disk.
    fn finish_admission(&self, id: u32, fetched: Fetched) -> PreparationCost {
        let cost = fetched.cost;
        self.keep_on_disk(id, Some(fetched), WhenFull::Wait);
        cost
    }

    /// Admits a sample in the form that is worth most, for a warm-up, which prepares nothing.
    fn admit_in_best_form(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
    ) -> Prepared {
        let fetched = self.fetch(id, fetched)?;
        let admitted = self.admit_fetched(cache, id, &fetched, scratch)?;
        self.finish_admission(id, fetched);
        Ok(admitted)
    }

    /// Admits a fetched sample in the form that is worth most. Returns the cost, with that of the fetch.
    fn admit_fetched(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: &Fetched,
        scratch: &mut Scratch,
    ) -> Prepared {
        let picture = self.inspect_header(&fetched.file)?;
        let mut cost = PreparationCost {
            features: picture.features,
            ..fetched.cost
        };
        if let Some(stages) = self.costs.predict(cost.features) {
            let form = self.choose(cache, id, &cost, &stages, &picture);
            return Ok(match form {
                Some(Form::Encoded) => {
                    cache.keep(id, fetched.as_encoded(), &fetched.file);
                    cost
                }
                Some(_) => cost.plus(self.decode_into_cache(cache, id, fetched, scratch)?),
                None => cost,
            });
        }
        // Until costs can be predicted, a sample is measured before its form is chosen.
        let (decoded, pixels) = self.decode(fetched, scratch)?;
        cost = cost.plus(decoded);
        match self.choose(cache, id, &cost, &cost.times.into(), &picture) {
            Some(Form::Encoded) => cache.keep(id, fetched.as_encoded(), &fetched.file),
            Some(_) => cache.keep(id, pixels.0, &pixels.1),
            None => {}
        }
        Ok(cost)
    }

    fn decode(
        &self,
        fetched: &Fetched,
        scratch: &mut Scratch,
    ) -> Result<(PreparationCost, (Meta, Vec<u8>)), Failure> {
        let start = Instant::now();
        let file = &fetched.file;
        let shape = self.pipeline.decoded_size(file).map_err(Failure::decode)?;
        let mut pixels = vec![0; shape.bytes()];
        self.pipeline
            .decode_into(file, scratch, &mut pixels)
            .map_err(Failure::decode)?;
        let cost = decode_time(start.elapsed()).into();
        Ok((cost, (decoded_as(shape, fetched), pixels)))
    }

    /// Reads the file straight into the cache, or copies it there if it has `arrived`. Returns `None` if there is no room
    /// for it. Nothing is read then.
    pub(super) fn admit_encoded(
        &self,
        cache: &DatasetCache,
        id: u32,
        arrived: &mut Option<ReadBytes>,
    ) -> Result<Option<AdmittedFile>, Failure> {
        let start = Instant::now();
        if !self.is_for_memory(cache, id) {
            return Ok(None);
        }
        let version = self.version(id);
        let length = self.read(id, Dataset::file_len)?;
        let meta = Meta {
            version,
            ..Meta::of(Form::Encoded)
        };
        let Some(mut reservation) = cache.store.reserve(id, length as usize, meta) else {
            return Ok(None);
        };
        let into = reservation.as_mut_slice();
        let disk = self.disk_of(id);
        let arrived = arrived.take_if(|read| read.bytes.len() == into.len());
        let is_on_disk = arrived.is_none()
            && disk.is_some_and(|disk| marked(|| disk.read_into(id, version, into)));
        let took = match arrived {
            Some(read) => {
                into.copy_from_slice(&read.bytes);
                read.took
            }
            None if is_on_disk => start.elapsed(),
            None => self.read_into(id, into, start)?,
        };
        reservation.commit();
        if is_on_disk {
            cache.count_double();
        }
        let cost = PreparationCost {
            fetched_bytes: if is_on_disk { 0 } else { length },
            ..fetch_time(took).into()
        };
        Ok(Some(AdmittedFile {
            bytes: length,
            cost,
        }))
    }

    /// Decodes the file straight into the cache, if there is room.
    pub(super) fn decode_into_cache(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: &Fetched,
        scratch: &mut Scratch,
    ) -> Prepared {
        let start = Instant::now();
        let file = &fetched.file;
        let shape = self.pipeline.decoded_size(file).map_err(Failure::decode)?;
        let meta = decoded_as(shape, fetched);
        let has_no_price = cache.forms.is_none();
        if has_no_price && !self.is_for_memory(cache, id) {
            return Ok(PreparationCost::default());
        }
        let Some(mut reservation) = cache.store.reserve(id, shape.bytes(), meta) else {
            return Ok(PreparationCost::default());
        };
        self.pipeline
            .decode_into(file, scratch, reservation.as_mut_slice())
            .map_err(Failure::decode)?;
        reservation.commit();
        if self.disk_of(id).is_some_and(|disk| disk.has(id)) {
            cache.count_double();
        }
        Ok(PreparationCost {
            in_full: true,
            ..decode_time(start.elapsed()).into()
        })
    }
}

fn decode_time(time: Duration) -> MeasuredTimes {
    MeasuredTimes {
        decode: MeasuredTimes::stage(time),
        ..MeasuredTimes::default()
    }
}

fn decoded_as(shape: DecodedShape, fetched: &Fetched) -> Meta {
    Meta {
        form: Form::Decoded,
        version: fetched.version,
        width: shape.width,
        height: shape.height,
    }
}
