//! Parquet files with a column of images: where the rows lie, and reading them.
//!
//! A parquet file is cut into *row groups*. The values of a column in one of them are a *column chunk*, which is
//! compressed, so that no row can be read by itself: a chunk is what is read. The table of all chunks is the *footer* at
//! the end of a file. [`open`](open()) reads the footers, and the column of labels. [`ParquetRows`] then reads one chunk
//! of images for all samples in it.
//!
//! A file is data from outside. All sizes that it tells are compared with a bound before memory is taken for them, and a
//! panic of the library `parquet` over its bytes is an error of that file.
#![forbid(unsafe_code)]

mod chunk;
mod columns;
mod decompress;
mod fault;
mod footer;
mod open;
mod pages;
mod rows;

pub use open::{OpenParquet, open, open_within};
pub use rows::{MOST_CHUNK, ParquetRows, ReadFailure};
