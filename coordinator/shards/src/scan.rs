//! Makes the index of a shard, by few and small reads.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use coprep_storage::{EarlyPart, EarlyReads, Error, LargeRead, LargeReads};
use xxhash_rust::xxh3::Xxh3;

use crate::dali::DaliIndex;
use crate::fault::ShardFault;
use crate::members::{BLOCK, MemberScan, ScanStep, UNKNOWN_HEADER, Window, header_of};
use crate::samples::{SampleGrouping, SampleParts, SampleTable, WantedContent};

/// Bytes of a read from which on its memory counts.
const LARGE: u64 = 1 << 20;

/// How many bytes to read at a time.
///
/// Of large samples only the headers are read, by a small read for each. Small samples are read through: a request takes
/// as long as reading hundreds of kilobytes does, so that skipping less than that saves nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSizes {
    /// Largest shard that is read whole, at once.
    pub(crate) whole: u64,
    /// The first read of a larger one, after which the size of samples is roughly known.
    pub(crate) first: u64,
    /// A read for the headers of a large sample, with room for a label.
    pub(crate) hop: u64,
    /// A read of many small samples.
    pub(crate) through: u64,
    /// Largest mean size of samples that are read through.
    pub(crate) small: u64,
}

impl ReadSizes {
    /// For local files, where a read costs little more than its bytes.
    pub(crate) const LOCAL: ReadSizes = ReadSizes {
        whole: 0,
        first: 64 << 10,
        hop: 4 << 10,
        through: 256 << 10,
        small: 16 << 10,
    };

    /// For shards in a store. Requests are as large as memory permits, since nothing else hides the time of an answer and
    /// stores charge for each.
    pub(crate) const REMOTE: ReadSizes = ReadSizes {
        whole: LargeReads::MOST_BYTES,
        first: 64 << 10,
        hop: 16 << 10,
        through: LargeReads::MOST_BYTES,
        small: 256 << 10,
    };

    fn next(&self, scanned: u64, samples: u64) -> u64 {
        match scanned.checked_div(samples) {
            None => self.first,
            Some(mean) if mean <= self.small => self.through,
            Some(_) => self.hop,
        }
    }

    /// Returns `true` if samples are read through, so that their checksums cost no read.
    fn reads_through(&self, scanned: u64, samples: u64) -> bool {
        let mean = scanned.checked_div(samples);
        mean.is_some_and(|mean| mean <= self.small)
    }
}

/// Replaces the content of a buffer by the bytes of a range of a shard.
pub(crate) type ReadRange<'a> = dyn Fn(Range<u64>, &mut Vec<u8>) -> Result<(), Error> + 'a;

/// A shard to be indexed.
pub(crate) struct ShardReader<'a> {
    pub(crate) shard: &'a str,
    pub(crate) size: u64,
    pub(crate) sizes: ReadSizes,
    /// `true` if images are read for their checksums even where that costs reads.
    pub(crate) reads_images: bool,
    pub(crate) read: &'a ReadRange<'a>,
    pub(crate) memory: ScanMemory<'a>,
}

/// The memory that scans share with each other.
#[derive(Clone, Copy)]
pub(crate) struct ScanMemory<'a> {
    /// Room for images that are read through, or `None` if they are not kept.
    pub(crate) early_reads: Option<&'a EarlyReads>,
    pub(crate) large_reads: &'a LargeReads,
}

/// Images that were read through, by their offsets.
pub(crate) type EarlyImages = HashMap<u64, EarlyPart>;

/// The bytes of a shard that were read last.
#[derive(Default)]
struct WindowBuffer<'a> {
    at: u64,
    bytes: Vec<u8>,
    /// Time of the read.
    took: Duration,
    /// Set if there was a large read, since its memory stays.
    large_read: Option<LargeRead<'a>>,
    early: EarlyImages,
    /// Set once there was no memory to keep an image.
    is_early_full: bool,
}

impl WindowBuffer<'_> {
    fn window(&self) -> Window<'_> {
        Window {
            at: self.at,
            bytes: &self.bytes,
        }
    }

    /// Returns the time that a part of the bytes took.
    fn share_of_time(&self, bytes: usize) -> Duration {
        self.took
            .mul_f64(bytes as f64 / self.bytes.len().max(1) as f64)
    }
}

impl<'a> ShardReader<'a> {
    /// Finds the samples by the headers of the archive. Also returns the images that were read through, as many as there is
    /// room for.
    pub(crate) fn scan(&self, parts: &SampleParts) -> Result<(SampleTable, EarlyImages), Error> {
        let mut scan = MemberScan::new(self.size);
        let mut samples = SampleGrouping::new(parts);
        let mut buffer = WindowBuffer::default();
        loop {
            match scan
                .step(&buffer.window())
                .map_err(|fault| self.error(fault))?
            {
                ScanStep::Need(range) => {
                    let most = if self.size <= self.sizes.whole {
                        self.size
                    } else {
                        self.sizes.next(scan.at(), samples.begun())
                    };
                    self.fill(&mut buffer, &range, most)?;
                }
                ScanStep::Member(member) => {
                    let wanted = samples.add(member).map_err(|fault| self.error(fault))?;
                    if let Some(wanted) = wanted {
                        self.add_content(&mut samples, &wanted, &mut buffer, scan.at())?;
                    }
                }
                ScanStep::End { is_marked } => {
                    let table = samples
                        .finish(is_marked)
                        .map_err(|fault| self.error(fault))?;
                    return Ok((table, buffer.early));
                }
            }
        }
    }

