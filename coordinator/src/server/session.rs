//! One connection: reads requests and answers them. When it ends, for whatever reason, it releases everything it owns.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use coprep_pipeline::Pipeline;
use coprep_protocol::frame;
use coprep_protocol::message::{
    Attach, Awaited, Departure, Describe, GiveCredentials, GpuUse, Reply, Request, Warm,
};
use coprep_storage::Slowness;
use fail::fail_point;

use crate::Result;
use crate::connection::peer::{ConnectionEvent, Peer};
use crate::connection::reply_queue::{ReplyQueue, ReplyWriter};
use crate::error::{defect, from_lower, invalid, refusal};
use crate::produce::processes::{GivenServer, Giver};
use crate::registry::{Answer, GivenByClient, MeetingParty, Registry, Shadow, WaitingClient};
use crate::registry::{status, warm};
use crate::server::Shutdown;
use crate::stream::{Client, EpochOrder, LeftAt, RankId, Stream};

/// Interval at which a client that does not read its answers is checked for being gone.
const PEER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time that a process may take to count as ended after its connections are closed, and the interval of the checks.
const SOON: Duration = Duration::from_millis(200);
const LITTLE: Duration = Duration::from_millis(5);

const SAME_DATASET: &str =
    "let all ranks, and all members of a cohort, have the same dataset, code and interpreter";

/// A connection's state.
struct Session<'a> {
    registry: &'a Arc<Registry>,
    shutdown: &'a Shutdown,
    client: Client,
    attached: Option<(Arc<Stream>, RankId)>,
    /// The processes that this client must meet in its stream.
    party: Option<MeetingParty>,
    /// The credentials that this client has given.
    given: Option<GivenByClient>,
    later_shadows: LaterShadows,
}

/// The samples of an attached job that are compared later on, as those with which it joined.
#[derive(Default)]
struct LaterShadows {
    /// What the job asked for when it attached.
    request: Option<Arc<Attach>>,
    /// Samples of an epoch of the job.
    per_epoch: u64,
    /// Samples of the epochs that have begun since the last comparison.
    begun: u64,
    /// `true` if the job was asked for a fork server to compare with.
    is_asked: bool,
}

/// Samples of a job after which a few more are compared, at the beginning of an epoch.
const COMPARED_EVERY: u64 = 10_000;

/// Serves one connection until it ends.
pub(crate) fn serve(
    registry: &Arc<Registry>,
    shutdown: &Shutdown,
    replies: &ReplyWriter,
    socket: &UnixStream,
) {
    // Dropped last of all, so that a client that sees the connection end knows that the job has left.
    let _hangs_up = HangUp(socket);
    match greet(socket, replies) {
        Ok(client) => {
            let mut session = Session {
                registry,
                shutdown,
                client,
                attached: None,
                party: None,
                given: None,
                later_shadows: LaterShadows::default(),
            };
            // Every log line of this thread names the client.
            let client = &session.client;
            let _span =
                tracing::error_span!("session", pid = client.pid, client = client.name).entered();
            let ended = catch_unwind(AssertUnwindSafe(|| session.run(socket)));
            match &ended {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::warn!(error = %e, "a connection has ended"),
                Err(_) => {
                    tracing::error!("a session panicked: a defect of coprep, please report it");
                }
            }
            // This process ended the connection, so the client may still read a batch, and its buffer must not be
            // filled again yet.
            if !matches!(ended, Ok(Ok(()))) {
                session.client.reply_queue.part();
                wait_until_gone(&session.client, socket);
            }
            // Dropped here and not while a panic unwinds, when a second panic would end the process.
            drop(session);
        }
        Err(e) if *e.kind() == frame::ErrorKind::Closed => {}
        Err(e) => tracing::warn!(error = %e, "a connection is refused"),
    }
}

/// Waits until the client has closed its side: see [`ReplyQueue::part`].
fn wait_until_gone(client: &Client, mut socket: &UnixStream) {
    let mut unheard = [0; 4096];
    while matches!(client.peer.wait(socket), Ok(ConnectionEvent::Something))
        && matches!(socket.read(&mut unheard), Ok(1..))
    {}
}

