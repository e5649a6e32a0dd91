//! Varies one setting at a time, and finds what to change first.

use coprep_protocol::size::{argument, human};

use crate::forecast::{Bottleneck, EpochForecast, Setting};
use crate::labels;
use crate::model::Facts;
use crate::report::{Advice, ChartLine, ChartShape, Knee, Point, Series};

/// Bytes in a GiB and in a MiB.
const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;
/// Number of steps of the cache size in its chart, up to all samples cached.
const CACHES: u32 = 10;
/// Relative difference below which two epochs count as the same.
const SAME: f64 = 0.02;
/// Smallest gain that is worth a piece of advice.
const WORTH: f64 = 1.05;

/// One value of the varied setting.
struct X {
    value: f64,
    text: String,
    setting: Setting,
}

/// The present setting, and the facts to predict from when it is varied.
struct Varied<'a> {
    facts: &'a Facts,
    present: &'a Setting,
}

/// Returns the series of all settings that are worth varying with these facts.
pub(crate) fn series(facts: &Facts, present: &Setting) -> Vec<Series> {
    let varied = Varied { facts, present };
    let mut all = vec![varied.cpus(), varied.storage()];
    if facts.has_forms {
        all.insert(0, varied.cache());
    }
    if facts.job.seconds > 0.0 {
        all.push(varied.gpu());
    }
    all.push(varied.jobs());
    if facts.has_forms {
        all.push(varied.forms());
    }
    all
}

