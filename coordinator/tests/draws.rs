//! Epochs of independent draws with replacement: jobs share them, join late, resume, skip samples and have ranks.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use coprep_client::{Batch, ErrorKind, Event, Loader};
use coprep_coordinator::Settings;
use coprep_protocol::message::{
    Attach, CacheForm, CacheRequest, CohortRequest, DrawsRequest, ResumePoint, SampleError,
};
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Interpolation, Op, PipelineSpec, Source};

mod common;

use common::{LIMIT, Node};

const SAMPLES: u32 = 20;
/// Number of draws of an epoch. It is not a multiple of the batch size.
const COUNT: u32 = 101;
const BATCH_SIZE: u32 = 4;
/// Largest number of batches that are assigned to a job and that it has not taken.
const QUEUE_DEPTH: usize = 16;

fn start() -> Node {
    Node::start_with(Settings {
        staging_bytes: 1 << 20,
        cache_budget: 16 << 20,
        ..Settings::default()
    })
}

impl Node {
    fn job(&self, change: impl FnOnce(&mut Attach)) -> Job {
        let mut attach = Attach {
            draws: Some(draws(None)),
            ..common::attach(common::numbers(SAMPLES), BATCH_SIZE)
        };
        change(&mut attach);
        Job(self.loader(attach))
    }
}

fn draws(weights: Option<Vec<f64>>) -> DrawsRequest {
    DrawsRequest {
        count: COUNT,
        weights,
    }
}

/// Returns weights that are 0 except for three samples.
fn of_three() -> Vec<f64> {
    let weight = |id| match id {
        0 => 2.0,
        7 | 19 => 1.0,
        _ => 0.0,
    };
    (0..SAMPLES).map(weight).collect()
}

/// The loader of one rank of a job.
struct Job(Arc<Loader>);

/// An item that a job takes.
enum Given {
    Batch(Batch),
    Failed(Box<SampleError>),
    End,
}

impl Job {
    fn next(&self) -> Given {
        loop {
            match self.0.next(LIMIT) {
                Ok(Event::Batch(batch)) => return Given::Batch(batch),
                Ok(Event::EndOfEpoch) => return Given::End,
                Ok(Event::NotYet | Event::Skipped(_)) => {}
                Err(e) => match e.kind() {
                    ErrorKind::Sample(error) => return Given::Failed(error.clone()),
                    _ => panic!("{e}"),
                },
            }
        }
    }

    /// Takes `batches` batches. Returns their ids.
    fn take(&self, batches: usize) -> Vec<Vec<u32>> {
        let batch = |_| match self.next() {
            Given::Batch(batch) => common::ids(&batch),
            _ => panic!("a batch is due"),
        };
        (0..batches).map(batch).collect()
    }

    /// Takes the rest of the epoch. Returns the ids by batch, and the ids of samples that failed.
    fn rest(&self) -> (Vec<Vec<u32>>, Vec<u32>) {
        let (mut batches, mut failed) = (Vec::new(), Vec::new());
        loop {
            match self.next() {
                Given::Batch(batch) => batches.push(common::ids(&batch)),
                Given::Failed(error) => failed.push(error.id),
                Given::End => return (batches, failed),
            }
        }
    }

    /// Takes an epoch in which no sample fails. Returns the ids by batch.
    fn epoch(&self) -> Vec<Vec<u32>> {
        self.0.start_epoch().unwrap();
        let (batches, failed) = self.rest();
        assert!(failed.is_empty());
        batches
    }

    fn refusal(&self) -> String {
        match self.0.attached() {
            Err(e) => match e.kind() {
                ErrorKind::Refused(_) => e.to_string(),
                _ => panic!("{e}"),
            },
            Ok(_) => panic!("it was not refused"),
        }
    }

    /// Returns its position, from which another job can resume.
    fn resume(&self) -> ResumePoint {
        let state = self.0.state().unwrap();
        let mut delivered = Vec::new();
        state.delivered.serialize_into(&mut delivered).unwrap();
        ResumePoint {
            epoch: state.epoch,
            delivered,
            batches: 0,
            is_done: false,
            skipped: Vec::new(),
            carried: Vec::new(),
        }
    }
}

