//! Reads parts of objects, and asks for the lengths and ETags of single objects, while a dataset is opened.
//!
//! A person waits meanwhile, so a store that does not answer is an error within seconds.

use std::ops::Range;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use super::listing::{ListEvent, break_if};
use super::{FailedTry, ListedObject, ObjectRef, OpeningTries, RemoteStore};
use crate::answer::{AnswerMeaning, FailedAnswer, interpret};
use crate::error::{Error, ErrorKind};
use crate::target::ReadTarget;
use object_store::ObjectStoreExt;

/// Number of objects that are asked for at once.
const AT_ONCE: usize = 64;
/// Most objects of a folder that are asked for until one of them can be read.
const CHECKED: usize = 16;

impl RemoteStore {
    /// Reads ranges of several objects at once. Gives up after a few seconds without an answer.
    pub(crate) fn parts(
        &self,
        wanted: &[(ObjectRef, Option<Range<u64>>)],
    ) -> Vec<Result<Vec<u8>, Error>> {
        let parts = wanted.iter().map(|(object, range)| async {
            let mut bytes = Vec::new();
            if range.as_ref().is_some_and(Range::is_empty) {
                return Ok(bytes);
            }
            let mut target = ReadTarget::growing(&mut bytes);
            let read = self
                .read_for_seconds(object, range.clone(), &mut target)
                .await;
            read.map_err(|failed| self.failed_at_opening(object, failed))?;
            Ok(bytes)
        });
        let all = self.io.block_on(join_all(parts));
        all.unwrap_or_else(|ended| wanted.iter().map(|_| Err(self.ended(ended))).collect())
    }

    /// Reads a range of an object. Gives up after a few seconds without an answer.
    pub(crate) fn read_at_opening(
        &self,
        object: ObjectRef,
        range: Option<Range<u64>>,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.for_seconds(|| {
            let read = self
                .io
                .block_on(self.part_once(&object, range.clone(), into));
            read.unwrap_or_else(|ended| Err(FailedTry::Final(self.ended(ended))))
        })
        .map_err(|failed| self.failed_at_opening(&object, failed))
    }

    async fn part_once(
        &self,
        object: &ObjectRef,
        range: Option<Range<u64>>,
        into: &mut Vec<u8>,
    ) -> Result<(), FailedTry> {
        into.clear();
        // An empty range is not a range in HTTP.
        if range.as_ref().is_some_and(Range::is_empty) {
            return Ok(());
        }
        let path = self.path(&object.key).map_err(FailedTry::Final)?;
        self.read_once(&path, object, range, &mut ReadTarget::growing(into))
            .await
    }

    /// Checks that the credentials of this store's jobs may read a dataset, by requests for the length of an object: the one
    /// with this key, or one of a folder. Gives up after a few seconds without an answer. Returns `false` if nothing was
    /// checked, because there is no such object.
    ///
    /// # Errors
    /// If the store refuses, or does not answer, or nothing of a folder can be read.
    pub fn check_access(&self, key: &str, is_folder: bool) -> Result<bool, Error> {
        if is_folder {
            return self.check_folder(key).map(|()| true);
        }
        let object = ObjectRef {
            key: key.to_owned(),
            size: None,
            etag: None,
        };
        match self.check_object(&object) {
            // Opening the dataset tells of an object that does not exist.
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(false),
            checked => checked.map(|()| true),
        }
    }

    /// Checks that one of the first objects of a folder can be read.
    fn check_folder(&self, folder: &str) -> Result<(), Error> {
        let (mut first, mut is_empty) = (Vec::new(), true);
        self.list(folder, None, |event| {
            match event {
                ListEvent::Restarted => first.clear(),
                ListEvent::Unreadable(_) => is_empty = false,
                ListEvent::Object(object) => {
                    is_empty = false;
                    // Most objects without bytes are markers of folders. The library leaves out the slash at the end of
                    // their keys, so that it cannot ask for them.
                    if object.size > 0 {
                        first.push(object);
                    }
                }
            }
            break_if(first.len() == CHECKED)
        })?;
        // A job that may list the store but read nothing of it must not pass for one that has found nothing to read.
        let empty = if is_empty {
            "there is nothing in"
        } else {
            "there are only empty objects in"
        };
        let mut failed = Error::new(ErrorKind::Invalid, format!("{empty} {}", self.url(folder)))
            .with_remedy("check the bucket and the folder in the URL");
        for object in first {
            let object = ObjectRef {
                key: object.key,
                size: Some(object.size),
                etag: None,
            };
            match self.check_object(&object) {
                // It was deleted since it was listed, or its key ends with a slash.
                Err(error) if *error.kind() == ErrorKind::Changed => failed = error,
                checked => return checked,
            }
        }
        Err(failed)
    }

