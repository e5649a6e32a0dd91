//! The uploader of a GPU, from the first ring that is opened there to the last one that is closed.
//!
//! One thread starts its process, sends it requests, and starts another one if it ends. The kernel ends the process with
//! that thread. Everybody else sends the thread a command, and is answered by [`RingOwner`], so nobody waits for a process.
//!
//! **If the process ends**, all its rings are lost: the owners are told, and after a pause rings are opened in another
//! process. After [`MOST_RESTARTS`] of them in a row that did not last, the owners are told that there will be no ring.
//!
//! **If it hangs**, in opening a ring or in a copy, it is killed. A process that hangs in the driver cannot be waited for,
//! and need not be: it can write only into its rings, which nobody uses any more.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as CommandSender, channel};
use std::time::{Duration, Instant};

use coprep_protocol::spec::Field;
use coprep_protocol::uploader::{OpenRing, UploaderEvent, UploaderRequest};
use coprep_shared_memory::handover::{Bell, Sender};

use crate::Result;
use crate::device::process::{Environment, ProcessEvent, THIS_PROGRAM, UploaderProcess};
use crate::error::os;

/// Number of times in a row that a process which has ended is replaced.
const MOST_RESTARTS: u32 = 3;
/// Time after which a process that ends counts as the first one of a row.
const LASTING: Duration = Duration::from_secs(10);
/// Pause before the second process. It doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest time to open a ring: the driver is loaded, a context made and the staging area pinned.
const LONGEST_OPENING: Duration = Duration::from_secs(60);

/// Reason to end a process whose answer about a ring makes no sense.
const OPENED_WRONGLY: &str = "opened a ring wrongly";

/// Everything that an uploader needs to open a ring.
pub(crate) struct RingOffer {
    pub(crate) fields: Vec<Field>,
    pub(crate) slots: u32,
    pub(crate) buffers: u32,
    /// Bytes of the GPU's memory that all rings there may take.
    pub(crate) budget: u64,
    /// Staging area, deliver, reply and doorbell.
    pub(crate) descriptors: [OwnedFd; 4],
    /// This end of the hand-over.
    pub(crate) sender: Sender,
    pub(crate) bell: Bell,
}

/// Buffers of a ring. With fewer, consumers would wait for each other: each may be handed two, and two are filled. Consumers
/// that stay together need about six; the others keep those that slower ones have still to be given.
pub(crate) const RING_BUFFERS: std::ops::RangeInclusive<u32> = 4..=18;

/// A ring that is open.
pub(crate) struct OpenedRing {
    pub(crate) uploader_pid: u32,
    pub(crate) buffers: u32,
    pub(crate) bytes: u64,
    pub(crate) why_bounced: Option<String>,
    /// The NUMA node of the GPU, if the process runs there.
    pub(crate) node: Option<u32>,
    /// Descriptor of the memory.
    pub(crate) memory: OwnedFd,
    pub(crate) sender: Sender,
    pub(crate) bell: Bell,
}

/// Whoever asked for a ring. The uploader's thread calls these functions, which may take locks.
pub(crate) trait RingOwner: Send + Sync {
    /// Makes a hand-over, before each attempt to open the ring.
    fn offer(&self) -> Result<RingOffer>;
    /// The ring is open.
    fn opened(&self, ring: OpenedRing);
    /// The uploader has ended. The ring will be opened again.
    fn lost(&self);
    /// There is no ring, and will be none.
    fn refused(&self, why: &str);
}

/// The uploader of a GPU; see the module. It ends when the last handle is dropped.
pub(super) struct Uploader {
    commands: CommandSender<Command>,
}

/// A ring that is open, or is being opened. Dropping it closes it.
pub(crate) struct RingHandle {
    ring: u64,
    uploader: Arc<Uploader>,
}

impl RingHandle {
    /// Ends a process that does not get on with this ring. Does not wait.
    pub(crate) fn kill_process(&self, pid: u32, why: &'static str) {
        self.uploader.send(Command::Kill { pid, why });
    }
}

impl Drop for RingHandle {
    fn drop(&mut self) {
        self.uploader.send(Command::Close(self.ring));
    }
}

enum Command {
    Open(u64, Arc<dyn RingOwner>),
    Close(u64),
    /// End the process if it is still this one.
    Kill {
        pid: u32,
        why: &'static str,
    },
    /// An event of the process with this number.
    Heard(u64, ProcessEvent),
    /// End.
    End,
}

impl Uploader {
    pub(super) fn start(uuid: &str, environment: Environment) -> Result<Arc<Self>> {
        Self::start_program(THIS_PROGRAM.into(), uuid, environment)
    }

