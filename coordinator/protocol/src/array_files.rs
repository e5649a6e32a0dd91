//! Files of tokens and arrays as a person names them, with the rules for windows.

use std::fmt;

use crate::file_list;
use crate::spec::{ArrayFiles, Dtype, Tail, TokenFiles};

/// Default of [`TokenFiles::dtype`]: vocabularies of up to 65,536 tokens.
pub const DEFAULT_TOKEN: Dtype = Dtype::U16;
/// Element types of token files.
const TOKENS: [Dtype; 8] = [
    Dtype::U8,
    Dtype::I8,
    Dtype::U16,
    Dtype::I16,
    Dtype::U32,
    Dtype::I32,
    Dtype::U64,
    Dtype::I64,
];
/// Most bytes of one window, as of any other sample.
const MOST_WINDOW: u64 = 1 << 30;

/// Returns the types that hold every value of `stored`: itself, and the signed integers of 32 and 64 bits as far as they
/// are wide enough.
#[must_use]
pub fn converts_to(stored: Dtype) -> Vec<Dtype> {
    let wider = match stored {
        Dtype::U8 | Dtype::I8 | Dtype::U16 | Dtype::I16 => &[Dtype::I32, Dtype::I64][..],
        Dtype::U32 | Dtype::I32 => &[Dtype::I64][..],
        _ => &[][..],
    };
    [&[stored], wider].concat()
}

/// Returns the paths and URLs that `texts` name, with braces expanded and in their one spelling.
///
/// # Errors
/// If there is none, or one is not accepted. The error is for people.
pub fn resolved(texts: &[String]) -> Result<Vec<String>, String> {
    let names = file_list::expanded(texts)?;
    if names.is_empty() {
        return Err("the list of files is empty: give at least one".into());
    }
    file_list::resolved(&names)
}

impl TokenFiles {
    /// Checks the numbers and types.
    ///
    /// # Errors
    /// The mistake, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        let names = |types: &[Dtype]| {
            types
                .iter()
                .map(|t| t.name())
                .collect::<Vec<_>>()
                .join(", ")
        };
        if !TOKENS.contains(&self.dtype) {
            return Err(format!(
                "dtype={:?} is no type of tokens: choose {}; arrays of other types are read by coprep.Arrays",
                self.dtype.name(),
                names(&TOKENS)
            ));
        }
        let possible = converts_to(self.dtype);
        if !possible.contains(&self.out) {
            return Err(format!(
                "out={:?} does not hold every value of {}: choose {}",
                self.out.name(),
                self.dtype.name(),
                names(&possible)
            ));
        }
        if self.window == 0 || self.stride == 0 {
            return Err(format!(
                "window={} and stride={} must be 1 or more tokens",
                self.window, self.stride
            ));
        }
        if u64::from(self.window) * self.out.size() as u64 > MOST_WINDOW {
            return Err(format!(
                "a window of {} tokens has more than {MOST_WINDOW} bytes, the most that a sample may have",
                self.window
            ));
        }
        Ok(())
    }

    /// Returns a name for people.
    #[must_use]
    pub fn name(&self) -> String {
        file_list::name(&self.files, "no files")
    }
}

/// Writes the Python expression that names the tokens.
impl fmt::Display for TokenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({:?}, window={}", self.name(), self.window)?;
        if self.dtype != DEFAULT_TOKEN {
            write!(f, ", dtype={:?}", self.dtype.name())?;
        }
        if self.stride != self.window {
            write!(f, ", stride={}", self.stride)?;
        }
        if self.out != self.dtype {
            write!(f, ", out={:?}", self.out.name())?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", offset={offset}")?;
        }
        if self.tail != Tail::Drop {
            write!(f, ", tail={:?}", self.tail.name())?;
        }
        f.write_str(")")
    }
}

impl Tail {
    /// Returns its name in Python.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tail::Drop => "drop",
            Tail::Overlap => "overlap",
        }
    }

    /// Returns the rule with this name, or `None` if there is none.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Tail> {
        [Tail::Drop, Tail::Overlap]
            .into_iter()
            .find(|tail| tail.name() == name)
    }
}

impl ArrayFiles {
    /// Returns a name for people.
    #[must_use]
    pub fn name(&self) -> String {
        file_list::name(&self.files, "no files")
    }
}

/// Writes the Python expression that names the arrays.
impl fmt::Display for ArrayFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arrays({:?}", self.name())?;
        if !self.labels.is_empty() {
            write!(f, ", {} labels", self.labels.len())?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> TokenFiles {
        TokenFiles {
            files: vec!["/d/train.bin".into()],
            dtype: Dtype::U16,
            out: Dtype::U16,
            window: 2049,
            stride: 2049,
            offset: None,
            tail: Tail::Drop,
        }
    }

    #[test]
    fn tokens_are_written_as_python_makes_them() {
        assert_eq!(
            tokens().to_string(),
            r#"Tokens("/d/train.bin", window=2049)"#
        );
        let all = TokenFiles {
            dtype: Dtype::U32,
            out: Dtype::I64,
            stride: 2048,
            offset: Some(1024),
            tail: Tail::Overlap,
            ..tokens()
        };
        assert_eq!(
            all.to_string(),
            r#"Tokens("/d/train.bin", window=2049, dtype="uint32", stride=2048, out="int64", offset=1024, tail="overlap")"#
        );
    }

    #[test]
    fn what_is_not_accepted_is_named_with_a_remedy() {
        assert_eq!(tokens().check(), Ok(()));
        let refused = |tokens: TokenFiles, part: &str| {
            let message = tokens.check().expect_err("it is refused");
            assert!(message.contains(part), "{message}");
        };
        let (dtype, out) = (Dtype::F32, Dtype::F32);
        refused(
            TokenFiles {
                dtype,
                out,
                ..tokens()
            },
            "coprep.Arrays",
        );
        let out = Dtype::I16;
        refused(
            TokenFiles { out, ..tokens() },
            "choose uint16, int32, int64",
        );
        let stride = 0;
        refused(TokenFiles { stride, ..tokens() }, "1 or more");
        let window = u32::MAX;
        refused(
            TokenFiles { window, ..tokens() },
            "more than 1073741824 bytes",
        );
    }
}
