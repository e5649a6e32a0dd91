//! Tests of scans over archives in memory.

use std::cell::Cell;

use coprep_protocol::spec::TarShards;
use coprep_storage::Stores;
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};
use xxhash_rust::xxh3::xxh3_64;

use super::*;

const SIZES: [ReadSizes; 3] = [
    ReadSizes::LOCAL,
    ReadSizes {
        whole: 0,
        first: 1,
        hop: 1,
        through: 1,
        small: 0,
    },
    ReadSizes {
        whole: 0,
        first: 700,
        hop: 900,
        through: 3000,
        small: 5000,
    },
];

fn parts(label: Option<&str>) -> SampleParts {
    SampleParts::of(&TarShards {
        shards: Vec::new(),
        image: "jpg".into(),
        label: label.map(str::to_owned),
    })
}

/// Reads from memory. Counts the reads and their bytes.
struct MemoryShard<'a> {
    bytes: &'a [u8],
    reads_images: bool,
    reads: Cell<u64>,
    read_bytes: Cell<u64>,
}

impl<'a> MemoryShard<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        MemoryShard {
            bytes,
            reads_images: false,
            reads: Cell::new(0),
            read_bytes: Cell::new(0),
        }
    }

    fn scan(&self, sizes: ReadSizes, label: Option<&str>) -> Result<SampleTable, String> {
        let (table, early) = self.scan_in(&Stores::default(), sizes, label)?;
        assert!(early.is_empty());
        Ok(table)
    }

    /// Scans with the memory of `stores`.
    fn scan_in(
        &self,
        stores: &Stores,
        sizes: ReadSizes,
        label: Option<&str>,
    ) -> Result<(SampleTable, EarlyImages), String> {
        let read = |range: Range<u64>, into: &mut Vec<u8>| {
            self.reads.set(self.reads.get() + 1);
            self.read_bytes
                .set(self.read_bytes.get() + range.end - range.start);
            // A range beyond the end would be a defect of the scan, and panics.
            into.clear();
            into.extend_from_slice(&self.bytes[range.start as usize..range.end as usize]);
            Ok(())
        };
        let reader = ShardReader {
            shard: "x.tar",
            size: self.bytes.len() as u64,
            sizes,
            reads_images: self.reads_images,
            read: &read,
            memory: ScanMemory {
                early_reads: Some(stores.early_reads()),
                large_reads: stores.large_reads(),
            },
        };
        reader
            .scan(&parts(label))
            .map_err(|error| error.to_string())
    }
}

