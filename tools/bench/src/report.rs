//! The results, as JSON and for a terminal of 80 columns.

use coprep_terminal::{number, wrapped};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::torch::Python;

/// Version of the JSON format. It is raised when an older reader would misread the new one.
pub(crate) const FORMAT: u32 = 1;

/// A loader to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum BenchedLoader {
    /// coprep from files, without a cache.
    #[serde(rename = "coprep")]
    Coprep,
    /// coprep with all samples cached as they are read.
    #[serde(rename = "coprep encoded")]
    Encoded,
    /// coprep with all samples cached decoded.
    #[serde(rename = "coprep decoded")]
    Decoded,
    #[serde(rename = "pytorch")]
    Torch,
}

impl BenchedLoader {
    pub(crate) fn name(self) -> &'static str {
        match self {
            BenchedLoader::Coprep => "coprep, no cache",
            BenchedLoader::Encoded => "coprep, cached encoded",
            BenchedLoader::Decoded => "coprep, cached decoded",
            BenchedLoader::Torch => "PyTorch DataLoader",
        }
    }
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    pub(crate) format: u32,
    pub(crate) version: String,
    pub(crate) folder: String,
    /// Samples that were used, evenly drawn from all.
    pub(crate) samples: u32,
    pub(crate) of_samples: u32,
    pub(crate) pipeline: String,
    pub(crate) batch_size: u32,
    /// Processors of each loader.
    pub(crate) cpus: u32,
    pub(crate) jobs: u32,
    /// Seconds of each measurement.
    pub(crate) seconds: f64,
    /// The Python that was compared. `None` if there was none.
    pub(crate) pytorch: Option<Python>,
    pub(crate) rows: Vec<BenchRow>,
    /// Notes on failed or disturbed measurements.
    pub(crate) notes: Vec<String>,
}

/// One loader with this number of jobs at the same time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BenchRow {
    pub(crate) loader: BenchedLoader,
    pub(crate) jobs: u32,
    /// Images delivered per second to all jobs together.
    pub(crate) images_per_s: f64,
    pub(crate) images_per_s_per_job: f64,
    /// The same divided by PyTorch's rate with equally many jobs.
    pub(crate) times_pytorch: Option<f64>,
    /// Processor seconds per 1,000 delivered images, the jobs' own included.
    pub(crate) cpu_s_per_1000: f64,
}

impl BenchReport {
    /// Compares each row with PyTorch's.
    pub(crate) fn compare(&mut self) {
        let rates: Vec<Option<f64>> = self
            .rows
            .iter()
            .map(|row| self.rate(BenchedLoader::Torch, row.jobs))
            .collect();
        for (row, rate) in self.rows.iter_mut().zip(rates) {
            row.times_pytorch = rate.map(|rate| row.images_per_s / rate);
        }
    }

    fn row(&self, loader: BenchedLoader, jobs: u32) -> Option<&BenchRow> {
        self.rows
            .iter()
            .find(|row| (row.loader, row.jobs) == (loader, jobs))
    }

    fn rate(&self, loader: BenchedLoader, jobs: u32) -> Option<f64> {
        self.row(loader, jobs).map(|row| row.images_per_s)
    }

    /// Returns the result in words.
    fn answer(&self) -> String {
        let Some(row) = self.row(BenchedLoader::Coprep, self.jobs) else {
            return "coprep could not be measured with all jobs.".into();
        };
        let jobs = match self.jobs {
            1 => "one job".into(),
            n => format!("{n} jobs"),
        };
        let mut text = format!(
            "With {jobs} coprep delivers {} images/s here",
            number(row.images_per_s)
        );
        if let Some(times) = row.times_pytorch {
            text += &format!(", {} times what PyTorch's DataLoader does", factor(times));
        }
        if let Some(rate) = self.rate(BenchedLoader::Decoded, self.jobs) {
            text += &format!("; {} with all samples cached decoded", number(rate));
        }
        text + "."
    }

    /// Describes the measurement.
    fn how(&self) -> String {
        let torch = self.pytorch.as_ref().map(|found| {
            let v = &found.versions;
            let (torch, vision, pillow) = (&v.torch, &v.torchvision, &v.pillow);
            format!(" torch {torch}, torchvision {vision}, Pillow {pillow}.")
        });
        format!(
            "{} of {} samples of {}, from the page cache; {}; batches of {}; {} processors; {} s each.{}",
            number(self.samples.into()),
            number(self.of_samples.into()),
            self.folder,
            self.pipeline,
            self.batch_size,
            self.cpus,
            number(self.seconds),
            torch.unwrap_or_default()
        )
    }
}

/// Formats a factor: `4.5`, `13`.
fn factor(x: f64) -> String {
    // From 9.95 on, a decimal would give a third digit.
    let digits = if x < 9.95 { 1 } else { 0 };
    format!("{x:.digits$}")
}

const HEADER: [&str; 6] = [
    "loader",
    "jobs",
    "images/s",
    "per job",
    "x PyTorch",
    "CPU s/1,000",
];

