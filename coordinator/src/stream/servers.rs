//! The jobs that give the fork server of their code.
//!
//! A fork server is forked from a job that is attached, and ends with it ([`processes`](crate::produce::processes)). A
//! job can fork only in its own thread, while it calls its loader. So a job is asked that waits for a batch, or that
//! begins an epoch. One that does not answer soon may have been stopped, and then another one is asked.
//!
//! A fork server keeps the memory of the moment in which it was forked. Without persistent workers it therefore ends when
//! no job iterates an epoch, as PyTorch's workers do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::connection::reply_queue::ReplyQueue;
use crate::produce::processes::{GivenServer, ProcessPool};
use crate::stream::engine::Engine;
use crate::stream::{RankId, Stream};

/// Time that a job which waits gets to give a fork server before another one is asked.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// Interval at which a job that waits is looked for.
const SOON: Duration = Duration::from_millis(10);
/// Time for which a fork server is kept after the last job has left its epoch early. A loop that takes one batch of each
/// epoch begins the next one at once.
const KEPT: Duration = Duration::from_secs(1);

impl Stream {
    fn process_pool(&self) -> Option<&Arc<ProcessPool>> {
        self.config.producer.process_pool()
    }

    /// Looks for a consumer that gives a fork server, because the last one has ended.
    pub(crate) fn look_for_server(&self) {
        // The driver asks the consumers.
        self.doorbell.ring();
    }

    /// Returns `true` if the fork server that a consumer gives stays between its epochs.
    pub(crate) fn is_persistent(&self, rank_id: RankId) -> bool {
        let mut engine = self.engine();
        let consumer = engine.consumer(rank_id);
        consumer.is_some_and(|consumer| consumer.is_persistent)
    }

    /// Takes the fork server that a consumer gives.
    pub(crate) fn give_server(&self, rank_id: RankId, given: GivenServer) {
        let mut engine = self.engine();
        if let Some(consumer) = engine.consumer(rank_id) {
            consumer.was_asked_for_server = false;
            // It came while the stream had no fork server. The others are compared with it instead.
            let pid = consumer.pid;
            if consumer.is_unproven.swap(false, Ordering::Relaxed) {
                let others = engine.consumers().filter(|consumer| consumer.pid != pid);
                others.for_each(|consumer| consumer.is_unproven.store(true, Ordering::Relaxed));
            }
        }
        drop(engine);
        if let Some(process_pool) = self.process_pool() {
            process_pool.give_server(given);
        }
    }

    /// Records that a consumer cannot give a fork server.
    pub(crate) fn give_no_server(self: &Arc<Self>, rank_id: RankId) {
        let mut engine = self.engine();
        engine.servers.asked = None;
        if let Some(consumer) = engine.consumer(rank_id) {
            consumer.gives_no_server = true;
        }
        self.pump(&mut engine);
    }

    /// Ends the fork server of a job that leaves, if it gave one, and looks for another.
    pub(crate) fn end_server_of(&self, job: &Arc<ReplyQueue>) {
        let process_pool = self.process_pool();
        if process_pool.is_some_and(|pool| pool.end_server_of(job)) {
            self.look_for_server();
        }
    }

    /// Returns `true` if a consumer that begins an epoch should give a fork server.
    pub(super) fn wants_server_of(&self, engine: &mut Engine, rank_id: RankId) -> bool {
        engine.servers.ends_at = None;
        let Some(process_pool) = self.process_pool() else {
            return false;
        };
        let consumer = engine.consumer(rank_id);
        let wants = process_pool.wants_server() && consumer.is_some_and(|c| !c.gives_no_server);
        if wants {
            engine.servers.asked = Some(Instant::now());
        }
        wants
    }

    /// Records that a consumer iterates no epoch any more. Returns the process id of the fork server that ends now, or 0.
    pub(crate) fn epoch_left(&self, rank_id: RankId, epoch: u64, is_complete: bool) -> u32 {
        let mut engine = self.engine();
        if let Some(consumer) = engine.consumer(rank_id) {
            consumer.leave_pass(epoch);
        }
        if engine.is_any_in_pass() {
            return 0;
        }
        if !is_complete {
            engine.servers.ends_at = Some(Instant::now() + KEPT);
            self.doorbell.ring();
            return 0;
        }
        let process_pool = self.process_pool();
        let ended = process_pool.and_then(|process_pool| process_pool.end_idle_server());
        ended.unwrap_or(0)
    }

    /// Ends a fork server that nobody needs, and asks a consumer that waits for one if there is none. Returns when to
    /// check again.
    pub(super) fn tend_server(&self, engine: &mut Engine) -> Option<Instant> {
        let process_pool = self.process_pool()?;
        let now = Instant::now();
        if let Some(end) = engine.servers.ends_at {
            if engine.is_any_in_pass() {
                engine.servers.ends_at = None;
            } else if now < end {
                return Some(end);
            } else {
                engine.servers.ends_at = None;
                process_pool.end_idle_server();
            }
        }
        if !process_pool.wants_server() || !engine.is_any_in_pass() {
            engine.servers.asked = None;
            return None;
        }
        let patience = engine.servers.asked.map(|asked| asked + ANSWER_TIME);
        if let Some(until) = patience.filter(|until| now < *until) {
            return Some(until);
        }
        let is_asked = engine.ask_for_server();
        engine.servers.asked = is_asked.then_some(now);
        Some(now + if is_asked { ANSWER_TIME } else { SOON })
    }
}
