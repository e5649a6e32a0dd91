//! Memory for values that are larger than their slots.
//!
//! ```text
//! | buffer 0 | buffer 1 | ... | large area: | value | free | value | ... address space without memory ... |
//! ```
//!
//! The large area lies behind the buffers, in the same sealed file. It is an address space that takes memory only as
//! needed. A value is given an extent of whole pages. The extent is reserved before any process learns of it, so nobody
//! meets a SIGBUS. The slot then holds a [`Marker`] with the location of the value. Reserved memory stays reserved, and
//! later values use it again, because a sealed file gives none of its pages back (`fallocate` refuses to punch holes
//! into it).
//!
//! # The life of an extent
//!
//! ```text
//!              take                finish                 release
//!   FREE ----------------> OWNED ----------> SHARED ----------------------> FREE
//!     ^                      | forget: the slot is written again, or fails
//!     +----------------------+
//! ```
//!
//! | state | who writes it | who reads it | leaves the state when |
//! |---|---|---|---|
//! | FREE | nobody | nobody | it is given to a slot |
//! | OWNED | the slot's writer: the holder of its [`SlotMut`](super::SlotMut), or the worker process on whose behalf that one is held | the same | the buffer is finished, or the holder gives the extent up |
//! | SHARED | nobody | every holder of a [`Lease`](super::Lease) of the buffer: the coordinator, and consumers that took an item of it | the last lease is dropped |
//!
//! An extent belongs to its buffer and becomes free when the buffer does. There is one exception: a slot may give its
//! extent up while the buffer is filled. The marker is written together with the extent, by the holder of the
//! [`SlotMut`](super::SlotMut). It is cleared when the slot gives the extent up, or when the buffer is **taken** to be
//! filled again. It is not cleared when the buffer becomes free; see "Retired" below.
//!
//! A slot that is refused an extent *waits* until it is given one, gives up, or its [`SlotMut`](super::SlotMut) is
//! dropped for any reason. If a slot stayed in the list of waiting slots for ever, no slot of a later minibatch could
//! ever count as the one that has waited longest.
//!
//! | process that dies | consequence |
//! |---|---|
//! | a worker, before its value is whole | its slot's [`SlotMut`](super::SlotMut) is held until the process is gone. Then the slot gives the extent up, and gets another one when the sample is prepared again |
//! | the fork server, and all workers with it | no slot gives its extent up individually. The pool is retired |
//! | a consumer that holds the buffer | its leases are dropped once its process is gone. Other consumers that hold the buffer keep it SHARED |
//! | a consumer whose connection the coordinator ends | it may not know yet, and still read the items that it has or takes. So its leases last until it has closed its side, or else the pool is retired first |
//! | the coordinator | no memory is given out any more. Workers die with it; consumers read the items that they have |
//!
//! # Retired
//!
//! A pool is retired before the connections of its consumers are ended. They may not notice for a while, and may still
//! take the items that lie ready for them, although their leases are dropped. So from then on no extent is given out
//! and no buffer is filled. [`take`](LargeArea::take) refuses, and waiting slots must give up. Slots keep the extents
//! that they have, so a late worker writes no memory that another process reads. Freeing an extent writes nothing.
//!
//! # The limit
//!
//! Values take no more than the limit. The exception is a value whose caller says that somebody would otherwise wait
//! for ever. Memory that was reserved beyond the limit stays reserved for later values of this kind. If ordinary values
//! could fill it up, each further exception would reserve more. Callers that are refused wait with [`LargeArea::wait`]
//! until a buffer is finished or released.
//!
//! # Locks
//!
//! One lock guards the list of extents. It is held for moments, and never while the kernel is asked for memory, because
//! buffers are released under other locks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};

use crate::error::{Error, Result, invalid};
use crate::lock::{lock, unpoisoned};
use crate::mapping::{HUGE, page_size};
use crate::memory;

