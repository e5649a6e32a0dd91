//! Makes the index of a shard, by few and small reads.

use std::ops::Range;

use coprep_storage::Error;
use xxhash_rust::xxh3::Xxh3;

use crate::dali::DaliIndex;
use crate::fault::ShardFault;
use crate::members::{BLOCK, MemberScan, ScanStep, Window, is_header_of};
use crate::samples::{SampleGrouping, SampleParts, SampleTable, WantedContent};

/// How many bytes to read at a time.
///
/// Of large samples only the headers are read, by a small read for each. Small samples are read through: a request takes
/// as long as reading hundreds of kilobytes does, so that skipping less than that saves nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSizes {
    /// The first read, after which the size of samples is roughly known.
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
        first: 64 << 10,
        hop: 4 << 10,
        through: 256 << 10,
        small: 16 << 10,
    };

    /// For shards in a store, of which `at_once` are read at the same time. Requests are as large as memory for all of them
    /// permits, since nothing else hides the time of an answer and stores charge for each.
    pub(crate) fn remote(at_once: usize) -> ReadSizes {
        const ALL: u64 = 256 << 20;
        let each = ALL / at_once.max(1) as u64;
        ReadSizes {
            first: 64 << 10,
            hop: 16 << 10,
            through: each.clamp(1 << 20, 8 << 20),
            small: 256 << 10,
        }
    }

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
}

/// The bytes of a shard that were read last.
#[derive(Default)]
struct WindowBuffer {
    at: u64,
    bytes: Vec<u8>,
}

impl WindowBuffer {
    fn window(&self) -> Window<'_> {
        Window {
            at: self.at,
            bytes: &self.bytes,
        }
    }
}

impl ShardReader<'_> {
    /// Finds the samples by the headers of the archive.
    pub(crate) fn scan(&self, parts: &SampleParts) -> Result<SampleTable, Error> {
        let mut scan = MemberScan::new(self.size);
        let mut samples = SampleGrouping::new(parts);
        let mut buffer = WindowBuffer::default();
        loop {
            match scan
                .step(&buffer.window())
                .map_err(|fault| self.error(fault))?
            {
                ScanStep::Need(range) => {
                    let most = self.sizes.next(scan.at(), samples.begun());
                    self.fill(&mut buffer, &range, most)?;
                }
                ScanStep::Member(member) => {
                    let wanted = samples.add(member).map_err(|fault| self.error(fault))?;
                    if let Some(wanted) = wanted {
                        self.add_content(&mut samples, &wanted, &mut buffer, scan.at())?;
                    }
                }
                ScanStep::End => return samples.finish().map_err(|fault| self.error(fault)),
            }
        }
    }

    /// Takes the samples from an index of DALI. Returns `None` if it is not one of this shard.
    pub(crate) fn follow(
        &self,
        index: &DaliIndex,
        parts: &SampleParts,
    ) -> Result<Option<SampleTable>, Error> {
        let Some(last) = index.members().last() else {
            return Ok(None);
        };
        if index.members().any(|member| member.content.end > self.size)
            || !self.has_header(&last.content)?
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
        samples
            .finish()
            .map(Some)
            .map_err(|fault| self.error(fault))
    }

    /// Returns `true` if the shard has the header of a file before a range, with its length. An index that others have
    /// made may be that of another shard.
    pub(crate) fn has_header(&self, content: &Range<u64>) -> Result<bool, Error> {
        let Some(start) = content.start.checked_sub(BLOCK) else {
            return Ok(false);
        };
        if content.end > self.size {
            return Ok(false);
        }
        let mut block = Vec::new();
        (self.read)(start..content.start, &mut block)?;
        Ok(is_header_of(&block, content.end - content.start))
    }

    /// Gives the grouping the content of a member that it needs. `scanned` are the bytes up to the next header.
    fn add_content(
        &self,
        samples: &mut SampleGrouping<'_>,
        wanted: &WantedContent,
        buffer: &mut WindowBuffer,
        scanned: u64,
    ) -> Result<(), Error> {
        let begun = samples.begun();
        let most = self.sizes.next(scanned, begun);
        match wanted {
            WantedContent::Label(content) => self.add_label(samples, content, buffer, most),
            WantedContent::Image(content) if self.reads_images => {
                let most = most.max(self.sizes.through);
                self.add_checksum(samples, content, buffer, most)
            }
            WantedContent::Image(content) if self.sizes.reads_through(scanned, begun) => {
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
        buffer: &mut WindowBuffer,
        most: u64,
    ) -> Result<(), Error> {
        let mut hash = Xxh3::new();
        let mut at = content.start;
        while at < content.end {
            let read_to = buffer.at + buffer.bytes.len() as u64;
            if !(buffer.at..read_to).contains(&at) {
                self.fill(buffer, &(at..at + 1), most)?;
                continue;
            }
            let part = at..content.end.min(read_to);
            hash.update(buffer.window().get(&part).unwrap_or_default());
            at = part.end;
        }
        samples.add_checksum(hash.digest());
        Ok(())
    }

    fn add_label(
        &self,
        samples: &mut SampleGrouping<'_>,
        content: &Range<u64>,
        buffer: &mut WindowBuffer,
        most: u64,
    ) -> Result<(), Error> {
        if buffer.window().get(content).is_none() {
            self.fill(buffer, content, most)?;
        }
        let bytes = buffer.window().get(content).unwrap_or_default();
        samples.add_label(bytes).map_err(|fault| self.error(fault))
    }

    /// Reads a range that lies within the shard, and what follows it, up to `most` bytes.
    fn fill(&self, buffer: &mut WindowBuffer, range: &Range<u64>, most: u64) -> Result<(), Error> {
        let end = range
            .end
            .max(range.start.saturating_add(most))
            .min(self.size);
        buffer.at = range.start;
        (self.read)(range.start..end, &mut buffer.bytes)
    }

    fn error(&self, fault: ShardFault) -> Error {
        fault.of(self.shard)
    }
}

#[cfg(test)]
mod tests;
