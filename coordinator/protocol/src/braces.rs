//! Names with braces, expanded as a shell does it: `train-{000..099}.tar`, `{a,b}/x.tar`.
//!
//! A pair of braces that holds neither a comma nor a range stands for itself, and so does a brace without a partner.

use std::fmt;

/// Most names that one text may stand for. A typing error such as `{0..9999999999}` must not exhaust memory.
pub const MOST_NAMES: usize = 1_000_000;

/// A text that stands for more names than [`MOST_NAMES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooManyNames(String);

impl fmt::Display for TooManyNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} stands for more than {MOST_NAMES} names: check the ranges in its braces",
            self.0
        )
    }
}

impl std::error::Error for TooManyNames {}

/// Returns the names that a text stands for, in the order in which bash gives them.
///
/// # Errors
/// If there are more than [`MOST_NAMES`].
pub fn expand(text: &str) -> Result<Vec<String>, TooManyNames> {
    expansion(text).ok_or_else(|| TooManyNames(text.to_owned()))
}

/// Returns `true` if a text has braces that are expanded.
#[must_use]
pub fn has_braces(text: &str) -> bool {
    first_group(text).is_some()
}

/// A pair of braces and the names that it stands for.
struct BraceGroup<'a> {
    before: &'a str,
    choices: Vec<String>,
    after: &'a str,
}

fn expansion(text: &str) -> Option<Vec<String>> {
    let Some(group) = first_group(text) else {
        return Some(vec![text.to_owned()]);
    };
    let ends = expansion(group.after)?;
    let mut names = Vec::new();
    for choice in &group.choices {
        // A choice may have braces of its own.
        for middle in expansion(choice)? {
            if names.len() + ends.len() > MOST_NAMES {
                return None;
            }
            let whole = |end: &String| format!("{}{middle}{end}", group.before);
            names.extend(ends.iter().map(whole));
        }
    }
    Some(names)
}

/// Returns the first pair of braces that is expanded.
fn first_group(text: &str) -> Option<BraceGroup<'_>> {
    let opening = text.match_indices('{').map(|(at, _)| at);
    opening.into_iter().find_map(|open| {
        let close = closing(text, open)?;
        let choices = choices(&text[open + 1..close])?;
        Some(BraceGroup {
            before: &text[..open],
            choices,
            after: &text[close + 1..],
        })
    })
}

/// Returns the position of the brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Returns what the content of a pair of braces stands for, or `None` if it stands for itself.
fn choices(content: &str) -> Option<Vec<String>> {
    let parts = split_at_commas(content);
    if parts.len() > 1 {
        return Some(parts.into_iter().map(str::to_owned).collect());
    }
    let mut bounds = content.split("..");
    let (first, last, step) = (bounds.next()?, bounds.next()?, bounds.next());
    if bounds.next().is_some() {
        return None;
    }
    let step = step.map_or(Some(1), |step| step.parse::<i64>().ok())?;
    number_range(first, last, step).or_else(|| letter_range(first, last, step))
}

/// Splits at the commas that lie in no inner braces.
fn split_at_commas(content: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0i32);
    for (at, byte) in content.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&content[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&content[start..]);
    parts
}

fn number_range(first: &str, last: &str, step: i64) -> Option<Vec<String>> {
    let (from, to) = (first.parse::<i64>().ok()?, last.parse::<i64>().ok()?);
    let digits = |text: &str| text.trim_start_matches('-').len();
    let is_padded = |text: &str| digits(text) > 1 && text.trim_start_matches('-').starts_with('0');
    // As in bash, a zero in front of one bound pads all numbers to the wider one.
    let width = if is_padded(first) || is_padded(last) {
        first.len().max(last.len())
    } else {
        0
    };
    Some(steps(from, to, step, |n| format!("{n:0width$}")))
}

fn letter_range(first: &str, last: &str, step: i64) -> Option<Vec<String>> {
    let letter = |text: &str| match text.as_bytes() {
        [byte] if byte.is_ascii_alphabetic() => Some(i64::from(*byte)),
        _ => None,
    };
    let shown = |n| char::from(u8::try_from(n).unwrap_or_default()).to_string();
    Some(steps(letter(first)?, letter(last)?, step, shown))
}

/// Returns the numbers from `from` to `to`, at most one more than [`MOST_NAMES`] of them, so that too many are noticed.
fn steps(from: i64, to: i64, step: i64, show: impl Fn(i64) -> String) -> Vec<String> {
    // As in bash, a step of 0 counts as 1.
    let size = step.unsigned_abs().max(1);
    let count = (from.abs_diff(to) / size).min(MOST_NAMES as u64);
    // Offsets go up to the whole range of 64 bits, which a signed number does not hold. No offset is beyond `to`, so
    // nothing wraps.
    let at = |i: u64| {
        let offset = i * size;
        if to >= from {
            from.wrapping_add_unsigned(offset)
        } else {
            from.wrapping_sub_unsigned(offset)
        }
    };
    (0..=count).map(|i| show(at(i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Vec<String> {
        expand(text).expect("it is not too long")
    }

    #[test]
    fn ranges_and_alternatives_are_expanded_as_in_bash() {
        assert_eq!(
            expanded("t-{008..011}.tar"),
            ["t-008.tar", "t-009.tar", "t-010.tar", "t-011.tar"]
        );
        assert_eq!(expanded("{0..4..2}"), ["0", "2", "4"]);
        assert_eq!(expanded("{2..0}"), ["2", "1", "0"]);
        assert_eq!(expanded("{a..c}x"), ["ax", "bx", "cx"]);
        assert_eq!(
            expanded("{a,b{0..1}}-{x,}"),
            ["a-x", "a-", "b0-x", "b0-", "b1-x", "b1-"]
        );
        assert_eq!(expanded("{1..10}")[9], "10");
        assert_eq!(expanded("{01..10}")[0], "01");
    }

    #[test]
    fn ranges_may_span_all_numbers() {
        let all = "{-9223372036854775808..9223372036854775807..9000000000000000000}";
        let up = [
            "-9223372036854775808",
            "-223372036854775808",
            "8776627963145224192",
        ];
        assert_eq!(expanded(all), up);
        let down = "{9223372036854775807..-9223372036854775808..-9223372036854775808}";
        assert_eq!(expanded(down), ["9223372036854775807", "-1"]);
    }

    #[test]
    fn braces_that_say_nothing_stand_for_themselves() {
        for text in [
            "",
            "plain",
            "{}",
            "{a}",
            "a{b",
            "a}b{",
            "{1..}",
            "{1..x}",
            "{1..2..x}",
            "{{a}",
        ] {
            assert_eq!(expanded(text), [text]);
            assert!(!has_braces(text));
        }
        assert_eq!(expanded("{x}{1,2}"), ["{x}1", "{x}2"]);
        assert_eq!(expanded("{a{1,2}"), ["{a1", "{a2"]);
    }

    #[test]
    fn too_many_names_are_refused_before_they_are_made() {
        for text in [
            "{0..9999999999}",
            "{0..9999}{0..9999}",
            "{-9223372036854775808..9223372036854775807}",
        ] {
            assert!(expand(text).is_err(), "{text}");
        }
    }
}
