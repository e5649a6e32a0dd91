//! The whole way of a minibatch, from the staging area to a converted tensor.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::{self, Fake, say, say_error};
use coprep_device::{
    Context, ConvertTable, Converter, DeviceMemory, Driver, ElementOrder, ElementType, Error, Gpu,
    ImageShape, ShareableMemory, StagingSource, Stream, StreamWork, TIMEOUT, import,
};
use coprep_protocol::normalize::NormalizeTable;
use coprep_shared_memory::staging::{Layout, Lease, StagingPool};
use coprep_shared_memory::view::PinnableView;

/// Runs a scenario, if it is one of these.
pub(crate) fn run(scenario: &str) -> Option<Result<(), Error>> {
    Some(match scenario {
        "convert" => convert(),
        "upload large" => upload_large(),
        "drop early" => drop_early(),
        "two GPUs" => two_gpus(),
        "captured" => captured(),
        "wrong arguments" => wrong_arguments(),
        "many steps" => many_steps(),
        "uploader" => uploader(),
        "job" => job(),
        _ => return None,
    })
}

type Outcome = Result<(), Error>;

const SLOTS: u32 = 4;

/// A coordinator's staging area, with images of some size and their labels.
struct Coordinator {
    pool: StagingPool,
    layout: Layout,
}

impl Coordinator {
    fn new(image_bytes: usize) -> Self {
        let layout = Layout::new(&[image_bytes, 8], SLOTS, 2).unwrap();
        Coordinator {
            pool: StagingPool::create(layout.clone()).unwrap(),
            layout,
        }
    }

    /// Fills a buffer with bytes that follow from a seed.
    fn minibatch(&self, seed: u8) -> Lease {
        let (mut slots, unfinished) = self.pool.allocate().unwrap().split(SLOTS);
        for (i, slot) in slots.iter_mut().enumerate() {
            let image = slot.field_mut(0);
            for (j, byte) in image.iter_mut().enumerate() {
                // 211 and 101 are coprime to 256, so all values occur.
                *byte = (j * 211 + i * 101 + usize::from(seed)) as u8;
            }
            slot.field_mut(1).fill(i as u8);
        }
        drop(slots);
        unfinished.finish()
    }

    fn view(&self) -> PinnableView {
        let descriptor = self.pool.reader_fd().unwrap();
        PinnableView::open(&descriptor, self.layout.clone()).unwrap()
    }
}

fn first_gpu() -> Result<Context, Error> {
    Context::retain(Gpu::at(Driver::load()?, 0)?)
}

/// Uploads the images of some slots of a buffer, and waits.
fn upload(
    source: &StagingSource,
    stream: &Stream,
    lease: &Lease,
    slots: std::ops::Range<u32>,
) -> Result<DeviceMemory, Error> {
    let part = source.view().slots(lease.buffer(), 0, slots);
    let memory = DeviceMemory::allocate(stream.context(), part.len())?;
    let mut work = StreamWork::begin(stream)?;
    source.upload(&mut work, part, &memory)?;
    work.submit()?.wait(TIMEOUT)?;
    Ok(memory)
}

fn table() -> NormalizeTable {
    NormalizeTable::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
}

/// Computes converted images on the CPU, element by element.
fn expected(
    images: &[u8],
    shape: ImageShape,
    element: ElementType,
    order: ElementOrder,
) -> Vec<u8> {
    let table = table();
    let (channels, pixels) = (shape.channels as usize, shape.pixels as usize);
    let mut values = vec![0.0; images.len()];
    for (i, &byte) in images.iter().enumerate() {
        let (image, channel, pixel) = (i / pixels / channels, i / pixels % channels, i % pixels);
        let to = match order {
            ElementOrder::Planes => i,
            ElementOrder::Interleaved => (image * pixels + pixel) * channels + channel,
        };
        values[to] = table.channels()[channel][usize::from(byte)];
    }
    element.encode(&values)
}