fn count(batches: &[Vec<u32>]) -> usize {
    batches.iter().map(Vec::len).sum()
}

fn sorted(batches: &[Vec<u32>]) -> Vec<u32> {
    let mut ids = batches.concat();
    ids.sort_unstable();
    ids
}

#[test]
fn an_epoch_is_so_many_draws_of_the_samples_that_have_a_weight() {
    let node = start();
    let job = node.job(|a| a.draws = Some(draws(Some(of_three()))));
    assert_eq!(job.0.attached().unwrap().job_samples, COUNT);
    assert_eq!(job.0.batches_per_epoch().unwrap(), 26);
    let epochs = [(); 3].map(|()| job.epoch());
    for epoch in &epochs {
        assert_eq!((epoch.len(), count(epoch)), (26, COUNT as usize));
        let different: BTreeSet<u32> = epoch.concat().into_iter().collect();
        assert_eq!(different, BTreeSet::from([0, 7, 19]));
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[1], epochs[2]);
}

#[test]
fn the_draws_of_a_job_alone_depend_on_its_seed_alone() {
    let epochs = |seed, batch_size| {
        let node = start();
        let job = node.job(|a| (a.seed, a.batch_size) = (Some(seed), batch_size));
        [job.epoch().concat(), job.epoch().concat()]
    };
    let first = epochs(7, 4);
    assert_eq!(first, epochs(7, 4));
    assert_eq!(first, epochs(7, 9), "however they are cut into batches");
    assert_ne!(first, epochs(8, 4));
}

/// Returns `true` if all of `some` are in `all`, in this order.
fn are_in_order(some: &[Vec<u32>], all: &[Vec<u32>]) -> bool {
    let mut rest = all.iter();
    some.iter().all(|batch| rest.any(|other| other == batch))
}

#[test]
fn jobs_share_draws_whenever_they_join() {
    let node = start();
    let weighted = |a: &mut Attach| {
        a.draws = Some(DrawsRequest {
            count: 2000,
            weights: Some(of_three()),
        });
    };
    let (early, late) = (node.job(weighted), node.job(weighted));
    early.0.start_epoch().unwrap();
    let mut one = early.take(9);
    late.0.start_epoch().unwrap();
    let mut other = Vec::new();
    while one.len() < 500 {
        one.extend(early.take(1));
        other.extend(late.take(1));
    }
    for (job, given) in [(&early, &mut one), (&late, &mut other)] {
        let (rest, failed) = job.rest();
        assert!(failed.is_empty());
        given.extend(rest);
        assert_eq!(count(given), 2000);
    }
    // When the late job joined, the early one had been assigned what it had taken and what its queue holds, and no more.
    // All that was drawn afterwards is for both. In between, the late job is given what it lacks of the draws before:
    // whenever it is about to starve and the early one has no room.
    let assigned_before = 9 + QUEUE_DEPTH;
    assert!(
        are_in_order(&one[assigned_before..], &other),
        "{one:?} {other:?}"
    );
    let streams = node.streams();
    assert_eq!(streams.len(), 1);
    let prepared_twice = streams[0].totals.prepared - 2000;
    let most = assigned_before as u64 * u64::from(BATCH_SIZE);
    assert!(prepared_twice <= most, "{prepared_twice} of {most}");
}

#[test]
fn jobs_with_other_weights_or_another_number_of_draws_do_not_share() {
    let node = start();
    let mut weights = of_three();
    weights[1] = 1.0;
    let requests = [
        Some(draws(Some(of_three()))),
        Some(draws(Some(weights))),
        Some(draws(None)),
        Some(DrawsRequest {
            count: COUNT + 1,
            weights: None,
        }),
        None,
    ];
    let jobs = requests.map(|draws| node.job(|a| a.draws = draws));
    let streams: BTreeSet<u64> = jobs
        .iter()
        .map(|job| job.0.attached().unwrap().stream)
        .collect();
    assert_eq!(streams.len(), jobs.len());
    let streams = node.streams();
    assert!(
        streams[0].differs[0].contains("weights"),
        "{:?}",
        streams[0].differs
    );
}

