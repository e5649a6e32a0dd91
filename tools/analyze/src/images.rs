//! Analysis of images that coprep's own operators prepare: everything that the model needs is measured.

use std::time::Duration;

use coprep_coordinator::{Dataset, Slowness};
use coprep_measurement::plan::{MeasurementPlan, SampleSource, SizeEstimate, estimate_sizes};
use coprep_measurement::progress::Progress;
use coprep_measurement::quiet::{self, NEGLIGIBLE_CPUS, Observed};
use coprep_measurement::{Result, usable_cpus};
use coprep_protocol::spec::PipelineSpec;

use crate::assemble::{About, disturbed, of_job, one, present_setting, report};
use crate::labels;
use crate::model::{Facts, JobWork, Prepare};
use crate::options::AnalysisOptions;
use crate::report::{DatasetFacts, MeasuredNumber, Report};
use crate::script::ScriptFindings;
use crate::storage::{self, Storage};

/// All measurements.
struct Measurements {
    sizes: SizeEstimate,
    storage: Observed<Storage>,
    from_storage: Rate,
    alone: Rate,
    in_full: Rate,
    encoded: Rate,
    decoded: Rate,
    /// See [`Facts::overlap`].
    overlap: Observed<f64>,
    /// Number of measured samples.
    part: u32,
}

/// Measures and predicts. `script` holds the findings about the script, if there is one.
pub(crate) fn analyze(
    options: &AnalysisOptions,
    spec: PipelineSpec,
    batch_size: u32,
    script: Option<&ScriptFindings>,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let assumptions = &options.assumptions;
    let plan = MeasurementPlan {
        program: options.program.clone(),
        spec,
        batch_size,
        cpus: options.cpus(),
        storage: Slowness {
            bytes_per_s: assumptions.storage_bytes_per_s,
            latency: assumptions.storage_latency.unwrap_or_default(),
        },
        seconds: options.seconds,
    };
    let dataset = plan.dataset()?;
    let found = measure(&plan, &dataset, progress)?;
    let job = job_work(script, assumptions.step_time, batch_size);
    let facts = facts(&plan, f64::from(dataset.len()), &found, job);
    let folder = dataset.object_path(0);
    // Files lie in folders of classes, so the dataset's folder is two levels up. Shards and parquet files lie in a folder.
    let is_in_files = dataset.is_sharded() || dataset.is_in_row_groups();
    let levels = if is_in_files { 1 } else { 2 };
    let folder = folder.ancestors().nth(levels).unwrap_or(&folder);
    let about = About {
        command: options.subject.describe(),
        dataset: DatasetFacts {
            name: folder.display().to_string(),
            samples: dataset.len().into(),
            encoded_bytes: found.sizes.encoded as u64,
            decoded_bytes: found.sizes.decoded as u64,
            mean_pixels: Some(found.sizes.pixels),
        },
        pipeline: coprep_coordinator::describe(&plan.spec),
        batch_size: plan.batch_size,
        measured: measured(&found, script, &facts),
        warnings: warnings(&found, script, &facts, &plan),
    };
    report(about, facts, present_setting(assumptions, script))
}

/// A rate of preparing: the median of several rounds.
#[derive(Clone, Copy, Debug)]
struct Rate {
    samples_per_s: f64,
    /// Median absolute deviation of the rounds.
    spread: f64,
    /// Number of processors that prepared.
    cpus: f64,
    /// Most processors that other programs used in a round.
    cpus_of_others: f64,
}

impl Rate {
    fn of(observed: &[Observed<f64>], cpus: u32) -> Self {
        let mut rates: Vec<f64> = observed.iter().map(|o| o.value).collect();
        let samples_per_s = median(&mut rates);
        let mut off: Vec<f64> = rates.iter().map(|r| (r - samples_per_s).abs()).collect();
        Rate {
            samples_per_s,
            spread: median(&mut off),
            cpus: cpus.into(),
            cpus_of_others: most(observed.iter().map(|o| o.cpus_of_others)),
        }
    }

