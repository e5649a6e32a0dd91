//! Errors of sources, pipelines and samples, each with its remedy.

use std::fmt::Display;

/// A failure of a source, a pipeline's compilation, or a single sample.
///
/// The message states the problem and the remedy. The caller adds the sample's id and path, which this crate does not
/// know.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file or folder does not exist.
    NotFound,
    /// A file or folder exists but cannot be read.
    Read,
    /// The source does not have the form that its type promises, such as class folders or one label per path.
    InvalidSource,
    /// The operators do not form a valid pipeline.
    InvalidPipeline,
    /// The bytes are not an image of a known format.
    NotAnImage,
    /// The image is of a kind that this version does not decode.
    Unsupported,
    /// The image's data are cut short or broken.
    Damaged,
    /// The image has more pixels than `max_pixels`.
    TooLarge,
    /// A buffer has the wrong length, which is a defect of the caller.
    WrongLength,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn caused(
        kind: ErrorKind,
        message: impl Display,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Error {
            kind,
            message: format!("{message}: {source}"),
            source: Some(Box::new(source)),
        }
    }

    /// Appends the remedy for a sample whose file cannot be read.
    pub(crate) fn of_sample(mut self) -> Self {
        self.message
            .push_str("; restore the file, or use on_error=\"skip\" to leave such samples out");
        self
    }

    pub(crate) fn io(what: impl Display, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Read,
        };
        Error::caused(kind, what, source)
    }

    pub(crate) fn damaged(what: impl Display) -> Self {
        Error::new(
            ErrorKind::Damaged,
            format!("{what}; replace the file, or use on_error=\"skip\" to leave such samples out"),
        )
    }

    pub(crate) fn not_an_image(what: impl Display) -> Self {
        Error::new(
            ErrorKind::NotAnImage,
            format!(
                "{what}; JPEG, PNG and WebP are decoded: convert or remove the file, or use \
                 on_error=\"skip\" to leave such samples out"
            ),
        )
    }

    pub(crate) fn unsupported(what: impl Display) -> Self {
        Error::new(
            ErrorKind::Unsupported,
            format!("{what}; convert the file, or use on_error=\"skip\" to leave such samples out"),
        )
    }

    pub(crate) fn too_large(what: impl Display, max_pixels: u64) -> Self {
        Error::new(
            ErrorKind::TooLarge,
            format!(
                "{what} is more than max_pixels = {max_pixels}; raise max_pixels in decode() if the \
                 file can be trusted, or use on_error=\"skip\" to leave such samples out"
            ),
        )
    }

    pub(crate) fn wrong_length(what: &str, wanted: usize, found: usize) -> Self {
        Error::new(
            ErrorKind::WrongLength,
            format!("{what}: {wanted} bytes are needed, {found} were given"),
        )
    }

    /// Returns the class of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns `true` if a file or folder is missing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}
