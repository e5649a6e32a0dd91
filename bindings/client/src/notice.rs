//! Notices about long waits for somebody else. The user is told once about each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_protocol::message::Awaited;

use crate::error::{Error, Result};
use crate::timeout::Interrupt;

/// Time after which the user is told about a wait for somebody else.
pub(crate) const TELL_AFTER: Duration = Duration::from_secs(10);

/// Callback that tells the user a message that is not an error. If it fails, the wait ends with [`Error::Interrupted`].
pub type Notice = Arc<dyn Fn(&str) -> std::result::Result<(), Interrupt> + Send + Sync>;

/// Returns a notice that does nothing.
#[must_use]
pub fn no_notice() -> Notice {
    Arc::new(|_| Ok(()))
}

/// A wait, and the coordinator's latest word on it.
pub(crate) struct Wait<'a> {
    notice: &'a Notice,
    what: &'static str,
    began: Instant,
    /// The coordinator's latest explanation, and the time at which the awaited step began.
    awaited: Option<(Awaited, Instant)>,
    is_told: bool,
}

impl<'a> Wait<'a> {
    /// Begins a wait for `what`, such as `a batch`.
    pub(crate) fn new(what: &'static str, notice: &'a Notice) -> Self {
        Wait {
            notice,
            what,
            began: Instant::now(),
            awaited: None,
            is_told: false,
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

    /// Records the coordinator's explanation.
    pub(crate) fn hear(&mut self, awaited: Option<Awaited>) {
        let now = Instant::now();
        self.awaited = awaited.map(|a| {
            let began = now.checked_sub(Duration::from_millis(a.for_ms));
            (a, began.unwrap_or(now))
        });
    }

    /// Returns the time until the user is to be told, or `None` if there is nothing to tell.
    pub(crate) fn due(&self) -> Option<Duration> {
        let is_open = self.awaited.is_some() && !self.is_told;
        is_open.then(|| TELL_AFTER.saturating_sub(self.began.elapsed()))
    }

    /// Tells the user if it is time and this was not done before.
    pub(crate) fn tell(&mut self) -> Result<()> {
        if self.due() != Some(Duration::ZERO) {
            return Ok(());
        }
        self.is_told = true;
        let text = self.explanation().unwrap_or_default();
        let (seconds, what) = (self.began.elapsed().as_secs(), self.what);
        (self.notice)(&format!("waiting for {what} since {seconds} s: {text}"))
            .map_err(Error::Interrupted)
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
    fn a_long_wait_for_somebody_else_is_told_once() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let list = told.clone();
        let notice: Notice = Arc::new(move |text| {
            list.lock().unwrap().push(text.to_owned());
            Ok(())
        });
        let mut wait = Wait::new("a batch", &notice);
        assert_eq!(wait.due(), None);
        wait.hear(Some(Awaited {
            what: "rank 1 has not attached".into(),
            for_ms: 0,
            remedy: "start it".into(),
        }));
        wait.tell().unwrap();
        assert!(told.lock().unwrap().is_empty(), "it is not long yet");
        wait.began = wait.began.checked_sub(TELL_AFTER).unwrap();
        wait.tell().unwrap();
        wait.tell().unwrap();
        let text = "waiting for a batch since 10 s: rank 1 has not attached; start it";
        assert_eq!(*told.lock().unwrap(), [text]);
    }
}
