//! Fuzzes a client with a coordinator that says and publishes anything.
//!
//! The client attaches to it, takes batches, leaves an epoch, and asks for its state.
//!
//! The client must never panic, touch a byte out of bounds, or wait without end. An id that the client gave counts once
//! in an epoch.
//!
//! An input gives the coordinator's answer to the request for a place, the descriptors that come along, the items that
//! it publishes, the places that it states for samples larger than their slots, and its replies to later requests.
#![no_main]
#![expect(unsafe_code, reason = "reads what a user would read, by its address")]

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use coprep_client::loader::LoaderOptions;
use coprep_client::{Event, Loader, no_interrupt, no_notice};
use coprep_fuzz::Bytes;
use coprep_protocol::frame::{self, to_bytes};
use coprep_protocol::message::{
    Attach, Attached, CacheRequest, CarriedOver, Departure, Refusal, RefusalKind, Reply, Request,
    ResumePoint, SampleError, Skipped,
};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::spec::{BLOB, Dtype, Field, FileList, NUMBER, PipelineSpec, Source};
use coprep_protocol::store_variables::StoreVariables;
use coprep_shared_memory::handover::{Doorbell, Item, Sender};
use coprep_shared_memory::staging::{Layout, SlotMut, StagingPool};
use libfuzzer_sys::fuzz_target;

const SAMPLES: u32 = 64;
const BATCH_SIZE: u32 = 4;
const CAPACITY: u32 = 16;
/// Bytes that large samples may take.
const LARGE_BYTES: u64 = 1 << 20;
/// Longest wait of the client for anything.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Longest wait of the coordinator for the client's next request. It is short, so that an input takes milliseconds.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(4);
/// Largest number of events that the client requests in an epoch.
const MOST_EVENTS: usize = 24;

fuzz_target!(init: init(), |data: &[u8]| {
    let mut script = Bytes(data);
    let coordinator = Coordinator::from_input(&mut script);
    let rest = script.0.to_vec();
    std::thread::scope(|scope| {
        let served = scope.spawn(|| coordinator.serve(&rest));
        train();
        // The coordinator's thread may still wait for a connection, and this one lets it end.
        drop(UnixStream::connect(&paths().socket));
        served.join().expect("the coordinator's side does not panic");
    });
});

fn init() {
    coprep_fuzz::seed(&seeds());
    listener();
}

fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("coprep-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    })
}

fn paths() -> CoordinatorPaths {
    CoordinatorPaths::at(folder().join("socket"))
}

fn listener() -> &'static UnixListener {
    static LISTENER: OnceLock<UnixListener> = OnceLock::new();
    LISTENER.get_or_init(|| {
        let socket = paths().socket;
        // An earlier process with this id may have left its socket.
        let _ = std::fs::remove_file(&socket);
        UnixListener::bind(socket).expect("a socket")
    })
}

// The client.

fn train() {
    let options = LoaderOptions {
        paths: paths(),
        name: "fuzz".into(),
        program: Some("/bin/false".into()),
        attach: attach(),
        device: None,
        code: None,
        credentials: None,
        timeout: TIMEOUT,
        reconnect: Duration::ZERO,
        interrupt_check: no_interrupt(),
        notice: no_notice(),
    };
    let loader = Loader::new(options).expect("nothing is resumed");
    // An error is a right answer to a coordinator that lies. Panics and faults are the failures.
    let _ = epochs(&loader);
    loader.close();
}

/// Takes two epochs. It leaves the first one in the middle, and holds a batch across the border.
fn epochs(loader: &Loader) -> coprep_client::Result<()> {
    let mut held = None;
    for epoch in 0..2 {
        loader.start_epoch()?;
        let mut given = Vec::new();
        for _ in 0..MOST_EVENTS {
            match loader.next(Duration::from_millis(1)) {
                Ok(Event::Batch(batch)) => {
                    read(&batch);
                    given.push(batch.samples());
                    held = Some(batch);
                }
                Ok(Event::EndOfEpoch) => break,
                Ok(Event::NotYet | Event::Skipped(_)) => {}
                Err(e) if matches!(e.kind(), coprep_client::ErrorKind::Sample(_)) => {}
                Err(e) => return Err(e),
            }
            if epoch == 0 && given.len() == 3 {
                break;
            }
        }
        let state = loader.state()?;
        let all: u64 = given.iter().map(|&n| u64::from(n)).sum();
        assert!(state.delivered.len() <= all + u64::from(SAMPLES));
    }
    drop(held);
    Ok(())
}

