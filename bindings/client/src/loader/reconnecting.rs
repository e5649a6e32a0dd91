//! Attaching to a coordinator, at first and again after the connection was lost.

use std::time::{Duration, Instant};

use coprep_protocol::message::{Attached, RefusalKind};
use coprep_protocol::spec::Field;

use crate::connection::{ConnectOptions, Connection};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::loader::link::LoaderLink;
use crate::loader::{JobCode, Loader, LoaderOptions, LoaderState};
use crate::notice::{Notice, no_notice};
use crate::stats::WaitShares;
use crate::timeout::{InterruptCheck, Timeout};

/// Pause after the first attempt to reconnect. It doubles after each attempt, because a coordinator that is not there at
/// once may need long to start.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause between two attempts to reconnect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest time for the coordinator to load a job's own code, in addition to the time for samples.
const LOAD_CODE_TIMEOUT: Duration = Duration::from_secs(660);
/// Number of attempts that may meet a defect of the coordinator before the next one is its answer. A coordinator that is
/// broken ends within seconds, but one whose requests panic each time stays.
const MOST_DEFECTS: u32 = 6;
/// Pause after a failed attempt to attach anew. The attempt itself may have lasted long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A series of failed attempts to attach anew.
#[derive(Clone, Copy)]
pub(super) struct FailedAttempts {
    since: Instant,
    latest: Instant,
}

impl FailedAttempts {
    /// Adds an attempt to the series `before`.
    pub(super) fn and_another(before: Option<FailedAttempts>) -> Self {
        let latest = Instant::now();
        FailedAttempts {
            since: before.map_or(latest, |failed| failed.since),
            latest,
        }
    }

    /// Returns `true` if it is time for the next attempt. No attempt is due after `limit`.
    pub(super) fn is_due(&self, limit: Duration) -> bool {
        self.latest.elapsed() >= RETRY_PAUSE && self.since.elapsed() < limit
    }
}

impl LoaderOptions {
    fn connect_options(&self, interrupt_check: &InterruptCheck) -> ConnectOptions {
        ConnectOptions {
            name: self.name.clone(),
            start: true,
            program: self.program.clone(),
            interrupt_check: interrupt_check.clone(),
        }
    }
}

impl Loader {
    pub(super) fn attach_if_needed(&self, inner: &mut LoaderState) -> Result<()> {
        if inner.link.is_some() {
            return Ok(());
        }
        let code = self.options.code.as_deref();
        match self.attach(
            inner,
            code,
            &self.options.interrupt_check,
            &self.options.notice,
        ) {
            // The coordinator ended just when this client came, or is about to end because of a defect.
            Err(e) if e.kind().is_lost() || is_internal(&e) => self.reconnect(inner),
            other => other,
        }
    }

    /// Attaches. `code` is `None` in a thread of this library, which must not fork the process.
    fn attach(
        &self,
        inner: &mut LoaderState,
        code: Option<&dyn JobCode>,
        interrupt_check: &InterruptCheck,
        notice: &Notice,
    ) -> Result<()> {
        let mut request = self.options.attach.clone();
        request.resume = inner.resume();
        if let Some(before) = &inner.attached {
            request.seed_hint = Some(before.seed);
            request.told = Some(before.token);
            request.tokens = inner.token.into_iter().collect();
            if inner.token.is_some_and(|token| token != before.token) {
                request.tokens.push(before.token);
            }
        }
        request.departed = inner.departed.values().cloned().collect();
        request.has_begun = inner.has_begun;
        let resumed = request.resume.as_ref().map_or(0, |resume| resume.epoch);
        inner.orders.keep_only(resumed);
        let known = inner.orders.settled(resumed).cloned();
        request.knows_order_of = known.as_ref().map(|_| resumed);
        let loading = if request.code.is_some() {
            LOAD_CODE_TIMEOUT
        } else {
            Duration::ZERO
        };
        let timeout = Timeout::new(
            self.options.timeout.saturating_add(loading),
            interrupt_check,
        );
        let mut departed = Vec::new();
        let connection = Connection::open(
            &self.options.paths,
            &self.options.connect_options(interrupt_check),
        )?;
        if let Some(credentials) = &self.options.credentials {
            request.provider =
                Some(credentials.provider(&connection, timeout.left(), interrupt_check)?);
        }
        let attached =
            LoaderLink::attach(connection, request, code, &timeout, notice, &mut departed);
        // This counts after a failure too: the ranks have left, and the next coordinator learns of it from this rank.
        self.note_departed(inner, departed);
        let (mut link, attached) = attached?;
        if let Some(order) = known {
            link.send_order(resumed, &order, true)?;
        }
        if let Some(before) = &inner.attached {
            check_same(before, &attached)?;
        }
        inner.position.attached(attached.epoch)?;
        inner.link = Some(link);
        inner.attached = Some(attached);
        Ok(())
    }

