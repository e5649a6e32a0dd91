//! Tests the opening of shards in local folders and in a store: reads, index files, and shards that are refused.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::path::Path;
use std::time::{Duration, Instant};

use coprep_object_server::{Faults, ObjectServer};
use coprep_protocol::spec::TarShards;
use coprep_shards::{Checksums, IndexFolder, IndexOrigins, OpenShards, open, write_indexes};
use coprep_storage::{Error, ErrorKind, Stores};
use tar::{Builder, Header};

const BUCKET: &str = "bucket";

fn shard(first: u32, samples: u32, length: usize) -> Vec<u8> {
    shard_of(0, first, samples, length)
}

/// Returns a shard whose files have a time of change.
fn shard_of(time: u64, first: u32, samples: u32, length: usize) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for sample in first..first + samples {
        let mut add = |ending: &str, content: &[u8]| {
            let mut header = Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(time);
            archive
                .append_data(&mut header, format!("{sample:06}.{ending}"), content)
                .unwrap();
        };
        add("jpg", &vec![sample as u8; length]);
        add("cls", sample.to_string().as_bytes());
    }
    archive.into_inner().unwrap()
}

fn server() -> (ObjectServer, Stores) {
    let server = ObjectServer::start().unwrap();
    let endpoint = format!("http://127.0.0.1:{}", server.port());
    let stores = Stores::new(Duration::from_secs(60))
        .with_variable("AWS_ENDPOINT_URL", &endpoint)
        .with_variable("AWS_ACCESS_KEY_ID", "key")
        .with_variable("AWS_SECRET_ACCESS_KEY", "secret");
    server.put(BUCKET, "", b"");
    (server, stores)
}

fn list(names: &[String]) -> TarShards {
    TarShards::named(names, "jpg", Some("cls")).unwrap()
}

fn in_bucket(text: &str) -> TarShards {
    list(&[format!("s3://{BUCKET}/{text}")])
}

fn opened(list: &TarShards, stores: &Stores, folder: &Path) -> Result<OpenShards, Error> {
    open(list, stores, &IndexFolder::at(folder), &mut |_| true)
}

fn origins(kept: usize, beside: usize, scanned: usize) -> IndexOrigins {
    IndexOrigins {
        kept,
        beside,
        scanned,
    }
}

/// Reads every sample, and checks its bytes and its label.
fn check(open: &OpenShards, samples: u32) {
    assert_eq!(open.samples.len(), samples as usize);
    let mut bytes = Vec::new();
    for id in 0..samples {
        open.objects
            .read(open.samples.extent(id), &mut bytes)
            .unwrap();
        assert_eq!(bytes.len() as u64, open.samples.length(id));
        assert!(bytes.iter().all(|&byte| byte == id as u8), "sample {id}");
        assert_eq!(open.labels[id as usize], i64::from(id));
        assert_eq!(open.samples.name(id), format!("{id:06}.jpg"));
    }
}

#[test]
fn samples_of_local_shards_are_read_with_few_open_files() {
    let scratch = tempfile::tempdir().unwrap();
    // More shards than are kept open.
    for number in 0..300 {
        std::fs::write(
            scratch.path().join(format!("{number:03}.tar")),
            shard(number * 2, 2, 3000),
        )
        .unwrap();
    }
    let list = list(&[format!("{}/{{000..299}}.tar", scratch.path().display())]);
    let folder = scratch.path().join("indexes");
    let first = opened(&list, &Stores::default(), &folder).unwrap();
    assert_eq!(first.origins, origins(0, 0, 300));
    check(&first, 600);
    let open_files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_shard = |path: &Path| path.starts_with(scratch.path());
    let open_shards =
        open_files.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|p| is_shard(&p)));
    assert!(open_shards.count() <= 128);
    let second = opened(&list, &Stores::default(), &folder).unwrap();
    assert_eq!(second.origins, origins(300, 0, 0));
    check(&second, 600);
}

