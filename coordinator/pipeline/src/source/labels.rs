//! Labels of samples, in 2 or 4 bytes each where all of them are numbers of classes.

/// Labels, by the ids of their samples.
#[derive(Debug)]
pub(super) enum Labels {
    /// All labels are between 0 and 2^16 - 1, as numbers of classes usually are.
    Short(Vec<u16>),
    /// All labels are between 0 and 2^32 - 1.
    Narrow(Vec<u32>),
    Wide(Vec<i64>),
    /// This number of labels, all 0.
    Zeros(usize),
}

impl Default for Labels {
    fn default() -> Self {
        Labels::Short(Vec::new())
    }
}

impl Labels {
    pub(super) fn push(&mut self, label: i64) {
        match self {
            Labels::Short(labels) => match u16::try_from(label) {
                Ok(label) => labels.push(label),
                Err(_) => self.widen(label),
            },
            Labels::Narrow(labels) => match u32::try_from(label) {
                Ok(label) => labels.push(label),
                Err(_) => self.widen(label),
            },
            Labels::Wide(labels) => labels.push(label),
            Labels::Zeros(labels) if label == 0 => *labels += 1,
            Labels::Zeros(_) => *self = self.iter().chain([label]).collect(),
        }
    }

    /// Adds a label for which the labels are too narrow.
    fn widen(&mut self, label: i64) {
        *self = match (&*self, u32::try_from(label)) {
            (Labels::Short(labels), Ok(label)) => {
                let labels = labels.iter().copied().map(u32::from);
                Labels::Narrow(labels.chain([label]).collect())
            }
            _ => Labels::Wide(self.iter().chain([label]).collect()),
        };
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Labels::Short(labels) => labels.len(),
            Labels::Narrow(labels) => labels.len(),
            Labels::Wide(labels) => labels.len(),
            Labels::Zeros(labels) => *labels,
        }
    }

    /// Returns the label of a sample.
    ///
    /// # Panics
    /// If `id` is not below [`Labels::len`].
    pub(super) fn get(&self, id: usize) -> i64 {
        match self {
            Labels::Short(labels) => labels[id].into(),
            Labels::Narrow(labels) => labels[id].into(),
            Labels::Wide(labels) => labels[id],
            Labels::Zeros(labels) => {
                assert!(id < *labels, "label {id} of {labels}");
                0
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        (0..self.len()).map(|id| self.get(id))
    }

    /// Gives spare memory back, when the list is final.
    pub(super) fn shrink(&mut self) {
        match self {
            Labels::Short(labels) => labels.shrink_to_fit(),
            Labels::Narrow(labels) => labels.shrink_to_fit(),
            Labels::Wide(labels) => labels.shrink_to_fit(),
            Labels::Zeros(_) => {}
        }
    }

    /// Returns the bytes of memory that the labels take.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Labels::Short(labels) => labels.capacity() * size_of::<u16>(),
            Labels::Narrow(labels) => labels.capacity() * size_of::<u32>(),
            Labels::Wide(labels) => labels.capacity() * size_of::<i64>(),
            Labels::Zeros(_) => 0,
        }
    }
}

impl FromIterator<i64> for Labels {
    fn from_iter<I: IntoIterator<Item = i64>>(labels: I) -> Self {
        let mut all = Labels::default();
        labels.into_iter().for_each(|label| all.push(label));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_that_were_pushed_however_large() {
        let short = [0, 7, i64::from(u16::MAX)];
        let labels: Labels = short.into_iter().collect();
        assert!(matches!(labels, Labels::Short(_)));
        assert!(labels.iter().eq(short));
        let narrow = [0, 1 << 16, i64::from(u32::MAX), 7];
        let labels: Labels = narrow.into_iter().collect();
        assert!(matches!(labels, Labels::Narrow(_)));
        assert!(labels.iter().eq(narrow));
        for label in [-1, i64::MAX, 1 << 32] {
            let all = [3, label, 4];
            let labels: Labels = all.into_iter().collect();
            assert!(labels.iter().eq(all));
            assert_eq!((labels.len(), labels.get(1)), (3, label));
            let labels: Labels = narrow.into_iter().chain(all).collect();
            assert!(labels.iter().eq(narrow.into_iter().chain(all)));
        }
    }

    #[test]
    fn labels_that_are_all_zero_take_no_memory() {
        let mut labels = Labels::Zeros(1_000_000);
        labels.push(0);
        assert_eq!((labels.len(), labels.memory_bytes()), (1_000_001, 0));
        assert_eq!((labels.get(7), labels.iter().sum::<i64>()), (0, 0));
        labels.push(5);
        assert_eq!((labels.len(), labels.get(1_000_001)), (1_000_002, 5));
    }
}