/// Minibatches that may be in preparation whatever memory they take. With two, workers go on while one minibatch is
/// being finished.
const LEAST_AHEAD: u32 = 2;
/// Weight of the newest minibatch in the mean of the bytes that a minibatch takes.
const WEIGHT: f64 = 0.25;
/// Least address space of the area, as a multiple of its limit.
const LEAST_ROOM: u64 = 4;
/// Divisor for the share of the available memory that the address space of the area covers.
const PART_OF_MEMORY: u64 = 2;
/// Divisor for the share of the process's address space (`RLIMIT_AS`) that the area may take.
const PART_OF_ADDRESSES: u64 = 8;

/// The location of a large value, as its slot holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marker {
    /// Offset from the start of the file.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Marker {
    /// Bytes of a marker in a slot.
    pub(crate) const BYTES: usize = 24;
    /// First bytes of a marker. No value begins like this, because packed values begin with letters.
    const MAGIC: [u8; 8] = *b"\xff\x00LARGE\x01";

    pub(crate) fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.len.to_ne_bytes());
        bytes
    }

    /// Decodes a marker. Returns `None` if the bytes are the beginning of a value that lies in its slot.
    pub(crate) fn read(bytes: &[u8; Self::BYTES]) -> Option<Marker> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (offset, len) = rest.split_first_chunk::<8>()?;
        let len = len.first_chunk::<8>()?;
        (*magic == Self::MAGIC).then(|| Marker {
            offset: u64::from_ne_bytes(*offset),
            len: u64::from_ne_bytes(*len),
        })
    }
}

/// The allocator of the large area.
pub(super) struct LargeArea {
    /// Range of the area in the file.
    range: Range<usize>,
    limit: u64,
    state: Mutex<LargeState>,
    changed: Condvar,
}

struct LargeState {
    free: FreeList,
    /// Offset in the file below which all addresses are taken or in the free list.
    top: usize,
    reserved: u64,
    /// Use of the large area by each buffer.
    buffers: Vec<BufferUse>,
    fills: u64,
    /// Slots that wait for an extent: the number of the fill, the buffer, the slot.
    waiting: BTreeSet<(u64, u32, u32)>,
    /// Mean of the bytes that recent minibatches took, or `None` if none is finished.
    typical: Option<f64>,
    /// True if no extent may be given out any more.
    is_retired: bool,
}

#[derive(Default, Clone)]
struct BufferUse {
    /// Extents by slot: whole pages, and the bytes that the value takes of them.
    extents: BTreeMap<u32, (Range<usize>, usize)>,
    /// While the buffer is filled: the number of buffers that were begun before it.
    fill: Option<u64>,
    /// True if its slots may hold markers, of this use or of an earlier one.
    is_marked: bool,
}

impl BufferUse {
    fn bytes(&self) -> u64 {
        self.extents.values().map(|(e, _)| e.len() as u64).sum()
    }
}

/// The source of a new extent.
enum ExtentPlan {
    /// The extent lies in memory that is already reserved.
    There(Range<usize>),
    /// The part from `top` on has to be reserved, up to `end`. The extent does not reach beyond `end`.
    Grow {
        extent: Range<usize>,
        top: usize,
        end: usize,
    },
    /// The extent exceeds the limit, or the area is retired.
    Refused,
    /// The extent exceeds the address space.
    TooLong,
}

impl LargeState {
    /// Ends the wait of a slot. Returns true if the slot waited.
    fn waits_no_more(&mut self, buffer: u32, slot: u32) -> bool {
        let fill = self.buffers[buffer as usize].fill;
        fill.is_some_and(|fill| self.waiting.remove(&(fill, buffer, slot)))
    }

    /// Frees the extent of a slot and ends its wait. Returns true if it had an extent or waited for one.
    fn forget(&mut self, buffer: u32, slot: u32) -> bool {
        let waited = self.waits_no_more(buffer, slot);
        let extent = self.buffers[buffer as usize].extents.remove(&slot);
        let had_one = extent.is_some();
        self.free
            .put(extent.map_or_else(Range::default, |(pages, _)| pages));
        waited || had_one
    }
}

