//! Foreign interfaces: memory that others may write, tensors of the user on a GPU, a program that outlives its starter,
//! and descriptors that a forked child does not keep.
//!
//! All other code of this crate is safe and uses these few functions.
#![expect(
    unsafe_code,
    reason = "raw memory, and what runs between fork and exec"
)]

use std::alloc::{Layout, alloc, dealloc};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use coprep_device::{Context, DeviceMemory, Stream};
use coprep_shared_memory::view::LargeMap;

use crate::attachment::HeldSlots;

/// Private memory of a copied batch, aligned to a cache line.
///
/// This crate writes it through `&mut` until the batch is handed over. From then on the user writes it through the
/// address, and this type only frees it.
pub(crate) struct Owned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its allocation like a `Box`; shared access gives out nothing but the address.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// Allocates `bytes` bytes. Returns `None` if memory is short, or that is more than the address space.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), 64).ok()?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        Some(Owned {
            start: NonNull::new(start)?,
            layout,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Copies a large sample before it is given to the user. Returns `None` if memory is short.
    pub(crate) fn copy_of(map: &LargeMap) -> Option<Self> {
        let copy = Self::new(map.len())?;
        // SAFETY: the source is readable and not written: its slice is held, so the coordinator leaves it alone, and no
        // user has been given its address yet. The target is as long, and nobody else's.
        unsafe {
            std::ptr::copy_nonoverlapping(map.start().as_ptr(), copy.start.as_ptr(), map.len())
        };
        Some(copy)
    }

    /// Copies a field of a slice to offset `at`.
    ///
    /// # Panics
    /// If the field does not fit.
    pub(crate) fn copy_from(&mut self, at: usize, slice: &HeldSlots, field: usize) {
        let (source, len) = slice.field(field);
        assert!(
            at.checked_add(len)
                .is_some_and(|end| end <= self.layout.size()),
            "{len} bytes at {at}"
        );
        // SAFETY: the source is readable and not written: the slice lies inside the staging area, and is
        // held, so the coordinator leaves it alone, and no user has been given its address yet. The target
        // was checked and is exclusive, since `self` is. They do not overlap: this allocation is nobody
        // else's.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start.as_ptr().add(at), len) };
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Reads a field of integers before the slice is given to the user.
pub(crate) fn integers(slice: &HeldSlots, field: usize) -> Vec<i64> {
    let (source, len) = slice.field(field);
    let source = source.cast::<i64>();
    // SAFETY: readable and not written, as in `copy_from`; any bits are an `i64`; unaligned is allowed.
    (0..len / size_of::<i64>())
        .map(|i| unsafe { source.add(i).read_unaligned() })
        .collect()
}

/// Returns the stream of the user that a [`UserStream`](crate::device::UserStream) names.
pub(crate) fn user_stream(context: &Context, stream: u64) -> Stream {
    // SAFETY: the handle is one of a stream of this GPU which outlives the call that brought it, as `UserStream` says.
    // The value is dropped before that call returns.
    unsafe { Stream::of_caller(context, stream) }
}

/// Returns the memory of a tensor that the user has allocated for [`DeviceBatch::write`](crate::device::DeviceBatch).
pub(crate) fn tensor(address: u64, bytes: usize) -> DeviceMemory {
    // SAFETY: the caller of `DeviceBatch::write` gives addresses of tensors of these bytes. If the user frees a tensor
    // before the work has ended, its allocator gives the memory only to later work of the same stream, or waits for the
    // GPU, as CUDA does. A `DeviceArray` waits for the work before it frees its memory.
    unsafe { DeviceMemory::of_caller(address, bytes) }
}

/// A socket that children forked by this process must not keep, because their copies would hold the connection open
/// after the death of this process. In the child the descriptor is replaced by one of `/dev/null`. Its number is then
/// not given to another file, which the child's copy of the connection would later close.
pub(crate) struct Unshared {
    /// Entry of [`SOCKETS`], or `None` if all entries were taken. The coordinator then sees the death of this process by
    /// its pidfd alone.
    entry: Option<&'static AtomicI32>,
}

const NO_SOCKET: RawFd = -1;
/// Sockets of this process, by descriptor. A loader has one.
static SOCKETS: [AtomicI32; 256] = [const { AtomicI32::new(NO_SOCKET) }; 256];
/// A descriptor of `/dev/null`, opened in advance because a child may have no free descriptor.
static DEV_NULL: OnceLock<Option<OwnedFd>> = OnceLock::new();

impl Unshared {
    pub(crate) fn new(socket: RawFd) -> Self {
        let is_ready = DEV_NULL.get_or_init(prepare_for_forks).is_some();
        let take = |entry: &&AtomicI32| {
            // Relaxed: an entry is a single number, and the handler in a child needs no other data with it.
            let taken = entry.compare_exchange(NO_SOCKET, socket, Relaxed, Relaxed);
            taken.is_ok()
        };
        let mut entries = SOCKETS.iter();
        Unshared {
            entry: if is_ready { entries.find(take) } else { None },
        }
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            entry.store(NO_SOCKET, Relaxed);
        }
    }
}

