//! Tells the coordinator early which user code will be needed.

use std::sync::{Arc, OnceLock};

use coprep_protocol::message::{Request, UserCode};
use coprep_protocol::place::Place;

use crate::connection::{Connection, How};

/// As long as it lives, the coordinator keeps a process that has imported what user code needs.
///
/// A thread of its own connects, since a coordinator may have to be started first. Nothing depends on its success: a
/// coordinator that was not told imports when a job attaches. In a forked child it is without effect.
pub struct Preparation {
    /// Set once the coordinator has been told. Held for its end alone.
    _connection: Arc<OnceLock<Connection>>,
}

impl Preparation {
    /// Begins to tell the coordinator at `place`.
    #[must_use]
    pub fn begin(place: Place, how: How, code: UserCode, dataset: String) -> Preparation {
        let connection = Arc::new(OnceLock::new());
        let wanted = Arc::downgrade(&connection);
        let tell = move || {
            let Ok(opened) = Connection::open(&place, &how) else {
                return;
            };
            let code = Box::new(code);
            // The loader may have been closed, or may have attached, meanwhile.
            if let Some(connection) = wanted.upgrade()
                && opened.send(&Request::Prepare { code, dataset }).is_ok()
            {
                let _ = connection.set(opened);
            }
        };
        // Where no thread can be had, the coordinator is not told.
        let _ = std::thread::Builder::new()
            .name("coprep-prepare".into())
            .spawn(tell);
        Preparation {
            _connection: connection,
        }
    }
}
