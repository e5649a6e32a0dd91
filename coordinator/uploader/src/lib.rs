//! The process that copies minibatches to a GPU, once for all jobs there that share uploads.
//!
//! ```text
//! coordinator -- open, close --> connection (standard input) -> a thread for each ring
//!             -- items --------> hand-over in shared memory  -> copies; the release says that a copy has ended
//! ```
//!
//! | module | task |
//! |---|---|
//! | [`affinity`] | the processors that the process runs on |
//! | [`budget`] | the memory of the GPU that rings may take |
//! | [`ring`] | one ring: it is opened, and minibatches are copied to it |
//!
//! # Who may die
//!
//! The process ends with its connection, and with the thread of the coordinator that started it, even while it hangs in
//! the driver. Jobs have mapped the memory of the rings themselves, so the minibatches there stay. If the GPU fails, the
//! process says why and ends: no call to it would succeed any more.
#![forbid(unsafe_code)]

mod affinity;
mod budget;
mod ring;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use coprep_device::{Context, Driver, Gpu, NumaNode};
use coprep_protocol::frame;
use coprep_protocol::uploader::{OpenRing, UploaderEvent, UploaderRequest};
use coprep_shared_memory::lock::lock;
use nix::sys::prctl;
use nix::sys::signal::Signal;

use crate::budget::Budget;
use crate::ring::{OpenError, Ring};

/// An error that ends the process.
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Standard input is no connection with a coordinator, or the process cannot be tied to it.
    NotStarted,
    /// The coordinator sent something that is no request.
    Protocol,
}

/// Serves the coordinator at the other end of standard input, until it hangs up.
///
/// # Errors
/// [`ErrorKind`].
pub fn run(uuid: &str) -> Result<(), Error> {
    let not_started = |e: std::io::Error| {
        Error::new(ErrorKind::NotStarted, "the uploader cannot be started").because(e)
    };
    // The coordinator's death ends the connection too, but nobody looks at it while a call of the driver hangs.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|e| not_started(e.into()))?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = UnixStream::from(socket.map_err(not_started)?);
    let mut uploader = Uploader {
        uuid: uuid.to_owned(),
        coordinator: Arc::new(Coordinator {
            socket,
            telling: Mutex::default(),
        }),
        gpu: None,
        rings: ServedRings::default(),
    };
    loop {
        match frame::receive_despite_signals(&uploader.coordinator.socket) {
            Ok((request, descriptors)) => uploader.obey(request, descriptors),
            Err(e) if *e.kind() == frame::ErrorKind::Closed => return Ok(()),
            Err(e) => {
                let context = "the uploader's connection has failed";
                return Err(Error::new(ErrorKind::Protocol, context).because(e));
            }
        }
    }
}

/// The connection with the coordinator.
struct Coordinator {
    socket: UnixStream,
    /// Held while an event is sent, because each ring has a thread.
    telling: Mutex<()>,
}

impl Coordinator {
    fn refuse(&self, ring: u64, why: String) {
        self.tell(&UploaderEvent::Refused { ring, why }, &[]);
    }

    /// Ends the process, because the GPU has failed.
    fn fail(&self, why: String) -> ! {
        self.tell(&UploaderEvent::Failed { why }, &[]);
        // Not by returning: other threads may hang in the driver.
        std::process::exit(1);
    }

    fn tell(&self, event: &UploaderEvent, descriptors: &[RawFd]) {
        let _telling = lock(&self.telling);
        // If the coordinator is gone, this process ends anyway.
        let _ = frame::send(&self.socket, event, descriptors);
    }
}

/// The process; see the module.
struct Uploader {
    uuid: String,
    coordinator: Arc<Coordinator>,
    /// The GPU, from the first ring on.
    gpu: Option<OpenGpu>,
    rings: ServedRings,
}

/// The rings that are open or being opened. For each: `true` once it is to be closed.
///
/// The thread of a ring owns the flag, so that the ring is forgotten however the thread ends: no request to close it
/// comes for one that was refused.
#[derive(Default)]
struct ServedRings(HashMap<u64, Weak<AtomicBool>>);

impl ServedRings {
    /// Adds a ring, and returns the flag for its thread.
    fn add(&mut self, ring: u64) -> Arc<AtomicBool> {
        self.0.retain(|_, is_closing| is_closing.strong_count() > 0);
        let is_closing = Arc::new(AtomicBool::new(false));
        self.0.insert(ring, Arc::downgrade(&is_closing));
        is_closing
    }