const ELEMENTS: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::Bf16];
const ORDERS: [ElementOrder; 2] = [ElementOrder::Planes, ElementOrder::Interleaved];

/// Converts images of several sizes to all types of elements and in all orders, and compares each bit with the CPU's.
fn convert() -> Outcome {
    let context = first_gpu()?;
    let stream = Stream::create(&context)?;
    let converter = Converter::load(&context)?;
    // The kernels take sixteen pixels at a time of the first size, and one at a time of the others.
    for pixels in [64 * 64, 33 * 31, 17, 1] {
        let coordinator = Coordinator::new(3 * pixels as usize);
        let source = StagingSource::open(&context, coordinator.view())?;
        for (seed, slots) in [(3, 0..SLOTS), (4, 1..3)] {
            let lease = coordinator.minibatch(seed);
            let memory = upload(&source, &stream, &lease, slots.clone())?;
            let image = 3 * pixels as usize;
            let bytes = &lease.field(0)[image * slots.start as usize..][..image * slots.len()];
            let shape = ImageShape {
                images: slots.len() as u32,
                channels: 3,
                pixels,
            };
            for (element, order) in ELEMENTS.into_iter().flat_map(|e| ORDERS.map(|o| (e, o))) {
                let table = ConvertTable::upload(&stream, table().channels(), element)?;
                let out = DeviceMemory::allocate(&context, memory.bytes() * element.bytes())?;
                let mut work = StreamWork::begin(&stream)?;
                converter.convert(&mut work, &table, shape, &memory, &out, order)?;
                work.submit()?.wait(TIMEOUT)?;
                assert!(
                    out.read(&stream, TIMEOUT)? == expected(bytes, shape, element, order),
                    "{shape:?}, {element:?}, {order:?}"
                );
            }
        }
    }
    say("equal");
    Ok(())
}

#[test]
fn converted_images_have_the_bits_of_the_cpu_path_in_every_type_and_order() {
    assert_eq!(Fake::new().run("convert").line(), "equal");
}

#[test]
fn nothing_reads_what_a_slow_gpu_has_not_written_yet() {
    let run = Fake::new().with("delay_us=3000").run("convert");
    assert_eq!(run.line(), "equal");
}

#[test]
fn the_staging_area_is_pinned_and_no_copy_takes_the_processor() {
    let run = Fake::new().with("delay_us=0").run("convert");
    assert_eq!(run.line(), "equal");
    // Once for each of the four areas, and not once for each copy.
    assert_eq!(run.successes("cuMemHostRegister_v2"), 4);
    assert!(run.calls.iter().all(|call| call.answer != "pageable"));
}

/// Uploads more than all bounce buffers hold, in two threads at once, and twice from each buffer.
fn upload_large() -> Outcome {
    let context = first_gpu()?;
    let coordinator = Coordinator::new(5 << 20);
    let source = Arc::new(StagingSource::open(&context, coordinator.view())?);
    say(source.why_bounced().unwrap_or("pinned"));
    let upload_all = |seed| -> Outcome {
        let stream = Stream::create(&context)?;
        let lease = coordinator.minibatch(seed);
        let memory = upload(&source, &stream, &lease, 0..SLOTS)?;
        assert!(memory.read(&stream, TIMEOUT)? == lease.field(0));
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [7, 8].map(|seed| scope.spawn(move || upload_all(seed)));
        threads.into_iter().try_for_each(|t| t.join().unwrap())
    })?;
    say("equal");
    Ok(())
}

#[test]
fn where_memory_cannot_be_pinned_for_reading_copies_go_through_buffers() {
    let run = Fake::new()
        .with("readonly=0;delay_us=2000")
        .run("upload large");
    let why = "cannot pin the staging area of 40.0 MiB for GPU 0: it does not copy from memory that is pinned for reading only";
    assert_eq!(run.said(), [why, "equal"]);
    assert_eq!(run.successes("cuMemHostRegister_v2"), 0);
    assert!(run.calls.iter().all(|call| call.answer != "pageable"));
}

