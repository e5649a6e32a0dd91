//! Display of a measurement's progress. The command implements it for terminals, so that no library prints.

/// Shows a person how far a measurement is.
pub trait Progress {
    /// Plans all steps that follow, by the seconds that each is expected to take.
    fn plan(&mut self, expected_s: Vec<f64>);

    /// Begins the next step. `what` describes it in a few words.
    fn step(&mut self, what: &str);

    /// Updates the display. Measurements call this a few times a second while a step runs.
    fn tick(&mut self);
}

/// Progress that nobody looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn plan(&mut self, _expected_s: Vec<f64>) {}

    fn step(&mut self, _what: &str) {}

    fn tick(&mut self) {}
}
