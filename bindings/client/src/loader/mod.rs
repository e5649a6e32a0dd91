//! A consumer session: one rank of a job, from its first batch to its last, over any number of connections.
//!
//! | state | contents | lifetime |
//! |---|---|---|
//! | [`Position`](position::Position) | epoch, and the numbers given in it | as long as the loader |
//! | [`LoaderLink`](link::LoaderLink) | socket, shared memory, batch being put together | until the connection is lost |
//! | [`Stats`] | counts | as long as the loader |
//!
//! The first two lie under one lock, which is held during a slice of a wait. The counts have a lock of their own, so
//! that they can be read at any time. Releasing batches takes neither lock (see `attachment`).

mod departure;
mod device;
mod device_link;
mod link;
mod orders;
mod position;
mod reconnecting;
mod watch;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use coprep_protocol::id_set;
use coprep_protocol::message::{
    Attach, Attached, CarriedOver, Departure, ResumePoint, SampleError,
};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::poll_interval::poll_every;
use coprep_shared_memory::handover::{Item, ItemKind};
use coprep_shared_memory::lock::lock;
use roaring::RoaringBitmap;

use crate::attachment::Owner;
use crate::batch::Batch;
use crate::credentials::OwnedLink;
use crate::device::{DeviceBatch, DeviceOptions, Uploader, UserStream};
use crate::error::{
    Error, ErrorKind, Result, closed, disconnected, invalid, sample_failed, timed_out, violation,
};
use crate::loader::link::{LoaderLink, PartFlags, is_skip, left_out, wants_server};
use crate::loader::orders::SentOrders;
use crate::loader::position::{NextEpoch, Position};
use crate::loader::reconnecting::FailedAttempts;
use crate::notice::{NOTIFY_AFTER, Notice, Wait};
use crate::stats::Stats;
use crate::timeout::{InterruptCheck, POLL_INTERVAL, Timeout, no_interrupt};

/// Longest wait for an explanation.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the coordinator to take note of the end of a pass.
const LEAVE_PASS_TIMEOUT: Duration = Duration::from_secs(1);

/// A job's own code, which makes its samples in processes that are forked from the job.
pub trait JobCode: Send + Sync {
    /// Returns `true` if a fork server that is started now makes the samples that the job has attached for: nothing has
    /// changed that they depend on. Returns `false` if the job stays in its stream all the same.
    ///
    /// # Errors
    /// If the job has to leave its stream, because something has changed.
    fn is_current(&self) -> Result<bool>;

    /// Starts a fork server, which gets this end of its socket. It is called in the thread that called the loader, and
    /// does not return in the process that it forks.
    ///
    /// # Errors
    /// If it cannot be started.
    fn start_server(&self, socket: UnixStream) -> Result<()>;

    /// Called when a fork server that this job may have started is about to end. It waits for that, if not for long.
    fn server_ends(&self, pid: u32);
}

/// Options of a loader.
#[derive(Clone)]
pub struct LoaderOptions {
    /// Paths of the coordinator.
    pub paths: CoordinatorPaths,
    /// Name of the job in `coprep status`.
    pub name: String,
    /// Path of the `coprep` program, unless `COPREP_BIN` names another.
    pub program: Option<PathBuf>,
    /// Request for minibatches. Its `resume` is the point at which to begin.
    pub attach: Attach,
    /// Form of the batches on a GPU, if [`Loader::next_on`] is to put them there.
    pub device: Option<DeviceOptions>,
    /// The job's own code, if that makes the samples in worker processes.
    pub code: Option<Arc<dyn JobCode>>,
    /// Gives the credentials of the source's stores, if the job has some that its environment does not name.
    pub credentials: Option<Arc<OwnedLink>>,
    /// Longest wait for a batch or any other answer.
    pub timeout: Duration,
    /// Longest time that reconnecting may take.
    pub reconnect: Duration,
    /// Check that is called during waits.
    pub interrupt_check: InterruptCheck,
    /// Notice that is called once in a long wait for somebody else.
    pub notice: Notice,
}

