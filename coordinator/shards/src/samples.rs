//! The samples of a shard: members that belong together, by the rule of the package `webdataset`.
//!
//! A name is a key and an ending, which are separated by the first dot of the base name; keys keep their folders.
//! Consecutive members with one key are a sample. Left out are files without a dot, hidden files, and what lies below
//! names such as `__meta__`. Endings are compared in lower case.
//!
//! A sample that lacks a part, or has one that cannot be used, is left out, and the others are taken.

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
    /// Number of samples that are left out.
    pub(crate) left_out: u64,
    /// A sentence that names the first of them, and says why it is left out.
    pub(crate) first_left_out: String,
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

/// Why an archive without samples is left out.
const NO_SAMPLE: &str = "no member has a name of a key, a dot and an ending";

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
    /// Why the sample cannot be used, as the end of a sentence about it.
    defect: Option<String>,
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
    /// `true` if a member belongs to no sample.
    has_other_members: bool,
}

impl<'a> SampleGrouping<'a> {
    pub(crate) fn new(parts: &'a SampleParts) -> Self {
        SampleGrouping {
            parts,
            current: None,
            done: SampleTable::default(),
            has_other_members: false,
        }
    }

    /// Returns the number of samples that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.done.len() as u64 + self.done.left_out + u64::from(self.current.is_some())
    }

    /// Adds the next member. Returns its content's range if the sample needs the content.
    pub(crate) fn add(&mut self, member: Member) -> Result<Option<WantedContent>, ShardFault> {
        let Some((key, ending)) = split_name(&member.name) else {
            self.has_other_members = true;
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
                defect: None,
            });
        }
        let ending = String::from_utf8_lossy(ending).to_lowercase();
        let current = self.current.as_mut();
        Ok(current.and_then(|current| current.add(self.parts, ending, member)))
    }

    /// Sets the label of the current sample from the content of its member.
    pub(crate) fn add_label(&mut self, content: &[u8]) {
        let (Some(part), Some(current)) = (&self.parts.label, &mut self.current) else {
            return;
        };
        match part.read(content) {
            Ok(label) => current.label = Some(label),
            Err(why) => current.refuse(why),
        }
    }

    /// Sets the checksum of the current sample's image.
    pub(crate) fn add_checksum(&mut self, checksum: u64) {
        if let Some(current) = &mut self.current {
            current.checksum = checksum;
        }
    }

    /// Returns all samples, when the archive has no further member. `is_marked` says whether blocks of zeros mark its end.
    pub(crate) fn finish(mut self, is_marked: bool) -> Result<SampleTable, ShardFault> {
        if let Some(last) = self.current.as_ref().filter(|_| !is_marked)
            && last.defect.is_none()
            && let Some(why) = last.lacks(self.parts)
        {
            let key = String::from_utf8_lossy(&last.key);
            let what = format!(
                "it is cut off: no blocks of zeros mark its end, and its last sample {key} {why}"
            );
            return Err(ShardFault::new(what).with_remedy("write or upload it again"));
        }
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
        if self.done.len() == 0 && self.done.left_out == 0 && self.has_other_members {
            self.done.left_out = 1;
            self.done.first_left_out = NO_SAMPLE.to_owned();
        }
        Ok(self.done)
    }

    /// Adds the current sample to those that are done, or to those that are left out.
    fn complete(&mut self) -> Result<(), ShardFault> {
        let Some(mut sample) = self.current.take() else {
            return Ok(());
        };
        let (image, length) = match sample.usable_image(self.parts) {
            Ok(image) => image,
            Err(why) => {
                self.leave_out(&sample.key, &why);
                return Ok(());
            }
        };
        self.done.labels.extend(sample.label);
        self.done
            .names
            .push_str(&String::from_utf8_lossy(&image.name));
        let Ok(end) = u32::try_from(self.done.names.len()) else {
            let what = "it has names of more than 4 GiB".to_owned();
            return Err(ShardFault::new(what).with_remedy("divide the shard"));
        };
        self.done.name_ends.push(end);
        self.done.at.push(image.content.start);
        self.done.lengths.push(length);
        self.done.checksums.push(sample.checksum);
        self.done.last_header = image.header;
        Ok(())
    }

    fn leave_out(&mut self, key: &[u8], why: &str) {
        if self.done.left_out == 0 {
            self.done.first_left_out = format!("the sample {} {why}", String::from_utf8_lossy(key));
        }
        self.done.left_out += 1;
    }
}