#[test]
fn where_pinning_is_refused_copies_go_through_buffers_and_the_reason_is_told() {
    let run = Fake::new()
        .with("fail=cuMemHostRegister_v2:2")
        .run("upload large");
    let [why, equal] = run.said() else {
        panic!("{run:?}");
    };
    assert!(why.starts_with("cannot pin the staging area of 40.0 MiB on GPU 0: out of memory"));
    assert_eq!(equal, "equal");
}

/// Drops all memory while a slow GPU still uses it.
fn drop_early() -> Outcome {
    let context = first_gpu()?;
    let stream = Stream::create(&context)?;
    let other = DeviceMemory::allocate(&context, 4096)?;
    for is_submitted in [true, false] {
        let coordinator = Coordinator::new(1 << 20);
        let source = StagingSource::open(&context, coordinator.view())?;
        let memory = DeviceMemory::allocate(&context, 1 << 20)?;
        let copy = DeviceMemory::allocate(&context, 1 << 20)?;
        let mut work = StreamWork::begin(&stream)?;
        source.upload(&mut work, 0..1 << 20, &memory)?;
        work.copy(&memory, &copy)?;
        drop((source, memory, copy, coordinator));
        let pending = is_submitted.then(|| work.submit());
        drop(pending.transpose()?);
        // This waits for all that the stream has been given.
        other.read(&stream, TIMEOUT)?;
    }
    say("alive");
    Ok(())
}

#[test]
fn memory_that_a_gpu_still_uses_is_not_freed() {
    // The fake driver frees memory at once, and a copy from or to it would end the process by a signal.
    let run = Fake::new().with("delay_us=50000").run("drop early");
    assert_eq!(run.line(), "alive");
    assert_eq!(run.successes("cuMemFree_v2"), 5);
    assert_eq!(run.successes("cuMemHostUnregister"), 2);
}

/// Uploads to two GPUs in turn, and copies there from one stream to another.
fn two_gpus() -> Outcome {
    let driver = Driver::load()?;
    let gpus = Gpu::all(driver)?;
    let [first, second] = [0, 1].map(|i| Context::retain(gpus[i]));
    let (first, second) = (first?, second?);
    let coordinator = Coordinator::new(4096);
    let lease = coordinator.minibatch(9);
    let uuids = [gpus[0].uuid()?, gpus[1].uuid()?];
    assert_ne!(uuids[0], uuids[1]);
    for context in [&first, &second] {
        let source = StagingSource::open(context, coordinator.view())?;
        let stream = Stream::create(context)?;
        let other = Stream::create(context)?;
        let memory = upload(&source, &stream, &lease, 0..SLOTS)?;
        // The second stream begins only after the first one.
        let twice = DeviceMemory::allocate(context, memory.bytes())?;
        let mut work = StreamWork::begin(&stream)?;
        work.copy(&memory, &twice)?;
        let pending = work.submit()?;
        pending.precede(&other)?;
        assert!(twice.read(&other, TIMEOUT)? == lease.field(0));
    }
    say("equal");
    Ok(())
}

#[test]
fn streams_wait_for_each_other_and_gpus_do_not_mix() {
    let run = Fake::new().with("devices=2;delay_us=3000").run("two GPUs");
    assert_eq!(run.line(), "equal");
    // Each call has made its context current, and restored the thread's own one.
    assert_eq!(
        run.successes("cuCtxPushCurrent_v2"),
        run.successes("cuCtxPopCurrent_v2")
    );
}

fn captured() -> Outcome {
    let stream = Stream::create(&first_gpu()?)?;
    StreamWork::begin(&stream).map(drop)
}

#[test]
fn a_stream_that_is_being_captured_is_refused() {
    let run = Fake::new().with("capture=1").run("captured");
    let said = "Invalid cannot put a batch on GPU 0: the current stream is being captured into a CUDA graph; take the batch before the capture begins";
    assert_eq!(run.line(), said);
}

