//! Lists of shards in JSON, as `wids` writes them, the package for random access beside `webdataset`.
//!
//! Such a list has no places of samples, so shards are indexed as others are. It names shards, relative to its own folder
//! or as URLs, and says their sizes and numbers of samples, which are compared.

use coprep_protocol::spec::TarShards;
use coprep_storage::{Error, ErrorKind, Stores};
use serde_json::Value;

use crate::index::ShardIndex;
use crate::locate::FileBeside;

/// The shards of a dataset, and what a list says about each.
pub(crate) struct ListedShards {
    pub(crate) names: Vec<String>,
    /// The claims of the list, for each shard. Empty if there is no list.
    claims: Vec<Claims>,
}

/// The claims of a list about a shard.
struct Claims {
    samples: Option<u64>,
    bytes: Option<u64>,
}

impl ListedShards {
    /// Returns the shards that `list` names. If that is one file in JSON, it names the shards.
    ///
    /// # Errors
    /// If the list cannot be read, or is none.
    pub(crate) fn of(list: &TarShards, stores: &Stores) -> Result<ListedShards, Error> {
        match list.list() {
            Some(name) => read(name, stores),
            None => Ok(ListedShards {
                names: list.shards.clone(),
                claims: Vec::new(),
            }),
        }
    }

    /// Compares the shards with what the list says.
    ///
    /// # Errors
    /// If a shard has another size or number of samples.
    pub(crate) fn check(&self, indexes: &[ShardIndex]) -> Result<(), Error> {
        for (claims, index) in self.claims.iter().zip(indexes) {
            let samples = index.samples.len() as u64 + index.samples.left_out;
            let there = (samples, index.identity.size);
            let is_other = |said: Option<u64>, there: u64| said.is_some_and(|said| said != there);
            if is_other(claims.samples, there.0) || is_other(claims.bytes, there.1) {
                let told = |said: Option<u64>, there: u64| said.unwrap_or(there);
                let what = format!(
                    "the shard {} has {} samples in {} bytes, and its list says {} in {}",
                    index.identity.shard,
                    there.0,
                    there.1,
                    told(claims.samples, there.0),
                    told(claims.bytes, there.1),
                );
                return Err(Error::new(ErrorKind::Invalid, what)
                    .with_remedy("write the list anew, or the shard"));
            }
        }
        Ok(())
    }
}

fn read(name: &str, stores: &Stores) -> Result<ListedShards, Error> {
    let bytes = FileBeside::named(name, stores)?.content()?;
    let list: Value = serde_json::from_slice(&bytes)
        .map_err(|e| unusable(name, &format!("it is no JSON ({e})")))?;
    let shards = shard_list(&list).ok_or_else(|| unusable(name, "it has no \"shardlist\""))?;
    let mut listed = ListedShards {
        names: Vec::with_capacity(shards.len()),
        claims: Vec::with_capacity(shards.len()),
    };
    for shard in shards {
        let url = shard.get("url").and_then(Value::as_str);
        let url = url.ok_or_else(|| unusable(name, "one of its shards has no \"url\""))?;
        listed.names.push(resolved(name, url));
        listed.claims.push(Claims {
            samples: shard.get("nsamples").and_then(Value::as_u64),
            bytes: shard.get("filesize").and_then(Value::as_u64),
        });
    }
    if listed.names.is_empty() {
        return Err(unusable(name, "it names no shard"));
    }
    Ok(listed)
}

/// Returns the shards of a list, which may lie within its only dataset.
fn shard_list(list: &Value) -> Option<&Vec<Value>> {
    let of_dataset = || match &list.get("datasets")?.as_array()?[..] {
        [one] => one.get("shardlist"),
        _ => None,
    };
    list.get("shardlist").or_else(of_dataset)?.as_array()
}

/// Returns the path or URL of a shard that the list at `list` names.
fn resolved(list: &str, shard: &str) -> String {
    if shard.starts_with('/') || shard.contains("://") {
        return shard.to_owned();
    }
    let folder = list.rfind('/').map_or(0, |at| at + 1);
    format!("{}{}", &list[..folder], shard.trim_start_matches("./"))
}

fn unusable(name: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("the list of shards {name} cannot be used: {why}"),
    )
    .with_remedy("write it by widsindex, or name the tar files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_named_relative_to_their_list() {
        let cases = [
            ("s3://b/p/index.json", "t-0.tar", "s3://b/p/t-0.tar"),
            ("/data/index.json", "./sub/t.tar", "/data/sub/t.tar"),
            ("/data/index.json", "/other/t.tar", "/other/t.tar"),
            ("/data/index.json", "https://h/t.tar", "https://h/t.tar"),
        ];
        for (list, shard, expected) in cases {
            assert_eq!(resolved(list, shard), expected);
        }
    }

    #[test]
    fn the_list_may_lie_within_a_dataset() {
        let shards = serde_json::json!([{"url": "a.tar"}]);
        let plain = serde_json::json!({"__kind__": "wids-shard-index-v1", "shardlist": shards});
        let nested = serde_json::json!({"datasets": [{"name": "x", "shardlist": shards}]});
        let two = serde_json::json!({"datasets": [{"shardlist": shards}, {"shardlist": shards}]});
        assert_eq!(shard_list(&plain).map(Vec::len), Some(1));
        assert_eq!(shard_list(&nested).map(Vec::len), Some(1));
        assert!(shard_list(&two).is_none());
        assert!(shard_list(&serde_json::json!([1])).is_none());
    }
}