fn scan(bytes: &[u8]) -> Result<SampleTable, String> {
    MemoryShard::new(bytes).scan(ReadSizes::LOCAL, Some("cls"))
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

/// Returns a tar file of samples with images of these lengths, whose names are long.
fn archive(lengths: &[usize]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (sample, &length) in lengths.iter().enumerate() {
        let name = format!("{}/{sample}", "folder".repeat(40));
        let image = vec![sample as u8; length];
        let mut add = |ending: &str, content: &[u8]| {
            let mut header = header(EntryType::Regular, content.len() as u64);
            archive
                .append_data(&mut header, format!("{name}.{ending}"), content)
                .unwrap();
        };
        add("jpg", &image);
        add("cls", sample.to_string().as_bytes());
    }
    archive.into_inner().unwrap()
}

fn check(bytes: &[u8], table: &SampleTable, lengths: &[usize]) {
    assert_eq!(table.len(), lengths.len());
    assert!(table.is_sound(bytes.len() as u64, true));
    for (sample, &length) in lengths.iter().enumerate() {
        let at = table.at[sample] as usize;
        assert_eq!(table.lengths[sample] as usize, length);
        assert!(
            bytes[at..at + length]
                .iter()
                .all(|&byte| byte == sample as u8)
        );
        assert_eq!(table.labels[sample], sample as i64);
        assert!(
            table
                .name(sample)
                .ends_with(&format!("folder/{sample}.jpg"))
        );
    }
}

#[test]
fn long_names_are_read_whatever_the_size_of_reads() {
    let lengths = [0, 1, 511, 512, 513, 5000, 70_000, 3];
    let bytes = archive(&lengths);
    for sizes in SIZES {
        let table = MemoryShard::new(&bytes).scan(sizes, Some("cls")).unwrap();
        check(&bytes, &table, &lengths);
    }
}

#[test]
fn images_that_are_read_through_have_a_checksum_and_all_have_one_on_demand() {
    let lengths = [700, 0, 3, 70_000, 513];
    let bytes = archive(&lengths);
    let right: Vec<u64> = (0..)
        .zip(&lengths)
        .map(|(sample, &length)| xxh3_64(&vec![sample; length]))
        .collect();
    for sizes in SIZES {
        let shard = MemoryShard {
            reads_images: true,
            ..MemoryShard::new(&bytes)
        };
        let table = shard.scan(sizes, Some("cls")).unwrap();
        check(&bytes, &table, &lengths);
        assert_eq!(table.checksums, right);
    }
    let through = MemoryShard::new(&bytes).scan(ReadSizes::REMOTE, Some("cls"));
    assert_eq!(through.unwrap().checksums, right);
    let large = archive(&[300_000; 30]);
    let hops = MemoryShard::new(&large).scan(ReadSizes::REMOTE, Some("cls"));
    assert!(hops.unwrap().checksums.is_empty());
}

#[test]
fn a_small_shard_is_read_by_one_request() {
    for lengths in [&[2000; 500][..], &[2_000_000; 3]] {
        let bytes = archive(lengths);
        let shard = MemoryShard::new(&bytes);
        let table = shard.scan(ReadSizes::REMOTE, Some("cls")).unwrap();
        check(&bytes, &table, lengths);
        assert!(!table.checksums.is_empty());
        let read = (shard.reads.get(), shard.read_bytes.get());
        assert_eq!(read, (1, bytes.len() as u64));
    }
}

#[test]
fn images_that_are_read_through_are_kept_as_far_as_there_is_room() {
    let lengths = [700, 0, 3, 700, 513];
    let bytes = archive(&lengths);
    for sizes in [ReadSizes::REMOTE, SIZES[2]] {
        let stores = Stores::default().with_early_reads(1 << 20);
        let (table, early) = MemoryShard::new(&bytes)
            .scan_in(&stores, sizes, Some("cls"))
            .unwrap();
        assert_eq!(early.len(), lengths.len());
        for (sample, at) in table.at.iter().enumerate() {
            assert_eq!(early[at].bytes, vec![sample as u8; lengths[sample]]);
        }
        assert!(stores.early_reads().held() >= 1916);
        drop(early);
        assert_eq!(stores.early_reads().held(), 0);
        let stores = Stores::default().with_early_reads(1000);
        let some = MemoryShard::new(&bytes).scan_in(&stores, sizes, Some("cls"));
        let (again, early) = some.unwrap();
        assert_eq!((again, early.len()), (table, 2));
    }
}

#[test]
fn large_images_are_not_read_and_small_ones_need_few_reads() {
    let sizes = ReadSizes::REMOTE;
    let large = archive(&[2_000_000; 12]);
    let shard = MemoryShard::new(&large);
    shard.scan(sizes, Some("cls")).unwrap();
    assert!(shard.reads.get() <= 13, "{:?}", shard.reads);
    assert!(shard.read_bytes.get() < 400_000, "{:?}", shard.read_bytes);
    let small = archive(&[2000; 2000]);
    let shard = MemoryShard::new(&small);
    shard.scan(sizes, Some("cls")).unwrap();
    assert!(
        shard.reads.get() <= 2 + small.len() as u64 / sizes.through,
        "{:?}",
        shard.reads
    );
    assert!(shard.read_bytes.get() <= small.len() as u64 + sizes.first);
}

#[test]
fn members_without_data_and_other_files_are_passed_over() {
    let mut archive = Builder::new(Vec::new());
    // A hard link whose size field is that of its target, which does not follow.
    let mut link = header(EntryType::Link, 4096);
    archive.append_link(&mut link, "b.jpg", "a.jpg").unwrap();
    archive
        .append_data(&mut header(EntryType::Directory, 0), "d/", &[][..])
        .unwrap();
    archive
        .append_data(
            &mut header(EntryType::XGlobalHeader, 11),
            "g",
            &b"11 comment=x"[..11],
        )
        .unwrap();
    archive
        .append_data(&mut header(EntryType::Regular, 3), "d/a.jpg", &b"abc"[..])
        .unwrap();
    archive
        .append_data(&mut header(EntryType::Regular, 1), "d/a.cls", &b"7"[..])
        .unwrap();
    let bytes = archive.into_inner().unwrap();
    let table = scan(&bytes).unwrap();
    assert_eq!(
        (table.name(0), table.labels[0], table.len()),
        ("d/a.jpg", 7, 1)
    );
}

#[test]
fn a_pax_header_overrules_name_and_size() {
    let mut archive = Builder::new(Vec::new());
    let records = [("path", &b"long/name.jpg"[..]), ("size", b"5")];
    archive.append_pax_extensions(records).unwrap();
    // The size field is that of a file too large for it.
    archive
        .append_data(
            &mut header(EntryType::Regular, 5),
            "short.jpg",
            &b"12345"[..],
        )
        .unwrap();
    archive
        .append_data(
            &mut header(EntryType::Regular, 1),
            "long/name.cls",
            &b"1"[..],
        )
        .unwrap();
    let bytes = archive.into_inner().unwrap();
    assert_eq!(scan(&bytes).unwrap().name(0), "long/name.jpg");
}

#[test]
fn a_long_name_that_is_cut_behind_a_slash_is_no_folder() {
    let mut archive = Builder::new(Vec::new());
    let name = format!("{}a.jpg", "long/".repeat(30));
    archive
        .append_pax_extensions([("path", name.as_bytes())])
        .unwrap();
    let mut header = header(EntryType::Regular, 3);
    // As programs write it: the first 100 bytes of the name.
    header
        .as_old_mut()
        .name
        .copy_from_slice(&name.as_bytes()[..100]);
    header.set_cksum();
    archive.append(&header, &b"abc"[..]).unwrap();
    let bytes = archive.into_inner().unwrap();
    let table = MemoryShard::new(&bytes)
        .scan(ReadSizes::LOCAL, None)
        .unwrap();
    assert_eq!((table.name(0), table.lengths[0]), (name.as_str(), 3));
}

#[test]
fn an_archive_may_end_with_its_last_member() {
    let bytes = archive(&[100, 200]);
    let end = bytes.len() - 1024;
    check(&bytes, &scan(&bytes[..end]).unwrap(), &[100, 200]);
}

#[test]
fn every_cut_is_named_with_its_offset() {
    let bytes = archive(&[100, 700]);
    let end = bytes.len() - 1024;
    for cut in 1..end {
        match scan(&bytes[..cut]) {
            // Cut between two samples, or within the zeros after the last one.
            Ok(table) => assert!(table.len() == 1 || cut > end - 512, "{cut}"),
            Err(why) => {
                let is_named = why.contains("x.tar") && why.contains("cut off");
                assert!(is_named, "{cut}: {why}");
            }
        }
    }
    assert!(scan(&[]).unwrap_err().contains("cut off"));
    assert_eq!(scan(&[0; 1024]).unwrap().len(), 0);
    assert_eq!(scan(&[0; 10_240]).unwrap().len(), 0);
    assert!(
        scan(&[0; 10_752])
            .unwrap_err()
            .contains("begins with zeros")
    );
}

#[test]
fn hostile_headers_are_refused() {
    let of = |kind: EntryType, size: u64, name: &str| {
        let mut header = header(kind, size);
        header.set_path(name).unwrap();
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&[b'7'; 2048]);
        scan(&bytes).unwrap_err()
    };
    assert!(of(EntryType::Regular, u64::MAX, "a.jpg").contains("cut off: a.jpg"));
    assert!(of(EntryType::Regular, u64::MAX - 511, "a.jpg").contains("cut off"));
    assert!(of(EntryType::GNULongName, 1 << 40, "a").contains("not plausible"));
    assert!(of(EntryType::GNULongName, 4096, "a").contains("cut off"));
    assert!(of(EntryType::new(b'?'), u64::MAX, "a").contains("cut off"));
    // The block after the member is no header.
    assert!(of(EntryType::Regular, 4, "a.jpg").contains("its header at byte 1024 is broken"));
    assert!(
        scan(&[&[0x1f, 0x8b][..], &[7; 600]].concat())
            .unwrap_err()
            .contains("compressed by gzip")
    );
    assert!(
        scan(&[b'x'; 600])
            .unwrap_err()
            .contains("its header at byte 0 is broken")
    );
}

