//! The replies of a session, queued until its client takes them, and the thread that sends them.
//!
//! A stream tells its consumers of errors while its lock is held, so queueing a reply does no I/O and never waits. A
//! [`ReplyQueue`] is the queue of one session. One thread for all sessions, the [`ReplyWriter`], sends queued replies
//! with non-blocking calls, and sleeps in `poll` on the sockets that are full.
//!
//! * A session that answers a request sends directly when its queue is empty, so that an answer needs no switch of
//!   threads. The bytes that the socket does not take are queued for the writer.
//! * An idle session costs an empty queue. With a thread per session, 64 jobs would cost 64 threads that sleep; one
//!   thread suffices because no call of it waits for one client.
//! * Only one thread writes to a socket at a time (`is_writing`), and no lock is held during a call. So
//!   [`hang_up`](ReplyQueue::hang_up) and [`is_gone`](ReplyQueue::is_gone) never wait for a writer.
//!
//! **Bounds.** A client may compute for a while without reading: its connection lives, and its replies wait here, up to
//! [`MOST_QUEUED`] bytes and one message more. Beyond that, an error stays in the stream, which is rung when there is
//! room again ([`queue_error`](ReplyQueue::queue_error)); a session reads no further request
//! ([`wait_for_room`](ReplyQueue::wait_for_room)); and reports of progress are left out.
//!
//! A thread that panics while it writes to a session ends that session.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use coprep_protocol::frame;
use coprep_protocol::message::{Reply, SampleError};
use coprep_protocol::outgoing::Outgoing;
use coprep_protocol::polling::poll;
use coprep_shared_memory::lock::{lock, unpoisoned};
use fail::fail_point;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Result;
use crate::error::os;

/// Bytes of replies that may wait for one client before no more are queued.
const MOST_QUEUED: usize = 1 << 20;

/// Pause of the writer after `poll` fails.
const PAUSE: Duration = Duration::from_millis(10);

/// Called when a full queue has room again. Must neither wait nor take a lock that is held while replies are queued.
type OnRoom = Arc<dyn Fn() + Send + Sync>;

/// The queue of one session.
pub(crate) struct ReplyQueue {
    socket: UnixStream,
    queue: Mutex<PendingReplies>,
    /// Notified when the queue has room again, or is closed.
    room: Condvar,
    writer: Arc<Writer>,
}

#[derive(Default)]
struct PendingReplies {
    waiting: VecDeque<QueuedReply>,
    /// Bytes of the replies that wait and of the reply that is being sent.
    bytes: usize,
    /// `true` while a thread has taken the front and sends it.
    is_writing: bool,
    /// `true` while the writer's thread has this queue on its list.
    is_watched: bool,
    /// `true` if nothing more is sent.
    is_closed: bool,
    on_room: Option<OnRoom>,
    /// `true` if a reply was refused for lack of room.
    is_room_wanted: bool,
}

/// A reply in the queue.
struct QueuedReply {
    content: Content,
    /// Bytes that it adds to [`PendingReplies::bytes`].
    weight: usize,
}

enum Content {
    Encoded(Outgoing),
    /// Encoded when it is sent: other sessions may hold the same error, and encoding a large one takes time.
    Error(Arc<SampleError>),
}

