//! Labels in JSON, as Python's `json` reads it: its writer gives NaN and infinities names that are no JSON, and cuts
//! characters in two.

use serde_json::Value;

/// Parses JSON, also with a byte order mark, with NaN and infinities, which become null, and with halves of surrogate
/// pairs, which become U+FFFD.
pub(crate) fn parse(content: &[u8]) -> Result<Value, serde_json::Error> {
    let content = content
        .strip_prefix("\u{feff}".as_bytes())
        .unwrap_or(content);
    // Hardly any file needs more than this.
    serde_json::from_slice(content)
        .or_else(|error| serde_json::from_slice(&strict(content)).map_err(|_| error))
}

/// Returns the integer at a field: a number, `true` or `false`, or the text of an integer. `field` is a name, or names of
/// objects within each other, with dots between them.
pub(crate) fn integer_at(json: &Value, field: &str) -> Option<i64> {
    let nested = || {
        field
            .split('.')
            .try_fold(json, |object, name| object.get(name))
    };
    match json.get(field).or_else(nested)? {
        Value::Number(number) => number.as_i64().or_else(|| integer(number.as_f64()?)),
        Value::Bool(is_true) => Some((*is_true).into()),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Returns the integer that a number such as `3.0` is.
fn integer(number: f64) -> Option<i64> {
    /// Beyond it, a number stands for several integers.
    const MOST: f64 = (1_u64 << 53) as f64;
    (number.fract() == 0.0 && number.abs() <= MOST).then_some(number as i64)
}

/// Replaces what is no JSON: words for numbers that it cannot write, and halves of surrogate pairs.
fn strict(content: &[u8]) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];
    let (mut written, mut rest, mut is_in_text) =
        (Vec::with_capacity(content.len()), content, false);
    while let Some(&first) = rest.first() {
        let word = WORDS.into_iter().find(|word| rest.starts_with(word));
        let (taken, replacement): (usize, &[u8]) = match (is_in_text, word) {
            (false, Some(word)) => (word.len(), b"null"),
            (true, _) if first == b'\\' => match surrogate(rest) {
                // A pair stands for one character.
                Some(0xd800..=0xdbff)
                    if rest
                        .get(6..)
                        .and_then(surrogate)
                        .is_some_and(|s| s >= 0xdc00) =>
                {
                    (12, &rest[..12])
                }
                Some(_) => (6, b"\\ufffd"),
                None => (rest.len().min(2), &rest[..rest.len().min(2)]),
            },
            _ => (1, &rest[..1]),
        };
        is_in_text ^= first == b'"';
        written.extend_from_slice(replacement);
        rest = &rest[taken..];
    }
    written
}

/// Returns the half of a surrogate pair that an escape stands for.
fn surrogate(rest: &[u8]) -> Option<u16> {
    let digits = rest.strip_prefix(b"\\u")?.get(..4)?;
    let half = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (0xd800..=0xdfff).contains(&half).then_some(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_python_reads_it() {
        let label = |text: &str| integer_at(&parse(text.as_bytes()).unwrap(), "label");
        for text in [
            r#"{"similarity": NaN, "label": 1}"#,
            r#"{"a": [Infinity, -Infinity, NaN], "label": 1}"#,
            "\u{feff}{\"label\": 1}",
            r#"{"caption": "cut \ud83d", "label": 1}"#,
            r#"{"caption": "\ude00\ud83d\ude00 \\", "label": 1}"#,
            r#"{"caption": "NaN \" Infinity", "x": NaN, "label": 1}"#,
            r#"{"label": 1.0, "x": NaN}"#,
            r#"{"label": "1"}"#,
            r#"{"label": true}"#,
            r#"{"label": 1e0}"#,
        ] {
            assert_eq!(label(text), Some(1), "{text}");
        }
        for text in [
            r#"{"label": 1.5}"#,
            r#"{"label": NaN}"#,
            r#"{"label": 1e300}"#,
            r#"{"label": "one"}"#,
            r#"{"label": [1]}"#,
            "[]",
        ] {
            assert_eq!(label(text), None, "{text}");
        }
        for text in [
            "",
            "{",
            r#"{"label": NaNa}"#,
            r#"{"label": "\"#,
            r#"{"a": "\u12"#,
        ] {
            parse(text.as_bytes()).unwrap_err();
        }
        let kept = parse(r#"{"a": "NaN \ud83d\ude00", "b": NaN}"#.as_bytes()).unwrap();
        assert_eq!(kept["a"], "NaN \u{1f600}");
    }

    #[test]
    fn a_field_may_lie_within_others() {
        let json = parse(br#"{"a": {"b": {"label": 4}}, "a.b": 5}"#).unwrap();
        assert_eq!(integer_at(&json, "a.b.label"), Some(4));
        assert_eq!(integer_at(&json, "a.b"), Some(5), "a name comes first");
        assert_eq!(integer_at(&json, "a.x"), None);
    }
}