    /// Returns the processor seconds of a sample.
    fn cost(&self) -> f64 {
        self.cpus / self.samples_per_s
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the largest of some numbers of processors, or 0.
fn most(cpus: impl IntoIterator<Item = f64>) -> f64 {
    cpus.into_iter().fold(0.0, f64::max)
}

/// Rounds of all probes. The probes take turns, because the machine is not equally fast at all times.
const ROUNDS: usize = 3;
/// Number of probes: see [`rates`].
const PROBES: usize = 5;

/// Returns the approximate seconds of each step of [`measure`].
fn expected(seconds: f64) -> Vec<f64> {
    let mut steps = vec![1.0, seconds, 0.25 * seconds * PROBES as f64];
    steps.extend([0.5 * seconds; PROBES * ROUNDS]);
    steps.push(3.0 * seconds);
    steps
}

/// Takes all measurements, each with the other resources out of the way.
fn measure(
    plan: &MeasurementPlan,
    dataset: &Dataset,
    progress: &mut dyn Progress,
) -> Result<Measurements> {
    progress.plan(expected(plan.seconds));
    progress.step("how many samples are enough");
    let part = plan.choose_samples(dataset, progress)?;
    let sizes = estimate_sizes(dataset, &part, &plan.spec)?;
    progress.step("storage, samples that the page cache has forgotten");
    let storage = quiet::measure(|| storage::storage(dataset, &part, plan.seconds, progress))?;
    let [from_storage, alone, in_full, encoded, decoded] = rates(plan, &part, progress)?;
    progress.step("fetching and preparing at the same rate");
    Ok(Measurements {
        sizes,
        storage,
        from_storage,
        alone,
        in_full,
        encoded,
        decoded,
        overlap: overlap(plan, &sizes, &part, progress)?,
        part: part.len() as u32,
    })
}

/// Measures five rates: from files; from files with one processor; decoded in full; from the cache encoded, and
/// decoded.
fn rates(
    plan: &MeasurementPlan,
    part: &[u32],
    progress: &mut dyn Progress,
) -> Result<[Rate; PROBES]> {
    progress.step("samples into caches");
    let (spec, in_full) = (&plan.spec, &plan.in_full());
    let cases = [
        (
            "from the page cache",
            spec,
            SampleSource::PageCache,
            plan.cpus,
        ),
        ("with one processor", spec, SampleSource::PageCache, 1),
        (
            "decoded in full",
            in_full,
            SampleSource::PageCache,
            plan.cpus,
        ),
        ("cached encoded", spec, SampleSource::Encoded, plan.cpus),
        ("cached decoded", spec, SampleSource::Decoded, plan.cpus),
    ];
    // Open all probes first, so that they can take turns.
    let mut probes = Vec::new();
    for (_, spec, from, cpus) in cases {
        let serve = [format!("--cpus={cpus}")];
        probes.push(plan.open(spec, from, part, &serve, progress)?);
    }
    let mut found: [Vec<Observed<f64>>; PROBES] = Default::default();
    for round in 1..=ROUNDS {
        for ((what, ..), (probe, found)) in cases.iter().zip(probes.iter().zip(&mut found)) {
            progress.step(&format!("preparing, {what} ({round} of {ROUNDS})"));
            found.push(probe.rate(plan.seconds / ROUNDS as f64, progress)?);
        }
    }
    let mut cpus = cases.iter().map(|(.., cpus)| *cpus);
    Ok(found.map(|rates| Rate::of(&rates, cpus.next().unwrap_or(1))))
}

/// Measures how far fetching and preparing overlap ([`Facts::overlap`]). Storage is slowed down to the rate of
/// preparing. With full overlap an epoch would then take as long as without the slowdown, with no overlap twice as
/// long; the actual time tells how far they overlap.
fn overlap(
    plan: &MeasurementPlan,
    sizes: &SizeEstimate,
    part: &[u32],
    progress: &mut dyn Progress,
) -> Result<Observed<f64>> {
    let cpus = format!("--cpus={}", plan.cpus);
    let from = SampleSource::PageCache;
    let free = plan.open(
        &plan.spec,
        from,
        part,
        std::slice::from_ref(&cpus),
        progress,
    )?;
    let first = free.rate(plan.seconds / 2.0, progress)?;
    let bytes = sizes.encoded / f64::from(plan.dataset()?.len());
    let rate = ((first.value * bytes) as u64).max(1);
    let serve = [cpus, format!("--storage-rate={rate}")];
    let slowed = plan.open(&plan.spec, from, part, &serve, progress)?;
    // Longer than the others: the pool has to find its balance, and chance weighs more.
    let both = slowed.rate(1.5 * plan.seconds, progress)?;
    // Once before and once after: the machine's speed may drift meanwhile.
    let last = free.rate(plan.seconds / 2.0, progress)?;
    let alone = (first.value + last.value) / 2.0;
    Ok(Observed {
        // Two equal times take `2^(1/p)` times as long together: solved for `p`.
        value: (2f64.ln() / (alone / both.value).max(1.0).ln()).clamp(OVERLAP.0, OVERLAP.1),
        cpus_of_others: most([first, both, last].map(|o| o.cpus_of_others)),
    })
}

/// Smallest and largest overlap that a measurement is trusted to show.
const OVERLAP: (f64, f64) = (1.5, 12.0);

/// Returns the work of a job without its waits: as measured in the script, else as it is assumed.
fn job_work(
    script: Option<&ScriptFindings>,
    step_time: Option<Duration>,
    batch_size: u32,
) -> JobWork {
    match script {
        Some(script) => JobWork {
            seconds: script.seconds,
            cpu_seconds: script.cpu_seconds,
        },
        None => JobWork {
            seconds: step_time.map_or(0.0, |time| time.as_secs_f64()) / f64::from(batch_size),
            cpu_seconds: 0.0,
        },
    }
}

/// Turns the measurements into the facts of the model.
fn facts(plan: &MeasurementPlan, samples: f64, found: &Measurements, job: JobWork) -> Facts {
    let prepare = Prepare {
        from_storage: found.from_storage.cost(),
        // The same work without reading files, so it cannot cost more: any excess is chance.
        from_encoded: found.encoded.cost().min(found.from_storage.cost()),
        from_decoded: found.decoded.cost(),
        cpus: found.from_storage.cpus,
        alone: found.alone.cost(),
    };
    // Decoding in full costs the same extra for every source that is still to be decoded.
    let more = (found.in_full.cost() - prepare.from_storage).max(0.0);
    let in_full = Prepare {
        from_storage: prepare.from_storage + more,
        from_encoded: prepare.from_encoded + more,
        alone: prepare.alone * (1.0 + more / prepare.from_storage),
        ..prepare
    };
    let free = coprep_shared_memory::memory::available().unwrap_or(0) as f64;
    Facts {
        samples,
        remainder: samples % f64::from(plan.batch_size),
        encoded_bytes: found.sizes.encoded,
        decoded_bytes: found.sizes.decoded,
        prepare,
        in_full,
        storage: found.storage.value.bytes_per_s,
        overlap: found.overlap.value,
        workers: None,
        has_forms: true,
        // Storage that the user slows down stands for a dataset that does not fit into memory.
        is_in_page_cache: plan.storage.is_none() && found.sizes.encoded < free / 2.0,
        processors: usable_cpus().into(),
        job,
    }
}

/// Lists the measurements for the report.
fn measured(
    found: &Measurements,
    script: Option<&ScriptFindings>,
    facts: &Facts,
) -> Vec<MeasuredNumber> {
    let samples = labels::number(found.part.into());
    let storage = &found.storage.value;
    let rate = |key: &str, name: &str, rate: &Rate, what: &str| {
        let how = format!(
            "{samples} samples {what}, again and again, with {} {}.",
            labels::processors(rate.cpus),
            beside(rate.cpus_of_others)
        );
        MeasuredNumber {
            spread: Some(rate.spread),
            ..one(key, name, rate.samples_per_s, "samples/s", how)
        }
    };
    let mut all = Vec::new();
    if let Some(script) = script {
        all.extend(of_job(script));
    } else if facts.job.seconds > 0.0 {
        all.push(one(
            "ingestion_rate",
            "The job's own rate",
            1.0 / facts.job.seconds,
            "samples/s",
            "As it was given.".into(),
        ));
    }
    all.extend([
        rate(
            "prep_rate",
            "Preparation, from files",
            &found.from_storage,
            "in the page cache",
        ),
        rate(
            "prep_rate_alone",
            "Preparation, one processor",
            &found.alone,
            "in the page cache",
        ),
        rate(
            "prep_rate_in_full",
            "Preparation, decoded in full",
            &found.in_full,
            "in the page cache",
        ),
        rate(
            "prep_rate_encoded",
            "Preparation, all cached encoded",
            &found.encoded,
            "in the cache as they are read",
        ),
        rate(
            "prep_rate_decoded",
            "Preparation, all cached decoded",
            &found.decoded,
            "in the cache decoded",
        ),
        one(
            "storage_bandwidth",
            "Storage",
            storage.bytes_per_s,
            "bytes/s",
            format!(
                "Files that the page cache was asked to forget, by {} readers: more did not help.",
                storage.threads
            ),
        ),
        one(
            "fetch_s",
            "Fetching one sample",
            storage.latency_s,
            "s",
            "The same, one reader.".into(),
        ),
    ]);
    all
}

/// Says how much other programs used the processors during a measurement.
fn beside(cpus_of_others: f64) -> String {
    if cpus_of_others > NEGLIGIBLE_CPUS {
        format!("while other programs used {cpus_of_others:.1}")
    } else {
        "and no other work".into()
    }
}

impl Measurements {
    /// Returns the processors that other programs used in the most disturbed measurement.
    fn cpus_of_others(&self) -> f64 {
        let rates = [
            self.from_storage,
            self.alone,
            self.in_full,
            self.encoded,
            self.decoded,
        ];
        let others = rates.map(|rate| rate.cpus_of_others);
        let beside = [self.storage.cpus_of_others, self.overlap.cpus_of_others];
        most(others.into_iter().chain(beside))
    }
}

/// Bytes per second that no storage reaches: above, the page cache did not forget the files.
const TOO_FAST: f64 = 4e9;

/// Lists the reasons to doubt the predictions.
fn warnings(
    found: &Measurements,
    script: Option<&ScriptFindings>,
    facts: &Facts,
    plan: &MeasurementPlan,
) -> Vec<String> {
    let mut all = Vec::new();
    let others = script.map_or(0.0, |script| script.cpus_of_others);
    all.extend(disturbed(found.cpus_of_others().max(others)));
    if found.storage.value.bytes_per_s > TOO_FAST {
        all.push("Storage is as fast as memory: this file system keeps its files there, or the page cache does not forget.".into());
    }
    if facts.is_in_page_cache {
        all.push(
            "The dataset fits in memory, so the kernel keeps it in its page cache: storage counts in the first epoch \
             only. Give --storage-rate to see what storage does to a dataset that does not fit."
                .into(),
        );
    }
    if facts.job.seconds == 0.0 {
        all.push("Nothing is known of the jobs' own work: give --step-time, or a training script after --.".into());
    }
    if f64::from(plan.cpus) > facts.processors {
        all.push("More processors are asked for than this process may use.".into());
    }
    all
}