/// Returns a header with these bytes at these offsets, and its checksum.
fn odd_header(kind: u8, size: u64, name: &str, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut header = header(EntryType::new(kind), size);
    header.set_path(name).unwrap();
    let mut block = *header.as_bytes();
    for (at, field) in fields {
        block[*at..*at + field.len()].copy_from_slice(field);
    }
    repair_checksum(&mut block, 0);
    block.to_vec()
}

/// Fills up to whole blocks.
fn blocks(content: &[u8]) -> Vec<u8> {
    let mut blocks = content.to_vec();
    blocks.resize(content.len().next_multiple_of(512), 0);
    blocks
}

#[test]
fn an_unusual_member_hides_no_other_one() {
    const NO_SIZE: (usize, &[u8]) = (124, &[0; 12]);
    let gnu_map = |blocks: usize| {
        let mut map = odd_header(b'S', 600, "d/a.jpg", &[(482, &[u8::from(blocks > 0)])]);
        for block in 0..blocks {
            let mut more = [0; 512];
            more[504] = u8::from(block + 1 < blocks);
            map.extend_from_slice(&more);
        }
        [map, blocks_of(600)].concat()
    };
    let pax = |records: &[u8]| {
        let header = odd_header(b'x', records.len() as u64, "PaxHeaders/a", &[]);
        [header, blocks(records)].concat()
    };
    let signed = |name: &str| {
        let block = odd_header(b'0', 0, name, &[]);
        let sum: i64 = block
            .iter()
            .enumerate()
            .map(|(at, &byte)| match at {
                148..156 => 32,
                _ => i64::from(byte.cast_signed()),
            })
            .sum();
        [
            &block[..148],
            format!("{sum:06o}\0 ").as_bytes(),
            &block[156..],
        ]
        .concat()
    };
    for (what, member, left_out) in [
        (
            "the label of a volume",
            odd_header(b'V', 0, "volume", &[NO_SIZE]),
            0,
        ),
        (
            "a rest of another volume",
            [odd_header(b'M', 700, "a.jpg", &[]), blocks_of(700)].concat(),
            0,
        ),
        (
            "a list of a folder",
            [odd_header(b'D', 700, "d/", &[]), blocks_of(700)].concat(),
            0,
        ),
        (
            "a type that nobody knows",
            [odd_header(b'?', 700, "a.jpg", &[]), blocks_of(700)].concat(),
            0,
        ),
        ("a device", odd_header(b'3', 0, "a.jpg", &[NO_SIZE]), 0),
        (
            "spaces around a size",
            [
                odd_header(b'0', 3, "README", &[(124, b"  3 \0       ")]),
                blocks_of(3),
            ]
            .concat(),
            0,
        ),
        (
            "a size in bytes",
            [
                odd_header(
                    b'0',
                    3,
                    "README",
                    &[(124, b"\x80\0\0\0\0\0\0\0\0\0\x02\x01")],
                ),
                blocks_of(513),
            ]
            .concat(),
            0,
        ),
        ("a sum of signed bytes", signed("\u{e4}"), 0),
        ("a sparse image", gnu_map(0), 1),
        ("a sparse image of many pieces", gnu_map(1), 1),
        ("a sparse image of very many pieces", gnu_map(7), 1),
        (
            "another sparse file",
            [
                pax(b"22 GNU.sparse.major=1\n"),
                odd_header(b'0', 600, "README", &[]),
                blocks_of(600),
            ]
            .concat(),
            0,
        ),
        (
            "a sparse image in a pax archive",
            [
                pax(b"22 GNU.sparse.major=1\n27 GNU.sparse.name=d/a.jpg\n23 path=d/Sparse.1/abc\n"),
                odd_header(b'0', 600, "d/GNUSparseFile.0/a.jpg", &[]),
                blocks_of(600),
            ]
            .concat(),
            1,
        ),
        (
            "a pax header of Solaris",
            [
                {
                    let mut solaris = pax(b"15 path=README\n");
                    solaris[156] = b'X';
                    repair_checksum(&mut solaris, 0);
                    solaris
                },
                odd_header(b'0', 600, "a.jpg", &[]),
                blocks_of(600),
            ]
            .concat(),
            0,
        ),
    ] {
        for sizes in SIZES {
            let mut bytes = member.clone();
            bytes.extend_from_slice(&archive(&[100, 700]));
            let table = MemoryShard::new(&bytes)
                .scan(sizes, Some("cls"))
                .expect(what);
            check(&bytes, &table, &[100, 700]);
            assert_eq!(table.left_out, left_out, "{what}: {}", table.first_left_out);
        }
    }
}

