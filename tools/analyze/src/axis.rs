//! Ticks and labels of a chart's axes.

/// Mean width of a character at the size of tick labels, rounded up.
pub(crate) const CHAR: f64 = 6.0;

/// Shortens a text to `chars` characters, with an ellipsis if something is left out.
pub(crate) fn shortened(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.into();
    }
    let kept: String = text.chars().take(chars.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Removes labels that would touch each other: the present one stays, then the leftmost ones.
pub(crate) fn thinned(ticks: Vec<(f64, String, bool)>) -> Vec<(f64, String, bool)> {
    let mut kept: Vec<(f64, String, bool)> = Vec::new();
    let (present, others): (Vec<_>, Vec<_>) = ticks.into_iter().partition(|tick| tick.2);
    for tick in present.into_iter().chain(others) {
        // Labels are centred at their ticks, and two units of space at each side keep them apart.
        let reach = |t: &(f64, String, bool)| t.1.chars().count() as f64 * CHAR / 2.0 + 2.0;
        if kept
            .iter()
            .all(|k| (k.0 - tick.0).abs() >= reach(k) + reach(&tick))
        {
            kept.push(tick);
        }
    }
    kept
}

/// Returns ticks from 0 to at least `highest`: about `count` steps of 1, 2 or 5 times a power of ten.
pub(crate) fn nice_ticks(highest: f64, count: u32) -> Vec<f64> {
    let highest = if highest > 0.0 { highest } else { 1.0 };
    let rough = highest / f64::from(count);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0]
        .map(|n| n * power)
        .into_iter()
        // A step may be too small by a rounding error.
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    // A rounding error must not add a step at the end.
    let steps = (highest / step - 1e-9).ceil().clamp(1.0, 20.0) as u32;
    (0..=steps).map(|i| f64::from(i) * step).collect()
}

/// Returns the most readable unit for times up to `highest_s`, and its seconds.
pub(crate) fn time_unit(highest_s: f64) -> (&'static str, f64) {
    match highest_s {
        s if s < 0.5 => ("ms", 1e-3),
        s if s < 180.0 => ("s", 1.0),
        s if s < 5400.0 => ("min", 60.0),
        _ => ("h", 3600.0),
    }
}

/// Returns the size of a unit in bytes, or 1 for any other unit.
pub(crate) fn unit_factor(unit: &str) -> f64 {
    let power = match unit.trim_end_matches("/s") {
        "KiB" => 1,
        "MiB" => 2,
        "GiB" => 3,
        "TiB" => 4,
        _ => 0,
    };
    1024f64.powi(power)
}
