//! Measures single uploads of a minibatch. The caller may let a GPU train meanwhile.

use std::time::{Duration, Instant};

use coprep_device::{Context, DeviceMemory, StagingSource, Stream};
use coprep_measurement::Result;
use serde::Serialize;

use crate::Settings;
use crate::area::{Area, IMAGE_BYTES};
use crate::clock::wall_time;

/// Pause after each upload. One job takes a minibatch every 20 ms or so, and several jobs more often.
const PAUSE: Duration = Duration::from_millis(5);
/// First uploads, which do not count.
const WARM_UP: usize = 5;
/// Size of the staging area. Each upload comes from another minibatch.
const STAGING_MIB: u32 = 128;

/// Microseconds of each upload, from before it is asked for to its end.
#[derive(Serialize)]
pub(crate) struct Latency {
    bytes: usize,
    why_bounced: Option<String>,
    us: Vec<f64>,
}

/// Uploads minibatches one by one.
pub(crate) fn measure(context: &Context, settings: Settings, seconds: f64) -> Result<Latency> {
    let area = Area::filled(
        IMAGE_BYTES,
        settings.images,
        STAGING_MIB.min(settings.staging),
    )?;
    let source = StagingSource::open(context, area.view()?)?;
    let stream = Stream::create(context)?;
    let to = DeviceMemory::allocate(context, area.minibatch_bytes())?;
    let minibatches = area.minibatches()?;
    let end = Instant::now() + Duration::try_from_secs_f64(seconds)?;
    let mut us = Vec::new();
    for (number, part) in minibatches.iter().cycle().enumerate() {
        if Instant::now() >= end && number > WARM_UP {
            break;
        }
        let time = wall_time(&stream, |work| {
            Ok(source.upload(work, part.clone(), &to)?)
        })?;
        if number >= WARM_UP {
            us.push(time.as_secs_f64() * 1e6);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Latency {
        bytes: to.bytes(),
        why_bounced: source.why_bounced().map(str::to_owned),
        us,
    })
}