#[test]
fn a_job_goes_on_with_the_draws_that_it_was_not_given() {
    let whole = start().job(|_| {}).epoch_pair();
    for resumed_after in [0, 1, 11, 25] {
        let node = start();
        let job = node.job(|_| {});
        job.0.start_epoch().unwrap();
        let mut first = job.take(resumed_after);
        let resume = job.resume();
        job.0.close();
        let job = node.job(|a| (a.resume, a.dataset_samples) = (Some(resume), Some(SAMPLES)));
        job.0.start_epoch().unwrap();
        let (rest, _) = job.rest();
        first.extend(rest);
        assert_eq!(first, whole[0]);
        assert_eq!(job.epoch(), whole[1]);
    }
}

#[test]
fn a_job_goes_on_with_its_draws_when_the_coordinator_has_ended() {
    let whole = start().job(|_| {}).epoch_pair();
    let mut node = start();
    let job = node.job(|_| {});
    job.0.start_epoch().unwrap();
    let mut given = job.take(10);
    node.end();
    node.begin();
    given.extend(job.rest().0);
    assert_eq!(given, whole[0]);
    assert_eq!(job.epoch(), whole[1]);
}

impl Job {
    fn epoch_pair(&self) -> [Vec<Vec<u32>>; 2] {
        [self.epoch(), self.epoch()]
    }
}

#[test]
fn ranks_share_the_draws_of_one_epoch() {
    let alone = start().job(|a| a.batch_size = 8).epoch();
    let node = start();
    let ranks = [0, 1].map(|rank| {
        node.job(|a| {
            (a.rank, a.world_size, a.group) = (rank, 2, "ranks".into());
        })
    });
    let given: Vec<_> = std::thread::scope(|scope| {
        let epochs = ranks.each_ref().map(|rank| scope.spawn(|| rank.epoch()));
        epochs.map(|epoch| epoch.join().unwrap()).into()
    });
    assert_eq!((given[0].len(), given[1].len()), (13, 13));
    assert_eq!(sorted(&given.concat()), sorted(&alone));
}

#[test]
fn members_of_a_cohort_are_given_the_same_draws() {
    let node = start();
    let members = [(); 2].map(|()| {
        node.job(|a| {
            a.cohort = Some(CohortRequest {
                name: "search".into(),
                size: 2,
            });
        })
    });
    let given = std::thread::scope(|scope| {
        let epochs = members
            .each_ref()
            .map(|job| scope.spawn(|| job.epoch_pair()));
        epochs.map(|epoch| epoch.join().unwrap())
    });
    assert_eq!(given[0], given[1]);
    assert_eq!(given[0], start().job(|_| {}).epoch_pair());
}

#[test]
fn a_large_dataset_may_have_a_weight_for_each_sample() {
    let node = start();
    let samples = 1_500_000;
    let weights = (0..samples).map(|id| f64::from(id % 2));
    let job = node.job(|a| {
        a.pipeline = common::numbers(samples);
        a.draws = Some(draws(Some(weights.collect())));
    });
    let ids = job.epoch().concat();
    assert_eq!(ids.len(), COUNT as usize);
    assert!(ids.iter().all(|id| id % 2 == 1));
}

#[test]
fn draws_in_relaxed_order_are_complete() {
    let node = start();
    let job = node.job(|a| a.relaxed = true);
    for _ in 0..3 {
        assert_eq!(count(&job.epoch()), COUNT as usize);
    }
}