fn prepare_for_forks() -> Option<OwnedFd> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .ok()?;
    // SAFETY: the handler makes system calls and uses atomics only, as a child of a process with threads must, and it
    // stays where it is: neither a program nor a Python extension is unloaded.
    let done = unsafe { libc::pthread_atfork(None, None, Some(replace_sockets_in_child)) };
    (done == 0).then(|| null.into())
}

extern "C" fn replace_sockets_in_child() {
    let Some(Some(null)) = DEV_NULL.get() else {
        return;
    };
    for entry in &SOCKETS {
        let socket = entry.swap(NO_SOCKET, Relaxed);
        if socket != NO_SOCKET {
            // SAFETY: a system call. The descriptor is this child's own copy, whose connection is of no use to it.
            unsafe { libc::dup3(null.as_raw_fd(), socket, libc::O_CLOEXEC) };
        }
    }
}

/// Makes a command start as a daemon: in a session of its own, with no descriptor of this process except the standard
/// ones and `kept`, with no signal ignored, and as an orphan, so that it never becomes a zombie of this process.
pub(crate) fn detach(command: &mut Command, kept: RawFd) {
    let before_exec = move || {
        // SAFETY: in a child of fork that no other thread shares; only system calls are made. A raw `clone`
        // without flags is `fork` without the handlers of libraries, which need not be safe here.
        match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
            0 => {}
            -1 => return Err(std::io::Error::last_os_error()),
            // SAFETY: ends the process that is between the starter and the daemon; its only task is done.
            _ => unsafe { libc::_exit(0) },
        }
        // SAFETY: a system call; it fails only for the leader of a group, which a new process is not.
        unsafe { libc::setsid() };
        reset_signals();
        close_on_exec_from(3);
        // SAFETY: a system call on a descriptor that the starter keeps open until the command has started.
        match unsafe { libc::fcntl(kept, libc::F_SETFD, 0) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure runs between fork and exec: it makes system calls only and allocates nothing.
    unsafe { command.pre_exec(before_exec) };
}

/// Sets all signals as in a new process. A program that ignores SIGCHLD would leave a daemon that cannot wait for its
/// children, for all other programs too.
fn reset_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: a system call. For the signals that no program may handle it is an error that does not matter.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// `CLOSE_RANGE_CLOEXEC`, available since Linux 5.11.
const CLOSE_ON_EXEC: libc::c_uint = 4;
/// Number of descriptors that are handled one by one where `close_range` is not available.
const FEW: RawFd = 4096;

fn close_on_exec_from(first: RawFd) {
    // SAFETY: a system call that only sets a flag of descriptors.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            CLOSE_ON_EXEC,
        )
    };
    if done != 0 {
        for fd in first..FEW {
            // SAFETY: a system call; a number that is no descriptor is an error that does not matter.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}
