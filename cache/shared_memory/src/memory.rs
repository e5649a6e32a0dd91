//! Finds out how much memory is available, and reserves memory.
//!
//! The kernel lets a memory file grow past the limit of a control group and then kills the process. The limits are
//! therefore read before every step of a reservation. Memory counts as free if it is available without swapping. On the
//! machine that is `MemAvailable`; in each control group above this process it is the limit minus the usage, where file
//! cache does not count as usage.

use std::fs;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::error::{Error, ErrorKind, Result, os};

/// Bytes reserved in one step. The limits are checked before each step.
const STEP: u64 = 256 << 20;
/// The divisor for the share of free memory that stays unreserved, for everything that is not shared memory.
const LEFT_ALONE: u64 = 64;

/// Returns the bytes available now, or `None` if the system does not say.
#[must_use]
pub fn available() -> Option<u64> {
    tightest().map(|limit| limit.free)
}

struct MemoryLimit {
    free: u64,
    name: String,
}

fn tightest() -> Option<MemoryLimit> {
    let groups = control_groups()
        .into_iter()
        .filter_map(|group| group.limit());
    groups.chain(machine()).min_by_key(|limit| limit.free)
}

fn machine() -> Option<MemoryLimit> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let free = field(&text, "MemAvailable:")?.checked_mul(1024)?;
    Some(MemoryLimit {
        free,
        name: "memory of the machine".into(),
    })
}

/// Returns the number after `key` on the line that starts with `key`.
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A control group that may limit memory.
struct ControlGroup {
    folder: PathBuf,
    files: &'static LimitFiles,
}

struct LimitFiles {
    limit: &'static str,
    usage: &'static str,
    cache: [&'static str; 2],
}

const V1: LimitFiles = LimitFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file ", "total_active_file "],
};
const V2: LimitFiles = LimitFiles {
    limit: "memory.max",
    usage: "memory.current",
    cache: ["inactive_file ", "active_file "],
};

impl ControlGroup {
    fn limit(&self) -> Option<MemoryLimit> {
        // Without a limit, the file says "max", which does not parse as a number.
        let limit = self.number(self.files.limit)?;
        let usage = self
            .number(self.files.usage)?
            .saturating_sub(self.file_cache());
        let name = format!(
            "memory limit of the control group {}",
            self.folder.display()
        );
        Some(MemoryLimit {
            free: limit.saturating_sub(usage),
            name,
        })
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn file_cache(&self) -> u64 {
        // Without the file, cached files count as usage, which makes the limit seem tighter than it is.
        let Ok(text) = fs::read_to_string(self.folder.join("memory.stat")) else {
            return 0;
        };
        self.files
            .cache
            .iter()
            .filter_map(|key| field(&text, key))
            .sum()
    }
}

/// Returns the group of this process and its ancestors, for both versions of control groups.
fn control_groups() -> Vec<ControlGroup> {
    let member = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .filter_map(mount)
        .flat_map(|mount| mount.groups(&member))
        .collect()
}

/// The mount point of a hierarchy of control groups.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    files: &'static LimitFiles,
}

fn mount(line: &str) -> Option<Mount<'_>> {
    // The fields before " - " are: mount ID, parent ID, device, root, mount point. After it: type, source, options.
    let (mount, kind) = line.split_once(" - ")?;
    let mut words = mount.split(' ').skip(3);
    let (root, point) = (words.next()?, words.next()?);
    let mut kind = kind.split(' ');
    let files = match (kind.next()?, kind.nth(1)) {
        ("cgroup2", _) => &V2,
        ("cgroup", Some(options)) if options.split(',').any(|o| o == "memory") => &V1,
        _ => return None,
    };
    Some(Mount { root, point, files })
}

impl Mount<'_> {
    fn groups(&self, member: &str) -> Vec<ControlGroup> {
        let path = member
            .lines()
            .find_map(|line| self.path(line))
            .unwrap_or("/");
        // In a container, the root of the mount is the container's group, but the path is the host's.
        let path = Path::new(path);
        let below = path.strip_prefix(self.root).unwrap_or(path);
        // Joining an absolute path would leave the mount.
        let below = below.strip_prefix("/").unwrap_or(below);
        let top = Path::new(self.point);
        let own = top.join(below);
        let above = own.ancestors().take_while(|folder| folder.starts_with(top));
        above
            .map(|folder| ControlGroup {
                folder: folder.to_owned(),
                files: self.files,
            })
            .collect()
    }

    /// Returns the path in a line of `/proc/self/cgroup`, if the line belongs to this hierarchy.
    fn path<'l>(&self, line: &'l str) -> Option<&'l str> {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let mine = if self.files.limit == V2.limit {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|c| c == "memory")
        };
        mine.then_some(path)
    }
}

/// Fails if fewer than `wanted` bytes are available now. `what` names the memory in the error.
///
/// # Errors
/// [`ErrorKind::Shortage`].
pub fn check(what: &str, wanted: u64) -> Result<()> {
    // If the system states no limit, nothing can be compared. `fallocate` still reports a full file system.
    let Some(limit) = tightest() else {
        return Ok(());
    };
    let had = limit.free - limit.free / LEFT_ALONE;
    if wanted <= had {
        return Ok(());
    }
    Err(shortage(what, wanted, had, &limit.name)
        .with_remedy("ask for less, or end what uses the memory"))
}

