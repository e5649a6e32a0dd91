//! The other threads' end of the upload thread.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coprep_device::TIMEOUT;
use coprep_shared_memory::handover::Item;
use coprep_shared_memory::lock::lock;

use crate::attachment::Attachment;
use crate::device::assembly::UploadedBatch;
use crate::device::here::Here;
use crate::device::messages::{Command, TakenItem, UploadState};
use crate::device::options::{DeviceOptions, UserStream};
use crate::device::ring::{HeldPart, MappedRing, OfferedRing};
use crate::device::thread::UploadThread;
use crate::error::{Error, Result, gpu_hangs, gpu_thread_ended, not_started};
use crate::raw;

pub(crate) use crate::device::messages::OpenDevice;

/// Longest time until a GPU is ready: its driver is loaded, its context made and the staging area pinned.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two looks whether the thread has ended.
const END_POLL: Duration = Duration::from_micros(200);

/// Copies of the parts of batches.
#[derive(Clone, Copy, Default)]
pub(crate) struct UploadCounts {
    /// Copies from the host that were begun.
    pub(crate) uploads: u64,
    /// Bytes of these.
    pub(crate) bytes: u64,
    /// Parts that an uploader had copied to the GPU.
    pub(crate) shared: u64,
}

/// The upload thread of a loader, as others see it. The thread ends when this is dropped.
pub(crate) struct Uploader {
    gpu: u32,
    commands: Here<Sender<Command>>,
    thread: Here<JoinHandle<()>>,
    state: Arc<UploadState>,
    /// The first error that is not of opening. The thread may hang in the driver, so it cannot be asked any more.
    failure: Mutex<Option<Error>>,
}

impl Uploader {
    /// Starts the thread. It makes no call of the driver before [`open`](Self::open).
    pub(crate) fn start(options: DeviceOptions, gpu: u32, samples: u32) -> Result<Arc<Self>> {
        let (commands, receiver) = channel();
        let state = Arc::new(UploadState::default());
        let thread = UploadThread::new(options, gpu, samples, receiver, state.clone());
        let thread = std::thread::Builder::new()
            .name("coprep-upload".into())
            .spawn(move || thread.run())
            .map_err(|e| not_started(format!("a thread: {e}")))?;
        Ok(Arc::new(Uploader {
            gpu,
            commands: Here::new(commands),
            thread: Here::new(thread),
            state,
            failure: Mutex::default(),
        }))
    }

    /// Returns the copies so far.
    pub(crate) fn counts(&self) -> UploadCounts {
        UploadCounts {
            uploads: self.state.uploads.load(Relaxed),
            bytes: self.state.bytes.load(Relaxed),
            shared: self.state.shared.load(Relaxed),
        }
    }

    /// Maps a ring of an uploader, beside those before: items name the ring that they lie in. The answer has the reason in
    /// words if it cannot be mapped.
    pub(crate) fn map(
        &self,
        offered: OfferedRing,
    ) -> Result<AwaitedAnswer<std::result::Result<Arc<MappedRing>, String>>> {
        self.ask(TIMEOUT, |answer| Command::Map(Box::new(offered), answer))
    }

    /// Makes the GPU ready for the batches of an attachment. May be tried again after an error.
    pub(crate) fn open(&self, attachment: Arc<Attachment>) -> Result<AwaitedAnswer<OpenDevice>> {
        self.ask(OPEN_TIMEOUT, |answer| Command::Open(attachment, answer))
    }

    /// Copies an item that was taken, and releases it. The answer has the batch if the item completes it.
    pub(crate) fn take(
        &self,
        seq: u64,
        item: &Item,
        ends_batch: bool,
        slots: HeldPart,
    ) -> Result<AwaitedAnswer<Option<UploadedBatch>>> {
        let item = *item;
        self.ask(TIMEOUT, |answer| {
            Command::Take(Box::new(TakenItem {
                seq,
                item,
                ends_batch,
                slots,
                answer,
            }))
        })
    }

