//! The shards of a dataset as a person names them: paths and URLs, with braces.

use std::fmt;

use crate::spec::TarShards;
use crate::{braces, file_list};

/// Default of [`TarShards::image`]: the endings of images that are decoded.
pub const DEFAULT_IMAGE: &str = "jpg;jpeg;png;webp";
/// Default of [`TarShards::label`].
pub const DEFAULT_LABEL: &str = "cls";
/// Ending of a list of shards.
const LIST: &str = ".json";
/// Endings of compressed archives.
const COMPRESSED: [&str; 9] = [
    ".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".tzst", ".lz4",
];

/// A list of shards that is not accepted, with the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidShards(String);

impl fmt::Display for InvalidShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidShards {}

/// Returns `true` if a path or URL names tar shards, and not a folder: it has braces, or ends in `.tar`, or in `.json` as
/// a list of shards does.
#[must_use]
pub fn names_shards(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.ends_with(".tar") || lower.ends_with(LIST) || braces::has_braces(text)
}

/// The remedy for a compressed archive.
pub const DECOMPRESS: &str = "decompress it: within a compressed archive no sample can be read by itself, and images are \
                              compressed already, so that a plain .tar is hardly larger";

impl TarShards {
    /// Returns the shards that `texts` name. Paths become absolute, and URLs get their one spelling.
    ///
    /// # Errors
    /// If there is none, or a name, `image` or `label` is not accepted.
    pub fn named(
        texts: &[String],
        image: &str,
        label: Option<&str>,
    ) -> Result<TarShards, InvalidShards> {
        let invalid = |text: String| InvalidShards(text);
        let names = file_list::expanded(texts).map_err(invalid)?;
        if names.is_empty() {
            return Err(invalid(
                "the list of shards is empty: give at least one tar file".into(),
            ));
        }
        let is_compressed = |name: &&String| {
            let name = name.to_ascii_lowercase();
            COMPRESSED.iter().any(|ending| name.ends_with(ending))
        };
        if let Some(name) = names.iter().find(is_compressed) {
            return Err(invalid(format!("{name} is compressed: {DECOMPRESS}")));
        }
        check_parts(image, label)?;
        Ok(TarShards {
            shards: file_list::resolved(&names).map_err(invalid)?,
            image: image.to_owned(),
            label: label.map(str::to_owned),
        })
    }

    /// Returns the path or URL of the list that names the shards, or `None` if they are named themselves.
    #[must_use]
    pub fn list(&self) -> Option<&str> {
        let is_list = |name: &&String| name.to_ascii_lowercase().ends_with(LIST);
        match &self.shards[..] {
            [one] => Some(one).filter(is_list).map(String::as_str),
            _ => None,
        }
    }

    /// Returns a name for people: the text with braces that stands for all shards if there is one, otherwise the first
    /// shard and the number of the others.
    #[must_use]
    pub fn name(&self) -> String {
        file_list::name(&self.shards, "no shards")
    }
}

/// Writes the Python expression that names the shards.
impl fmt::Display for TarShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebDataset({:?}", self.name())?;
        if self.image != DEFAULT_IMAGE {
            write!(f, ", image={:?}", self.image)?;
        }
        match &self.label {
            None => f.write_str(", label=None")?,
            Some(label) if label != DEFAULT_LABEL => write!(f, ", label={label:?}")?,
            Some(_) => {}
        }
        f.write_str(")")
    }
}

fn check_parts(image: &str, label: Option<&str>) -> Result<(), InvalidShards> {
    if image.split(';').any(|ending| !is_ending(ending)) {
        return Err(InvalidShards(format!(
            "image={image:?} does not name endings of files: write them without a dot, separated by semicolons, such as \
             {DEFAULT_IMAGE:?}"
        )));
    }
    let Some(label) = label else {
        return Ok(());
    };
    // There is no field to check without a colon, so any name stands in for it.
    let (ending, field) = label.split_once(':').unwrap_or((label, "field"));
    if !is_ending(ending) || field.is_empty() {
        return Err(InvalidShards(format!(
            "label={label:?} names no part of a sample: write the ending of a file that holds an integer (\"cls\"), an \
             integer field of a JSON file (\"json:field\"), or None for no labels"
        )));
    }
    Ok(())
}

fn is_ending(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.contains(['/', ':', ';', '\n'])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn named(texts: &[&str]) -> TarShards {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        TarShards::named(&texts, DEFAULT_IMAGE, Some(DEFAULT_LABEL)).expect("it is accepted")
    }

    #[test]
    fn every_spelling_of_the_same_shards_is_one() {
        let braces = named(&["S3://b//t-{08..11}.tar"]);
        let listed = named(&["s3://b/t-08.tar", "s3://b/t-09.tar", "s3://b/t-{10,11}.tar"]);
        assert_eq!(braces, listed);
        assert_eq!(listed.to_string(), r#"WebDataset("s3://b/t-{08..11}.tar")"#);
        let path = named(&["x.tar"]).shards;
        assert!(Path::new(&path[0]).is_absolute(), "{path:?}");
    }

    #[test]
    fn shards_without_a_range_are_named_by_the_first() {
        assert_eq!(named(&["s3://b/x.tar"]).name(), "s3://b/x.tar");
        let two = named(&["s3://b/x.tar", "s3://b/y.tar"]);
        assert_eq!(two.name(), "s3://b/x.tar and 1 more");
        let gap = named(&["s3://b/{0,1,3}.tar"]);
        assert_eq!(gap.name(), "s3://b/0.tar and 2 more");
        assert_eq!(
            named(&["s3://b/1/{1..12}.tar"]).name(),
            "s3://b/1/{1..12}.tar"
        );
        assert_eq!(
            named(&["s3://b/1.tar", "s3://b/1"]).name(),
            "s3://b/1.tar and 1 more"
        );
    }

    #[test]
    fn what_is_not_accepted_is_named_with_a_remedy() {
        let refused = |texts: &[&str], image: &str, label: &str| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            let refused = TarShards::named(&texts, image, Some(label));
            refused.expect_err("it is refused").to_string()
        };
        for (refusal, part) in [
            (refused(&[], "jpg", "cls"), "at least one"),
            (
                refused(&["x-{0..1}.tar.gz"], "jpg", "cls"),
                "x-0.tar.gz is compressed",
            ),
            (refused(&["X.TGZ"], "jpg", "cls"), "decompress it"),
            (refused(&["ftp://h/x.tar"], "jpg", "cls"), "not a storage"),
            (refused(&["x.tar"], ".jpg", "cls"), "without a dot"),
            (refused(&["x.tar"], "jpg;", "cls"), "semicolons"),
            (refused(&["x.tar"], "jpg", "json:"), "names no part"),
        ] {
            assert!(refusal.contains(part), "{refusal}");
        }
    }

    #[test]
    fn shards_are_told_from_folders() {
        assert!(names_shards("s3://b/x.tar") && names_shards("t-{0..9}") && names_shards("X.TAR"));
        assert!(!names_shards("data/train") && !names_shards("data/{x}"));
    }
}