    fn start_program(program: PathBuf, uuid: &str, environment: Environment) -> Result<Arc<Self>> {
        let (commands, receiver) = channel();
        let mut supervisor = Supervisor::new(program, uuid, environment, commands.clone());
        std::thread::Builder::new()
            .name("uploader".into())
            .spawn(move || supervisor.run(&receiver))
            .map_err(|e| os("cannot start a thread", e))?;
        Ok(Arc::new(Uploader { commands }))
    }

    pub(super) fn open(self: &Arc<Self>, owner: Arc<dyn RingOwner>) -> RingHandle {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // No number is used twice, so a late answer about a ring that was closed is never taken for that of another.
        let ring = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.send(Command::Open(ring, owner));
        RingHandle {
            ring,
            uploader: self.clone(),
        }
    }

    fn send(&self, command: Command) {
        // Without its thread, which only a panic ends, there are no shared uploads.
        let _ = self.commands.send(command);
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.send(Command::End);
    }
}

/// The state of the uploader's thread.
struct Supervisor {
    program: PathBuf,
    uuid: String,
    environment: Environment,
    /// For the threads that listen to processes.
    commands: CommandSender<Command>,
    rings: BTreeMap<u64, WantedRing>,
    process: Option<Running>,
    /// Number of processes that were started.
    processes: u64,
    /// Number of processes in a row that ended soon.
    failures: u32,
    /// Time when another process is to be started.
    next_start: Option<Instant>,
    /// Reason why none is started any more.
    gave_up: Option<String>,
}

struct Running {
    number: u64,
    process: UploaderProcess,
    since: Instant,
    /// Reason that the process gave before its end.
    why: Option<String>,
}

struct WantedRing {
    owner: Arc<dyn RingOwner>,
    state: RingState,
}

enum RingState {
    Closed,
    Opening {
        since: Instant,
        sender: Sender,
        bell: Bell,
    },
    Open,
}

