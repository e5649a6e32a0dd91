//! Reads parts of objects, and asks for the lengths and ETags of single objects, while a dataset is opened.
//!
//! A person waits meanwhile, so a store that does not answer is an error within seconds.

use std::ops::{ControlFlow, Range};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use super::{FailedTry, ListEvent, ListedObject, ObjectRef, OpeningTries, RemoteStore};
use crate::answer::{AnswerMeaning, FailedAnswer, interpret};
use crate::error::{Error, ErrorKind};
use crate::target::ReadTarget;
use object_store::ObjectStoreExt;

/// Number of objects that are asked for at once.
const AT_ONCE: usize = 64;

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
        all.unwrap_or_else(|| wanted.iter().map(|_| Err(self.stopped())).collect())
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
            read.unwrap_or_else(|| Err(FailedTry::Final(self.stopped())))
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

    /// Checks that the credentials of this store's jobs may read a dataset, by a request for the length of one object: the
    /// one with this key, or the first one of a folder. Gives up after a few seconds without an answer.
    ///
    /// # Errors
    /// If the store refuses, or does not answer.
    pub fn check_access(&self, key: &str, is_folder: bool) -> Result<(), Error> {
        let mut first = (!is_folder).then(|| key.to_owned());
        if is_folder {
            self.list(key, None, |event| match event {
                ListEvent::Object(object) => {
                    first = Some(object.key);
                    ControlFlow::Break(())
                }
                ListEvent::Restarted => ControlFlow::Continue(()),
            })?;
        }
        // Nothing can be read of an empty folder. Opening the dataset tells of it, and of an object that does not exist.
        let Some(key) = first else {
            return Ok(());
        };
        let path = self.path(&key)?;
        let object = ObjectRef {
            key,
            size: None,
            etag: None,
        };
        let checked = self.for_seconds(|| {
            let head = self.io.block_on(self.client.get().head(&path));
            let head = head.ok_or_else(|| FailedTry::Final(self.stopped()))?;
            head.map_err(|e| self.failed(&object, interpret(&e)))
        });
        match checked.map_err(|failed| self.given_up(&object, failed)) {
            Err(error) if *error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
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
            self.io.block_on(async { tokio::time::sleep(pause).await });
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
        let answers = answers.ok_or_else(|| FailedTry::Final(self.stopped()))?;
        answers.into_iter().collect()
    }

    async fn ask_for_one(&self, key: &str) -> Result<Option<ListedObject>, FailedTry> {
        let path = self.path(key).map_err(FailedTry::Final)?;
        match self.client.get().head(&path).await {
            Ok(meta) => Ok(Some(ListedObject {
                key: key.to_owned(),
                size: meta.size,
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
