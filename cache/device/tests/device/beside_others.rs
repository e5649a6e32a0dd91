//! This crate beside other users of the driver in one process, whose part the driver's own functions play here.
#![expect(unsafe_code, reason = "calls the driver as another user of it")]

use crate::common::{Fake, say};
use coprep_device::{
    Context, DeviceMemory, Driver, Error, Gpu, StagingSource, Stream, StreamWork, TIMEOUT,
};
use coprep_shared_memory::staging::{Layout, StagingPool};
use coprep_shared_memory::view::{PinnableView, StagingView};
use cudarc::driver::{result, sys};

/// Runs a scenario, if it is one of these.
pub(crate) fn run(scenario: &str) -> Option<Result<(), Error>> {
    Some(match scenario {
        "another GPU is current" => beside_another_gpu(),
        "another stream" => in_anothers_stream(),
        "pin a copy-on-write view" => pin_copy_on_write(),
        _ => return None,
    })
}

fn gpu(number: u32) -> Result<Context, Error> {
    Context::retain(Gpu::at(Driver::load()?, number)?)
}

fn layout() -> Layout {
    Layout::new(&[4096], 1, 1).unwrap()
}

/// Fills the area's only buffer, and frees it.
fn fill(pool: &StagingPool, byte: u8) {
    let (mut slots, unfinished) = pool.allocate().unwrap().split(1);
    slots[0].field_mut(0).fill(byte);
    drop(slots);
    drop(unfinished.finish());
}

fn open(context: &Context, pool: &StagingPool) -> Result<StagingSource, Error> {
    let descriptor = pool.reader_fd().unwrap();
    StagingSource::open(context, PinnableView::open(&descriptor, layout()).unwrap())
}

/// Uploads the area's only buffer in a stream, and returns it as the GPU has it.
fn upload(source: &StagingSource, stream: &Stream) -> Result<Vec<u8>, Error> {
    let memory = DeviceMemory::allocate(stream.context(), 4096)?;
    let mut work = StreamWork::begin(stream)?;
    source.upload(&mut work, 0..4096, &memory)?;
    work.submit()?.wait(TIMEOUT)?;
    memory.read(stream, TIMEOUT)
}

fn beside_another_gpu() -> Result<(), Error> {
    let context = gpu(0)?;
    let _second = gpu(1)?;
    let second = result::device::get(1).unwrap();
    // SAFETY: the device exists. `_second` keeps its context, which is the one that is retained here again.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(second).unwrap()) }.unwrap();
    let before = result::ctx::get_current().unwrap();
    assert!(before.is_some());
    let pool = StagingPool::create(layout()).unwrap();
    fill(&pool, 5);
    let source = open(&context, &pool)?;
    let stream = Stream::create(&context)?;
    assert_eq!(upload(&source, &stream)?, [5; 4096]);
    // A call that fails restores the context too.
    assert!(DeviceMemory::allocate(&context, 1 << 40).is_err());
    drop((source, stream, context));
    assert_eq!(result::ctx::get_current().unwrap(), before);
    say("restored");
    Ok(())
}

#[test]
fn the_context_of_the_callers_thread_is_restored() {
    let run = Fake::new().with("devices=2").run("another GPU is current");
    assert_eq!(run.line(), "restored");
}

fn in_anothers_stream() -> Result<(), Error> {
    let context = gpu(0)?;
    let device = result::device::get(0).unwrap();
    // SAFETY: the device exists, and `context` keeps its context.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(device).unwrap()) }.unwrap();
    let raw = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    let pool = StagingPool::create(layout()).unwrap();
    let source = open(&context, &pool)?;
    for (byte, handle) in [(1, raw as u64), (2, 0), (3, raw as u64)] {
        fill(&pool, byte);
        // SAFETY: 0 is the default stream, and the other one was just created in this context.
        let stream = unsafe { Stream::of_caller(&context, handle) };
        assert_eq!(upload(&source, &stream)?, [byte; 4096]);
    }
    say("equal");
    Ok(())
}

#[test]
fn work_runs_in_a_stream_of_the_caller_which_lives_on() {
    let run = Fake::new().with("delay_us=2000").run("another stream");
    assert_eq!(run.line(), "equal");
    assert_eq!(run.successes("cuStreamCreate"), 1);
    assert_eq!(run.successes("cuStreamDestroy_v2"), 0);
}

/// Pins the view that a consumer has, which this crate's types forbid, and says what becomes of it.
fn pin_copy_on_write() -> Result<(), Error> {
    let context = gpu(0)?;
    let pool = StagingPool::create(layout()).unwrap();
    fill(&pool, 1);
    let view = StagingView::open(pool.reader_fd().unwrap(), layout()).unwrap();
    let source = open(&context, &pool)?;
    // SAFETY: the device exists, and `context` keeps its context.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(0).unwrap()) }.unwrap();
    let start = view.field(0, 0).as_ptr();
    // SAFETY: a page of the view, which lives until the process ends.
    let code =
        unsafe { sys::cuMemHostRegister_v2(start.cast(), 4096, sys::CU_MEMHOSTREGISTER_READ_ONLY) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    fill(&pool, 2);
    // SAFETY: a byte of the view.
    say(format!("the view has {}", unsafe { start.read() }));
    let stream = Stream::create(&context)?;
    say(format!("the GPU has {}", upload(&source, &stream)?[0]));
    std::mem::forget(view);
    Ok(())
}

#[test]
fn a_copy_on_write_view_that_is_pinned_never_changes_again_and_ours_does() {
    let run = Fake::new()
        .with("delay_us=0")
        .run("pin a copy-on-write view");
    assert_eq!(run.said(), ["the view has 1", "the GPU has 2"]);
}
