//! The header of a `.npy` file: NumPy's format, versions 1 to 3
//! (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>).

use coprep_protocol::spec::Dtype;

use crate::error::{self, Error};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header that is read. NumPy writes 128 bytes; only structured types, which are refused, need many more.
pub(crate) const MOST_HEADER: usize = 4096;

/// The facts in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NpyHeader {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u32>,
    /// Offset of the first element.
    pub(crate) data_at: usize,
}

/// Returns `true` if a file begins as a `.npy` file: with the magic number, a version, and a dict.
pub(crate) fn is_npy(head: &[u8]) -> bool {
    let text = match head.strip_prefix(MAGIC) {
        Some([1, _, _, _, text @ ..] | [2 | 3, _, _, _, _, _, text @ ..]) => text,
        _ => return false,
    };
    text.starts_with(b"{")
}

/// Returns `true` if an array has one dimension, but for dimensions of length 1. It lies in memory alike in both orders.
pub(crate) fn has_one_dimension(shape: &[u32]) -> bool {
    shape.iter().filter(|&&length| length != 1).count() <= 1
}

/// Reads a header from the beginning of a file.
///
/// # Errors
/// If it is no such file, or its array is in another order or of another type than tensors are.
pub(crate) fn header(head: &[u8]) -> Result<NpyHeader, Error> {
    let rest = head
        .strip_prefix(MAGIC)
        .ok_or_else(|| not_npy("it does not begin as a .npy file"))?;
    // Version 1 has a length of 2 bytes, and later versions of 4.
    let (length, text) = match rest {
        [1, _, a, b, text @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), text),
        [2 | 3, _, a, b, c, d, text @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, text),
        _ => return Err(not_npy("its version of the format is not 1, 2 or 3")),
    };
    let data_at = head.len() - text.len() + length;
    if length > MOST_HEADER {
        return Err(error::unsupported("an array of a structured type"));
    }
    let text = text
        .get(..length)
        .and_then(|text| std::str::from_utf8(text).ok());
    let text = text.ok_or_else(|| error::damaged("its header is cut short or no text"))?;
    let entries = Entries::of(text)?;
    let is_fortran = match entries.value("fortran_order")? {
        "True" => true,
        "False" => false,
        other => {
            let what = format!("its header has a fortran_order of {other:.20}, not True or False");
            return Err(error::damaged(what));
        }
    };
    let shape = shape(entries.value("shape")?)?;
    if is_fortran && !has_one_dimension(&shape) {
        return Err(error::unsupported(
            "an array in Fortran order (write it anew by np.save(path, np.ascontiguousarray(array)))",
        ));
    }
    Ok(NpyHeader {
        dtype: dtype(entries.value("descr")?)?,
        shape,
        data_at,
    })
}

/// Keys of a header, and the texts of their values. The header is a literal of a Python dict.
struct Entries<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Entries<'a> {
    fn of(header: &'a str) -> Result<Self, Error> {
        let wrong = || error::damaged("its header is no dict of Python");
        let inside = header.trim().strip_prefix('{');
        let inside = inside.and_then(|rest| rest.strip_suffix('}'));
        let mut rest = inside.ok_or_else(wrong)?.trim_start();
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (key, behind) = quoted(rest).ok_or_else(wrong)?;
            let value = behind.trim_start().strip_prefix(':').ok_or_else(wrong)?;
            if !["descr", "fortran_order", "shape"].contains(&key) {
                let what = format!("its header has a key {key:.20}, which no array has");
                return Err(error::damaged(what));
            }
            let (value, behind) = value.split_at(end_of_value(value));
            entries.push((key, value.trim()));
            rest = behind.strip_prefix(',').unwrap_or_default().trim_start();
        }
        Ok(Entries(entries))
    }

    /// Returns the value of a key: the last one, if it is there twice.
    fn value(&self, key: &str) -> Result<&'a str, Error> {
        let found = self.0.iter().rev().find(|entry| entry.0 == key);
        let value = found.map(|entry| entry.1);
        value.ok_or_else(|| error::damaged(format!("its header has no {key}")))
    }
}

