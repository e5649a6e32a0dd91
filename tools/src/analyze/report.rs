//! What `coprep analyze` measured and predicts. Renderings take it as it is, and compute nothing of their own.
//!
//! Numbers are finite and not negative. [`Report::check`] says what else holds.

use serde::{Deserialize, Serialize};

use super::model::Facts;

/// Format of the JSON: raised when a reader of the one before would misread it.
pub(crate) const FORMAT: u32 = 1;

/// The element of a page in which its report lies.
pub(crate) const EMBEDDED: &str = r#"<script type="application/json" id="report">"#;

/// Everything that is shown, and the numbers it is drawn from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// Version of coprep that made it.
    pub(crate) version: String,
    /// When, RFC 3339.
    pub(crate) made: String,
    /// What was analysed: a script with its arguments, or a folder.
    pub(crate) command: String,
    pub(crate) machine: Machine,
    pub(crate) dataset: DatasetFacts,
    /// Operators, as `coprep status` writes them.
    pub(crate) pipeline: String,
    /// Samples.
    pub(crate) batch_size: u32,
    pub(crate) measured: Vec<MeasuredNumber>,
    pub(crate) present: CurrentState,
    /// What an epoch would take if one thing were different.
    pub(crate) series: Vec<Series>,
    /// Where more cache stops to help, if it does within the dataset's size.
    pub(crate) knee: Option<Knee>,
    /// What to change, the best first.
    pub(crate) advice: Vec<Advice>,
    /// What makes the numbers doubtful.
    pub(crate) warnings: Vec<String>,
    /// What the predictions are made from, to predict again.
    pub(crate) facts: Option<Facts>,
}

/// Where it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Processors of the machine.
    pub(crate) cpus: u32,
    /// Processors that this process may use, after affinity and control groups.
    pub(crate) cpus_usable: f64,
    /// Memory that this process may use.
    pub(crate) memory_bytes: u64,
    /// Release of the kernel.
    pub(crate) kernel: Option<String>,
    pub(crate) cpu_model: Option<String>,
    /// Where the dataset lies, such as "ext4 on nvme0n1".
    pub(crate) storage: String,
}

/// What the samples are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DatasetFacts {
    pub(crate) name: String,
    pub(crate) samples: u64,
    /// All samples as they lie in storage; 0 if that is not known.
    pub(crate) encoded_bytes: u64,
    /// All samples decoded: estimated from those looked at; 0 if that is not known.
    pub(crate) decoded_bytes: u64,
    /// Pixels of a sample, the mean; of images only.
    pub(crate) mean_pixels: Option<f64>,
}

/// One measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredNumber {
    /// Stays the same from version to version, such as `ingestion_rate`.
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    /// `s`, `bytes`, `bytes/s` are shown in the unit that fits; any other (`samples/s`, `CPUs`) as it is.
    pub(crate) unit: String,
    /// Median absolute deviation over the repetitions, in `unit`.
    pub(crate) spread: Option<f64>,
    /// One sentence.
    pub(crate) how: String,
}

/// How things are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CurrentState {
    pub(crate) setting: Setting,
    pub(crate) outcome: EpochForecast,
}

/// What can be different.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// Bytes the caches may take; 0: none.
    pub(crate) cache_bytes: u64,
    /// Processors that prepare.
    pub(crate) cpus: f64,
    /// Bytes per second; none: as measured.
    pub(crate) storage_bytes_per_s: Option<f64>,
    /// Jobs at the same time.
    pub(crate) jobs: u32,
    /// Whether they share one preparation.
    pub(crate) shared: bool,
    /// Form of cached samples: `off`, `encoded`, `decoded`, `prepared`, `auto`.
    pub(crate) form: String,
    /// Speed of the job's own work: 1 as measured, 2 twice as fast.
    pub(crate) gpu_speed: f64,
}

/// What an epoch of one job takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EpochForecast {
    /// Seconds of an epoch: the sum of the three parts.
    pub(crate) epoch_s: f64,
    /// Samples per second that one job takes.
    pub(crate) samples_per_s: f64,
    /// Seconds in which the job does its own work.
    pub(crate) compute_s: f64,
    /// Seconds in which it waits for storage.
    pub(crate) fetch_stall_s: f64,
    /// Seconds in which it waits for decode and operators.
    pub(crate) prep_stall_s: f64,
    /// What an epoch would be shorter with more of.
    pub(crate) bottleneck: Bottleneck,
}

/// What holds an epoch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bottleneck {
    Storage,
    Processors,
    Job,
}

/// Part of an epoch, in the order in which they are stacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EpochPart {
    Compute,
    FetchStall,
    PrepStall,
}

/// Epochs over one varied thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    /// What is varied: `cache`, `cpus`, `storage`, `gpu`, `jobs`, `form`.
    pub(crate) key: String,
    /// Such as "Cache size".
    pub(crate) title: String,
    /// Such as "cache".
    pub(crate) x_label: String,
    /// Unit of `x_text`, such as "GiB"; may be empty.
    pub(crate) x_unit: String,
    pub(crate) shape: ChartShape,
    /// What to see here, in a sentence; may be empty.
    pub(crate) note: String,
    /// The first is drawn in `shape`; others, for comparison, as lines over it.
    pub(crate) lines: Vec<ChartLine>,
}

/// How a chart shows its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChartShape {
    /// Stacked areas, x to scale.
    Area,
    /// Stacked bars, evenly spaced.
    Bars,
    /// Lines of the whole epoch, x to scale.
    Lines,
}

