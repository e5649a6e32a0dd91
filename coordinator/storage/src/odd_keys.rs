//! Keys in listings that cannot be read.
//!
//! The library `object_store` refuses a page of a listing as a whole if it cannot ask for one of its keys: one with an empty
//! part (`a//b`), a part `.` or `..`, or a control character. So each such key is replaced before the library sees it, by a
//! *stand-in*, which is recognized when the listing is walked.

use std::fmt::Write as _;

use object_store::path::Path;
use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::Event;
use reqwest::Url;

/// The first character of a stand-in. Unicode assigns no meaning to it; a key that begins with it gets a stand-in, too.
const MARK: char = '\u{10ffff}';

/// The form of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingForm {
    /// A page of S3 or of Google, with an element `Key` for each object.
    S3,
    /// A page of Azure, with an element `Name`.
    Azure,
    /// A folder of WebDAV, with an element `href`, which is a URL.
    WebDav,
}

impl ListingForm {
    /// Returns the name of the elements with keys, without its namespace.
    fn element(self) -> &'static [u8] {
        match self {
            ListingForm::S3 => b"Key",
            ListingForm::Azure => b"Name",
            ListingForm::WebDav => b"href",
        }
    }

    /// Returns the text of an element that stands for the one with this text, or `None` if that can be read.
    fn replacement(self, text: &str) -> Option<String> {
        if self != ListingForm::WebDav {
            return stand_in(text);
        }
        // The URL is relative to the folder, or has a host of which only the path counts.
        let url = Url::parse("http://host/").ok()?.join(text).ok()?;
        let key = url.path().strip_prefix('/')?;
        let decoded = Path::from_url_path(key);
        let is_readable = decoded.is_ok_and(|path| !path.as_ref().starts_with(MARK));
        (!is_readable).then(|| format!("/{}", stand_in_of(key)))
    }
}

/// Returns the stand-in of a key, or `None` if the key can be read.
pub(crate) fn stand_in(key: &str) -> Option<String> {
    // The library would leave a slash at the beginning out, and ask for another key.
    let is_readable = !key.starts_with([MARK, '/']) && Path::parse(key).is_ok();
    (!is_readable).then(|| stand_in_of(key))
}

