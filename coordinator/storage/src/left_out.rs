//! Members of a dataset that are left out when it is opened, because they cannot be read as samples.

use coprep_error::printable;

/// Members that are left out; see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    count: u64,
    /// The first of them, and the reason.
    first: String,
}

impl LeftOut {
    /// Adds `count` members. `first` describes the first of them: its name, and why it is left out.
    pub fn add(&mut self, count: u64, first: impl FnOnce() -> String) {
        if self.count == 0 && count > 0 {
            self.first = first();
        }
        self.count += count;
    }

    /// Returns the number of members.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the first member, and why it is left out. Its name may have control characters.
    #[must_use]
    pub fn first(&self) -> &str {
        &self.first
    }

    /// Returns a sentence for people, or `None` if nothing is left out.
    #[must_use]
    pub fn note(&self, dataset: &str) -> Option<String> {
        let first = printable(&self.first);
        let dataset = printable(dataset);
        match self.count {
            0 => None,
            1 => Some(format!(
                "1 sample of {dataset} is left out, since it cannot be used: {first}"
            )),
            count => Some(format!(
                "{count} samples of {dataset} are left out, since they cannot be used. The first: {first}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_and_the_first_are_told_without_control_characters() {
        let mut left_out = LeftOut::default();
        left_out.add(0, || "nothing".into());
        assert_eq!(left_out.note("d"), None);
        left_out.add(1, || "a\u{1b}[31m has no image".into());
        let one = left_out.note("d\n").expect("there is one");
        assert!(
            one.starts_with("1 sample of d\u{fffd} is left out"),
            "{one}"
        );
        assert!(one.ends_with("a\u{fffd}[31m has no image"), "{one}");
        left_out.add(1_000, || "b".into());
        let many = left_out.note("d").expect("there are many");
        assert!(many.starts_with("1001 samples of d are left out"), "{many}");
        assert!(many.ends_with("a\u{fffd}[31m has no image"), "{many}");
    }
}
