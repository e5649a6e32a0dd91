//! Formats a report's numbers, the same in all renderings. A no-break space keeps each number and its unit on one line.

use coprep_protocol::size::human;
use coprep_terminal::duration;
pub(crate) use coprep_terminal::number;

use crate::forecast::{Bottleneck, EpochForecast, EpochPart, Setting};
use crate::report::{DatasetFacts, Machine, Report};

const NBSP: char = '\u{a0}';

/// Formats a time: `2.1 ms`, `8.40 s`, `3 min 20 s`.
pub(crate) fn seconds(s: f64) -> String {
    match s {
        s if s <= 0.0 => format!("0{NBSP}s"),
        s if s < 0.001 => format!("{}{NBSP}µs", number(s * 1e6)),
        s if s < 1.0 => format!("{}{NBSP}ms", number(s * 1e3)),
        s if s < 59.5 => format!("{}{NBSP}s", number(s)),
        s => whole(&duration(s.round())),
    }
}

/// Formats a value in the unit that fits it.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    match unit {
        "s" => seconds(value),
        "bytes" => bytes(value as u64),
        "bytes/s" => rate(value),
        "" => number(value),
        _ => format!("{}{NBSP}{unit}", number(value)),
    }
}

fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", bytes(bytes_per_s as u64))
}

fn bytes(count: u64) -> String {
    whole(&human(count))
}

/// Replaces spaces by no-break spaces.
fn whole(text: &str) -> String {
    text.replace(' ', "\u{a0}")
}

/// Formats a share: `52 %`. A share above zero that would round to zero is `<1 %`.
pub(crate) fn percent(part: f64, whole: f64) -> String {
    match 100.0 * part / whole.max(f64::MIN_POSITIVE) {
        p if p > 0.0 && p < 0.5 => format!("<1{NBSP}%"),
        p => format!("{p:.0}{NBSP}%"),
    }
}

/// Formats a factor: `2.9×`.
pub(crate) fn gain(x: f64) -> String {
    let digits = if x < 9.95 { 1 } else { 0 };
    format!("{x:.digits$}×")
}

/// Formats a number of processors: `1 processor`, `2 processors`.
pub(crate) fn processors(count: f64) -> String {
    let s = if count == 1.0 { "" } else { "s" };
    format!("{} processor{s}", number(count))
}

pub(crate) fn part(part: EpochPart) -> &'static str {
    match part {
        EpochPart::Compute => "compute",
        EpochPart::FetchStall => "fetch stall",
        EpochPart::PrepStall => "prep stall",
    }
}

pub(crate) fn bottleneck(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::Storage => "storage",
        Bottleneck::Processors => "processors",
        Bottleneck::Job => "the job",
    }
}

/// Says in one or two sentences where an epoch's time goes.
pub(crate) fn verdict(outcome: &EpochForecast) -> String {
    let of = |part| percent(outcome.of(part), outcome.epoch_s);
    let stalls = outcome.fetch_stall_s + outcome.prep_stall_s;
    let epoch = seconds(outcome.epoch_s);
    // Waits of less than half a percent are not worth a sentence.
    if stalls < 0.005 * outcome.epoch_s {
        return format!("An epoch takes {epoch}, and the job waits for none of it.");
    }
    let waits = match (outcome.fetch_stall_s > 0.0, outcome.prep_stall_s > 0.0) {
        (true, false) => "all of it for storage".into(),
        (false, true) => "all of it for preparation".into(),
        _ => format!(
            "{} for storage and {} for preparation",
            of(EpochPart::FetchStall),
            of(EpochPart::PrepStall)
        ),
    };
    format!(
        "An epoch takes {epoch}. The job computes for {} of it and waits for {}: {waits}.",
        of(EpochPart::Compute),
        percent(stalls, outcome.epoch_s)
    )
}

/// Says how long an epoch would take with an advice: `An epoch would take 5 min 56 s, not 14 min 51 s.` Returns `None`
/// if it would take as long as now.
pub(crate) fn then(report: &Report, gain_x: f64) -> Option<String> {
    let (now, then) = (
        report.present.outcome.epoch_s,
        report.present.outcome.epoch_s / gain_x,
    );
    // A smaller gain would name nearly the same time twice.
    let changes = (gain_x - 1.0).abs() >= 0.005;
    changes.then(|| {
        format!(
            "An epoch would take {}, not {}.",
            seconds(then),
            seconds(now)
        )
    })
}

/// Returns the names and values of the present setting.
pub(crate) fn setting(s: &Setting) -> Vec<(&'static str, String)> {
    let cache = match s.cache_bytes {
        0 => "none".into(),
        bytes => format!("{}, {}", self::bytes(bytes), s.form),
    };
    let jobs = match (s.jobs, s.shared) {
        (1, _) => "1".into(),
        (n, true) => format!("{n}, sharing one preparation"),
        (n, false) => format!("{n}, each preparing for itself"),
    };
    let gpu = if s.gpu_speed == 1.0 {
        "as measured".into()
    } else {
        format!("{} times as measured", number(s.gpu_speed))
    };
    vec![
        ("cache", cache),
        ("processors", number(s.cpus)),
        (
            "storage",
            s.storage_bytes_per_s.map_or("as measured".into(), rate),
        ),
        ("jobs", jobs),
        ("GPU speed", gpu),
    ]
}

/// Returns the names and values of the dataset, the pipeline and the machine.
pub(crate) fn circumstances(r: &Report) -> Vec<(&'static str, String)> {
    vec![
        ("analysed", r.command.clone()),
        ("dataset", dataset(&r.dataset)),
        ("bytes", forms(&r.dataset)),
        ("pipeline", r.pipeline.clone()),
        ("batch size", r.batch_size.to_string()),
        ("machine", machine(&r.machine)),
        ("storage", storage(&r.machine)),
        ("made", format!("{}, coprep {}", r.made, r.version)),
    ]
}

fn dataset(d: &DatasetFacts) -> String {
    let pixels = d
        .mean_pixels
        .map(|p| format!(", {} pixels each", number(p)));
    let samples = number(d.samples as f64);
    format!(
        "{}: {samples} samples{}",
        d.name,
        pixels.unwrap_or_default()
    )
}

fn forms(d: &DatasetFacts) -> String {
    if d.encoded_bytes == 0 {
        return "not known".into();
    }
    let [encoded, decoded] = [d.encoded_bytes, d.decoded_bytes].map(bytes);
    format!("{encoded} encoded, about {decoded} decoded")
}

/// Returns the file system and device of the dataset. They are known only where the dataset is a folder.
fn storage(m: &Machine) -> String {
    if m.storage.is_empty() {
        return "not known".into();
    }
    m.storage.clone()
}

fn machine(m: &Machine) -> String {
    let mut parts = vec![format!(
        "{} of {} processors",
        number(m.cpus_usable),
        m.cpus
    )];
    parts.extend(m.cpu_model.clone());
    parts.push(format!("{} of memory", bytes(m.memory_bytes)));
    parts.extend(m.kernel.as_ref().map(|k| format!("Linux {k}")));
    parts.join(", ")
}