impl SampleMembers {
    /// Adds a member. Returns its content if the sample needs it.
    fn add(
        &mut self,
        parts: &SampleParts,
        ending: String,
        member: Member,
    ) -> Option<WantedContent> {
        let is_label = |label: &LabelPart| label.ending == ending;
        let is_label = parts.label.as_ref().is_some_and(is_label);
        let rank = parts.images.iter().position(|image| *image == ending);
        let content = member.content.clone();
        if self.endings.contains(&ending) {
            self.refuse(format!("has two members that end in {ending}"));
        } else if member.is_sparse && (is_label || rank.is_some()) {
            self.refuse(format!(
                "has a member that ends in {ending} and is sparse, so that it lies in pieces"
            ));
        } else if is_label && content.end - content.start > MOST_LABEL {
            self.refuse(format!("has a label of more than {MOST_LABEL} bytes"));
        }
        if self.defect.is_some() {
            return None;
        }
        let mut wanted = is_label.then(|| WantedContent::Label(content.clone()));
        if let Some(rank) = rank
            && self.image.as_ref().is_none_or(|(best, _)| rank < *best)
        {
            self.image = Some((rank, member));
            // Of an image that is replaced by a better one, the checksum does not count.
            self.checksum = UNKNOWN_CHECKSUM;
            wanted = wanted.or(Some(WantedContent::Image(content)));
        }
        self.endings.push(ending);
        wanted
    }

    /// Notes why the sample cannot be used. The first reason stays.
    fn refuse(&mut self, why: String) {
        self.defect.get_or_insert(why);
    }

    /// Takes the image and its length. The error says why the sample cannot be used.
    fn usable_image(&mut self, parts: &SampleParts) -> Result<(Member, u32), String> {
        let defect = self.defect.take().or_else(|| self.lacks(parts));
        let (_, image) = match (defect, self.image.take()) {
            (Some(why), _) => return Err(why),
            (None, image) => image.ok_or("has no image")?,
        };
        let length = image.content.end - image.content.start;
        match u32::try_from(length) {
            Ok(short) if length <= MOST_BYTES => Ok((image, short)),
            _ => Err(format!(
                "has an image of {length} bytes, and a sample may have {MOST_BYTES}"
            )),
        }
    }

    /// Returns which part the sample lacks, as the end of a sentence about it, or `None` if it has all.
    fn lacks(&self, parts: &SampleParts) -> Option<String> {
        let (part, missing) = match &parts.label {
            _ if self.image.is_none() => {
                let wanted = parts.images.join(", ");
                ("image", format!("none of the endings {wanted}"))
            }
            Some(label) if self.label.is_none() => {
                ("label", format!("no member that ends in {}", label.ending))
            }
            _ => return None,
        };
        let found = self.endings.join(", ");
        Some(format!("has no {part}: it has {missing}, but {found}"))
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
                is_sparse: false,
            };
            at += 1024;
            let fault = |fault: ShardFault| fault.of("x.tar").to_string();
            let wanted = grouping.add(member).map_err(fault)?;
            if let Some(WantedContent::Image(content)) = &wanted {
                grouping.add_checksum(content.start);
            }
            if let Some(WantedContent::Label(_)) = wanted {
                grouping.add_label(content.as_bytes());
            }
        }
        grouping
            .finish(true)
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
        let left_out = table(&members, "jpg", Some("json:text")).expect("it is left out");
        assert_eq!(
            left_out.first_left_out,
            r#"the sample a has no integer field "text" in its .json"#
        );
    }

    #[test]
    fn a_sample_that_cannot_be_used_is_left_out_and_the_others_are_taken() {
        for (odd, why) in [
            (&[("d/a.txt", ""), ("d/a.cls", "1")][..], "d/a has no image"),
            (
                &[("a.jpg", ""), ("a.txt", "")],
                "a has no label: it has no member that ends in cls, but jpg, txt",
            ),
            (
                &[("a.jpg", ""), ("a.cls", "cat"), ("a.png", "")],
                r#"a has a label that is no integer: its .cls holds "cat""#,
            ),
            (
                &[("a.jpg", ""), ("a.jpg", ""), ("a.cls", "1")],
                "a has two members that end in jpg",
            ),
            (&[("__index__.json", "")], "__index__ has no image"),
        ] {
            let (before, behind) = (
                [("0.jpg", "x"), ("0.cls", "3")],
                [("z.cls", "4"), ("z.png", "yz")],
            );
            let members = [&before[..], odd, odd, &behind].concat();
            let found = table(&members, "jpg;png", Some("cls")).expect(why);
            // The second one follows the first, so that both have one key, and are one sample.
            let twice = table(
                &[&before[..], odd, &behind, odd].concat(),
                "jpg;png",
                Some("cls"),
            );
            let twice = twice.expect(why);
            for (found, left_out) in [(&found, 1), (&twice, 2)] {
                assert_eq!((found.len(), &found.labels[..]), (2, &[3, 4][..]), "{why}");
                assert_eq!(found.left_out, left_out, "{why}");
                assert!(found.is_sound(1 << 20, true), "{why}");
            }
            assert!(
                twice.first_left_out.contains(why),
                "{}",
                twice.first_left_out
            );
            let alone = table(odd, "jpg;png", Some("cls")).expect(why);
            assert_eq!((alone.len(), alone.left_out), (0, 1), "{why}");
        }
        let others = table(&[("readme", "")], "jpg", None).expect("it is whole");
        assert_eq!((others.len(), others.left_out), (0, 1));
        assert_eq!(others.first_left_out, NO_SAMPLE);
        let empty = table(&[], "jpg", None).expect("it is whole");
        assert_eq!((empty.len(), empty.left_out), (0, 0));
    }
}