impl Varied<'_> {
    /// Predicts the points of a line. Only a line with `has_present` marks the present setting.
    fn line(&self, name: &str, mut xs: Vec<X>, has_present: bool) -> ChartLine {
        xs.sort_by(|a, b| a.value.total_cmp(&b.value));
        xs.dedup_by(|a, b| a.text == b.text);
        let point = |x: X| Point {
            x: x.value,
            x_text: x.text,
            outcome: self.facts.predict(&x.setting),
            present: has_present && x.setting == *self.present,
            measured_epoch_s: None,
        };
        ChartLine {
            name: name.into(),
            points: xs.into_iter().map(point).collect(),
        }
    }

    /// Returns the present setting with one change.
    fn with(&self, change: impl Fn(&mut Setting)) -> Setting {
        let mut setting = self.present.clone();
        change(&mut setting);
        setting
    }

    /// Returns the cache sizes to show for a form, up to the size of all samples in it.
    fn caches(&self, form: &str) -> Vec<u64> {
        let all = match form {
            "encoded" => self.facts.encoded_bytes,
            _ => self.facts.decoded_bytes,
        };
        let part = |i: u32| (all * f64::from(i) / f64::from(CACHES)) as u64;
        let mut sizes: Vec<u64> = (0..=CACHES).map(part).collect();
        // The curve bends where all samples fit in encoded form.
        sizes.push(self.facts.encoded_bytes as u64);
        sizes.retain(|&size| size as f64 <= all);
        sizes.push(self.present.cache_bytes.min(all as u64));
        sizes.sort_unstable();
        // Sizes that are nearly the same would be one point in the chart; the present one stays.
        let present = self.present.cache_bytes.min(all as u64);
        let apart = all as u64 / 50;
        sizes.retain(|&size| size == present || size.abs_diff(present) > apart);
        sizes.dedup();
        sizes
    }

    fn cache(&self) -> Series {
        let unit = if self.facts.decoded_bytes < 4.0 * GIB {
            (MIB, "MiB")
        } else {
            (GIB, "GiB")
        };
        let form = match self.present.form.as_str() {
            // Without a form, a larger cache would change nothing: show the default one.
            "off" => "auto",
            form => form,
        };
        let line = |form: &str, has_present: bool| {
            let limit = self.caches(form);
            let full = limit.last().copied().unwrap_or(0);
            let x = |bytes: u64| X {
                value: bytes as f64,
                text: labels::number(bytes as f64 / unit.0),
                setting: self.with(|s| {
                    // A cache larger than all samples is as good as one of just that size.
                    let is_present = bytes == self.present.cache_bytes.min(full);
                    s.cache_bytes = if is_present { s.cache_bytes } else { bytes };
                    s.form = if is_present && has_present {
                        s.form.clone()
                    } else {
                        form.into()
                    };
                }),
            };
            self.line(form, limit.into_iter().map(x).collect(), has_present)
        };
        let mut lines = vec![line(form, true)];
        lines.extend(
            ["encoded", "decoded"]
                .into_iter()
                .filter(|other| *other != form)
                .map(|other| line(other, false)),
        );
        Series {
            key: "cache".into(),
            title: "Cache size".into(),
            x_label: "cache".into(),
            x_unit: unit.1.into(),
            shape: ChartShape::Area,
            note: format!(
                "All samples as they are read take {}, decoded {}.",
                human(self.facts.encoded_bytes as u64),
                human(self.facts.decoded_bytes as u64)
            ),
            lines,
        }
    }

    /// Builds a series of one line, whose points differ in a number.
    fn simple(
        &self,
        key: &str,
        title: &str,
        label: (&str, &str),
        shape: ChartShape,
        note: String,
        xs: Vec<X>,
    ) -> Series {
        Series {
            key: key.into(),
            title: title.into(),
            x_label: label.0.into(),
            x_unit: label.1.into(),
            shape,
            note,
            lines: vec![self.line("", xs, true)],
        }
    }

    fn cpus(&self) -> Series {
        let most = (2.0 * self.facts.processors).max(self.present.cpus);
        let mut counts: Vec<f64> = std::iter::successors(Some(1.0), |n| Some(n * 2.0))
            .take_while(|n| *n <= most)
            .collect();
        counts.push(self.present.cpus);
        let x = |cpus: f64| X {
            value: cpus,
            text: labels::number(cpus),
            setting: self.with(|s| s.cpus = cpus),
        };
        let note =
            "Processors that prepare; beyond those of this machine, as if it had them.".into();
        let xs = counts.into_iter().map(x).collect();
        self.simple(
            "cpus",
            "Processors",
            ("processors", ""),
            ChartShape::Bars,
            note,
            xs,
        )
    }

    fn storage(&self) -> Series {
        let now = self
            .present
            .storage_bytes_per_s
            .unwrap_or(self.facts.storage);
        let factors = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0];
        // For the script's own code only the workers' waits are known, and no bytes.
        let is_in_bytes = self.facts.workers.is_none();
        let unit = if is_in_bytes { now / MIB } else { 1.0 };
        let x = |factor: f64| X {
            value: factor * unit,
            text: labels::number(factor * unit),
            setting: self.with(|s| {
                // At 1 the setting stays as it is, which makes this point the present one.
                if factor != 1.0 {
                    s.storage_bytes_per_s = Some(now * factor);
                }
            }),
        };
        let note = if !is_in_bytes {
            "How fast storage is, as a multiple of now: what workers wait, off the processor, counts as waiting for it."
        } else if self.facts.is_in_page_cache && self.present.storage_bytes_per_s.is_none() {
            "Now the whole dataset lies in the kernel's page cache: the other bars are for a dataset that does not."
        } else {
            ""
        };
        let axis = if is_in_bytes {
            ("bandwidth", "MiB/s")
        } else {
            ("speed", "×")
        };
        let xs = factors.into_iter().map(x).collect();
        self.simple(
            "storage",
            "Storage",
            axis,
            ChartShape::Bars,
            note.into(),
            xs,
        )
    }

    fn gpu(&self) -> Series {
        let x = |speed: f64| X {
            value: speed,
            text: format!("{}", speed),
            setting: self.with(|s| s.gpu_speed = speed),
        };
        let xs = [0.5, 1.0, 2.0, 4.0, 8.0].into_iter().map(x).collect();
        let note = "How fast the job's own work is, as a multiple of now.".into();
        self.simple(
            "gpu",
            "Speed of the job",
            ("speed", "×"),
            ChartShape::Bars,
            note,
            xs,
        )
    }

    fn jobs(&self) -> Series {
        let mut counts = vec![1, 2, 4, 8, 16];
        counts.push(self.present.jobs);
        let line = |name: &str, shared: bool| {
            let x = |&jobs: &u32| X {
                value: jobs.into(),
                text: jobs.to_string(),
                setting: self.with(|s| (s.jobs, s.shared) = (jobs, shared)),
            };
            self.line(
                name,
                counts.iter().map(x).collect(),
                shared == self.present.shared,
            )
        };
        Series {
            key: "jobs".into(),
            title: "Jobs at the same time".into(),
            x_label: "jobs".into(),
            x_unit: String::new(),
            shape: ChartShape::Lines,
            note: "Each job has its own model; without sharing each prepares for itself, and they divide the cache.".into(),
            lines: vec![line("sharing", true), line("not sharing", false)],
        }
    }

    fn forms(&self) -> Series {
        let x = |(number, form): (usize, &str)| X {
            value: number as f64,
            text: form.into(),
            setting: self.with(|s| s.form = form.into()),
        };
        let xs = ["off", "encoded", "decoded", "auto"]
            .into_iter()
            .enumerate()
            .map(x)
            .collect();
        let note = "The form in which samples are cached, with the present cache size.".into();
        self.simple(
            "form",
            "Form of cached samples",
            ("form", ""),
            ChartShape::Bars,
            note,
            xs,
        )
    }
}

