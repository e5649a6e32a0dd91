//! Why a file cannot be used.

use std::panic::{AssertUnwindSafe, catch_unwind};

use coprep_storage::{Error, ErrorKind};

/// A defect of a file, or a column that it does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFault {
    what: String,
    remedy: &'static str,
}

/// Remedy for a file that is cut off or damaged.
const WRITE_ANEW: &str = "write or upload it anew";

impl FileFault {
    /// Returns a fault. `what` is a sentence about the file, which is called "it".
    pub(crate) fn new(what: impl Into<String>, remedy: &'static str) -> Self {
        FileFault {
            what: what.into(),
            remedy,
        }
    }

    /// Returns the fault of a file that is cut off, or holds something else than parquet.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        FileFault::new(what, WRITE_ANEW)
    }

    /// Returns the same fault with the part of the file that has it.
    pub(crate) fn within(self, part: &str) -> Self {
        FileFault {
            what: format!("{part}: {}", self.what),
            ..self
        }
    }

    /// Returns the error of a file with this path or URL.
    pub(crate) fn of(self, file: &str) -> Error {
        let what = format!("the parquet file {file} cannot be used: {}", self.what);
        Error::new(ErrorKind::Invalid, what).with_remedy(self.remedy)
    }
}

/// Runs code of the library `parquet` over bytes from outside. Returns what went wrong, in words.
pub(crate) fn guarded<T>(run: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    // The library checks most of what a file says, but slices some pages by lengths in them without a check. Its readers
    // are made anew for each chunk, so a panic leaves nothing behind.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("its bytes are inconsistent".into()),
    }
}