#[test]
fn an_index_is_reused_without_a_request_and_made_anew_for_a_replaced_shard() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    for number in 0..4 {
        server.put(
            BUCKET,
            &format!("t-{number}.tar"),
            &shard(number * 50, 50, 2000),
        );
    }
    let list = in_bucket("t-{0..3}.tar");
    let first = opened(&list, &stores, scratch.path()).unwrap();
    assert_eq!(first.origins, origins(0, 0, 4));
    let counts = server.counts();
    // A read for each shard; listings for the shards, and for indexes beside them.
    assert!(
        counts.gets == 4 && counts.lists <= 4 && counts.heads == 0,
        "{counts:?}"
    );
    check(&first, 200);
    let before = server.counts();
    assert_eq!(before.gets, counts.gets + 200);
    assert_eq!(before.matched, before.gets);
    let second = opened(&list, &stores, scratch.path()).unwrap();
    assert_eq!(second.origins, origins(4, 0, 0));
    assert_eq!(server.counts().gets, before.gets);
    server.put(BUCKET, "t-3.tar", &shard(150, 30, 2000));
    let third = opened(&list, &stores, scratch.path()).unwrap();
    assert_eq!(third.origins, origins(3, 0, 1));
    check(&third, 180);
}

#[test]
fn images_that_were_read_for_an_index_are_taken_once_and_from_the_same_content_only() {
    let (server, stores) = server();
    let stores = stores.with_early_reads(1 << 20);
    let scratch = tempfile::tempdir().unwrap();
    server.put(BUCKET, "t-0.tar", &shard(0, 50, 2000));
    server.put(BUCKET, "t-1.tar", &shard(50, 50, 2000));
    let list = in_bucket("t-{0..1}.tar");
    drop(opened(&list, &stores, scratch.path()).unwrap());
    server.put(BUCKET, "t-1.tar", &shard(60, 50, 2000));
    // The index is kept, and the images are those of the opening before.
    let again = opened(&list, &stores, scratch.path()).unwrap();
    assert_eq!(again.origins, origins(1, 0, 1));
    assert_eq!(server.counts().gets, 3);
    let take = |open: &OpenShards, id: u32| {
        let extent = open.samples.extent(id);
        let early = open.early[extent.object as usize].as_ref()?;
        early.take(extent.at, open.samples.length(id))
    };
    for (id, content) in [(0, 0), (49, 49), (50, 60), (99, 109)] {
        assert_eq!(take(&again, id).unwrap().bytes, vec![content; 2000]);
        assert!(take(&again, id).is_none());
    }
    let other_parts = TarShards::named(&[format!("s3://{BUCKET}/t-0.tar")], "jpg", None).unwrap();
    let other = opened(&other_parts, &stores, scratch.path()).unwrap();
    assert_eq!(take(&other, 0).unwrap().bytes, vec![0; 2000]);
}

#[test]
fn a_shard_that_is_replaced_while_it_is_opened_is_listed_anew() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    server.put(BUCKET, "t-0.tar", &shard(0, 5, 2000));
    // The listing is answered with what was there when it was asked for.
    server.set(Faults {
        latency: Duration::from_secs(1),
        ..Faults::default()
    });
    let list = in_bucket("t-0.tar");
    let open = std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(60);
            while server.counts().lists == 0 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.put(BUCKET, "t-0.tar", &shard(0, 7, 1000));
        });
        opened(&list, &stores, scratch.path()).unwrap()
    });
    server.set(Faults::default());
    assert!(server.counts().lists > 2, "{:?}", server.counts());
    check(&open, 7);
}