impl LargeArea {
    /// Creates an area behind the first `start` bytes of a file.
    pub(super) fn new(start: usize, limit: u64, buffers: u32) -> Self {
        let room = usize::try_from(room(limit)).unwrap_or(0) / HUGE * HUGE;
        LargeArea {
            range: start..start.saturating_add(room),
            limit,
            state: Mutex::new(LargeState {
                free: FreeList::default(),
                top: start,
                reserved: 0,
                buffers: vec![BufferUse::default(); buffers as usize],
                fills: 0,
                waiting: BTreeSet::new(),
                typical: None,
                is_retired: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Returns the end of the file.
    pub(super) fn end(&self) -> usize {
        self.range.end
    }

    /// Returns the bytes of memory that are reserved.
    pub(super) fn reserved(&self) -> u64 {
        self.state().reserved
    }

    fn state(&self) -> MutexGuard<'_, LargeState> {
        lock(&self.state)
    }

    /// Waits until a buffer is finished or released, but at most for `limit`.
    pub(super) fn wait(&self, limit: Duration) {
        let waited = self.changed.wait_timeout(self.state(), limit);
        drop(unpoisoned(waited));
    }

    /// Gives out no more extents from now on.
    pub(super) fn retire(&self) {
        self.state().is_retired = true;
        // Wake the waiting threads, so that they notice and give up.
        self.changed.notify_all();
    }

    /// Notes that a buffer is being filled. Returns true if its slots may hold markers of an earlier use. The caller
    /// must clear them.
    pub(super) fn begin(&self, buffer: u32) -> bool {
        let mut state = self.state();
        let fill = state.fills;
        state.fills += 1;
        let buffer = &mut state.buffers[buffer as usize];
        buffer.fill = Some(fill);
        std::mem::take(&mut buffer.is_marked)
    }

    /// Notes that a buffer is finished, and takes its bytes into the mean.
    pub(super) fn finish(&self, buffer: u32) {
        let mut state = self.state();
        let bytes = state.buffers[buffer as usize].bytes() as f64;
        state.buffers[buffer as usize].fill = None;
        let typical = state.typical.get_or_insert(bytes);
        *typical += (bytes - *typical) * WEIGHT;
        // Another buffer may be the first now, and its slots may take memory beyond the limit.
        self.changed.notify_all();
    }

    /// Frees the extents of a buffer. No slot of it waits for one, because the buffer's slots are gone.
    pub(super) fn release(&self, buffer: u32) {
        let mut state = self.state();
        let its = &mut state.buffers[buffer as usize];
        its.fill = None;
        let extents = std::mem::take(&mut its.extents);
        extents
            .into_values()
            .for_each(|(pages, _)| state.free.put(pages));
        self.changed.notify_all();
    }

    /// Returns true if no other buffer that is being filled was begun before this one.
    pub(super) fn is_first(&self, buffer: u32) -> bool {
        let state = self.state();
        let numbers = state.buffers.iter().filter_map(|b| b.fill);
        numbers.min() == state.buffers[buffer as usize].fill
    }

    /// Returns true if no buffer that was begun before this one has a slot that waits for an extent.
    pub(super) fn waits_longest(&self, buffer: u32) -> bool {
        let state = self.state();
        let fill = state.buffers[buffer as usize].fill;
        let longest = state.waiting.first();
        longest.is_none_or(|&(first, ..)| fill.is_some_and(|fill| fill <= first))
    }

    /// Returns the range of a slot's large value, or `None` if it has none.
    pub(super) fn value(&self, buffer: u32, slot: u32) -> Option<Range<usize>> {
        let state = self.state();
        let (pages, len) = state.buffers[buffer as usize].extents.get(&slot)?;
        Some(pages.start..pages.start + len)
    }

    /// Frees the extent of a slot, if it has one, and ends its wait.
    pub(super) fn forget(&self, buffer: u32, slot: u32) {
        if self.state().forget(buffer, slot) {
            self.changed.notify_all();
        }
    }

    /// Notes that a slot no longer waits for an extent.
    pub(super) fn stop_waiting(&self, buffer: u32, slot: u32) {
        if self.state().waits_no_more(buffer, slot) {
            self.changed.notify_all();
        }
    }

    /// Returns how many minibatches may be begun with `free` free buffers, if each takes the mean bytes of recent ones.
    pub(super) fn to_begin(&self, free: u32) -> u32 {
        let state = self.state();
        let Some(typical) = state.typical.filter(|&bytes| bytes >= 1.0) else {
            return free;
        };
        let taken = |b: &BufferUse| match b.fill {
            Some(_) => typical.max(b.bytes() as f64),
            None => b.bytes() as f64,
        };
        let left = self.limit as f64 - state.buffers.iter().map(taken).sum::<f64>();
        let unfinished = state.buffers.iter().filter(|b| b.fill.is_some()).count() as u32;
        let least = LEAST_AHEAD.saturating_sub(unfinished);
        // A negative number becomes 0 in this conversion.
        free.min(((left / typical) as u32).max(least))
    }

    /// Gives a slot an extent for `bytes` bytes, in place of the one that it had. Returns the offset of the extent.
    ///
    /// Returns `None` if the extent exceeds the limit, or if the area is retired. Then the slot waits until
    /// [`forget`](Self::forget) or [`stop_waiting`](Self::stop_waiting).
    ///
    /// `reserve` reserves the memory of a part of the file.
    ///
    /// # Errors
    /// If memory or address space is short; if the value would not even fit into the empty area.
    pub(super) fn take(
        &self,
        (buffer, slot): (u32, u32),
        bytes: u64,
        beyond_limit: bool,
        reserve: impl FnOnce(Range<usize>) -> Result<()>,
    ) -> Result<Option<usize>> {
        // This does not notify the waiting threads. Otherwise a thread that asks again and is refused again would wake
        // all others, and they would wake it in turn.
        self.state().forget(buffer, slot);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let whole = len.max(1).checked_next_multiple_of(page_size());
        let plan = whole.map_or(ExtentPlan::TooLong, |whole| self.plan(whole, beyond_limit));
        let extent = match plan {
            ExtentPlan::Refused => {
                let mut state = self.state();
                if let Some(fill) = state.buffers[buffer as usize].fill {
                    state.waiting.insert((fill, buffer, slot));
                }
                return Ok(None);
            }
            ExtentPlan::TooLong => return Err(self.too_long(bytes)),
            ExtentPlan::There(extent) => extent,
            ExtentPlan::Grow { extent, top, end } => {
                if let Err(e) = reserve(top..end) {
                    self.undo(&extent, top, end);
                    return Err(e);
                }
                self.state().free.put(extent.end..end);
                extent
            }
        };
        let mut state = self.state();
        let start = extent.start;
        let its = &mut state.buffers[buffer as usize];
        its.extents.insert(slot, (extent, len));
        its.is_marked = true;
        Ok(Some(start))
    }

    /// Chooses an extent and takes it. Memory that has yet to be reserved is already counted as reserved.
    fn plan(&self, len: usize, beyond_limit: bool) -> ExtentPlan {
        let mut state = self.state();
        // This is checked under the lock that also guards freeing. So no extent that became free after the retirement
        // is given out.
        if state.is_retired {
            return ExtentPlan::Refused;
        }
        let used = state.reserved - state.free.bytes;
        if !beyond_limit && used + len as u64 > self.limit {
            return ExtentPlan::Refused;
        }
        if let Some(extent) = state.free.take(len) {
            return ExtentPlan::There(extent);
        }
        let top = state.top;
        // A free part that ends at the top becomes the beginning of the extent, so that less memory has to be reserved.
        let start = state.free.last_before(top).unwrap_or(top);
        let Some(extent_end) = start.checked_add(len).filter(|&e| e <= self.range.end) else {
            return ExtentPlan::TooLong;
        };
        // Round up to whole huge pages, if the limit allows.
        let left = self.limit.saturating_sub(state.reserved);
        let start_of_area = self.range.start;
        let rounded = (extent_end - start_of_area).next_multiple_of(HUGE) + start_of_area;
        let end = match (rounded - top) as u64 <= left {
            true => rounded,
            false if (extent_end - top) as u64 <= left || beyond_limit => extent_end,
            false => return ExtentPlan::Refused,
        };
        if start < top {
            state.free.remove(start..top);
        }
        state.top = end;
        state.reserved += (end - top) as u64;
        ExtentPlan::Grow {
            extent: start..extent_end,
            top,
            end,
        }
    }

    /// Undoes a plan after the memory for `top..end` could not be reserved.
    fn undo(&self, extent: &Range<usize>, top: usize, end: usize) {
        let mut state = self.state();
        state.reserved -= (end - top) as u64;
        // If another value lies behind it by now, the addresses between are lost. There are plenty.
        if state.top == end {
            state.top = top;
        }
        state.free.put(extent.start..top);
        self.changed.notify_all();
    }

    /// Returns the error for a value that does not fit. It is a shortage if the value would fit into the empty area,
    /// because other values may be freed.
    fn too_long(&self, bytes: u64) -> Error {
        let room = self.range.len() as u64;
        let limit = "the address space that was set aside when the staging area was made";
        let remedy = "allow a larger staging area, or raise the limits of the process (ulimit -v, ulimit -f)";
        if bytes > room {
            let why = format!("{bytes} bytes are more than {limit}, {room} bytes");
            return invalid("cannot reserve memory for a large sample", why).with_remedy(remedy);
        }
        memory::shortage("a large sample", bytes, room, limit).with_remedy(remedy)
    }
}

/// Returns the bytes of address space for an area with this limit. A single value may exceed the limit.
fn room(limit: u64) -> u64 {
    let least = limit.saturating_mul(LEAST_ROOM);
    let wanted = (memory::available().unwrap_or(0) / PART_OF_MEMORY).max(least);
    let allowed = |resource| getrlimit(resource).map_or(u64::MAX, |(soft, _)| soft);
    let addresses = allowed(Resource::RLIMIT_AS);
    let of_addresses = match addresses {
        u64::MAX => u64::MAX,
        some => (some / PART_OF_ADDRESSES).max(limit),
    };
    // Growing a file past the process's limit for files ends the process, so stay well below it.
    let of_file = allowed(Resource::RLIMIT_FSIZE) / 2;
    wanted.min(of_addresses).min(of_file)
}

/// Parts of reserved memory that nobody uses. No two of them touch.
#[derive(Default)]
struct FreeList {
    by_start: BTreeMap<usize, usize>,
    /// Length and start of each part, for finding the shortest part that is long enough.
    by_len: BTreeSet<(usize, usize)>,
    /// Total bytes of all parts.
    bytes: u64,
}

impl FreeList {
    fn put(&mut self, mut part: Range<usize>) {
        if part.is_empty() {
            return;
        }
        if let Some(start) = self.last_before(part.start) {
            self.remove(start..part.start);
            part.start = start;
        }
        if let Some(&end) = self.by_start.get(&part.end) {
            self.remove(part.end..end);
            part.end = end;
        }
        self.bytes += part.len() as u64;
        self.by_start.insert(part.start, part.end);
        self.by_len.insert((part.len(), part.start));
    }

    fn remove(&mut self, part: Range<usize>) {
        self.bytes -= part.len() as u64;
        self.by_start.remove(&part.start);
        self.by_len.remove(&(part.len(), part.start));
    }

    /// Takes `len` bytes of the shortest part that is long enough. Best fit leaves the long parts for large values.
    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let &(whole, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start..start + whole);
        self.put(start + len..start + whole);
        Some(start..start + len)
    }

    /// Returns the start of the part that ends at `end`.
    fn last_before(&self, end: usize) -> Option<usize> {
        let (&start, &its_end) = self.by_start.range(..end).next_back()?;
        (its_end == end).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;
    const LIMIT: u64 = 8 << 20;

    fn area() -> LargeArea {
        LargeArea::new(1 << 20, LIMIT, 4)
    }

    fn take(area: &LargeArea, buffer: u32, slot: u32, bytes: u64, beyond: bool) -> Option<u64> {
        let start = area
            .take((buffer, slot), bytes, beyond, |_| Ok(()))
            .unwrap();
        start.map(|_| area.state().buffers[buffer as usize].extents[&slot].0.len() as u64)
    }

    #[test]
    fn a_value_takes_whole_pages_and_what_it_took_is_used_again() {
        let area = area();
        assert_eq!(take(&area, 0, 0, 3 * PAGE + 1, false), Some(4 * PAGE));
        assert_eq!(take(&area, 0, 1, PAGE, false), Some(PAGE));
        assert_eq!(area.reserved(), HUGE as u64);
        let before = area.value(0, 0).unwrap();
        assert_eq!(before.len() as u64, 3 * PAGE + 1);
        area.release(0);
        assert_eq!(take(&area, 1, 0, 5 * PAGE, false), Some(5 * PAGE));
        assert_eq!(area.value(1, 0).unwrap().start, before.start);
        assert_eq!(area.reserved(), HUGE as u64);
    }

    #[test]
    fn beyond_the_limit_only_who_must_is_given_anything() {
        let area = area();
        assert!(take(&area, 0, 0, LIMIT - PAGE, false).is_some());
        assert_eq!(take(&area, 1, 0, 2 * PAGE, false), None);
        assert_eq!(area.reserved(), LIMIT);
        assert!(take(&area, 1, 0, 2 * PAGE, true).is_some());
        // The page that was left is a part of it.
        assert_eq!(area.reserved(), LIMIT + PAGE);
        area.release(0);
        assert_eq!(
            take(&area, 2, 0, LIMIT - PAGE, false),
            None,
            "though it is there"
        );
        assert!(take(&area, 2, 0, LIMIT - 2 * PAGE, false).is_some());
        assert!(take(&area, 3, 0, PAGE, true).is_some());
        assert_eq!(area.reserved(), LIMIT + PAGE, "it was there");
    }

    #[test]
    fn a_slot_that_is_written_anew_has_one_extent() {
        let area = area();
        for bytes in [LIMIT, PAGE, LIMIT] {
            assert_eq!(take(&area, 0, 3, bytes, false), Some(bytes));
        }
        assert_eq!(area.reserved(), LIMIT);
    }

    #[test]
    fn memory_that_is_not_to_be_had_is_an_error_that_changes_nothing() {
        let area = area();
        take(&area, 0, 0, PAGE, false);
        let refuse = |_| Err(memory::shortage("a test", 2, 1, "x"));
        let failed = area.take((1, 0), LIMIT - PAGE, false, refuse);
        assert!(failed.is_err_and(|e| e.kind().is_shortage()));
        assert_eq!(area.reserved(), HUGE as u64);
        assert!(take(&area, 1, 0, LIMIT - PAGE, false).is_some());
        let failed = area.take((2, 0), u64::MAX, true, |_| Ok(()));
        assert!(
            failed.is_err_and(|e| !e.kind().is_shortage()),
            "it will never be had"
        );
    }

    #[test]
    fn so_many_minibatches_are_begun_as_there_is_memory_for() {
        let area = area();
        assert_eq!(area.to_begin(4), 4, "nothing is known");
        area.begin(0);
        take(&area, 0, 0, LIMIT / 2, false);
        area.finish(0);
        assert_eq!(area.to_begin(4), 2, "none is in preparation");
        area.begin(1);
        area.begin(2);
        assert_eq!(area.to_begin(4), 0);
        assert!(area.is_first(1) && !area.is_first(2) && !area.is_first(0));
        area.release(1);
        assert!(area.is_first(2));
        area.release(0);
        assert_eq!(area.to_begin(4), 1);
    }

    #[test]
    fn of_those_that_wait_the_minibatch_that_was_begun_first_has_waited_longest() {
        let area = area();
        (0..4).for_each(|buffer| assert!(!area.begin(buffer)));
        take(&area, 0, 0, LIMIT, false);
        assert!(area.waits_longest(3), "nobody waits");
        for buffer in [3, 2] {
            assert_eq!(take(&area, buffer, 1, PAGE, false), None);
        }
        assert!(area.waits_longest(2) && !area.waits_longest(3));
        assert!(area.waits_longest(1), "only later ones wait");
        assert!(take(&area, 2, 1, PAGE, true).is_some());
        assert!(area.waits_longest(3));
        for (slot, give_up) in [
            (0, LargeArea::forget as fn(&LargeArea, u32, u32)),
            (1, LargeArea::stop_waiting),
        ] {
            assert_eq!(take(&area, 2, slot, PAGE, false), None);
            assert!(!area.waits_longest(3));
            give_up(&area, 2, slot);
            assert!(area.waits_longest(3));
        }
    }

    #[test]
    fn an_area_that_is_retired_gives_nobody_what_becomes_free() {
        let area = area();
        (0..2).for_each(|buffer| assert!(!area.begin(buffer)));
        take(&area, 0, 0, LIMIT, false);
        area.retire();
        area.release(0);
        for beyond_limit in [false, true] {
            assert_eq!(take(&area, 1, 0, PAGE, beyond_limit), None);
        }
    }

    #[test]
    fn a_buffer_that_had_a_large_value_says_so_once_when_it_is_filled_again() {
        let area = area();
        assert!(!area.begin(0));
        take(&area, 0, 0, PAGE, false);
        area.forget(0, 0);
        area.release(0);
        assert!(area.begin(0));
        area.release(0);
        assert!(!area.begin(0));
    }

    #[test]
    fn a_marker_is_read_as_it_was_written_and_a_value_is_none() {
        let marker = Marker {
            offset: 1 << 40,
            len: u64::MAX,
        };
        assert_eq!(Marker::read(&marker.bytes()), Some(marker));
        assert_eq!(
            Marker::read(b"cpk1....................\0".first_chunk().unwrap()),
            None
        );
        assert_eq!(Marker::read(&[0; Marker::BYTES]), None);
    }

    proptest! {
        #[test]
        fn extents_never_overlap_and_nothing_is_lost(
            steps in proptest::collection::vec((0u32..4, 0u32..6, 1u64..600, any::<bool>()), 1..120)
        ) {
            let area = area();
            for (buffer, slot, pages, releases) in steps {
                if releases {
                    area.release(buffer);
                } else {
                    take(&area, buffer, slot, pages * PAGE, slot == 5);
                }
                let state = area.state();
                let mut parts: Vec<_> = state.buffers.iter().flat_map(|b| b.extents.values().map(|e| e.0.clone())).collect();
                parts.extend(state.free.by_start.iter().map(|(&start, &end)| start..end));
                parts.sort_by_key(|part| part.start);
                let touch = parts.windows(2).all(|two| two[0].end == two[1].start);
                prop_assert!(touch, "{parts:?}");
                let bytes: usize = parts.iter().map(|part| part.len()).sum();
                prop_assert_eq!(bytes as u64, state.reserved);
                prop_assert_eq!(state.top - (1 << 20), bytes);
                prop_assert_eq!(state.free.by_len.len(), state.free.by_start.len());
                let free: usize = state.free.by_len.iter().map(|(len, _)| len).sum();
                prop_assert_eq!(free as u64, state.free.bytes);
            }
        }
    }
}
