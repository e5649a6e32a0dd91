//! Errors of sources, pipelines and samples, each with its remedy.

use std::fmt::Display;

/// A failure of a source, a pipeline's compilation, or a single sample. See [`coprep_error`].
///
/// The caller adds the sample's id and path, which this crate does not know.
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file or folder does not exist, or a folder has none of the samples that it must have.
    NotFound,
    /// A file or folder exists but cannot be read.
    Read,
    /// An object is not the one that was listed.
    Changed,
    /// A store does not answer, or refuses every request. This says nothing about the sample, which must not be left
    /// out for it.
    Unavailable,
    /// The source does not have the form that its type promises, such as class folders or one label per path.
    InvalidSource,
    /// The operators do not form a valid pipeline.
    InvalidPipeline,
    /// The bytes are not an image of a known format.
    NotAnImage,
    /// The bytes are not a `.npy` file.
    NotAnArray,
    /// The bytes are not audio of a known format.
    NotAudio,
    /// The audio does not have the channels that are wanted.
    OtherChannels,
    /// The array has another type or shape than those before it.
    OtherShape,
    /// The image is of a kind that this version does not decode.
    Unsupported,
    /// The image's data are cut short or broken.
    Damaged,
    /// The image has more pixels than `max_pixels`, or the audio more samples than `max_samples`.
    TooLarge,
    /// A buffer has the wrong length, which is a defect of the caller.
    WrongLength,
}

impl ErrorKind {
    /// Returns `true` if a file or folder is missing.
    #[must_use]
    pub fn is_not_found(self) -> bool {
        self == ErrorKind::NotFound
    }

    /// Returns `true` if the storage failed, and not the sample.
    #[must_use]
    pub fn is_unavailable(self) -> bool {
        self == ErrorKind::Unavailable
    }
}

impl From<coprep_storage::ErrorKind> for ErrorKind {
    fn from(kind: coprep_storage::ErrorKind) -> Self {
        use coprep_storage::ErrorKind as Storage;
        match kind {
            Storage::NotFound => ErrorKind::NotFound,
            Storage::Changed => ErrorKind::Changed,
            Storage::Unavailable => ErrorKind::Unavailable,
            Storage::Invalid => ErrorKind::InvalidSource,
            _ => ErrorKind::Read,
        }
    }
}

/// Returns the error of a file or folder that cannot be read.
pub(crate) fn io(context: impl Into<String>, source: std::io::Error) -> Error {
    let kind = match source.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Read,
    };
    Error::new(kind, context).because(source)
}

/// Converts an error of the storage that a sample was read from.
pub(crate) fn of_storage(error: coprep_storage::Error) -> Error {
    let error = Error::from_lower(error);
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Read => skippable(error, "restore the file"),
        // The storage knows the remedy, and leaving the sample out is none.
        _ => error,
    }
}

/// Converts the error of a row of a parquet file.
pub(crate) fn of_row(failure: coprep_parquet::ReadFailure) -> Error {
    match failure {
        coprep_parquet::ReadFailure::Storage(error) => of_storage(error),
        coprep_parquet::ReadFailure::Damaged(what) => {
            skippable(Error::new(ErrorKind::Damaged, what), "write the file anew")
        }
    }
}

/// Returns the error of operators that do not form a pipeline.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidPipeline, message)
}

pub(crate) fn damaged(what: impl Display) -> Error {
    let error = Error::new(ErrorKind::Damaged, what.to_string());
    skippable(error, "replace the file")
}

/// Returns the error of a sample whose bytes are not those of the index of its shard.
pub(crate) fn other_checksum(what: String) -> Error {
    skippable(
        Error::new(ErrorKind::Damaged, what),
        "write or upload the shard again, or index it anew by `coprep index --checksums` if it is right",
    )
}

pub(crate) fn not_an_image(what: impl Into<String>) -> Error {
    skippable(
        Error::new(ErrorKind::NotAnImage, what),
        "JPEG, PNG and WebP are decoded: convert or remove the file",
    )
}

pub(crate) fn not_an_array(what: impl Into<String>) -> Error {
    skippable(
        Error::new(ErrorKind::NotAnArray, what),
        "write arrays by numpy.save, and leave out other files",
    )
}

pub(crate) fn not_audio(what: impl Into<String>) -> Error {
    skippable(
        Error::new(ErrorKind::NotAudio, what),
        "WAV and FLAC are decoded: convert or remove the file",
    )
}

pub(crate) fn other_channels(what: impl Into<String>) -> Error {
    skippable(
        Error::new(ErrorKind::OtherChannels, what),
        "choose channels in decode_audio() that all files have, or mix them down by channels=1",
    )
}

pub(crate) fn too_long(samples: u64, max_samples: u64) -> Error {
    let what = format!("{samples} samples of a channel are more than max_samples = {max_samples}");
    skippable(
        Error::new(ErrorKind::TooLarge, what),
        "raise max_samples in decode_audio() if the file can be trusted",
    )
}

pub(crate) fn other_shape(what: impl Into<String>) -> Error {
    skippable(
        Error::new(ErrorKind::OtherShape, what),
        "write all arrays with one type and shape",
    )
}

pub(crate) fn unsupported(what: impl Display) -> Error {
    let error = Error::new(ErrorKind::Unsupported, what.to_string());
    skippable(error, "convert the file")
}

pub(crate) fn too_large(what: impl Display, max_pixels: u64) -> Error {
    let what = format!("{what} is more than max_pixels = {max_pixels}");
    skippable(
        Error::new(ErrorKind::TooLarge, what),
        "raise max_pixels in decode() if the file can be trusted",
    )
}

/// Adds a remedy, and the one that helps against every sample that cannot be prepared.
fn skippable(error: Error, remedy: &str) -> Error {
    error.with_remedy(format!(
        "{remedy}, or use on_error=\"skip\" to leave such samples out"
    ))
}

pub(crate) fn wrong_length(what: &str, wanted: usize, found: usize) -> Error {
    Error::new(ErrorKind::WrongLength, what)
        .because(format!("{wanted} bytes are needed, {found} were given"))
}
