//! Notices about long waits for somebody else. The user is notified once of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_protocol::message::Awaited;

use crate::error::{Interrupt, Result, interrupted};

/// Time after which the user is notified of a wait for somebody else. Shorter waits are usual and need no attention.
pub(crate) const NOTIFY_AFTER: Duration = Duration::from_secs(10);

/// Callback that shows the user a message that is not an error. If it fails, the wait ends with [`crate::ErrorKind::Interrupted`].
pub type Notice = Arc<dyn Fn(&str) -> std::result::Result<(), Interrupt> + Send + Sync>;

/// Returns a notice that does nothing.
#[must_use]
pub fn no_notice() -> Notice {
    Arc::new(|_| Ok(()))
}

/// A wait, and the coordinator's latest explanation of it.
pub(crate) struct Wait<'a> {
    notice: &'a Notice,
    what: &'static str,
    began: Instant,
    /// The coordinator's latest explanation, and the time at which the awaited step began.
    awaited: Option<(Awaited, Instant)>,
    is_notified: bool,
}

impl<'a> Wait<'a> {
    /// Begins a wait for `what`, such as `a batch`.
    pub(crate) fn new(what: &'static str, notice: &'a Notice) -> Self {
        Wait {
            notice,
            what,
            began: Instant::now(),
            awaited: None,
            is_notified: false,
        }
    }

    /// Returns a wait that has already lasted for `waited`.
    pub(crate) fn since(what: &'static str, notice: &'a Notice, waited: Duration) -> Self {
        let now = Instant::now();
        Wait {
            began: now.checked_sub(waited).unwrap_or(now),
            ..Wait::new(what, notice)
        }
    }

    /// Records the coordinator's explanation, or that it waits for nobody else.
    pub(crate) fn record(&mut self, awaited: Option<Awaited>) {
        let now = Instant::now();
        self.awaited = awaited.map(|a| {
            let began = now.checked_sub(Duration::from_millis(a.for_ms));
            (a, began.unwrap_or(now))
        });
    }

    /// Returns the time until the user should be notified, or `None` if there is no reason to.
    pub(crate) fn due(&self) -> Option<Duration> {
        let is_open = self.awaited.is_some() && !self.is_notified;
        is_open.then(|| NOTIFY_AFTER.saturating_sub(self.began.elapsed()))
    }

    /// Notifies the user if it is time and this was not done before.
    pub(crate) fn notify_if_due(&mut self) -> Result<()> {
        if self.due() != Some(Duration::ZERO) {
            return Ok(());
        }
        self.is_notified = true;
        let text = self.explanation().unwrap_or_default();
        let (seconds, what) = (self.began.elapsed().as_secs(), self.what);
        (self.notice)(&format!("waiting for {what} since {seconds} s: {text}")).map_err(interrupted)
    }

    /// Returns who is awaited, for what, since when, and the remedy.
    pub(crate) fn explanation(&self) -> Option<String> {
        let (awaited, began) = self.awaited.as_ref()?;
        let mut text = awaited.what.clone();
        if awaited.for_ms > 0 {
            text += &format!(", for {} s", began.elapsed().as_secs());
        }
        if !awaited.remedy.is_empty() {
            text += &format!("; {}", awaited.remedy);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_user_is_notified_once_of_a_long_wait_for_somebody_else() {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let list = notices.clone();
        let notice: Notice = Arc::new(move |text| {
            list.lock().unwrap().push(text.to_owned());
            Ok(())
        });
        let mut wait = Wait::new("a batch", &notice);
        assert_eq!(wait.due(), None);
        wait.record(Some(Awaited {
            what: "rank 1 has not attached".into(),
            for_ms: 0,
            remedy: "start it".into(),
        }));
        wait.notify_if_due().unwrap();
        assert!(notices.lock().unwrap().is_empty(), "it is not long yet");
        wait.began = wait.began.checked_sub(NOTIFY_AFTER).unwrap();
        wait.notify_if_due().unwrap();
        wait.notify_if_due().unwrap();
        let text = "waiting for a batch since 10 s: rank 1 has not attached; start it";
        assert_eq!(*notices.lock().unwrap(), [text]);
    }
}
