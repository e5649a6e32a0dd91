//! Measures how fast samples are prepared. A job that only takes batches reads samples from the page cache or from
//! coprep's cache. A part of the samples is enough: drawn evenly from all, and as many as take some seconds to prepare.
//!
//! | module | purpose |
//! |---|---|
//! | [`plan`] | a pipeline and the conditions of its measurement |
//! | [`images`] | pipelines of images |
//! | [`private`] | the coordinator, which runs the `coprep` program |
//! | [`job`] | the job |
//! | [`group`] | processes that are measured, and end with the measurement |
//! | [`quiet`] | whether other programs used the processors meanwhile |
//! | [`progress`] | how far a measurement is; [`interrupt`] ends it early |
//! | [`python`], [`scratch`] | Python interpreters, and folders for sockets and logs |

pub mod group;
pub mod images;
pub mod interrupt;
pub mod job;
pub mod plan;
pub mod private;
pub mod progress;
pub mod python;
pub mod quiet;
pub mod scratch;

/// Result of a measurement. The error is a text for the user.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Returns the processors that this process may use under its affinity and control group.
pub fn usable_cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}
