//! Formats numbers in few columns.

/// Formats a count in at most five columns: `9999`, `12.3k`, `4.5M`.
pub(crate) fn count(n: f64) -> String {
    let n = n.max(0.0);
    let unit = [(1e4, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")]
        .into_iter()
        // The rounded number decides, since it is the one that must fit.
        .find(|(below, ..)| n.round() < *below);
    let (_, unit, sign) = unit.unwrap_or((f64::INFINITY, 1e9, "G"));
    if unit == 1.0 {
        format!("{n:.0}")
    } else if n / unit >= 99.95 {
        format!("{:.0}{sign}", n / unit)
    } else {
        format!("{:.1}{sign}", n / unit)
    }
}

/// Formats a rate per second, with a decimal if it is small, or `-` if it is unknown.
pub(crate) fn rate(n: Option<f64>) -> String {
    match n {
        None => "-".into(),
        Some(n) if n > 0.0 && n < 99.95 => format!("{n:.1}"),
        Some(n) => count(n),
    }
}

/// Formats a share: `12%`. A share above zero that would round to zero is `<1%`.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p > 0.0 && p < 0.5 => "<1%".into(),
        p => format!("{p:.0}%"),
    }
}

/// Formats a share factor, or `-` if it is unknown.
pub(crate) fn factor(share: Option<f64>) -> String {
    share.map_or("-".into(), |s| format!("{s:.2}"))
}

/// Formats a time: `0.2s`, `59s`, `3m`, `2h`.
pub(crate) fn brief(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 9.95 => format!("{s:.1}s"),
        s if s < 99.5 => format!("{s:.0}s"),
        s if s < 5940.0 => format!("{:.0}m", s / 60.0),
        s => format!("{:.0}h", s / 3600.0),
    }
}

pub(crate) fn milliseconds(seconds: f32) -> String {
    format!("{:.1}", seconds * 1e3)
}

/// Groups digits: `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    coprep_terminal::grouped(&n.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_take_at_most_five_columns() {
        let shown: Vec<_> = [
            0.0, 9999.0, 9999.6, 12_345.0, 99_960.0, 999_999.0, 4.5e6, 2e9,
        ]
        .into_iter()
        .map(count)
        .collect();
        assert_eq!(
            shown,
            [
                "0", "9999", "10.0k", "12.3k", "100k", "1000k", "4.5M", "2.0G"
            ]
        );
    }

    #[test]
    fn slow_rates_keep_a_digit() {
        let shown = [None, Some(0.0), Some(0.34), Some(99.96), Some(1234.5)].map(rate);
        assert_eq!(shown, ["-", "0", "0.3", "100", "1234"]);
    }

    #[test]
    fn a_little_is_not_nothing() {
        assert_eq!(
            [0.0, 0.001, 0.015, 1.0].map(percent),
            ["0%", "<1%", "2%", "100%"]
        );
    }

    #[test]
    fn times_are_brief() {
        assert_eq!(
            [0.04, 9.94, 12.4, 99.6, 7200.0].map(brief),
            ["0.0s", "9.9s", "12s", "2m", "2h"]
        );
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(
            [7, 999, 1000, 1_234_567].map(grouped),
            ["7", "999", "1,000", "1,234,567"]
        );
    }
}