impl ReplyQueue {
    pub(crate) fn new(socket: &UnixStream, writer: &ReplyWriter) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(ReplyQueue {
            socket: socket.try_clone()?,
            queue: Mutex::default(),
            room: Condvar::new(),
            writer: writer.0.clone(),
        }))
    }

    fn queue(&self) -> MutexGuard<'_, PendingReplies> {
        lock(&self.queue)
    }

    // Called by the session's own thread.

    /// Sends an answer, or queues the part that the socket does not take now.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(crate) fn send(self: &Arc<Self>, reply: &Reply) -> frame::Result<()> {
        self.send_with(reply, Vec::new())
    }

    pub(crate) fn send_with(
        self: &Arc<Self>,
        reply: &Reply,
        descriptors: Vec<OwnedFd>,
    ) -> frame::Result<()> {
        self.push(encoded(reply, descriptors)?);
        self.write();
        self.watch_if_needed();
        if self.queue().is_closed {
            Err(frame::closed())
        } else {
            Ok(())
        }
    }

    /// Waits until there is room for the answer to another request, or the connection has ended. Returns `false` if
    /// `limit` passes before.
    pub(crate) fn wait_for_room(&self, limit: Duration) -> bool {
        let full = |queue: &mut PendingReplies| !queue.is_closed && queue.bytes >= MOST_QUEUED;
        let waited = self.room.wait_timeout_while(self.queue(), limit, full);
        !unpoisoned(waited).1.timed_out()
    }

    /// Returns `true` if nothing waits to be sent: the client has been sent everything, or its queue is closed.
    pub(crate) fn is_empty(&self) -> bool {
        let queue = self.queue();
        queue.waiting.is_empty() && !queue.is_writing
    }

    // Called by threads that may hold a lock.

    /// Queues a reply of bounded size.
    pub(crate) fn post(self: &Arc<Self>, reply: &Reply) -> frame::Result<()> {
        self.post_with(reply, Vec::new())
    }

    /// Queues a reply of bounded size, with descriptors.
    pub(crate) fn post_with(
        self: &Arc<Self>,
        reply: &Reply,
        descriptors: Vec<OwnedFd>,
    ) -> frame::Result<()> {
        self.push(encoded(reply, descriptors)?);
        self.watch_if_needed();
        Ok(())
    }

    /// Queues an error. Returns `false` if there is no room. The function named in [`on_room`](Self::on_room) is then
    /// called when there is room again.
    pub(crate) fn queue_error(self: &Arc<Self>, error: &Arc<SampleError>) -> bool {
        self.has_room()
            && self.push_and_watch(QueuedReply {
                content: Content::Error(error.clone()),
                weight: size(error),
            })
    }

    /// Queues a reply as [`queue_error`](Self::queue_error) queues an error.
    pub(crate) fn queue_reply(self: &Arc<Self>, reply: &Reply) -> bool {
        // A reply that is too long to be sent is dropped, because waiting would not help.
        self.has_room()
            && encoded(reply, Vec::new()).map_or(true, |waiting| self.push_and_watch(waiting))
    }

    /// Sends a reply, or queues the part that the socket does not take now. Drops the reply if there is no room. The
    /// caller must hold no lock.
    pub(crate) fn push_reply(self: &Arc<Self>, reply: &Reply) {
        let encoded = encoded(reply, Vec::new());
        if let (true, Ok(waiting)) = (self.has_room(), encoded) {
            self.push(waiting);
            self.write();
            self.watch_if_needed();
        }
    }

    /// Returns `false` if the queue is full. [`on_room`](Self::on_room) is then called when it has room again.
    fn has_room(&self) -> bool {
        let mut queue = self.queue();
        let is_full = queue.bytes >= MOST_QUEUED && !queue.is_closed;
        queue.is_room_wanted |= is_full;
        !is_full
    }

    fn push_and_watch(self: &Arc<Self>, waiting: QueuedReply) -> bool {
        self.push(waiting);
        self.watch_if_needed();
        true
    }

    /// Sets the function that is called when there is room again.
    pub(crate) fn on_room(&self, call: impl Fn() + Send + Sync + 'static) {
        self.queue().on_room = Some(Arc::new(call));
    }

    /// Returns `true` if the other side has hung up, or is no more.
    pub(crate) fn is_gone(&self) -> bool {
        // `poll` reports an end of the connection without being asked for it.
        let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        let ends = PollFlags::POLLHUP | PollFlags::POLLERR;
        let seen = poll(&mut socket, Some(Duration::ZERO)).map(|_| socket[0].revents());
        matches!(seen, Ok(Some(seen)) if seen.intersects(ends))
    }

    /// Returns `true` if this process has ended the connection, or found that nothing can be sent.
    pub(crate) fn is_closed(&self) -> bool {
        self.queue().is_closed
    }

    /// Ends the connection, both ways; the session's reader notices. Replies that are queued are dropped.
    pub(crate) fn hang_up(&self) {
        self.close();
        // Does not wait: it marks both ends and wakes the threads that sleep there.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Tells the client that its connection is over, and keeps reading. The client may still take minibatches that lie
    /// ready for it in shared memory, which remain its own until it has closed its side.
    pub(crate) fn part(&self) {
        self.close();
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        let dropped = std::mem::take(&mut queue.waiting);
        queue.bytes = 0;
        queue.on_room = None;
        // There may be many large replies, so they are freed without the lock.
        drop(queue);
        drop(dropped);
        self.room.notify_all();
    }

    // Sending queued replies.

    fn push(&self, waiting: QueuedReply) {
        let mut queue = self.queue();
        // Nobody would send a reply of a closed queue, and its bytes would count as waiting.
        if !queue.is_closed {
            queue.bytes += waiting.weight;
            queue.waiting.push_back(waiting);
        }
    }

    /// Hands the queue to the writer's thread, if a reply waits that no thread sends.
    fn watch_if_needed(self: &Arc<Self>) {
        let mut queue = self.queue();
        if queue.waiting.is_empty() || queue.is_writing || queue.is_watched {
            return;
        }
        queue.is_watched = true;
        drop(queue);
        self.writer.watch(self.clone());
    }

    /// Removes the queue from the writer's list if no reply waits. Returns `true` if it stays on the list.
    fn stays_watched(&self) -> bool {
        let mut queue = self.queue();
        queue.is_watched = !queue.waiting.is_empty();
        queue.is_watched
    }

    /// Sends until the queue is empty or the socket full. Does nothing if another thread is writing; that thread sends
    /// the replies that were queued meanwhile.
    fn write(&self) {
        if std::mem::replace(&mut self.queue().is_writing, true) {
            return;
        }
        let panicking = PartOnPanic(self);
        while let Some(next) = self.next() {
            if !self.write_one(next) {
                break;
            }
        }
        // Nothing has panicked, and `next` or `write_one` has cleared `is_writing`.
        std::mem::forget(panicking);
    }

    /// Takes the front of the queue, or clears `is_writing` if the queue is empty.
    fn next(&self) -> Option<QueuedReply> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front();
        queue.is_writing = next.is_some();
        next
    }

    /// Sends one reply. Returns `false` if the socket is full or closed, and this thread then stops writing.
    fn write_one(&self, next: QueuedReply) -> bool {
        let QueuedReply { content, weight } = next;
        let outgoing = match content {
            Content::Encoded(outgoing) => Ok(outgoing),
            Content::Error(error) => {
                Outgoing::new(&Reply::SampleError((*error).clone()), Vec::new())
            }
        };
        let sent = outgoing
            .map_err(std::io::Error::other)
            .and_then(|mut outgoing| Ok((outgoing.send_some(&self.socket)?, outgoing)));
        match sent {
            Ok((true, _)) => self.was_sent(weight),
            Ok((false, outgoing)) => self.put_back(QueuedReply {
                content: Content::Encoded(outgoing),
                weight,
            }),
            Err(e) => {
                tracing::debug!(parent: None, error = %e, "a client cannot be answered");
                // Closed before `is_writing` is cleared, so that no other thread sends behind a frame that was cut off.
                self.hang_up();
                self.queue().is_writing = false;
                false
            }
        }
    }

    fn was_sent(&self, weight: usize) -> bool {
        let mut queue = self.queue();
        // Saturating, because `close` may have set the count to 0 meanwhile.
        queue.bytes = queue.bytes.saturating_sub(weight);
        if queue.bytes >= MOST_QUEUED {
            return true;
        }
        let wanted = std::mem::take(&mut queue.is_room_wanted);
        let on_room = queue.on_room.clone().filter(|_| wanted);
        drop(queue);
        self.room.notify_all();
        if let Some(call) = on_room {
            call();
        }
        true
    }

    fn put_back(&self, waiting: QueuedReply) -> bool {
        let mut queue = self.queue();
        queue.is_writing = false;
        if !queue.is_closed {
            queue.waiting.push_front(waiting);
        }
        false
    }
}