/// Reads the first and the last byte of every field of a batch, at the addresses that a user receives.
fn read(batch: &coprep_client::Batch) {
    let arrays = batch.arrays().into_iter();
    let with_large = arrays.flat_map(|mut array| {
        let large = std::mem::take(&mut array.large);
        std::iter::once(array).chain(large.into_iter().map(|(_, array)| array))
    });
    for array in with_large {
        let bytes = array.shape.iter().product::<usize>() * element_bytes(array.dtype);
        for at in [0, bytes.saturating_sub(1)]
            .into_iter()
            .filter(|_| bytes > 0)
        {
            // SAFETY: the batch promises that this many bytes can be read as long as the array lives. The fuzzer
            // tests this promise, and sees the fault if it is broken.
            let _ = unsafe {
                std::ptr::with_exposed_provenance::<u8>(array.address() + at).read_volatile()
            };
        }
    }
}

fn element_bytes(dtype: Dtype) -> usize {
    let one = Field {
        name: String::new(),
        dtype,
        shape: Vec::new(),
    };
    one.sample_bytes()
}

fn attach() -> Attach {
    Attach {
        pipeline: PipelineSpec {
            source: Source::Files(FileList {
                paths: vec!["/data/a.jpg".into()],
                labels: vec![0],
            }),
            ops: Vec::new(),
        },
        store_variables: StoreVariables::default(),
        provider: None,
        code: None,
        seed: None,
        seed_hint: None,
        draws: None,
        is_told: false,
        knows_order_of: None,
        shuffle: true,
        shuffle_window: 0,
        relaxed: false,
        cache: CacheRequest {
            form: None,
            bytes: None,
            lru: false,
            reuse: 0,
            check_files: true,
        },
        batch_size: BATCH_SIZE,
        drop_last: false,
        rank: 0,
        world_size: 1,
        group: String::new(),
        subset: None,
        resume: None,
        dataset_samples: None,
        cohort: None,
        skip_errors: false,
        tokens: Vec::new(),
        told: None,
        departed: Vec::new(),
        has_begun: false,
    }
}

// The coordinator.

/// A coordinator: the regions that it makes, and its description of them.
struct Coordinator {
    /// Fields of a sample in the staging area.
    fields: Vec<Field>,
    slots: u32,
    buffers: u32,
    /// The answer to the client, which may be a lie.
    attached: Attached,
    /// Descriptors that come along, by number: staging, deliver, reply, doorbell.
    descriptors: Vec<u8>,
    items: Vec<Item>,
    /// Large samples, one for each of the first slots.
    large: Vec<Large>,
}

/// A sample that is larger than its slot.
#[derive(Clone, Copy, Debug)]
struct Large {
    bytes: u64,
    /// A false number, and its offset from the start of the slot's large field, or `None` if nothing is overwritten.
    lie: Option<(usize, u64)>,
}

impl Coordinator {
    fn from_input(input: &mut Bytes) -> Self {
        let fields: Vec<Field> = (0..1 + input.byte() % 3).map(|_| field(input)).collect();
        let fields = fields.into_iter().chain([index()]).collect::<Vec<_>>();
        let (slots, buffers) = (
            1 + u32::from(input.byte() % 8),
            1 + u32::from(input.byte() % 4),
        );
        let mut attached = attached(&fields, slots, buffers);
        let mut descriptors = vec![0, 1, 2, 3];
        lie(input, &mut attached, &mut descriptors);
        let items = (0..input.byte() % CAPACITY as u8)
            .map(|_| item(input))
            .collect();
        let large = (0..input.byte() % 32).map(|_| large(input)).collect();
        Coordinator {
            fields,
            slots,
            buffers,
            attached,
            descriptors,
            items,
            large,
        }
    }

    /// Fills all buffers as the input says. They do not change while the slots are held.
    fn fill(&self, pool: &StagingPool) -> Vec<SlotMut> {
        let field = pool.layout().large_field();
        let filled = std::iter::from_fn(|| pool.allocate());
        let slots = filled.flat_map(|filling| filling.split(self.slots).0);
        let mut slots: Vec<SlotMut> = slots.collect();
        for (slot, large) in slots.iter_mut().zip(&self.large) {
            let reserved = slot.reserve_large(large.bytes, true);
            if let (Ok(Some(_)), Some((at, number)), Some(field)) = (reserved, large.lie, field) {
                slot.field_mut(field)[at..at + 8].copy_from_slice(&number.to_ne_bytes());
            }
        }
        slots
    }

    /// Serves one client as the script says, until it has left.
    fn serve(&self, script: &[u8]) {
        let Ok((socket, _)) = listener().accept() else {
            return;
        };
        // The client answers within milliseconds, so these limits only end an input that hangs.
        let _ = socket.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = socket.set_write_timeout(Some(Duration::from_secs(5)));
        // The script may end the conversation at any point.
        let _ = self.talk(&socket, &mut Bytes(script));
        drop(socket);
        refuse_others();
    }