/// Ends a connection when it is dropped.
struct HangUp<'a>(&'a UnixStream);

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// Reads the greeting, which must be the first message and come within 10 seconds.
fn greet(socket: &UnixStream, replies: &ReplyWriter) -> frame::Result<Client> {
    // A peer that says nothing must not keep a thread and one of the connections that are allowed.
    socket
        .set_read_timeout(Some(std::time::Duration::from_secs(10)))
        .map_err(frame::failed)?;
    let (request, _) = frame::receive_despite_signals::<Request>(socket)?;
    // From here on a client may be silent for hours. `Peer::wait` sees its end.
    socket.set_read_timeout(None).map_err(frame::failed)?;
    let Request::Hello { name, pid } = request else {
        return Err(frame::malformed("the first message is not a greeting"));
    };
    let reply_queue = ReplyQueue::new(socket, replies).map_err(frame::failed)?;
    reply_queue.send(&Reply::Welcome {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
    })?;
    let peer = Arc::new(Peer::of(socket));
    Ok(Client {
        name,
        pid,
        reply_queue,
        peer,
        is_unproven: Arc::default(),
    })
}

impl Session<'_> {
    fn run(&mut self, socket: &UnixStream) -> frame::Result<()> {
        loop {
            // Do not read a client that asks without reading its answers.
            while !self.client.reply_queue.wait_for_room(PEER_CHECK_INTERVAL) {
                if self.client.is_gone() {
                    return Ok(());
                }
            }
            // A process that has ended is gone, even if a child of it holds the socket.
            if self.client.peer.wait(socket).map_err(frame::failed)? == ConnectionEvent::Gone {
                return Ok(());
            }
            match frame::receive::<Request>(socket) {
                Ok((request, descriptors)) => self.answer(request, descriptors)?,
                Err(e) => match e.kind() {
                    // With a reset, the client ended without reading all of its replies, which is no failure.
                    frame::ErrorKind::Closed
                    | frame::ErrorKind::Io(io::ErrorKind::ConnectionReset) => return Ok(()),
                    frame::ErrorKind::Io(io::ErrorKind::Interrupted) => {}
                    _ => return Err(e),
                },
            }
        }
    }

    fn answer(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> frame::Result<()> {
        fail_point!("session-request");
        let was_attached = self.attached.is_some();
        let handled = catch_unwind(AssertUnwindSafe(|| self.handle(request, descriptors)));
        match handled {
            Ok(Ok(Some(reply))) => self.client.reply_queue.send(&reply),
            Ok(Ok(None)) => Ok(()),
            Ok(Err(e)) => self.client.reply_queue.send(&Reply::Refused(refusal(&e))),
            // Its client attaches again, and the stream knows what it was given. A request to attach may have been
            // answered already.
            Err(panic) if was_attached || self.attached.is_some() => resume_unwind(panic),
            Err(_) => {
                // Without an answer the client would connect and ask again, and the same request may panic each time.
                let refused = Reply::Refused(refusal(&defect("a request panicked")));
                self.client.reply_queue.send(&refused)?;
                Err(frame::malformed("a request panicked"))
            }
        }
    }

    fn handle(&mut self, request: Request, descriptors: Vec<OwnedFd>) -> Result<Option<Reply>> {
        match request {
            Request::Hello { .. } => Err(invalid("greeted twice")),
            Request::Attach(mut attach) => {
                self.registry.count_directory(&mut attach);
                self.registry.keep_apart(&mut attach, &self.client);
                self.attach(&Arc::from(attach), descriptors)
            }
            Request::GiveCredentials(request) => self.give_credentials(&request),
            Request::NoCredentials { why } => {
                self.give_no_credentials(why);
                Ok(None)
            }
            Request::UseGpu(gpu) => self.use_gpu(&gpu).map(|()| None),
            Request::RingMapped { pool, is_mapped } => {
                self.ring_mapped(pool, is_mapped).map(|()| None)
            }
            Request::EpochStarted { epoch } => self.start_epoch(epoch),
            Request::EpochLeft { epoch, is_complete } => {
                self.leave_epoch(epoch, is_complete).map(Some)
            }
            Request::GiveServer => self.give_server(descriptors).map(|()| None),
            Request::NoServer { why } => self.give_no_server(&why).map(|()| None),
            Request::TellOrder {
                epoch,
                samples,
                is_settled,
            } => {
                self.tell_order(epoch, samples, is_settled, descriptors)?;
                Ok(None)
            }
            Request::RestartEpoch { epoch, batches } => {
                self.restart_epoch(LeftAt { epoch, batches }).map(|()| None)
            }
            Request::Leave(departure) => self.leave(&departure).map(Some),
            Request::State { epoch, batches } => self.state(epoch, batches).map(Some),
            Request::Explain => self.explain().map(Some),
            Request::WhoIsAwaited => self.who_is_awaited().map(Some),
            Request::Describe(request) => self.describe(&request).map(Some),
            Request::Warm(request) => self.warm(&request).map(Some),
            Request::Status { slow } => Ok(Some(self.status(slow))),
            Request::Drop { name } => Ok(Some(self.drop_caches(name.as_deref()))),
            Request::KeepWarm { stream, keep } => self.keep_warm(stream, keep).map(Some),
            Request::Pipeline { stream } => self.pipeline(stream).map(Some),
            Request::Throttle {
                bytes_per_s,
                latency_ns,
            } => Ok(Some(self.throttle(bytes_per_s, latency_ns))),
            Request::Stop => {
                self.stop();
                Ok(None)
            }
        }
    }

    fn stream(&self, id: u64) -> Result<Arc<Stream>> {
        let streams = self.registry.streams();
        let found = streams.into_iter().find(|s| s.config.id == id);
        found.ok_or_else(|| invalid(format!("there is no stream {id}")))
    }

    fn attached(&self) -> Result<&(Arc<Stream>, RankId)> {
        self.attached
            .as_ref()
            .ok_or_else(|| invalid("this connection is not attached to a stream"))
    }
}