fn blocks_of(length: usize) -> Vec<u8> {
    blocks(&vec![b'7'; length])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_lengths_are_found(lengths in proptest::collection::vec(0usize..3000, 1..20), sizes in 0..SIZES.len()) {
        let bytes = archive(&lengths);
        let table = MemoryShard::new(&bytes).scan(SIZES[sizes], Some("cls")).unwrap();
        check(&bytes, &table, &lengths);
    }

    #[test]
    fn a_damaged_archive_neither_panics_nor_gives_an_unsound_table(
        changes in proptest::collection::vec((0usize..20_000, any::<u8>()), 1..8),
        cut in 0usize..20_000,
        sizes in 0..SIZES.len(),
    ) {
        let mut bytes = archive(&[100, 0, 1500, 600]);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
            repair_checksum(&mut bytes, at);
        }
        bytes.truncate(bytes.len().max(1) - cut % bytes.len());
        if let Ok(table) = MemoryShard::new(&bytes).scan(SIZES[sizes], Some("cls")) {
            prop_assert!(table.is_sound(bytes.len() as u64, true));
        }
    }
}

/// Sets the checksum of the block of a byte, so that a changed header is looked at.
fn repair_checksum(bytes: &mut [u8], at: usize) {
    let start = at / 512 * 512;
    if let Some(block) = bytes.get_mut(start..start + 512) {
        let mut header = Header::from_byte_slice(block).clone();
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
    }
}