#[test]
fn an_index_beside_a_shard_spares_the_reads_and_is_checked() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    let (made, out) = (scratch.path().join("made"), scratch.path().join("out"));
    server.put(BUCKET, "d/t-0.tar", &shard(0, 20, 300_000));
    server.put(BUCKET, "d/t-1.tar", &shard(20, 20, 300_000));
    let list = in_bucket("d/t-{0..1}.tar");
    let summary = write_indexes(
        &list,
        &stores,
        &IndexFolder::at(&made),
        Some(&out),
        Checksums::IfFree,
        &mut |_| true,
    )
    .unwrap();
    assert_eq!((summary.shards, summary.samples), (2, 40));
    for number in 0..2 {
        let name = format!("t-{number}.tar.coprep");
        server.put(
            BUCKET,
            &format!("d/{name}"),
            &std::fs::read(out.join(&name)).unwrap(),
        );
    }
    let before = server.counts().gets;
    let open = opened(&list, &stores, &scratch.path().join("other")).unwrap();
    assert_eq!(open.origins, origins(0, 2, 0));
    // The index of each shard, whose ETag is that of its content.
    assert_eq!(server.counts().gets, before + 2);
    check(&open, 40);
    // Another shard of the same length: the index beside it lies.
    let mut other = shard(20, 20, 299_000);
    other.resize(shard(20, 20, 300_000).len(), 0);
    server.put(BUCKET, "d/t-1.tar", &other);
    let open = opened(&list, &stores, &scratch.path().join("third")).unwrap();
    assert_eq!(open.origins, origins(0, 1, 1));
    check(&open, 40);
    // Damaged bytes are no index.
    server.put(BUCKET, "d/t-0.tar.coprep", b"coprepTI damaged");
    let open = opened(&list, &stores, &scratch.path().join("fourth")).unwrap();
    assert_eq!(open.origins, origins(0, 0, 2));
}

/// Returns a shard with the same images in the same places, whose labels are one higher.
fn relabelled(time: u64) -> Vec<u8> {
    let (mut corrected, other) = (shard_of(time, 0, 3, 2000), shard_of(time, 1, 3, 2000));
    // A sample has a header and its image, which is filled up to 2048 bytes, and a header and its label.
    let labels = (0..3).map(|sample| sample * 3584 + 512 + 2048 + 512);
    labels.for_each(|at| corrected[at] = other[at]);
    corrected
}

fn indexed(list: &TarShards, stores: &Stores, scratch: &Path) -> Vec<u8> {
    let (made, out) = (IndexFolder::at(&scratch.join("made")), scratch.join("out"));
    write_indexes(
        list,
        stores,
        &made,
        Some(&out),
        Checksums::IfFree,
        &mut |_| true,
    )
    .unwrap();
    std::fs::read(out.join("t.tar.coprep")).unwrap()
}

#[test]
fn the_index_beside_a_shard_that_was_replaced_by_one_of_its_size_is_not_used() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let put_local = |name: &str, content: &[u8]| std::fs::write(path(name), content).unwrap();
    let put_remote = |name: &str, content: &[u8]| server.put(BUCKET, name, content);
    let check_in = |list: &TarShards, put: &dyn Fn(&str, &[u8]), indexes: &Path| {
        put("t.tar", &shard(0, 3, 2000));
        put("t.tar.coprep", &indexed(list, &stores, indexes));
        let before = opened(list, &stores, &indexes.join("before")).unwrap();
        assert_eq!(before.origins, origins(0, 1, 0));
        // The clock of a file system advances every few milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        put("t.tar", &relabelled(0));
        let after = opened(list, &stores, &indexes.join("after")).unwrap();
        assert_eq!(after.origins, origins(0, 0, 1));
        assert_eq!(after.labels, [1, 2, 3]);
    };
    let in_folder = list(&[path("t.tar").display().to_string()]);
    check_in(&in_folder, &put_local, &path("local"));
    check_in(&in_bucket("t.tar"), &put_remote, &path("remote"));
}