impl Supervisor {
    fn new(
        program: PathBuf,
        uuid: &str,
        environment: Environment,
        commands: CommandSender<Command>,
    ) -> Self {
        Supervisor {
            program,
            uuid: uuid.to_owned(),
            environment,
            commands,
            rings: BTreeMap::new(),
            process: None,
            processes: 0,
            failures: 0,
            next_start: None,
            gave_up: None,
        }
    }

    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            match self.next(commands) {
                Some(Command::End) => return,
                Some(command) => self.obey(command),
                None => {}
            }
            self.end_if_late();
            self.start_if_due();
        }
    }

    /// Waits for a command. Returns `None` when something else is due.
    fn next(&self, commands: &Receiver<Command>) -> Option<Command> {
        let received = match self.next_moment() {
            None => commands.recv().map_err(RecvTimeoutError::from),
            Some(at) => commands.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match received {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Command::End),
        }
    }

    fn next_moment(&self) -> Option<Instant> {
        let late = self.rings.values().filter_map(WantedRing::late_at);
        late.chain(self.next_start).min()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open(ring, owner) => self.want(ring, owner),
            Command::Close(ring) => self.close(ring),
            Command::Kill { pid, why } => {
                if self
                    .process
                    .as_ref()
                    .is_some_and(|r| r.process.pid() == pid)
                {
                    self.kill(why);
                }
            }
            Command::Heard(number, event) => {
                // An earlier process may have said something before it ended.
                if self.process.as_ref().is_some_and(|r| r.number == number) {
                    self.heard(event);
                }
            }
            Command::End => {}
        }
    }

    // Rings.

    fn want(&mut self, ring: u64, owner: Arc<dyn RingOwner>) {
        if let Some(why) = &self.gave_up {
            return owner.refused(why);
        }
        let state = RingState::Closed;
        self.rings.insert(ring, WantedRing { owner, state });
        match self.process {
            Some(_) => self.ask(ring),
            // A pause after a process that ended holds for new rings too.
            None => drop(self.next_start.get_or_insert_with(Instant::now)),
        }
    }

    fn close(&mut self, ring: u64) {
        if self.rings.remove(&ring).is_some()
            && let Some(running) = &self.process
        {
            running.process.send(&UploaderRequest::Close { ring }, &[]);
        }
    }

    /// Asks the process to open a ring.
    fn ask(&mut self, ring: u64) {
        let (Some(wanted), Some(running)) = (self.rings.get_mut(&ring), &self.process) else {
            return;
        };
        let RingOffer {
            fields,
            slots,
            buffers,
            budget,
            descriptors,
            sender,
            bell,
        } = match wanted.owner.offer() {
            Ok(offer) => offer,
            Err(e) => return self.refuse(ring, &e.to_string()),
        };
        let request = UploaderRequest::Open(OpenRing {
            ring,
            fields,
            slots,
            buffers,
            fewest: *RING_BUFFERS.start(),
            most: *RING_BUFFERS.end(),
            budget,
        });
        running.process.send(&request, &descriptors);
        wanted.state = RingState::Opening {
            since: Instant::now(),
            sender,
            bell,
        };
    }

    fn refuse(&mut self, ring: u64, why: &str) {
        if let Some(wanted) = self.rings.remove(&ring) {
            wanted.owner.refused(why);
        }
    }

    // The process.

    fn heard(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Said(UploaderEvent::Refused { ring, why }, _) => self.refuse(ring, &why),
            ProcessEvent::Said(UploaderEvent::Failed { why }, _) => {
                if let Some(running) = &mut self.process {
                    running.why = Some(why);
                }
            }
            ProcessEvent::Said(
                UploaderEvent::Opened {
                    ring,
                    buffers,
                    bytes,
                    why_bounced,
                    node,
                },
                descriptors,
            ) => {
                // The number is checked before the owner is told, which would give jobs buffers that do not exist.
                if !RING_BUFFERS.contains(&buffers) {
                    return self.kill(OPENED_WRONGLY);
                }
                let opened =
                    self.opened(ring, descriptors, |memory, uploader_pid, sender, bell| {
                        OpenedRing {
                            uploader_pid,
                            buffers,
                            bytes,
                            why_bounced,
                            node,
                            memory,
                            sender,
                            bell,
                        }
                    });
                if opened.is_none() {
                    self.kill(OPENED_WRONGLY);
                }
            }
            ProcessEvent::Ended(how) => self.ended(how),
        }
    }

    /// Tells the owner that its ring is open. Returns `None` if the process has misbehaved.
    fn opened(
        &mut self,
        ring: u64,
        descriptors: Vec<OwnedFd>,
        opened: impl FnOnce(OwnedFd, u32, Sender, Bell) -> OpenedRing,
    ) -> Option<()> {
        let memory = descriptors.into_iter().next()?;
        let pid = self.process.as_ref()?.process.pid();
        // It may have been closed meanwhile.
        let Some(wanted) = self.rings.get_mut(&ring) else {
            return Some(());
        };
        let RingState::Opening { sender, bell, .. } =
            std::mem::replace(&mut wanted.state, RingState::Open)
        else {
            return None;
        };
        wanted.owner.opened(opened(memory, pid, sender, bell));
        Some(())
    }

    fn start_if_due(&mut self) {
        if self.next_start.is_none_or(|at| at > Instant::now()) {
            return;
        }
        // Without rings no process is wanted. The next ring sets the time anew.
        self.next_start = None;
        if self.rings.is_empty() {
            return;
        }
        self.processes += 1;
        let (number, commands) = (self.processes, self.commands.clone());
        let tell = move |event| drop(commands.send(Command::Heard(number, event)));
        let started = UploaderProcess::start(&self.program, &self.uuid, &self.environment, tell);
        match started {
            Ok(process) => {
                tracing::info!(gpu = self.uuid, pid = process.pid(), "an uploader starts");
                self.process = Some(Running {
                    number,
                    process,
                    since: Instant::now(),
                    why: None,
                });
                let rings: Vec<u64> = self.rings.keys().copied().collect();
                rings.into_iter().for_each(|ring| self.ask(ring));
            }
            Err(e) => self.pause_or_give_up(&e.to_string(), Duration::ZERO),
        }
    }

    fn end_if_late(&mut self) {
        let now = Instant::now();
        let is_late = |ring: &WantedRing| ring.late_at().is_some_and(|at| at <= now);
        if self.rings.values().any(is_late) {
            self.kill("does not get on with opening a ring: the NVIDIA driver may hang");
        }
    }

    fn kill(&mut self, why: &str) {
        if let Some(running) = &mut self.process {
            running.process.kill();
            running.why = Some(why.to_owned());
            // It is not heard any more: a process that hangs in the driver does not even end.
            self.ended(String::new());
        }
    }

    fn ended(&mut self, heard: String) {
        let Some(running) = self.process.take() else {
            return;
        };
        let lasted = running.since.elapsed();
        // The owners come first, because the end of the process may have to be waited for.
        for wanted in self.rings.values_mut() {
            let state = std::mem::replace(&mut wanted.state, RingState::Closed);
            // The other owners have not been told of a ring that they could lose.
            if matches!(state, RingState::Open) {
                wanted.owner.lost();
            }
        }
        let (gpu, pid) = (&self.uuid, running.process.pid());
        tracing::debug!(gpu, pid, heard, "an uploader's connection has ended");
        let how = running.process.reap();
        let why = running.why.unwrap_or(how);
        tracing::warn!(gpu, pid, why, "an uploader has ended");
        self.pause_or_give_up(&why, lasted);
    }

    fn pause_or_give_up(&mut self, why: &str, lasted: Duration) {
        self.failures = if lasted >= LASTING {
            1
        } else {
            self.failures + 1
        };
        if self.failures > MOST_RESTARTS {
            let times = self.failures;
            let why = format!("the uploader of the GPU has ended {times} times; lastly it {why}");
            let rings = std::mem::take(&mut self.rings);
            rings.values().for_each(|ring| ring.owner.refused(&why));
            self.gave_up = Some(why);
            return;
        }
        self.next_start = Some(Instant::now() + FIRST_PAUSE * (1 << (self.failures - 1)));
    }
}

