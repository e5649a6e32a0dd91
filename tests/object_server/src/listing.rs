//! Listings: pages of S3, and folders of WebDAV.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Bound;

use crate::answer::Answer;
use crate::faults::Faults;
use crate::object::{StoredObject, fnv};
use crate::request::HttpRequest;

/// Most keys of one page of a listing.
const PAGE: usize = 1000;

type Objects = BTreeMap<String, StoredObject>;

/// An object and its key.
type Entry<'a> = (&'a String, &'a StoredObject);

/// Returns a page of a listing of S3, as XML.
pub(crate) fn list(objects: &Objects, request: &HttpRequest, faults: &Faults) -> String {
    let query = &request.query;
    let prefix = query.get("prefix").unwrap_or_default();
    // The token is the last key of the page before.
    let token = query.get("continuation-token");
    let offset = query.get("start-after").filter(|_| !faults.offsets_ignored);
    let most = query
        .get("max-keys")
        .and_then(|n| n.parse().ok())
        .unwrap_or(PAGE);
    let most = if faults.page > 0 {
        most.min(faults.page)
    } else {
        most
    };
    let mut found: Box<dyn Iterator<Item = Entry<'_>>> = if faults.unordered {
        Box::new(after_in_no_order(objects, prefix, token))
    } else {
        let after = token.or(offset).unwrap_or_default();
        Box::new(after_in_order(objects, prefix, after))
    };
    let page: Vec<_> = found.by_ref().take(most).collect();
    let is_truncated = found.next().is_some();
    let mut xml = format!(
        "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>"
    );
    if let Some((last, _)) = page.last().filter(|_| is_truncated) {
        let _ = write!(
            xml,
            "<NextContinuationToken>{}</NextContinuationToken>",
            escaped(last)
        );
    }
    for (key, object) in page {
        let _ = write!(
            xml,
            "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{}</ETag>\
             <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            escaped(key),
            escaped(&object.etag()),
            object.bytes.len(),
        );
    }
    xml.push_str("</ListBucketResult>");
    xml
}

/// Returns the objects of a prefix after a key, in the order of their keys.
fn after_in_order<'a>(
    objects: &'a Objects,
    prefix: &'a str,
    after: &str,
) -> impl Iterator<Item = Entry<'a>> {
    // Keys are in order, so a page of a large bucket is found without a look at the pages before it.
    let from = if after < prefix {
        Bound::Included(prefix)
    } else {
        Bound::Excluded(after)
    };
    objects
        .range::<str, _>((from, Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

/// Returns the objects of a prefix after a key, in the order of the hashes of their keys.
fn after_in_no_order<'a>(
    objects: &'a Objects,
    prefix: &'a str,
    after: Option<&str>,
) -> impl Iterator<Item = Entry<'a>> {
    let place = |key: &str| (fnv(key.as_bytes()), key.to_owned());
    let after = after.map(place);
    let mut found: Vec<_> = objects
        .iter()
        .filter(|(key, _)| key.starts_with(prefix))
        .map(|(key, object)| (place(key), (key, object)))
        .filter(|(place, _)| after.as_ref().is_none_or(|after| place > after))
        .collect();
    found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    found.into_iter().map(|(_, entry)| entry)
}

/// Returns everything below a folder, as a WebDAV server lists it.
pub(crate) fn web_folder(objects: &Objects, bucket: &str, folder: &str, faults: &Faults) -> Answer {
    let above = if faults.listed_elsewhere {
        "elsewhere/"
    } else {
        ""
    };
    let folder = folder.trim_end_matches('/');
    let mut xml = String::from("<?xml version=\"1.0\"?><multistatus xmlns=\"DAV:\">");
    let is_below = |key: &str| {
        let rest = key.strip_prefix(folder);
        rest.is_some_and(|rest| folder.is_empty() || rest.starts_with('/'))
    };
    for (key, object) in objects.iter().filter(|(key, _)| is_below(key)) {
        let _ = write!(
            xml,
            "<response><href>/{}</href><propstat><prop>\
             <getlastmodified>Thu, 01 Jan 2026 00:00:00 GMT</getlastmodified>\
             <getcontentlength>{}</getcontentlength><resourcetype/><getetag>{}</getetag></prop>\
             <status>HTTP/1.1 200 OK</status></propstat></response>",
            encoded(&format!("{above}{bucket}/{key}")),
            object.bytes.len(),
            escaped(&object.etag()),
        );
    }
    xml.push_str("</multistatus>");
    Answer::new(207, xml.into_bytes())
}

fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".into(),
        '<' => "&lt;".into(),
        '"' => "&quot;".into(),
        // As S3 does, though XML has no such characters.
        c if c.is_control() => format!("&#x{:x};", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Returns a path as it is written in a URL.
fn encoded(path: &str) -> String {
    let encode = |byte: u8| {
        if byte.is_ascii_alphanumeric() || b"-_./".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    path.bytes().map(encode).collect()
}
