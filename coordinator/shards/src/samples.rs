//! The samples of a shard: members that belong together, by the rule of the package `webdataset`.
//!
//! A name is a key and an ending, which are separated by the first dot of the base name; keys keep their folders.
//! Consecutive members with one key are a sample. Left out are files without a dot, hidden files, and what lies below
//! names such as `__meta__`. Endings are compared in lower case.

use std::ops::Range;

use coprep_protocol::spec::TarShards;
use coprep_storage::MOST_BYTES;
use rkyv::{Archive, Deserialize, Serialize};

use crate::fault::ShardFault;
use crate::json_label;
use crate::members::Member;

/// Most bytes of a member that holds a label.
const MOST_LABEL: u64 = 16 << 20;

/// The parts of samples that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampleParts {
    /// Endings of images. The first one that a sample has is its image.
    images: Vec<String>,
    label: Option<LabelPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelPart {
    ending: String,
    /// Field of a JSON file, or `None` for an integer in text.
    field: Option<String>,
}

impl SampleParts {
    pub(crate) fn of(list: &TarShards) -> Self {
        let label = |text: &str| match text.split_once(':') {
            Some((ending, field)) => LabelPart {
                ending: ending.to_lowercase(),
                field: Some(field.to_owned()),
            },
            None => LabelPart {
                ending: text.to_lowercase(),
                field: None,
            },
        };
        SampleParts {
            images: list.image.split(';').map(str::to_lowercase).collect(),
            label: list.label.as_deref().map(label),
        }
    }

    pub(crate) fn has_label(&self) -> bool {
        self.label.is_some()
    }

    /// Returns a text that differs for different parts.
    pub(crate) fn text(&self) -> String {
        let label = self.label.as_ref();
        let (ending, field) = label.map_or((None, None), |label| {
            (Some(&label.ending), label.field.as_ref())
        });
        format!("{:?} {ending:?} {field:?}", self.images)
    }
}

/// The checksum of an image that was not read. Of 2^64 images one has it, and is not verified.
pub(crate) const UNKNOWN_CHECKSUM: u64 = 0;

/// Samples, in the order in which they lie in a shard.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SampleTable {
    /// Names of the images within the archive, one after another.
    pub(crate) names: String,
    /// End of each name within `names`.
    pub(crate) name_ends: Vec<u32>,
    /// Offset of each image within the archive.
    pub(crate) at: Vec<u64>,
    /// Length of each image.
    pub(crate) lengths: Vec<u32>,
    /// Labels. Empty if no label is used.
    pub(crate) labels: Vec<i64>,
    /// XXH3 of each image, or [`UNKNOWN_CHECKSUM`] for one that was not read. Empty if none was read.
    pub(crate) checksums: Vec<u64>,
    /// XXH3 of the header of the last image, by which a copy of the shard is known.
    pub(crate) last_header: u64,
}

impl SampleTable {
    pub(crate) fn len(&self) -> usize {
        self.at.len()
    }

    /// Returns the name of a sample's image.
    #[cfg(test)]
    pub(crate) fn name(&self, sample: usize) -> &str {
        let start = sample
            .checked_sub(1)
            .map_or(0, |before| self.name_ends[before]);
        &self.names[start as usize..self.name_ends[sample] as usize]
    }

    /// Returns the bytes of the last image.
    pub(crate) fn last(&self) -> Option<Range<u64>> {
        let (&at, &length) = self.at.iter().zip(&self.lengths).next_back()?;
        Some(at..at + u64::from(length))
    }

    /// Returns `true` if the table is consistent, and all samples lie within `size` bytes, one behind the other.
    pub(crate) fn is_sound(&self, size: u64, has_labels: bool) -> bool {
        let count = self.at.len();
        let labels = if has_labels { count } else { 0 };
        let mut extents = self.at.iter().zip(&self.lengths);
        let mut end_before = 0;
        let mut ends = self.name_ends.iter().map(|&end| end as usize);
        self.name_ends.len() == count
            && self.lengths.len() == count
            && self.labels.len() == labels
            && [0, count].contains(&self.checksums.len())
            && self.name_ends.is_sorted()
            && ends.clone().all(|end| self.names.is_char_boundary(end))
            && ends.next_back().unwrap_or(0) == self.names.len()
            && extents.all(|(&at, &length)| {
                let end = at.checked_add(u64::from(length)).filter(|&end| end <= size);
                // Blocks of neighbours are read by the first and the last of them.
                let is_behind = at >= std::mem::replace(&mut end_before, end.unwrap_or(size));
                end.is_some() && is_behind && u64::from(length) <= MOST_BYTES
            })
    }
}

