//! Lists of files as a person names them: paths and URLs, with braces.

use std::path::{Path, PathBuf};

use crate::braces;
use crate::dataset_path;
use crate::dataset_url::DatasetUrl;

/// Returns the names that `texts` stand for, with their braces expanded. The error is for people.
pub(crate) fn expanded(texts: &[String]) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for text in texts {
        names.extend(braces::expand(text).map_err(|e| e.to_string())?);
    }
    Ok(names)
}

/// Returns the absolute paths of files, and URLs in their one spelling. The error is for people.
pub(crate) fn resolved(names: &[String]) -> Result<Vec<String>, String> {
    let mut urls = Vec::with_capacity(names.len());
    for name in names {
        urls.push(DatasetUrl::parse(name).map_err(|e| e.to_string())?);
    }
    let is_path = |(_, url): &(&String, &Option<DatasetUrl>)| url.is_none();
    let paths = names.iter().zip(&urls).filter(is_path);
    let paths: Vec<PathBuf> = paths.map(|(name, _)| name.into()).collect();
    let mut paths = dataset_path::files(&paths)
        .map_err(|e| e.to_string())?
        .into_iter();
    let name = |url: Option<DatasetUrl>| match url {
        Some(url) => Ok(url.to_string()),
        // There is one path for each name that is no URL.
        None => text(&paths.next().unwrap_or_default()),
    };
    urls.into_iter().map(name).collect()
}

/// Returns a path as text, because messages carry text.
fn text(path: &Path) -> Result<String, String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is not valid UTF-8: rename it", path.display()))
}

/// Returns a name of files for people: the text with braces that stands for all of them if there is one, otherwise the
/// first file and the number of the others. `none` is the name of an empty list.
pub(crate) fn name(files: &[String], none: &str) -> String {
    let (Some(first), Some(last)) = (files.first(), files.last()) else {
        return none.to_owned();
    };
    if files.len() == 1 {
        return first.clone();
    }
    let range = numbered_range(first, last);
    let is_it = |text: &String| braces::expand(text).is_ok_and(|all| all == files);
    range
        .filter(is_it)
        .unwrap_or_else(|| format!("{first} and {} more", files.len() - 1))
}

/// Returns the text with a range in braces whose first and last names are these.
fn numbered_range(first: &str, last: &str) -> Option<String> {
    let differs = first.bytes().zip(last.bytes()).position(|(a, b)| a != b)?;
    // The number begins where the digits before the first difference begin.
    let head = first.get(..differs)?.trim_end_matches(is_digit);
    let (from, rest) = split_number(&first[head.len()..]);
    let (to, _) = split_number(&last[head.len()..]);
    Some(format!("{head}{{{from}..{to}}}{rest}"))
}

/// Splits a text after the digits at its beginning.
fn split_number(text: &str) -> (&str, &str) {
    let rest = text.trim_start_matches(is_digit);
    text.split_at(text.len() - rest.len())
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}
