//! Listing a store, and finding objects by listings.
//!
//! Most stores list their keys in ascending order. Then a listing that failed goes on after the last key, and sparse keys
//! are found by listings that begin just before them. Some stores have another order: directory buckets of S3 (S3 Express),
//! WebDAV servers, and stores that sort folder by folder. Others begin at their first object wherever they are asked to. So
//! each listing is watched, and a store that keeps no order is listed from its beginning to its end.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::path::Path;

use super::{ListedObject, MOST_LISTED, OpeningTries, RemoteStore, quoted};
use crate::answer::{AnswerMeaning, FailedAnswer, interpret};
use crate::error::Error;
use crate::lap::{Lap, SAME_KEYS, TOKENS};
use crate::odd_keys;

/// Number of objects in a row that are not looked for, after which a listing goes on at the next one that is.
const MOST_PASSED_OVER: usize = 1000;
/// Number of objects in ascending order after which a store counts as one that keeps it. They come by one request, and
/// another order hardly has so many of them by chance.
const ORDERED_RUN: usize = 1000;

/// An event of a listing.
#[derive(Debug)]
pub enum ListEvent {
    /// The next object.
    Object(ListedObject),
    /// The key of an object that cannot be read: it has an empty part, a part `.` or `..`, or a control character.
    Unreadable(String),
    /// The listing failed, and the order of the store does not tell where it was. All objects come again.
    Restarted,
}

/// The order in which a store lists, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct ListingOrder {
    /// Keys came in another order than the ascending one.
    is_lost: AtomicBool,
    /// Many keys in a row came in ascending order.
    is_proven: AtomicBool,
    /// A listing did not begin where it was asked to.
    ignores_offsets: AtomicBool,
}

impl ListingOrder {
    /// Returns the order of a store. `is_lost` says that it is known to have another one than that of the keys.
    pub(super) fn new(is_lost: bool) -> Self {
        ListingOrder {
            is_lost: is_lost.into(),
            ..ListingOrder::default()
        }
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed) && !self.is_lost()
    }

    /// Returns `true` if a listing can go on after a key.
    fn can_go_on(&self) -> bool {
        self.is_proven() && !self.ignores_offsets.load(Ordering::Relaxed)
    }
}

/// The part of a listing that was visited. Its texts are paths, with a slash after those that can only be folders.
struct ListingProgress {
    /// The path after which the listing begins. Empty to begin with the first one.
    start: String,
    /// The last path that was visited, or `start`.
    last: String,
    /// `true` if an object was visited since the listing began, or began anew.
    has_visited: bool,
    /// The last key that cannot be read.
    last_unreadable: String,
}

impl ListingProgress {
    fn restart(&mut self) {
        self.last.clone_from(&self.start);
        self.has_visited = false;
        self.last_unreadable.clear();
    }
}

/// The end of one pass of a listing that has not failed.
enum Pass {
    /// It was visited to its end, or as far as the visitor wanted.
    Ended,
    /// It was to go on after the last object, and it turned out that the store cannot do so.
    Incomplete,
}