/// Splits a name into key and ending. Returns `None` for files that belong to no sample.
fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = name.split(|&byte| byte == b'/').next().unwrap_or_default();
    if first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__") {
        return None;
    }
    let base = name
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |at| at + 1);
    let dot = name[base..]
        .iter()
        .position(|&byte| byte == b'.')
        .filter(|&dot| dot > 0)?;
    Some((&name[..base + dot], &name[base + dot + 1..]))
}

/// The members of a sample.
#[derive(Debug)]
struct SampleMembers {
    key: Vec<u8>,
    endings: Vec<String>,
    /// The image, and the position of its ending among the wanted ones.
    image: Option<(usize, Member)>,
    /// Checksum of the image.
    checksum: u64,
    label: Option<i64>,
}

/// The content of a member that a sample needs.
#[derive(Debug)]
pub(crate) enum WantedContent {
    /// A label, for [`SampleGrouping::add_label`].
    Label(Range<u64>),
    /// An image, whose checksum [`SampleGrouping::add_checksum`] takes if it is known.
    Image(Range<u64>),
}

/// Puts members together to samples.
#[derive(Debug)]
pub(crate) struct SampleGrouping<'a> {
    parts: &'a SampleParts,
    current: Option<SampleMembers>,
    done: SampleTable,
}

impl<'a> SampleGrouping<'a> {
    pub(crate) fn new(parts: &'a SampleParts) -> Self {
        SampleGrouping {
            parts,
            current: None,
            done: SampleTable::default(),
        }
    }

    /// Returns the number of samples that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.done.len() as u64 + u64::from(self.current.is_some())
    }

    /// Adds the next member. Returns its content's range if the sample needs the content.
    pub(crate) fn add(&mut self, member: Member) -> Result<Option<WantedContent>, ShardFault> {
        let Some((key, ending)) = split_name(&member.name) else {
            return Ok(None);
        };
        if self
            .current
            .as_ref()
            .is_none_or(|current| current.key != key)
        {
            self.complete()?;
            self.current = Some(SampleMembers {
                key: key.to_vec(),
                endings: Vec::new(),
                image: None,
                checksum: UNKNOWN_CHECKSUM,
                label: None,
            });
        }
        let ending = String::from_utf8_lossy(ending).to_lowercase();
        match &mut self.current {
            Some(current) => current.add(self.parts, ending, member),
            None => Ok(None),
        }
    }

    /// Sets the label of the current sample from the content of its member.
    pub(crate) fn add_label(&mut self, content: &[u8]) -> Result<(), ShardFault> {
        let (Some(part), Some(current)) = (&self.parts.label, &mut self.current) else {
            return Ok(());
        };
        let label = part
            .read(content)
            .map_err(|why| current.fault(&why, LABEL_REMEDY))?;
        current.label = Some(label);
        Ok(())
    }

    /// Sets the checksum of the current sample's image.
    pub(crate) fn add_checksum(&mut self, checksum: u64) {
        if let Some(current) = &mut self.current {
            current.checksum = checksum;
        }
    }

    /// Returns all samples, when the archive has no further member.
    pub(crate) fn finish(mut self) -> Result<SampleTable, ShardFault> {
        self.complete()?;
        if self
            .done
            .checksums
            .iter()
            .all(|&one| one == UNKNOWN_CHECKSUM)
        {
            // Eight zeros for each sample would only make the index larger.
            self.done.checksums = Vec::new();
        }
        if self.done.len() == 0 {
            let what =
                "it has no samples: no member has a name of a key, a dot and an ending".to_owned();
            return Err(ShardFault::new(what).with_remedy("leave it out of the list"));
        }
        Ok(self.done)
    }

    /// Adds the current sample to those that are done.
    fn complete(&mut self) -> Result<(), ShardFault> {
        let Some(sample) = self.current.take() else {
            return Ok(());
        };
        let Some((_, image)) = &sample.image else {
            let wanted = self.parts.images.join(", ");
            return Err(sample.lacks("image", &format!("none of the endings {wanted}"), "image="));
        };
        if let Some(part) = &self.parts.label {
            let missing = || {
                sample.lacks(
                    "label",
                    &format!("no member that ends in {}", part.ending),
                    "label=",
                )
            };
            self.done.labels.push(sample.label.ok_or_else(missing)?);
        }
        let length = image.content.end - image.content.start;
        let fitting = u32::try_from(length).ok().filter(|_| length <= MOST_BYTES);
        let Some(length) = fitting else {
            let why = format!("has an image of {length} bytes, and a sample may have {MOST_BYTES}");
            return Err(sample.fault(&why, "write the shard without it"));
        };
        self.done
            .names
            .push_str(&String::from_utf8_lossy(&image.name));
        let Ok(end) = u32::try_from(self.done.names.len()) else {
            let why = "has names of more than 4 GiB before it";
            return Err(sample.fault(why, "divide the shard"));
        };
        self.done.name_ends.push(end);
        self.done.at.push(image.content.start);
        self.done.lengths.push(length);
        self.done.checksums.push(sample.checksum);
        self.done.last_header = image.header;
        Ok(())
    }
}

