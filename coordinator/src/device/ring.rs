//! A ring: buffers on a GPU, and the minibatches that lie there.
//!
//! A buffer of the ring is leased like a staging buffer. The ring holds one share for each minibatch that some consumer
//! has still to be given, and a consumer one for each item that it was handed and has not released. The buffer is free when
//! the last share is gone, so nobody has to count. The shares are those of a small staging area on the host, which has a
//! buffer for each of the ring, and in it the ids of the samples.
//!
//! A minibatch that waits to be handed over keeps its staging buffer, so the ring may forget it at any time: the consumers
//! then copy it themselves. [`Ring::copy_needed`] does so for one that some consumer needs now. A consumer that is slow or
//! stopped thus costs itself, and never the ring.
//!
//! The state is changed under the lock of the stream. Nothing here waits, and time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coprep_protocol::gpu_batch::GpuBatchLayout;
use coprep_shared_memory::handover::{Bell, Item, ItemKind, Sender};
use coprep_shared_memory::staging::{Lease, StagingPool};

/// Longest time for a copy. A gigabyte takes a fiftieth of it.
const LONGEST_COPY: Duration = Duration::from_secs(5);

/// The place of a minibatch in relation to a ring.
pub(crate) enum RingPlace {
    /// It is not in the ring, although it was prepared when the ring was filled last, because no buffer was free.
    Absent,
    /// It was not yet prepared when the ring was filled last, so it may come into the ring with the next round.
    NotSeen,
    /// It is being copied there.
    Copying,
    /// It lies in this buffer.
    Ready(Lease),
}

/// A minibatch that is prepared and wanted in a ring.
pub(crate) struct RingRequest<'a> {
    pub(crate) minibatch: u64,
    pub(crate) staging: &'a Lease,
    /// Number of slots, from the first one on.
    pub(crate) slots: u32,
}

/// Copies of minibatches to a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct UploadCounts {
    pub(crate) uploads: u64,
    pub(crate) bytes: u64,
    /// Time from the beginning of each copy to its end.
    pub(crate) time: Duration,
}

impl UploadCounts {
    pub(crate) fn add(&mut self, other: UploadCounts) {
        self.uploads += other.uploads;
        self.bytes += other.bytes;
        self.time += other.time;
    }
}

/// The parts of a ring that is open.
pub(crate) struct RingParts {
    /// Number by which items name the ring.
    pub(crate) pool: u32,
    /// The ids of the samples, with a buffer for each of the ring.
    pub(crate) ids: StagingPool,
    /// Fields of the staging area that the ids are taken from, in the order of their fields in `ids`.
    pub(crate) id_fields: Vec<usize>,
    pub(crate) layout: GpuBatchLayout,
    /// The hand-over to the uploader.
    pub(crate) sender: Sender,
    /// The bell that the uploader rings. Kept for as long as the ring is here.
    pub(crate) _bell: Bell,
}

/// A ring; see the module.
pub(crate) struct Ring {
    parts: RingParts,
    /// Minibatches of the ring, by number.
    minibatches: BTreeMap<u64, RingMinibatch>,
    /// The minibatches that somebody had still to be given when the ring was filled last, and whether each was prepared.
    wanted: BTreeMap<u64, bool>,
    /// Number of copies that were begun, by which the oldest one is known.
    begun: u64,
    counts: UploadCounts,
}

struct RingMinibatch {
    lease: Lease,
    /// Position in the order in which copies were begun.
    order: u64,
    /// The copy, until it has ended.
    copy: Option<Copy>,
}

struct Copy {
    /// Number of its item.
    seq: u64,
    since: Instant,
    /// The buffer that is copied must not be filled again meanwhile.
    _staging: Lease,
}

impl Ring {
    pub(crate) fn new(parts: RingParts) -> Self {
        Ring {
            parts,
            minibatches: BTreeMap::new(),
            wanted: BTreeMap::new(),
            begun: 0,
            counts: UploadCounts::default(),
        }
    }

    /// Returns the number by which items name the ring.
    pub(crate) fn pool(&self) -> u32 {
        self.parts.pool
    }

    /// Returns the number of buffers, and how many nobody uses.
    pub(crate) fn buffers(&self) -> (u32, u32) {
        (self.parts.ids.layout().buffers, self.parts.ids.free())
    }

    pub(crate) fn counts(&self) -> UploadCounts {
        self.counts
    }