/// A result of [`Loader::next`].
pub enum Event {
    /// A batch.
    Batch(Batch),
    /// All batches of the epoch have been given.
    EndOfEpoch,
    /// Samples are left out because they failed. Contains the failure of the first one. The event comes once;
    /// [`Stats::skipped`] counts on.
    Skipped(Box<SampleError>),
    /// No event came within the slice of time.
    NotYet,
}

/// A result of [`Loader::next_on`].
pub enum DeviceEvent {
    /// A batch on the GPU.
    Batch(DeviceBatch),
    /// As [`Loader::next`].
    Host(Event),
}

/// The state of a job, for [`Attach::resume`] of a later one.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumeState {
    /// Number of the epoch.
    pub epoch: u64,
    /// Ids given in the epoch.
    pub delivered: RoaringBitmap,
    /// Seed in force.
    pub seed: u64,
    /// Samples of the dataset.
    pub dataset_samples: u32,
    /// The order of the epoch, if a member of the cohort proposed it ([`Attach::is_told`]) and samples of it were given.
    pub order: Option<Arc<[u32]>>,
    /// The groups of samples that come first in the epoch, because it continues one that was left early.
    pub carried: Vec<CarriedOver>,
    /// `true` if the ids are those of all ranks. Otherwise they are those of this rank only, because the coordinator could
    /// not be asked. A job whose ranks each resume with their own ids still goes on exactly.
    pub all_ranks: bool,
}

/// One rank of a job. All methods may be called from any thread.
pub struct Loader {
    owner: Owner,
    options: LoaderOptions,
    inner: Mutex<LoaderState>,
    stats: Mutex<Stats>,
    /// `true` if another thread wants to close the loader. The watch then gives up the lock.
    closing: Arc<AtomicBool>,
}

/// The mutable state of a loader, under one lock.
struct LoaderState {
    link: Option<LoaderLink>,
    attached: Option<Attached>,
    position: Position,
    /// Orders of epochs. See [`Attach::is_told`].
    orders: SentOrders,
    waiting: EventWait,
    /// Samples that are left out of the epochs, as reported by the coordinators.
    skipped: RoaringBitmap,
    /// The first failure of a sample that is left out.
    first_skipped: Option<SampleError>,
    /// Ranks that have left the job, as far as this one knows.
    departed: BTreeMap<u32, Departure>,
    /// Token of the job in which it was last given a batch, or `None` if it was given none.
    token: Option<u128>,
    /// `true` if the job has begun. See [`Attach::has_begun`].
    has_begun: bool,
    /// Failed attempts of the watch to attach anew. `None` if there is a connection, or if a call of the user has tried
    /// since, which raises the error.
    failed: Option<FailedAttempts>,
    closed: bool,
    /// The upload thread, once a batch was asked for on a GPU.
    uploader: Option<Arc<Uploader>>,
}

impl LoaderState {
    /// Returns the point to present to a coordinator, or `None` at the very beginning.
    fn resume(&self) -> Option<ResumePoint> {
        let mut resume = self.position.resume()?;
        resume.skipped = id_set::serialize(&self.skipped);
        Some(resume)
    }

    /// Returns the error of an epoch that gave nothing, if that is because all samples of a job alone are left out.
    fn all_skipped(&self) -> Option<Error> {
        let attached = self.attached.as_ref()?;
        let mut first = self.first_skipped.clone()?;
        if self.skipped.len() < u64::from(attached.job_samples) {
            return None;
        }
        first.message +=
            "; all other samples of the job failed, too, so that none is left in their place";
        Some(sample_failed(first))
    }
}

/// The wait for the next event.
#[derive(Default)]
struct EventWait {
    since: Option<Instant>,
    /// Time waited that is not yet attributed to fetching or preparing.
    unsplit: Duration,
    /// Number of times that the coordinator was asked, in this wait, whether the wait is for somebody else.
    asked: u32,
    /// `true` if the user was notified of the wait.
    is_notified: bool,
    /// Reason why attaching anew has failed in this wait.
    reattach_failure: Option<String>,
}