const LABEL_REMEDY: &str = "choose another part by label=, or label=None for no labels";

impl SampleMembers {
    fn add(
        &mut self,
        parts: &SampleParts,
        ending: String,
        member: Member,
    ) -> Result<Option<WantedContent>, ShardFault> {
        if self.endings.contains(&ending) {
            let why = format!("has two members that end in {ending}");
            return Err(self.fault(&why, "write the shard without one of them"));
        }
        let label = parts.label.as_ref().filter(|label| label.ending == ending);
        let content = member.content.clone();
        let mut wanted = label.map(|_| WantedContent::Label(content.clone()));
        if label.is_some() && content.end - content.start > MOST_LABEL {
            let why = format!("has a label of more than {MOST_LABEL} bytes");
            return Err(self.fault(&why, LABEL_REMEDY));
        }
        let rank = parts.images.iter().position(|image| *image == ending);
        if let Some(rank) = rank
            && self.image.as_ref().is_none_or(|(best, _)| rank < *best)
        {
            self.image = Some((rank, member));
            // Of an image that is replaced by a better one, the checksum does not count.
            self.checksum = UNKNOWN_CHECKSUM;
            wanted = wanted.or(Some(WantedContent::Image(content)));
        }
        self.endings.push(ending);
        Ok(wanted)
    }

    /// Returns a fault of this sample. `why` completes a sentence about it.
    fn fault(&self, why: &str, remedy: &str) -> ShardFault {
        let key = String::from_utf8_lossy(&self.key);
        ShardFault::new(format!("the sample {key} {why}")).with_remedy(remedy.to_owned())
    }

    fn lacks(&self, part: &str, why: &str, argument: &str) -> ShardFault {
        let found = self.endings.join(", ");
        let why = format!("has no {part}: it has {why}, but {found}");
        self.fault(
            &why,
            &format!("choose another part by {argument}, or write the shard without the sample"),
        )
    }
}

