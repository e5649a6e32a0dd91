//! The memory of the GPU that rings may take.

use std::sync::{Arc, Mutex};

use coprep_shared_memory::lock::lock;

/// The divisor for the share of a GPU's memory that rings may take, whatever their budget. The rest is for training.
const SHARE_OF_GPU: u64 = 20;

/// Bytes that rings may still take.
pub(crate) struct Budget {
    left: Mutex<u64>,
}

/// Bytes that a ring has taken of the budget. They return when this is dropped.
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// Returns the budget of a GPU with `gpu_bytes` of memory, for rings that may take `most` together.
    pub(crate) fn of(gpu_bytes: u64, most: u64) -> Arc<Self> {
        Arc::new(Budget {
            left: Mutex::new(most.min(gpu_bytes / SHARE_OF_GPU)),
        })
    }

    /// Takes memory for a ring of at most `most` buffers. Returns `None` if not even `fewest` of them fit.
    pub(crate) fn take(
        self: &Arc<Self>,
        buffer_bytes: u64,
        fewest: u32,
        most: u32,
    ) -> Option<(u32, BudgetShare)> {
        let mut left = lock(&self.left);
        let fitting = *left / buffer_bytes.max(1);
        let buffers = u32::try_from(fitting).unwrap_or(u32::MAX).min(most);
        if buffers < fewest {
            return None;
        }
        let bytes = buffer_bytes * u64::from(buffers);
        *left -= bytes;
        let share = BudgetShare {
            budget: self.clone(),
            bytes,
        };
        Some((buffers, share))
    }

    pub(crate) fn left(&self) -> u64 {
        *lock(&self.left)
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        *lock(&self.budget.left) += self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_take_no_more_than_the_budget_and_a_twentieth_of_the_gpu() {
        assert_eq!(Budget::of(1000, 70).left(), 50);
        let budget = Budget::of(100_000, 70);
        let (buffers, first) = budget.take(10, 4, 5).unwrap();
        assert_eq!((buffers, budget.left()), (5, 20));
        assert!(budget.take(10, 4, 5).is_none(), "too few would fit");
        drop(first);
        let (buffers, _second) = budget.take(10, 4, 18).unwrap();
        assert_eq!((buffers, budget.left()), (7, 0));
    }
}
