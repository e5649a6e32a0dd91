//! How the kernel schedules a thread.
//!
//! Source: `sched(7)`.

#![expect(
    unsafe_code,
    reason = "the kernel is told by the C library, and there is no safe wrapper"
)]

use std::io;

use nix::errno::Errno;

/// Makes the calling thread wait for its turn when it wakes: it takes the processor from no other thread, but has its
/// fair share as before (`SCHED_BATCH`).
///
/// This suits a thread that is woken thousands of times a second, each time for a little work that may wait for a
/// millisecond. It then does the work of several events at once, and threads that compute keep their processors and
/// caches.
///
/// # Errors
/// If the kernel refuses, for example in a sandbox. The thread goes on as before.
pub fn yield_to_others() -> io::Result<()> {
    // The only priority of this policy.
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is valid for the call, which changes only the calling thread (0).
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the policy of the calling thread.
    fn policy() -> String {
        let fields = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The name of the thread may have spaces, and ends at the last parenthesis. The policy is the 41st field.
        let after_name = fields.rsplit(") ").next().unwrap();
        after_name.split(' ').nth(38).unwrap().to_owned()
    }

    #[test]
    fn a_thread_yields_and_the_others_stay_as_they_are() {
        let yields = std::thread::spawn(|| {
            yield_to_others().unwrap();
            policy()
        });
        assert_eq!(yields.join().unwrap(), libc::SCHED_BATCH.to_string());
        assert_eq!(policy(), libc::SCHED_OTHER.to_string());
    }
}
