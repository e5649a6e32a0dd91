//! Text and numbers for a person at a terminal: widths, tables, units. It prints nothing itself.

use std::io::IsTerminal;

use coprep_error::printable;
use coprep_protocol::message::SampleCost;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns of all output.
pub const WIDTH: usize = 80;

/// Returns `true` if text is printed in colour: stdout is a terminal, and <https://no-color.org> does not forbid it.
pub fn is_coloured() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    !refused && std::io::stdout().is_terminal()
}

/// Gap between two columns of a table.
pub const BETWEEN: &str = "  ";

/// Formats a table: a header, and right-aligned columns under it.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        rows.iter()
            .map(|r| r[i].chars().count())
            .chain([header[i].chars().count()])
            .max()
    };
    let widths: Vec<usize> = (0..header.len()).map(|i| width(i).unwrap_or(0)).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(c, w)| format!("{c:>w$}"))
            .collect();
        padded.join(BETWEEN)
    };
    let mut lines = vec![line(header.to_vec())];
    lines.extend(
        rows.iter()
            .map(|r| line(r.iter().map(String::as_str).collect())),
    );
    lines.join("\n")
}

/// Shortens a text to `width` columns from the left, since the end of a path tells files apart.
pub fn ending(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut room = width.saturating_sub(3);
    let fits = |c: &char| {
        let left = room.checked_sub(c.width().unwrap_or(0));
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept: Vec<char> = text.chars().rev().take_while(fits).collect();
    let kept: String = kept.into_iter().rev().collect();
    format!("...{kept}")
}

/// Formats a duration: `3 min 20 s`.
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..=59 => format!("{s} s"),
        60..=3599 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// Formats a number with at least three digits: `0.21`, `3.5`, `41.8`, `1,240`.
pub fn number(n: f64) -> String {
    // The limits lie just below powers of ten, since rounding adds a digit there.
    let digits = match n.abs() {
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        a if a >= 0.0995 => 2,
        _ => 3,
    };
    let text = format!("{n:.digits$}");
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').into(),
        None => grouped(&text),
    }
}

/// Groups digits: `50000` becomes `50,000`.
pub fn grouped(digits: &str) -> String {
    let count = digits.len();
    digits
        .char_indices()
        .flat_map(|(i, c)| {
            // No comma after a minus sign.
            let comma = i > 0 && (count - i).is_multiple_of(3) && !digits[..i].ends_with('-');
            comma.then_some(',').into_iter().chain([c])
        })
        .collect()
}

/// Returns the file of a sample, or the expression that makes it if user code does.
pub fn label(sample: &SampleCost) -> String {
    if sample.path.is_empty() {
        format!("dataset[{}]", sample.id)
    } else {
        sample.path.clone()
    }
}

/// Replaces control characters, which a terminal would obey.
pub fn clean(text: &str) -> String {
    printable(text).into_owned()
}

/// Wraps a text into lines that fit the terminal, each with `indent` spaces before it and a line break after it.
pub fn wrapped(text: &str, indent: usize) -> String {
    let room = WIDTH - indent;
    let mut lines: Vec<String> = Vec::new();
    // Line breaks and tabs separate words too; as control characters they would be replaced by marks.
    let text = clean(&text.replace(['\n', '\t'], " "));
    for word in text
        .split(' ')
        .filter(|w| !w.is_empty())
        .flat_map(|w| pieces(w, room))
    {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= room => {
                *line = format!("{line} {word}")
            }
            _ => lines.push(word),
        }
    }
    let line = |line: String| format!("{}{line}\n", " ".repeat(indent));
    lines.into_iter().map(line).collect()
}

/// Splits a word that is longer than a line.
fn pieces(word: &str, room: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for c in word.chars() {
        match pieces.last_mut() {
            Some(piece) if piece.width() + c.width().unwrap_or(0) <= room => piece.push(c),
            _ => pieces.push(c.into()),
        }
    }
    pieces
}
