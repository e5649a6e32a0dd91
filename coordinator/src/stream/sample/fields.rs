//! The bytes of a sample of user code, as they pass between a slot and the cache.

use std::time::Instant;

use coprep_cache::{Form, Meta};
use coprep_costs::MeasuredTimes;
use coprep_shared_memory::staging::{Layout, SlotMut};

use crate::caches::DatasetCache;

/// The fields of a slot that its producer writes: all except the fields that identify the sample.
#[derive(Clone, Copy)]
pub(in crate::stream) struct ProducerFields<'a> {
    pub(in crate::stream) layout: &'a Layout,
    /// Number of these fields, which come first.
    pub(in crate::stream) count: usize,
}

impl ProducerFields<'_> {
    /// Returns the fields without the one whose values may be larger than the slot, which is the last of them.
    fn fixed(self) -> std::ops::Range<usize> {
        0..self.layout.large_field().unwrap_or(self.count)
    }

    pub(super) fn fixed_bytes(self) -> usize {
        self.fixed().map(|f| self.layout.sample_bytes(f)).sum()
    }

    /// Returns how many bytes of a cached sample have no fixed size, or `None` if the sample does not have this layout.
    pub(super) fn blob_bytes(self, cached: &[u8]) -> Option<usize> {
        let blob = cached.len().checked_sub(self.fixed_bytes())?;
        (self.layout.large_field().is_some() || blob == 0).then_some(blob)
    }

    pub(super) fn is_larger_than_slot(self, blob: usize) -> bool {
        let field = self.layout.large_field();
        field.is_some_and(|field| blob > self.layout.sample_bytes(field))
    }

    /// Returns how many bytes without a fixed size a worker wrote. `said` is the number that it reports.
    pub(super) fn blob_written(self, slot: &mut SlotMut, said: u64) -> usize {
        let field = self.layout.large_field();
        let room = field.map_or(0, |f| self.layout.sample_bytes(f));
        let in_slot = usize::try_from(said).unwrap_or(usize::MAX).min(room);
        slot.large_mut().map_or(in_slot, |large| large.len())
    }

    /// Returns a field of a slot, or the large value that lies elsewhere in its place.
    fn part(self, slot: &mut SlotMut, field: usize) -> &mut [u8] {
        let is_large = self.layout.large_field() == Some(field) && slot.large_mut().is_some();
        if is_large {
            slot.large_mut().unwrap_or_default()
        } else {
            slot.field_mut(field)
        }
    }

    /// Caches a slot as it is; `blob` bytes of it have no fixed size. Returns false if there is no room, or the sample
    /// is cached already.
    pub(super) fn keep(
        self,
        cache: &DatasetCache,
        id: u32,
        slot: &mut SlotMut,
        blob: usize,
    ) -> bool {
        let bytes = self.fixed_bytes() + blob;
        let meta = Meta::of(Form::Prepared);
        let Some(mut reservation) = cache.store.reserve(id, bytes, meta) else {
            return false;
        };
        let mut rest = reservation.as_mut_slice();
        for field in 0..self.count {
            let part = self.part(slot, field);
            // The field of no fixed size comes last, and may not fill its part.
            let len = part.len().min(rest.len());
            let (target, after) = rest.split_at_mut(len);
            target.copy_from_slice(&part[..len]);
            rest = after;
        }
        reservation.commit();
        true
    }

    /// Fills a slot with the cached bytes of another. A value that is larger than the slot has its extent already.
    pub(super) fn restore(self, bytes: &[u8], slot: &mut SlotMut) -> MeasuredTimes {
        let began = Instant::now();
        let mut rest = bytes;
        for field in 0..self.count {
            let part = self.part(slot, field);
            // The field of no fixed size comes last, and may not fill its part.
            let len = part.len().min(rest.len());
            let (source, after) = rest.split_at(len);
            part[..len].copy_from_slice(source);
            rest = after;
        }
        MeasuredTimes {
            random: MeasuredTimes::stage(began.elapsed()),
            ..MeasuredTimes::default()
        }
    }
}
