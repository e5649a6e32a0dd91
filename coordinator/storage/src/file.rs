//! Reading of files whose names come from outside.
//!
//! Such a path may name anything: a pipe, which has no end and may have no writer; a device, which gives bytes for
//! ever; a file that grows. Therefore only regular files are read, opening never blocks, and the length is bounded
//! before memory is allocated for it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::makedev;

/// Longest file that is read as a sample. 1 GiB is far more than any image that is decoded and far less than a node's
/// memory.
pub const MOST_BYTES: u64 = 1 << 30;
/// Longest file with settings or credentials. 1 MiB is far more than any that a person or a tool writes.
const MOST_TEXT: u64 = 1 << 20;
/// The device `/dev/null`.
const NULL_DEVICE: u64 = makedev(1, 3);
/// Longest wait for a free file descriptor. Jobs that leave give theirs back, so a shortage is usually short.
const DESCRIPTOR_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts. Other threads of the pool close their files within milliseconds.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(5);

/// Number of threads that wait for a free descriptor.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Returns the reason, with its remedy, if files cannot be opened at present because no descriptor is left.
#[must_use]
pub fn descriptor_shortage() -> Option<&'static str> {
    let why = "the coordinator has no file descriptor left: raise its limit (ulimit -n)";
    (WAITING.load(Relaxed) > 0).then_some(why)
}

/// A thread that waits for a free descriptor.
struct Waiting;

impl Waiting {
    fn begin() -> Self {
        WAITING.fetch_add(1, Relaxed);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Relaxed);
    }
}

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
    open_as(path, "a sample")
}

/// Opens a regular file without blocking. `what` says what it is, for the error if it is something else.
fn open_as(path: &Path, what: &str) -> io::Result<(File, Metadata)> {
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
            .and_then(|m| check_kind_of(&m, what))
            .err()
            .unwrap_or(e)),
        opened => opened,
    }?;
    let meta = file.metadata()?;
    check_kind_of(&meta, what)?;
    Ok((file, meta))
}

/// Opens a file, and tries again for up to [`DESCRIPTOR_TIMEOUT`] if this process or the machine has no descriptor
/// left.
///
/// Such a shortage says nothing about the file: a sample must not count as bad because many jobs joined at this moment.
fn open_when_possible(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let began = Instant::now();
    let mut waiting = None;
    loop {
        match options.open(path) {
            Err(e) if is_out_of_descriptors(&e) && began.elapsed() < DESCRIPTOR_TIMEOUT => {
                waiting.get_or_insert_with(Waiting::begin);
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
    check_kind_of(meta, "a sample")
}

fn check_kind_of(meta: &Metadata, what: &str) -> io::Result<()> {
    let kind = meta.file_type();
    if !kind.is_file() {
        let found = match () {
            () if kind.is_dir() => "a folder",
            () if kind.is_fifo() => "a named pipe",
            () if kind.is_socket() => "a socket",
            () if kind.is_char_device() => "a character device",
            () if kind.is_block_device() => "a block device",
            () => "something else",
        };
        return Err(io::Error::other(format!(
            "it is {found}, and {what} must be a regular file"
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

/// Reads a file with settings or credentials, as text. Never waits for a pipe or a device, and no error has any of the text.
///
/// # Errors
/// If it is no regular file, is longer than [`MOST_TEXT`], or is no UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    // Jobs name this device to have no such file.
    let is_null = |meta: &Metadata| meta.file_type().is_char_device() && meta.rdev() == NULL_DEVICE;
    if std::fs::metadata(path).is_ok_and(|meta| is_null(&meta)) {
        return Ok(String::new());
    }
    let (file, _) = open_as(path, "a file with settings or credentials").map_err(|e| {
        // The shell makes a pipe of <(command), which only the process that it starts can read, and only once.
        let is_pipe = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo());
        if is_pipe {
            io::Error::other(format!("{e}: write what the pipe gives to a file"))
        } else {
            e
        }
    })?;
    let mut bytes = Vec::new();
    file.take(MOST_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_TEXT {
        return Err(io::Error::other(format!(
            "it has more than {MOST_TEXT} bytes, the most that a file with settings or credentials may have"
        )));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is no UTF-8 text"))
}

/// Refuses a file that [`read_text`] refuses by its kind, length or content. Other errors, such as that it is not there, are
/// left to whoever reads it.
pub(crate) fn check_text(path: &Path) -> io::Result<()> {
    match read_text(path) {
        Err(e) if e.kind() == io::ErrorKind::Other => Err(e),
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_file_with_settings_is_a_regular_one_of_a_bounded_length() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| {
            check_text(path).unwrap_err();
            read_text(path).unwrap_err().to_string()
        };
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let why = refused(&pipe);
        assert!(
            why.contains("it is a named pipe, and a file with settings")
                && why.contains("write what the pipe gives to a file"),
            "{why}"
        );
        let why = refused(Path::new("/dev/zero"));
        assert!(why.contains("it is a character device"), "{why}");
        let file = folder.path().join("file");
        let write = |length: u64| std::fs::write(&file, vec![b'x'; length as usize]).unwrap();
        write(MOST_TEXT + 1);
        assert!(refused(&file).contains("more than 1048576 bytes"));
        write(MOST_TEXT);
        assert_eq!(read_text(&file).unwrap().len() as u64, MOST_TEXT);
        // It may be a link, as secrets of Kubernetes are.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        check_text(&link).unwrap();
        check_text(&folder.path().join("absent")).unwrap();
        assert_eq!(read_text(Path::new("/dev/null")).unwrap(), "");
    }
}