#[test]
fn draws_that_make_no_sense_are_refused() {
    let node = start();
    let refused = |change: &dyn Fn(&mut Attach)| node.job(change).refusal();
    let of = |weights: Vec<f64>| refused(&|a| a.draws = Some(draws(Some(weights.clone()))));
    assert!(of(vec![1.0; 3]).contains("3 weights"));
    assert!(of(vec![-1.0; 20]).contains("-1"));
    assert!(of(vec![f64::NAN; 20]).contains("NaN"));
    assert!(of(vec![0.0; 20]).contains("sum"));
    for count in [0, u32::MAX] {
        let none = refused(&|a| {
            a.draws = Some(DrawsRequest {
                count,
                weights: None,
            });
        });
        assert!(none.contains("draws"), "{none}");
    }
    let mut subset = Vec::new();
    let ids: roaring::RoaringBitmap = (0..3).collect();
    ids.serialize_into(&mut subset).unwrap();
    assert!(refused(&|a| a.subset = Some(subset.clone())).contains("subset"));
    assert!(refused(&|a| a.cache.reuse = 2).contains("reuse"));
    // Numbers are below the number of draws, and the dataset is identified by its number of samples.
    let state = |delivered: u32| {
        let mut bytes = Vec::new();
        let given: roaring::RoaringBitmap = [delivered].into();
        given.serialize_into(&mut bytes).unwrap();
        ResumePoint {
            epoch: 0,
            delivered: bytes,
            batches: 0,
            is_done: false,
            skipped: Vec::new(),
            carried: Vec::new(),
        }
    };
    let beyond = refused(&|a| a.resume = Some(state(COUNT)));
    assert!(beyond.contains(&COUNT.to_string()), "{beyond}");
    let other = refused(&|a| {
        (a.resume, a.dataset_samples) = (Some(state(1)), Some(COUNT));
    });
    assert!(other.contains("another dataset"), "{other}");
    assert!(node.streams().is_empty());
}

// Samples that are read from files.

/// Makes a folder of grey images whose brightness is their id. The `broken` ones cannot be read.
fn images(folder: &Path, broken: &[u32]) -> PipelineSpec {
    let root = folder.join("photos");
    std::fs::create_dir_all(root.join("class")).unwrap();
    for id in 0..SAMPLES {
        let path = root.join(format!("class/{id:03}.png"));
        if broken.contains(&id) {
            std::fs::write(&path, b"no image").unwrap();
        } else {
            let noise = |x, y| image::Rgb([x * 12, y * 12, id].map(|part| part as u8));
            image::RgbImage::from_fn(20, 20, noise).save(&path).unwrap();
        }
    }
    let crop = Op::RandomResizedCrop {
        height: 8,
        width: 8,
        scale: (0.08, 1.0),
        ratio: (0.75, 1.333),
        interpolation: Interpolation::Bilinear,
    };
    let decode = Op::Decode {
        apply_exif_orientation: false,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: true,
    };
    PipelineSpec {
        source: Source::ImageFolder {
            root: root.to_str().unwrap().to_owned(),
        },
        ops: vec![decode, crop],
    }
}

/// Returns the pixels of each sample of a batch.
#[expect(unsafe_code, reason = "an array of a batch is known by its address")]
fn pixels(batch: &Batch) -> Vec<Vec<u8>> {
    let arrays = batch.arrays();
    let bytes: usize = arrays[0].shape[1..].iter().product();
    let first = arrays[0].address() as *const u8;
    let sample = |i| {
        // SAFETY: the array has `bytes` bytes for each sample, and lives until the end of this function.
        unsafe { std::slice::from_raw_parts(first.add(i * bytes), bytes) }.to_vec()
    };
    (0..arrays[0].shape[0]).map(sample).collect()
}

#[test]
fn a_sample_that_is_drawn_twice_is_cut_differently_each_time() {
    for form in [CacheForm::Off, CacheForm::Encoded, CacheForm::Decoded] {
        let node = start();
        let mut weights = vec![0.0; SAMPLES as usize];
        weights[3] = 1.0;
        let job = node.job(|a| {
            a.pipeline = images(node.folder.path(), &[]);
            a.draws = Some(draws(Some(weights)));
            a.cache = CacheRequest {
                form: Some(form),
                ..CacheRequest::default()
            };
        });
        job.0.start_epoch().unwrap();
        let mut seen = BTreeSet::new();
        for _ in 0..10 {
            let Given::Batch(batch) = job.next() else {
                panic!("a batch is due")
            };
            assert_eq!(common::ids(&batch), [3; 4]);
            let names: Vec<String> = batch.arrays().into_iter().map(|a| a.name).collect();
            assert_eq!(
                names,
                ["image", "label", "index"],
                "numbers are not the user's"
            );
            seen.extend(pixels(&batch));
        }
        // Two random areas of 20 x 20 pixels may be the same by chance.
        assert!(seen.len() > 30, "{} of 40 are different", seen.len());
        job.rest();
        // While one thread fills the cache, draws of the same sample by others are read from the file. So the number of
        // reads before the sample is cached depends on how long that thread is kept from its processor.
        let fetched = || node.streams()[0].totals.fetched;
        let reads_nothing = |_| {
            let before = fetched();
            job.epoch();
            fetched() == before
        };
        let is_kept = (0..20).any(reads_nothing);
        assert_eq!(is_kept, form != CacheForm::Off, "{form:?}: {}", fetched());
    }
}