/// Returns the smallest cache with which an epoch is as short as with any, unless even no cache is as good.
pub(crate) fn knee(facts: &Facts, present: &Setting) -> Option<Knee> {
    if !facts.has_forms {
        return None;
    }
    let with = |bytes: f64| {
        let setting = Setting {
            cache_bytes: bytes as u64,
            form: if present.form == "off" {
                "auto".into()
            } else {
                present.form.clone()
            },
            ..present.clone()
        };
        facts.predict(&setting)
    };
    let (none, all) = (
        with(0.0),
        with(facts.decoded_bytes.max(facts.encoded_bytes)),
    );
    // Not even the largest cache makes a difference.
    if none.epoch_s <= all.epoch_s * (1.0 + SAME) {
        return None;
    }
    let (mut low, mut high) = (0.0, facts.decoded_bytes.max(facts.encoded_bytes));
    // Bisection, to a precision of one part in 256.
    while high - low > high / 256.0 {
        let middle = (low + high) / 2.0;
        if with(middle).epoch_s <= all.epoch_s * (1.0 + SAME) {
            high = middle
        } else {
            low = middle
        }
    }
    let why = format!(
        "With {} an epoch takes {}, limited by {}; more cache does not make it shorter.",
        human(high as u64),
        labels::seconds(all.epoch_s),
        limit(&all)
    );
    Some(Knee {
        cache_bytes: high as u64,
        why,
    })
}

fn limit(outcome: &EpochForecast) -> &'static str {
    match outcome.bottleneck {
        Bottleneck::Storage => "storage",
        Bottleneck::Processors => "the processors",
        Bottleneck::Job => "the job's own work",
    }
}

