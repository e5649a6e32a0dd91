//! Index files of NVIDIA DALI, as its program `wds2idx` writes them.
//!
//! The first line is `v1.2 N`, or `v1.1 N`, with the number of samples. Each further line is a sample: for each of its
//! members the ending, the offset of the content, its length and, from version 1.2 on, the name, separated by spaces.

use crate::members::{BLOCK, Member, UNKNOWN_HEADER};

/// The members that an index lists.
#[derive(Debug)]
pub(crate) struct DaliIndex {
    members: Vec<Member>,
}

impl DaliIndex {
    /// Parses an index. Returns `None` if it is none that is understood: a name with a space cannot be told from two
    /// columns; or if its members do not lie one behind the other, with room for their headers.
    pub(crate) fn parse(text: &str) -> Option<DaliIndex> {
        let mut lines = text.lines();
        let (version, count) = lines.next()?.split_once(' ')?;
        let has_names = match version {
            "v1.1" => false,
            "v1.2" => true,
            _ => return None,
        };
        let count: usize = count.trim().parse().ok()?;
        let mut members = Vec::new();
        let mut samples = 0;
        for line in lines.filter(|line| !line.trim().is_empty()) {
            let columns: Vec<&str> = line
                .split(' ')
                .filter(|column| !column.is_empty())
                .collect();
            let each = if has_names { 4 } else { 3 };
            if !columns.len().is_multiple_of(each) {
                return None;
            }
            for member in columns.chunks(each) {
                members.push(parse_member(member, samples)?);
            }
            samples += 1;
        }
        let is_behind = |pair: &[Member]| {
            let start = pair[1].content.start.checked_sub(BLOCK);
            start.is_some_and(|start| start >= pair[0].content.end)
        };
        (samples == count && members.windows(2).all(is_behind)).then_some(DaliIndex { members })
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }
}

fn parse_member(columns: &[&str], sample: usize) -> Option<Member> {
    let (ending, start, length) = (columns.first()?, columns.get(1)?, columns.get(2)?);
    let start: u64 = start.parse().ok()?;
    let end = start.checked_add(length.parse().ok()?)?;
    // A member lies after its header.
    if start < BLOCK || !start.is_multiple_of(BLOCK) {
        return None;
    }
    let name = match columns.get(3) {
        Some(name) => (*name).to_owned(),
        // Version 1.1 has no names. All members of a sample get one key.
        None => format!("sample {sample}.{ending}"),
    };
    Some(Member {
        name: name.into_bytes(),
        content: start..end,
        header: UNKNOWN_HEADER,
        is_sparse: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let names =
            "v1.2 2\njpg 512 7 a.jpg cls 1536 1 a.cls\njpg 2560 9 d/b.jpg cls 3584 1 d/b.cls\n";
        let index = DaliIndex::parse(names).expect("it is an index");
        let found: Vec<_> = index
            .members()
            .map(|m| (m.name.as_slice(), m.content.clone()))
            .collect();
        assert_eq!(found[2], (&b"d/b.jpg"[..], 2560..2569));
        assert_eq!(found.len(), 4);
        let index = DaliIndex::parse("v1.1 1\njpg 512 7 cls 1536 1\n").expect("it is an index");
        assert_eq!(
            index.members().next().map(|m| m.name.clone()),
            Some(b"sample 0.jpg".to_vec())
        );
    }

    #[test]
    fn what_is_not_understood_is_no_index() {
        for text in [
            "",
            "v1.0 1\njpg 512 7 a.jpg\n",
            "v1.2 2\njpg 512 7 a.jpg\n",
            "v1.2 1\njpg 512 7 a b.jpg\n",
            "v1.2 1\njpg 513 7 a.jpg\n",
            "v1.2 1\njpg 0 7 a.jpg\n",
            "v1.2 1\njpg 512 18446744073709551615 a.jpg\n",
            "v1.2 1\njpg -512 7 a.jpg\n",
            // Two members at one place, one before the other, and without room for a header.
            "v1.2 2\njpg 512 7 a.jpg\njpg 512 7 b.jpg\n",
            "v1.2 2\njpg 1536 7 b.jpg\njpg 512 7 a.jpg\n",
            "v1.2 2\njpg 512 7 a.jpg\njpg 1024 7 b.jpg\n",
        ] {
            assert!(DaliIndex::parse(text).is_none(), "{text}");
        }
    }
}