    fn close(&mut self, ring: u64) {
        let removed = self.0.remove(&ring);
        if let Some(is_closing) = removed.and_then(|flag| flag.upgrade()) {
            is_closing.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Clone)]
struct OpenGpu {
    context: Context,
    /// Number of the NUMA node whose processors this process runs on, if it is that of the GPU.
    node: Option<u32>,
    budget: Arc<Budget>,
}

impl Uploader {
    fn obey(&mut self, request: UploaderRequest, descriptors: Vec<OwnedFd>) {
        match request {
            UploaderRequest::Open(request) => {
                let ring = request.ring;
                if let Err(why) = self.open(request, descriptors) {
                    self.coordinator.refuse(ring, why);
                }
            }
            UploaderRequest::Close { ring } => self.rings.close(ring),
        }
    }

    /// Opens a ring in a thread of its own: pinning the staging area of one stream must not hold up the copies of another.
    fn open(&mut self, request: OpenRing, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let gpu = match self.gpu.take() {
            Some(gpu) => gpu,
            // The coordinator has one budget for all rings of a GPU, so that of the first request holds for the others.
            None => open_gpu(&self.uuid, request.budget).map_err(|e| e.to_string())?,
        };
        self.gpu = Some(gpu.clone());
        let is_closing = self.rings.add(request.ring);
        let coordinator = self.coordinator.clone();
        let serve = move || {
            serve(&coordinator, &gpu, &request, descriptors, &is_closing);
        };
        std::thread::Builder::new()
            .name("ring".into())
            .spawn(serve)
            .map(drop)
            .map_err(|e| format!("a thread cannot be started: {e}"))
    }
}

/// Opens a ring, and copies minibatches to it until it is closed. A GPU that fails ends the process.
fn serve(
    coordinator: &Coordinator,
    gpu: &OpenGpu,
    request: &OpenRing,
    descriptors: Vec<OwnedFd>,
    is_closing: &AtomicBool,
) {
    let ring = match Ring::open(&gpu.context, &gpu.budget, request, descriptors) {
        Ok(ring) => ring,
        Err(OpenError::Refused(why)) => return coordinator.refuse(request.ring, why),
        Err(OpenError::Failed(why)) => coordinator.fail(why),
    };
    let opened = UploaderEvent::Opened {
        ring: request.ring,
        buffers: ring.buffers(),
        bytes: ring.bytes(),
        why_bounced: ring.why_bounced().map(str::to_owned),
        node: gpu.node,
    };
    coordinator.tell(&opened, &[ring.descriptor().as_raw_fd()]);
    if let Err(why) = ring.copy_until(is_closing) {
        coordinator.fail(why);
    }
}

fn open_gpu(uuid: &str, budget: u64) -> coprep_device::Result<OpenGpu> {
    let driver = Driver::load()?;
    let gpus = Gpu::all(driver)?;
    let is_it = |gpu: &Gpu| gpu.uuid().is_ok_and(|found| found.to_string() == uuid);
    let found = gpus.into_iter().find(is_it);
    let gpu = found.ok_or_else(|| {
        let context = format!("the coordinator sees no GPU {uuid}");
        coprep_device::Error::new(coprep_device::ErrorKind::NoSuchDevice, context)
            .with_remedy("start it where the job's GPUs are visible")
    })?;
    // Before the context is made, so that the memory and most threads of the driver are of the node too.
    let node = NumaNode::of(&gpu).filter(affinity::stay_on);
    Ok(OpenGpu {
        node: node.map(|node| node.number()),
        budget: Budget::of(gpu.memory_bytes()?, budget),
        context: Context::retain(gpu)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_forgotten_when_its_thread_ends() {
        let mut rings = ServedRings::default();
        let open = rings.add(1);
        // The thread of a ring that is refused ends, and nobody asks to close the ring.
        drop(rings.add(2));
        let other = rings.add(3);
        assert_eq!(rings.0.len(), 2);
        rings.close(1);
        rings.close(2);
        assert!(open.load(Ordering::Relaxed));
        assert!(!other.load(Ordering::Relaxed));
        assert_eq!(rings.0.len(), 1);
    }
}