    fn talk(&self, socket: &UnixStream, script: &mut Bytes) -> Option<()> {
        let (Request::Hello { .. }, _) = frame::receive::<Request>(socket).ok()? else {
            return None;
        };
        let version = "fuzz".into();
        frame::send(socket, &Reply::Welcome { pid: 1, version }, &[]).ok()?;
        let (Request::Attach(_), _) = frame::receive::<Request>(socket).ok()? else {
            return None;
        };
        let layout = layout(&self.fields, self.slots, self.buffers)?;
        let pool = StagingPool::create(layout).ok()?;
        let _slots = self.fill(&pool);
        let mut sender = Sender::create(CAPACITY).ok()?;
        let doorbell = Doorbell::new().ok()?;
        let bell = doorbell.bell().ok()?;
        sender.set_share(2);
        let (deliver, reply) = sender.fds().ok()?;
        let made = [pool.reader_fd().ok()?, deliver, reply, bell.fd().ok()?];
        let chosen: Vec<RawFd> = self.descriptors.iter().map(|n| raw(&made, *n)).collect();
        let attached = Reply::Attached(Box::new(self.attached.clone()));
        frame::send(socket, &attached, &chosen).ok()?;
        for item in &self.items {
            sender.publish(*item).ok()?;
        }
        // The connection of a client that only waits is closed soon, so that an input takes milliseconds.
        let _ = socket.set_read_timeout(Some(REQUEST_TIMEOUT));
        while let Ok((request, _)) = frame::receive::<Request>(socket) {
            let _ = sender.taken();
            let _ = sender.poll_released(drop);
            answer(socket, &request, script)?;
        }
        Some(())
    }
}

fn raw(made: &[OwnedFd; 4], number: u8) -> RawFd {
    made[usize::from(number) % made.len()].as_raw_fd()
}

/// Refuses clients that connect again, until a connection comes that says nothing.
fn refuse_others() {
    loop {
        let Ok((socket, _)) = listener().accept() else {
            return;
        };
        let _ = socket.set_read_timeout(Some(Duration::from_secs(5)));
        let Ok((Request::Hello { .. }, _)) = frame::receive::<Request>(&socket) else {
            return;
        };
        let refused = Reply::Refused(Refusal {
            kind: RefusalKind::Invalid,
            message: "go".into(),
            sample: None,
        });
        // The client may have given up already.
        let _ = frame::send(&socket, &refused, &[]);
    }
}

/// Sends a reply that may or may not fit the request. Returns `None` if the connection ends.
fn answer(socket: &UnixStream, request: &Request, script: &mut Bytes) -> Option<()> {
    let reply = match (request, script.byte() % 8) {
        (Request::EpochStarted { .. }, 0..=5) => return Some(()),
        (_, 0) => return None,
        (_, 1) => {
            let len = script.small() as usize % 256;
            return std::io::Write::write_all(&mut &*socket, script.some(len)).ok();
        }
        (_, 2) => Reply::SampleError(sample_error(script)),
        (_, 3) => Reply::Skipped(Box::new(Skipped {
            ids: script.some(40).to_vec(),
            example: sample_error(script),
        })),
        (_, 4) => Reply::Departed(Departure {
            token: script.small().into(),
            rank: script.byte().into(),
            resume: ResumePoint {
                epoch: script.small(),
                delivered: script.some(40).to_vec(),
                batches: script.small(),
                is_done: true,
                skipped: script.some(40).to_vec(),
                carried: carried(script),
            },
        }),
        (Request::State { epoch, .. }, _) => Reply::State(ResumePoint {
            epoch: *epoch,
            delivered: script.some(40).to_vec(),
            batches: script.small(),
            is_done: false,
            skipped: Vec::new(),
            carried: Vec::new(),
        }),
        (Request::Explain, _) => Reply::Explanation("why".into()),
        _ => Reply::Restarted {
            epoch: number(script),
            first_seq: number(script),
            goes_on: script.byte() & 1 == 0,
            carried: carried(script),
        },
    };
    frame::send(socket, &reply, &[]).ok()
}

fn carried(script: &mut Bytes) -> Vec<CarriedOver> {
    let group = CarriedOver {
        epoch: number(script),
        before: number(script),
        ids: script.some(40).to_vec(),
    };
    vec![group; usize::from(script.byte() % 3)]
}

/// Returns a number from the input, which is mostly small.
fn number(input: &mut Bytes) -> u64 {
    match input.byte() {
        255 => u64::from_le_bytes(input.take()),
        254 => u64::MAX,
        small => u64::from(small % 32),
    }
}

fn sample_error(script: &mut Bytes) -> SampleError {
    SampleError {
        tag: number(script),
        id: script.byte().into(),
        path: "/data/a.jpg".into(),
        stage: "decode".into(),
        message: "broken".into(),
        worker: String::new(),
        exception: script.some(16).to_vec(),
    }
}

