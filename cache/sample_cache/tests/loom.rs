//! Models of the steps of the table of samples, over every interleaving and every value that weak memory allows.
//!
//! ```sh
//! cargo test -p coprep-cache --features loom --test loom
//! ```
//!
//! Loom reports a payload that is written while it is read as a causality violation.
#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(unsafe_code, reason = "loom's cells, which check what is claimed")]

#[path = "../../shared_memory/tests/common/model.rs"]
mod model;

use std::sync::Arc;

use coprep_cache::table::{CachedAt, PresenceTable};
use loom::sync::RwLock;
use loom::thread;
use model::{Buffer, model};

#[test]
fn a_sample_is_cached_by_one_writer_and_found_whole() {
    model(3, || {
        let (table, payload) = (Arc::new(PresenceTable::new(1)), Buffer::new());
        let put = |value| {
            let (table, payload) = (table.clone(), payload.clone());
            thread::spawn(move || {
                let is_writer = table.begin(0);
                if is_writer {
                    payload.write(value);
                    let (position, checked) = (value as u32, true);
                    table.set(0, CachedAt { position, checked });
                }
                is_writer
            })
        };
        let writers = [put(1), put(2)];
        if let Some(present) = table.get(0) {
            assert_eq!(payload.read(), u64::from(present.position));
        }
        let wrote = writers.map(|writer| writer.join().unwrap());
        assert!(wrote[0] != wrote[1]);
    });
}

/// The steps of `NoEviction::withdraw`: the first thread that finds damage frees the room, and nobody reads it any more.
/// Read locks stand for the guards of an epoch, and the write lock for the end of the epoch.
#[test]
fn the_room_of_a_damaged_sample_is_another_s_only_when_nobody_looks_at_it() {
    model(2, || {
        let (table, payload) = (Arc::new(PresenceTable::new(2)), Buffer::new());
        let looks = Arc::new(RwLock::new(()));
        let unchecked = CachedAt {
            position: 5,
            checked: false,
        };
        table.set(0, unchecked);
        let hit = {
            let (table, payload, looks) = (table.clone(), payload.clone(), looks.clone());
            move || {
                if table.get(0).is_none_or(|present| present.checked) {
                    return false;
                }
                let look = looks.read().unwrap();
                let Some(present) = table.get(0).filter(|present| !present.checked) else {
                    return false;
                };
                assert_eq!(payload.read(), 0, "another's");
                let is_ours = table.withdraw(0, present);
                if is_ours {
                    table.give_up(0);
                }
                drop(look);
                if is_ours {
                    drop(looks.write().unwrap());
                    // The room is free, and another sample may take it at once.
                    payload.write(9);
                }
                is_ours
            }
        };
        let other = thread::spawn(hit.clone());
        let (ours, theirs) = (hit(), other.join().unwrap());
        assert!(ours != theirs && table.begin(0));
    });
}