/// Returns the advice, the most useful first.
pub(crate) fn advice(facts: &Facts, present: &Setting) -> Vec<Advice> {
    let now = facts.predict(present);
    let with = |change: &dyn Fn(&mut Setting)| {
        let mut setting = present.clone();
        change(&mut setting);
        facts.predict(&setting)
    };
    let mut all = Vec::new();
    let mut offer = |outcome: EpochForecast, headline: String, detail: String| {
        all.push(Advice {
            gain_x: now.epoch_s / outcome.epoch_s.max(f64::MIN_POSITIVE),
            headline,
            detail,
        });
    };
    if !present.shared && present.jobs > 1 {
        offer(
            with(&|s| s.shared = true),
            "Let the jobs share one preparation".into(),
            "Give all of them the same pipeline with coprep: each sample is then fetched and prepared once for all.".into(),
        );
    }
    if let Some(knee) = knee(facts, present)
        && knee.cache_bytes > present.cache_bytes
    {
        offer(
            with(&|s| {
                s.cache_bytes = knee.cache_bytes;
                if s.form == "off" {
                    s.form = "auto".into();
                }
            }),
            format!("A cache of {}", human(knee.cache_bytes)),
            format!(
                "`coprep serve --cache {}`. {}",
                argument(knee.cache_bytes),
                knee.why
            ),
        );
    }
    if facts.has_forms && present.form != "auto" && present.cache_bytes > 0 {
        offer(
            with(&|s| s.form = "auto".into()),
            "Let coprep choose the form of each cached sample".into(),
            "`cache=\"auto\"`, the default: each sample lies in the form that saves most for its bytes.".into(),
        );
    }
    if present.cpus < facts.processors {
        offer(
            with(&|s| s.cpus = facts.processors),
            format!(
                "All {} processors for preparing",
                labels::number(facts.processors)
            ),
            "`coprep serve --cpus N`; the jobs must not need them for themselves.".into(),
        );
    }
    offer(
        with(&|s| s.cpus *= 2.0),
        "Twice the processors".into(),
        "A machine with more of them, or less work for each sample: smaller images in storage."
            .into(),
    );
    if !facts.is_in_page_cache || present.storage_bytes_per_s.is_some() {
        let now = present.storage_bytes_per_s.unwrap_or(facts.storage);
        offer(
            with(&|s| s.storage_bytes_per_s = Some(2.0 * now)),
            "Storage that is twice as fast".into(),
            match facts.workers {
                None => format!("Now it gives {} a second.", human(now as u64)),
                Some(workers) => format!(
                    "Now a worker waits {} for a sample; more workers (num_workers) hide waiting too.",
                    labels::seconds(workers.waits)
                ),
            },
        );
    }
    all.retain(|advice| advice.gain_x >= WORTH);
    all.sort_by(|a, b| b.gain_x.total_cmp(&a.gain_x));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::chart;
    use crate::model::tests::{facts, setting};

    #[test]
    fn each_series_has_the_present_setting_once_and_is_in_order() {
        for cache_bytes in [0, 50_000_000, 400_000_000, 1 << 40] {
            for form in ["off", "auto", "encoded", "decoded"] {
                let present = Setting {
                    cache_bytes,
                    form: form.into(),
                    jobs: 3,
                    ..setting()
                };
                for series in series(&facts(), &present) {
                    let marked = series.points().filter(|p| p.present);
                    let marked: Vec<f64> = marked.map(|p| p.outcome.epoch_s).collect();
                    assert_eq!(
                        marked,
                        [facts().predict(&present).epoch_s],
                        "{}, {cache_bytes} {form}",
                        series.key
                    );
                    for line in &series.lines {
                        assert!(line.points.is_sorted_by_key(|p| p.x), "{}", series.key);
                    }
                }
            }
        }
    }

    #[test]
    fn charts_have_room_for_the_names_of_their_lines() {
        for series in series(&facts(), &setting()) {
            let drawn = chart(&series, None);
            assert!(!drawn.contains('…'), "{drawn}");
        }
    }

    #[test]
    fn the_knee_is_where_storage_no_longer_counts() {
        let present = Setting {
            form: "encoded".into(),
            ..setting()
        };
        let knee = knee(&facts(), &present).map(|k| k.cache_bytes as f64);
        // Beyond 80 MB of 100, processors take longer than storage.
        assert!((7.5e7..8.5e7).contains(&knee.unwrap_or(0.0)), "{knee:?}");
    }

    #[test]
    fn advice_is_what_removes_the_bottleneck() {
        let all = advice(&facts(), &setting());
        assert!(all[0].headline.starts_with("A cache of"), "{all:?}");
        let size = all[0].detail.strip_prefix("`coprep serve --cache ");
        let (size, _) = size.and_then(|rest| rest.split_once("`. ")).unwrap();
        assert!(size.ends_with('M') && size.len() <= "76.3M".len(), "{size}");
        assert!(all.is_sorted_by(|a, b| a.gain_x >= b.gain_x));
        let enough = Setting {
            gpu_speed: 0.01,
            ..setting()
        };
        assert_eq!(
            advice(&facts(), &enough),
            [],
            "the job is what takes longest"
        );
    }
}
