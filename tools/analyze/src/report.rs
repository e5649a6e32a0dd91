//! The results of `coprep analyze`: measurements and predictions. Renderings show them as they are, and compute
//! nothing.
//!
//! Numbers are finite and not negative. [`Report::check`] checks the other invariants.

use serde::{Deserialize, Serialize};

use crate::forecast::{EpochForecast, Setting};
use crate::model::Facts;

/// Version of the JSON format. It is raised when an older reader would misread the new one.
pub(crate) const FORMAT: u32 = 1;

/// Start of the HTML element that holds the report in a page.
pub(crate) const EMBEDDED: &str = r#"<script type="application/json" id="report">"#;

/// A report: all that is shown, and the facts it is drawn from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format: [`FORMAT`].
    pub(crate) format: u32,
    /// Version of coprep that made the report.
    pub(crate) version: String,
    /// Time of the measurement, as in RFC 3339.
    pub(crate) made: String,
    /// The analysed script with its arguments, or the analysed folder.
    pub(crate) command: String,
    pub(crate) machine: Machine,
    pub(crate) dataset: DatasetFacts,
    /// Operators of the pipeline, as `coprep status` shows them.
    pub(crate) pipeline: String,
    /// Samples of a batch.
    pub(crate) batch_size: u32,
    pub(crate) measured: Vec<MeasuredNumber>,
    pub(crate) present: CurrentState,
    /// Predicted epochs, with one setting varied in each series.
    pub(crate) series: Vec<Series>,
    /// The cache size beyond which more does not help, if it is within the dataset's size.
    pub(crate) knee: Option<Knee>,
    /// Changes to make, the most useful first.
    pub(crate) advice: Vec<Advice>,
    /// Reasons to doubt the numbers.
    pub(crate) warnings: Vec<String>,
    /// The facts behind the predictions, from which `--again` predicts anew.
    pub(crate) facts: Option<Facts>,
}

/// The machine of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Processors of the machine.
    pub(crate) cpus: u32,
    /// Processors that this process may use, after affinity and control groups.
    pub(crate) cpus_usable: f64,
    /// Bytes of memory that this process may use.
    pub(crate) memory_bytes: u64,
    /// Release of the kernel.
    pub(crate) kernel: Option<String>,
    pub(crate) cpu_model: Option<String>,
    /// Place of the dataset, such as "ext4 on nvme0n1".
    pub(crate) storage: String,
}

/// Number and size of the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DatasetFacts {
    pub(crate) name: String,
    pub(crate) samples: u64,
    /// Bytes of all samples as they are in storage; 0 if unknown.
    pub(crate) encoded_bytes: u64,
    /// Bytes of all samples decoded, estimated from a part of them; 0 if unknown.
    pub(crate) decoded_bytes: u64,
    /// Mean pixels of a sample, for images only.
    pub(crate) mean_pixels: Option<f64>,
}

/// One measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredNumber {
    /// Name for programs, the same from version to version, such as `ingestion_rate`.
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Unit of the value. `s`, `bytes` and `bytes/s` are scaled to a unit that fits; any other, such as `samples/s`, is
    /// not.
    pub(crate) unit: String,
    /// Median absolute deviation over the repetitions, in `unit`.
    pub(crate) spread: Option<f64>,
    /// The way of measuring, in one sentence.
    pub(crate) how: String,
}

/// The present setting and its epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CurrentState {
    pub(crate) setting: Setting,
    pub(crate) outcome: EpochForecast,
}

/// Epochs over one varied setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Name of the varied setting: `cache`, `cpus`, `storage`, `gpu`, `jobs`, `form`.
    pub(crate) key: String,
    /// Title, such as "Cache size".
    pub(crate) title: String,
    /// Label of the axis, such as "cache".
    pub(crate) x_label: String,
    /// Unit of `x_text`, such as "GiB"; may be empty.
    pub(crate) x_unit: String,
    pub(crate) shape: ChartShape,
    /// A sentence about the chart; may be empty.
    pub(crate) note: String,
    /// The first line is drawn in `shape`. Others are drawn as lines over it, for comparison.
    pub(crate) lines: Vec<ChartLine>,
}

/// Shape of a chart's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChartShape {
    /// Stacked areas over a scaled axis.
    Area,
    /// Stacked bars at even distances.
    Bars,
    /// Lines of whole epochs over a scaled axis.
    Lines,
}

/// Points of a chart, in ascending order of x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChartLine {
    /// Name, such as "shared", shown if a series has several lines.
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

/// A setting that differs from the present one in x alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Bytes, bytes per second, a count or a factor; 0, 1, 2, ... for values that only have names (forms).
    pub(crate) x: f64,
    /// The same in `x_unit`, without the unit, such as "8".
    pub(crate) x_text: String,
    pub(crate) outcome: EpochForecast,
    /// `true` if this is the present setting. True for exactly one point of a series.
    pub(crate) present: bool,
    /// Seconds of a real epoch with this setting.
    pub(crate) measured_epoch_s: Option<f64>,
}

/// The cache size beyond which more does not help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Knee {
    pub(crate) cache_bytes: u64,
    /// The reason, in one sentence.
    pub(crate) why: String,
}

/// A change to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Advice {
    /// The change, in a few words without a full stop.
    pub(crate) headline: String,
    /// The way to do it, and why it helps.
    pub(crate) detail: String,
    /// Seconds of an epoch now, divided by its seconds after the change.
    pub(crate) gain_x: f64,
}

impl Series {
    pub(crate) fn points(&self) -> impl Iterator<Item = &Point> {
        self.lines.iter().flat_map(|line| &line.points)
    }

    /// Returns the seconds of the longest epoch, predicted or real.
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
    /// Reads a report from JSON, or from a page that holds it.
    ///
    /// # Errors
    /// Returns a sentence about the first mistake in the text.
    pub fn read(text: &str) -> Result<Report, String> {
        // A page holds the report in one element. Any other text must be the JSON itself.
        let json = text
            .split_once(EMBEDDED)
            .and_then(|(_, rest)| rest.split_once("</script>"))
            .map_or(text, |(json, _)| json);
        // First the format: a report in another one would fail with a less useful message.
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

    /// Checks that parts add up to epochs, and that each series has its points in order, exactly one of them present.
    ///
    /// # Errors
    /// Returns a sentence about the first violation.
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

/// The part of a report that is read first, since the rest may differ in another format.
#[derive(Deserialize)]
struct Head {
    format: u32,
}
