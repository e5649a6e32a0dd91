//! Output of the commands on stdout.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io::{ErrorKind, Write, stdout};

use coprep_error::printable_lines;

use crate::Outcome;

/// The reader of the output has ended, as `head` does in `coprep doctor | head -1`. That is no failure of the command.
#[derive(Debug)]
pub(crate) struct NobodyReads;

impl Display for NobodyReads {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output")
    }
}

impl Error for NobodyReads {}

/// Writes a text to stdout. Not `print!`, which panics where the reader has ended or the disk is full.
///
/// # Errors
/// [`NobodyReads`], or the error of the system.
pub(crate) fn print(text: impl Display) -> Outcome<()> {
    let mut out = stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        other => Ok(other?),
    }
}

/// Writes a text without colours and the end of the line to stdout, without the control characters of names. See [`print`].
pub(crate) fn print_line(text: impl Display) -> Outcome<()> {
    print(format_args!("{}\n", printable_lines(&text.to_string())))
}
