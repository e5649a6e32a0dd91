//! Credentials that exist only in the job's process, and that the job gives to the coordinator.
//!
//! A [`CredentialLink`] has a connection of its own, so that the job can be asked while the thread that trains waits for a
//! batch. A thread of the job's language serves it: it calls [`wait`](CredentialLink::wait), has the user's code make
//! credentials, and [gives](CredentialLink::give) them. The thread starts when a request needs credentials for the first
//! time, and ends with the link.
//!
//! A request names the link's connection by a number. When the coordinator has ended, the thread connects to the next one
//! only once a request needs that, so that it never starts one by itself.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use coprep_protocol::dataset_url::UrlScheme;
use coprep_protocol::given_credentials::TimedCredentials;
use coprep_protocol::message::{GiveCredentials, Reply, Request};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_shared_memory::lock::{lock, unpoisoned};

use crate::attachment::Owner;
use crate::connection::{ConnectOptions, Connection};
use crate::error::{
    Error, ErrorKind, Result, closed, disconnected, interrupted, not_given, violation,
};
use crate::timeout::{InterruptCheck, POLL_INTERVAL, Timeout, no_interrupt};

/// Longest time for the user's code to make credentials while a request waits for them.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the coordinator to take credentials.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Least time between two calls of the user's code because of a lifetime, however short that is.
const LEAST_RENEWAL: Duration = Duration::from_secs(1);
/// Time that is as good as for ever, for a wait that another event ends.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Starts the thread that serves a link; see the module.
pub type StartThread = dyn Fn(Arc<CredentialLink>) -> Result<()> + Send + Sync;

/// The link between a job's credentials and the coordinator; see the module.
pub struct CredentialLink {
    owner: Owner,
    paths: CoordinatorPaths,
    options: ConnectOptions,
    scheme: UrlScheme,
    start: Box<StartThread>,
    state: Mutex<LinkState>,
    /// Signals each change of the state.
    changed: Condvar,
}

#[derive(Default)]
struct LinkState {
    has_thread: bool,
    is_closed: bool,
    /// Process of the coordinator for which a request waits, until it is answered.
    wanted_by: Option<u32>,
    taken: Option<Taken>,
    /// Reason why a request that waits gets no credentials.
    failed: Option<Error>,
}

/// A coordinator that has taken credentials.
#[derive(Clone)]
struct Taken {
    connection: Arc<Connection>,
    /// Number of the connection.
    provider: u128,
    /// The end of the credentials.
    end: Option<SystemTime>,
    /// Time for new ones.
    renewal: Option<Instant>,
}

impl Taken {
    /// Sets the time for new credentials: when two thirds of their time that is left are over.
    fn plan_renewal(&mut self) {
        let left = self
            .end
            .and_then(|end| end.duration_since(SystemTime::now()).ok());
        let pause = left.map(|left| (left * 2 / 3).max(LEAST_RENEWAL));
        self.renewal = pause.and_then(|pause| Instant::now().checked_add(pause));
    }

    /// Returns the time until new credentials are due, `most` at most.
    fn until_renewal(&self, most: Duration) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.renewal.map_or(most, |at| left(at).min(most))
    }

    fn is_with(&self, coordinator: u32) -> bool {
        self.connection.pid == coordinator && !self.connection.is_lost()
    }
}

/// An event that the thread of a link waits for.
enum LinkEvent {
    CredentialsWanted,
    /// The connection is lost, or the state has changed.
    Changed,
}

