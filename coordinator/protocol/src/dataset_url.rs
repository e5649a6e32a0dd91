//! URLs of datasets in object stores and on HTTP servers.
//!
//! A URL is part of a stream's identity and appears in messages, so it holds no secret: URLs with credentials or queries
//! are refused.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// A URL that is not accepted, with the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUrl(String);

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidUrl {}

/// The protocol by which a store is read.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UrlScheme {
    /// Amazon S3, and every store with its interface.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// A dataset of the Hugging Face Hub.
    Hf,
    /// An HTTP server, which is listed by WebDAV if at all.
    Http,
    /// An HTTP server over TLS.
    Https,
}

const SCHEMES: [(&str, UrlScheme); 6] = [
    ("s3", UrlScheme::S3),
    ("gs", UrlScheme::Gs),
    ("az", UrlScheme::Az),
    ("hf", UrlScheme::Hf),
    ("http", UrlScheme::Http),
    ("https", UrlScheme::Https),
];

impl UrlScheme {
    /// Returns the scheme of a text, or `None` if it is a path, or begins with another scheme.
    #[must_use]
    pub fn of(text: &str) -> Option<UrlScheme> {
        let (scheme, _) = text.split_once("://")?;
        known_scheme(scheme)
    }

    /// Returns the scheme as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let known = SCHEMES.iter().find(|(_, scheme)| *scheme == self);
        known.map_or("", |(text, _)| text)
    }

    /// Returns `true` for HTTP servers, whose keys are percent-encoded.
    #[must_use]
    pub fn is_http(self) -> bool {
        matches!(self, UrlScheme::Http | UrlScheme::Https)
    }
}

/// The URL of a folder or an object: a store and a key in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DatasetUrl {
    /// Protocol of the store.
    pub scheme: UrlScheme,
    /// Bucket, container, or host with an optional port. Of the Hugging Face Hub, a dataset with an optional revision, such
    /// as `datasets/owner/name@main`.
    pub bucket: String,
    /// Key, without a slash at its beginning or end. Empty for the root of the store.
    pub key: String,
}

impl DatasetUrl {
    /// Parses a text. Returns `None` if it is a path and not a URL.
    ///
    /// # Errors
    /// If it is a URL that is not accepted.
    pub fn parse(text: &str) -> Result<Option<DatasetUrl>, InvalidUrl> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return refuse_lost_slash(text).map(|()| None);
        };
        // A path may have `://` in it too.
        if !is_scheme(scheme) {
            return Ok(None);
        }
        let Some(scheme) = known_scheme(scheme) else {
            return Err(InvalidUrl(format!(
                "{scheme}:// is not a storage that coprep reads: give a path, or a URL that begins with s3://, gs://, \
                 az://, hf://, http:// or https://"
            )));
        };
        let (bucket, key) = if scheme == UrlScheme::Hf {
            hub_dataset(rest)?
        } else {
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            check_bucket(scheme, bucket)?;
            (bucket.to_owned(), key)
        };
        let key = key.trim_matches('/');
        check_key(scheme, &bucket, key)?;
        Ok(Some(DatasetUrl {
            scheme,
            bucket,
            key: key.to_owned(),
        }))
    }

    /// Returns the store of the URL, such as `s3://bucket`.
    #[must_use]
    pub fn store(&self) -> String {
        format!("{}://{}", self.scheme.as_str(), self.bucket)
    }
}

impl fmt::Display for DatasetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store())?;
        if self.key.is_empty() {
            return Ok(());
        }
        write!(f, "/{}", self.key)
    }
}

fn is_scheme(text: &str) -> bool {
    let is_tail = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-');
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_tail)
}

fn known_scheme(text: &str) -> Option<UrlScheme> {
    let text = text.to_ascii_lowercase();
    let known = SCHEMES.iter().find(|(name, _)| *name == text);
    known.map(|(_, scheme)| *scheme)
}