/// Points in ascending order of x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChartLine {
    /// Such as "shared"; shown where a series has several lines.
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

/// One setting that differs from the present one in x alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Bytes, bytes per second, a count, a factor; of what has names only (forms): 0, 1, 2, ...
    pub(crate) x: f64,
    /// The same in `x_unit`, without the unit: "8".
    pub(crate) x_text: String,
    pub(crate) outcome: EpochForecast,
    /// Whether this is the present setting: so for exactly one point of a series.
    pub(crate) present: bool,
    /// Seconds of an epoch that was run with this setting.
    pub(crate) measured_epoch_s: Option<f64>,
}

/// The cache size beyond which more does not help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Knee {
    pub(crate) cache_bytes: u64,
    /// One sentence.
    pub(crate) why: String,
}

/// One thing to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Advice {
    /// What to do, a few words without a full stop.
    pub(crate) headline: String,
    /// How, and why it helps.
    pub(crate) detail: String,
    /// Seconds of an epoch now over seconds then.
    pub(crate) gain_x: f64,
}

impl EpochPart {
    pub(crate) const ALL: [EpochPart; 3] = [
        EpochPart::Compute,
        EpochPart::FetchStall,
        EpochPart::PrepStall,
    ];
}

impl EpochForecast {
    /// Seconds of this part.
    pub(crate) fn of(&self, part: EpochPart) -> f64 {
        match part {
            EpochPart::Compute => self.compute_s,
            EpochPart::FetchStall => self.fetch_stall_s,
            EpochPart::PrepStall => self.prep_stall_s,
        }
    }

    /// From and to how many seconds each part reaches when they are stacked.
    pub(crate) fn stack(&self) -> [(EpochPart, f64, f64); 3] {
        let mut from = 0.0;
        EpochPart::ALL.map(|part| {
            let bottom = from;
            from += self.of(part);
            (part, bottom, from)
        })
    }

    fn check(&self) -> Result<(), String> {
        let numbers = [
            self.epoch_s,
            self.samples_per_s,
            self.compute_s,
            self.fetch_stall_s,
            self.prep_stall_s,
        ];
        if !numbers.iter().all(|n| n.is_finite() && *n >= 0.0) {
            return Err("a number is negative or not finite".into());
        }
        let sum: f64 = EpochPart::ALL.iter().map(|part| self.of(*part)).sum();
        if (sum - self.epoch_s).abs() > 1e-3 * self.epoch_s.max(1e-6) {
            return Err(format!(
                "its parts are {sum} s together, and epoch_s is {}",
                self.epoch_s
            ));
        }
        Ok(())
    }
}

impl Series {
    pub(crate) fn points(&self) -> impl Iterator<Item = &Point> {
        self.lines.iter().flat_map(|line| &line.points)
    }

    /// Seconds of the longest epoch, predicted or run.
    pub(crate) fn highest_s(&self) -> f64 {
        self.points()
            .flat_map(|p| [p.outcome.epoch_s, p.measured_epoch_s.unwrap_or(0.0)])
            .fold(0.0, f64::max)
    }

    fn check(&self) -> Result<(), String> {
        if self.lines.first().is_none_or(|line| line.points.is_empty()) {
            return Err("it has no points".into());
        }
        let present = self.points().filter(|p| p.present).count();
        if present != 1 {
            return Err(format!("{present} points are the present one, not 1"));
        }
        if !self
            .lines
            .iter()
            .all(|l| l.points.is_sorted_by_key(|p| p.x))
        {
            return Err("points are not in the order of x".into());
        }
        self.points().try_for_each(Point::check)
    }
}

impl Point {
    fn check(&self) -> Result<(), String> {
        let measured = self.measured_epoch_s.unwrap_or(0.0);
        if !(self.x.is_finite() && measured.is_finite() && measured >= 0.0) {
            return Err(format!(
                "{}: a number is negative or not finite",
                self.x_text
            ));
        }
        self.outcome
            .check()
            .map_err(|e| format!("{}: {e}", self.x_text))
    }
}

impl Report {
    /// Reads the JSON of a report, or a page that holds it.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the text.
    pub(crate) fn read(text: &str) -> Result<Report, String> {
        let json = text
            .split_once(EMBEDDED)
            .and_then(|(_, rest)| rest.split_once("</script>"))
            .map_or(text, |(json, _)| json);
        let head: Head = serde_json::from_str(json).map_err(|e| format!("not a report: {e}"))?;
        if head.format != FORMAT {
            return Err(format!(
                "its format is {}, and this version of coprep reads {FORMAT}: analyse anew",
                head.format
            ));
        }
        let report: Report =
            serde_json::from_str(json).map_err(|e| format!("not a report: {e}"))?;
        report.check()?;
        Ok(report)
    }

    /// Parts add up to epochs, and each series has points in order, of which exactly one is the present one.
    ///
    /// # Errors
    /// A sentence that says where it is not so.
    pub(crate) fn check(&self) -> Result<(), String> {
        let present = &self.present.outcome;
        present.check().map_err(|e| format!("present: {e}"))?;
        for series in &self.series {
            series
                .check()
                .map_err(|e| format!("series {}: {e}", series.key))?;
        }
        match self
            .advice
            .iter()
            .find(|a| !(a.gain_x.is_finite() && a.gain_x > 0.0))
        {
            Some(advice) => Err(format!(
                "advice {:?}: gain_x is {}",
                advice.headline, advice.gain_x
            )),
            None => Ok(()),
        }
    }
}

/// What is read first: the rest may differ in another format.
#[derive(Deserialize)]
struct Head {
    format: u32,
}