impl WantedRing {
    /// Returns the time at which it has taken too long to open the ring, or `None` if it is not being opened.
    fn late_at(&self) -> Option<Instant> {
        match &self.state {
            RingState::Opening { since, .. } => Some(*since + LONGEST_OPENING),
            RingState::Closed | RingState::Open => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use coprep_shared_memory::handover::Doorbell;
    use coprep_shared_memory::lock::lock;

    use super::*;
    use crate::error::invalid;

    /// An owner that records what it is told.
    struct Recorder {
        told: Mutex<CommandSender<String>>,
        is_offering: bool,
    }

    impl RingOwner for Recorder {
        fn offer(&self) -> Result<RingOffer> {
            if !self.is_offering {
                return Err(invalid("no memory"));
            }
            let mut sender = Sender::create(8).unwrap();
            let (deliver, reply) = sender.fds().unwrap();
            let bell = Doorbell::new().unwrap().bell().unwrap();
            let [staging, doorbell] = [0, 1].map(|_| bell.fd().unwrap());
            Ok(RingOffer {
                fields: Vec::new(),
                slots: 1,
                buffers: 1,
                budget: 0,
                descriptors: [staging, deliver, reply, doorbell],
                sender,
                bell,
            })
        }

        fn opened(&self, _: OpenedRing) {
            let _ = lock(&self.told).send("opened".into());
        }

        fn lost(&self) {
            let _ = lock(&self.told).send("lost".into());
        }

        fn refused(&self, why: &str) {
            let _ = lock(&self.told).send(why.into());
        }
    }

    /// Returns the state of a thread that nobody sends commands to.
    fn supervisor(program: &str) -> Supervisor {
        Supervisor::new(program.into(), "GPU-1", Vec::new(), channel().0)
    }

    fn told_by(program: &str, is_offering: bool) -> String {
        let (told, receiver) = channel();
        let uploader = Uploader::start_program(program.into(), "GPU-1", Vec::new()).unwrap();
        let owner = Recorder {
            told: Mutex::new(told),
            is_offering,
        };
        let _handle = uploader.open(Arc::new(owner));
        receiver.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn an_uploader_that_ends_again_and_again_is_given_up() {
        let why = told_by("/bin/false", true);
        assert!(why.contains("has ended 4 times"), "{why}");
        assert!(why.contains("exit status: 1"), "{why}");
    }

    #[test]
    fn a_ring_with_a_wrong_number_of_buffers_does_not_reach_its_owner() {
        for (buffers, expected) in [(4, Some("opened")), (3, None), (1000, None)] {
            let (told, receiver) = channel();
            let mut supervisor = supervisor("/bin/cat");
            let owner = Recorder {
                told: Mutex::new(told),
                is_offering: true,
            };
            supervisor.want(1, Arc::new(owner));
            supervisor.start_if_due();
            let opened = UploaderEvent::Opened {
                ring: 1,
                buffers,
                bytes: 1 << 20,
                why_bounced: None,
                node: None,
            };
            let memory = std::fs::File::open("/dev/null").unwrap();
            supervisor.heard(ProcessEvent::Said(opened, vec![memory.into()]));
            assert_eq!(receiver.try_recv().ok().as_deref(), expected);
            assert_eq!(supervisor.process.is_some(), expected.is_some());
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_given_up() {
        let why = told_by("/nowhere", true);
        assert!(why.contains("cannot start an uploader"), "{why}");
    }

    #[test]
    fn a_stream_that_cannot_offer_a_hand_over_gets_no_ring() {
        // `cat` reads its standard input until the end.
        assert!(told_by("/bin/cat", false).contains("no memory"));
    }
}
