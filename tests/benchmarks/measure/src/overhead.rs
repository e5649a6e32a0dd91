//! Measures the overhead of cost measurement and of the attribution of waits, against the preparation of the same
//! samples: CPU nanoseconds per sample, step by step.
//!
//! The steps are those of the most expensive case: a coordinator that prepares an image from its file for the first
//! time, and chooses its form by price. The threads share one table and one model, as workers do.
//!
//! ```text
//! cargo run --release -p coprep-benchmarks --bin overhead -- DATA --threads 2
//! ```
#![expect(clippy::print_stdout, reason = "its answer")]

mod usual;

use std::hint::black_box;
use std::path::Path;
use std::sync::{Barrier, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_coordinator::pool_overhead;
use coprep_costs::lookahead::{SPREAD, StartPlan, window_needed};
use coprep_costs::{Chooser, CostRecorder, CostTable, Features, MeasuredTimes, Offer};
use coprep_pipeline::{Dataset, DecodedView, Pipeline, SampleKey, Scratch};
use coprep_protocol::spec::Source;
use coprep_shared_memory::lock::{lock, unpoisoned};
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

const USAGE: &str = "usage: overhead DATA [--threads N]";
const BATCH: u32 = 64;
/// Largest number of minibatches drawn ahead.
const MOST: u32 = 8;
/// Number of samples whose costs are kept. Several samples share an image, so that the table is large.
const SAMPLES: u32 = 1_000_000;
/// Largest number of images, which are kept decoded.
const IMAGES: u32 = 500;
/// Number of times that an image is prepared.
const TIMES: u32 = 4;
const PAIRS: usize = 9;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
type Step = fn(&mut Thread<'_>, u32);

fn main() -> Outcome<()> {
    let (data, threads) = options(std::env::args().skip(1)).ok_or(USAGE)?;
    let work = Work::new(&data, threads)?;
    let images = work.images.len() as u32;
    let of_images = |times: u32, step: Step| work.nanoseconds(times * images, step);
    let of_samples = |step: Step| work.nanoseconds(SAMPLES, step);
    let prepare = of_images(TIMES, |thread, id| thread.prepare(id));
    let prepare_decoded = of_images(TIMES, |thread, id| thread.prepare_decoded(id));
    // A look takes so little time that it is repeated more often.
    let look = of_images(100, |thread, id| thread.inspect(id));
    let fetch = of_samples(|_, _| fetch_clocks());
    let stages = of_samples(|_, _| stage_clocks());
    let record = of_samples(|thread, id| thread.record(id));
    let start = of_samples(|thread, id| thread.start(id));
    let form = of_samples(|thread, id| thread.form(id));
    let record_cached = of_samples(|thread, id| thread.record_cached(id));
    let cached = stages + record_cached + start;
    println!(
        "{}",
        serde_json::json!({
            "fetch_clocks": fetch,
            "look": look,
            "stage_clocks": stages,
            "record": record,
            "start": start,
            "form": form,
            "record_cached": record_cached,
            "all": fetch + look + stages + record + start + form,
            "cached": cached,
            "prepare": prepare,
            "prepare_decoded": prepare_decoded,
            "attribution": attribution(),
        })
    );
    Ok(())
}

fn options(mut arguments: impl Iterator<Item = String>) -> Option<(String, u32)> {
    let (mut data, mut threads) = (None, 2);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--threads" => threads = arguments.next()?.parse().ok().filter(|&n| n > 0)?,
            flag if flag.starts_with('-') => return None,
            folder => data = Some(folder.into()),
        }
    }
    Some((data?, threads))
}

/// An image in all forms, with its costs.
struct Image {
    file: Vec<u8>,
    decoded: (u32, u32, Vec<u8>),
    features: Features,
    measured: MeasuredTimes,
}

/// The state that all threads share.
struct Work {
    threads: u32,
    dataset: Dataset,
    pipeline: Pipeline,
    images: Vec<Image>,
    table: CostTable,
    recorder: Mutex<CostRecorder>,
    chooser: Mutex<Chooser>,
}

struct Thread<'a> {
    work: &'a Work,
    scratch: Scratch,
    file: Vec<u8>,
    slot: Vec<u8>,
    plan: StartPlan,
    began: Instant,
}