impl CredentialLink {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        lock(&self.state)
    }

    // Called by those who make requests.

    /// Returns the number by which a request over `connection` names the credentials. The user's code makes some if the
    /// coordinator there has none.
    pub(crate) fn provider(
        self: &Arc<Self>,
        connection: &Connection,
        limit: Duration,
        interrupt_check: &InterruptCheck,
    ) -> Result<u128> {
        // This check comes before the lock: in a forked child, a thread that does not exist there may hold the lock.
        self.owner.check()?;
        self.start_thread()?;
        let timeout = Timeout::new(limit.min(PROVIDER_TIMEOUT), interrupt_check);
        self.state().failed = None;
        loop {
            (timeout.interrupt_check())().map_err(interrupted)?;
            // The next coordinator is not the one that the request is for.
            if connection.is_lost() {
                return Err(disconnected("it ended while it was given credentials"));
            }
            let mut state = self.state();
            if state.is_closed {
                return Err(closed());
            }
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            if let Some(taken) = state
                .taken
                .as_ref()
                .filter(|taken| taken.is_with(connection.pid))
            {
                return Ok(taken.provider);
            }
            if timeout.is_over() {
                state.wanted_by = None;
                let seconds = timeout.waited().as_secs_f64();
                return Err(not_given(format!("it has not returned for {seconds:.0} s")));
            }
            state.wanted_by = Some(connection.pid);
            self.changed.notify_all();
            let waited = self.changed.wait_timeout(state, POLL_INTERVAL);
            drop(unpoisoned(waited));
        }
    }

    fn start_thread(self: &Arc<Self>) -> Result<()> {
        let had_thread = std::mem::replace(&mut self.state().has_thread, true);
        if had_thread {
            return Ok(());
        }
        (self.start)(self.clone()).inspect_err(|_| self.state().has_thread = false)
    }

    /// Ends the thread and the connection. Does not wait for the user's code.
    pub fn close(&self) {
        // A forked child has a copy, of which the parent needs the original.
        if !self.owner.is_here() {
            return;
        }
        let mut state = self.state();
        state.is_closed = true;
        if let Some(taken) = state.taken.take() {
            taken.connection.hang_up();
        }
        self.changed.notify_all();
    }

    // Called by the thread.

    /// Waits until credentials are wanted. Returns `false` once the link is closed.
    pub fn wait(&self) -> bool {
        loop {
            let state = self.state();
            if state.is_closed {
                return false;
            }
            if self.is_wanted(&state) {
                return true;
            }
            let Some(taken) = state.taken.clone() else {
                // The wait is bounded, so that a lost wake-up could only prolong it.
                let waited = self.changed.wait_timeout(state, LONGEST_WAIT);
                drop(unpoisoned(waited));
                continue;
            };
            drop(state);
            match self.next_event(&taken) {
                Ok(LinkEvent::CredentialsWanted) => return true,
                Ok(LinkEvent::Changed) => {}
                Err(_) => self.forget(&taken),
            }
        }
    }

    /// Returns `true` if a request waits for credentials at a coordinator that has none.
    fn is_wanted(&self, state: &LinkState) -> bool {
        let has_some = |coordinator| state.taken.as_ref().is_some_and(|t| t.is_with(coordinator));
        state
            .wanted_by
            .is_some_and(|coordinator| !has_some(coordinator))
    }

    /// Waits for the time of a renewal, a question of the coordinator, or a request.
    fn next_event(&self, taken: &Taken) -> Result<LinkEvent> {
        // The socket is one thing to wait for, and the state another one, at which this looks now and then.
        let unchanged = || {
            let state = self.state();
            !state.is_closed && !self.is_wanted(&state)
        };
        while unchanged() {
            let received = taken
                .connection
                .receive(taken.until_renewal(POLL_INTERVAL), &no_interrupt())?;
            match received {
                Some((Reply::WantCredentials, _)) => {
                    self.skip_questions(taken)?;
                    return Ok(LinkEvent::CredentialsWanted);
                }
                Some((other, _)) => return Err(violation(format!("unexpected message {other:?}"))),
                None if taken.renewal.is_some_and(|at| at <= Instant::now()) => {
                    return Ok(LinkEvent::CredentialsWanted);
                }
                None => {}
            }
        }
        Ok(LinkEvent::Changed)
    }

    /// Reads questions that the same answer will do for. The coordinator repeats a question that is not answered.
    fn skip_questions(&self, taken: &Taken) -> Result<()> {
        let connection = &taken.connection;
        while connection
            .receive(Duration::ZERO, &no_interrupt())?
            .is_some()
        {}
        Ok(())
    }

    /// Forgets a coordinator that has ended.
    fn forget(&self, lost: &Taken) {
        let mut state = self.state();
        let is_lost = |taken: &mut Taken| Arc::ptr_eq(&taken.connection, &lost.connection);
        state.taken.take_if(is_lost);
    }

    /// Gives credentials that the user's code has made to the coordinator that wants them.
    pub fn give(&self, given: TimedCredentials) {
        let end = given.end();
        let request = Request::GiveCredentials(Box::new(GiveCredentials {
            scheme: self.scheme,
            given,
        }));
        if let Some(taken) = self.present() {
            if taken.connection.send(&request).is_err() {
                return self.forget(&taken);
            }
            return self.plan(&taken, end);
        }
        match self.introduce(&request) {
            Ok((connection, provider)) => {
                let mut taken = Taken {
                    connection: Arc::new(connection),
                    provider,
                    end,
                    renewal: None,
                };
                taken.plan_renewal();
                let mut state = self.state();
                // Closed meanwhile: nobody needs the connection.
                if !state.is_closed {
                    state.taken = Some(taken);
                    state.wanted_by = None;
                }
                drop(state);
                self.changed.notify_all();
            }
            Err(error) if *error.kind() == ErrorKind::Absent => {
                self.fail_request(disconnected("it ended while it was given credentials"));
            }
            Err(error) => self.fail_request(error),
        }
    }

    /// Returns the coordinator that has credentials already, unless a request waits at another one.
    fn present(&self) -> Option<Taken> {
        let state = self.state();
        let is_other = self.is_wanted(&state);
        state.taken.clone().filter(|_| !is_other)
    }

    /// Plans the next renewal with a coordinator. `end` is that of its credentials.
    fn plan(&self, at: &Taken, end: Option<SystemTime>) {
        if let Some(taken) = &mut self.state().taken
            && Arc::ptr_eq(&taken.connection, &at.connection)
        {
            taken.end = end;
            taken.plan_renewal();
        }
    }

    /// Connects to the coordinator, and gives it the first credentials.
    fn introduce(&self, request: &Request) -> Result<(Connection, u128)> {
        let connection = Connection::open(&self.paths, &self.options)?;
        let what = "the coordinator to take credentials";
        match connection.ask(request, what, ANSWER_TIMEOUT, &no_interrupt())? {
            Reply::CredentialsTaken { provider } => Ok((connection, provider)),
            other => Err(violation(format!("unexpected answer {other:?}"))),
        }
    }

    /// Reports that the user's code has failed. `what` says how, and `kind` says it to the coordinator, without any text of
    /// the user's code.
    pub fn fail(&self, what: Error, kind: &str) {
        if let Some(taken) = self.present() {
            let why = kind.to_owned();
            if taken
                .connection
                .send(&Request::NoCredentials { why })
                .is_err()
            {
                return self.forget(&taken);
            }
            // The present ones serve as long as they last, and the user's code is tried again meanwhile.
            return self.plan(&taken, taken.end);
        }
        self.fail_request(what);
    }

    fn fail_request(&self, error: Error) {
        let mut state = self.state();
        if state.wanted_by.take().is_some() {
            state.failed = Some(error);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// A link that is closed when this is dropped.
pub struct OwnedLink(Arc<CredentialLink>);

impl OwnedLink {
    /// Makes a link that has no thread and no connection yet. `name` is that of the job in `coprep status`.
    #[must_use]
    pub fn new(
        paths: CoordinatorPaths,
        name: impl Into<String>,
        scheme: UrlScheme,
        start: Box<StartThread>,
    ) -> Self {
        OwnedLink(Arc::new(CredentialLink {
            owner: Owner::current(),
            paths,
            options: ConnectOptions::find(name),
            scheme,
            start,
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }
}

impl std::ops::Deref for OwnedLink {
    type Target = Arc<CredentialLink>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for OwnedLink {
    fn drop(&mut self) {
        self.0.close();
    }
}
