//! From a specification to prepared samples: where samples come from, and what is done to them.
//!
//! A [`Dataset`] is a list of files with labels. A [`Pipeline`] is a compiled list of operators; it is
//! immutable and shared by all threads. A [`Scratch`] belongs to one thread and holds the memory that
//! is used again for every sample. A sample goes
//!
//! ```text
//! Dataset::fetch -> encoded bytes -> Pipeline::prepare_encoded -> slot
//!                         \-> Pipeline::decode_into -> decoded form -> Pipeline::prepare_decoded -> slot
//! ```
//!
//! # Promises
//!
//! - What is prepared is a pure function of the encoded bytes, the operators and the [`SampleKey`]:
//!   never of thread, time, or the samples before.
//! - Both ways above give the same pixels for a pipeline made by [`Pipeline::exact`].
//! - No bytes, however damaged, make it panic; each call gives the sample or one [`Error`].
//! - In the steady state nothing of an image's size is allocated.
//!
//! Geometry and interpolation are torchvision's; where they differ, `docs/reference/images.md` says how much.

mod codec;
mod crop;
mod error;
mod file;
mod header;
mod jpeg;
mod layout;
mod pipeline;
mod resize;
mod rng;
mod source;
mod throttle;

pub use crop::DecodedShape;
pub use error::{Error, ErrorKind};
pub use file::{MOST_BYTES, open as open_regular};
pub use pipeline::{DecodedView, Picture, Pipeline, Scratch, Stages};
pub use rng::SampleKey;
pub use source::Dataset;
pub use throttle::{Slowness, Throttle};
