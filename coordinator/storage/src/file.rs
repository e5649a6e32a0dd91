//! Reading of files whose names come from outside.
//!
//! Such a path may name anything: a pipe, which has no end and may have no writer; a device, which gives bytes for
//! ever; a file that grows. Therefore only regular files are read, opening never blocks, and the length is bounded
//! before memory is allocated for it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Longest file that is read as a sample. 1 GiB is far more than any image that is decoded and far less than a node's
/// memory.
pub const MOST_BYTES: u64 = 1 << 30;
/// Longest wait for a free file descriptor. Jobs that leave give theirs back, so a shortage is usually short.
const DESCRIPTOR_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts. Other threads of the pool close their files within milliseconds.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(5);

/// Opens a regular file without blocking, whatever the path names, and returns the file and its length.
///
/// # Errors
/// If it cannot be opened, is no regular file, or is longer than [`MOST_BYTES`].
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    let (file, meta) = open_of_any_length(path)?;
    let length = check_length(meta.len())?;
    Ok((file, length))
}

/// Opens a regular file, as [`open`] does, of whatever length.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub(crate) fn open_of_any_length(path: &Path) -> io::Result<(File, Metadata)> {
    // With these flags a pipe opens without a writer, and a terminal does not become this process's controlling
    // terminal.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits());
    let file = match open_when_possible(&options, path) {
        // Another process holds a lease on the file and was asked to give it back, which is worth a blocking open.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock && path.is_file() => File::open(path),
        // For a folder or a device, "it is a folder" says more than the error number of the failed open.
        Err(e) => Err(std::fs::metadata(path)
            .and_then(|m| check_kind(&m))
            .err()
            .unwrap_or(e)),
        opened => opened,
    }?;
    let meta = file.metadata()?;
    check_kind(&meta)?;
    Ok((file, meta))
}

/// Opens a file, and tries again for up to [`DESCRIPTOR_TIMEOUT`] if this process or the machine has no descriptor
/// left.
///
/// Such a shortage says nothing about the file: a sample must not count as bad because many jobs joined at this moment.
fn open_when_possible(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let began = Instant::now();
    loop {
        match options.open(path) {
            Err(e) if is_out_of_descriptors(&e) && began.elapsed() < DESCRIPTOR_TIMEOUT => {
                std::thread::sleep(DESCRIPTOR_PAUSE);
            }
            opened => return opened,
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(number, Some(Errno::EMFILE | Errno::ENFILE))
}

/// Returns the length of a regular file.
///
/// # Errors
/// If it is something else, or longer than [`MOST_BYTES`].
pub(crate) fn length(meta: &Metadata) -> io::Result<u64> {
    check_kind(meta)?;
    check_length(meta.len())
}

/// Refuses everything but a regular file.
pub(crate) fn check_kind(meta: &Metadata) -> io::Result<()> {
    let kind = meta.file_type();
    if !kind.is_file() {
        let what = match () {
            () if kind.is_dir() => "a folder",
            () if kind.is_fifo() => "a named pipe",
            () if kind.is_socket() => "a socket",
            () if kind.is_char_device() => "a character device",
            () if kind.is_block_device() => "a block device",
            () => "something else",
        };
        return Err(io::Error::other(format!(
            "it is {what}, and a sample must be a regular file"
        )));
    }
    Ok(())
}

fn check_length(length: u64) -> io::Result<u64> {
    if length <= MOST_BYTES {
        return Ok(length);
    }
    Err(io::Error::other(format!(
        "it has more than {MOST_BYTES} bytes, the most that a sample may have"
    )))
}

/// Reads a file. Afterwards `into` holds exactly its bytes.
pub(crate) fn read(path: &Path, into: &mut Vec<u8>) -> io::Result<()> {
    let (file, length) = open(path)?;
    into.clear();
    // One byte more, so that `read_to_end` sees the end of the file without growing the buffer.
    into.reserve(length as usize + 1);
    // The file may grow while it is read, so the length is bounded and checked again.
    file.take(MOST_BYTES + 1).read_to_end(into)?;
    check_length(into.len() as u64).map(drop)
}

/// Reads the start of a file, at most `most` bytes.
pub(crate) fn read_head(path: &Path, most: u64, into: &mut Vec<u8>) -> io::Result<()> {
    let (file, _) = open(path)?;
    into.clear();
    file.take(most).read_to_end(into).map(drop)
}

/// Fills `into` from a file, and returns `true` if the file ended there.
pub(crate) fn read_exactly(path: &Path, into: &mut [u8]) -> io::Result<bool> {
    let (mut file, _) = open(path)?;
    file.read_exact(into)?;
    Ok(file.read(&mut [0])? == 0)
}
