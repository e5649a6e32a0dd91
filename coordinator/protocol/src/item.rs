//! The flags and tags of the items that a coordinator hands over to its consumers.
//!
//! The shared-memory crate carries them without reading them. The coordinator writes them, and clients read them.

/// Flag of a part: it is the last one of its batch.
pub const ENDS_BATCH: u32 = 1;
/// Flag of a part: its batch is the last one of the epoch.
pub const ENDS_EPOCH: u32 = 2;
/// Flag of an error: it is about samples that are skipped.
pub const SKIPPED: u32 = 1;
/// Flag of an error: it says only that the next batch lacks the sample whose number is the item's `start`.
pub const LEFT_OUT: u32 = 2;
/// Flag of an error: it is none, and says that the stream wants a fork server ([`Request::GiveServer`]).
///
/// [`Request::GiveServer`]: crate::message::Request::GiveServer
pub const WANTS_SERVER: u32 = 4;

/// The causes of a wait, as parts of a whole of [`StallSplit::WHOLE`]. The remainder is due to other jobs. It is the tag of
/// a part, about the time since the part before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallSplit {
    /// Part in which storage was lacking.
    pub fetch: u32,
    /// Part in which processors were lacking.
    pub prep: u32,
}

impl StallSplit {
    /// The whole of a wait.
    pub const WHOLE: u32 = 1 << 16;
    /// Nothing was lacking, so the wait was for other jobs.
    pub const OTHERS: StallSplit = StallSplit { fetch: 0, prep: 0 };

    /// Returns both parts in one word, the tag of an item.
    #[must_use]
    pub fn pack(self) -> u64 {
        u64::from(self.fetch) | u64::from(self.prep) << 32
    }

    /// Reads a tag. Each part is at most the whole, whatever the word is.
    #[must_use]
    pub fn unpack(tag: u64) -> Self {
        let part = |word: u64| (word as u32).min(Self::WHOLE);
        StallSplit {
            fetch: part(tag),
            prep: part(tag >> 32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_is_read_as_it_was_written_and_no_part_exceeds_the_whole() {
        let split = StallSplit {
            fetch: 3,
            prep: StallSplit::WHOLE,
        };
        assert_eq!(StallSplit::unpack(split.pack()), split);
        let most = StallSplit::unpack(u64::MAX);
        assert_eq!(
            (most.fetch, most.prep),
            (StallSplit::WHOLE, StallSplit::WHOLE)
        );
    }
}
