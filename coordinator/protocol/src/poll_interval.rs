//! Longest sleep of a thread before it looks around although nothing woke it.
//!
//! Every event that a thread waits for also wakes it: a queue's condition, a futex, a descriptor that can be read. Work
//! that is due at a known time is waited for until that time. Polling therefore only bounds the cost of a lost wake-up,
//! and so hides it. To show that no code relies on it, a debug build makes each interval as long as [`VARIABLE`] says.
//! With an hour, a thread that depends on polling practically waits for ever.

use std::sync::OnceLock;
use std::time::Duration;

/// Name of the environment variable with the shortest interval, in seconds. Only debug builds read it.
pub const VARIABLE: &str = "COPREP_TEST_POLL_INTERVAL";

/// Returns `period`, which a debug build may lengthen.
#[must_use]
pub fn poll_every(period: Duration) -> Duration {
    static LEAST: OnceLock<Duration> = OnceLock::new();
    if cfg!(debug_assertions) {
        period.max(*LEAST.get_or_init(|| from_text(std::env::var(VARIABLE).ok().as_deref())))
    } else {
        period
    }
}

/// Reads a number of seconds. A malformed number counts as 0 and lengthens nothing.
fn from_text(seconds: Option<&str>) -> Duration {
    let seconds = seconds.and_then(|text| text.parse().ok());
    seconds.map_or(Duration::ZERO, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_made_longer_and_never_shorter() {
        let least = |text| Duration::from_secs(1).max(from_text(text));
        assert_eq!(least(None), Duration::from_secs(1));
        assert_eq!(least(Some("3600")), Duration::from_secs(3600));
        for text in ["0", "", "-5", "soon"] {
            assert_eq!(least(Some(text)), Duration::from_secs(1), "{text}");
        }
    }
}
