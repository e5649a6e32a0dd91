//! Memory for values that are larger than their slots.
//!
//! ```text
//! | buffer 0 | buffer 1 | ... | large area: | value | free | value | ... address space without memory ... |
//! ```
//!
//! The large area lies behind the buffers, in the same sealed file. It is an address space that takes memory only as it
//! is needed: a value is given an extent of whole pages, which is reserved before anybody is told of it, so nobody meets
//! a SIGBUS. The slot then holds a [`Marker`] that says where the value lies. Memory that was reserved stays reserved, and
//! the next values use it again: a sealed file gives none of its pages back (`fallocate` refuses to punch holes into it).
//!
//! # The life of an extent
//!
//! ```text
//!              take                finish                 release
//!   FREE ----------------> OWNED ----------> SHARED ----------------------> FREE
//!     ^                      | forget: the slot is written anew, or fails
//!     +----------------------+
//! ```
//!
//! | state | writes it | reads it | leaves the state when |
//! |---|---|---|---|
//! | FREE | nobody | nobody | a slot is given it |
//! | OWNED | the slot's writer: the holder of its [`SlotMut`](super::SlotMut), or the worker process for which that one is held | the same | the buffer is finished; or the holder gives it up |
//! | SHARED | nobody | whoever has a [`Lease`](super::Lease) of the buffer: the coordinator, and consumers that took an item of it | the last lease is dropped |
//!
//! An extent belongs to its buffer: it is free when the buffer is, and not before, but for a slot that gives it up while
//! the buffer is filled. The marker is as old as the extent. It is written by who holds the [`SlotMut`](super::SlotMut),
//! and cleared when the slot gives the extent up, or when the buffer is **taken** to be filled again. It is not cleared
//! when the buffer becomes free: see "Retired" below.
//!
//! A slot that is refused an extent *waits*, until it is given one, gives up, or its [`SlotMut`](super::SlotMut) is dropped,
//! whatever the reason. A slot that waited for ever in this list would keep others from being preferred to it.
//!
//! | who dies | and then |
//! |---|---|
//! | a worker, before its value is whole | its slot's [`SlotMut`](super::SlotMut) is held until the process is gone. Then the slot gives the extent up, and is given another one when the sample is made again |
//! | the host, and all workers with it | nothing is given up one by one. The pool is retired |
//! | a consumer that holds the buffer | its leases are dropped once its process is gone. Others that hold the buffer keep it SHARED |
//! | a consumer whose connection the coordinator ends | it may not know, and still read what it has or takes. So its leases last until it has closed its side, or else the pool is retired first |
//! | the coordinator | nobody gives anything to anybody. Workers die with it; consumers read what they have |
//!
//! # Retired
//!
//! A pool is retired before the connections of its consumers are ended. They may not notice for a while, and take what lies
//! ready for them, though their leases are dropped. So from then on no extent is given to anybody and no buffer is filled:
//! [`take`](LargeArea::take) refuses, and whoever waits is to give up. Extents that slots had been given stay theirs, so
//! workers that are late write nothing that another reads. Freeing an extent writes nothing.
//!
//! # The limit
//!
//! Values take no more than the limit, but for one whose caller says that somebody would wait for ever otherwise. Memory
//! that was reserved for such a value stays, and is for such values again: if others filled it up, each further one would
//! reserve more. Callers that are refused wait with [`LargeArea::wait`] until a buffer was finished or released.
//!
//! # Locks
//!
//! One lock guards the list of extents. It is held for moments and never while the kernel is asked for memory, because
//! buffers are released under other locks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};

use crate::error::{Error, Result};
use crate::mapping::{HUGE, page_size};
use crate::memory;

/// Minibatches that may be in preparation whatever they take: workers that would be idle while one is finished go on.
const LEAST_AHEAD: u32 = 2;
/// A minibatch counts for one part in so many of what is typical.
const WEIGHT: f64 = 0.25;
/// The address space is at least so many times the limit, and one part in so many of the memory that could be had; but at
/// most one part in so many of the addresses that the process may have.
const LEAST_ROOM: u64 = 4;
const PART_OF_MEMORY: u64 = 2;
const PART_OF_ADDRESSES: u64 = 8;

/// What a slot holds whose value lies in the large area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marker {
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Marker {
    /// Bytes that it takes in a slot.
    pub(crate) const BYTES: usize = 24;
    /// No value begins like this: packed values begin with letters.
    const MAGIC: [u8; 8] = *b"\xff\x00LARGE\x01";

    pub(crate) fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.len.to_ne_bytes());
        bytes
    }

    /// Returns `None` for the beginning of a value that lies in its slot.
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

/// The list of what lies where in the large area.
pub(super) struct LargeArea {
    /// Where the area lies in the file.
    range: Range<usize>,
    limit: u64,
    state: Mutex<LargeState>,
    changed: Condvar,
}

struct LargeState {
    free: FreeList,
    /// Addresses below this are taken, or in the free list. From the start of the file.
    top: usize,
    reserved: u64,
    /// By buffer.
    buffers: Vec<BufferUse>,
    turns: u64,
    /// Slots that were refused an extent: the turn of the buffer, the buffer, the slot.
    waiting: BTreeSet<(u64, u32, u32)>,
    /// Bytes that a minibatch took lately. `None`: none is finished.
    typical: Option<f64>,
    /// Nobody is given anything any more.
    is_retired: bool,
}

