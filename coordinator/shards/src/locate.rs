//! Finds shards, and the index files beside them: their sizes and ETags, with few requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_storage::{
    Error, ErrorKind, Extent, LargeRead, LargeReads, ListedObject, ObjectTable, RemoteStore,
    Stores, local_identity,
};

use crate::index::ShardIdentity;
use crate::index_files;

/// A shard: where it lies, and the identity of its content.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) identity: ShardIdentity,
    home: ShardHome,
}

#[derive(Clone, Debug)]
enum ShardHome {
    Local,
    Remote {
        store: Arc<RemoteStore>,
        object: ListedObject,
    },
}

/// Objects that were looked for, by their store and key.
type FoundObjects<'a> = BTreeMap<(String, &'a str), ListedObject>;

impl Shard {
    /// Finds shards by path or URL, in this order.
    ///
    /// # Errors
    /// If one is missing, or a store does not answer.
    /// `what` says what they are, for errors: "shard".
    pub(crate) fn find_all(
        names: &[String],
        what: &str,
        stores: &Stores,
    ) -> Result<Vec<Shard>, Error> {
        let urls = names
            .iter()
            .map(|name| parse(name))
            .collect::<Result<Vec<_>, _>>()?;
        let remote: Vec<&DatasetUrl> = urls.iter().flatten().collect();
        let found = find_objects(&remote, stores)?;
        let mut shards = Vec::with_capacity(names.len());
        let mut missing = Vec::new();
        for (name, url) in names.iter().zip(&urls) {
            match url {
                None => shards.push(Shard::local(name, what)?),
                Some(url) => match found.get(&(url.store(), url.key.as_str())) {
                    Some(object) => shards.push(Shard::remote(name, stores.of(url)?, object)),
                    None => missing.push(name.as_str()),
                },
            }
        }
        refuse_missing(&missing, what)?;
        Ok(shards)
    }

    fn local(path: &str, what: &str) -> Result<Shard, Error> {
        let identity = local_identity(Path::new(path))
            .map_err(|error| error.with_remedy(check_names(what)))?;
        Ok(Shard {
            identity: ShardIdentity {
                shard: path.to_owned(),
                size: identity.size,
                etag: identity.etag,
            },
            home: ShardHome::Local,
        })
    }

    fn remote(name: &str, store: Arc<RemoteStore>, object: &ListedObject) -> Shard {
        Shard {
            identity: ShardIdentity {
                shard: name.to_owned(),
                size: object.size,
                etag: object.etag.clone().unwrap_or_default(),
            },
            home: ShardHome::Remote {
                store,
                object: object.clone(),
            },
        }
    }

    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.home, ShardHome::Remote { .. })
    }

    /// Returns `true` if the shard lies in a store that tells its contents apart.
    pub(crate) fn has_content_identity(&self) -> bool {
        self.is_remote() && !self.identity.etag.is_empty()
    }

    /// Adds the shard to the objects of a dataset.
    pub(crate) fn push_to(&self, objects: &mut ObjectTable) {
        let ShardIdentity { shard, size, etag } = &self.identity;
        match &self.home {
            ShardHome::Local => objects.push_shard(shard.as_bytes(), *size, etag),
            ShardHome::Remote { store, object } => {
                objects.push_object(store, &object.key, Some(object));
            }
        }
    }
}

fn parse(name: &str) -> Result<Option<DatasetUrl>, Error> {
    DatasetUrl::parse(name).map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))
}

fn check_names(what: &str) -> String {
    format!("check the names of the {what}s")
}

fn refuse_missing(missing: &[&str], what: &str) -> Result<(), Error> {
    let Some(first) = missing.first() else {
        return Ok(());
    };
    let message = match missing.len() {
        1 => format!("the {what} {first} does not exist"),
        count => format!("{count} {what}s do not exist, among them {first}"),
    };
    Err(Error::new(ErrorKind::NotFound, message).with_remedy(check_names(what)))
}

/// Files that samples are parts of, with their sizes.
#[derive(Debug)]
pub struct FoundFiles {
    /// The files.
    pub objects: ObjectTable,
    /// Bytes of each.
    pub sizes: Vec<u64>,
}

/// Finds files by path or URL, in this order, with few requests.
///
/// # Errors
/// If one is missing, or a store does not answer.
pub fn find_files(names: &[String], stores: &Stores) -> Result<FoundFiles, Error> {
    let files = Shard::find_all(names, "file", stores)?;
    let mut objects = ObjectTable::local(Path::new(""));
    files.iter().for_each(|file| file.push_to(&mut objects));
    objects.shrink();
    objects.remember_replaced();
    Ok(FoundFiles {
        objects,
        sizes: files.iter().map(|file| file.identity.size).collect(),
    })
}

/// Finds objects: by listings where a store can be listed, otherwise by a request for each, many at once.
fn find_objects<'a>(urls: &[&'a DatasetUrl], stores: &Stores) -> Result<FoundObjects<'a>, Error> {
    let mut by_store: BTreeMap<String, Vec<&'a DatasetUrl>> = BTreeMap::new();
    for &url in urls {
        by_store.entry(url.store()).or_default().push(url);
    }
    let mut found = FoundObjects::new();
    for (name, urls) in by_store {
        let store = stores.of(urls[0])?;
        let mut keys: Vec<&str> = urls.iter().map(|url| url.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        let objects = if store.is_listable() {
            store.look_up(&keys)?
        } else {
            store.ask_for(&keys)?
        };
        let objects = keys.into_iter().zip(objects);
        found.extend(objects.filter_map(|(key, object)| Some(((name.clone(), key), object?))));
    }
    Ok(found)
}

