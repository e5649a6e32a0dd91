//! The number of descriptors that a process may have open.
//!
//! Many systems start a process with a limit of 1,024, for the sake of programs that call `select`. A process that does
//! not may raise it up to a second limit, usually far above.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{Result, os};

/// Largest limit that [`raise_limit`] sets. Processes that are started inherit it, and some programs close each number
/// below their limit.
const MOST: u64 = 65_536;

/// Returns the number of descriptors that this process may have open.
///
/// # Errors
/// If the system does not say.
pub fn limit() -> Result<u64> {
    limits().map(|(now, _)| now)
}

/// Returns the limit that [`raise_limit`] sets in a process like this one.
///
/// # Errors
/// If the system does not say.
pub fn attainable() -> Result<u64> {
    limits().map(|(now, most)| most.min(MOST).max(now))
}

/// Raises the limit as far as this process may.
///
/// # Errors
/// If the system refuses.
pub fn raise_limit() -> Result<()> {
    let (_, most) = limits()?;
    setrlimit(Resource::RLIMIT_NOFILE, attainable()?, most)
        .map_err(|e| os("cannot raise the limit of open files", e))
}

/// Returns the limit, and how far it may be raised.
fn limits() -> Result<(u64, u64)> {
    getrlimit(Resource::RLIMIT_NOFILE).map_err(|e| os("cannot read the limit of open files", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Nextest runs each test in a process of its own, so the limit is that of this test.
    #[test]
    fn a_limit_is_raised_and_never_lowered() {
        let (_, most) = limits().unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 100, most).unwrap();
        let raised = attainable().unwrap();
        assert!(raised > 100, "the system allows no more: {most}");
        raise_limit().unwrap();
        assert_eq!(limit().unwrap(), raised);
        raise_limit().unwrap();
        assert_eq!(limits().unwrap(), (raised, most));
    }
}