/// Refuses `s3:/bucket`, which `pathlib.Path` makes of a URL.
fn refuse_lost_slash(text: &str) -> Result<(), InvalidUrl> {
    let lost = text
        .split_once(":/")
        .filter(|(scheme, _)| known_scheme(scheme).is_some());
    match lost {
        Some((scheme, rest)) => Err(InvalidUrl(format!(
            "{text:?} is a URL that has lost a slash: write \"{scheme}://{rest}\" as text, because pathlib.Path changes \
             URLs"
        ))),
        None => Ok(()),
    }
}

fn check_bucket(scheme: UrlScheme, bucket: &str) -> Result<(), InvalidUrl> {
    let scheme_text = scheme.as_str();
    let part = if scheme.is_http() { "host" } else { "bucket" };
    if bucket.is_empty() {
        return Err(InvalidUrl(format!(
            "{scheme_text}:// names no {part}: write {scheme_text}://{part}/folder"
        )));
    }
    // Not shown, because it may be a password.
    if bucket.contains('@') {
        return Err(InvalidUrl(format!(
            "the {scheme_text}:// URL has credentials in it: leave them out, and set them in the environment"
        )));
    }
    // `$` begins names of Azure's own containers, such as `$web`. The brackets are those of IPv6 addresses.
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '[' | ']' | '$');
    if !bucket.chars().all(is_part) {
        return Err(InvalidUrl(format!(
            "{bucket:?} is not a {part} of a {scheme_text}:// URL"
        )));
    }
    Ok(())
}

/// Branches of the Hub whose names have slashes in them, which other tools accept as they are: those of converted files
/// and of proposed changes.
const BRANCHES_WITH_SLASHES: [&str; 2] = ["refs/convert/", "refs/pr/"];

/// Splits what follows `hf://` into a dataset, with its revision if one is given, and a path in it.
fn hub_dataset(rest: &str) -> Result<(String, &str), InvalidUrl> {
    // The URL is not shown, because it may have a token in it.
    let invalid = || {
        let text = "the hf:// URL names no dataset: write hf://datasets/owner/name/path, or \
                    hf://datasets/owner/name@revision/path";
        InvalidUrl(text.to_owned())
    };
    let mut parts = rest.splitn(3, '/');
    let (Some("datasets"), Some(owner), Some(after)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(invalid());
    };
    let end = after.find(['@', '/']).unwrap_or(after.len());
    let (name, after) = after.split_at(end);
    let dataset = format!("datasets/{owner}/{name}");
    let is_name = |text: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        !matches!(text, "" | "." | "..") && text.chars().all(is_part)
    };
    if !is_name(owner) || !is_name(name) {
        return Err(invalid());
    }
    let Some(after) = after.strip_prefix('@') else {
        return Ok((dataset, after));
    };
    let (revision, key) = split_revision(after);
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | '%');
    if revision.is_empty() || !revision.chars().all(is_part) {
        return Err(invalid());
    }
    Ok((format!("{dataset}@{revision}"), key))
}

/// Splits what follows the `@` of a dataset into a revision, with its slashes encoded, and a path.
fn split_revision(text: &str) -> (String, &str) {
    let branch = BRANCHES_WITH_SLASHES
        .iter()
        .find_map(|branch| Some((branch, text.strip_prefix(branch)?)));
    let (branch, rest) = branch.map_or(("", text), |(branch, rest)| (*branch, rest));
    let (last, key) = rest.split_once('/').unwrap_or((rest, ""));
    // DuckDB's name of the branch with converted files.
    let revision = match last {
        "~parquet" => "refs/convert/parquet".to_owned(),
        _ => format!("{branch}{last}"),
    };
    (revision.replace('/', "%2F"), key)
}