impl EventWait {
    /// Ends the wait. Time that is not yet attributed is kept until the next batch comes.
    fn end(&mut self) {
        self.since = None;
        self.asked = 0;
        self.is_notified = false;
        self.reattach_failure = None;
    }
}

impl Loader {
    /// Creates a loader that has not attached yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when `attach.resume` is malformed.
    pub fn new(options: LoaderOptions) -> Result<Arc<Self>> {
        let position = Position::new(options.attach.resume.as_ref(), options.attach.world_size)?;
        let watched = options.attach.world_size > 1;
        let loader = Arc::new(Loader {
            owner: Owner::current(),
            inner: Mutex::new(LoaderState {
                link: None,
                attached: None,
                position,
                orders: SentOrders::default(),
                waiting: EventWait::default(),
                skipped: RoaringBitmap::new(),
                first_skipped: None,
                departed: BTreeMap::new(),
                token: None,
                has_begun: false,
                failed: None,
                closed: false,
                uploader: None,
            }),
            options,
            stats: Mutex::default(),
            closing: Arc::default(),
        });
        if watched {
            watch::start(&loader)?;
        }
        Ok(loader)
    }

    /// Records the order of the epoch of [`Attach::resume`], which this job was given before.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`], [`ErrorKind::Closed`].
    pub fn resume_order(&self, ids: Vec<u32>) -> Result<()> {
        let mut inner = self.inner()?;
        let epoch = inner.position.epoch();
        inner.orders.settle(epoch, ids, false)
    }

