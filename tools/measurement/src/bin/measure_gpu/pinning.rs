//! Measures the time to pin the staging area.

use std::time::{Duration, Instant};

use coprep_device::{Context, StagingSource};
use coprep_measurement::Result;
use serde::Serialize;

use crate::Settings;
use crate::area::{Area, IMAGE_BYTES};

const GIB: f64 = (1u64 << 30) as f64;

/// Seconds for each GiB of a staging area, once for each repetition.
#[derive(Serialize)]
pub(crate) struct Pinning {
    bytes: usize,
    /// Why the area could not be pinned. The other figures are those of the buffers then.
    why_bounced: Option<String>,
    map_s_per_gib: Vec<f64>,
    pin_s_per_gib: Vec<f64>,
    unpin_s_per_gib: Vec<f64>,
}

/// Maps, pins and unpins an area several times.
pub(crate) fn measure(context: &Context, settings: Settings) -> Result<Pinning> {
    let area = Area::filled(IMAGE_BYTES, settings.images, settings.staging)?;
    let bytes = area.layout().total_bytes();
    let per_gib = |time: Duration| time.as_secs_f64() * GIB / bytes as f64;
    let mut results = Pinning {
        bytes,
        why_bounced: None,
        map_s_per_gib: Vec::new(),
        pin_s_per_gib: Vec::new(),
        unpin_s_per_gib: Vec::new(),
    };
    for _ in 0..settings.repeat {
        let begin = Instant::now();
        let view = area.view()?;
        results.map_s_per_gib.push(per_gib(begin.elapsed()));
        let begin = Instant::now();
        let source = StagingSource::open(context, view)?;
        results.pin_s_per_gib.push(per_gib(begin.elapsed()));
        results.why_bounced = source.why_bounced().map(str::to_owned);
        let begin = Instant::now();
        drop(source);
        results.unpin_s_per_gib.push(per_gib(begin.elapsed()));
    }
    Ok(results)
}
