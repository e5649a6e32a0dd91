//! Sources of samples, and the operators that prepare them.
//!
//! A [`Dataset`] is a list of samples, such as files with labels. A [`Pipeline`] is a compiled list of operators; it is immutable and
//! shared by all threads. A [`Scratch`] belongs to one thread and holds the memory that is used again for every sample.
//! A sample takes one of two ways:
//!
//! ```text
//! Dataset::fetch -> encoded bytes -> Pipeline::prepare_encoded -> slot
//!                         \-> Pipeline::decode_into -> decoded form -> Pipeline::prepare_decoded -> slot
//! ```
//!
//! # Promises
//!
//! - A prepared sample is a pure function of the encoded bytes, the operators and the [`SampleKey`]. It never depends
//!   on the thread, the time, or the samples before it.
//! - Both ways above give the same pixels for a pipeline made by [`Pipeline::exact`].
//! - No bytes, however damaged, make it panic; each call gives the sample or one [`Error`].
//! - In the steady state, no memory in proportion to an image's size is allocated.
//!
//! Geometry and interpolation of images are torchvision's. `docs/reference/images.md` states how much the results
//! differ.

mod array_pipeline;
mod audio_codec;
mod audio_pipeline;
mod audio_stream;
mod chunks;
mod codec;
mod crop;
mod error;
mod header;
mod image_pipeline;
mod jpeg;
mod layout;
mod mel;
mod npy;
mod orientation;
mod pipeline;
mod resample;
mod resize;
mod rng;
mod run;
mod source;

/// Longest file that is read as a sample.
pub use coprep_storage::MOST_BYTES;
pub use crop::DecodedShape;
pub use error::{Error, ErrorKind};
pub use pipeline::{Pipeline, Scratch};
pub use rng::SampleKey;
pub use run::{DecodedView, Picture, PipelineRun};
pub use source::Dataset;