#[test]
fn a_graph_that_another_thread_captures_disturbs_nothing_and_is_not_disturbed() {
    let run = Fake::new().with("capture_elsewhere=1").run("many steps");
    assert_eq!(run.line(), "equal");
}

/// Says the error of a call that must fail.
fn say_failure<T>(result: Result<T, Error>) {
    say_error(&result.err().expect("the call must fail"));
}

fn wrong_arguments() -> Outcome {
    let context = first_gpu()?;
    let stream = Stream::create(&context)?;
    let coordinator = Coordinator::new(100);
    let source = StagingSource::open(&context, coordinator.view())?;
    let memory = DeviceMemory::allocate(&context, 300)?;
    let mut work = StreamWork::begin(&stream)?;
    say_failure(memory.part(200..301));
    say_failure(source.upload(&mut work, 0..1 << 30, &memory));
    say_failure(source.upload(&mut work, 0..299, &memory));
    say_failure(work.copy(&memory, &memory.part(0..10)?));
    say_failure(ConvertTable::upload(&stream, &[], ElementType::F32));
    let shared = ShareableMemory::allocate(&context, 1000)?;
    let imported = import(&context, shared.descriptor(), 1000)?;
    say_failure(work.copy(&memory, &imported.part(0..300)?));
    let converter = Converter::load(&context)?;
    let table = ConvertTable::upload(&stream, table().channels(), ElementType::F32)?;
    let out = DeviceMemory::allocate(&context, 1204)?;
    let mut convert = |channels, pixels, out: &DeviceMemory| {
        let shape = ImageShape {
            images: 1,
            channels,
            pixels,
        };
        converter.convert(&mut work, &table, shape, &memory, out, ElementOrder::Planes)
    };
    say_failure(convert(4, 75, &out));
    say_failure(convert(3, 99, &out));
    say_failure(convert(3, 100, &out));
    say_failure(convert(3, 100, &out.part(1..1201)?));
    say_failure(convert(3, u32::MAX, &out));
    convert(3, 100, &out.part(4..1204)?)
}

#[test]
fn arguments_that_do_not_fit_each_other_are_refused() {
    let run = Fake::new().with("delay_us=0").run("wrong arguments");
    let expected = [
        "Invalid no such part of a GPU's memory: 200..301 of 300 bytes",
        "Invalid no such part of the staging area: 0..1073741824 of 16384 bytes",
        "Invalid the size of a GPU's memory is wrong: 299 bytes are wanted, and it has 300",
        "Invalid the size of a GPU's memory is wrong: 300 bytes are wanted, and it has 10",
        "Invalid cannot convert images: 0 channels, from 1 to 48 can be",
        "Invalid cannot write a GPU's memory: it belongs to another process",
        "Invalid cannot convert images: they have 4 channels, and the table has 3",
        "Invalid the size of a GPU's memory is wrong: 297 bytes are wanted, and it has 300",
        "Invalid the size of a GPU's memory is wrong: 1200 bytes are wanted, and it has 1204",
        "Invalid cannot convert images: the elements would begin at an odd address",
        "Invalid the size of a GPU's memory is wrong: 12884901885 bytes are wanted, and it has 300",
    ];
    assert_eq!(run.said(), expected);
}

/// Does everything once.
fn many_steps() -> Outcome {
    let context = first_gpu()?;
    let stream = Stream::create(&context)?;
    let coordinator = Coordinator::new(3 * 256);
    let lease = coordinator.minibatch(1);
    let source = StagingSource::open(&context, coordinator.view())?;
    let part = source.view().slots(lease.buffer(), 0, 0..SLOTS);
    let ring = ShareableMemory::allocate(&context, part.len())?;
    let mut work = StreamWork::begin(&stream)?;
    source.upload(&mut work, part, ring.memory())?;
    work.submit()?.wait(TIMEOUT)?;
    let images = import(&context, ring.descriptor(), ring.memory().bytes())?;
    let converter = Converter::load(&context)?;
    let table = ConvertTable::upload(&stream, table().channels(), ElementType::Bf16)?;
    let out = DeviceMemory::allocate(&context, 2 * images.bytes())?;
    let shape = ImageShape {
        images: SLOTS,
        channels: 3,
        pixels: 256,
    };
    let order = ElementOrder::Interleaved;
    let mut work = StreamWork::begin(&stream)?;
    converter.convert(&mut work, &table, shape, &images, &out, order)?;
    work.submit()?.wait(TIMEOUT)?;
    let expected = expected(lease.field(0), shape, ElementType::Bf16, order);
    assert!(out.read(&stream, TIMEOUT)? == expected);
    say("equal");
    Ok(())
}

