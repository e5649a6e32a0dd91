//! What samples cost, and what follows from it.
//!
//! Pure: no clock (durations are arguments, in seconds), no I/O, no thread, no randomness but what the
//! caller brings.
//!
//! | module | question | rule |
//! |---|---|---|
//! | [`table`] | what does this sample cost? | a weighted mean of what was measured, 10 bytes a sample |
//! | [`predict`] | and before it was ever prepared? | a line in its bytes and pixels, fitted as the samples come |
//! | [`quantile`] | from when on is a sample slow? | a fence over the recent costs |
//! | [`forms`] | in which form is it worth its bytes in the cache? | the best at a common price per byte |
#![forbid(unsafe_code)]

pub mod forms;
pub mod predict;
pub mod quantile;
pub mod table;

pub use forms::{Chooser, Offer};
pub use predict::{Features, Predictor};
pub use quantile::{Budget, Recent};
pub use table::{Cost, CostTable, Measured};

#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
