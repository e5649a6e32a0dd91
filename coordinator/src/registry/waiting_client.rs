//! A client that waits for a flight. It is told which step it waits for, and its wait is bounded.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use coprep_protocol::message::{Awaited, Reply};

use super::flights::FlightParty;
use crate::error::{ErrorKind, invalid};
use crate::stream::Client;
use crate::{Error, Result};

/// Longest wait for a dataset to be opened. A job has a shorter limit of its own (`timeout`).
const LIMIT: Duration = Duration::from_secs(3600);
/// Time after which a client is told the step that it waits for, so that its own error can name it. It is told again at
/// every change.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Time after which the wait is logged.
const LOG_AFTER: Duration = Duration::from_secs(10);
const REMEDY: &str = "nothing is wrong if it is large or its storage slow; what it prints is in the coordinator's log";

/// A client that waits; see the module.
pub(crate) struct WaitingClient<'a> {
    client: &'a Client,
    came: Instant,
    told: RefCell<ToldState>,
}

/// Returns what the user can do about a wait.
fn remedy() -> &'static str {
    coprep_storage::descriptor_shortage().unwrap_or(REMEDY)
}

#[derive(Default)]
struct ToldState {
    /// The step that the client was told last.
    step: String,
    is_logged: bool,
}

impl<'a> WaitingClient<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        WaitingClient {
            client,
            came: Instant::now(),
            told: RefCell::default(),
        }
    }

    fn notify(&self, step: &str, began: Instant) {
        let waited = self.came.elapsed();
        let mut told = self.told.borrow_mut();
        if waited >= TELL_AFTER && told.step != step {
            step.clone_into(&mut told.step);
            let awaited = Reply::Awaited(Some(Awaited {
                what: step.to_owned(),
                for_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                remedy: remedy().into(),
            }));
            // If the client is gone, the next check sees it.
            let _ = self.client.reply_queue.send(&awaited);
        }
        if waited >= LOG_AFTER && !told.is_logged {
            told.is_logged = true;
            let seconds = began.elapsed().as_secs();
            tracing::warn!(awaited = step, seconds, "a client waits");
        }
    }
}

impl FlightParty for WaitingClient<'_> {
    fn still_waits(&self, step: &str, began: Instant) -> Result<()> {
        if self.client.is_gone() {
            return Err(invalid("the client left while it waited"));
        }
        let waited = self.came.elapsed();
        if waited >= LIMIT {
            let seconds = began.elapsed().as_secs();
            let waited = waited.as_secs();
            let what = format!("waited {waited} s, and {step}, for {seconds} s");
            return Err(Error::new(ErrorKind::Late, what).with_remedy(remedy()));
        }
        self.notify(step, began);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use coprep_protocol::frame;
    use coprep_protocol::message::RefusalKind;

    use super::*;
    use crate::connection::peer::Peer;
    use crate::connection::reply_queue::{ReplyQueue, ReplyWriter};

    const STEP: &str = "the files of the folder /photos are being listed";

    fn client(socket: &UnixStream) -> Client {
        Client {
            name: "job".into(),
            pid: 1,
            reply_queue: ReplyQueue::new(socket, &ReplyWriter::start().unwrap()).unwrap(),
            peer: Arc::new(Peer::of(socket)),
            is_unproven: Arc::default(),
        }
    }

    fn ago(time: Duration) -> Instant {
        Instant::now().checked_sub(time).unwrap()
    }

    #[test]
    fn who_waits_is_told_once_what_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = client(&ours);
        let mut waiting = WaitingClient::new(&client);
        waiting
            .still_waits(STEP, ago(Duration::from_secs(7)))
            .unwrap();
        waiting.came = ago(TELL_AFTER);
        for _ in 0..3 {
            waiting
                .still_waits(STEP, ago(Duration::from_secs(7)))
                .unwrap();
        }
        waiting.still_waits("more", Instant::now()).unwrap();
        let told = || match frame::receive::<Reply>(&theirs).unwrap().0 {
            Reply::Awaited(Some(awaited)) => (awaited.what, awaited.for_ms / 1000),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(), (STEP.into(), 7));
        assert_eq!(told(), ("more".into(), 0));
    }

    #[test]
    fn a_wait_is_bounded_and_its_error_names_the_folder() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = client(&ours);
        let mut waiting = WaitingClient::new(&client);
        waiting.came = ago(LIMIT);
        let late = waiting.still_waits(STEP, ago(LIMIT)).unwrap_err();
        let refusal = crate::error::refusal(&late);
        assert_eq!(refusal.kind, RefusalKind::Late);
        assert!(refusal.message.contains(STEP), "{}", refusal.message);
        drop(theirs);
        assert!(
            WaitingClient::new(&client)
                .still_waits(STEP, Instant::now())
                .is_err()
        );
    }
}