/// Functions that make something, and those that release it.
/// The two exchanges of the mode of captures look alike, so they are not among these.
const PAIRS: [(&[&str], &str); 11] = [
    (
        &["cuDevicePrimaryCtxRetain"],
        "cuDevicePrimaryCtxRelease_v2",
    ),
    (&["cuCtxPushCurrent_v2"], "cuCtxPopCurrent_v2"),
    (&["cuMemHostRegister_v2"], "cuMemHostUnregister"),
    (&["cuMemHostAlloc"], "cuMemFreeHost"),
    (&["cuMemAlloc_v2"], "cuMemFree_v2"),
    (
        &["cuMemCreate", "cuMemImportFromShareableHandle"],
        "cuMemRelease",
    ),
    (&["cuMemAddressReserve"], "cuMemAddressFree"),
    (&["cuMemMap"], "cuMemUnmap"),
    (&["cuStreamCreate"], "cuStreamDestroy_v2"),
    (&["cuEventCreate"], "cuEventDestroy_v2"),
    (&["cuModuleLoadData"], "cuModuleUnload"),
];

/// Returns how many things were made and not released.
fn leaked(run: &common::Run) -> usize {
    let count = |functions: &[&str]| functions.iter().map(|f| run.successes(f)).sum::<usize>();
    let pairs = PAIRS.iter();
    pairs
        .map(|(make, release)| count(make).abs_diff(count(&[release])))
        .sum()
}

#[test]
fn everything_that_is_made_is_released() {
    let run = Fake::new().with("delay_us=100").run("many steps");
    assert_eq!(run.line(), "equal");
    assert_eq!(leaked(&run), 0, "{:?}", run.calls);
}

/// Returns the functions that the whole way calls, in their order.
fn calls_of_all_steps() -> Vec<String> {
    let run = Fake::new().with("delay_us=0").run("many steps");
    assert_eq!(run.line(), "equal");
    run.calls.into_iter().map(|call| call.function).collect()
}

/// Three of these frame each call, so most of them are like others.
fn is_frame(function: &str) -> bool {
    function.starts_with("cuCtx") || function.starts_with("cuThread")
}

#[test]
fn whichever_call_fails_there_is_one_error_and_nothing_stays_behind() {
    let calls = calls_of_all_steps();
    assert!(calls.len() > 200, "{calls:?}");
    for (n, _) in (1..)
        .zip(&calls)
        .filter(|(n, function)| !is_frame(function) || n % 9 == 0)
    {
        let run = Fake::new()
            .with(&format!("fail=:999@{n}"))
            .run("many steps");
        let failed = run.calls.iter().find(|call| call.answer == "999");
        // The number of looks at an event differs from run to run.
        let function = failed.map_or("none", |call| call.function.as_str());
        let line = run.line();
        if line != "equal" {
            let is_error = line.starts_with("Refused cannot ")
                || line.starts_with("Refused work on GPU 0 failed");
            assert!(is_error, "{function}: {line}");
            assert!(
                line.contains("unknown error (CUDA_ERROR_UNKNOWN, 999); "),
                "{function}: {line}"
            );
        }
        let leaked = leaked(&run);
        assert!(
            leaked <= most_leaked(function),
            "call {n}, {function}: {leaked} left"
        );
    }
}

