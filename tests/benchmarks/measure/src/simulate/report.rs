//! Tables, and limits that the results must meet.

#[derive(Default)]
pub(crate) struct Report {
    missed: Vec<String>,
}

impl Report {
    pub(crate) fn table(&mut self, title: &str, columns: &[&str]) {
        println!(
            "\n### {title}\n\n| {} |\n|{}",
            columns.join(" | "),
            "---|".repeat(columns.len())
        );
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        println!("| {} |", cells.join(" | "));
    }

    pub(crate) fn at_least(&mut self, what: &str, value: f64, bar: f64) {
        if value.is_nan() || value < bar {
            self.missed
                .push(format!("{what}: {value:.3}, and it must be at least {bar}"));
        }
    }

    pub(crate) fn at_most(&mut self, what: &str, value: f64, bar: f64) {
        if value.is_nan() || value > bar {
            self.missed
                .push(format!("{what}: {value:.3}, and it must be at most {bar}"));
        }
    }

    pub(crate) fn end(self) -> std::process::ExitCode {
        println!();
        for missed in &self.missed {
            println!("MISSED: {missed}");
        }
        if self.missed.is_empty() {
            println!("Every bar is met.");
        }
        u8::from(!self.missed.is_empty()).into()
    }
}

pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .into_iter()
        .fold((0.0, 0), |(sum, count), v| (sum + v, count + 1));
    sum / f64::from(count)
}

pub(crate) fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

pub(crate) fn most(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}