impl LabelPart {
    /// Reads a label. The error completes a sentence about the sample.
    fn read(&self, content: &[u8]) -> Result<i64, String> {
        match &self.field {
            None => {
                let text = String::from_utf8_lossy(content);
                let text = text.trim();
                let shown: String = text.chars().take(40).collect();
                text.parse().map_err(|_| {
                    format!(
                        "has a label that is no integer: its .{} holds {shown:?}",
                        self.ending
                    )
                })
            }
            Some(field) => {
                let json = json_label::parse(content)
                    .map_err(|e| format!("has a .{} that is no JSON: {e}", self.ending))?;
                json_label::integer_at(&json, field).ok_or_else(|| {
                    format!("has no integer field {field:?} in its .{}", self.ending)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::UNKNOWN_HEADER;

    fn split(name: &str) -> Option<(&str, &str)> {
        let (key, ending) = split_name(name.as_bytes())?;
        let text = |bytes| std::str::from_utf8(bytes).expect("it was text");
        Some((text(key), text(ending)))
    }

    #[test]
    fn a_name_is_split_at_the_first_dot_of_its_base() {
        assert_eq!(split("a.b/c.seg.png"), Some(("a.b/c", "seg.png")));
        assert_eq!(split("./0001.jpg"), Some(("./0001", "jpg")));
        assert_eq!(split("x."), Some(("x", "")));
        for name in [
            "x",
            "a.b/c",
            ".hidden",
            "a/.DS_Store",
            "a/._x.jpg",
            "",
            "a/",
            "__meta__",
            "__x__/y.jpg",
        ] {
            assert_eq!(split(name), None, "{name}");
        }
        assert_eq!(split("__x/y.jpg"), Some(("__x/y", "jpg")));
    }

    fn table(
        members: &[(&str, &str)],
        image: &str,
        label: Option<&str>,
    ) -> Result<SampleTable, String> {
        let parts = SampleParts::of(&TarShards {
            shards: Vec::new(),
            image: image.into(),
            label: label.map(str::to_owned),
        });
        let mut grouping = SampleGrouping::new(&parts);
        let mut at = 512;
        for (name, content) in members {
            let member = Member {
                header: UNKNOWN_HEADER,
                name: name.as_bytes().to_vec(),
                content: at..at + content.len() as u64,
            };
            at += 1024;
            let fault = |fault: ShardFault| fault.of("x.tar").to_string();
            let wanted = grouping.add(member).map_err(fault)?;
            if let Some(WantedContent::Image(content)) = &wanted {
                grouping.add_checksum(content.start);
            }
            if let Some(WantedContent::Label(_)) = wanted {
                grouping.add_label(content.as_bytes()).map_err(fault)?;
            }
        }
        grouping
            .finish()
            .map_err(|fault| fault.of("x.tar").to_string())
    }

    #[test]
    fn consecutive_members_with_one_key_are_a_sample() {
        let members = [
            ("d/b.cls", " 7\n"),
            ("d/b.PNG", "png"),
            ("d/b.jpg", "jpeg"),
            ("readme", ""),
            ("a.jpg", "x"),
            ("a.cls", "-1"),
            // The same key again, later, is another sample.
            ("d/b.webp", "w"),
            ("d/b.cls", "0"),
        ];
        let found = table(&members, "jpg;png;webp", Some("cls")).expect("all is well");
        assert_eq!(found.labels, [7, -1, 0]);
        assert_eq!(found.lengths, [4, 1, 1]);
        // Of the first sample, that of the image that was taken.
        assert_eq!(found.checksums, found.at);
        let names: Vec<&str> = (0..3).map(|i| found.name(i)).collect();
        assert_eq!(names, ["d/b.jpg", "a.jpg", "d/b.webp"]);
        assert!(
            found.is_sound(10_000, true)
                && !found.is_sound(100, true)
                && !found.is_sound(10_000, false)
        );
    }

    #[test]
    fn labels_may_be_fields_of_json() {
        let members = [("a.jpg", "x"), ("a.json", r#"{"id": 5, "text": "five"}"#)];
        assert_eq!(
            table(&members, "jpg", Some("json:id"))
                .expect("all is well")
                .labels,
            [5]
        );
        assert!(
            table(&members, "jpg", None)
                .expect("all is well")
                .labels
                .is_empty()
        );
        let refused = table(&members, "jpg", Some("json:text")).expect_err("it is text");
        assert!(
            refused.contains(r#"the sample a has no integer field "text" in its .json"#),
            "{refused}"
        );
    }

    #[test]
    fn a_part_that_is_missing_is_named_with_shard_and_key() {
        for (members, part) in [
            (
                &[("d/a.txt", ""), ("d/a.cls", "1")][..],
                "the sample d/a has no image",
            ),
            (
                &[("a.jpg", "")],
                "the sample a has no label: it has no member that ends in cls, but jpg",
            ),
            (
                &[("a.jpg", ""), ("a.cls", "cat")],
                r#"no integer: its .cls holds "cat""#,
            ),
            (
                &[("a.jpg", ""), ("a.jpg", "")],
                "two members that end in jpg",
            ),
            (&[], "it has no samples"),
        ] {
            let refused = table(members, "jpg;png", Some("cls")).expect_err(part);
            assert!(
                refused.contains(part) && refused.contains("x.tar"),
                "{refused}"
            );
        }
    }
}