#[test]
fn another_sample_is_drawn_for_one_that_cannot_be_read() {
    let whole = |batch_size| {
        let node = start();
        let job = node.job(|a| {
            a.pipeline = images(node.folder.path(), &[2, 11]);
            (a.skip_errors, a.batch_size) = (true, batch_size);
        });
        let epochs = [job.epoch(), job.epoch(), job.epoch()];
        for epoch in &epochs {
            assert_eq!(count(epoch), COUNT as usize, "no number is lost");
        }
        // In one epoch a sample may be missing by chance.
        let different: BTreeSet<u32> = epochs.iter().flatten().flatten().copied().collect();
        assert_eq!(different.len(), SAMPLES as usize - 2);
        assert!(!different.contains(&2) && !different.contains(&11));
        let state = job.0.state().unwrap();
        assert_eq!((state.epoch, state.delivered.len()), (3, 0));
        assert_eq!(job.0.stats().skipped, 2);
        assert_eq!(node.streams()[0].jobs[0].skipped, 2);
        epochs.map(|epoch| epoch.concat())
    };
    assert_eq!(whole(4), whole(16), "whenever it is found to be bad");
}

#[test]
fn a_sample_that_cannot_be_read_is_raised_by_its_id_and_its_batch_is_full() {
    let node = start();
    let job = node.job(|a| a.pipeline = images(node.folder.path(), &[2]));
    let mut failures = 0;
    for _ in 0..2 {
        job.0.start_epoch().unwrap();
        let (batches, failed) = job.rest();
        assert_eq!((batches.len(), count(&batches)), (26, COUNT as usize));
        assert!(failed.iter().all(|id| *id == 2), "{failed:?}");
        assert!(batches.iter().flatten().all(|id| *id != 2));
        failures += failed.len();
    }
    // Each of its draws fails. 5 are expected in an epoch.
    assert!((2..=25).contains(&failures), "{failures}");
}

#[test]
fn members_of_a_cohort_are_given_the_same_draws_in_place_of_those_that_fail() {
    let node = start();
    let member = |batch_size| {
        node.job(|a| {
            a.pipeline = images(node.folder.path(), &[2, 11]);
            (a.skip_errors, a.batch_size) = (true, batch_size);
            a.cohort = Some(CohortRequest {
                name: "search".into(),
                size: 2,
            });
        })
    };
    let members = [member(4), member(8)];
    let given = std::thread::scope(|scope| {
        let epochs = members
            .each_ref()
            .map(|job| scope.spawn(|| job.epoch_pair().map(|epoch| epoch.concat())));
        epochs.map(|epoch| epoch.join().unwrap())
    });
    assert_eq!(given[0], given[1]);
    assert_eq!(given[0][0].len(), COUNT as usize);
}

#[test]
fn where_nothing_can_be_drawn_that_can_be_read_its_user_hears_of_it() {
    let node = start();
    let mut weights = vec![0.0; SAMPLES as usize];
    weights[3] = 1.0;
    let job = node.job(|a| {
        a.pipeline = images(node.folder.path(), &[3]);
        a.draws = Some(DrawsRequest {
            count: 6,
            weights: Some(weights),
        });
    });
    job.0.start_epoch().unwrap();
    let (batches, failed) = job.rest();
    assert_eq!((count(&batches), failed), (0, vec![3; 6]));
}
