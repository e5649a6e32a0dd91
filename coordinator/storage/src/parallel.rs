//! Work on many objects at once, most of which waits for a store.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// Objects that are read at once, in a store and on a local disk.
const REMOTE_AT_ONCE: usize = 64;
const LOCAL_AT_ONCE: usize = 8;

/// Does `count` pieces of work on several threads, more of them for objects in a store. `take` is given the number and the
/// result of each, as they end, and ends the work by `false`.
pub fn in_parallel<T: Send>(
    count: usize,
    is_remote: bool,
    work: &(dyn Fn(usize) -> T + Sync),
    take: &mut dyn FnMut(usize, T) -> bool,
) {
    let at_once = if is_remote {
        REMOTE_AT_ONCE
    } else {
        LOCAL_AT_ONCE
    };
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(count) {
            let (sender, next, is_over) = (sender.clone(), &next, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if piece >= count {
                        return;
                    }
                    // The receiver is there as long as this scope.
                    let _ = sender.send((piece, work(piece)));
                }
            });
        }
        drop(sender);
        for (piece, result) in done {
            if !take(piece, result) {
                is_over.store(true, Ordering::Relaxed);
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_is_done_once() {
        for (count, is_remote) in [(0, true), (3, false), (500, true)] {
            let mut done = vec![0; count];
            in_parallel(count, is_remote, &|piece| piece * 2, &mut |piece, twice| {
                assert_eq!(twice, piece * 2);
                done[piece] += 1;
                true
            });
            assert!(done.iter().all(|&times| times == 1), "{done:?}");
        }
    }

    #[test]
    fn work_ends_when_it_is_told() {
        let (mut taken, made) = (0, AtomicUsize::new(0));
        let work = |_| {
            made.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        in_parallel(100_000, false, &work, &mut |_, ()| {
            taken += 1;
            false
        });
        assert_eq!(taken, 1);
        assert!(made.into_inner() < 100_000);
    }
}
