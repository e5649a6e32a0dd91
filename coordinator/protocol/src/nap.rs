//! How long a thread sleeps, at most, before it looks around though nothing woke it.
//!
//! Whatever a thread waits for wakes it: a queue's condition, a futex, a descriptor that can be read. What is due at some
//! moment is waited for until that moment. A nap only bounds what a lost wake-up costs, and so hides it. To show that
//! nobody relies on one, a debug build makes each of them as long as [`VARIABLE`] says: with an hour, whoever waits for
//! what a nap would notice waits for ever.

use std::sync::OnceLock;
use std::time::Duration;

/// Seconds that a nap takes at least. Only debug builds look at it.
pub const VARIABLE: &str = "COPREP_TEST_NAP";

/// Returns how long a nap of `period` may take.
#[must_use]
pub fn nap(period: Duration) -> Duration {
    static LEAST: OnceLock<Duration> = OnceLock::new();
    if cfg!(debug_assertions) {
        period.max(*LEAST.get_or_init(|| from_text(std::env::var(VARIABLE).ok().as_deref())))
    } else {
        period
    }
}

/// What makes no sense lengthens nothing.
fn from_text(seconds: Option<&str>) -> Duration {
    let seconds = seconds.and_then(|text| text.parse().ok());
    seconds.map_or(Duration::ZERO, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nap_is_made_longer_and_never_shorter() {
        let least = |text| Duration::from_secs(1).max(from_text(text));
        assert_eq!(least(None), Duration::from_secs(1));
        assert_eq!(least(Some("3600")), Duration::from_secs(3600));
        for text in ["0", "", "-5", "soon"] {
            assert_eq!(least(Some(text)), Duration::from_secs(1), "{text}");
        }
    }
}
