//! A staging area of minibatches, as a coordinator makes it.

use std::ops::Range;

use coprep_measurement::Result;
use coprep_shared_memory::staging::{Layout, StagingPool};
use coprep_shared_memory::view::PinnableView;

/// Bytes of an image of 3 x 224 x 224.
pub(crate) const IMAGE_BYTES: usize = 3 * 224 * 224;
const MIB: usize = 1 << 20;

/// A staging area that is full of minibatches.
pub(crate) struct Area {
    pool: StagingPool,
}

impl Area {
    /// Makes an area of about as many MiB, and fills all of its minibatches.
    pub(crate) fn filled(sample_bytes: usize, samples: u32, mib: u32) -> Result<Self> {
        let minibatch = sample_bytes * samples as usize;
        let buffers = (mib as usize * MIB / minibatch).max(1);
        let layout = Layout::new(&[sample_bytes], samples, u32::try_from(buffers)?)?;
        let pool = StagingPool::create(layout)?;
        fill_all(&pool, samples);
        Ok(Area { pool })
    }

    /// Maps the area as a process does that copies from it.
    pub(crate) fn view(&self) -> Result<PinnableView> {
        let descriptor = self.pool.reader_fd()?;
        Ok(PinnableView::open(&descriptor, self.layout().clone())?)
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.pool.layout()
    }

    /// Returns where each minibatch lies in the area, in bytes from its beginning.
    pub(crate) fn minibatches(&self) -> Result<Vec<Range<usize>>> {
        let view = self.view()?;
        let layout = self.layout();
        let minibatch = |buffer| view.slots(buffer, 0, 0..layout.slots);
        Ok((0..layout.buffers).map(minibatch).collect())
    }

    /// Returns the bytes of a minibatch.
    pub(crate) fn minibatch_bytes(&self) -> usize {
        self.layout().field_bytes(0)
    }
}

/// Fills one minibatch after the other. All stay allocated meanwhile, so that each buffer is filled once.
fn fill_all(pool: &StagingPool, samples: u32) {
    let mut filled = Vec::new();
    while let Some(filling) = pool.allocate() {
        let (mut slots, unfinished) = filling.split(samples);
        for slot in &mut slots {
            let number = slot.slot();
            fill(slot.field_mut(0), number);
        }
        drop(slots);
        filled.push(unfinished.finish());
    }
}

/// Fills an image with bytes in no simple order, so that all values occur in it.
pub(crate) fn fill(image: &mut [u8], seed: u32) {
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
    for byte in image {
        // Knuth's constants for a linear congruential generator. Its upper bits are the better ones.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
}
