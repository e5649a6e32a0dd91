//! The parts of an error, and the one form in which users read them.

use std::error::Error as _;
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Low {
    Short { wanted: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum High {
    Memory(Low),
}

impl From<Low> for High {
    fn from(kind: Low) -> Self {
        High::Memory(kind)
    }
}

type LowError = coprep_error::Error<Low>;
type HighError = coprep_error::Error<High>;

const SHORT: Low = Low::Short { wanted: 7 };

fn low() -> LowError {
    LowError::new(SHORT, "cannot map a region")
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such file")
}

#[test]
fn parts_that_are_missing_leave_no_mark() {
    assert_eq!(low().to_string(), "cannot map a region");
    assert_eq!(
        low().because("too long").to_string(),
        "cannot map a region: too long"
    );
    assert_eq!(
        low().with_remedy("ask for less").to_string(),
        "cannot map a region; ask for less"
    );
}

#[test]
fn an_error_reads_context_source_remedy() {
    let error = low().with_remedy("ask for less").because(missing());
    assert_eq!(
        error.to_string(),
        "cannot map a region: no such file; ask for less"
    );
}

#[test]
fn remedies_and_contexts_add_up() {
    let error = low()
        .with_remedy("ask for less")
        .with_remedy(format!("or end process {}", 7))
        .within("the job");
    assert_eq!(error.context(), "the job: cannot map a region");
    assert_eq!(error.remedy(), Some("ask for less; or end process 7"));
}

#[test]
fn the_last_source_wins() {
    let error = low().because("too long").because(missing());
    assert_eq!(
        error.source_as::<io::Error>().unwrap().kind(),
        io::ErrorKind::NotFound
    );
    assert_eq!(error.source().unwrap().to_string(), "no such file");
}

#[test]
fn a_source_of_another_type_is_not_found() {
    assert!(low().because("too long").source_as::<io::Error>().is_none());
    assert!(low().source_as::<io::Error>().is_none());
}

#[test]
fn an_error_of_a_lower_crate_loses_nothing() {
    let lower = low().because(missing()).with_remedy("ask for less");
    let text = lower.to_string();
    let error = HighError::from_lower(lower);
    assert_eq!(*error.kind(), High::Memory(SHORT));
    assert_eq!(error.context(), "cannot map a region");
    assert!(error.source_as::<io::Error>().is_some());
    assert_eq!(error.remedy(), Some("ask for less"));
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_clone_says_the_same_and_keeps_the_source() {
    let error = low().because(missing()).with_remedy("ask for less");
    let clone = error.clone();
    assert_eq!(clone.to_string(), error.to_string());
    assert!(clone.source_as::<io::Error>().is_some());
    let Low::Short { wanted } = clone.into_kind();
    assert_eq!(wanted, 7);
}

#[test]
fn a_result_is_one_pointer_wide() {
    assert_eq!(size_of::<Result<(), HighError>>(), size_of::<usize>());
}

#[test]
fn control_characters_of_names_are_not_written_and_lines_stay() {
    let error = low()
        .within("a\u{1b}[31m\r\u{7}")
        .because("b\u{9b}1m\n\tline")
        .with_remedy("c\u{7f}");
    let expected =
        "a\u{fffd}[31m\u{fffd}\u{fffd}: cannot map a region: b\u{fffd}1m\n\tline; c\u{fffd}";
    assert_eq!(error.to_string(), expected);
    assert_eq!(
        coprep_error::printable("ü\n\t\u{1b}"),
        "ü\u{fffd}\u{fffd}\u{fffd}"
    );
}
