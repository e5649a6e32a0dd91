//! The parquet files of a dataset as a person names them: paths and URLs, with braces, and two columns.

use std::fmt;

use crate::file_list;
use crate::shard_list;
use crate::spec::ParquetFiles;

/// Default of [`ParquetFiles::image`], as Hugging Face names it.
pub const DEFAULT_IMAGE_COLUMN: &str = "image";
/// Default of [`ParquetFiles::label`], as Hugging Face names it.
pub const DEFAULT_LABEL_COLUMN: &str = "label";

/// A list of files or a column that is not accepted, with the reason and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidFiles(String);

impl fmt::Display for InvalidFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidFiles {}

/// Returns `true` if a path or URL names parquet files, and not a folder or tar shards: it ends in `.parquet`.
#[must_use]
pub fn names_parquet(text: &str) -> bool {
    text.to_ascii_lowercase().ends_with(".parquet")
}

/// Returns the column that the options of a command name, which has the parts of tar shards as its defaults.
fn column<'a>(part: &'a str, default_part: &str, default_column: &'a str) -> &'a str {
    if part == default_part {
        default_column
    } else {
        part
    }
}

impl ParquetFiles {
    /// Returns the files that `texts` name. Paths become absolute, and URLs get their one spelling.
    ///
    /// # Errors
    /// If there is none, or a name or a column is not accepted.
    pub fn named(
        texts: &[String],
        image: &str,
        label: Option<&str>,
    ) -> Result<ParquetFiles, InvalidFiles> {
        let names = file_list::expanded(texts).map_err(InvalidFiles)?;
        if names.is_empty() {
            let text = "the list of files is empty: give at least one parquet file";
            return Err(InvalidFiles(text.into()));
        }
        for (argument, column) in [("image", Some(image)), ("label", label)] {
            if column == Some("") {
                let text = format!("{argument}=\"\" names no column");
                return Err(InvalidFiles(text));
            }
        }
        Ok(ParquetFiles {
            files: file_list::resolved(&names).map_err(InvalidFiles)?,
            image: image.to_owned(),
            label: label.map(str::to_owned),
        })
    }

    /// Returns the files that an argument of a command names. `image` and `label` are the parts of tar shards that the
    /// command was given or has by default; the defaults stand for those of parquet files.
    ///
    /// # Errors
    /// As [`ParquetFiles::named`].
    pub fn of_command(
        text: &str,
        image: &str,
        label: Option<&str>,
    ) -> Result<ParquetFiles, InvalidFiles> {
        let image = column(image, shard_list::DEFAULT_IMAGE, DEFAULT_IMAGE_COLUMN);
        let label =
            label.map(|label| column(label, shard_list::DEFAULT_LABEL, DEFAULT_LABEL_COLUMN));
        ParquetFiles::named(&[text.to_owned()], image, label)
    }

    /// Returns a name for people: the text with braces that stands for all files if there is one, otherwise the first
    /// file and the number of the others.
    #[must_use]
    pub fn name(&self) -> String {
        file_list::name(&self.files, "no files")
    }
}

/// Writes the Python expression that names the files.
impl fmt::Display for ParquetFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parquet({:?}", self.name())?;
        if self.image != DEFAULT_IMAGE_COLUMN {
            write!(f, ", image={:?}", self.image)?;
        }
        match &self.label {
            None => f.write_str(", label=None")?,
            Some(label) if label != DEFAULT_LABEL_COLUMN => write!(f, ", label={label:?}")?,
            Some(_) => {}
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(texts: &[&str], image: &str, label: Option<&str>) -> Result<ParquetFiles, String> {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        ParquetFiles::named(&texts, image, label).map_err(|e| e.to_string())
    }

    #[test]
    fn files_are_shown_as_python_names_them() {
        let all = named(
            &["S3://b/train-{00..02}-of-03.parquet"],
            "image",
            Some("label"),
        );
        let all = all.expect("they are accepted");
        assert_eq!(all.files.len(), 3);
        assert_eq!(
            all.to_string(),
            r#"Parquet("s3://b/train-{00..02}-of-03.parquet")"#
        );
        let other = named(&["s3://b/x.parquet"], "img.bytes", None).expect("it is accepted");
        assert_eq!(
            other.to_string(),
            r#"Parquet("s3://b/x.parquet", image="img.bytes", label=None)"#
        );
    }

    #[test]
    fn what_is_not_accepted_is_named_with_a_remedy() {
        for (refused, part) in [
            (named(&[], "image", None), "at least one"),
            (
                named(&["ftp://h/x.parquet"], "image", None),
                "not a storage",
            ),
            (named(&["x.parquet"], "", None), "names no column"),
            (named(&["x.parquet"], "image", Some("")), "label=\"\""),
        ] {
            let refused = refused.expect_err("it is refused");
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn commands_have_the_defaults_of_parquet_files() {
        assert!(names_parquet("s3://b/{a,b}.PARQUET") && !names_parquet("b/{a,b}.tar"));
        let of = |image, label| ParquetFiles::of_command("/d/x.parquet", image, label);
        let default = of(shard_list::DEFAULT_IMAGE, Some(shard_list::DEFAULT_LABEL));
        let default = default.expect("it is accepted");
        assert_eq!(default.image, "image");
        assert_eq!(default.label.as_deref(), Some("label"));
        let other = of("picture", None).expect("it is accepted");
        assert_eq!((other.image.as_str(), other.label), ("picture", None));
    }
}
