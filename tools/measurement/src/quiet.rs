//! Checks whether other programs used the processors during a measurement.
//!
//! The results of `analyze` and `bench` hold for a machine that does nothing else. Others used the processor time of
//! the whole machine, less the time of this process and of all that it started.

use std::time::Instant;

use crate::{Result, group};

/// Processors that others may use without a noticeable change of the result.
pub const NEGLIGIBLE_CPUS: f64 = 0.3;
/// Most attempts at a measurement that others disturb.
const ATTEMPTS: usize = 3;

/// A result, and the number of processors that other programs used during its measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed<T> {
    /// The result.
    pub value: T,
    /// Mean number of processors that other programs used.
    pub cpus_of_others: f64,
}

impl<T> Observed<T> {
    /// Returns `true` if others used so much that the result may be noticeably different.
    pub fn is_disturbed(&self) -> bool {
        self.cpus_of_others > NEGLIGIBLE_CPUS
    }
}

/// Measures the processor time of others from its start on.
struct Clock {
    began: Instant,
    others: f64,
}

impl Clock {
    fn start() -> Self {
        Clock {
            began: Instant::now(),
            others: others_cpu_seconds(),
        }
    }

    /// Returns the mean number of processors that others have used since the start.
    fn cpus_of_others(&self) -> f64 {
        let time = self.began.elapsed().as_secs_f64();
        // Not below 0: a process that has ended may take its processor time along before its parent has waited for it.
        (others_cpu_seconds() - self.others).max(0.0) / time.max(f64::MIN_POSITIVE)
    }
}

/// Returns the processor seconds of all processes that this one has not started.
fn others_cpu_seconds() -> f64 {
    group::machine_cpu_seconds() - group::tree_cpu_seconds(std::process::id())
}

/// Measures, and repeats the measurement if other programs disturbed it. Returns the least disturbed result.
///
/// # Errors
/// The error of the first measurement. A repetition that fails is left out.
pub fn measure<T>(mut once: impl FnMut() -> Result<T>) -> Result<Observed<T>> {
    least_disturbed(|| {
        let clock = Clock::start();
        let value = once()?;
        let cpus_of_others = clock.cpus_of_others();
        Ok(Observed {
            value,
            cpus_of_others,
        })
    })
}

/// Repeats a measurement until it is not disturbed, or until the attempts are used up.
fn least_disturbed<T>(mut once: impl FnMut() -> Result<Observed<T>>) -> Result<Observed<T>> {
    let mut best = once()?;
    for _ in 1..ATTEMPTS {
        if !best.is_disturbed() {
            break;
        }
        // A repetition may be impossible, as when a script has ended. Then the earlier result counts.
        let Ok(other) = once() else { break };
        if other.cpus_of_others < best.cpus_of_others {
            best = other;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures on a machine where others use this many processors in each attempt. Returns the attempt that was kept,
    /// and the number of attempts.
    fn kept(others: &[f64]) -> (usize, usize) {
        let mut made = 0;
        let best = least_disturbed(|| {
            let cpus_of_others = others[made];
            made += 1;
            Ok(Observed {
                value: made,
                cpus_of_others,
            })
        });
        (best.unwrap().value, made)
    }

    #[test]
    fn a_disturbed_measurement_is_repeated_until_it_is_quiet() {
        assert_eq!(kept(&[0.0]), (1, 1));
        assert_eq!(kept(&[1.5, 0.1, 0.0]), (2, 2));
    }

    #[test]
    fn of_measurements_that_are_all_disturbed_the_quietest_counts() {
        assert_eq!(kept(&[1.5, 0.7, 0.9]), (2, 3));
    }

    #[test]
    fn a_measurement_that_cannot_be_repeated_counts() {
        let mut made = 0;
        let best = least_disturbed(|| {
            made += 1;
            if made > 1 {
                return Err("the script has ended".into());
            }
            Ok(Observed {
                value: made,
                cpus_of_others: 2.0,
            })
        });
        assert_eq!(best.unwrap().value, 1);
    }

    #[test]
    fn own_work_is_not_the_work_of_others() {
        let clock = Clock::start();
        let before = group::tree_cpu_seconds(std::process::id());
        let end = Instant::now() + std::time::Duration::from_millis(200);
        while Instant::now() < end {
            std::hint::black_box(0);
        }
        let own = group::tree_cpu_seconds(std::process::id()) - before;
        assert!(own > 0.0, "{own}");
        assert!(clock.cpus_of_others().is_finite());
    }
}