impl RemoteStore {
    /// Lists the objects below `prefix` whose keys come after `after`, until `visit` breaks. Most stores list in the order
    /// of the keys, but not all do. One request gives up to 1,000 objects.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        mut visit: impl FnMut(ListEvent) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let at = self.path(prefix)?;
        let start = after.map(|key| self.path(key)).transpose()?;
        let start = start.map(String::from).unwrap_or_default();
        let mut progress = ListingProgress {
            last: start.clone(),
            start,
            has_visited: false,
            last_unreadable: String::new(),
        };
        let mut tries = OpeningTries::begin();
        loop {
            let given = self.client.given_credentials();
            let pass = self.pass(&at, &mut progress, &mut visit);
            let pass = TOKENS.scope(RefCell::default(), pass);
            let pause = match self.io.block_on(pass).map_err(|ended| self.ended(ended))? {
                Ok(Pass::Ended) => return Ok(()),
                Ok(Pass::Incomplete) => Duration::ZERO,
                Err(answer) => tries
                    .pause_after(self, given.as_ref(), &answer)
                    .ok_or_else(|| {
                        let what = self.url(prefix);
                        let what = format!("cannot list {}", what.trim_end_matches('/'));
                        self.unavailable(what, &answer)
                    })?,
            };
            // Only an order tells which objects are left.
            if progress.has_visited && !self.order.can_go_on() {
                progress.restart();
                if visit(ListEvent::Restarted).is_break() {
                    return Ok(());
                }
            }
            // Made inside, because a timer belongs to the runtime that it is made in.
            let slept = self.io.block_on(async { tokio::time::sleep(pause).await });
            slept.map_err(|ended| self.ended(ended))?;
        }
    }

    /// Lists what is left of a listing.
    async fn pass(
        &self,
        prefix: &Path,
        progress: &mut ListingProgress,
        visit: &mut dyn FnMut(ListEvent) -> ControlFlow<()>,
    ) -> Result<Pass, FailedAnswer> {
        let client = self.client.get();
        let offset = progress.last.clone();
        let goes_on = offset != progress.start;
        // Without an order an offset has no meaning, and directory buckets do not take it.
        let mut listing = if offset.is_empty() || self.order.is_lost() {
            client.list(Some(prefix))
        } else {
            // It was a path before, or begins with a prefix of one.
            let offset = Path::parse(&offset).unwrap_or_default();
            client.list_with_offset(Some(prefix), &offset)
        };
        let mut run = OrderedRun::default();
        let mut lap = Lap::default();
        while let Some(object) = listing.try_next().await.map_err(|e| interpret(&e))? {
            let path = object.location.as_ref();
            if lap.is_closed_by(path) {
                return Err(FailedAnswer {
                    meaning: AnswerMeaning::Unusable,
                    text: SAME_KEYS.into(),
                });
            }
            if let Some(key) = odd_keys::original(path) {
                // A listing that goes on begins after the last object that can be read, so that this one may come again.
                if !self.order.is_proven() || key > progress.last_unreadable {
                    progress.last_unreadable.clone_from(&key);
                    progress.has_visited = true;
                    if visit(ListEvent::Unreadable(key)).is_break() {
                        break;
                    }
                }
                continue;
            }
            self.order.watch(&mut run, path, object.size);
            let is_before = !offset.is_empty() && path < offset.as_str();
            if is_before && !self.order.is_lost() && !can_be_folder(path, object.size, &offset) {
                self.order.ignores_offsets.store(true, Ordering::Relaxed);
            }
            if goes_on && !self.order.can_go_on() {
                return Ok(Pass::Incomplete);
            }
            // Some servers begin with the offset itself.
            let is_offset = path == offset.trim_end_matches('/');
            if is_offset || !comes_after(path, object.size, &offset) {
                continue;
            }
            set_last(&mut progress.last, path);
            progress.has_visited = true;
            let found = ListedObject {
                key: self.key(&object.location),
                size: object.size.min(MOST_LISTED),
                etag: object.e_tag.and_then(quoted),
            };
            if visit(ListEvent::Object(found)).is_break() {
                break;
            }
        }
        Ok(Pass::Ended)
    }

    /// Finds objects by listing the folder that they have in common. `keys` are in ascending order. The result has `None`
    /// for keys that are not listed.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn look_up(&self, keys: &[&str]) -> Result<Vec<Option<ListedObject>>, Error> {
        let prefix = common_folder(keys);
        let mut wanted = WantedObjects::new(keys);
        while !self.order.is_lost() && self.look_in_order(prefix, &mut wanted)? {}
        // Keys that seem to be missing may have come before a listing began.
        if self.order.is_lost() && wanted.missing > 0 {
            self.list(prefix, None, |event| match event {
                ListEvent::Object(object) => {
                    wanted.take(&object);
                    break_if(wanted.missing == 0)
                }
                ListEvent::Unreadable(_) | ListEvent::Restarted => ControlFlow::Continue(()),
            })?;
        }
        Ok(wanted.found)
    }

    /// Looks for objects by a listing that begins at the next one. Returns `true` if it was ended because many objects lie
    /// before another one.
    fn look_in_order(&self, prefix: &str, wanted: &mut WantedObjects<'_>) -> Result<bool, Error> {
        let began_at = wanted.next;
        let Some(first) = wanted.keys.get(began_at) else {
            return Ok(false);
        };
        let (mut passed_over, mut jumps) = (0, false);
        self.list(prefix, Some(&just_before(first)), |event| {
            let ListEvent::Object(object) = event else {
                // The objects that were found before are right all the same.
                return ControlFlow::Continue(());
            };
            let is_wanted = wanted.take(&object);
            passed_over = if is_wanted { 0 } else { passed_over + 1 };
            // Unless the store is known to keep the order, a missing object may come later.
            let is_past_all = wanted.next == wanted.keys.len() && self.order.is_proven();
            // Sparse keys are reached by a new request each, and dense ones by reading on.
            jumps = passed_over >= MOST_PASSED_OVER
                && (began_at + 1..wanted.keys.len()).contains(&wanted.next)
                && self.order.can_go_on();
            break_if(wanted.missing == 0 || is_past_all || jumps || self.order.is_lost())
        })?;
        Ok(jumps)
    }
}

/// Objects that are looked for in listings.
struct WantedObjects<'a> {
    /// Keys in ascending order. One may be there several times.
    keys: &'a [&'a str],
    found: Vec<Option<ListedObject>>,
    missing: usize,
    /// Position of the first key after all keys that were listed.
    next: usize,
}

impl<'a> WantedObjects<'a> {
    fn new(keys: &'a [&'a str]) -> Self {
        WantedObjects {
            keys,
            found: vec![None; keys.len()],
            missing: keys.len(),
            next: 0,
        }
    }

    /// Takes an object of a listing. Returns `true` if it is looked for.
    fn take(&mut self, object: &ListedObject) -> bool {
        let key = object.key.as_str();
        // Mostly it is the next one, or lies before it.
        let is_near = self
            .next
            .checked_sub(1)
            .is_none_or(|at| self.keys[at] < key)
            && self.keys.get(self.next).is_some_and(|next| *next >= key);
        let from = if is_near {
            self.next
        } else {
            self.keys.partition_point(|wanted| *wanted < key)
        };
        let mut end = from;
        while self.keys.get(end) == Some(&key) {
            let found = &mut self.found[end];
            self.missing -= usize::from(found.is_none());
            // An object of size 0 may be the marker of a folder, whose slash is lost. Beside an object it is none.
            if object.size > 0 || found.is_none() {
                *found = Some(object.clone());
            }
            end += 1;
        }
        self.next = self.next.max(end);
        end > from
    }
}