    /// Forgets the batch whose parts are coming. Items before `first_seq` are of an epoch that was left.
    pub(crate) fn discard(&self, first_seq: u64) {
        if let Some(commands) = self.commands.get() {
            // A thread that has ended has forgotten everything.
            let _ = commands.send(Command::Discard(first_seq));
        }
    }

    /// Waits until no copy uses the buffers of the coordinator any more. Afterwards the connection may end.
    pub(crate) fn settle(&self) {
        let asked = self.ask(TIMEOUT, Command::Settle);
        if let Ok(mut answer) = asked {
            // There is no remedy for an error: the batches that it spoils are on a GPU that hangs.
            let _ = answer.wait_until_due(self);
        }
    }

    /// Ends the thread, and waits until it has given everything back. The driver must not be called any more when the
    /// process ends.
    pub(crate) fn end(&self) {
        if let (Some(commands), Some(thread)) = (self.commands.get(), self.thread.get()) {
            let began = Instant::now();
            let _ = commands.send(Command::End);
            // A thread that hangs in the driver is left behind.
            while !thread.is_finished() && self.check().is_ok() && began.elapsed() < TIMEOUT {
                std::thread::sleep(END_POLL);
            }
        }
    }

    fn ask<T>(
        &self,
        limit: Duration,
        command: impl FnOnce(Sender<Result<T>>) -> Command,
    ) -> Result<AwaitedAnswer<T>> {
        self.check()?;
        let (answer, receiver) = channel();
        let sent = self
            .commands
            .get()
            .map(|commands| commands.send(command(answer)));
        match sent {
            Some(Ok(())) => Ok(AwaitedAnswer {
                receiver: Here::new(receiver),
                asked: Instant::now(),
                excused: Instant::now(),
                limit,
            }),
            _ => Err(self.fail(gpu_thread_ended())),
        }
    }

    /// Fails after an error after which nothing more is copied.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn check(&self) -> Result<()> {
        let failure = lock(&self.failure);
        failure.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Records an error after which nothing more is copied. Returns the first one.
    pub(crate) fn fail(&self, error: Error) -> Error {
        lock(&self.failure).get_or_insert(error).clone()
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Command::End);
        }
    }
}

/// An answer of the upload thread that has not come yet.
pub(crate) struct AwaitedAnswer<T> {
    receiver: Here<Receiver<Result<T>>>,
    asked: Instant,
    /// The last moment at which the thread waited for the user's own work, or else the time of the question.
    excused: Instant,
    /// Longest time for the answer, without that time.
    limit: Duration,
}

impl<T> AwaitedAnswer<T> {
    /// Returns the time since the question.
    pub(crate) fn waited(&self) -> Duration {
        self.asked.elapsed()
    }

    /// Waits for the answer, for `time` at most.
    ///
    /// # Errors
    /// The answer's error; or the thread hangs in a call of the driver.
    pub(crate) fn wait(&mut self, uploader: &Uploader, time: Duration) -> Result<Option<T>> {
        let Some(receiver) = self.receiver.get() else {
            return Ok(None);
        };
        match receiver.recv_timeout(time) {
            Ok(answer) => answer.map(Some),
            Err(RecvTimeoutError::Disconnected) => Err(uploader.fail(gpu_thread_ended())),
            Err(RecvTimeoutError::Timeout) => {
                if uploader.state.waits_for_user.load(Relaxed) {
                    self.excused = Instant::now();
                }
                let waited = self.excused.elapsed();
                if waited >= self.limit {
                    return Err(uploader.fail(gpu_hangs(uploader.gpu, waited)));
                }
                Ok(None)
            }
        }
    }

    fn wait_until_due(&mut self, uploader: &Uploader) -> Result<Option<T>> {
        self.wait(uploader, self.limit)
    }
}

impl OpenDevice {
    /// Fails while the user's stream is being captured into a CUDA graph, in which no batch can be recorded.
    ///
    /// # Errors
    /// [`coprep_device::ErrorKind::Invalid`].
    pub(crate) fn check_stream(&self, stream: UserStream) -> Result<()> {
        let stream = raw::user_stream(&self.context, stream.stream);
        stream.check_not_captured().map_err(Error::from_lower)
    }
}