    /// Asks for the length of an object. Gives up after a few seconds without an answer.
    fn check_object(&self, object: &ObjectRef) -> Result<(), Error> {
        let path = self.path(&object.key)?;
        self.for_seconds(|| {
            let head = self.io.block_on(self.client.get().head(&path));
            let head = head.map_err(|ended| FailedTry::Final(self.ended(ended)))?;
            head.map(drop)
                .map_err(|e| self.failed(object, interpret(&e)))
        })
        .map_err(|failed| self.given_up(object, failed))
    }

    /// Repeats an attempt while it fails because of the store, for as long as a listing is repeated.
    fn for_seconds<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, FailedTry>,
    ) -> Result<T, FailedTry> {
        let mut tries = OpeningTries::begin();
        loop {
            let given = self.client.given_credentials();
            let done = attempt();
            let Err(FailedTry::Store(answer)) = &done else {
                return done;
            };
            let Some(pause) = tries.pause_after(self, given.as_ref(), answer) else {
                return done;
            };
            // Made inside, because a timer belongs to the runtime that it is made in.
            let _ = self.io.block_on(async { tokio::time::sleep(pause).await });
        }
    }

    /// Reads a range of an object, and repeats that as [`RemoteStore::for_seconds`] does. It blocks no thread, so that many
    /// reads may wait at once.
    pub(super) async fn read_for_seconds(
        &self,
        object: &ObjectRef,
        range: Option<Range<u64>>,
        target: &mut ReadTarget<'_>,
    ) -> Result<(), FailedTry> {
        let path = self.path(&object.key).map_err(FailedTry::Final)?;
        let mut tries = OpeningTries::begin();
        loop {
            let given = self.client.given_credentials();
            let done = self.read_once(&path, object, range.clone(), target).await;
            let Err(FailedTry::Store(answer)) = &done else {
                return done;
            };
            let Some(pause) = tries.pause_after(self, given.as_ref(), answer) else {
                return done;
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn failed_at_opening(&self, object: &ObjectRef, failed: FailedTry) -> Error {
        let what = || format!("cannot read {}", self.url(&object.key));
        match failed {
            FailedTry::Final(error) => error,
            FailedTry::Store(answer) if answer.meaning == AnswerMeaning::NoRanges => {
                let why = "its server gives whole objects only, and a shard is read by ranges";
                Error::new(ErrorKind::Invalid, what())
                    .because(why)
                    .with_remedy("use a server that answers range requests, or a local copy")
            }
            FailedTry::Store(answer) => self.unavailable(what(), &answer),
        }
    }

    /// Asks for the lengths and ETags of objects, many at once. The result has `None` for objects that do not exist.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn ask_for(&self, keys: &[&str]) -> Result<Vec<Option<ListedObject>>, Error> {
        self.for_seconds(|| self.ask_once(keys))
            .map_err(|failed| match failed {
                FailedTry::Final(error) => error,
                FailedTry::Store(answer) => {
                    self.unavailable(format!("cannot read {}", self.name), &answer)
                }
            })
    }

    fn ask_once(&self, keys: &[&str]) -> Result<Vec<Option<ListedObject>>, FailedTry> {
        let asked = stream::iter(keys.iter().map(|key| self.ask_for_one(key)));
        let answers = self
            .io
            .block_on(asked.buffered(AT_ONCE).collect::<Vec<_>>());
        let answers = answers.map_err(|ended| FailedTry::Final(self.ended(ended)))?;
        answers.into_iter().collect()
    }

    async fn ask_for_one(&self, key: &str) -> Result<Option<ListedObject>, FailedTry> {
        let path = self.path(key).map_err(FailedTry::Final)?;
        match self.client.get().head(&path).await {
            Ok(meta) => Ok(Some(ListedObject {
                key: key.to_owned(),
                size: meta.size.min(super::MOST_LISTED),
                etag: meta.e_tag,
            })),
            Err(e) => match interpret(&e) {
                FailedAnswer {
                    meaning: AnswerMeaning::NoObject,
                    ..
                } => Ok(None),
                answer => Err(FailedTry::Store(answer)),
            },
        }
    }
}
