//! One connection of a loader: its socket, its shared memory, and the batch that is being put together.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use coprep_protocol::item::{ENDS_BATCH, ENDS_EPOCH, LEFT_OUT, SKIPPED, WANTS_SERVER};
use coprep_protocol::message::{
    Attach, Attached, Awaited, Departure, GpuUse, Reply, Request, SampleError, Skipped,
};
use coprep_protocol::order;
use coprep_protocol::spec::BLOB;
use coprep_shared_memory::handover::{Account, Item};
use roaring::RoaringBitmap;

use crate::attachment::Attachment;
use crate::batch::{Assembly, Batch};
use crate::connection::Connection;
use crate::device::{OfferedRing, OpenDevice, Uploader};
use crate::error::{Error, ErrorKind, Result, explained, invalid, refused, violation};
use crate::loader::JobCode;
use crate::loader::device_link::{DeviceLink, GivenOnDevice, RingAnswer};
use crate::loader::position::{self, NextEpoch};
use crate::notice::{NOTIFY_AFTER, Notice, Wait};
use crate::raw;
use crate::stats::WaitShares;
use crate::timeout::{InterruptCheck, Timeout, no_interrupt};

/// Flags and tag of a part, decoded.
pub(super) struct PartFlags {
    pub(super) ends_batch: bool,
    pub(super) ends_epoch: bool,
    /// Shares of the time since the last minibatch, by cause.
    pub(super) shares: WaitShares,
}

impl PartFlags {
    pub(super) fn of(item: &Item) -> Self {
        PartFlags {
            ends_batch: item.flags & ENDS_BATCH != 0,
            ends_epoch: item.flags & ENDS_EPOCH != 0,
            shares: WaitShares::unpack(item.tag),
        }
    }
}

/// Returns `true` if an error's item stands for a notice of skipped samples.
pub(super) fn is_skip(item: &Item) -> bool {
    item.flags & SKIPPED != 0
}

/// Returns `true` if an error's item says that the stream wants a fork server.
pub(super) fn wants_server(item: &Item) -> bool {
    item.flags & WANTS_SERVER != 0
}

/// Returns the number of a sample that the next batch lacks, if the error's item has no text.
pub(super) fn left_out(item: &Item) -> Option<u32> {
    (item.flags & LEFT_OUT != 0).then_some(item.start)
}

/// Notices of the coordinator about samples that are left out.
#[derive(Default)]
pub(super) struct Skips {
    /// Ids of samples that were not counted yet.
    pub(super) ids: RoaringBitmap,
    /// The failure of one of them.
    pub(super) example: Option<SampleError>,
    /// Tag of the latest notice that was read.
    latest_tag: u64,
}

impl Skips {
    fn add(&mut self, skipped: Skipped) -> Result<()> {
        self.ids |= position::read_ids(&skipped.ids)?;
        // Items that were taken back come again, so an older tag may follow a newer one.
        self.latest_tag = self.latest_tag.max(skipped.example.tag);
        self.example.get_or_insert(skipped.example);
        Ok(())
    }
}

/// An error that an item has announced.
#[derive(Clone, Copy)]
struct AwaitedError {
    tag: u64,
    /// Number of the sample. See [`Position`](position::Position).
    number: u32,
}

/// Longest time until the text of a notice comes. It was queued before its item was published.
const ERROR_TEXT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time to wait for the coordinator to notice that this job leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of one connection.
pub(super) struct LoaderLink {
    connection: Connection,
    attachment: Arc<Attachment>,
    assembly: Option<Assembly>,
    /// Texts of errors whose items have not been taken, by tag.
    errors: HashMap<u64, SampleError>,
    pub(super) skips: Skips,
    /// An error whose item was taken and whose text has not come. No further item is taken before it has.
    awaited: Option<AwaitedError>,
    /// Sequence number of the first item of the current epoch. Earlier items belong to an epoch that was left.
    first_seq: u64,
    /// Ranks that have left the job, as reported by the coordinator.
    departed: Vec<Departure>,
    /// An answer that came after its request was given up, and that nobody has read.
    unread: Option<Reply>,
    /// Number of answers about the beginning and end of epochs that have not come, and that nobody waits for any more.
    given_up: u32,
    /// Orders of epochs that have come and were not taken yet.
    orders: Vec<(u64, Vec<u32>)>,
    device: DeviceLink,
}