    fn inner(&self) -> Result<MutexGuard<'_, LoaderState>> {
        // This check comes before the lock: in a forked child, a thread that does not exist there may hold the lock.
        self.owner.check()?;
        let inner = lock(&self.inner);
        if inner.closed {
            Err(closed())
        } else {
            Ok(inner)
        }
    }

    fn lock_stats(&self) -> MutexGuard<'_, Stats> {
        lock(&self.stats)
    }

    /// Returns the coordinator's answer to attaching. Attaches first if the loader has not.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`], and the errors of connecting.
    pub fn attached(&self) -> Result<Attached> {
        let mut inner = self.inner()?;
        self.attach_if_needed(&mut inner)?;
        inner.attached.clone().ok_or_else(closed)
    }

    /// Returns `true` if it has attached, and its connection was not found lost since.
    pub fn is_attached(&self) -> bool {
        self.inner().is_ok_and(|inner| inner.link.is_some())
    }

    /// Returns the number of batches that each rank is given per epoch.
    ///
    /// # Errors
    /// As [`attached`](Self::attached).
    pub fn batches_per_epoch(&self) -> Result<u64> {
        let Attach {
            batch_size,
            world_size,
            drop_last,
            ..
        } = self.options.attach;
        // The coordinator refuses a zero when the loader attaches, below. Until then it must not divide by zero.
        let step = u64::from(batch_size.max(1)) * u64::from(world_size.max(1));
        let samples = u64::from(self.attached()?.job_samples);
        Ok(if drop_last {
            samples / step
        } else {
            samples.div_ceil(step)
        })
    }

    /// Returns the epoch that is being iterated, or the one that [`start_epoch`](Self::start_epoch) begins next.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`], [`ErrorKind::Closed`].
    pub fn epoch(&self) -> Result<u64> {
        Ok(self.inner()?.position.next_epoch())
    }

    /// Returns the counts. In a forked child, they are those of the parent at the fork, or zero if another thread held
    /// their lock then: it does not exist in the child, and nobody would release the lock.
    pub fn stats(&self) -> Stats {
        if self.owner.is_here() {
            return self.lock_stats().clone();
        }
        match self.stats.try_lock() {
            Ok(stats) => stats.clone(),
            Err(TryLockError::Poisoned(stats)) => stats.into_inner().clone(),
            Err(TryLockError::WouldBlock) => Stats::default(),
        }
    }

    // Epochs.

    /// Begins the next epoch or, after a resume, the rest of the epoch in which the state was taken. In the middle of
    /// an epoch, its rest is left and the next epoch begins.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn start_epoch(&self) -> Result<u64> {
        self.start_epoch_with(None)
    }

    /// Begins an epoch and proposes an order for it, if the job proposes the order of each epoch ([`Attach::is_told`]).
    /// The proposal holds if this is the first member of the cohort to begin the epoch.
    ///
    /// # Errors
    /// As [`start_epoch`](Self::start_epoch).
    pub fn start_epoch_with(&self, order: Option<Vec<u32>>) -> Result<u64> {
        let mut inner = self.inner()?;
        self.attach_if_needed(&mut inner)?;
        self.leave_epoch(&mut inner)?;
        Self::record_orders(&mut inner)?;
        let epoch = inner.position.begin();
        if self.options.attach.is_told {
            inner.orders.begin(epoch, order)?;
        }
        inner.waiting.end();
        self.announce_epoch(&mut inner, self.options.code.as_deref())?;
        Ok(epoch)
    }

    fn leave_epoch(&self, inner: &mut LoaderState) -> Result<()> {
        // A rank alone cannot tell whether the others took a batch, so all of them leave the epoch, or none does.
        let alone = self.options.attach.world_size <= 1;
        if !inner.position.is_iterating() || (alone && inner.position.is_untouched()) {
            return Ok(());
        }
        if inner.position.is_complete() {
            inner.position.finish();
            return Ok(());
        }
        self.restart(inner)
    }

    /// Leaves the epoch together with the other ranks.
    ///
    /// If the connection is lost meanwhile, it asks again. Other ranks may have batches to take before they leave, and
    /// if this rank were in the next epoch already, they would not be given them.
    fn restart(&self, inner: &mut LoaderState) -> Result<()> {
        let began = Instant::now();
        let next = loop {
            match self.try_restart(inner) {
                Err(e) if e.kind().is_lost() && began.elapsed() < self.options.timeout => {
                    self.reconnect(inner)?;
                }
                restarted => break restarted?,
            }
            // All ranks had asked, and another rank was answered before the connection was lost.
            if let Some(epoch) = inner.position.passed() {
                break NextEpoch::anew(epoch);
            }
        };
        inner.position.go_on(next);
        Ok(())
    }

    fn try_restart(&self, inner: &mut LoaderState) -> Result<NextEpoch> {
        let timeout = Timeout::new(self.options.timeout, &self.options.interrupt_check);
        let (epoch, batches) = (inner.position.epoch(), inner.position.batches());
        match &mut inner.link {
            Some(link) => link.restart(epoch, batches, &timeout, &self.options.notice),
            None => Err(disconnected("it was lost before")),
        }
    }

    /// Announces to the coordinator which epoch is iterated, and gives the stream a fork server if it wants one. If the
    /// connection is lost, the next check of it finds out why.
    ///
    /// `code` is `None` in a thread of this library, which must not fork the process. The stream asks again when a job
    /// waits.
    fn announce_epoch(&self, inner: &mut LoaderState, code: Option<&dyn JobCode>) -> Result<()> {
        let epoch = inner.position.epoch();
        let LoaderState { link, orders, .. } = inner;
        let Some(link) = link else { return Ok(()) };
        let timeout = Timeout::new(self.options.timeout, &self.options.interrupt_check);
        let announced = if self.options.code.is_some() {
            link.announce_epoch_of_code(epoch, &timeout)
        } else {
            link.announce_epoch(epoch).map(|()| false)
        };
        if let Some(order) = orders.proposed(epoch) {
            let _ = link.send_order(epoch, order, false);
        }
        match announced {
            Ok(true) if code.is_some() => self.give_server(inner),
            Ok(_) => Ok(()),
            Err(e) if e.kind().is_lost() => Ok(()),
            Err(e) => Err(e),
        }
    }

    // The job's own code.

    /// Gives the stream a fork server, unless something has changed that samples depend on.
    fn give_server(&self, inner: &mut LoaderState) -> Result<()> {
        let (Some(code), Some(link)) = (&self.options.code, &inner.link) else {
            return Ok(());
        };
        let given = if code.is_current()? {
            link.give_server(&**code)
        } else {
            link.give_no_server("its dataset has changed since it attached".into())
        };
        match given {
            Err(e) if e.kind().is_lost() => Ok(()),
            given => given,
        }
    }

    /// Announces that the user iterates no epoch: `is_complete` says whether all of it was given. Without it, the fork
    /// server of a job without persistent workers would keep memory of which the user knows nothing.
    ///
    /// It does nothing for a loader that is closed, in use by another thread, or has no user code.
    pub fn leave_pass(&self, is_complete: bool) {
        if !self.owner.is_here() || self.options.code.is_none() {
            return;
        }
        if let Ok(mut inner) = self.inner.try_lock() {
            self.announce_end(&mut inner, is_complete);
        }
    }

    fn announce_end(&self, inner: &mut LoaderState, is_complete: bool) {
        let epoch = inner.position.epoch();
        let (Some(code), Some(link)) = (&self.options.code, &mut inner.link) else {
            return;
        };
        let interrupt_check = no_interrupt();
        let timeout = Timeout::new(LEAVE_PASS_TIMEOUT, &interrupt_check);
        // If it fails, the next check of the connection finds out why.
        let ended = link.leave_epoch(epoch, is_complete, &timeout);
        if let Ok(pid @ 1..) = ended {
            code.server_ends(pid);
        }
    }

    // Orders.

    /// Records the orders that have come.
    fn record_orders(inner: &mut LoaderState) -> Result<()> {
        let come = inner.link.as_mut().map(LoaderLink::take_orders);
        for (epoch, order) in come.unwrap_or_default() {
            let has_given = epoch == inner.position.epoch() && !inner.position.is_fresh();
            inner.orders.settle(epoch, order, has_given)?;
        }
        Ok(())
    }

    fn awaits_order(&self, inner: &LoaderState) -> bool {
        let is_known = || inner.orders.settled(inner.position.epoch()).is_some();
        self.options.attach.is_told && !is_known()
    }

    /// Waits for the order of the epoch. The coordinator settles it when all members have attached and one has begun the
    /// epoch.
    fn wait_for_order(&self, inner: &mut LoaderState, end: Instant) -> Result<()> {
        let began = Instant::now();
        let limit = end.saturating_duration_since(began).min(POLL_INTERVAL);
        let limit = limit.min(self.timeout(inner));
        let Some(link) = &mut inner.link else {
            return Ok(());
        };
        link.wait_for_order(limit, &self.options.interrupt_check)?;
        self.count_wait(inner, began);
        Ok(())
    }

    // Batches.

    /// Returns the next event, after waiting for `slice` at most.
    ///
    /// # Errors
    /// [`ErrorKind::Sample`]: the rest of that batch still comes, so that the caller may go on.
    /// [`ErrorKind::Timeout`] when nothing came for [`LoaderOptions::timeout`] (over several calls).
    /// [`ErrorKind::Refused`], [`ErrorKind::Start`], ... when the connection was lost and cannot be had again.
    pub fn next(&self, slice: Duration) -> Result<Event> {
        match self.next_in(slice, None)? {
            DeviceEvent::Host(event) => Ok(event),
            DeviceEvent::Batch(_) => Err(invalid("the batches of this loader are on a GPU")),
        }
    }

    /// As [`next`](Self::next), but batches come on the stream's GPU, if [`LoaderOptions::device`] is set. Those of a
    /// stream with samples of no fixed size come on the host nonetheless.
    ///
    /// All calls name the same GPU.
    ///
    /// # Errors
    /// As [`next`](Self::next), and [`ErrorKind::Device`].
    pub fn next_on(&self, slice: Duration, stream: UserStream) -> Result<DeviceEvent> {
        self.next_in(slice, Some(stream))
    }

    fn next_in(&self, slice: Duration, stream: Option<UserStream>) -> Result<DeviceEvent> {
        let mut inner = self.inner()?;
        let end = Instant::now() + slice;
        loop {
            match self.step_on(&mut inner, end, stream) {
                Ok(Some(event)) => {
                    inner.waiting.end();
                    if matches!(event, DeviceEvent::Host(Event::EndOfEpoch)) {
                        self.announce_end(&mut inner, true);
                    }
                    return Ok(event);
                }
                Ok(None) if Instant::now() >= end || self.timeout(&inner).is_zero() => {
                    return self.not_yet(&mut inner).map(DeviceEvent::Host);
                }
                Ok(None) => {}
                Err(e) if e.kind().is_lost() => self.reconnect(&mut inner)?,
                Err(e) => {
                    inner.waiting.end();
                    return Err(e);
                }
            }
        }
    }

    /// Checks once for an event, or waits once for a short time.
    fn step(&self, inner: &mut LoaderState, end: Instant) -> Result<Option<Event>> {
        if let Some(example) = self.count_skipped(inner) {
            return Ok(Some(Event::Skipped(Box::new(example))));
        }
        if inner.position.finish_if_passed() || !inner.position.is_iterating() {
            return Ok(Some(Event::EndOfEpoch));
        }
        let timeout = self.timeout(inner);
        Self::record_orders(inner)?;
        let awaits_order = self.awaits_order(inner);
        let Some(link) = &mut inner.link else {
            return Err(disconnected("it was lost before"));
        };
        if awaits_order {
            return self.wait_for_order(inner, end).map(|()| None);
        }
        if link.awaits_error() {
            return self.take_error(inner, end);
        }
        if let Some((seq, item)) = link.try_next()? {
            return self.take(inner, seq, &item);
        }
        // The connection is checked only before a wait: while there are items, it does not matter whether the
        // coordinator lives.
        if link.is_lost() {
            return Err(disconnected("it has hung up"));
        }
        let began = Instant::now();
        // The slice bounds the time until the next interrupt check and the next check of the coordinator. An item wakes
        // this thread by itself.
        let left = end.saturating_duration_since(began).min(timeout);
        link.wait(left.min(poll_every(POLL_INTERVAL)));
        self.count_wait(inner, began);
        Ok(None)
    }

    fn count_wait(&self, inner: &mut LoaderState, began: Instant) {
        let time = began.elapsed();
        inner.waiting.since.get_or_insert(began);
        inner.waiting.unsplit += time;
        let mut stats = self.lock_stats();
        stats.wait += time;
        if let Some(link) = &inner.link {
            link.publish_counts(&stats.account());
        }
    }

    /// Waits for the text of an announced error, and raises the error.
    fn take_error(&self, inner: &mut LoaderState, end: Instant) -> Result<Option<Event>> {
        let Some(link) = &mut inner.link else {
            return Ok(None);
        };
        let began = Instant::now();
        let limit = end.saturating_duration_since(began).min(POLL_INTERVAL);
        if let Some((number, error)) = link.awaited_error(limit, &self.options.interrupt_check)? {
            if !inner.position.fail(number) {
                return Ok(None);
            }
            self.lock_stats().errors += 1;
            return Err(sample_failed(error));
        }
        self.count_wait(inner, began);
        Ok(None)
    }

    /// Counts the samples that are reported to be left out. Returns the failure of one, if these are the first.
    fn count_skipped(&self, inner: &mut LoaderState) -> Option<SampleError> {
        let example = inner.link.as_mut()?.skips.example.take()?;
        let ids = std::mem::take(&mut inner.link.as_mut()?.skips.ids);
        let is_first = inner.skipped.is_empty();
        inner.first_skipped.get_or_insert_with(|| example.clone());
        inner.skipped |= ids;
        self.lock_stats().skipped = inner.skipped.len();
        is_first.then_some(example)
    }

    /// Returns the time that the next event may still take.
    fn timeout(&self, inner: &LoaderState) -> Duration {
        let waited = inner
            .waiting
            .since
            .map_or(Duration::ZERO, |since| since.elapsed());
        self.options.timeout.saturating_sub(waited)
    }

    fn take(&self, inner: &mut LoaderState, seq: u64, item: &Item) -> Result<Option<Event>> {
        let Some(link) = &mut inner.link else {
            return Ok(None);
        };
        match item.kind() {
            Some(ItemKind::Part) => {
                let waited = std::mem::take(&mut inner.waiting.unsplit);
                self.lock_stats().split(waited, PartFlags::of(item).shares);
                self.take_part(inner, seq, item)
            }
            Some(ItemKind::EpochEnd) => {
                link.release(seq)?;
                let gave_none = self.options.attach.world_size <= 1 && inner.position.gave_none();
                if !inner.position.end(item.epoch)? {
                    return Ok(None);
                }
                let error = gave_none.then(|| inner.all_skipped()).flatten();
                error.map_or(Ok(Some(Event::EndOfEpoch)), Err)
            }
            Some(ItemKind::Error) if is_skip(item) => {
                link.release(seq)?;
                link.read_skips(item.tag, &self.options.interrupt_check)?;
                Ok(None)
            }
            Some(ItemKind::Error) if wants_server(item) => {
                link.release(seq)?;
                self.give_server(inner)?;
                Ok(None)
            }
            Some(ItemKind::Error) if let Some(number) = left_out(item) => {
                link.release(seq)?;
                inner.position.fail(number);
                Ok(None)
            }
            Some(ItemKind::Error) => {
                link.release(seq)?;
                // The next step waits for the text.
                link.expect_error(item);
                Ok(None)
            }
            None => Err(violation(format!("an item of kind {}", item.kind))),
        }
    }

    /// Returns the number of samples of the largest batch. A batch size beyond the dataset must not reserve memory
    /// for samples that there are not. An order of the job's own may be longer than the dataset.
    fn most_samples(&self, inner: &LoaderState) -> u32 {
        let asked = self.options.attach.batch_size;
        if self.options.attach.is_told {
            return asked;
        }
        let job = inner.attached.as_ref().map(|attached| attached.job_samples);
        asked.min(job.unwrap_or(asked).max(1))
    }

    fn take_part(&self, inner: &mut LoaderState, seq: u64, item: &Item) -> Result<Option<Event>> {
        let most = self.most_samples(inner);
        let Some(link) = &mut inner.link else {
            return Ok(None);
        };
        inner.position.check(item.epoch)?;
        if link.is_on_device() {
            link.upload_part(seq, item)?;
            return Ok(None);
        }
        let Some((batch, numbers)) = link.take_part(seq, item, most)? else {
            return Ok(None);
        };
        let ends_epoch = PartFlags::of(item).ends_epoch;
        if !self.give(inner, &numbers, ends_epoch, batch.samples())? {
            return Ok(None);
        }
        if batch.is_copy() {
            let mut stats = self.lock_stats();
            stats.copies += 1;
            stats.copied_bytes += batch.bytes() as u64;
        }
        Ok(Some(Event::Batch(batch)))
    }

    /// Records that the user is given a batch. Returns `false` if it is empty and not to be given.
    fn give(
        &self,
        inner: &mut LoaderState,
        numbers: &[i64],
        ends_epoch: bool,
        samples: u32,
    ) -> Result<bool> {
        inner.position.give(numbers, ends_epoch)?;
        inner.token = inner.attached.as_ref().map(|attached| attached.token);
        // All samples of the batch failed. Several ranks must make the same number of steps, so they get the empty
        // batch. A rank alone does not.
        if samples == 0 && self.options.attach.world_size <= 1 {
            return Ok(false);
        }
        let mut stats = self.lock_stats();
        stats.batches += 1;
        stats.samples += u64::from(samples);
        if let Some(link) = &inner.link {
            link.publish_counts(&stats.account());
        }
        Ok(true)
    }

    fn not_yet(&self, inner: &mut LoaderState) -> Result<Event> {
        let Some(since) = inner.waiting.since else {
            return Ok(Event::NotYet);
        };
        let waited = since.elapsed();
        if waited < self.options.timeout {
            self.notify_of_wait(inner, waited)?;
            return Ok(Event::NotYet);
        }
        let before = inner.waiting.reattach_failure.take();
        inner.waiting.end();
        let now = self.explain(inner)?;
        let explanation = match before {
            Some(failure) => format!("{now}; before that, {failure}"),
            None => now,
        };
        Err(timed_out("a batch", waited, explanation))
    }

    /// Returns the coordinator's explanation of a wait that was too long.
    fn explain(&self, inner: &mut LoaderState) -> Result<String> {
        let asked = inner
            .link
            .as_mut()
            .map(|link| link.explain(EXPLAIN_TIMEOUT, &self.options.interrupt_check));
        match asked {
            Some(Ok(text)) => Ok(text),
            Some(Err(e)) if *e.kind() == ErrorKind::Interrupted => Err(e),
            Some(Err(e)) => Ok(format!("and the coordinator does not say why: {e}")),
            None => Ok("no coordinator".into()),
        }
    }

    /// Notifies the user, once in a wait, that the wait takes long and is for somebody else.
    fn notify_of_wait(&self, inner: &mut LoaderState, waited: Duration) -> Result<()> {
        let waiting = &mut inner.waiting;
        if waiting.is_notified || waited < NOTIFY_AFTER * (waiting.asked + 1) {
            return Ok(());
        }
        waiting.asked += 1;
        let asked = inner
            .link
            .as_mut()
            .map(|link| link.who_is_awaited(EXPLAIN_TIMEOUT, &self.options.interrupt_check));
        let awaited = match asked {
            Some(Ok(awaited)) => awaited,
            Some(Err(e)) if *e.kind() == ErrorKind::Interrupted => return Err(e),
            // The next check of the connection finds out why.
            _ => None,
        };
        inner.waiting.is_notified = awaited.is_some();
        let mut wait = Wait::since("a batch", &self.options.notice, waited);
        wait.record(awaited);
        wait.notify_if_due()
    }

    // State.

    /// Returns the state of the job, for [`Attach::resume`]. Batches that were not yet taken are not part of it.
    ///
    /// With several ranks, each of them must call this at the same step.
    ///
    /// # Errors
    /// As [`attached`](Self::attached).
    pub fn state(&self) -> Result<ResumeState> {
        let mut inner = self.inner()?;
        self.attach_if_needed(&mut inner)?;
        let Some(attached) = &inner.attached else {
            return Err(closed());
        };
        let (seed, dataset_samples) = (attached.seed, attached.dataset_samples);
        Self::record_orders(&mut inner)?;
        let (epoch, own) = inner.position.state();
        let order = inner.orders.settled(epoch);
        let mut state = ResumeState {
            epoch,
            order: order.filter(|_| !own.is_empty()).cloned(),
            delivered: own,
            seed,
            dataset_samples,
            carried: inner.position.carried().to_vec(),
            all_ranks: true,
        };
        if self.options.attach.world_size > 1 && inner.position.has_given() {
            self.add_other_ranks(&mut inner, &mut state)?;
        }
        Ok(state)
    }

    fn add_other_ranks(&self, inner: &mut LoaderState, state: &mut ResumeState) -> Result<()> {
        // A checkpoint should not take as long as a batch may. After 20 s its ids are those of this rank alone.
        let timeout = Timeout::new(
            self.options.timeout.min(POLL_INTERVAL * 100),
            &self.options.interrupt_check,
        );
        let (epoch, batches) = (inner.position.epoch(), inner.position.batches());
        let asked = inner
            .link
            .as_mut()
            .map(|link| link.state(epoch, batches, &timeout));
        match asked {
            Some(Ok(all)) => state.delivered |= all,
            Some(Err(e)) if *e.kind() == ErrorKind::Interrupted => return Err(e),
            _ => state.all_ranks = false,
        }
        Ok(())
    }
}
