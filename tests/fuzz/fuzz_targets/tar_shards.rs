//! Fuzzes the opening of a tar shard with any content, and any indexes beside it.
//!
//! Opening must never panic, and must never give a sample that does not lie in the shard, behind the one before.
//!
//! An input says how long the parts are: the shard, coprep's index beside it, and DALI's. The checksums of the shard's
//! headers are repaired, because mutation alone would hardly get past them.
#![no_main]

use std::path::Path;
use std::time::UNIX_EPOCH;

use coprep_fuzz::Bytes;
use coprep_protocol::spec::TarShards;
use coprep_shards::{Checksums, IndexFolder, open, write_indexes};
use coprep_storage::Stores;
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

const BLOCK: usize = 512;

fuzz_target!(init: coprep_fuzz::seed(&seeds()), |data: &[u8]| {
    let mut input = Bytes(data);
    let (shard, index) = (input.small() as usize, input.small() as usize);
    let scratch = tempfile::tempdir().expect("a folder");
    let mut archive = input.some(shard).to_vec();
    archive.chunks_exact_mut(BLOCK).for_each(repair);
    let mut own = input.some(index).to_vec();
    repair_index(&mut own);
    let list = put(scratch.path(), &archive, &own, input.0);
    let folder = IndexFolder::at(&scratch.path().join("indexes"));
    let Ok(opened) = open(&list, &Stores::default(), &folder, &mut |_| true) else {
        return;
    };
    let (mut bytes, mut end) = (Vec::new(), 0);
    for id in 0..opened.samples.len() as u32 {
        let _ = opened.samples.name(id);
        let _ = opened.samples.is_intact(id, b"x");
        let extent = opened.samples.extent(id);
        assert!(extent.at >= end, "sample {id} begins before the end of the one before");
        end = extent.at + opened.samples.length(id);
        opened
            .objects
            .read(extent, &mut bytes)
            .expect("a sample lies in its shard");
    }
});

/// Writes a shard and the files beside it, and returns the list of it.
fn put(folder: &Path, archive: &[u8], own: &[u8], dali: &[u8]) -> TarShards {
    let shard = folder.join("x.tar");
    std::fs::write(&shard, archive).expect("a file");
    // The same time for every run, since an index holds it.
    let file = std::fs::File::options().write(true).open(&shard).expect("it is there");
    file.set_modified(UNIX_EPOCH).expect("a time");
    std::fs::write(folder.join("x.tar.coprep"), own).expect("a file");
    std::fs::write(folder.join("x.idx"), dali).expect("a file");
    let name = shard.display().to_string();
    TarShards::named(&[name], "jpg", Some("cls")).expect("it is a name")
}

/// Writes the checksum of a block into it, as if it were a header.
fn repair(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Writes length and checksum into an index.
fn repair_index(index: &mut [u8]) {
    if let Some((header, archive)) = index.split_at_mut_checked(32) {
        header[16..24].copy_from_slice(&(archive.len() as u64).to_le_bytes());
        header[24..32].copy_from_slice(&xxh3_64(archive).to_le_bytes());
    }
}

/// Returns an input with two samples, with an index beside them and without.
fn seeds() -> Vec<Vec<u8>> {
    let mut archive = Vec::new();
    for (name, content) in [("a.jpg", "x"), ("a.cls", "1"), ("b.jpg", "yz"), ("b.cls", "2")] {
        let mut block = [0; BLOCK];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        block[156] = b'0';
        repair(&mut block);
        archive.extend_from_slice(&block);
        let mut data = [0; BLOCK];
        data[..content.len()].copy_from_slice(content.as_bytes());
        archive.extend_from_slice(&data);
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let list = put(scratch.path(), &archive, &[], &[]);
    let (folder, out) = (IndexFolder::at(scratch.path()), scratch.path().join("out"));
    write_indexes(&list, &Stores::default(), &folder, Some(&out), Checksums::All, &mut |_| true).expect("all is well");
    let own = std::fs::read(out.join("x.tar.coprep")).expect("it is there");
    let dali = b"v1.2 2\njpg 512 1 a.jpg cls 1536 1 a.cls\njpg 2560 2 b.jpg cls 3584 1 b.cls\n";
    let input = |own: &[u8], dali: &[u8]| {
        let mut input = (archive.len() as u16).to_le_bytes().to_vec();
        input.extend_from_slice(&(own.len() as u16).to_le_bytes());
        [&input, &archive[..], own, dali].concat()
    };
    vec![input(&own, b""), input(b"", dali), input(b"", b"")]
}
