//! Predicts an epoch under other settings from measurements under the present ones.
//!
//! Fetching, preparing and the jobs' own work overlap: threads that fetch run ahead of threads that prepare, and
//! finished batches wait in queues. So an epoch takes as long as the busiest of three resources, and the others are
//! hidden behind it. Fetching and preparing overlap only in part where they take about as long; how far is measured
//! too.
//!
//! - *storage* reads the bytes that are not cached, at its rate;
//! - *processors* prepare the samples, less the work that the cache saves, and run the jobs' code as well;
//! - *the job* does its own work on all batches.
//!
//! The time of each was measured with the others out of the way (DS-Analyzer, VLDB'21, section 3). A stall is the time
//! of an epoch beyond the job's own work. The part that preparing alone would cause is a prep stall; the rest is a
//! fetch stall.

use serde::{Deserialize, Serialize};

use crate::forecast::{Bottleneck, EpochForecast, Setting};

/// The measurements that predictions follow from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) samples: f64,
    /// Samples of the last minibatch if it is a short one; else 0.
    #[serde(default)]
    pub(crate) remainder: f64,
    /// Bytes of all samples as they are in storage.
    pub(crate) encoded_bytes: f64,
    /// Bytes of all samples decoded.
    pub(crate) decoded_bytes: f64,
    /// Cost of preparing a sample, with scaled decoding where it is possible.
    pub(crate) prepare: Prepare,
    /// The same with decoding in full, which is necessary once some samples are cached decoded.
    pub(crate) in_full: Prepare,
    /// Bytes per second that storage reads.
    pub(crate) storage: f64,
    /// `true` if samples that are not cached are in the kernel's page cache, so that storage is not read again.
    pub(crate) is_in_page_cache: bool,
    /// Degree to which fetching and preparing overlap: if they take `a` and `b` seconds, both together take
    /// `(a^p + b^p)^(1/p)`. With 1 they do not overlap; the larger, the closer to the longer of both.
    pub(crate) overlap: f64,
    /// The worker processes of the script's own dataset. `None` for coprep's own pipelines, whose threads fetch ahead
    /// of preparing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workers: Option<WorkerProcesses>,
    /// `true` if the savings of each form of a cached sample are known.
    pub(crate) has_forms: bool,
    /// Processors of the machine. The jobs use them too.
    pub(crate) processors: f64,
    pub(crate) job: JobWork,
}

/// Processor seconds of one sample, by its source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prepare {
    pub(crate) from_storage: f64,
    pub(crate) from_encoded: f64,
    pub(crate) from_decoded: f64,
    /// Number of busy processors during the measurement.
    pub(crate) cpus: f64,
    /// `from_storage` with one busy processor: several may share caches, or a core.
    pub(crate) alone: f64,
}

/// Worker processes that run a dataset of the script's own code. Each handles one sample at a time: it waits, then
/// works.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerProcesses {
    /// Number of processes.
    pub(crate) count: f64,
    /// Seconds per sample for which a worker waits: off the processor, and not for want of one.
    pub(crate) waits: f64,
}

impl WorkerProcesses {
    /// Returns the seconds in which all workers prepare `samples`. Each sample takes `works` processor seconds, and
    /// storage is `slower` times as slow as measured. Processors beyond the number of workers help only with more
    /// workers, so the larger number counts.
    fn busy(&self, samples: f64, works: f64, cpus: f64, slower: f64) -> f64 {
        samples * (self.waits * slower + works) / self.count.max(cpus)
    }
}

/// The work of a job without its waits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobWork {
    /// Seconds per sample; 0 if the job takes batches as fast as they come.
    pub(crate) seconds: f64,
    /// Processor seconds per sample on this machine. With several threads they may exceed `seconds`.
    pub(crate) cpu_seconds: f64,
}

/// Shares of the samples that are cached in each form.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cached {
    encoded: f64,
    decoded: f64,
}

/// Seconds of an epoch for which each resource is busy.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Busy {
    storage: f64,
    processors: f64,
    job: f64,
}

impl Busy {
    /// Returns the seconds of an epoch. Queues of batches lie between preparing and the job, so these two overlap
    /// wholly.
    fn epoch(&self, overlap: f64) -> f64 {
        self.both(overlap).max(self.job)
    }