    /// Takes the samples from an index of DALI. Returns `None` if it is not one of this shard.
    pub(crate) fn follow(
        &self,
        index: &DaliIndex,
        parts: &SampleParts,
    ) -> Result<Option<(SampleTable, EarlyImages)>, Error> {
        let Some(last) = index.members().last() else {
            return Ok(None);
        };
        if index.members().any(|member| member.content.end > self.size)
            || self.header(&last.content)?.is_none()
        {
            return Ok(None);
        }
        let mut samples = SampleGrouping::new(parts);
        let mut buffer = WindowBuffer::default();
        for member in index.members() {
            let scanned = member.content.start;
            let wanted = samples
                .add(member.clone())
                .map_err(|fault| self.error(fault))?;
            if let Some(wanted) = wanted {
                self.add_content(&mut samples, &wanted, &mut buffer, scanned)?;
            }
        }
        // The index was made of the whole shard.
        let mut table = samples.finish(true).map_err(|fault| self.error(fault))?;
        if let Some(last) = table.last() {
            table.last_header = self.header(&last)?.unwrap_or(UNKNOWN_HEADER);
        }
        Ok(Some((table, buffer.early)))
    }

    /// Returns the hash of the header of a file before a range, with its length, or `None` if the shard has none there. An
    /// index that others have made may be that of another shard.
    pub(crate) fn header(&self, content: &Range<u64>) -> Result<Option<u64>, Error> {
        let Some(start) = content.start.checked_sub(BLOCK) else {
            return Ok(None);
        };
        if content.end > self.size {
            return Ok(None);
        }
        let mut block = Vec::new();
        (self.read)(start..content.start, &mut block)?;
        Ok(header_of(&block, content.end - content.start))
    }

    /// Gives the grouping the content of a member that it needs. `scanned` are the bytes up to the next header.
    fn add_content(
        &self,
        samples: &mut SampleGrouping<'_>,
        wanted: &WantedContent,
        buffer: &mut WindowBuffer<'a>,
        scanned: u64,
    ) -> Result<(), Error> {
        let begun = samples.begun();
        let most = self.sizes.next(scanned, begun);
        match wanted {
            WantedContent::Label(content) => self.add_label(samples, content, buffer, most),
            WantedContent::Image(content) if self.reads_images => {
                // All bytes are read anyway, so smaller reads would only be more of them.
                let most = most.max(self.sizes.through);
                self.add_checksum(samples, content, buffer, most)
            }
            // An image that was read anyway costs nothing.
            WantedContent::Image(content)
                if self.sizes.reads_through(scanned, begun)
                    || buffer.window().get(content).is_some() =>
            {
                self.add_checksum(samples, content, buffer, most)
            }
            WantedContent::Image(_) => Ok(()),
        }
    }

    /// Reads an image through, from the window and then from the shard, `most` bytes at a time.
    fn add_checksum(
        &self,
        samples: &mut SampleGrouping<'_>,
        content: &Range<u64>,
        buffer: &mut WindowBuffer<'a>,
        most: u64,
    ) -> Result<(), Error> {
        let mut early = self.reserve_early(content, buffer);
        let mut hash = Xxh3::new();
        let mut at = content.start;
        while at < content.end {
            let read_to = buffer.at + buffer.bytes.len() as u64;
            if !(buffer.at..read_to).contains(&at) {
                // An image may be longer than a read, so no more than its next byte is insisted on.
                self.fill(buffer, &(at..at + 1), most)?;
                continue;
            }
            let part = at..content.end.min(read_to);
            let bytes = buffer.window().get(&part).unwrap_or_default();
            hash.update(bytes);
            if let Some(early) = &mut early {
                early.bytes.extend_from_slice(bytes);
                early.took += buffer.share_of_time(bytes.len());
            }
            at = part.end;
        }
        samples.add_checksum(hash.digest());
        buffer
            .early
            .extend(early.map(|early| (content.start, early)));
        Ok(())
    }

    /// Returns memory to keep an image in, if images are kept and there is room.
    fn reserve_early(
        &self,
        content: &Range<u64>,
        buffer: &mut WindowBuffer<'a>,
    ) -> Option<EarlyPart> {
        if buffer.is_early_full {
            return None;
        }
        let early_reads = self.memory.early_reads?;
        let early = early_reads.reserve(content.end - content.start);
        // Smaller images that would still fit save no request: they come again with those that do not.
        buffer.is_early_full = early.is_none();
        early
    }

    fn add_label(
        &self,
        samples: &mut SampleGrouping<'_>,
        content: &Range<u64>,
        buffer: &mut WindowBuffer<'a>,
        most: u64,
    ) -> Result<(), Error> {
        if buffer.window().get(content).is_none() {
            self.fill(buffer, content, most)?;
        }
        let bytes = buffer.window().get(content).unwrap_or_default();
        samples.add_label(bytes);
        Ok(())
    }

    /// Reads a range that lies within the shard, and what follows it, up to `most` bytes.
    fn fill(
        &self,
        buffer: &mut WindowBuffer<'a>,
        range: &Range<u64>,
        most: u64,
    ) -> Result<(), Error> {
        let end = range
            .end
            .max(range.start.saturating_add(most))
            .min(self.size);
        if end - range.start > LARGE && buffer.large_read.is_none() {
            buffer.large_read = Some(self.memory.large_reads.begin());
        }
        buffer.at = range.start;
        let began = Instant::now();
        let read = (self.read)(range.start..end, &mut buffer.bytes);
        buffer.took = began.elapsed();
        read
    }

    fn error(&self, fault: ShardFault) -> Error {
        fault.of(self.shard)
    }
}

#[cfg(test)]
mod tests;