/// The index files that may lie beside a shard.
#[derive(Clone, Debug)]
pub(crate) struct FilesBeside {
    /// The index of coprep, and that of DALI. `None` if it is known that there is none.
    pub(crate) own: Option<FileBeside>,
    pub(crate) dali: Option<FileBeside>,
}

/// The content of an index file.
pub(crate) struct IndexContent<'a> {
    pub(crate) bytes: Vec<u8>,
    /// Set if the file is large, since few of those may be in memory at a time.
    _turn: Option<LargeRead<'a>>,
}

/// Bytes of an index file from which on its memory counts.
const LARGE: u64 = 1 << 20;

/// An index file that may be there.
#[derive(Clone, Debug)]
pub(crate) enum FileBeside {
    Local(String),
    Remote(Arc<RemoteStore>, String, Option<ListedObject>),
}

impl FilesBeside {
    /// Looks for the index files beside shards. Stores that can be listed are asked by listings; of others it shows when
    /// a file is read.
    ///
    /// # Errors
    /// If a store does not answer.
    pub(crate) fn find_all(shards: &[&Shard], stores: &Stores) -> Result<Vec<FilesBeside>, Error> {
        let names = shards
            .iter()
            .map(|shard| names_beside(&shard.identity.shard));
        let names: Vec<[String; 2]> = names.collect();
        let mut urls = Vec::new();
        for name in names.iter().flatten() {
            urls.extend(parse(name)?);
        }
        let mut listed = Vec::new();
        for url in &urls {
            if stores.of(url)?.is_listable() {
                listed.push(url);
            }
        }
        let found = find_objects(&listed, stores)?;
        let file = |name: &String| -> Result<Option<FileBeside>, Error> {
            let Some(url) = parse(name)? else {
                return Ok(Some(FileBeside::Local(name.clone())));
            };
            let store = stores.of(&url)?;
            let object = found.get(&(url.store(), url.key.as_str())).cloned();
            let may_exist = object.is_some() || !store.is_listable();
            Ok(may_exist.then(|| FileBeside::Remote(store, url.key.clone(), object)))
        };
        let both = |[own, dali]: &[String; 2]| {
            Ok(FilesBeside {
                own: file(own)?,
                dali: file(dali)?,
            })
        };
        names.iter().map(both).collect()
    }
}

impl FileBeside {
    /// Returns the file of this path or URL.
    ///
    /// # Errors
    /// If the URL is not accepted.
    pub(crate) fn named(name: &str, stores: &Stores) -> Result<FileBeside, Error> {
        Ok(match parse(name)? {
            None => FileBeside::Local(name.to_owned()),
            Some(url) => FileBeside::Remote(stores.of(&url)?, url.key, None),
        })
    }

    /// Returns the content of the file, or `None` if there is none that can be read, or it has more than `most` bytes.
    pub(crate) fn read<'a>(
        &self,
        most: u64,
        large_reads: &'a LargeReads,
    ) -> Option<IndexContent<'a>> {
        // Many shards are indexed at once.
        let turn = |size: u64| (size > LARGE).then(|| large_reads.begin());
        match self {
            FileBeside::Local(path) => {
                let path = Path::new(path);
                let turn = turn(path.metadata().ok()?.len().min(most));
                let bytes = index_files::read(path, most)?;
                Some(IndexContent { bytes, _turn: turn })
            }
            FileBeside::Remote(store, key, listed) => {
                let object = match listed {
                    Some(object) => object.clone(),
                    // A server that cannot be listed tells the size of a file when it is asked.
                    None => store.ask_for(&[key]).ok()?.pop()??,
                };
                if object.size > most {
                    index_files::too_large(key, object.size);
                    return None;
                }
                let turn = turn(object.size);
                let bytes = read_object(store, key, Some(&object)).ok()?;
                Some(IndexContent { bytes, _turn: turn })
            }
        }
    }

    /// Returns the content of a file that must be there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn content(&self) -> Result<Vec<u8>, Error> {
        match self {
            FileBeside::Local(path) => std::fs::read(path).map_err(|e| {
                Error::new(ErrorKind::Read, format!("{path} cannot be read")).because(e)
            }),
            FileBeside::Remote(store, key, object) => read_object(store, key, object.as_ref()),
        }
    }
}

fn read_object(
    store: &Arc<RemoteStore>,
    key: &str,
    object: Option<&ListedObject>,
) -> Result<Vec<u8>, Error> {
    let mut table = ObjectTable::local(Path::new(""));
    table.push_object(store, key, object);
    let mut bytes = Vec::new();
    table.read_at_opening(Extent::whole(0), &mut bytes)?;
    Ok(bytes)
}

/// Returns the names of coprep's index beside a shard, and of DALI's.
fn names_beside(shard: &str) -> [String; 2] {
    let base = shard.rfind('/').map_or(0, |at| at + 1);
    // Like `wds2idx`, which cuts the base name at its first dot.
    let stem = shard[base..]
        .find('.')
        .map_or(shard, |dot| &shard[..base + dot]);
    [
        format!("{shard}{}", index_files::BESIDE),
        format!("{stem}.idx"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_files_are_named_after_their_shard() {
        assert_eq!(
            names_beside("s3://b/a.b/t-0.x.tar"),
            ["s3://b/a.b/t-0.x.tar.coprep", "s3://b/a.b/t-0.idx"]
        );
        assert_eq!(names_beside("/d/t"), ["/d/t.coprep", "/d/t.idx"]);
    }
}