/// Returns the offset of the comma behind the value that a text begins with. Those in texts and brackets are parts of it.
fn end_of_value(text: &str) -> usize {
    let (mut depth, mut open_quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (open_quote, c) {
            (Some(quote), _) if c == quote => open_quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => open_quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

/// Splits a text behind the literal that it begins with, and returns the content of that. Its quotes are single where NumPy
/// writes it, and double in some other programs. Python 2 may write a `u` before them.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('u').unwrap_or(text);
    let quote = text
        .chars()
        .next()
        .filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

fn dtype(value: &str) -> Result<Dtype, Error> {
    let Some((name, "")) = quoted(value) else {
        return Err(error::unsupported("an array of a structured type"));
    };
    let (order, kind) = match name.split_at_checked(1) {
        // Without a byte order it is the machine's.
        Some((first, _)) if first.starts_with(|c: char| c.is_ascii_alphabetic()) => ("=", name),
        parts => parts.unwrap_or_default(),
    };
    let found = match kind {
        "b1" => Some(Dtype::Bool),
        "u1" => Some(Dtype::U8),
        "i1" => Some(Dtype::I8),
        "u2" => Some(Dtype::U16),
        "i2" => Some(Dtype::I16),
        "u4" => Some(Dtype::U32),
        "i4" => Some(Dtype::I32),
        "u8" => Some(Dtype::U64),
        "i8" => Some(Dtype::I64),
        "f2" => Some(Dtype::F16),
        "f4" => Some(Dtype::F32),
        "f8" => Some(Dtype::F64),
        "c8" => Some(Dtype::C64),
        "c16" => Some(Dtype::C128),
        _ => None,
    };
    match (order, found) {
        ("<" | "|" | "=", Some(dtype)) => Ok(dtype),
        // One byte has no order.
        (">", Some(dtype)) if dtype.size() == 1 => Ok(dtype),
        (">", Some(_)) => Err(error::unsupported(format!(
            "an array of {name:?} in big-endian byte order (write it anew by np.save(path, \
             array.astype(array.dtype.newbyteorder(\"<\"))))"
        ))),
        _ => Err(error::unsupported(format!(
            "an array of {name:?} (booleans, integers, floating-point and complex numbers are read)"
        ))),
    }
}

fn shape(value: &str) -> Result<Vec<u32>, Error> {
    let wrong = || error::damaged("its header has no valid shape");
    let inner = value.strip_prefix('(');
    let inner = inner.and_then(|rest| rest.strip_suffix(')'));
    let parts: Vec<&str> = inner.ok_or_else(wrong)?.split(',').map(str::trim).collect();
    let parts = match &*parts {
        [""] => &[],
        // Without a comma the brackets would be those of a number.
        [_] => return Err(wrong()),
        [parts @ .., ""] => parts,
        parts => parts,
    };
    // Python 2 writes long integers with an `L`.
    let length = |part: &&str| part.trim_end_matches('L').parse().map_err(|_| wrong());
    parts.iter().map(length).collect()
}

fn not_npy(what: &str) -> Error {
    error::not_an_array(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let length = (text.len() as u32).to_le_bytes();
        let length = if version == 1 {
            &length[..2]
        } else {
            &length[..]
        };
        [MAGIC, &[version, 0], length, text.as_bytes(), b"data"].concat()
    }

    #[test]
    fn every_version_of_the_header_is_read() {
        for version in 1..=3 {
            let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n";
            let file = file(version, text);
            let found = header(&file).expect("it is valid");
            assert_eq!((found.dtype, &*found.shape), (Dtype::F32, &[3, 4][..]));
            assert_eq!(&file[found.data_at..], b"data");
        }
        let text = "{'descr': '|b1', 'fortran_order': False, 'shape': (), }";
        assert!(header(&file(1, text)).expect("valid").shape.is_empty());
    }

    #[test]
    fn every_way_to_write_the_same_header_is_read() {
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
            "{'shape': (3, 4), 'fortran_order': False, 'descr': '<f4'}\n",
            "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (3, 4)}",
            "{'descr':'<f4','fortran_order':False,'shape':(3,4)}",
            "{ 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 3 , 4 ) , }",
            "{'descr': u'<f4', 'fortran_order': False, 'shape': (3L, 4L)}",
            "{u'descr': u'<f4', u'fortran_order': False, u'shape': (3L, 4L)}",
            "{'descr': '=f4', 'fortran_order': False, 'shape': (3, 4)}",
            "{'descr': 'f4', 'fortran_order': False, 'shape': (3, 4)}",
        ] {
            let found = header(&file(1, text)).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(
                (found.dtype, &*found.shape),
                (Dtype::F32, &[3, 4][..]),
                "{text}"
            );
        }
        let one_byte = "{'descr': '>u1', 'fortran_order': False, 'shape': (3,)}";
        assert_eq!(header(&file(1, one_byte)).expect("valid").dtype, Dtype::U8);
        for shape in ["(6,)", "(6, 1)", "(1, 6, 1)", "()", "(0,)"] {
            let text = format!("{{'descr': '<f4', 'fortran_order': True, 'shape': {shape}}}");
            header(&file(1, &text)).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
    }

    #[test]
    fn what_is_no_tensor_is_refused_with_a_remedy() {
        let dict = |descr: &str, fortran: &str, shape: &str| {
            file(
                1,
                &format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"),
            )
        };
        for (file, part) in [
            (b"PK\x03\x04".to_vec(), "does not begin as"),
            (file(9, "{}"), "version"),
            (file(1, "{}"), "no fortran_order"),
            (file(1, "{'descr")[..12].to_vec(), "cut short"),
            (dict("'<f4'", "True", "(2, 2)"), "ascontiguousarray"),
            (dict("'>f4'", "False", "(2, 2)"), "newbyteorder"),
            (dict("'|O'", "False", "(2,)"), "|O"),
            (dict("[('x', '<f4')]", "False", "(2,)"), "structured"),
            (dict("'<f4'", "False", "(2, -1)"), "no valid shape"),
            (dict("''", "False", "(2,)"), "an array of"),
            (dict("'<f4'", "1", "(2, 2)"), "fortran_order of 1,"),
            (
                dict("'<f4'", "'True'", "(2, 2)"),
                "fortran_order of 'True',",
            ),
            (
                dict("'<f4'", "Truest", "(2, 2)"),
                "fortran_order of Truest,",
            ),
            (dict("'<f4'", "False", "(2, 2), 'x': 1"), "a key x"),
            (dict("'<f4'", "False", "(2)"), "no valid shape"),
            (dict("'<f4'", "False", "(2,),"), "no dict"),
            (dict("'<f4'", "False", "(2, 2)} x {"), "no valid shape"),
            (
                file(
                    1,
                    "{'x': \"'shape': (2,)\", 'descr': '<f4', 'fortran_order': False}",
                ),
                "a key x",
            ),
        ] {
            let message = header(&file).expect_err("it is refused").to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
