//! GPUs beside the fake driver of `tests/fake_cuda`.
#![expect(clippy::unwrap_used, reason = "a test")]

mod beside_others;
mod common;
mod kernels;
mod unusable;
mod whole_way;

/// The entry point of a child process, which runs one scenario.
#[test]
fn child() {
    let Some(scenario) = common::scenario() else {
        return;
    };
    let found = whole_way::run(&scenario)
        .or_else(|| unusable::run(&scenario))
        .or_else(|| beside_others::run(&scenario));
    let ended = found.unwrap_or_else(|| panic!("no scenario {scenario}"));
    if let Err(error) = ended {
        common::say_error(&error);
    }
}