/// Ends the session of a thread that panics while it writes: a frame may be cut off, and `is_writing` would stay set.
struct PartOnPanic<'a>(&'a ReplyQueue);

impl Drop for PartOnPanic<'_> {
    fn drop(&mut self) {
        // Closed first, so that no other thread sends behind a frame that was cut off.
        self.0.part();
        self.0.queue().is_writing = false;
    }
}

fn encoded(reply: &Reply, descriptors: Vec<OwnedFd>) -> frame::Result<QueuedReply> {
    let outgoing = Outgoing::new(reply, descriptors)?;
    Ok(QueuedReply {
        weight: outgoing.bytes(),
        content: Content::Encoded(outgoing),
    })
}

/// Returns the approximate size of an error in bytes, in memory and on the wire.
pub(crate) fn size(error: &SampleError) -> usize {
    let SampleError {
        path,
        message,
        exception,
        ..
    } = error;
    256 + path.len() + message.len() + exception.len()
}

/// The thread that sends queued replies. It ends when this is dropped.
pub(crate) struct ReplyWriter(Arc<Writer>);

struct Writer {
    /// Queues to add to the thread's list.
    coming: Mutex<Vec<Arc<ReplyQueue>>>,
    /// Rung when a queue is added.
    event: EventFd,
    stop: AtomicBool,
}

