//! The division of a stream's staging area.

use coprep_protocol::spec::{BLOB, Field};
use coprep_shared_memory::staging::Layout;

use crate::Result;
use crate::error::from_lower;

/// Smallest and largest number of staging buffers of a stream.
const BUFFERS: std::ops::RangeInclusive<u64> = 12..=64;
/// Where samples may be larger than their slots, one part in this many of the staging area is reserved for larger ones.
const FOR_LARGE: u64 = 4;

/// Returns the samples of a staging buffer, for a first job with batches of `batch` samples and `epoch` numbers in an
/// epoch, if that is known.
pub(crate) fn slots(batch: u32, epoch: Option<u32>) -> u32 {
    batch.min(epoch.unwrap_or(u32::MAX)).max(1)
}

/// Returns the layout of the staging area of a stream whose first job has batches of `slots` samples, and `epoch` numbers
/// in an epoch, if that is known. Where few buffers fit, there are no more than an epoch fills, and two for the next one.
pub(crate) fn layout(
    fields: &[Field],
    slots: u32,
    epoch: Option<u32>,
    staging_bytes: u64,
) -> Result<Layout> {
    // Only a field of variable size can be larger than its slot.
    let blob = fields.iter().position(Field::may_be_large);
    let for_large = blob.map_or(0, |_| staging_bytes / FOR_LARGE);
    // Samples of a fixed size leave nothing free for those that differ, which are few. These take memory of their own.
    let reserved = if fields.iter().any(|field| field.name == BLOB) {
        for_large
    } else {
        0
    };
    let sizes: Vec<usize> = fields.iter().map(Field::sample_bytes).collect();
    // A layout of one buffer gives the bytes of each.
    let one = Layout::new(&sizes, slots, 1).map_err(from_lower)?;
    let fitting = (staging_bytes - reserved) / one.stride().max(1) as u64;
    let of_epoch = epoch.map_or(u64::MAX, |epoch| u64::from(epoch.div_ceil(slots)) + 2);
    let buffers = fitting.clamp(of_epoch.min(*BUFFERS.start()), *BUFFERS.end());
    let layout = Layout::new(&sizes, slots, buffers as u32).map_err(from_lower)?;
    let Some(blob) = blob else {
        return Ok(layout);
    };
    // The buffers may leave more than the reserved part, or less if the fewest take more than their share.
    let left = staging_bytes.saturating_sub(layout.total_bytes() as u64);
    layout
        .with_large(blob, left.max(for_large))
        .map_err(from_lower)
}

/// Returns the most bytes that a slot may reserve for data of variable size. With the fewest buffers, this takes no
/// more than half of the staging area.
pub(crate) fn most_blob(slots: u32, staging_bytes: u64) -> u64 {
    staging_bytes / 2 / BUFFERS.start() / u64::from(slots.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGING: u64 = 256 << 20;

    fn field(name: &str, bytes: u32) -> Field {
        Field {
            name: name.into(),
            dtype: coprep_protocol::spec::Dtype::U8,
            shape: vec![bytes],
        }
    }

    fn bytes(layout: &Layout) -> u64 {
        layout.total_bytes() as u64 + layout.large_limit()
    }

    #[test]
    fn samples_of_a_fixed_size_take_all_of_the_staging_area() {
        let layout = layout(&[field("image", 4 << 20)], 4, None, STAGING).unwrap();
        assert_eq!((layout.buffers, layout.large_limit()), (16, 0));
    }

    #[test]
    fn samples_of_any_size_stay_within_the_staging_area() {
        for (slots, blob) in [(1, 64u32), (8, 200_000), (256, 64), (4, 2 << 20)] {
            let room = u64::from(blob).min(most_blob(slots, STAGING)) as u32;
            let layout = layout(&[field(BLOB, room)], slots, None, STAGING).unwrap();
            assert_eq!(bytes(&layout), STAGING, "{slots} {blob}");
            assert!(layout.large_limit() >= STAGING / 4 && layout.buffers >= 12);
        }
    }

    #[test]
    fn an_epoch_bounds_the_staging_area() {
        let of = |batch: u32, epoch: u32| {
            let slots = slots(batch, Some(epoch));
            let layout = layout(&[field("image", 8 << 20)], slots, Some(epoch), STAGING).unwrap();
            (layout.slots, layout.buffers)
        };
        assert_eq!(of(u32::MAX, 50), (50, 3), "one batch holds everything");
        assert_eq!(of(30, 50), (30, 4));
        assert_eq!(of(30, 1000), (30, 12));
        assert_eq!(of(1, 5), (1, 32), "as many as fit");
        assert_eq!(of(8, 0), (1, 32));
    }

    #[test]
    fn what_lies_beside_a_blob_may_take_more() {
        let fields = [field("image", 40 << 20), field(BLOB, 64)];
        let layout = layout(&fields, 2, None, STAGING).unwrap();
        assert_eq!((layout.buffers, layout.large_limit()), (12, STAGING / 4));
    }
}