fn stand_in_of(key: &str) -> String {
    key.bytes().fold(MARK.to_string(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the key that a path stands for, or `None` if the path is no stand-in.
pub(crate) fn original(path: &str) -> Option<String> {
    let digits = path.strip_prefix(MARK)?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

/// Returns a page of a listing with stand-ins for the keys that cannot be read, or `None` if it has no such keys. A page
/// that is no XML is left to the library, which says so.
pub(crate) fn replaced(page: &[u8], form: ListingForm) -> Option<Vec<u8>> {
    let page = page.strip_prefix(b"\xef\xbb\xbf").unwrap_or(page);
    let mut reader = Reader::from_str(std::str::from_utf8(page).ok()?);
    let mut written = Vec::new();
    let mut copied = 0;
    loop {
        let element = match reader.read_event().ok()? {
            Event::Start(element) if element.local_name().as_ref() == form.element() => element,
            Event::Eof => break,
            _ => continue,
        };
        let start = reader.buffer_position() as usize;
        let text = reader.read_text(element.name()).ok()?;
        let text = text.decode().ok()?;
        let stand_in = match unescape(&text) {
            Ok(key) => form.replacement(&key),
            // XML has no such character, so the library would refuse the page.
            Err(_) => Some(format!("/{}", stand_in_of(&text))),
        };
        if let Some(stand_in) = stand_in {
            written.extend_from_slice(page.get(copied..start)?);
            written.extend_from_slice(stand_in.as_bytes());
            copied = start + text.len();
        }
    }
    written.extend_from_slice(page.get(copied..)?);
    (copied > 0).then_some(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READABLE: [&str; 6] = ["a/b.png", "a/", "ä b/ü.png", "a/...", "a/%2F.png", "a&b"];
    const ODD: [&str; 12] = [
        "a//b.png",
        "/a/b.png",
        "a/./b",
        "a/../b",
        "..",
        "//",
        "a/\u{1b}[31m",
        "a/\u{7f}b",
        "a/\nb",
        "a//ü&<>.png",
        "\u{10ffff}61",
        "a//",
    ];

    #[test]
    fn keys_that_cannot_be_read_have_stand_ins_that_can() {
        for key in READABLE {
            assert_eq!((stand_in(key), original(key)), (None, None), "{key}");
        }
        for key in ODD {
            let text = stand_in(key).expect(key);
            let path = Path::parse(&text).expect("it is a path");
            assert_eq!(original(path.as_ref()).as_deref(), Some(key));
        }
    }

    /// Returns a listing with these texts.
    fn page(form: ListingForm, texts: &[&str]) -> String {
        let entry = |text: &&str| {
            let text = quick_xml::escape::escape(*text).replace('\u{1b}', "&#27;");
            match form {
                ListingForm::S3 => format!("<Contents><Size>1</Size><Key>{text}</Key></Contents>"),
                ListingForm::Azure => format!("<Blob><Name>{text}</Name></Blob>"),
                ListingForm::WebDav => format!("<D:response><D:href>{text}</D:href></D:response>"),
            }
        };
        let entries: String = texts.iter().map(entry).collect();
        format!("<?xml version=\"1.0\"?><L xmlns:D=\"DAV:\"><T>a//b</T>{entries}<Empty/></L>")
    }

    /// Asserts that all of a page stays as it is but the text in its middle.
    fn assert_replaced(form: ListingForm, odd: &str, stand_in: &str) {
        let texts = |middle| page(form, &["a/b.png", middle, "z/&y.png"]);
        let replaced = replaced(texts(odd).as_bytes(), form).expect(odd);
        let replaced = String::from_utf8(replaced).expect("it is text");
        assert_eq!(replaced, texts("ODD").replace("ODD", stand_in), "{form:?}");
    }

    #[test]
    fn the_keys_of_a_page_that_cannot_be_read_are_replaced_and_nothing_else() {
        for form in [ListingForm::S3, ListingForm::Azure] {
            assert_eq!(replaced(page(form, &READABLE).as_bytes(), form), None);
            for odd in ODD {
                assert_replaced(form, odd, &stand_in(odd).expect(odd));
            }
        }
        let form = ListingForm::WebDav;
        let links = ["/a/b.png", "a/../b%20c", "http://other/%C3%A4/...", "/a/"];
        assert_eq!(replaced(page(form, &links).as_bytes(), form), None);
        for (link, key) in [
            ("/a//b.png", "a//b.png"),
            ("http://other/a//b%20c", "a//b%20c"),
            ("/a/%1B[31m", "a/%1B[31m"),
            ("/a/%2F/b", "a/%2F/b"),
            ("/a/%FF", "a/%FF"),
            ("/%F4%8F%BF%BF61", "%F4%8F%BF%BF61"),
        ] {
            assert_replaced(form, link, &format!("/{}", stand_in_of(key)));
            assert_eq!(original(&stand_in_of(key)).as_deref(), Some(key));
        }
    }

    #[test]
    fn a_key_with_a_character_that_xml_does_not_have_is_replaced() {
        for form in [ListingForm::S3, ListingForm::WebDav] {
            let element = std::str::from_utf8(form.element()).expect("it is text");
            let page = |text: &str| format!("<{element}>{text}</{element}>");
            let replaced = replaced(page("a&#0;b").as_bytes(), form).expect("it is replaced");
            let expected = page(&format!("/{}", stand_in_of("a&#0;b")));
            assert_eq!(String::from_utf8_lossy(&replaced), expected);
        }
    }

    #[test]
    fn what_is_no_page_is_left_as_it_is() {
        for page in ["", "<L><Key>a//b", "<L><Key>a//b</Name></L>", "no page"] {
            assert_eq!(replaced(page.as_bytes(), ListingForm::S3), None, "{page}");
        }
        assert_eq!(replaced(b"<Key>a//b\xff</Key>", ListingForm::S3), None);
    }
}