impl ReplyWriter {
    pub(crate) fn start() -> Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let writer = Arc::new(Writer {
            coming: Mutex::default(),
            event: event.map_err(|e| os("cannot make an eventfd", e))?,
            stop: AtomicBool::new(false),
        });
        let thread = writer.clone();
        std::thread::Builder::new()
            .name("replies".into())
            .spawn(move || thread.run())
            .map_err(|e| os("cannot start a thread", e))?;
        Ok(ReplyWriter(writer))
    }
}

impl Drop for ReplyWriter {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        // A write fails only if the event is full of rings, and then it wakes the thread as well.
        let _ = self.0.event.write(1);
    }
}

impl Writer {
    fn watch(&self, reply_queue: Arc<ReplyQueue>) {
        // Pushed before the ring, so that the thread that wakes finds the queue.
        self.coming().push(reply_queue);
        let _ = self.event.write(1);
    }

    fn coming(&self) -> MutexGuard<'_, Vec<Arc<ReplyQueue>>> {
        lock(&self.coming)
    }

    fn run(&self) {
        let mut watched = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            watched.append(&mut self.coming());
            watched.retain(serve);
            self.sleep(&watched);
        }
    }

    /// Sleeps until a full socket takes data again, or another queue is added.
    fn sleep(&self, watched: &[Arc<ReplyQueue>]) {
        let event = PollFd::new(self.event.as_fd(), PollFlags::POLLIN);
        let full = watched
            .iter()
            .map(|reply_queue| PollFd::new(reply_queue.socket.as_fd(), PollFlags::POLLOUT));
        let mut fds: Vec<PollFd> = std::iter::once(event).chain(full).collect();
        if poll(&mut fds, None).is_err() {
            // Without a pause, a `poll` that keeps failing would take a whole processor.
            std::thread::sleep(PAUSE);
        }
        // An error here means that nobody rang, which is fine.
        let _ = self.event.read();
    }
}

