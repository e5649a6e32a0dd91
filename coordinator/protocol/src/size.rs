//! Sizes in bytes as people write and read them.

/// Parses a size such as `512M`, `8GiB`, `1.5g` or a plain number. Units are powers of 1024.
///
/// # Errors
/// A sentence that describes the allowed form, if `text` is not a size.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..split].parse().map_err(|_| usage(text))?;
    let unit = text[split..].trim().to_ascii_lowercase();
    // `G`, `GB` and `GiB` mean the same.
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(usage(text)),
    };
    Ok((number * (1u64 << shift) as f64) as u64)
}

fn usage(text: &str) -> String {
    format!("\"{text}\" is not a size: write bytes, or a number with K, M, G or T, such as 8G")
}

/// Returns a size for people, such as `2.9 GiB`.
#[must_use]
pub fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// Returns a size as a person writes it for an option, such as `774M`: at least `bytes`, and at most 1 % more.
#[must_use]
pub fn argument(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    // From 10 units on, rounding up to the next tenth adds at most 1 %, and from 100 on to the next whole unit.
    let Some((shift, letter)) = units.into_iter().find(|(shift, _)| bytes >> shift >= 10) else {
        return bytes.to_string();
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    let rounded = if value < 100.0 {
        (value * 10.0).ceil() / 10.0
    } else {
        value.ceil()
    };
    format!("{rounded}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let read = |t| parse(t).unwrap();
        assert_eq!(
            [
                read("0"),
                read("512M"),
                read("8GiB"),
                read("1.5g"),
                read("2 kb")
            ],
            [0, 512 << 20, 8 << 30, 3 << 29, 2048]
        );
    }

    #[test]
    fn an_invalid_size_is_refused_with_an_example() {
        for text in ["", "G", "8X", "-1", "ten"] {
            assert!(parse(text).unwrap_err().contains("8G"), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_fitting_unit() {
        assert_eq!(
            [human(17), human(2048), human(3 << 29)],
            ["17 B", "2.0 KiB", "1.5 GiB"]
        );
    }

    #[test]
    fn sizes_of_options_are_short_and_no_smaller_than_they_must_be() {
        assert_eq!(
            [0, 17, 80_000_000, 810_866_977, 138 << 30].map(argument),
            ["0", "17", "76.3M", "774M", "138G"]
        );
        for bytes in [99, 10 << 10, (100 << 20) + 1, 123_456_789_012_345] {
            let least = bytes as f64;
            let read = parse(&argument(bytes)).unwrap() as f64;
            assert!((least..=least * 1.01).contains(&read), "{bytes} {read}");
        }
    }
}