    pub(crate) fn place(&self, minibatch: u64) -> RingPlace {
        match self.minibatches.get(&minibatch) {
            None if self.wanted.get(&minibatch) == Some(&true) => RingPlace::Absent,
            None => RingPlace::NotSeen,
            Some(RingMinibatch { copy: Some(_), .. }) => RingPlace::Copying,
            Some(RingMinibatch { lease, .. }) => RingPlace::Ready(lease.clone()),
        }
    }

    /// Begins to copy minibatches that consumers need now. Others are forgotten for them if no buffer is free.
    ///
    /// `soon` are those that consumers will need next.
    pub(crate) fn copy_needed(
        &mut self,
        needed: &[RingRequest<'_>],
        soon: &[RingRequest<'_>],
        now: Instant,
    ) {
        let is_in = |list: &[RingRequest<'_>], number| list.iter().any(|r| r.minibatch == number);
        for request in needed {
            // Without room the consumers copy it themselves.
            let _ = self.begin(request, now)
                || (self.make_room(|number| is_in(needed, number), |number| is_in(soon, number))
                    && self.begin(request, now));
        }
    }

    /// Begins to copy minibatches that will be needed, as long as buffers are free and fewer than `most` copies are under
    /// way.
    pub(crate) fn copy_ahead(&mut self, ahead: &[RingRequest<'_>], most: usize, now: Instant) {
        for request in ahead {
            if self.copies().count() >= most || !self.begin(request, now) {
                return;
            }
        }
    }

    fn copies(&self) -> impl Iterator<Item = &Copy> {
        self.minibatches.values().filter_map(|m| m.copy.as_ref())
    }

    /// Begins to copy a minibatch, unless it is in the ring. Returns `false` if no buffer is free.
    fn begin(&mut self, request: &RingRequest<'_>, now: Instant) -> bool {
        let &RingRequest {
            minibatch,
            staging,
            slots,
        } = request;
        if self.minibatches.contains_key(&minibatch) {
            return true;
        }
        let Some(lease) = self.lease_with_ids(staging, slots) else {
            return false;
        };
        let item = Item {
            kind: ItemKind::Part as u32,
            buffer: staging.buffer(),
            len: slots,
            tag: lease.buffer().into(),
            ..Item::default()
        };
        // There are as many entries as buffers, so there is one for this buffer.
        let Ok(seq) = self.parts.sender.publish(item) else {
            return false;
        };
        self.begun += 1;
        self.counts.uploads += 1;
        self.counts.bytes += self.parts.layout.copied_bytes(slots);
        let copy = Copy {
            seq,
            since: now,
            _staging: staging.clone(),
        };
        let in_ring = RingMinibatch {
            lease,
            order: self.begun,
            copy: Some(copy),
        };
        self.minibatches.insert(minibatch, in_ring);
        true
    }

    /// Takes a free buffer, and copies the ids of a minibatch into its part on the host.
    fn lease_with_ids(&self, staging: &Lease, slots: u32) -> Option<Lease> {
        let filling = self.parts.ids.allocate()?;
        let (mut writers, unfinished) = filling.split(slots);
        for (to, &from) in self.parts.id_fields.iter().enumerate() {
            let ids = staging.field(from).chunks_exact(size_of::<i64>());
            for (slot, id) in writers.iter_mut().zip(ids) {
                slot.field_mut(to).copy_from_slice(id);
            }
        }
        drop(writers);
        Some(unfinished.finish())
    }

    /// Reads which copies have ended. Returns `true` if any has.
    ///
    /// # Errors
    /// When the uploader wrote a value that makes no sense, so that it must end.
    pub(crate) fn poll(&mut self, now: Instant) -> coprep_shared_memory::Result<bool> {
        let mut ended = Vec::new();
        self.parts.sender.poll_released(|seq| ended.push(seq))?;
        for minibatch in self.minibatches.values_mut() {
            if let Some(copy) = minibatch.copy.take_if(|copy| ended.contains(&copy.seq)) {
                self.counts.time += now.saturating_duration_since(copy.since);
            }
        }
        Ok(!ended.is_empty())
    }

    /// Begins a round with the minibatches that somebody has still to be given, and whether each is prepared. The others
    /// are forgotten; those that are being copied stay until then.
    pub(crate) fn begin_round(&mut self, wanted: BTreeMap<u64, bool>) {
        self.minibatches
            // The uploader still writes into the buffer of a copy that has not ended.
            .retain(|number, minibatch| minibatch.copy.is_some() || wanted.contains_key(number));
        self.wanted = wanted;
    }

    /// Makes a buffer free by forgetting a minibatch that no consumer has been handed, and that none needs now. Returns
    /// `false` if there is none.
    ///
    /// The oldest one goes, because only slow consumers have still to be given it. Those that somebody needs soon go after
    /// the others: they would have to be copied again.
    fn make_room(
        &mut self,
        is_needed: impl Fn(u64) -> bool,
        is_needed_soon: impl Fn(u64) -> bool,
    ) -> bool {
        let may_go = |(number, minibatch): &(&u64, &RingMinibatch)| {
            minibatch.copy.is_none() && minibatch.lease.is_only_share() && !is_needed(**number)
        };
        let candidates = self.minibatches.iter().filter(may_go);
        let key =
            |number: u64, minibatch: &RingMinibatch| (is_needed_soon(number), minibatch.order);
        let first = candidates.min_by_key(|(number, minibatch)| key(**number, minibatch));
        let Some((&number, _)) = first else {
            return false;
        };
        self.minibatches.remove(&number);
        true
    }

    /// Returns when the copy that was begun first must have ended, or `None` if none is under way.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.copies().map(|copy| copy.since + LONGEST_COPY).min()
    }

    /// Asks the uploader to ring; see [`Sender::arm`].
    pub(crate) fn arm(&self) {
        self.parts.sender.arm();
    }

    pub(crate) fn disarm(&self) {
        self.parts.sender.disarm();
    }
}

#[cfg(test)]
mod tests {
    use coprep_protocol::spec::{Dtype, Field};
    use coprep_shared_memory::handover::{Doorbell, Receiver};
    use coprep_shared_memory::staging::Layout;

    use super::*;

    const SLOTS: u32 = 3;
    const BUFFERS: u32 = 4;

    struct World {
        ring: Ring,
        staging: StagingPool,
        uploader: Receiver,
        now: Instant,
        _doorbell: Doorbell,
    }

    fn fields() -> Vec<Field> {
        let field = |name: &str, shape: &[u32]| Field {
            name: name.into(),
            dtype: Dtype::I64,
            shape: shape.to_vec(),
        };
        vec![field("image", &[5]), field("index", &[])]
    }

    impl World {
        fn new() -> Self {
            let fields = fields();
            let sizes: Vec<usize> = fields.iter().map(Field::sample_bytes).collect();
            let doorbell = Doorbell::new().unwrap();
            let mut sender = Sender::create(BUFFERS).unwrap();
            let (deliver, reply) = sender.fds().unwrap();
            let bell = doorbell.bell().unwrap();
            let uploader = Receiver::open(deliver, reply, bell.fd().unwrap()).unwrap();
            let parts = RingParts {
                pool: 1,
                ids: StagingPool::create(Layout::new(&[8], SLOTS, BUFFERS).unwrap()).unwrap(),
                id_fields: vec![1],
                layout: GpuBatchLayout::new(&fields, SLOTS).unwrap(),
                sender,
                _bell: bell,
            };
            World {
                ring: Ring::new(parts),
                staging: StagingPool::create(Layout::new(&sizes, SLOTS, 16).unwrap()).unwrap(),
                uploader,
                now: Instant::now(),
                _doorbell: doorbell,
            }
        }

        /// Prepares a minibatch with the ids from `first` on, and begins its copy.
        fn begin(&mut self, minibatch: u64, first: i64) -> bool {
            let filling = self.staging.allocate().unwrap();
            let (slots, unfinished) = filling.split(SLOTS);
            for (mut slot, id) in slots.into_iter().zip(first..) {
                slot.field_mut(1).copy_from_slice(&id.to_ne_bytes());
            }
            let lease = unfinished.finish();
            let request = RingRequest {
                minibatch,
                staging: &lease,
                slots: SLOTS,
            };
            self.ring.begin(&request, self.now)
        }

        /// Ends the copies that the uploader was asked for, and returns their items.
        fn copy(&mut self) -> Vec<Item> {
            let mut items = Vec::new();
            while let Some((seq, item)) = self.uploader.try_next().unwrap() {
                self.uploader.release(seq).unwrap();
                items.push(item);
            }
            assert_eq!(self.ring.poll(self.now).unwrap(), !items.is_empty());
            items
        }

        /// Begins a round that wants these minibatches, which are prepared.
        fn want(&mut self, minibatches: &[u64]) {
            let wanted = minibatches.iter().map(|&number| (number, true));
            self.ring.begin_round(wanted.collect());
        }

        fn ready(&self, minibatch: u64) -> Option<Lease> {
            match self.ring.place(minibatch) {
                RingPlace::Ready(lease) => Some(lease),
                _ => None,
            }
        }
    }

    #[test]
    fn a_minibatch_is_ready_when_its_copy_has_ended_and_its_ids_are_on_the_host() {
        let mut world = World::new();
        assert!(world.begin(7, 100));
        assert!(matches!(world.ring.place(7), RingPlace::Copying));
        world.want(&[7, 8]);
        assert!(matches!(world.ring.place(8), RingPlace::Absent));
        let (free, staging) = (world.staging.free(), world.staging.layout().buffers);
        assert_eq!(free, staging - 1, "what is copied is not filled again");
        world.now += Duration::from_millis(3);
        let items = world.copy();
        let lease = world.ready(7).unwrap();
        assert_eq!((items.len(), items[0].tag), (1, lease.buffer().into()));
        let ids = lease.field(0).as_chunks::<8>().0.iter();
        let ids: Vec<i64> = ids.map(|&id| i64::from_ne_bytes(id)).collect();
        assert_eq!(ids, [100, 101, 102]);
        assert_eq!(world.staging.free(), staging);
        let UploadCounts {
            uploads,
            bytes,
            time,
        } = world.ring.counts();
        assert_eq!((uploads, bytes), (1, 3 * 40));
        assert_eq!(time, Duration::from_millis(3));
    }

    #[test]
    fn a_buffer_is_free_when_nobody_wants_it_and_everybody_has_released_it() {
        let mut world = World::new();
        (0..4).for_each(|n| assert!(world.begin(n, 0)));
        assert!(!world.begin(4, 0), "all buffers are in use");
        world.want(&[]);
        assert_eq!(world.ring.buffers(), (BUFFERS, 0), "they are being copied");
        world.copy();
        let held = world.ready(2);
        world.want(&[1]);
        assert_eq!(world.ring.buffers(), (BUFFERS, 2));
        drop(held);
        assert_eq!(world.ring.buffers(), (BUFFERS, 3));
        world.want(&[]);
        assert_eq!(world.ring.buffers(), (BUFFERS, BUFFERS));
    }

    #[test]
    fn room_is_made_of_the_oldest_minibatch_that_nobody_needs_now() {
        let mut world = World::new();
        for minibatch in [5, 3, 9] {
            assert!(world.begin(minibatch, 0));
        }
        assert!(
            !world.ring.make_room(|_| false, |_| false),
            "all are being copied"
        );
        world.copy();
        assert!(world.begin(1, 0));
        // 5 is the oldest, and some consumer has it. 3 is needed now.
        let held = world.ready(5).unwrap();
        assert!(world.ring.make_room(|number| number == 3, |_| false));
        world.want(&[5, 3, 9, 1]);
        let is_there = |world: &World, n| !matches!(world.ring.place(n), RingPlace::Absent);
        let there = [5, 3, 9, 1].map(|n| is_there(&world, n));
        assert_eq!(there, [true, true, false, true]);
        assert!(!world.ring.make_room(|number| number == 3, |_| false));
        drop(held);
        assert!(world.ring.make_room(|number| number == 3, |_| false));
        assert!(!is_there(&world, 5));
    }

    #[test]
    fn a_minibatch_that_is_needed_soon_goes_after_those_that_only_slow_consumers_want() {
        let mut world = World::new();
        for minibatch in [1, 2, 3] {
            assert!(world.begin(minibatch, 0));
        }
        world.copy();
        world.want(&[1, 2, 3]);
        for expected in [2, 1, 3] {
            assert!(world.ring.make_room(|_| false, |number| number != 2));
            assert!(matches!(world.ring.place(expected), RingPlace::Absent));
        }
    }

    #[test]
    fn a_minibatch_that_was_prepared_after_the_ring_was_filled_may_yet_come_into_it() {
        let mut world = World::new();
        (0..4).for_each(|n| assert!(world.begin(n, 0)));
        // One that is being prepared is wanted too.
        world
            .ring
            .begin_round(BTreeMap::from([(3, true), (4, false)]));
        assert!(matches!(world.ring.place(4), RingPlace::NotSeen));
        world.want(&[4]);
        assert!(matches!(world.ring.place(4), RingPlace::Absent));
    }

    #[test]
    fn the_copy_that_was_begun_first_decides_when_the_uploader_hangs() {
        let mut world = World::new();
        assert_eq!(world.ring.deadline(), None);
        let first = world.now;
        assert!(world.begin(1, 0));
        world.now += Duration::from_secs(1);
        assert!(world.begin(2, 0));
        assert_eq!(world.ring.deadline(), Some(first + LONGEST_COPY));
        world.copy();
        assert_eq!(world.ring.deadline(), None);
    }
}
