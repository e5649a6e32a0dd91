//! Bandwidth of copies to a GPU, by the kind of host memory that they come from.

use std::ops::Range;
use std::sync::Arc;

use coprep_device::{Context, DeviceMemory, HostBuffer, StagingSource, Stream, StreamWork};
use coprep_measurement::Result;
use serde::Serialize;

use crate::Settings;
use crate::area::{Area, IMAGE_BYTES};
use crate::clock::{gpu_time, wall_time};

/// Bytes of an image's elements: as they are read, and as float32.
const SAMPLE_BYTES: [usize; 2] = [IMAGE_BYTES, 4 * IMAGE_BYTES];
/// Copies that keep the GPU busy until all that are measured are in the stream.
const COPIES_BEFORE: usize = 8;

/// Results for one kind of memory and one size.
#[derive(Serialize)]
pub(crate) struct Upload {
    from: &'static str,
    /// Why the staging area is not pinned, where it was to be.
    why_bounced: Option<String>,
    bytes: usize,
    gb_per_s: Vec<f64>,
}

/// Host memory with several minibatches.
enum Source {
    Host(Arc<HostBuffer>),
    Pinned(StagingSource),
    Bounced(StagingSource),
}

impl Source {
    fn name(&self) -> &'static str {
        match self {
            Source::Host(_) => "cuMemHostAlloc",
            Source::Pinned(_) => "staging, pinned",
            Source::Bounced(_) => "staging, through buffers",
        }
    }

    fn why_bounced(&self) -> Option<String> {
        match self {
            Source::Pinned(staging) => staging.why_bounced().map(str::to_owned),
            Source::Host(_) | Source::Bounced(_) => None,
        }
    }

    fn upload(
        &self,
        work: &mut StreamWork<'_>,
        part: &Range<usize>,
        to: &DeviceMemory,
    ) -> Result<()> {
        match self {
            Source::Host(buffer) => buffer.upload(work, part.clone(), to)?,
            Source::Pinned(staging) | Source::Bounced(staging) => {
                staging.upload(work, part.clone(), to)?;
            }
        }
        Ok(())
    }
}

/// A source, and what was measured of it.
struct Case {
    source: Source,
    minibatches: Vec<Range<usize>>,
    to: DeviceMemory,
    gb_per_s: Vec<f64>,
}

/// All kinds of memory in all sizes.
pub(crate) struct Bench {
    stream: Stream,
    copies: usize,
    cases: Vec<Case>,
}

impl Bench {
    pub(crate) fn prepare(context: &Context, settings: Settings) -> Result<Self> {
        let mut cases = Vec::new();
        for sample_bytes in SAMPLE_BYTES {
            let area = Area::filled(sample_bytes, settings.images, settings.staging)?;
            let host = HostBuffer::allocate(context, area.layout().total_bytes())?;
            let sources = [
                Source::Host(Arc::new(host)),
                Source::Pinned(StagingSource::open(context, area.view()?)?),
                Source::Bounced(StagingSource::open_bounced(context, area.view()?)?),
            ];
            for source in sources {
                cases.push(Case {
                    source,
                    minibatches: area.minibatches()?,
                    to: DeviceMemory::allocate(context, area.minibatch_bytes())?,
                    gb_per_s: Vec::new(),
                });
            }
        }
        Ok(Bench {
            stream: Stream::create(context)?,
            copies: settings.copies as usize,
            cases,
        })
    }

    /// Measures each case once.
    pub(crate) fn measure_each(&mut self) -> Result<()> {
        for case in &mut self.cases {
            let gb_per_s = case.measure(&self.stream, self.copies)?;
            case.gb_per_s.push(gb_per_s);
        }
        Ok(())
    }

    pub(crate) fn results(self) -> Vec<Upload> {
        let result = |case: Case| Upload {
            from: case.source.name(),
            why_bounced: case.source.why_bounced(),
            bytes: case.to.bytes(),
            gb_per_s: case.gb_per_s,
        };
        self.cases.into_iter().map(result).collect()
    }
}

impl Case {
    /// Returns the bandwidth of copies that follow each other, in 10^9 bytes a second.
    fn measure(&self, stream: &Stream, copies: usize) -> Result<f64> {
        let upload = |work: &mut StreamWork<'_>, count: usize| {
            let mut parts = self.minibatches.iter().cycle().take(count);
            parts.try_for_each(|part| self.source.upload(work, part, &self.to))
        };
        let time = if let Source::Bounced(_) = self.source {
            // The processor copies too, and does so while it asks for the work.
            wall_time(stream, |work| upload(work, copies))?
        } else {
            let before = |work: &mut StreamWork<'_>| upload(work, COPIES_BEFORE);
            gpu_time(stream, before, |work| upload(work, copies))?
        };
        Ok((copies * self.to.bytes()) as f64 / time.as_secs_f64() / 1e9)
    }
}