fn field(input: &mut Bytes) -> Field {
    let dtype = [Dtype::U8, Dtype::I64, Dtype::F32][usize::from(input.byte() % 3)];
    let axes = input.byte() % 4;
    Field {
        name: ["image", "label", "index", BLOB, NUMBER][usize::from(input.byte() % 5)].into(),
        dtype,
        shape: (0..axes).map(|_| u32::from(input.byte() % 9)).collect(),
    }
}

fn index() -> Field {
    Field {
        name: "index".into(),
        dtype: Dtype::I64,
        shape: Vec::new(),
    }
}

fn layout(fields: &[Field], slots: u32, buffers: u32) -> Option<Layout> {
    let sizes: Vec<usize> = fields.iter().map(Field::sample_bytes).collect();
    let layout = Layout::new(&sizes, slots, buffers).ok()?;
    match fields.iter().position(|field| field.name == BLOB) {
        Some(blob) => layout.with_large(blob, LARGE_BYTES).ok(),
        None => Some(layout),
    }
}

fn large(input: &mut Bytes) -> Large {
    let bytes = 1 + u64::from(input.byte()) * 97;
    let lie = match input.byte() {
        at @ 0..=16 => Some((usize::from(at), u64::from_le_bytes(input.take()))),
        17..=64 => Some((8, number(input).wrapping_mul(4096))),
        _ => None,
    };
    Large { bytes, lie }
}

fn attached(fields: &[Field], slots: u32, buffers: u32) -> Attached {
    Attached {
        stream: 1,
        job: 2,
        seed: 3,
        dataset_samples: SAMPLES,
        job_samples: SAMPLES,
        classes: Vec::new(),
        fields: fields.to_vec(),
        slots,
        buffers,
        large_bytes: LARGE_BYTES,
        epoch: 0,
        structure: Vec::new(),
        notes: Vec::new(),
        unshared: Vec::new(),
        left_out: None,
        token: 0,
    }
}

/// Changes the description so that it may differ from the regions that are made.
fn lie(input: &mut Bytes, attached: &mut Attached, descriptors: &mut Vec<u8>) {
    match input.byte() % 16 {
        0 => attached.slots = u32::from_le_bytes(input.take()),
        1 => attached.buffers = u32::from_le_bytes(input.take()),
        2 => attached.fields = (0..input.byte() % 4).map(|_| field(input)).collect(),
        3 => {
            for axis in attached.fields.iter_mut().flat_map(|f| &mut f.shape) {
                *axis = u32::from_le_bytes(input.take());
            }
        }
        4 => descriptors.truncate(usize::from(input.byte() % 4)),
        5 => descriptors.push(input.byte() % 4),
        6 => descriptors.iter_mut().for_each(|d| *d = input.byte() % 4),
        7 => attached.epoch = number(input),
        8 => attached.dataset_samples = u32::from_le_bytes(input.take()),
        _ => {}
    }
}

fn item(input: &mut Bytes) -> Item {
    let wild = input.byte();
    let mut word = |bit: u8, most: u32| {
        if wild & bit == bit && bit != 0 && wild > 200 {
            u32::from_le_bytes(input.take())
        } else {
            u32::from(input.byte()) % most
        }
    };
    let (kind, buffer, start) = (word(1, 4), word(2, 5), word(4, 8));
    let (len, flags) = (word(8, 9), word(0, 4));
    Item {
        kind,
        buffer,
        start,
        len,
        flags,
        pool: 0,
        epoch: number(input),
        tag: number(input),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    // The honest input has one field of three bytes, four slots, two buffers, no lie, and three parts of four samples.
    let mut honest = vec![0, 0, 1, 0, 3, 3, 1, 15, 3];
    let parts = [0, 1, 0].map(|buffer| [0, 1, buffer, 0, 4, 1, 0, 0]);
    honest.extend(parts.as_flattened());
    honest.push(0);
    // This one has a field of 64 bytes instead, and eight samples that are larger.
    let mut large = vec![0, 0, 2, 3, 8, 8, 3, 1, 15, 3];
    large.extend(parts.as_flattened());
    large.push(8);
    (0..8).for_each(|n| large.extend([n * 30, 255]));
    // The same, but the elements of the field whose samples are larger are no bytes.
    let mut wide = large.clone();
    wide[1] = 1;
    let mut failing = honest.clone();
    failing.extend([0, 3, 0, 0, 0, 0, 0, 7, 2, 7]);
    let frame = to_bytes(&Reply::Stopping).expect("memory");
    let mut babbling = honest.clone();
    babbling.extend([1, frame.len() as u8, 0]);
    babbling.extend(frame);
    vec![honest, large, wide, failing, babbling, vec![0; 64]]
}
