//! The fork server that a pool has at present. It ends with the job that gave it, and the next one takes its place.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use coprep_shared_memory::lock::{lock, unpoisoned};

use crate::connection::reply_queue::ReplyQueue;
use crate::produce::processes::fork_server::ForkServer;

/// The place of a pool's fork server.
pub(super) struct CurrentServer {
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    /// There is none. A job may give one.
    Absent,
    /// One was given over this connection, and is not ready yet.
    Starting(Arc<ReplyQueue>),
    Ready(Arc<ForkServer>),
}

impl CurrentServer {
    pub(super) fn new(fork_server: Arc<ForkServer>) -> Self {
        CurrentServer {
            state: Mutex::new(State::Ready(fork_server)),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(*self.state(), State::Absent)
    }

    /// Returns the fork server, or `None` if there is none at present.
    pub(super) fn get(&self) -> Option<Arc<ForkServer>> {
        match &*self.state() {
            State::Ready(fork_server) => Some(fork_server.clone()),
            _ => None,
        }
    }

    /// Waits for a fork server for a while.
    pub(super) fn wait(&self, limit: Duration) {
        let is_lacking = |state: &mut State| !matches!(state, State::Ready(_));
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, is_lacking);
        drop(unpoisoned(waited));
    }

    /// Ends the waits.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Reserves the place for a fork server of this job. Returns `false` if none is wanted.
    pub(super) fn begin(&self, job: &Arc<ReplyQueue>) -> bool {
        let mut state = self.state();
        let is_absent = matches!(*state, State::Absent);
        if is_absent {
            *state = State::Starting(job.clone());
        }
        is_absent
    }

    /// Ends the start of a fork server of this job: it is ready, or `None` if it failed. Returns `false` if the job has
    /// left meanwhile.
    pub(super) fn finish(&self, job: &Arc<ReplyQueue>, started: Option<Arc<ForkServer>>) -> bool {
        let mut state = self.state();
        let is_awaited = matches!(&*state, State::Starting(of) if Arc::ptr_eq(of, job));
        if is_awaited {
            *state = started.map_or(State::Absent, State::Ready);
        }
        drop(state);
        self.changed.notify_all();
        is_awaited
    }

    /// Removes a fork server that has ended. Returns `false` if another one has its place.
    pub(super) fn remove(&self, ended: &Arc<ForkServer>) -> bool {
        self.remove_if(|server| std::ptr::eq(server, &raw const **ended))
            .is_some()
    }

    /// Removes the fork server of a job, also one that is starting. Returns it if it was ready.
    pub(super) fn remove_of(&self, job: &Arc<ReplyQueue>) -> Option<Arc<ForkServer>> {
        let mut state = self.state();
        if matches!(&*state, State::Starting(of) if Arc::ptr_eq(of, job)) {
            *state = State::Absent;
        }
        drop(state);
        self.remove_if(|server| Arc::ptr_eq(&server.giver.reply_queue, job))
    }

    /// Removes and returns the fork server if `goes` says so.
    pub(super) fn remove_if(
        &self,
        goes: impl FnOnce(&ForkServer) -> bool,
    ) -> Option<Arc<ForkServer>> {
        let mut state = self.state();
        match &*state {
            State::Ready(server) if goes(server) => {}
            _ => return None,
        }
        match std::mem::replace(&mut *state, State::Absent) {
            State::Ready(server) => Some(server),
            _ => None,
        }
    }
}
