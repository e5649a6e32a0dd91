//! Measures the time that a GPU takes for work.
//!
//! The host reads its own clock when the GPU comes past a mark. It asks without pause, so the error is a few
//! microseconds. The functions of CUDA that measure time on the GPU are not needed for that, and older drivers lack
//! the one that CUDA 13 declares.

use std::time::{Duration, Instant};

use coprep_device::{PendingWork, Stream, StreamWork, TIMEOUT};
use coprep_measurement::Result;

/// Measures some work of a stream from the end of `before` to its own end.
///
/// The GPU must be busy with `before` until all of `work` is in the stream. Then the time that it takes to ask for the
/// work does not count.
pub(crate) fn gpu_time(
    stream: &Stream,
    before: impl FnOnce(&mut StreamWork<'_>) -> Result<()>,
    work: impl FnOnce(&mut StreamWork<'_>) -> Result<()>,
) -> Result<Duration> {
    let before = submitted(stream, before)?;
    let work = submitted(stream, work)?;
    let begin = end_of(&before)?;
    let end = end_of(&work)?;
    Ok(end - begin)
}

/// Measures work from the moment before it is asked for to its end.
pub(crate) fn wall_time(
    stream: &Stream,
    work: impl FnOnce(&mut StreamWork<'_>) -> Result<()>,
) -> Result<Duration> {
    let begin = Instant::now();
    let work = submitted(stream, work)?;
    Ok(end_of(&work)? - begin)
}

fn submitted(
    stream: &Stream,
    fill: impl FnOnce(&mut StreamWork<'_>) -> Result<()>,
) -> Result<PendingWork> {
    let mut work = StreamWork::begin(stream)?;
    fill(&mut work)?;
    Ok(work.submit()?)
}

/// Returns the moment at which work is seen to be done.
fn end_of(work: &PendingWork) -> Result<Instant> {
    let begin = Instant::now();
    while !work.is_done()? {
        if begin.elapsed() > TIMEOUT {
            return Err(format!("the GPU has not done its work after {TIMEOUT:?}").into());
        }
        std::hint::spin_loop();
    }
    Ok(Instant::now())
}