/// Sends the queued replies of a session. Returns `true` if some are left. A panic ends only that session.
fn serve(reply_queue: &Arc<ReplyQueue>) -> bool {
    let written = catch_unwind(AssertUnwindSafe(|| {
        fail_point!("reply-writer");
        reply_queue.write();
    }));
    if written.is_err() {
        tracing::error!(parent: None, "the thread that sends replies panicked: a defect of coprep, please report it");
        reply_queue.part();
    }
    reply_queue.stays_watched()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;

    use coprep_protocol::frame;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn error(tag: u64, bytes: usize) -> Arc<SampleError> {
        Arc::new(SampleError {
            tag,
            id: 0,
            path: String::new(),
            stage: "dataset".into(),
            message: "x".repeat(bytes),
            worker: String::new(),
            exception: Vec::new(),
        })
    }

    fn session() -> (ReplyWriter, Arc<ReplyQueue>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let writer = ReplyWriter::start().expect("a thread");
        let reply_queue = ReplyQueue::new(&ours, &writer).expect("a queue");
        (writer, reply_queue, theirs)
    }

    fn tags(client: &UnixStream, count: u64) -> Vec<u64> {
        let tag = |_| match frame::receive::<Reply>(client).expect("received").0 {
            Reply::SampleError(error) => error.tag,
            other => panic!("{other:?}"),
        };
        (0..count).map(tag).collect()
    }

    #[test]
    fn what_a_client_does_not_read_waits_up_to_a_bound_and_comes_in_order() {
        let (_writer, reply_queue, client) = session();
        let (tell, told) = mpsc::channel();
        reply_queue.on_room(move || tell.send(()).expect("somebody listens"));
        // The socket takes some bytes as well, so the queue may have room again once or twice.
        let mut queued = 0;
        loop {
            while reply_queue.queue_error(&error(queued, 1 << 17)) {
                queued += 1;
            }
            if told.recv_timeout(Duration::from_millis(200)).is_err() {
                break;
            }
        }
        assert!((8..64).contains(&queued), "{queued}");
        assert_eq!(tags(&client, queued), (0..queued).collect::<Vec<_>>());
        told.recv_timeout(LIMIT).expect("there is room");
        assert!(reply_queue.queue_error(&error(queued, 1)));
        assert_eq!(tags(&client, 1), [queued]);
        assert!(!reply_queue.is_gone());
    }

    #[test]
    fn an_answer_comes_after_what_was_queued_before_it() {
        let (_writer, reply_queue, client) = session();
        for tag in 0..4 {
            assert!(reply_queue.queue_error(&error(tag, 1 << 17)));
        }
        reply_queue
            .send(&Reply::WantServer)
            .expect("the client is there");
        assert_eq!(tags(&client, 4), [0, 1, 2, 3]);
        let (answer, _) = frame::receive::<Reply>(&client).expect("received");
        assert_eq!(answer, Reply::WantServer);
        assert!(reply_queue.wait_for_room(LIMIT));
    }

    #[test]
    fn hanging_up_does_not_wait_for_a_client_that_does_not_read() {
        let (_writer, reply_queue, client) = session();
        while reply_queue.queue_error(&error(0, 1 << 17)) {}
        reply_queue.hang_up();
        assert!(reply_queue.is_gone());
        assert!(reply_queue.wait_for_room(LIMIT));
        assert!(reply_queue.send(&Reply::WantServer).is_err());
        assert!(
            reply_queue.queue_error(&error(1, 1)),
            "nobody is to wait for room"
        );
        drop(client);
    }

    #[test]
    fn a_panic_of_the_writer_leaves_an_empty_queue_that_is_closed() {
        let (_writer, reply_queue, client) = session();
        reply_queue.on_room(|| panic!("a panic that a test wants"));
        while reply_queue.queue_error(&error(0, 1 << 17)) {}
        // The client reads, so the writer sends, finds room, and panics.
        let _ = (&client).read_to_end(&mut Vec::new());
        assert!(reply_queue.is_closed());
        // The test runner ends a test that hangs.
        while !reply_queue.is_empty() {
            std::thread::yield_now();
        }
        assert!(reply_queue.send(&Reply::WantServer).is_err());
    }

    #[test]
    fn a_client_that_goes_frees_what_waited_for_it() {
        let (_writer, reply_queue, client) = session();
        while reply_queue.queue_error(&error(0, 1 << 17)) {}
        drop(client);
        // The test runner ends a test that hangs.
        while !reply_queue.is_empty() {
            assert!(reply_queue.wait_for_room(LIMIT));
            std::thread::yield_now();
        }
        assert!(reply_queue.is_gone());
    }
}