#[derive(Default, Clone)]
struct BufferUse {
    /// By slot: whole pages, and how many bytes the value takes of them.
    extents: BTreeMap<u32, (Range<usize>, usize)>,
    /// While the buffer is filled: how many were begun before it.
    turn: Option<u64>,
    /// Its slots may hold markers, of this use or of one before.
    is_marked: bool,
}

impl BufferUse {
    fn bytes(&self) -> u64 {
        self.extents.values().map(|(e, _)| e.len() as u64).sum()
    }
}

/// How a new extent is had.
enum ExtentPlan {
    /// It lies in memory that is reserved.
    There(Range<usize>),
    /// The rest, from `top` on, is to be reserved: up to `end`, beyond which the extent does not reach.
    Grow {
        extent: Range<usize>,
        top: usize,
        end: usize,
    },
    /// Not within the limit, or retired.
    Refused,
    /// Not within the address space.
    TooLong,
}

impl LargeState {
    /// Returns true if the slot waited.
    fn waits_no_more(&mut self, buffer: u32, slot: u32) -> bool {
        let turn = self.buffers[buffer as usize].turn;
        turn.is_some_and(|turn| self.waiting.remove(&(turn, buffer, slot)))
    }

    /// Returns true if the slot had an extent, or waited for one.
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
    /// An area behind `start` bytes of a file.
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
                turns: 0,
                waiting: BTreeSet::new(),
                typical: None,
                is_retired: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Where the file ends.
    pub(super) fn end(&self) -> usize {
        self.range.end
    }

    /// Bytes of memory that are reserved.
    pub(super) fn reserved(&self) -> u64 {
        self.state().reserved
    }