/// Renders the report for a terminal, with colours or without.
pub fn render(report: &BenchReport, coloured: bool) -> String {
    let bold = |text: &str| {
        if coloured {
            format!("\x1b[1m{}\x1b[0m\n", text.trim_end())
        } else {
            format!("{}\n", text.trim_end())
        }
    };
    let mut table = table(report).into_iter();
    let header = table.next().map(|line| bold(&line)).unwrap_or_default();
    let rows: String = table.map(|line| line + "\n").collect();
    let notes: String = report.notes.iter().map(|note| wrapped(note, 0)).collect();
    let parts = [
        bold(&wrapped(&report.answer(), 0)),
        header + &rows,
        notes,
        wrapped(&report.how(), 0),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty()).collect();
    parts.join("\n")
}

/// Formats the table's lines. The first column is aligned to the left, the others to the right.
fn table(report: &BenchReport) -> Vec<String> {
    let mut lines = vec![HEADER.map(String::from)];
    lines.extend(report.rows.iter().map(cells));
    let width = |column: usize| lines.iter().map(|line| line[column].width()).max();
    let widths = [0, 1, 2, 3, 4, 5].map(|column| width(column).unwrap_or(0));
    let line = |cells: &[String; 6]| {
        let [first, others @ ..] = cells;
        let mut text = format!("{first:<w$}", w = widths[0]);
        for (cell, w) in others.iter().zip(&widths[1..]) {
            text += &format!("  {cell:>w$}");
        }
        text
    };
    lines.iter().map(line).collect()
}

fn cells(row: &BenchRow) -> [String; 6] {
    [
        row.loader.name().into(),
        row.jobs.to_string(),
        number(row.images_per_s),
        number(row.images_per_s_per_job),
        row.times_pytorch.map_or("-".into(), factor),
        number(row.cpu_s_per_1000),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::torch::Versions;

    fn row(loader: BenchedLoader, jobs: u32, rate: f64) -> BenchRow {
        BenchRow {
            loader,
            jobs,
            images_per_s: rate,
            images_per_s_per_job: rate / f64::from(jobs),
            times_pytorch: None,
            cpu_s_per_1000: 1.7,
        }
    }

    fn report() -> BenchReport {
        let python = Python {
            python: PathBuf::from("/venv/bin/python"),
            versions: Versions {
                torch: "2.9".into(),
                torchvision: "0.24".into(),
                pillow: "12.0".into(),
            },
        };
        let mut report = BenchReport {
            format: FORMAT,
            version: "0.1.0".into(),
            folder: "/data/photos".into(),
            samples: 2400,
            of_samples: 50_000,
            pipeline: "decode > random_resized_crop(224, 224)".into(),
            batch_size: 64,
            cpus: 2,
            jobs: 4,
            seconds: 5.0,
            pytorch: Some(python),
            rows: vec![
                row(BenchedLoader::Coprep, 1, 1100.0),
                row(BenchedLoader::Coprep, 4, 4321.0),
                row(BenchedLoader::Decoded, 4, 123_456.0),
                row(BenchedLoader::Torch, 1, 275.0),
                row(BenchedLoader::Torch, 4, 300.0),
            ],
            notes: Vec::new(),
        };
        report.compare();
        report
    }

    #[test]
    fn rows_are_compared_with_as_many_jobs_of_pytorch() {
        let report = report();
        let times = |i: usize| report.rows[i].times_pytorch.map(factor);
        assert_eq!(times(0).as_deref(), Some("4.0"));
        assert_eq!(times(1).as_deref(), Some("14"));
        assert_eq!(times(3).as_deref(), Some("1.0"));
    }

    #[test]
    fn the_answer_comes_first() {
        let expected = "With 4 jobs coprep delivers 4,321 images/s here, 14 times what PyTorch's\n\
                        DataLoader does; 123,456 with all samples cached decoded.\n";
        let text = render(&report(), false);
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn nothing_is_wider_than_a_terminal() {
        let text = render(&report(), false);
        assert!(text.lines().all(|line| line.width() <= 80), "{text}");
        assert!(render(&report(), true).starts_with("\x1b[1mWith"));
    }

    #[test]
    fn the_table_has_a_line_for_each_row() {
        let lines = table(&report());
        assert_eq!(
            lines[0],
            "loader                  jobs  images/s  per job  x PyTorch  CPU s/1,000"
        );
        assert_eq!(
            lines[2],
            "coprep, no cache           4     4,321    1,080         14          1.7"
        );
    }

    #[test]
    fn without_pytorch_there_is_no_comparison() {
        let mut report = report();
        report.rows.retain(|row| row.loader != BenchedLoader::Torch);
        report.pytorch = None;
        report.notes = vec!["No Python has it.".into()];
        report.compare();
        let text = render(&report, false);
        assert!(
            !text.contains("times what") && text.contains("No Python has it."),
            "{text}"
        );
        assert!(report.rows.iter().all(|row| row.times_pytorch.is_none()));
    }
}
