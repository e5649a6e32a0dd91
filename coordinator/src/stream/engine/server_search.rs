//! The consumers that may give a fork server.

use std::time::Instant;

use crate::stream::consumer::Consumer;
use crate::stream::engine::Engine;

/// The state of the search for a fork server.
#[derive(Default)]
pub(crate) struct ServerSearch {
    /// Time when a consumer was asked last.
    pub(in crate::stream) asked: Option<Instant>,
    /// Time when the fork server ends if no epoch has begun by then.
    pub(in crate::stream) ends_at: Option<Instant>,
}

impl Engine {
    /// Returns `true` if a consumer iterates an epoch.
    pub(in crate::stream) fn is_any_in_pass(&mut self) -> bool {
        self.consumers().any(|consumer| consumer.is_in_pass)
    }

    /// Asks one consumer that waits for a batch, preferably one that was not asked before. Returns `false` if none waits.
    pub(in crate::stream) fn ask_for_server(&mut self) -> bool {
        let can = |c: &&mut Consumer| c.is_in_pass && !c.gives_no_server && c.waits();
        let able = self.consumers().filter(can);
        let found = able.min_by_key(|c| c.was_asked_for_server);
        let Some(consumer) = found else {
            return false;
        };
        consumer.ask_for_server();
        true
    }
}
