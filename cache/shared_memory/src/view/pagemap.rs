//! Finds the pages of a private mapping that are this process's own.
//!
//! There are three methods, tried in this order. The `PAGEMAP_SCAN` call (Linux 6.7) returns ranges of pages that do
//! not belong to a file. `/proc/self/pagemap` has 8 bytes per page, and bit 61 says whether the page belongs to a file.
//! If neither is available, every page counts as private.
#![expect(unsafe_code, reason = "the PAGEMAP_SCAN call")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use crate::error::Result;
use crate::lock::lock;
use crate::mapping::page_size;

/// The page map of this process.
pub(super) struct PageMap {
    opened: Mutex<OpenedPagemap>,
}

/// An open `/proc/self/pagemap` and the process that opened it. The file stays the map of that process in its children,
/// so each process opens its own.
struct OpenedPagemap {
    by: u32,
    file: Option<File>,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Scan,
    Entries,
    All,
}

type Each<'a> = &'a mut dyn FnMut(Range<usize>) -> Result<()>;

impl PageMap {
    pub(super) fn new() -> Self {
        PageMap {
            opened: Mutex::new(OpenedPagemap::now(Way::Scan)),
        }
    }

    /// Calls `each` with every range of private pages within `addresses`, which are whole pages.
    pub(super) fn each_private(
        &self,
        addresses: Range<usize>,
        mut each: impl FnMut(Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut opened = lock(&self.opened);
        opened.follow_fork();
        opened.each_private(addresses, &mut each)
    }
}

impl OpenedPagemap {
    fn now(way: Way) -> Self {
        OpenedPagemap {
            by: std::process::id(),
            file: File::open("/proc/self/pagemap").ok(),
            way,
        }
    }

    fn follow_fork(&mut self) {
        if self.by != std::process::id() {
            *self = OpenedPagemap::now(self.way);
        }
    }

    fn each_private(&mut self, addresses: Range<usize>, each: Each<'_>) -> Result<()> {
        loop {
            let tried = match (&self.file, self.way) {
                (Some(file), Way::Scan) => scan(file, &addresses, each),
                (Some(file), Way::Entries) => read_entries(file, &addresses, each),
                _ => Ok(each(addresses.clone())),
            };
            match tried {
                Ok(done) => return done,
                // The method does not work on this kernel. The next one starts over, and reporting a range twice is
                // harmless.
                Err(_) => {
                    self.way = if self.way == Way::Scan {
                        Way::Entries
                    } else {
                        Way::All
                    }
                }
            }
        }
    }
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 =
    3 << 30 | (size_of::<ScanArguments>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// Number of ranges per call.
const REGIONS: usize = 64;

fn scan(file: &File, addresses: &Range<usize>, each: Each<'_>) -> std::io::Result<Result<()>> {
    let mut from = addresses.start;
    let mut regions = [PageRegion::default(); REGIONS];
    while from < addresses.end {
        let (found, walked) = scan_once(file, from..addresses.end, &mut regions)?;
        for region in &regions[..found.min(REGIONS)] {
            if let Err(e) = each(region.start as usize..region.end as usize) {
                return Ok(Err(e));
            }
        }
        // The kernel made no progress, so another call would not either.
        if walked <= from {
            break;
        }
        from = walked;
    }
    Ok(Ok(()))
}

/// Finds the private ranges at the start of `addresses`. Returns their number, and the address up to which the search
/// is complete.
fn scan_once(
    file: &File,
    addresses: Range<usize>,
    regions: &mut [PageRegion; REGIONS],
) -> std::io::Result<(usize, usize)> {
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start: addresses.start as u64,
        end: addresses.end as u64,
        regions: regions.as_mut_ptr() as u64,
        regions_len: REGIONS as u64,
        // Select pages that do not belong to a file and that exist.
        category_inverted: PAGE_IS_FILE,
        category_mask: PAGE_IS_FILE,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_FILE,
        ..ScanArguments::default()
    };
    // SAFETY: the descriptor is open; the kernel reads and writes `size` bytes at `arguments`, which is that
    // structure, and writes at most `regions_len` regions at `regions`; both are exclusively borrowed for
    // the call. Flags are 0: no page is changed.
    let found = unsafe { libc::ioctl(file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
    match usize::try_from(found) {
        Ok(found) => Ok((found, arguments.walk_end as usize)),
        Err(_) => Err(std::io::Error::last_os_error()),
    }
}

/// Returns `true` if a page is private. Bit 63 says that it is in memory, bit 62 that it is swapped out, and bit 61 that
/// it belongs to a file or is shared.
fn is_private(entry: u64) -> bool {
    entry >> 62 != 0 && entry & (1 << 61) == 0
}

/// Number of entries per read.
const ENTRIES: usize = 512;

fn read_entries(
    file: &File,
    addresses: &Range<usize>,
    each: Each<'_>,
) -> std::io::Result<Result<()>> {
    let page = page_size();
    let mut bytes = [0u8; ENTRIES * 8];
    let mut private: Option<Range<usize>> = None;
    for first in addresses.clone().step_by(page * ENTRIES) {
        let pages = ((addresses.end - first) / page).min(ENTRIES);
        file.read_exact_at(&mut bytes[..pages * 8], (first / page * 8) as u64)?;
        for (i, entry) in bytes[..pages * 8].chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            let at = first + i * page;
            private = match (private, is_private(entry)) {
                (None, true) => Some(at..at + page),
                (Some(range), true) => Some(range.start..at + page),
                (None, false) => None,
                (Some(range), false) => {
                    if let Err(e) = each(range) {
                        return Ok(Err(e));
                    }
                    None
                }
            };
        }
    }
    Ok(private.map_or(Ok(()), each))
}