    /// Attaches anew if the connection was lost while no call was waiting. The thread `watch` calls it.
    pub(super) fn reattach_if_lost(&self) {
        // A call of the user holds the lock, and notices the loss itself.
        let Ok(mut inner) = self.inner.try_lock() else {
            return;
        };
        let is_due = match &mut inner.link {
            // A long message does not fit into the socket's buffer, so it is read while the coordinator lives.
            Some(link) => link.is_lost() || link.read_pending().is_err(),
            None => (inner.failed).is_some_and(|failed| failed.is_due(self.options.timeout)),
        };
        if !is_due || inner.closed {
            return;
        }
        let reattached = self.reconnect_with(&mut inner, None, &self.until_closing(), &no_notice());
        // This rank may make no request before the others come, and they wait for it. Only the watch can try again.
        inner.failed = reattached
            .err()
            .map(|_| FailedAttempts::and_another(inner.failed));
    }

    pub(super) fn reconnect(&self, inner: &mut LoaderState) -> Result<()> {
        inner.failed = None;
        let code = self.options.code.as_deref();
        if let Some(code) = code {
            // A stream that is opened anew makes its samples from this job's memory as it is now.
            code.is_current()?;
        }
        self.reconnect_with(
            inner,
            code,
            &self.options.interrupt_check,
            &self.options.notice,
        )
    }

    /// Drops the connection with all unread messages, and attaches anew. Starts a coordinator if there is none.
    fn reconnect_with(
        &self,
        inner: &mut LoaderState,
        code: Option<&dyn JobCode>,
        interrupt_check: &InterruptCheck,
        notice: &Notice,
    ) -> Result<()> {
        let began = Instant::now();
        if let Some(link) = inner.link.take() {
            self.lock_stats().reconnects += 1;
            // An item that is ready shows that the job has begun, although this rank was given nothing yet.
            inner.has_begun |= inner.token.is_some() || link.has_item();
            self.note_departed(inner, link.drain_departures());
        }
        let most = self.options.reconnect.min(self.options.timeout);
        let timeout = Timeout::new(most, interrupt_check);
        let (mut pause, mut defects) = (FIRST_PAUSE, 0);
        while let Err(e) = self.attach(inner, code, interrupt_check, notice) {
            defects += u32::from(is_internal(&e));
            let time = began.elapsed().as_secs_f64();
            if timeout.is_over() && *e.kind() == ErrorKind::Disconnected {
                let why = "the coordinator's log says why it hangs up";
                return Err(e.with_remedy(format!("could not attach anew for {time:.1} s: {why}")));
            }
            if !may_pass(&e) || timeout.is_over() || defects > MOST_DEFECTS {
                return Err(e);
            }
            inner.waiting.reattach_failure =
                Some(format!("it could not attach anew for {time:.1} s: {e}"));
            timeout.sleep(pause)?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if inner.position.is_iterating() {
            self.announce_epoch(inner, code)?;
        }
        let time = began.elapsed();
        let mut stats = self.lock_stats();
        stats.wait += time;
        stats.split(time, WaitShares::OTHERS);
        Ok(())
    }
}

/// Fails if the new coordinator serves another dataset than the one before.
fn check_same(before: &Attached, now: &Attached) -> Result<()> {
    // The room for values of no fixed size may have grown.
    let fixed = |a: &Attached| -> Vec<Field> {
        a.fields
            .iter()
            .filter(|f| !f.may_be_large())
            .cloned()
            .collect()
    };
    if before.dataset_samples != now.dataset_samples || fixed(before) != fixed(now) {
        return Err(invalid(format!(
            "the dataset changed while the coordinator was restarted: it had {} samples and has {}",
            before.dataset_samples, now.dataset_samples
        )));
    }
    Ok(())
}

/// Returns `true` if the coordinator answered with a defect of its own.
fn is_internal(e: &Error) -> bool {
    *e.kind() == ErrorKind::Refused(RefusalKind::Internal)
}

/// Returns `true` if an error may pass, because it can also come from a coordinator that starts while another one ends.
fn may_pass(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Disconnected
            | ErrorKind::Credentials
            | ErrorKind::Refused(RefusalKind::Memory | RefusalKind::Internal)
    )
}