#[test]
fn a_copy_is_known_by_the_times_in_its_headers() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    let local = scratch.path().join("t.tar");
    std::fs::write(&local, shard_of(1, 0, 3, 2000)).unwrap();
    let in_folder = list(&[local.display().to_string()]);
    let index = indexed(&in_folder, &stores, scratch.path());
    server.put(BUCKET, "t.tar", &shard_of(1, 0, 3, 2000));
    server.put(BUCKET, "t.tar.coprep", &index);
    let copy = opened(&in_bucket("t.tar"), &stores, &scratch.path().join("copy")).unwrap();
    assert_eq!(copy.origins, origins(0, 1, 0));
    check(&copy, 3);
    server.put(BUCKET, "t.tar", &relabelled(2));
    let other = opened(&in_bucket("t.tar"), &stores, &scratch.path().join("other")).unwrap();
    assert_eq!(
        (other.origins, other.labels),
        (origins(0, 0, 1), vec![1, 2, 3])
    );
}

#[test]
fn an_index_file_that_is_too_large_for_its_shard_is_not_read() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("t.tar");
    std::fs::write(&path, shard(0, 3, 2000)).unwrap();
    // Lines without members are none, so that these are indexes of the shard all the same.
    let dali =
        "v1.1 3\njpg 512 2000 cls 3072 1\njpg 4096 2000 cls 6656 1\njpg 7680 2000 cls 10240 1\n";
    let large = format!("{dali}{}", "\n".repeat(64 << 10));
    let at_server = format!("http://127.0.0.1:{}/{BUCKET}/t.tar", server.port());
    server.put(BUCKET, "t.tar", &shard(0, 3, 2000));
    let places = [
        path.display().to_string(),
        format!("s3://{BUCKET}/t.tar"),
        at_server,
    ];
    for (number, place) in places.into_iter().enumerate() {
        for (content, origins) in [(dali, origins(0, 1, 0)), (&large[..], origins(0, 0, 1))] {
            std::fs::write(scratch.path().join("t.idx"), content).unwrap();
            server.put(BUCKET, "t.idx", content.as_bytes());
            let folder = scratch.path().join(format!("{number}-{}", content.len()));
            let open = opened(&list(std::slice::from_ref(&place)), &stores, &folder).unwrap();
            assert_eq!(open.origins, origins, "{place}");
            assert_eq!(open.labels, [0, 1, 2]);
        }
    }
}

#[test]
fn images_of_all_sizes_have_checksums_if_somebody_wants_them() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    let folder = IndexFolder::at(scratch.path());
    server.put(BUCKET, "small-0.tar", &shard(0, 5, 2000));
    // Larger than what is read whole.
    server.put(BUCKET, "large-0.tar", &shard(5, 30, 300_000));
    let open = |name: &str| opened(&in_bucket(name), &stores, scratch.path()).unwrap();
    let is_verified = |open: &OpenShards| !open.samples.is_intact(3, b"another image");
    assert!(is_verified(&open("small-0.tar")) && !is_verified(&open("large-0.tar")));
    let list = in_bucket("{small,large}-0.tar");
    let made = write_indexes(&list, &stores, &folder, None, Checksums::All, &mut |_| true);
    // Also the shards that have an index.
    assert_eq!(made.unwrap().origins, origins(0, 0, 2));
    let both = open("{small,large}-0.tar");
    assert_eq!(both.origins, origins(2, 0, 0));
    for id in 0..35 {
        let mut bytes = Vec::new();
        both.objects
            .read(both.samples.extent(id), &mut bytes)
            .unwrap();
        assert!(both.samples.is_intact(id, &bytes));
        bytes[1000] ^= 1;
        assert!(!both.samples.is_intact(id, &bytes));
    }
}