impl LoaderLink {
    /// Attaches over `connection`. `departed` receives the ranks that are reported to have left, whether attaching
    /// succeeds or not.
    pub(super) fn attach(
        connection: Connection,
        request: Attach,
        code: Option<&dyn JobCode>,
        timeout: &Timeout<'_>,
        notice: &Notice,
        departed: &mut Vec<Departure>,
    ) -> Result<(Self, Attached)> {
        let request = Request::Attach(Box::new(request));
        let (mut errors, mut skips) = (HashMap::new(), Skips::default());
        let mut orders = Vec::new();
        let mut answer = || {
            loop {
                match connection.answer("its registration with a stream", timeout, notice)? {
                    // The stream knows this job before the job gets its answer, so it may already have made a minibatch
                    // for it.
                    (Reply::SampleError(error), _) => drop(errors.insert(error.tag, error)),
                    (Reply::Skipped(skipped), _) => skips.add(*skipped)?,
                    (Reply::Departed(departure), _) => departed.push(departure),
                    (Reply::Order { epoch, samples }, descriptors) => {
                        orders.push((epoch, read_order(samples, descriptors)?));
                    }
                    answer => return Ok::<_, Error>(answer),
                }
            }
        };
        connection.send(&request)?;
        let mut answered = answer()?;
        // The coordinator asks again if the process has ended meanwhile, until it gives up.
        while let ((Reply::WantServer, _), Some(code)) = (&answered, code) {
            start_server(&connection, &request, code)?;
            answered = answer()?;
        }
        match answered {
            (Reply::Attached(attached), descriptors) => {
                let attachment = Attachment::open(&attached, descriptors)?;
                let link = LoaderLink {
                    connection,
                    attachment,
                    assembly: None,
                    errors,
                    skips,
                    awaited: None,
                    first_seq: 0,
                    departed: Vec::new(),
                    unread: None,
                    given_up: 0,
                    orders,
                    device: DeviceLink::default(),
                };
                Ok((link, *attached))
            }
            (Reply::Refused(refusal), _) => Err(refused(refusal)),
            (Reply::WantServer, _) => Err(elsewhere()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.connection.is_lost()
    }

    /// Leaves the stream, and waits until the coordinator knows, so that the next job to attach finds this one gone.
    pub(super) fn leave(self) {
        self.device.settle();
        self.attachment.detach_held();
        self.connection.finish(LEAVE_TIMEOUT);
    }

    // Ranks that leave.

    /// Announces that this rank leaves its job in an orderly way, and waits until the other ranks have been told.
    /// Returns `false` if the connection was lost before.
    pub(super) fn announce_departure(&mut self, departure: Departure) -> bool {
        let interrupt_check = no_interrupt();
        let timeout = Timeout::new(LEAVE_TIMEOUT, &interrupt_check);
        if self.connection.send(&Request::Leave(departure)).is_err() {
            return false;
        }
        loop {
            match self.reply(&timeout, "the departure") {
                Ok(Reply::Left { .. }) => return true,
                // This is the late answer to a request that was given up.
                Ok(_) => {}
                // After a timeout the coordinator still has the message. Only a lost connection calls for another one.
                Err(e) => return !e.kind().is_lost(),
            }
        }
    }

    /// Reads the messages that have come without a request. It stops after the first error, so that errors that the user
    /// does not take wait in the coordinator.
    ///
    /// # Errors
    /// As [`Connection::receive`]. The connection is useless after an error.
    pub(super) fn read_pending(&mut self) -> Result<()> {
        let interrupt_check = no_interrupt();
        while self.errors.is_empty() && self.unread.is_none() {
            let Some(received) = self.connection.receive(Duration::ZERO, &interrupt_check)? else {
                return Ok(());
            };
            let reply = self.with_files(received)?;
            self.unread = self.store(reply)?;
        }
        Ok(())
    }

    /// Returns the ranks that were reported to have left the job since the last call.
    pub(super) fn departed(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.departed)
    }

    /// Reads the messages that came before the connection was lost, and returns the ranks that have left the job.
    pub(super) fn drain_departures(mut self) -> Vec<Departure> {
        let interrupt_check = no_interrupt();
        let timeout = Timeout::new(LEAVE_TIMEOUT, &interrupt_check);
        while !timeout.is_over() {
            let Ok(Some((reply, _))) = self.connection.receive(Duration::ZERO, &interrupt_check)
            else {
                break;
            };
            if let Reply::Departed(departure) = reply {
                self.departed.push(departure);
            }
        }
        self.departed()
    }

    // Items.

    /// Returns the next item of an epoch of this job, if one is ready. The caller must release or hold it.
    pub(super) fn try_next(&self) -> Result<Option<(u64, Item)>> {
        while let Some((seq, item)) = self
            .attachment
            .receiver
            .try_next()
            .map_err(Error::from_lower)?
        {
            if seq >= self.first_seq {
                return Ok(Some((seq, item)));
            }
            self.release(seq)?;
        }
        Ok(None)
    }

    /// Returns `true` if an item is ready and was not taken.
    pub(super) fn has_item(&self) -> bool {
        // This takes the item. The caller drops the connection and everything that came over it.
        matches!(self.try_next(), Ok(Some(_)))
    }

    pub(super) fn wait(&self, time: Duration) {
        self.attachment.receiver.wait(time);
    }

    pub(super) fn release(&self, seq: u64) -> Result<()> {
        self.attachment
            .receiver
            .release(seq)
            .map_err(Error::from_lower)
    }

    /// Takes a part of a batch of `size` samples. Returns the batch and its numbers if the part completes it.
    pub(super) fn take_part(
        &mut self,
        seq: u64,
        item: &Item,
        size: u32,
    ) -> Result<Option<(Batch, Vec<i64>)>> {
        let slice = self.attachment.hold(seq, item)?;
        let beyond_share = self.attachment.is_beyond_share(&slice);
        let numbers = raw::integers(&slice, self.attachment.number);
        let ends_batch = PartFlags::of(item).ends_batch;
        // A slice beyond the share is copied, so that its buffer returns to the coordinator and holds up nobody else.
        if ends_batch && self.assembly.is_none() && !beyond_share {
            return Ok(Some((Batch::view(slice), numbers)));
        }
        // A single part that is copied is a whole batch, so no more room is needed.
        let capacity = if ends_batch && self.assembly.is_none() {
            slice.len
        } else {
            size
        };
        let mut assembly = match self.assembly.take() {
            Some(assembly) => assembly,
            None => Assembly::new(&self.attachment, capacity)?,
        };
        assembly.push(&slice, numbers)?;
        if ends_batch {
            return Ok(Some(assembly.finish()));
        }
        self.assembly = Some(assembly);
        Ok(None)
    }

    // Batches on a GPU.

    /// Returns `true` if the batches of this stream can be copied to a GPU: its samples are of a fixed size.
    pub(super) fn is_uploadable(&self) -> bool {
        !self
            .attachment
            .fields
            .iter()
            .any(|field| field.name == BLOB)
    }

    /// Returns `true` if batches are copied to a GPU.
    pub(super) fn is_on_device(&self) -> bool {
        self.device.is_open()
    }

    /// Makes the GPU ready for the batches of this connection, within `time`. Returns `None` if that takes longer.
    pub(super) fn open_device(
        &mut self,
        uploader: &Arc<Uploader>,
        time: Duration,
    ) -> Result<Option<&OpenDevice>> {
        self.device.open(uploader, &self.attachment, time)
    }

    /// Begins to copy a part of a batch to the GPU. The next step waits for it.
    pub(super) fn upload_part(&mut self, seq: u64, item: &Item) -> Result<()> {
        let slots = self.device.hold(&self.attachment, seq, item)?;
        self.device.take(seq, item, slots)
    }

    /// Returns the GPU, if it is ready.
    pub(super) fn device(&self) -> Option<&OpenDevice> {
        self.device.opened()
    }

    /// Returns `true` if the coordinator was told which GPU the batches go to.
    pub(super) fn is_gpu_announced(&self) -> bool {
        self.device.sharing.is_announced
    }

    /// Tells it. There is no answer.
    pub(super) fn announce_gpu(&mut self, gpu: GpuUse) {
        self.device.sharing.is_announced = true;
        // If it fails, the next check of the connection finds out why.
        let _ = self.connection.send(&Request::UseGpu(Box::new(gpu)));
    }

    /// Maps a ring that the coordinator has offered, without a wait. Returns the reason, once, if uploads are not shared.
    pub(super) fn map_rings(&mut self) -> Result<Option<String>> {
        // If the connection is lost, items that lie ready are taken before that is noticed.
        let _ = self.read_pending();
        if let Some(RingAnswer { pool, is_mapped }) = self.device.map_offered()? {
            let _ = self
                .connection
                .send(&Request::RingMapped { pool, is_mapped });
        }
        Ok(self.device.sharing.refused.take())
    }

    /// Returns `true` if a part was taken whose copies have not begun.
    pub(super) fn awaits_upload(&self) -> bool {
        self.device.awaited_since().is_some()
    }

    /// Returns the time since that part was taken.
    pub(super) fn waited_for_upload(&self) -> Option<Duration> {
        self.device.awaited_since()
    }

    /// Waits until the copies of that part have begun, for `limit` at most. Returns the batch if the part completes it.
    pub(super) fn uploaded(&mut self, limit: Duration) -> Result<Option<GivenOnDevice>> {
        self.device.uploaded(limit)
    }

    /// Publishes the counts of this consumer for `coprep status`.
    pub(super) fn publish_counts(&self, account: &Account) {
        self.attachment.receiver.report(account);
    }

    // Requests.

    /// Announces to the coordinator that `epoch` is being iterated.
    pub(super) fn announce_epoch(&mut self, epoch: u64) -> Result<()> {
        self.connection.send(&Request::EpochStarted { epoch })
    }

    /// Does the same for a stream of user code, which answers. Returns `true` if the stream wants a fork server.
    pub(super) fn announce_epoch_of_code(
        &mut self,
        epoch: u64,
        timeout: &Timeout<'_>,
    ) -> Result<bool> {
        self.announce_epoch(epoch)?;
        match self.reply_about_epoch(timeout, "the beginning of an epoch")? {
            Reply::EpochBegun { wants_server } => Ok(wants_server),
            other => Err(unexpected(&other)),
        }
    }

    /// Announces that no epoch is iterated. Returns the process id of the fork server that ends for it, or 0.
    pub(super) fn leave_epoch(
        &mut self,
        epoch: u64,
        is_complete: bool,
        timeout: &Timeout<'_>,
    ) -> Result<u32> {
        let request = Request::EpochLeft { epoch, is_complete };
        self.connection.send(&request)?;
        match self.reply_about_epoch(timeout, "the end of an epoch")? {
            Reply::EpochLeft { ended_server } => Ok(ended_server),
            other => Err(unexpected(&other)),
        }
    }

    fn reply_about_epoch(&mut self, timeout: &Timeout<'_>, what: &'static str) -> Result<Reply> {
        let reply = self.reply(timeout, what);
        if let Err(e) = &reply
            && matches!(e.kind(), ErrorKind::Timeout | ErrorKind::Interrupted)
        {
            self.given_up += 1;
        }
        reply
    }

    /// Gives the stream a fork server.
    pub(super) fn give_server(&self, code: &dyn JobCode) -> Result<()> {
        start_server(&self.connection, &Request::GiveServer, code)
    }

    /// Tells the coordinator that this job cannot give one.
    pub(super) fn give_no_server(&self, why: String) -> Result<()> {
        self.connection.send(&Request::NoServer { why })
    }

    // Orders.

    /// Sends the order of an epoch: a proposal of this consumer, or if `is_settled` the order that its cohort had with
    /// another coordinator. There is no answer.
    pub(super) fn send_order(&mut self, epoch: u64, ids: &[u32], is_settled: bool) -> Result<()> {
        let samples = ids.len() as u32;
        let file = order::write(ids)
            .map_err(|e| invalid(format!("no memory for {samples} sample ids")).because(e))?;
        let request = Request::TellOrder {
            epoch,
            samples,
            is_settled,
        };
        self.connection.send_file(&request, &file)
    }

    /// Returns the orders that have come since the last call.
    pub(super) fn take_orders(&mut self) -> Vec<(u64, Vec<u32>)> {
        std::mem::take(&mut self.orders)
    }

    /// Waits for an order, or any other message that comes without a request, for `limit` at most.
    pub(super) fn wait_for_order(
        &mut self,
        limit: Duration,
        interrupt_check: &InterruptCheck,
    ) -> Result<()> {
        let Some(reply) = self.read(&Timeout::new(limit, interrupt_check))? else {
            return Ok(());
        };
        match self.store(reply)? {
            None => Ok(()),
            // The coordinator refuses the proposal of this consumer as malformed.
            Some(Reply::Refused(refusal)) => Err(refused(refusal)),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// Leaves `epoch` after `batches` batches, and returns the epoch that begins.
    pub(super) fn restart(
        &mut self,
        epoch: u64,
        batches: u64,
        timeout: &Timeout<'_>,
        notice: &Notice,
    ) -> Result<NextEpoch> {
        let request = Request::RestartEpoch { epoch, batches };
        self.connection.send(&request)?;
        match self.reply_of_others(timeout, "the next epoch", notice)? {
            Reply::Restarted {
                epoch,
                first_seq,
                goes_on,
                carried,
            } => {
                position::check_number(epoch)?;
                if first_seq > 0 && !goes_on {
                    self.drop_before(first_seq);
                }
                Ok(NextEpoch {
                    epoch,
                    goes_on,
                    carried,
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Drops the items and errors of an epoch that was left.
    fn drop_before(&mut self, first_seq: u64) {
        self.first_seq = first_seq;
        self.assembly = None;
        self.device.discard(first_seq);
        // All errors of the old epoch came before the answer.
        self.errors.clear();
        self.awaited = None;
    }

    /// Returns the samples that all ranks of the job were given in `epoch` at the point where this rank was given
    /// `batches` batches.
    pub(super) fn state(
        &mut self,
        epoch: u64,
        batches: u64,
        timeout: &Timeout<'_>,
    ) -> Result<RoaringBitmap> {
        self.connection.send(&Request::State { epoch, batches })?;
        match self.reply(timeout, "the job's state")? {
            Reply::State(state) if state.epoch == epoch => position::read_ids(&state.delivered),
            Reply::State(state) => Err(violation(format!(
                "a state of epoch {} instead of {epoch}",
                state.epoch
            ))),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the coordinator's explanation of this consumer's wait.
    pub(super) fn explain(
        &mut self,
        limit: Duration,
        interrupt_check: &InterruptCheck,
    ) -> Result<String> {
        self.connection.send(&Request::Explain)?;
        match self.reply(&Timeout::new(limit, interrupt_check), "an explanation")? {
            Reply::Explanation(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns whom this consumer waits for, if that is somebody else.
    pub(super) fn who_is_awaited(
        &mut self,
        limit: Duration,
        interrupt_check: &InterruptCheck,
    ) -> Result<Option<Awaited>> {
        self.connection.send(&Request::WhoIsAwaited)?;
        match self.reply(&Timeout::new(limit, interrupt_check), "who is awaited")? {
            Reply::Awaited(awaited) => Ok(awaited),
            other => Err(unexpected(&other)),
        }
    }

    /// Records that an item has announced an error.
    pub(super) fn expect_error(&mut self, item: &Item) {
        self.awaited = Some(AwaitedError {
            tag: item.tag,
            number: item.start,
        });
    }

    /// Returns `true` if an error was announced whose text has not been taken.
    pub(super) fn awaits_error(&self) -> bool {
        self.awaited.is_some()
    }

    /// Waits for the text of the announced error, for `limit` at most. The text was queued before its item was
    /// published, but the coordinator sends it when the socket has room. Returns it with the number of its sample, or
    /// `None` if it has not come.
    pub(super) fn awaited_error(
        &mut self,
        limit: Duration,
        interrupt_check: &InterruptCheck,
    ) -> Result<Option<(u32, SampleError)>> {
        let timeout = Timeout::new(limit, interrupt_check);
        while let Some(AwaitedError { tag, number }) = self.awaited {
            if let Some(error) = self.errors.remove(&tag) {
                self.awaited = None;
                return Ok(Some((number, error)));
            }
            let Some(reply) = self.read(&timeout)? else {
                return Ok(None);
            };
            if let Some(other) = self.store(reply)? {
                return Err(unexpected(&other));
            }
        }
        Ok(None)
    }

    /// Reads messages until the samples are known whose notice has this tag.
    pub(super) fn read_skips(&mut self, tag: u64, interrupt_check: &InterruptCheck) -> Result<()> {
        let timeout = Timeout::new(ERROR_TEXT_TIMEOUT, interrupt_check);
        while self.skips.latest_tag < tag {
            self.store_next(&timeout)?;
        }
        Ok(())
    }

    /// Waits for one message that comes without a request, and stores it.
    fn store_next(&mut self, timeout: &Timeout<'_>) -> Result<()> {
        let reply = self.receive(timeout, "the text of an error")?;
        match self.store(reply)? {
            None => Ok(()),
            Some(other) => Err(unexpected(&other)),
        }
    }

    /// Stores a message that comes without a request. Returns any other message.
    fn store(&mut self, reply: Reply) -> Result<Option<Reply>> {
        match reply {
            Reply::SampleError(error) => drop(self.errors.insert(error.tag, error)),
            Reply::Skipped(skipped) => self.skips.add(*skipped)?,
            Reply::Departed(departure) => self.departed.push(departure),
            // The files were read together with the message.
            Reply::Order { .. } | Reply::Ring { .. } => {}
            Reply::NoRing { why } => self.device.sharing.refused = Some(why),
            // Answers come in the order of the requests, so this one is to a request that was given up.
            Reply::EpochBegun { .. } | Reply::EpochLeft { .. } if self.given_up > 0 => {
                self.given_up -= 1;
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Waits for the answer to a request. Messages that come before it without a request are stored.
    fn reply(&mut self, timeout: &Timeout<'_>, what: &'static str) -> Result<Reply> {
        loop {
            let reply = self.receive(timeout, what)?;
            match self.store(reply)? {
                None => {}
                Some(Reply::Refused(refusal)) => return Err(refused(refusal)),
                Some(reply) => return Ok(reply),
            }
        }
    }

    /// Waits for an answer that is given when other ranks have asked too. If that takes long, a notice names the ranks
    /// that have not.
    fn reply_of_others(
        &mut self,
        timeout: &Timeout<'_>,
        what: &'static str,
        notice: &Notice,
    ) -> Result<Reply> {
        let mut wait = Wait::new(what, notice);
        // Most waits are short, so the coordinator is asked for the reason only after this time.
        let first = Timeout::new(NOTIFY_AFTER.min(timeout.left()), timeout.interrupt_check());
        match self.reply(&first, what) {
            Err(e) if *e.kind() == ErrorKind::Timeout && !timeout.is_over() => {}
            other => return other,
        }
        self.connection.send(&Request::WhoIsAwaited)?;
        loop {
            match self.reply(timeout, what) {
                Ok(Reply::Awaited(awaited)) => {
                    wait.record(awaited);
                    wait.notify_if_due()?;
                }
                Err(error) => return Err(explained(error, wait.explanation())),
                reply => return reply,
            }
        }
    }

    fn receive(&mut self, timeout: &Timeout<'_>, what: &'static str) -> Result<Reply> {
        let read = self.read(timeout)?;
        read.ok_or_else(|| self.connection.timeout_error(what, timeout.waited()))
    }

    /// Returns the next reply, or `None` if none comes in time.
    fn read(&mut self, timeout: &Timeout<'_>) -> Result<Option<Reply>> {
        if let Some(reply) = self.unread.take() {
            return Ok(Some(reply));
        }
        let received = self
            .connection
            .receive(timeout.left(), timeout.interrupt_check())?;
        received
            .map(|received| self.with_files(received))
            .transpose()
    }

    /// Reads the files that come with a message.
    fn with_files(&mut self, received: (Reply, Vec<OwnedFd>)) -> Result<Reply> {
        let (reply, descriptors) = received;
        match reply {
            Reply::Order { epoch, samples } => {
                self.orders.push((epoch, read_order(samples, descriptors)?));
            }
            Reply::Ring {
                pool,
                buffers,
                bytes,
            } => {
                let files = descriptors.try_into();
                let files = files.map_err(|_| violation("a ring without its files"))?;
                self.device.sharing.offered = Some(OfferedRing {
                    pool,
                    buffers,
                    bytes,
                    files,
                });
            }
            _ => {}
        }
        Ok(reply)
    }
}

impl Drop for LoaderLink {
    /// Copies the slices that the user still holds, because they may outlive the connection. Those that a GPU is copying
    /// are released before.
    fn drop(&mut self) {
        self.device.settle();
        self.attachment.detach_held();
    }
}

/// Starts a fork server, after its socket was sent with `request`: the coordinator need not ask another job meanwhile.
fn start_server(connection: &Connection, request: &Request, code: &dyn JobCode) -> Result<()> {
    let pair = UnixStream::pair();
    let (ours, theirs) =
        pair.map_err(|e| invalid("no socket for the process that runs the dataset").because(e))?;
    let ours = OwnedFd::from(ours);
    connection.send_file(request, &ours)?;
    // Closed before the fork, so that the process sees the coordinator hang up.
    drop(ours);
    code.start_server(theirs)
}

/// Returns the error of a thread of this library, which must not fork the process.
fn elsewhere() -> Error {
    Error::new(
        ErrorKind::WrongThread,
        "the dataset's process can be started by the job's own thread only",
    )
}

/// Reads the file that came with an order.
fn read_order(samples: u32, descriptors: Vec<OwnedFd>) -> Result<Vec<u32>> {
    let malformed = |why: String| violation(format!("the order of an epoch: {why}"));
    let file = descriptors.into_iter().next();
    let file = file.ok_or_else(|| malformed("no file came with it".into()))?;
    order::read(file, samples).map_err(|e| malformed(e.to_string()))
}

fn unexpected(reply: &Reply) -> Error {
    violation(format!("unexpected answer {reply:?}"))
}