    /// Returns the seconds of fetching and preparing together (see [`Facts::overlap`]).
    fn both(&self, overlap: f64) -> f64 {
        let (long, short) = if self.storage > self.processors {
            (self.storage, self.processors)
        } else {
            (self.processors, self.storage)
        };
        if long > 0.0 {
            long * (1.0 + (short / long).powf(overlap)).powf(1.0 / overlap)
        } else {
            0.0
        }
    }
}

/// Number of steps in the search for the best mixture of forms.
const STEPS: u32 = 100;
/// A cache with room for less than one part in this many of all samples decoded keeps none decoded, as coprep's own
/// cache does.
const WORTH_DECODING: f64 = 8.0;

impl Prepare {
    /// Returns how many times as long a sample takes with `cpus` busy processors as when it was measured.
    fn crowding(&self, cpus: f64) -> f64 {
        if self.cpus <= 1.0 {
            return 1.0;
        }
        let slope = (self.from_storage - self.alone) / (self.cpus - 1.0);
        // A straight line through both measurements. The lower bound keeps noise from making it 0 or negative.
        let seconds = self.alone + slope * (cpus - 1.0);
        (seconds / self.from_storage).max(0.1)
    }
}

impl Facts {
    /// Predicts an epoch of one job.
    pub(crate) fn predict(&self, setting: &Setting) -> EpochForecast {
        self.outcome(&self.busy(setting))
    }

    /// Returns the seconds of each resource, with the cache filled as its form asks for.
    fn busy(&self, setting: &Setting) -> Busy {
        let loaders = if setting.shared {
            1.0
        } else {
            f64::from(setting.jobs)
        };
        // Loaders that do not share divide the cache among them.
        let room = setting.cache_bytes as f64 / loaders;
        let encoded = (room / self.encoded_bytes).min(1.0);
        let decoded = (room / self.decoded_bytes).min(1.0);
        let with = |cached| self.busy_with(setting, loaders, cached, &self.prepare);
        let in_full = |cached| self.busy_with(setting, loaders, cached, &self.in_full);
        match setting.form.as_str() {
            "encoded" => with(Cached {
                encoded,
                decoded: 0.0,
            }),
            // Only samples that are decoded in full can be cached decoded.
            "decoded" => in_full(Cached {
                encoded: 0.0,
                decoded,
            }),
            "auto" if room * WORTH_DECODING < self.decoded_bytes => with(Cached {
                encoded,
                decoded: 0.0,
            }),
            "auto" => {
                let mixtures = (0..=STEPS).map(|step| {
                    let decoded = decoded * f64::from(step) / f64::from(STEPS);
                    let left = room - decoded * self.decoded_bytes;
                    let encoded = (left / self.encoded_bytes).clamp(0.0, 1.0 - decoded);
                    in_full(Cached { encoded, decoded })
                });
                // Among mixtures with equal epochs, the one with the least work for processors is best.
                let best = mixtures.min_by(|a, b| {
                    let by_epoch = a.epoch(self.overlap).total_cmp(&b.epoch(self.overlap));
                    by_epoch.then(a.processors.total_cmp(&b.processors))
                });
                best.unwrap_or_else(|| with(Cached::default()))
            }
            _ => with(Cached::default()),
        }
    }

    /// Returns the seconds of each resource for these shares of cached samples.
    fn busy_with(&self, setting: &Setting, loaders: f64, cached: Cached, cost: &Prepare) -> Busy {
        let absent = (1.0 - cached.encoded - cached.decoded).max(0.0);
        let each = absent * cost.from_storage
            + cached.encoded * cost.from_encoded
            + cached.decoded * cost.from_decoded;
        let made = loaders * self.made_per_loader(setting);
        let prepare = self.samples * made * each * self.prepare.crowding(setting.cpus);
        let jobs = f64::from(setting.jobs);
        let train = self.samples * jobs * self.job.cpu_seconds;
        // Preparing uses `cpus` processors at most, the jobs use all.
        let processors =
            (prepare / setting.cpus).max((prepare + train) / self.processors.max(setting.cpus));
        let storage = setting.storage_bytes_per_s.unwrap_or(self.storage);
        // A given rate stands for a dataset that does not fit into the page cache.
        let is_read = setting.storage_bytes_per_s.is_some() || !self.is_in_page_cache;
        Busy {
            storage: if let Some(workers) = self.workers {
                let samples = self.samples * self.made_per_loader(setting);
                let busy = workers.busy(samples, each, setting.cpus, self.storage / storage);
                // Only the workers' time beyond the processors' time is storage's: with more workers than processors,
                // some work while others wait.
                (busy - processors).max(0.0)
            } else if is_read {
                absent * self.encoded_bytes * made / storage
            } else {
                0.0
            },
            processors,
            job: self.samples * self.job.seconds / setting.gpu_speed,
        }
    }