/// Objects in ascending order, as one pass of a listing gave them.
#[derive(Default)]
struct OrderedRun {
    last: String,
    length: usize,
}

impl ListingOrder {
    /// Notes the next object of a pass.
    fn watch(&self, run: &mut OrderedRun, path: &str, size: u64) {
        if self.is_lost() {
            return;
        }
        if run.length > 0 && !comes_after(path, size, &run.last) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        set_last(&mut run.last, path);
        run.length += 1;
        if run.length == ORDERED_RUN {
            self.is_proven.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns `true` if an object comes after a text in the order of keys, as it was listed.
fn comes_after(path: &str, size: u64, last: &str) -> bool {
    path > last || can_be_folder(path, size, last)
}

/// Returns `true` if an object may be the marker of a folder that comes after a text. Such an object is empty, and its key
/// ends with a slash, which the library leaves out.
fn can_be_folder(path: &str, size: u64, last: &str) -> bool {
    let key = path.bytes().chain([b'/']);
    size == 0 && key.gt(last.bytes())
}

/// Notes the last object of a listing. If only its slash puts it after the one before, the slash is noted, too.
fn set_last(last: &mut String, path: &str) {
    let is_folder = path <= last.as_str();
    path.clone_into(last);
    if is_folder {
        last.push('/');
    }
}

/// Returns the order to end a listing, or to go on.
pub(super) fn break_if(is_done: bool) -> ControlFlow<()> {
    if is_done {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// Returns the folder that all of these keys have in common, without a slash at its end.
fn common_folder<'a>(sorted: &[&'a str]) -> &'a str {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
        return "";
    };
    // Keys are sorted, so all of them share the prefix that the first and the last have in common.
    let alike = first
        .bytes()
        .zip(last.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    // A slash is one byte, so this is the boundary of a character.
    let end = first.as_bytes()[..alike]
        .iter()
        .rposition(|&byte| byte == b'/');
    &first[..end.unwrap_or(0)]
}

/// Returns a text that comes before a key, and after most keys before it. Listings begin after such a text.
fn just_before(key: &str) -> String {
    let mut text = key.to_owned();
    // Without a predecessor of its last character, the key without that character comes before it all the same.
    if let Some(before) = text
        .pop()
        .and_then(|c| char::from_u32(u32::from(c).wrapping_sub(1)))
        && before.is_ascii_graphic()
        && before != '/'
    {
        text.push(before);
        text.push_str("~~~~");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_keys_share_ends_at_a_slash() {
        assert_eq!(common_folder(&["a/b/x1", "a/b/x2"]), "a/b");
        assert_eq!(common_folder(&["a/b/x", "a/bc/x"]), "a");
        assert_eq!(common_folder(&["a/b/x"]), "a/b");
        assert_eq!(common_folder(&["x", "y"]), "");
        assert_eq!(common_folder(&[]), "");
    }

    #[test]
    fn a_listing_begins_before_its_first_key() {
        for key in ["a/b/x9", "a/0", "a", "ä", "a/b/", "a/!"] {
            let before = just_before(key);
            assert!(before.as_str() < key, "{before} {key}");
        }
        assert!(just_before("a/x9").as_str() > "a/x8");
    }

    /// Returns `true` if paths with these sizes keep the order, as far as a listing of them tells.
    fn keep_order(listed: &[(&str, u64)]) -> bool {
        let (order, mut run) = (ListingOrder::default(), OrderedRun::default());
        listed
            .iter()
            .for_each(|(path, size)| order.watch(&mut run, path, *size));
        !order.is_lost()
    }

    #[test]
    fn markers_of_folders_that_have_lost_their_slash_are_in_order() {
        // The keys are p/, p/a, p/a-1, p/a.tar, p/a/, p/a/x.
        let marked = [
            ("p", 0),
            ("p/a", 5),
            ("p/a-1", 5),
            ("p/a.tar", 5),
            ("p/a", 0),
            ("p/a/x", 5),
        ];
        assert!(keep_order(&marked));
        assert!(keep_order(&[
            ("p/a-1", 5),
            ("p/a", 0),
            ("p/a/x", 5),
            ("p/b", 5)
        ]));
        assert!(!keep_order(&[("p/a-1", 5), ("p/a", 5)]));
        assert!(!keep_order(&[("p/b", 5), ("p/a", 0)]));
        assert!(!keep_order(&[("p/a-1", 5), ("p/a", 0), ("p/a-2", 5)]));
        assert!(!keep_order(&[("p/a", 5), ("p/a", 5)]));
    }
}