#[test]
fn an_index_of_dali_is_followed_if_it_fits() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("t.x.tar");
    std::fs::write(&path, shard(0, 2, 1000)).unwrap();
    // Headers lie at 0, 1536, 2560 and 4096.
    let index = "v1.2 2\njpg 512 1000 000000.jpg cls 2048 1 000000.cls\njpg 3072 1000 000001.jpg cls 4608 1 000001.cls\n";
    std::fs::write(scratch.path().join("t.idx"), index).unwrap();
    let list = list(&[path.display().to_string()]);
    let open = opened(&list, &Stores::default(), &scratch.path().join("one")).unwrap();
    assert_eq!(open.origins, origins(0, 1, 0));
    check(&open, 2);
    // Its offsets are those of another shard.
    std::fs::write(scratch.path().join("t.idx"), index.replace("4608", "5120")).unwrap();
    let open = opened(&list, &Stores::default(), &scratch.path().join("two")).unwrap();
    assert_eq!(open.origins, origins(0, 0, 1));
    check(&open, 2);
}

#[test]
fn a_replaced_shard_is_asked_for_once_and_named() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    let local = scratch.path().join("t.tar");
    std::fs::write(&local, shard(0, 10, 2000)).unwrap();
    server.put(BUCKET, "t.tar", &shard(0, 10, 2000));
    let places = [
        (
            local.display().to_string(),
            list(&[local.display().to_string()]),
        ),
        (format!("s3://{BUCKET}/t.tar"), in_bucket("t.tar")),
    ];
    for (number, (name, list)) in (1..).zip(places) {
        let open = opened(&list, &stores, &scratch.path().join("indexes")).unwrap();
        let mut bytes = Vec::new();
        open.objects
            .read(open.samples.extent(0), &mut bytes)
            .unwrap();
        // The clock of a file system advances every few milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        std::fs::write(&local, shard(number, 10, 2000)).unwrap();
        server.put(BUCKET, "t.tar", &shard(number, 10, 2000));
        let before = server.counts().gets;
        for id in 0..10 {
            let error = open
                .objects
                .read(open.samples.extent(id), &mut bytes)
                .unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Changed);
            assert!(error.to_string().contains(&name), "{error}");
        }
        assert!(server.counts().gets <= before + 1);
    }
}

#[test]
fn the_first_bad_shard_is_named() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    for number in 0..6 {
        server.put(BUCKET, &format!("t-{number}.tar"), &shard(0, 3, 2000));
    }
    let refused = |text: &str| {
        let refused = opened(&in_bucket(text), &stores, scratch.path()).unwrap_err();
        (*refused.kind(), refused.to_string())
    };
    let (kind, text) = refused("t-{0..7}.tar");
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(
        text.contains("2 shards do not exist, among them s3://bucket/t-6.tar"),
        "{text}"
    );
    server.put(BUCKET, "t-2.tar", &shard(0, 3, 2000)[..3000]);
    let (kind, text) = refused("t-{0..5}.tar");
    assert_eq!(kind, ErrorKind::Invalid);
    let part = "the shard s3://bucket/t-2.tar cannot be used: it is cut off";
    assert!(
        text.contains(part) && text.contains("at byte 2560"),
        "{text}"
    );
    let lost = write_indexes(
        &list(&[
            format!("s3://{BUCKET}/a/t.tar"),
            format!("s3://{BUCKET}/b/t.tar"),
        ]),
        &stores,
        &IndexFolder::at(scratch.path()),
        Some(scratch.path()),
        Checksums::IfFree,
        &mut |_| true,
    );
    assert!(
        lost.unwrap_err()
            .to_string()
            .contains("two shards have the name t.tar")
    );
}

#[test]
fn shards_on_a_web_server_are_asked_for_one_by_one() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    server.put(BUCKET, "t-0.tar", &shard(0, 5, 2000));
    server.put(BUCKET, "t-1.tar", &shard(5, 5, 2000));
    let list = list(&[format!(
        "http://127.0.0.1:{}/{BUCKET}/t-{{0,1}}.tar",
        server.port()
    )]);
    let open = opened(&list, &stores, scratch.path()).unwrap();
    check(&open, 10);
    let counts = server.counts();
    // The shards, and two files that may lie beside each.
    assert_eq!((counts.heads, counts.lists), (6, 0));
}