/// The requests, one function each.
impl Session<'_> {
    fn attach(
        &mut self,
        request: &Arc<Attach>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Reply>> {
        if self.attached.is_some() {
            return Err(invalid("this connection is attached already"));
        }
        let is_persistent = request.code.as_ref().is_some_and(|c| c.is_persistent);
        let server = self.given_server(descriptors, is_persistent);
        let answer = self.registry.attach(request, &self.client, server)?;
        let Answer::Admitted(stream, registration) = answer else {
            return Ok(Some(Reply::WantServer));
        };
        let RankId { job, rank } = registration.rank_id;
        tracing::info!(stream = stream.config.id, job, rank, "a job joins");
        // Set before the answer is sent: if that fails, the end of this session removes the rank.
        self.attached = Some((stream.clone(), registration.rank_id));
        self.party = MeetingParty::of(request);
        self.later_shadows = LaterShadows {
            request: Some(request.clone()),
            per_epoch: registration.attached.job_samples.into(),
            ..LaterShadows::default()
        };
        let attached = Reply::Attached(Box::new(registration.attached));
        let reply_queue = &self.client.reply_queue;
        let sent = reply_queue.send_with(&attached, registration.descriptors.into());
        sent.map_err(|e| invalid("the client went away while attaching").because(e))?;
        fail_point!("session-attached");
        stream.begin();
        Ok(None)
    }

    /// Returns the fork server whose socket came with a message, if one came.
    fn given_server(&self, descriptors: Vec<OwnedFd>, is_persistent: bool) -> Option<GivenServer> {
        let socket = descriptors.into_iter().next()?;
        Some(GivenServer {
            socket: UnixStream::from(socket),
            giver: Giver {
                reply_queue: self.client.reply_queue.clone(),
                peer: self.client.peer.clone(),
                pid: self.client.pid,
                is_persistent,
            },
        })
    }

    fn give_server(&mut self, descriptors: Vec<OwnedFd>) -> Result<()> {
        let is_to_compare = std::mem::take(&mut self.later_shadows.is_asked);
        let (stream, rank_id) = self.attached()?;
        let is_persistent = stream.is_persistent(*rank_id);
        let given = self.given_server(descriptors, is_persistent);
        let given = given.ok_or_else(|| invalid("a fork server without its socket"))?;
        if is_to_compare && let Some(shadow) = self.shadow() {
            shadow.look(self.registry, &self.client, given);
            return Ok(());
        }
        stream.give_server(*rank_id, given);
        Ok(())
    }

    fn give_no_server(&self, why: &str) -> Result<()> {
        let (stream, rank_id) = self.attached()?;
        tracing::info!(why, "a job cannot give a fork server");
        stream.give_no_server(*rank_id);
        Ok(())
    }

    fn give_credentials(&mut self, request: &GiveCredentials) -> Result<Option<Reply>> {
        if let Some(given) = &self.given {
            given.provider().give(&request.given);
            tracing::debug!("a job has given new credentials of its stores");
            return Ok(None);
        }
        let given = self.registry.take_credentials(request, &self.client)?;
        let provider = given.number;
        self.given = Some(given);
        Ok(Some(Reply::CredentialsTaken { provider }))
    }

    fn give_no_credentials(&self, why: String) {
        if let Some(given) = &self.given {
            tracing::warn!(why, "a job gives no credentials of its stores");
            given.provider().fail(why);
        }
    }

    fn use_gpu(&self, gpu: &GpuUse) -> Result<()> {
        let (stream, rank_id) = self.attached()?;
        let budget = self.registry.settings.device_memory;
        stream.use_gpu(*rank_id, gpu, &self.registry.uploaders, budget)
    }

    fn ring_mapped(&self, pool: u32, is_mapped: bool) -> Result<()> {
        let (stream, rank_id) = self.attached()?;
        stream.ring_mapped(*rank_id, pool, is_mapped);
        Ok(())
    }

    fn start_epoch(&mut self, epoch: u64) -> Result<Option<Reply>> {
        let (stream, rank_id) = self.attached()?;
        let wants_server = stream.epoch_started(*rank_id, epoch);
        if stream.config.producer.process_pool().is_none() {
            return Ok(None);
        }
        // The first comparison may still be going on when the first epoch begins.
        let is_unproven =
            self.later_shadows.begun > 0 && self.client.is_unproven.load(Ordering::Relaxed);
        let is_due = is_unproven || self.later_shadows.begun >= COMPARED_EVERY;
        let wants_shadow = !wants_server && is_due && self.shadow().is_some();
        let later = &mut self.later_shadows;
        if wants_shadow {
            (later.begun, later.is_asked) = (0, true);
            self.client.is_unproven.store(false, Ordering::Relaxed);
        }
        later.begun += later.per_epoch;
        Ok(Some(Reply::EpochBegun {
            wants_server: wants_server || wants_shadow,
        }))
    }

    /// Returns a comparison of samples of the attached job with those of its stream, if it has to be made.
    fn shadow(&self) -> Option<Shadow> {
        let (stream, _) = self.attached.as_ref()?;
        let request = self.later_shadows.request.as_ref()?;
        self.registry.shadow_of(stream, request, &self.client)
    }

    fn leave_epoch(&self, epoch: u64, is_complete: bool) -> Result<Reply> {
        let (stream, rank_id) = self.attached()?;
        let ended_server = stream.epoch_left(*rank_id, epoch, is_complete);
        Ok(Reply::EpochLeft { ended_server })
    }

    fn tell_order(
        &self,
        epoch: u64,
        samples: u32,
        is_settled: bool,
        descriptors: Vec<OwnedFd>,
    ) -> Result<()> {
        let (stream, rank_id) = self.attached()?;
        let file = descriptors.into_iter().next();
        let file = file.ok_or_else(|| invalid("an order without a file"))?;
        let order = EpochOrder::read(file, samples, stream.config.producer.samples())?;
        stream.tell_order(*rank_id, epoch, order, is_settled);
        Ok(())
    }

    fn restart_epoch(&self, left: LeftAt) -> Result<()> {
        let (stream, rank_id) = self.attached()?;
        stream.restart_epoch(*rank_id, left);
        Ok(())
    }

    fn leave(&self, departure: &Departure) -> Result<Reply> {
        let is_known = self.registry.leave(departure)?;
        Ok(Reply::Left { is_known })
    }

    fn state(&self, epoch: u64, batches: u64) -> Result<Reply> {
        let (stream, rank_id) = self.attached()?;
        Ok(Reply::State(stream.state(*rank_id, epoch, batches)?))
    }

    fn explain(&self) -> Result<Reply> {
        let (stream, rank_id) = self.attached()?;
        let mut text = stream.explain(*rank_id);
        text.extend(self.fellows_elsewhere(stream));
        Ok(Reply::Explanation(text))
    }

    /// Says where other ranks of the job, or members of its cohort, wait for this one, if they are in another stream.
    fn fellows_elsewhere(&self, stream: &Arc<Stream>) -> Option<String> {
        let party = self.party.as_ref()?;
        let differs = self.registry.fellows_elsewhere(party, stream)?;
        Some(format!(
            "; others wait for it in another stream, which differs in this: {differs}"
        ))
    }

    fn who_is_awaited(&self) -> Result<Reply> {
        let (stream, rank_id) = self.attached()?;
        let mut awaited = stream.who_is_awaited(*rank_id);
        if let Some(awaited) = &mut awaited
            && let Some(elsewhere) = self.fellows_elsewhere(stream)
        {
            awaited.what += &elsewhere;
            awaited.remedy = SAME_DATASET.into();
        }
        if let Some(Awaited { what, .. }) = &awaited {
            let RankId { job, rank } = *rank_id;
            tracing::warn!(
                stream = stream.config.id,
                job,
                rank,
                awaited = what,
                "a job waits"
            );
        }
        Ok(Reply::Awaited(awaited))
    }

    fn describe(&self, request: &Describe) -> Result<Reply> {
        let spec = &request.pipeline;
        if !spec.ops.is_empty() {
            Pipeline::check(&spec.ops).map_err(from_lower)?;
        }
        let waiting = WaitingClient::new(&self.client);
        let stores =
            self.registry
                .stores_of(&request.store_variables, request.provider, &spec.source)?;
        let dataset = self.registry.dataset(&spec.source, &stores, &waiting)?;
        // A source of files without operators is described too: its length and classes are known.
        let fields = if spec.ops.is_empty() && !dataset.is_of_arrays() {
            Vec::new()
        } else {
            let pipeline = Pipeline::for_dataset(&spec.ops, &dataset).map_err(from_lower)?;
            vec![pipeline.output()]
        };
        Ok(Reply::Described {
            samples: dataset.len(),
            classes: dataset.classes().to_vec(),
            fields,
        })
    }

    fn warm(&self, request: &Warm) -> Result<Reply> {
        warm::warm(self.registry, request, &self.client).map(Reply::Warmed)
    }

    fn status(&self, slow: u32) -> Reply {
        Reply::Status(Box::new(status::status(self.registry, slow)))
    }

    fn drop_caches(&self, name: Option<&str>) -> Reply {
        let bytes = self.registry.drop_caches(name);
        Reply::Dropped { bytes }
    }

    fn keep_warm(&self, stream: u64, keep: bool) -> Result<Reply> {
        let stream = self.stream(stream)?;
        warm::keep_warm(&stream, keep).map(Reply::Warmed)
    }

    fn pipeline(&self, stream: u64) -> Result<Reply> {
        let stream = self.stream(stream)?;
        let spec = stream.config.spec.clone().map(Box::new);
        Ok(Reply::Pipeline(spec))
    }

    fn throttle(&self, bytes_per_s: Option<u64>, latency_ns: u64) -> Reply {
        self.registry.throttle.set(Slowness {
            bytes_per_s,
            latency: Duration::from_nanos(latency_ns),
        });
        Reply::Throttled
    }

    fn stop(&self) {
        // Answer first, because stopping hangs up on every client.
        let _ = self.client.reply_queue.send(&Reply::Stopping);
        self.shutdown.request();
    }
}

impl Session<'_> {
    /// Returns `true` if this process has ended the connection of a client that is alive.
    fn has_lost_its_client(&self) -> bool {
        // When the client dies, its connections are closed before its process counts as ended.
        let is_gone = || self.client.peer.is_gone();
        let soon = Instant::now() + SOON;
        while self.client.reply_queue.is_closed() && !is_gone() && Instant::now() < soon {
            std::thread::sleep(LITTLE);
        }
        self.client.reply_queue.is_closed() && !is_gone()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.registry.end_server_of(&self.client.reply_queue);
        if let Some((stream, rank_id)) = self.attached.take() {
            let RankId { job, rank } = rank_id;
            // The second check may sleep, so it is made only if there are other ranks to send away.
            if stream.has_other_ranks(rank_id) && self.has_lost_its_client() {
                stream.lose_rank(rank_id);
            }
            tracing::info!(stream = stream.config.id, job, rank, "a job leaves");
            self.registry.detach(&stream, rank_id);
        }
        // Last, so that a client that sees its connection end knows that its rank was removed.
        self.client.reply_queue.hang_up();
    }
}