/// Returns the error that `wanted` bytes were requested of `what` and only `had` are available, for a `limit` that it
/// names in words. The caller knows the remedy.
#[must_use]
pub fn shortage(what: &str, wanted: u64, had: u64, limit: &str) -> Error {
    let why = format!(
        "{} wanted, {} to be had ({limit})",
        sizes(wanted),
        sizes(had)
    );
    Error::new(ErrorKind::Shortage, cannot_reserve(what)).because(why)
}

fn cannot_reserve(what: &str) -> String {
    format!("cannot reserve memory for {what}")
}

/// Formats a size for a person, such as `2.9 GiB`.
#[must_use]
pub fn sizes(bytes: u64) -> String {
    let unit = (bytes.max(1).ilog2() / 10).min(4) as usize;
    match unit {
        0 => format!("{bytes} bytes"),
        _ => {
            let name = ["", "KiB", "MiB", "GiB", "TiB"][unit];
            format!("{:.1} {name}", bytes as f64 / (1u64 << (10 * unit)) as f64)
        }
    }
}

/// Reserves a part of a memory file. `what` names the memory in the error.
///
/// # Errors
/// [`ErrorKind::Shortage`] if memory, or space in the file system of the file, is short.
pub fn reserve(what: &str, file: impl AsFd, part: Range<u64>) -> Result<()> {
    let bytes = part.end.saturating_sub(part.start);
    let mut done = 0;
    // In steps, because other processes take memory meanwhile, and the kernel kills a process that passes its limit.
    while done < bytes {
        check(what, bytes - done)?;
        let step = STEP.min(bytes - done);
        let reserved = reserve_step(file.as_fd(), part.start + done, step);
        reserved.map_err(|e| refused(what, bytes, done, e))?;
        done += step;
    }
    Ok(())
}

/// Frees a part of a memory file, whose content is lost. If the kernel refuses, the memory is free when the file is.
pub(crate) fn free(file: impl AsFd, part: Range<u64>) {
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let bytes = part.end.saturating_sub(part.start);
    let _ = fallocate(file.as_fd(), how, part.start as i64, bytes as i64);
}

fn reserve_step(file: std::os::fd::BorrowedFd<'_>, from: u64, len: u64) -> nix::Result<()> {
    loop {
        // A signal undoes this step but not the steps before it, so the loop repeats only this step.
        match fallocate(file, FallocateFlags::empty(), from as i64, len as i64) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

fn refused(what: &str, wanted: u64, had: u64, error: Errno) -> Error {
    match error {
        Errno::ENOSPC | Errno::ENOMEM => {
            shortage(what, wanted, had, "the file system of the memory file")
                .with_remedy("ask for less, or enlarge the file system")
        }
        error => os(cannot_reserve(what), error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_machine_tells_what_is_free() {
        assert!(available().is_some_and(|free| free > 1 << 20));
    }

    #[test]
    fn freed_memory_is_no_longer_taken() -> std::io::Result<()> {
        let file = tempfile::tempfile_in("/dev/shm")?;
        file.set_len(3 << 20)?;
        reserve("a test", &file, 0..3 << 20).unwrap();
        assert!(file.metadata()?.blocks() * 512 >= 3 << 20);
        free(&file, 1 << 20..3 << 20);
        assert!(file.metadata()?.blocks() * 512 < 2 << 20);
        Ok(())
    }

    #[test]
    fn more_than_there_is_is_one_error_with_all_three_numbers() {
        let error = check("a test", u64::MAX).unwrap_err();
        assert!(error.kind().is_shortage());
        let text = error.to_string();
        assert!(
            text.contains("a test")
                && text.contains("16777216.0 TiB wanted")
                && text.contains("ask for less")
        );
    }

    #[test]
    fn groups_are_found_above_a_container_too() {
        let line =
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        let groups = mount(line)
            .unwrap()
            .groups("5:cpu:/x\n4:memory:/docker/abc/job\n0::/y");
        let folders: Vec<_> = groups.iter().map(|g| g.folder.to_str().unwrap()).collect();
        assert_eq!(
            folders,
            ["/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"]
        );
    }

    #[test]
    fn a_group_whose_name_only_begins_like_the_root_is_not_below_it() {
        let line =
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        let groups = mount(line).unwrap().groups("4:memory:/docker/abcdef");
        assert_eq!(
            groups[0].folder,
            Path::new("/sys/fs/cgroup/memory/docker/abcdef")
        );
    }

    #[test]
    fn the_unified_hierarchy_is_read_too() {
        let line = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw";
        let groups = mount(line).unwrap().groups("0::/user.slice/a.scope");
        assert_eq!(groups.len(), 3);
        assert_eq!(
            groups[0].folder.to_str().unwrap(),
            "/sys/fs/cgroup/user.slice/a.scope"
        );
    }

    #[test]
    fn a_limit_leaves_out_what_is_file_cache() {
        let folder = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        put("memory.max", "1000\n");
        put("memory.current", "700\n");
        put("memory.stat", "anon 1\ninactive_file 100\nactive_file 50\n");
        let group = ControlGroup {
            folder: folder.path().to_owned(),
            files: &V2,
        };
        assert_eq!(group.limit().unwrap().free, 450);
    }

    #[test]
    fn no_limit_is_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert!(
            ControlGroup {
                folder: folder.path().to_owned(),
                files: &V2
            }
            .limit()
            .is_none()
        );
    }
}