#[test]
fn a_store_that_fails_is_an_error_within_seconds() {
    let (server, stores) = server();
    let scratch = tempfile::tempdir().unwrap();
    server.put(BUCKET, "t.tar", &shard(0, 5, 2000));
    server.set(Faults {
        error_every: 1,
        ..Faults::default()
    });
    let began = Instant::now();
    let error = opened(&in_bucket("t.tar"), &stores, scratch.path()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(40));
}

#[test]
fn nobody_who_waits_ends_the_opening() {
    let scratch = tempfile::tempdir().unwrap();
    for number in 0..50 {
        std::fs::write(
            scratch.path().join(format!("{number}.tar")),
            shard(0, 1, 10),
        )
        .unwrap();
    }
    let list = list(&[format!("{}/{{0..49}}.tar", scratch.path().display())]);
    let folder = scratch.path().join("indexes");
    let mut told = 0;
    let ended = open(
        &list,
        &Stores::default(),
        &IndexFolder::at(&folder),
        &mut |_| {
            told += 1;
            told < 3
        },
    );
    assert!(ended.is_err());
    assert_eq!(told, 3);
}

/// Returns a shard whose members have these names, and as content a label.
fn shard_with(names: &[&str]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for name in names {
        let mut header = Header::new_ustar();
        header.set_size(1);
        archive.append_data(&mut header, name, &b"5"[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn samples_that_cannot_be_used_are_left_out_and_counted_however_the_shard_is_indexed() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    std::fs::write(path("0.tar"), shard(0, 3, 100)).unwrap();
    std::fs::write(path("1.tar"), shard_with(&["a.cls", "b\u{1b}.jpg"])).unwrap();
    std::fs::write(path("2.tar"), shard_with(&["x.jpg", "x.cls", "y.cls"])).unwrap();
    let dali = "v1.2 2\njpg 512 1 x.jpg cls 1536 1 x.cls\ncls 2560 1 y.cls\n";
    std::fs::write(path("2.idx"), dali).unwrap();
    let names = |numbers: &[u32]| -> Vec<String> {
        let name = |n: &u32| path(&format!("{n}.tar")).display().to_string();
        numbers.iter().map(name).collect()
    };
    let all = list(&names(&[0, 1, 2]));
    let (indexes, out) = (path("indexes"), path("out"));
    let check_all = |found: IndexOrigins| {
        let open = opened(&all, &Stores::default(), &indexes).unwrap();
        assert_eq!(open.origins, found);
        assert_eq!(
            (open.samples.len(), &open.labels[..]),
            (4, &[0, 1, 2, 5][..])
        );
        assert_eq!((open.samples.name(3), open.samples.shard(3)), ("x.jpg", 2));
        assert_eq!(open.left_out.count(), 3);
        let first = format!(
            "in the shard {}, the sample a has no image",
            path("1.tar").display()
        );
        assert!(
            open.left_out.first().starts_with(&first),
            "{:?}",
            open.left_out
        );
    };
    check_all(origins(0, 1, 2));
    check_all(origins(3, 0, 0));
    let folder = IndexFolder::at(&indexes);
    let made = write_indexes(
        &all,
        &Stores::default(),
        &folder,
        Some(&out),
        Checksums::All,
        &mut |_| true,
    );
    let made = made.unwrap();
    assert_eq!((made.samples, made.left_out.count()), (4, 3));
    std::fs::remove_dir_all(&indexes).unwrap();
    for number in 0..3 {
        let name = format!("{number}.tar.coprep");
        std::fs::copy(out.join(&name), path(&name)).unwrap();
    }
    check_all(origins(0, 3, 0));
    // Without any sample that can be used, there is no dataset.
    let refused = opened(&list(&names(&[1])), &Stores::default(), &indexes).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Invalid);
    let text = refused.to_string();
    assert!(
        text.contains("1.tar, the sample a has no image") && text.contains("image= and label="),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
}