    fn state(&self) -> MutexGuard<'_, LargeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a buffer was finished or released, for `limit` at most.
    pub(super) fn wait(&self, limit: Duration) {
        let waited = self.changed.wait_timeout(self.state(), limit);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Gives nobody anything from now on.
    pub(super) fn retire(&self) {
        self.state().is_retired = true;
        // Whoever waits is to give up.
        self.changed.notify_all();
    }

    /// Notes that a buffer is being filled. Returns whether its slots may hold markers of an earlier use, which the caller
    /// clears.
    pub(super) fn begin(&self, buffer: u32) -> bool {
        let mut state = self.state();
        let turn = state.turns;
        state.turns += 1;
        let buffer = &mut state.buffers[buffer as usize];
        buffer.turn = Some(turn);
        std::mem::take(&mut buffer.is_marked)
    }

    /// Notes that a buffer is whole.
    pub(super) fn finish(&self, buffer: u32) {
        let mut state = self.state();
        let bytes = state.buffers[buffer as usize].bytes() as f64;
        state.buffers[buffer as usize].turn = None;
        let typical = state.typical.get_or_insert(bytes);
        *typical += (bytes - *typical) * WEIGHT;
        self.changed.notify_all();
    }

    /// Frees the extents of a buffer. Nobody waits for one: the buffer's slots are gone.
    pub(super) fn release(&self, buffer: u32) {
        let mut state = self.state();
        let its = &mut state.buffers[buffer as usize];
        its.turn = None;
        let extents = std::mem::take(&mut its.extents);
        extents
            .into_values()
            .for_each(|(pages, _)| state.free.put(pages));
        self.changed.notify_all();
    }

    /// Returns true for the buffer that was begun first of those that are being filled.
    pub(super) fn is_first(&self, buffer: u32) -> bool {
        let state = self.state();
        let turns = state.buffers.iter().filter_map(|b| b.turn);
        turns.min() == state.buffers[buffer as usize].turn
    }

    /// Returns true if no buffer that was begun before this one has a slot that was refused an extent.
    pub(super) fn waits_longest(&self, buffer: u32) -> bool {
        let state = self.state();
        let longest = state.waiting.first();
        longest.is_none_or(|&(_, waiting, _)| waiting == buffer)
    }

    /// Returns where the large value of a slot lies.
    pub(super) fn value(&self, buffer: u32, slot: u32) -> Option<Range<usize>> {
        let state = self.state();
        let (pages, len) = state.buffers[buffer as usize].extents.get(&slot)?;
        Some(pages.start..pages.start + len)
    }

    /// Frees the extent of a slot, if it has one. It waits for none any more.
    pub(super) fn forget(&self, buffer: u32, slot: u32) {
        if self.state().forget(buffer, slot) {
            self.changed.notify_all();
        }
    }

    /// Notes that a slot waits for no extent any more.
    pub(super) fn stop_waiting(&self, buffer: u32, slot: u32) {
        if self.state().waits_no_more(buffer, slot) {
            self.changed.notify_all();
        }
    }

    /// Returns of `free` buffers how many minibatches may be begun, if they take what is typical.
    pub(super) fn to_begin(&self, free: u32) -> u32 {
        let state = self.state();
        let Some(typical) = state.typical.filter(|&bytes| bytes >= 1.0) else {
            return free;
        };
        let taken = |b: &BufferUse| match b.turn {
            Some(_) => typical.max(b.bytes() as f64),
            None => b.bytes() as f64,
        };
        let left = self.limit as f64 - state.buffers.iter().map(taken).sum::<f64>();
        let unfinished = state.buffers.iter().filter(|b| b.turn.is_some()).count() as u32;
        let least = LEAST_AHEAD.saturating_sub(unfinished);
        // A negative number is 0.
        free.min(((left / typical) as u32).max(least))
    }

    /// Gives a slot an extent for `bytes` bytes, in place of the one that it had; returns where it begins. `None`: not
    /// within the limit, or the area is retired; then the slot waits, until [`forget`](Self::forget) or
    /// [`stop_waiting`](Self::stop_waiting).
    ///
    /// `reserve` reserves the memory of a part of the file.
    ///
    /// # Errors
    /// When memory, or the address space, is short; when no address space of this area would do.
    pub(super) fn take(
        &self,
        (buffer, slot): (u32, u32),
        bytes: u64,
        beyond_limit: bool,
        reserve: impl FnOnce(Range<usize>) -> Result<()>,
    ) -> Result<Option<usize>> {
        // Without a word to those that wait: one that asks again and is refused again would wake all others, and they it.
        self.state().forget(buffer, slot);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let whole = len.max(1).checked_next_multiple_of(page_size());
        let plan = whole.map_or(ExtentPlan::TooLong, |whole| self.plan(whole, beyond_limit));
        let extent = match plan {
            ExtentPlan::Refused => {
                let mut state = self.state();
                if let Some(turn) = state.buffers[buffer as usize].turn {
                    state.waiting.insert((turn, buffer, slot));
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

    /// Finds a place, and takes it. What is to be reserved is counted as if it were.
    fn plan(&self, len: usize, beyond_limit: bool) -> ExtentPlan {
        let mut state = self.state();
        // Asked under the lock under which extents become free: none that became free later is given away.
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
        let start = state.free.last_before(top).unwrap_or(top);
        let Some(extent_end) = start.checked_add(len).filter(|&e| e <= self.range.end) else {
            return ExtentPlan::TooLong;
        };
        // In whole huge pages, where that is within the limit.
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

    /// No memory was had for `top..end`.
    fn undo(&self, extent: &Range<usize>, top: usize, end: usize) {
        let mut state = self.state();
        state.reserved -= (end - top) as u64;
        // If another value lies behind it by now, the addresses between are lost, which are many.
        if state.top == end {
            state.top = top;
        }
        state.free.put(extent.start..top);
        self.changed.notify_all();
    }

    /// Others may let go of what is lacking, but not of more than there is.
    fn too_long(&self, bytes: u64) -> Error {
        let room = self.range.len() as u64;
        let limit = "the address space that was set aside when the staging area was made";
        let remedy = "allow a larger staging area, or raise the limits of the process (ulimit -v, ulimit -f)";
        if bytes > room {
            let why = format!("{bytes} bytes are more than {limit}, {room} bytes: {remedy}");
            return Error::invalid("cannot reserve memory for a large sample", why);
        }
        memory::shortage("a large sample", bytes, room, limit.into(), remedy.into())
    }
}

/// Bytes of address space for an area of this limit, which one value alone may exceed.
fn room(limit: u64) -> u64 {
    let least = limit.saturating_mul(LEAST_ROOM);
    let wanted = (memory::available().unwrap_or(0) / PART_OF_MEMORY).max(least);
    let allowed = |resource| getrlimit(resource).map_or(u64::MAX, |(soft, _)| soft);
    let addresses = allowed(Resource::RLIMIT_AS);
    let of_addresses = match addresses {
        u64::MAX => u64::MAX,
        some => (some / PART_OF_ADDRESSES).max(limit),
    };
    // A file that is made longer than the process may make one ends the process.
    let of_file = allowed(Resource::RLIMIT_FSIZE) / 2;
    wanted.min(of_addresses).min(of_file)
}

/// Parts of reserved memory that nobody uses. No two of them touch.
#[derive(Default)]
struct FreeList {
    by_start: BTreeMap<usize, usize>,
    /// Length, start.
    by_len: BTreeSet<(usize, usize)>,
    /// Of all parts.
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

    /// Takes `len` bytes of the shortest part that is long enough.
    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let &(whole, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start..start + whole);
        self.put(start + len..start + whole);
        Some(start..start + len)
    }

    /// Returns where the part begins that ends at `end`.
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
        let refuse = |_| Err(memory::shortage("a test", 2, 1, "x".into(), "y".into()));
        let failed = area.take((1, 0), LIMIT - PAGE, false, refuse);
        assert!(failed.is_err_and(|e| e.is_shortage()));
        assert_eq!(area.reserved(), HUGE as u64);
        assert!(take(&area, 1, 0, LIMIT - PAGE, false).is_some());
        let failed = area.take((2, 0), u64::MAX, true, |_| Ok(()));
        assert!(
            failed.is_err_and(|e| !e.is_shortage()),
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
