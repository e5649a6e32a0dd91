//! The shape of every error in coprep.
//!
//! | part | content | read by |
//! |---|---|---|
//! | [`context`](Error::context) | the operation that failed and its object, or the rule that is broken | people |
//! | [`kind`](Error::kind) | the class of the failure, with the data that programs need | programs |
//! | [`source`](std::error::Error::source) | the reason, if the context does not state it | people; programs by [`source_as`](Error::source_as) |
//! | [`remedy`](Error::remedy) | advice to the user | people |
//!
//! Each crate defines its kinds, as a `#[non_exhaustive]` enum whose variants say when they occur, and names its error:
//!
//! ```
//! /// The class of an [`Error`].
//! #[derive(Clone, Copy, Debug, PartialEq, Eq)]
//! #[non_exhaustive]
//! pub enum ErrorKind {
//!     /// A file cannot be read.
//!     Read,
//! }
//! pub type Error = coprep_error::Error<ErrorKind>;
//!
//! let error = Error::new(ErrorKind::Read, "cannot open labels.csv")
//!     .because(std::io::Error::from(std::io::ErrorKind::NotFound))
//!     .with_remedy("restore the file");
//! assert_eq!(*error.kind(), ErrorKind::Read);
//! assert_eq!(error.to_string(), "cannot open labels.csv: entity not found; restore the file");
//! ```
//!
//! A crate above converts such an error by [`Error::from_lower`]: it translates the kind, and all else stays. `From`
//! cannot do that, because one implementation for all pairs of kinds would overlap with `From<T> for T`, and one for a
//! single pair would belong to neither crate.
#![deny(unsafe_code)]

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Display, Write as _};
use std::sync::Arc;

/// An error of a crate whose kinds are `K`. See the [crate](crate).
///
/// It is one pointer wide, so that a `Result` stays small. A clone shares the source, so that several clients can be
/// told of one failure.
#[derive(Clone, Debug)]
pub struct Error<K> {
    parts: Box<Parts<K>>,
}

#[derive(Clone, Debug)]
struct Parts<K> {
    kind: K,
    context: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    remedy: Option<Cow<'static, str>>,
}

impl<K> Error<K> {
    /// Returns an error without a source and without a remedy.
    #[must_use]
    pub fn new(kind: K, context: impl Into<String>) -> Self {
        Error {
            parts: Box::new(Parts {
                kind,
                context: context.into(),
                source: None,
                remedy: None,
            }),
        }
    }

    /// Sets the source: another error, or the reason in words. It replaces an earlier one.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.parts.source = Some(source.into().into());
        self
    }

    /// Adds a remedy. It follows an earlier one.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        let remedy = remedy.into();
        self.parts.remedy = Some(match self.parts.remedy {
            Some(earlier) => format!("{earlier}; {remedy}").into(),
            None => remedy,
        });
        self
    }

    /// Puts a wider context before the context.
    #[must_use]
    pub fn within(mut self, context: impl Display) -> Self {
        self.parts.context = format!("{context}: {}", self.parts.context);
        self
    }

    /// Translates the kind. All else stays as it is.
    #[must_use]
    pub fn map_kind<L>(self, translate: impl FnOnce(K) -> L) -> Error<L> {
        let Parts {
            kind,
            context,
            source,
            remedy,
        } = *self.parts;
        Error {
            parts: Box::new(Parts {
                kind: translate(kind),
                context,
                source,
                remedy,
            }),
        }
    }

    /// Converts an error of a lower crate, with all but its kind unchanged.
    #[must_use]
    pub fn from_lower<L>(lower: Error<L>) -> Self
    where
        K: From<L>,
    {
        lower.map_kind(K::from)
    }

    /// Returns the class of the failure.
    #[must_use]
    pub fn kind(&self) -> &K {
        &self.parts.kind
    }

    /// Returns the class of the failure by value, so that its data can be moved out.
    #[must_use]
    pub fn into_kind(self) -> K {
        self.parts.kind
    }

    /// Returns the operation that failed and its object, or the rule that is broken.
    #[must_use]
    pub fn context(&self) -> &str {
        &self.parts.context
    }

    /// Returns the advice to the user, or `None` if no remedy is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.parts.remedy.as_deref()
    }

    /// Returns the source if it is of this type.
    #[must_use]
    pub fn source_as<E: StdError + 'static>(&self) -> Option<&E> {
        self.parts.source.as_ref()?.downcast_ref()
    }
}

/// Writes `context: source; remedy`, without the parts that are missing.
///
/// A user reads errors as one line, from a log, a message of the coordinator or a Python exception. The line is
/// therefore complete: a caller that prints it must not print the [source](StdError::source) again.
///
/// Names within it come from outside, and a terminal would obey their control characters. Those are replaced, but for the
/// line breaks and tabs of texts that others have written, such as tracebacks.
impl<K> Display for Error<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts {
            context,
            source,
            remedy,
            ..
        } = &*self.parts;
        let mut text = context.clone();
        if let Some(source) = source {
            write!(text, ": {source}")?;
        }
        if let Some(remedy) = remedy {
            write!(text, "; {remedy}")?;
        }
        f.write_str(&printable_lines(&text))
    }
}

/// Returns a name from outside without control characters, which a terminal would obey.
#[must_use]
pub fn printable(name: &str) -> Cow<'_, str> {
    replaced(name, char::is_control)
}

/// Returns a text with its line breaks and tabs, and without the other control characters of names in it.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c.is_control() && c != '\n' && c != '\t')
}

fn replaced(text: &str, is_harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.contains(&is_harmful) {
        Cow::Owned(text.replace(is_harmful, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

impl<K: fmt::Debug> StdError for Error<K> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.parts.source.as_deref()?)
    }
}