fn check_key(scheme: UrlScheme, bucket: &str, key: &str) -> Result<(), InvalidUrl> {
    let store = format!("{}://{bucket}", scheme.as_str());
    // Not shown, because the query of a presigned URL is a secret.
    if scheme.is_http() && key.contains(['?', '#']) {
        return Err(InvalidUrl(format!(
            "a URL of {store} has a query, as presigned URLs have, which expire: give the URL without it, or read the \
             bucket by s3://, gs:// or az://"
        )));
    }
    let is_odd = |part: &str| matches!(part, "" | "." | "..");
    if !key.is_empty() && key.split('/').any(is_odd) {
        return Err(InvalidUrl(format!(
            "{store}/{key} has an empty part, or . or .. in it: write each part of the key between single slashes"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<String> {
        let url = DatasetUrl::parse(text).expect("it is accepted");
        url.map(|url| url.to_string())
    }

    #[test]
    fn every_spelling_of_a_url_is_one_and_paths_are_not_urls() {
        for spelling in ["s3://b/x/y", "s3://b/x/y/", "S3://b//x/y", "s3://b/x/y//"] {
            assert_eq!(
                parsed(spelling).as_deref(),
                Some("s3://b/x/y"),
                "{spelling}"
            );
        }
        assert_eq!(parsed("gs://b").as_deref(), Some("gs://b"));
        assert_eq!(
            parsed("https://host:8080/x%20y/").as_deref(),
            Some("https://host:8080/x%20y")
        );
        // A key may contain characters that separate a query elsewhere.
        assert_eq!(parsed("s3://b/a?b#c").as_deref(), Some("s3://b/a?b#c"));
        for path in ["/data", "data", "C:/data", "", "a b://c", "./s3://b"] {
            assert_eq!(parsed(path), None, "{path}");
        }
    }

    #[test]
    fn a_dataset_of_the_hub_has_an_owner_and_may_have_a_revision() {
        let split = |text: &str| {
            let url = DatasetUrl::parse(text).expect("it is accepted");
            url.map(|url| (url.bucket, url.key))
        };
        let parquet = "datasets/o/n@refs%2Fconvert%2Fparquet";
        for (text, bucket, key) in [
            ("hf://datasets/o/n", "datasets/o/n", ""),
            ("hf://datasets/o/n/a/b@c", "datasets/o/n", "a/b@c"),
            ("hf://datasets/o/n@v1.0/a", "datasets/o/n@v1.0", "a"),
            ("hf://datasets/o/n@refs/convert/parquet/a/b", parquet, "a/b"),
            ("hf://datasets/o/n@refs%2Fconvert%2Fparquet", parquet, ""),
            ("hf://datasets/o/n@~parquet/a/b/", parquet, "a/b"),
            (
                "hf://datasets/o/n@refs/pr/10/a",
                "datasets/o/n@refs%2Fpr%2F10",
                "a",
            ),
        ] {
            assert_eq!(split(text), Some((bucket.into(), key.into())), "{text}");
        }
        for text in [
            "hf://o/n",
            "hf://datasets/n",
            "hf://datasets/o/n@/a",
            "hf://datasets/o/../a",
            "hf://datasets/o/n@b?/a",
        ] {
            let refused = DatasetUrl::parse(text).expect_err(text).to_string();
            assert!(refused.contains("hf://datasets/owner/name"), "{refused}");
        }
    }

    #[test]
    fn a_url_that_is_not_accepted_is_named_with_a_remedy() {
        for (text, part) in [
            ("ftp://host/x", "ftp:// is not a storage"),
            ("s3:/bucket/x", "lost a slash"),
            ("s3://", "names no bucket"),
            ("s3:///x", "names no bucket"),
            ("s3://bu cket/x", "is not a bucket"),
            ("az://b/x/../y", "empty part"),
        ] {
            let refused = DatasetUrl::parse(text).expect_err(text).to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn secrets_in_a_url_are_refused_and_not_shown() {
        for text in [
            "https://user:SECRET@host/x.jpg",
            "https://host/x.jpg?X-Amz-Signature=SECRET",
            "s3://key:SECRET@bucket/x",
            "hf://user:SECRET@datasets/o/n",
        ] {
            let refused = DatasetUrl::parse(text).expect_err(text).to_string();
            assert!(!refused.contains("SECRET"), "{refused}");
        }
    }
}
