//! Why a shard or its index cannot be used.

use coprep_storage::{Error, ErrorKind};

/// A defect of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardFault {
    what: String,
    remedy: String,
}

impl ShardFault {
    /// Returns a fault. `what` is a sentence about the shard, which is called "it".
    pub(crate) fn new(what: String) -> Self {
        ShardFault {
            what,
            remedy: String::new(),
        }
    }

    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Returns the error of a shard with this path or URL.
    pub(crate) fn of(self, shard: &str) -> Error {
        let what = format!("the shard {shard} cannot be used: {}", self.what);
        let error = Error::new(ErrorKind::Invalid, what);
        if self.remedy.is_empty() {
            error
        } else {
            error.with_remedy(self.remedy)
        }
    }
}