/// Returns how many things may stay behind if a function fails once.
fn most_leaked(function: &str) -> usize {
    match function {
        // Nothing says when the work ends that has no mark behind it, so what it uses stays by intention. The call that
        // makes the context current may have been that of a mark.
        "cuEventRecord" | "cuCtxPushCurrent_v2" => usize::MAX,
        // Memory, and the addresses at which it stays.
        "cuMemUnmap" => 2,
        // The one thing that it would have released.
        _ if PAIRS.iter().any(|(_, release)| *release == function) => 1,
        _ => 0,
    }
}

#[test]
fn whenever_the_gpu_fails_for_good_there_is_one_error() {
    for n in (1..=calls_of_all_steps().len()).step_by(3) {
        let run = Fake::new()
            .with(&format!("sticky=:700@{n}"))
            .run("many steps");
        let line = run.line();
        let is_error =
            line.starts_with("Fault cannot ") || line.starts_with("Fault work on GPU 0 failed");
        // At the end only drops are left, which report nothing.
        assert!(line == "equal" || is_error, "{n}: {line}");
    }
}

#[test]
fn work_that_never_ends_is_an_error_after_five_seconds() {
    for function in ["cuMemcpyHtoDAsync_v2", "cuLaunchKernel"] {
        let run = Fake::new()
            .with(&format!("stall={function}"))
            .run("many steps");
        let line = run.line();
        assert!(
            line.starts_with("Timeout waited for work on GPU 0: not done after 5."),
            "{line}"
        );
    }
}

/// Makes a ring, fills it, and has a job read it. Then it dies at a fault of the driver.
#[expect(
    clippy::zombie_processes,
    reason = "this process ends before the other one"
)]
fn uploader() -> Outcome {
    let context = first_gpu()?;
    let stream = Stream::create(&context)?;
    let coordinator = Coordinator::new(3 * 256);
    let lease = coordinator.minibatch(6);
    let source = StagingSource::open(&context, coordinator.view())?;
    let part = source.view().slots(lease.buffer(), 0, 0..SLOTS);
    let ring = ShareableMemory::allocate(&context, part.len())?;
    let mut work = StreamWork::begin(&stream)?;
    source.upload(&mut work, part.clone(), ring.memory())?;
    work.submit()?.wait(TIMEOUT)?;
    let descriptor = ring.descriptor().try_clone_to_owned().unwrap();
    let flags = nix::fcntl::FdFlag::empty();
    nix::fcntl::fcntl(&descriptor, nix::fcntl::FcntlArg::F_SETFD(flags)).unwrap();
    let job = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("COPREP_TEST_SCENARIO", "job")
        .env("COPREP_TEST_RING", descriptor.as_raw_fd().to_string())
        .env("FAKE_CUDA", "")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // The second upload ends this process. The job sees that by the end of its input.
    let mut work = StreamWork::begin(&stream)?;
    source.upload(&mut work, part, ring.memory())?;
    drop(job);
    Ok(())
}

/// Reads the ring when its uploader is gone.
fn job() -> Outcome {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    let number = std::env::var("COPREP_TEST_RING").unwrap().parse().unwrap();
    let context = first_gpu()?;
    let stream = Stream::create(&context)?;
    let images = import(&context, borrowed(number), 4 * 3 * 256)?;
    let same = Coordinator::new(3 * 256);
    assert!(images.read(&stream, TIMEOUT)? == same.minibatch(6).field(0));
    say("the ring is as it was");
    Ok(())
}

#[expect(unsafe_code, reason = "takes a descriptor that was inherited")]
fn borrowed(number: i32) -> BorrowedFd<'static> {
    // SAFETY: the process that started this one has left the descriptor open, and nobody here closes it.
    unsafe { BorrowedFd::borrow_raw(number) }
}

#[test]
fn a_ring_outlives_the_process_that_made_it() {
    let run = Fake::new()
        .with("die=cuMemcpyHtoDAsync_v2@2")
        .run("uploader");
    assert_eq!(run.code, Some(66), "{}", run.errors);
    assert_eq!(run.said, ["the ring is as it was"], "{}", run.errors);
}
