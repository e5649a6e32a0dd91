//! Waits on a word of shared memory, and wakes its waiters.
#![expect(unsafe_code, reason = "the futex system call")]

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::errno::Errno;

/// The reason why a wait returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// The thread was woken, the word had changed, or the wake-up was spurious. The caller must look again.
    LookAgain,
    /// The timeout expired.
    TimedOut,
    /// A signal arrived.
    Interrupted,
}

/// Sleeps as long as `word` equals `seen`. The word may lie in memory that this process cannot write.
pub(crate) fn wait(word: &AtomicU32, seen: u32, timeout: Duration) -> Woken {
    let limit = libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word is valid and aligned for the whole call, since it is borrowed; the kernel only reads
    // it; `limit` outlives the call; the two last arguments are not read by this operation.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            // Without `FUTEX_PRIVATE_FLAG`, because another process wakes this one.
            libc::FUTEX_WAIT,
            seen,
            &raw const limit,
            0usize,
            0,
        )
    };
    match (answer, Errno::last()) {
        (0, _) | (_, Errno::EAGAIN) => Woken::LookAgain,
        (_, Errno::EINTR) => Woken::Interrupted,
        // On any other error the caller must not hang, so it is told that its time is up.
        _ => Woken::TimedOut,
    }
}

/// Wakes all threads that sleep on `word`, in any process.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word is valid for the call, since it is borrowed; the kernel does not access its value.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            i32::MAX,
            0usize,
            0usize,
            0,
        )
    };
}