impl Work {
    fn new(data: &str, threads: u32) -> Outcome<Self> {
        let root = Path::new(data).canonicalize()?;
        let root = root.to_string_lossy().into_owned();
        let dataset = Dataset::open(&Source::ImageFolder { root })?;
        let pipeline = Pipeline::compile(&usual::operators(true))?;
        let some = 0..dataset.len().min(IMAGES);
        let images: Vec<_> = some
            .map(|id| Image::new(&dataset, &pipeline, id))
            .collect::<Outcome<_>>()?;
        if images.is_empty() {
            return Err(format!("no images in {data}").into());
        }
        let bytes: u64 = images.iter().map(|image| image.features.bytes).sum();
        let budget = bytes / images.len() as u64 * u64::from(SAMPLES);
        let work = Work {
            threads,
            dataset,
            pipeline,
            images,
            table: CostTable::new(SAMPLES),
            recorder: Mutex::new(CostRecorder::new()),
            chooser: Mutex::new(Chooser::new(budget, SAMPLES, budget)),
        };
        // Recorded once, so that the expected cost of each sample is its real cost.
        let mut thread = work.thread();
        (0..SAMPLES).for_each(|id| thread.record(id));
        Ok(work)
    }

    fn thread(&self) -> Thread<'_> {
        Thread {
            work: self,
            scratch: Scratch::new(),
            file: Vec::new(),
            slot: vec![0; self.pipeline.output().sample_bytes()],
            plan: StartPlan::new(),
            began: Instant::now(),
        }
    }

    fn image(&self, id: u32) -> &Image {
        &self.images[id as usize % self.images.len()]
    }

    fn recorder(&self) -> MutexGuard<'_, CostRecorder> {
        lock(&self.recorder)
    }

    fn settled(&self) -> MutexGuard<'_, CostRecorder> {
        let mut recorder = self.recorder();
        recorder.settle(&self.table);
        recorder
    }

    /// Returns the mean CPU time of `step` over `samples` samples, which are divided among the threads.
    fn nanoseconds(&self, samples: u32, step: Step) -> f64 {
        let line = Barrier::new(self.threads as usize);
        let run = |number| {
            let mut thread = self.thread();
            let line = &line;
            move || {
                // The first step fills the thread's buffers and caches, and is not measured.
                step(&mut thread, number);
                line.wait();
                let before = thread_cpu();
                let ids = (number..samples).step_by(self.threads as usize);
                ids.for_each(|id| step(&mut thread, id));
                thread_cpu().saturating_sub(before)
            }
        };
        let spent: Duration = std::thread::scope(|scope| {
            let started: Vec<_> = (0..self.threads).map(|n| scope.spawn(run(n))).collect();
            let ended = started.into_iter().map(|thread| {
                let outcome = thread.join();
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            ended.sum()
        });
        spent.as_nanos() as f64 / f64::from(samples)
    }
}

impl Image {
    fn new(dataset: &Dataset, pipeline: &Pipeline, id: u32) -> Outcome<Self> {
        let mut file = Vec::new();
        let before = Instant::now();
        dataset.fetch(id, &mut file)?;
        let fetched = Instant::now();
        let picture = pipeline.inspect(&file)?;
        let shape = picture.decoded;
        let mut pixels = vec![0; shape.bytes()];
        pipeline.decode_into(&file, &mut Scratch::new(), &mut pixels)?;
        let (fetch, decode) = (fetched - before, fetched.elapsed());
        Ok(Image {
            features: Features {
                bytes: file.len() as u64,
                pixels: picture.pixels,
            },
            measured: MeasuredTimes {
                fetch: Some(fetch.as_secs_f32()),
                decode: Some(decode.as_secs_f32()),
                fixed: None,
                random: Some(0.2 * decode.as_secs_f32()),
                cpu: Some(1.2 * decode.as_secs_f32()),
            },
            file,
            decoded: (shape.width, shape.height, pixels),
        })
    }
}

impl Thread<'_> {
    /// Prepares an image from its file.
    fn prepare(&mut self, id: u32) {
        let Thread {
            work,
            scratch,
            file,
            slot,
            ..
        } = self;
        let id = id % work.images.len() as u32;
        work.dataset.fetch(id, file).expect("read before");
        let pipeline = &work.pipeline;
        let prepared = pipeline.prepare_encoded(file, key(id), scratch, || &mut slot[..]);
        prepared.expect("decoded before");
    }

    /// Prepares an image from its decoded form in the cache.
    fn prepare_decoded(&mut self, id: u32) {
        let (width, height, pixels) = &self.work.image(id).decoded;
        let view = DecodedView {
            width: *width,
            height: *height,
            pixels,
        };
        let (pipeline, slot) = (&self.work.pipeline, &mut self.slot);
        let prepared = pipeline.prepare_decoded(view, key(id), &mut self.scratch, || &mut slot[..]);
        prepared.expect("decoded before");
    }

    /// Reads the header of its file.
    fn inspect(&mut self, id: u32) {
        let file = &self.work.image(id).file;
        black_box(self.work.pipeline.inspect(file)).expect("looked at before");
    }

    /// Enters its cost into the table, the budget and, with features, the model.
    fn enter(&mut self, id: u32, measured: MeasuredTimes, features: Option<Features>) {
        let table = &self.work.table;
        match self.work.recorder.try_lock() {
            Ok(mut recorder) => {
                if recorder.enter(table, id, measured, features) {
                    black_box(recorder.budget().seconds());
                }
            }
            // A worker does so while another one holds the lock.
            Err(_) => table.record(id, &measured),
        }
    }

    /// Records a preparation from the file.
    fn record(&mut self, id: u32) {
        let image = self.work.image(id);
        self.enter(id, image.measured, Some(image.features));
    }

    /// Records a preparation from the decoded form.
    fn record_cached(&mut self, id: u32) {
        let (fetch, decode) = (None, None);
        let measured = MeasuredTimes {
            fetch,
            decode,
            ..self.work.image(id).measured
        };
        self.enter(id, measured, None);
    }

    /// Plans start times. This is done once for a whole minibatch.
    fn start(&mut self, id: u32) {
        let work = self.work;
        if !(id / work.threads).is_multiple_of(BATCH) {
            return;
        }
        let expected: Vec<f32> = (0..BATCH)
            // Samples of a batch lie far apart in the table, as in a random order.
            .map(|number| work.table.stages((id + number * 7919) % SAMPLES))
            .map(|stages| stages.map_or(0.0, |stages| stages.iter().sum()))
            .collect();
        let lately = work.settled().budget().summary();
        let lately = lately.expect("some are known");
        let period = lately.mean * BATCH as f32 / work.threads as f32;
        let window = window_needed(&lately, BATCH, period, SPREAD, MOST);
        let now = self.began.elapsed().as_secs_f64();
        let starts = (self.plan).draw(now, window, &expected, work.threads, period);
        black_box(starts);
    }

    /// Chooses the form in which it is kept.
    fn form(&mut self, id: u32) {
        let image = self.work.image(id);
        let cost = self.work.recorder().predict(image.features);
        let cost = cost.expect("enough are known");
        let offer = |bytes, saves: f32| Offer {
            bytes,
            saves: saves.into(),
        };
        let offers = [
            offer(image.features.bytes, cost.fetch),
            offer(image.decoded.2.len() as u64, cost.fetch + cost.decode),
        ];
        let chooser = self.work.chooser.lock();
        let mut chooser = unpoisoned(chooser);
        black_box(chooser.decide(image.features.bytes, &offers));
    }
}

/// Returns the extra time of a pool for a sample if it keeps stall clocks: the median of several pairs of runs.
fn attribution() -> f64 {
    let pair = |_| {
        let [off, on] =
            [false, true].map(|attributes| pool_overhead(attributes, SAMPLES).as_nanos() as f64);
        (on - off) / f64::from(SAMPLES)
    };
    let mut pairs: Vec<f64> = (0..PAIRS).map(pair).collect();
    pairs.sort_by(f64::total_cmp);
    pairs[PAIRS / 2]
}

/// Reads the clocks that fetching reads: the time, its CPU part, and whether the thread waited.
fn fetch_clocks() {
    for _ in 0..2 {
        black_box(Instant::now());
        black_box((thread_cpu(), getrusage(UsageWho::RUSAGE_THREAD).ok()));
    }
}

/// Reads the clocks that preparing reads: the time of its stages, and the CPU time.
fn stage_clocks() {
    for _ in 0..6 {
        black_box(Instant::now());
    }
    black_box(thread_cpu());
}

fn key(id: u32) -> SampleKey {
    SampleKey {
        seed: 0,
        id,
        visit: 0,
    }
}

fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
