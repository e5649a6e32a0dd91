//! The key and the scratch memory of a pipeline's run, and the times that it reports.

use coprep_costs::MeasuredTimes;

use crate::crop::DecodedShape;
use crate::error::{self, Error};

/// A sample's decoded form.
#[derive(Clone, Copy, Debug)]
pub struct DecodedView<'a> {
    /// Width, as in [`DecodedShape`].
    pub width: u32,
    /// Height, as in [`DecodedShape`].
    pub height: u32,
    /// The bytes: of an image rows of RGB, 8 bits each; of an array its bytes; of audio
    /// float32 samples, one channel after another.
    pub pixels: &'a [u8],
}

/// The measurements of one run of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PipelineRun {
    /// Wall time by stage. `decode` is from the file's bytes to pixels, `fixed` the operators before the first random
    /// one, and `random` the rest, including the writing of the slot. The pipeline does not measure `fetch` and `cpu`.
    pub times: MeasuredTimes,
    /// Pixels in the file, elements of an array, or samples of all channels; 0 if the file was not read.
    pub pixels: u64,
}

/// Sizes of a sample, read from the file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in the file, elements of an array, or samples of all channels.
    pub pixels: u64,
    /// Size of the decoded form.
    pub decoded: DecodedShape,
}

/// Refuses a slot of another length.
pub(crate) fn check_slot(slot: &[u8], wanted: usize) -> Result<(), Error> {
    if slot.len() == wanted {
        return Ok(());
    }
    Err(error::wrong_length("slot", wanted, slot.len()))
}
