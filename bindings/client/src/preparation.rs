//! Early announcement of the user code that will be needed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use coprep_protocol::message::{Request, UserCode};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_shared_memory::lock::{lock, unpoisoned};

use crate::attachment::Owner;
use crate::connection::{ConnectOptions, Connection};
use crate::error::{Result, interrupted};
use crate::timeout::{InterruptCheck, POLL_INTERVAL, Timeout};

/// Longest wait of a loader for the connecting thread, which itself waits no longer than this for a coordinator.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// An announcement of user code. As long as it lives, the coordinator keeps a process that has imported the modules
/// that the code needs.
///
/// A thread of its own connects, since a coordinator may have to be started first. Nothing depends on its success: a
/// coordinator without the announcement imports the modules when a job attaches. The job attaches over the same connection.
pub struct Preparation {
    owner: Owner,
    shared: Arc<SharedPreparation>,
}

struct SharedPreparation {
    state: Mutex<PreparationState>,
    changed: Condvar,
}

enum PreparationState {
    Connecting,
    /// The announcement was sent over this connection.
    Announced(Connection),
    /// There is no connection, or a loader has taken it.
    Over,
}

impl SharedPreparation {
    fn state(&self) -> MutexGuard<'_, PreparationState> {
        lock(&self.state)
    }

    fn set(&self, state: PreparationState) {
        *self.state() = state;
        self.changed.notify_all();
    }
}

impl Preparation {
    /// Begins to announce the code to the coordinator at `paths`, and starts one if there is none and `options` allow it.
    #[must_use]
    pub fn begin(
        paths: CoordinatorPaths,
        options: ConnectOptions,
        code: UserCode,
        dataset: String,
    ) -> Preparation {
        let shared = Arc::new(SharedPreparation {
            state: Mutex::new(PreparationState::Connecting),
            changed: Condvar::new(),
        });
        let wanted = Arc::downgrade(&shared);
        let announce = move || {
            // No coordinator is started for a loader that was closed before this thread began.
            if wanted.strong_count() == 0 {
                return;
            }
            let opened = Connection::open(&paths, &options);
            // The loader may have been closed meanwhile. Then the announcement is not sent.
            if let Some(shared) = wanted.upgrade() {
                let code = Box::new(code);
                let request = Request::Prepare { code, dataset };
                let sent = opened.and_then(|opened| opened.send(&request).map(|()| opened));
                shared.set(sent.map_or(PreparationState::Over, PreparationState::Announced));
            }
        };
        let thread = std::thread::Builder::new().name("coprep-prepare".into());
        if thread.spawn(announce).is_err() {
            // The loader connects by itself when it is used.
            shared.set(PreparationState::Over);
        }
        Preparation {
            owner: Owner::current(),
            shared,
        }
    }

    /// Takes the connection once it is open. Returns `None` if there is none, if it is lost, or if it belongs to a
    /// parent process.
    pub(crate) fn connection(self, interrupt_check: &InterruptCheck) -> Result<Option<Connection>> {
        // This check comes before the lock: in a forked child, a thread that does not exist there may hold the lock.
        if !self.owner.is_here() {
            return Ok(None);
        }
        let timeout = Timeout::new(CONNECT_TIMEOUT, interrupt_check);
        let mut state = self.shared.state();
        while matches!(*state, PreparationState::Connecting) && !timeout.is_over() {
            drop(state);
            (timeout.interrupt_check())().map_err(interrupted)?;
            state = self.shared.state();
            if matches!(*state, PreparationState::Connecting) {
                let waited = self.shared.changed.wait_timeout(state, POLL_INTERVAL);
                state = unpoisoned(waited).0;
            }
        }
        match std::mem::replace(&mut *state, PreparationState::Over) {
            PreparationState::Announced(connection) if !connection.is_lost() => {
                Ok(Some(connection))
            }
            _ => Ok(None),
        }
    }
}