    /// Returns how often each sample is prepared. A short last minibatch goes only to the jobs whose epoch it ends, and
    /// so separates jobs that share: it is prepared twice.
    fn made_per_loader(&self, setting: &Setting) -> f64 {
        if setting.shared && setting.jobs > 1 {
            1.0 + self.remainder / self.samples.max(1.0)
        } else {
            1.0
        }
    }

    /// Divides an epoch into the job's own work and its stalls.
    fn outcome(&self, busy: &Busy) -> EpochForecast {
        let epoch_s = busy.epoch(self.overlap);
        let without_storage = busy.processors.max(busy.job);
        EpochForecast {
            epoch_s,
            samples_per_s: self.samples / epoch_s.max(f64::MIN_POSITIVE),
            compute_s: busy.job,
            fetch_stall_s: epoch_s - without_storage,
            prep_stall_s: without_storage - busy.job,
            bottleneck: match () {
                () if busy.job >= epoch_s => Bottleneck::Job,
                () if busy.processors >= busy.storage => Bottleneck::Processors,
                () => Bottleneck::Storage,
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns facts of 1,000 samples, 100 kB each encoded and 1 MB decoded.
    pub(crate) fn facts() -> Facts {
        let prepare = Prepare {
            from_storage: 0.002,
            from_encoded: 0.0019,
            from_decoded: 0.0005,
            cpus: 2.0,
            alone: 0.0016,
        };
        Facts {
            samples: 1000.0,
            remainder: 0.0,
            encoded_bytes: 1e8,
            decoded_bytes: 1e9,
            prepare,
            in_full: prepare,
            storage: 2e7,
            is_in_page_cache: false,
            overlap: 1e3,
            workers: None,
            has_forms: true,
            processors: 2.0,
            job: JobWork {
                seconds: 0.0005,
                cpu_seconds: 0.0,
            },
        }
    }

    pub(crate) fn setting() -> Setting {
        Setting {
            cache_bytes: 0,
            cpus: 2.0,
            storage_bytes_per_s: None,
            jobs: 1,
            shared: true,
            form: "encoded".into(),
            gpu_speed: 1.0,
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn an_epoch_takes_what_the_busiest_takes() {
        let (facts, slow) = (facts(), setting());
        let outcome = facts.predict(&slow);
        assert!(close(outcome.epoch_s, 5.0), "100 MB at 20 MB/s");
        assert!(close(outcome.compute_s, 0.5));
        assert!(close(outcome.prep_stall_s, 0.5), "1 s on two processors");
        assert!(close(outcome.fetch_stall_s, 4.0));
        assert_eq!(outcome.bottleneck, Bottleneck::Storage);
        let cached = Setting {
            cache_bytes: 100_000_000,
            ..slow
        };
        let outcome = facts.predict(&cached);
        assert!(close(outcome.epoch_s, 0.95));
        assert_eq!(outcome.bottleneck, Bottleneck::Processors);
        let slower = Setting {
            gpu_speed: 0.25,
            ..cached
        };
        let outcome = facts.predict(&slower);
        assert!(close(outcome.epoch_s, 2.0) && close(outcome.prep_stall_s, 0.0));
        assert_eq!(outcome.bottleneck, Bottleneck::Job);
    }

    /// Returns facts of 1,000 samples of a dataset of the script's own code.
    fn facts_of_code(count: f64, waits: f64, works: f64) -> Facts {
        let prepare = Prepare {
            from_storage: works,
            from_encoded: works,
            from_decoded: works,
            cpus: count.min(2.0),
            alone: works,
        };
        Facts {
            prepare,
            in_full: prepare,
            overlap: 1.0,
            workers: Some(WorkerProcesses { count, waits }),
            has_forms: false,
            job: JobWork {
                seconds: 0.0,
                cpu_seconds: 0.0,
            },
            ..facts()
        }
    }

    fn setting_of_code() -> Setting {
        Setting {
            form: "off".into(),
            ..setting()
        }
    }

    #[test]
    fn workers_that_hardly_wait_are_held_up_by_processors() {
        let facts = facts_of_code(2.0, 59e-6, 4.86e-3);
        let outcome = facts.predict(&setting_of_code());
        assert!(close(outcome.epoch_s, (0.059 + 4.86) / 2.0));
        assert!(close(outcome.fetch_stall_s, 0.059 / 2.0));
        assert!(close(outcome.prep_stall_s, 4.86 / 2.0));
        assert_eq!(outcome.bottleneck, Bottleneck::Processors);
    }

    #[test]
    fn workers_that_mostly_wait_are_held_up_by_storage() {
        let facts = facts_of_code(2.0, 9e-3, 1e-3);
        let outcome = facts.predict(&setting_of_code());
        assert!(close(outcome.epoch_s, 5.0) && close(outcome.fetch_stall_s, 4.5));
        assert_eq!(outcome.bottleneck, Bottleneck::Storage);
        let faster = Setting {
            storage_bytes_per_s: Some(2.0 * facts.storage),
            ..setting_of_code()
        };
        assert!(close(facts.predict(&faster).epoch_s, 2.75));
    }

    #[test]
    fn some_workers_work_while_others_wait() {
        let outcome = |count| facts_of_code(count, 3e-3, 1e-3).predict(&setting_of_code());
        assert!(
            close(outcome(4.0).epoch_s, 1.0),
            "they wait most of the time"
        );
        assert!(
            close(outcome(16.0).epoch_s, 0.5),
            "two processors work all the time"
        );
        assert!(close(outcome(16.0).fetch_stall_s, 0.0));
    }

    #[test]
    fn more_processors_are_of_use_with_as_many_workers() {
        let facts = facts_of_code(2.0, 1e-3, 3e-3);
        let with = |cpus| {
            let outcome = facts.predict(&Setting {
                cpus,
                ..setting_of_code()
            });
            outcome.epoch_s
        };
        assert!(close(with(1.0), 3.0), "two workers share one processor");
        assert!(close(with(2.0), 2.0));
        assert!(close(with(4.0), 1.0));
    }

    #[test]
    fn what_overlaps_in_part_takes_longer_than_either_and_less_than_both() {
        let busy = Busy {
            storage: 3.0,
            processors: 4.0,
            job: 1.0,
        };
        assert!(close(busy.epoch(1.0), 7.0));
        assert!(close(busy.epoch(2.0), 5.0));
        assert!(busy.epoch(50.0) < 4.01);
    }

    #[test]
    fn one_processor_is_not_half_of_two_that_share() {
        let facts = facts();
        let with = |cpus| {
            let setting = Setting {
                cpus,
                storage_bytes_per_s: Some(1e12),
                ..setting()
            };
            facts.predict(&setting).epoch_s
        };
        assert!(close(with(1.0), 1.6));
        assert!(close(with(2.0), 1.0));
    }

    fn epoch_of(facts: &Facts, jobs: u32, shared: bool) -> f64 {
        let setting = Setting {
            jobs,
            shared,
            ..setting()
        };
        facts.predict(&setting).epoch_s
    }

    #[test]
    fn jobs_that_do_not_share_read_and_prepare_each_for_itself() {
        let facts = facts();
        let with = |jobs, shared| epoch_of(&facts, jobs, shared);
        assert!(close(with(4, true), with(1, true)));
        assert!(close(with(4, false), 4.0 * with(1, false)));
    }

    #[test]
    fn jobs_that_share_make_a_short_last_minibatch_twice() {
        let mut facts = facts();
        facts.remainder = 40.0;
        let with = |jobs, shared| epoch_of(&facts, jobs, shared);
        assert!(close(with(2, true), 1.04 * with(1, true)));
        assert!(close(with(8, true), with(2, true)));
        assert!(close(with(2, false), 2.0 * with(1, true)));
    }

    #[test]
    fn what_jobs_take_of_the_processors_is_not_there_for_preparing() {
        let mut facts = facts();
        facts.is_in_page_cache = true;
        facts.job.cpu_seconds = 0.001;
        let outcome = facts.predict(&Setting {
            jobs: 4,
            ..setting()
        });
        assert!(close(outcome.epoch_s, (2.0 + 4.0) / 2.0));
    }

    #[test]
    fn the_mixture_is_never_worse_than_either_form() {
        let facts = facts();
        for percent in (0..=100).step_by(5) {
            let with = |form: &str| {
                let setting = Setting {
                    cache_bytes: 12_000_000 * percent,
                    form: form.into(),
                    ..setting()
                };
                facts.predict(&setting).epoch_s
            };
            let auto = with("auto");
            assert!(auto <= with("encoded") + 1e-9, "{percent} %");
            assert!(auto <= with("decoded") + 1e-9, "{percent} %");
        }
    }
}
