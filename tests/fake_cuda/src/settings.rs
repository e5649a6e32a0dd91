//! The variable `FAKE_CUDA`.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The call fails.
    Fail(u32),
    /// This call and all later ones fail.
    Sticky(u32),
    /// The process ends.
    Die,
    /// The call never returns.
    Hang,
    /// The work that the call puts into a stream never ends.
    Stall,
}

/// A fault, and the call at which it happens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) effect: Effect,
    /// The function, or `None` if all calls are counted.
    pub(crate) function: Option<String>,
    /// The number of the call, from 1 on.
    pub(crate) call: u64,
}

pub(crate) struct Settings {
    pub(crate) faults: Vec<Fault>,
    pub(crate) delay: Duration,
    pub(crate) devices: u32,
    pub(crate) memory: usize,
    pub(crate) version: i32,
    pub(crate) pins_read_only: bool,
    pub(crate) shares_memory: bool,
    pub(crate) compute_mode: i32,
    pub(crate) is_divided: bool,
    /// Every stream is being captured into a graph.
    pub(crate) is_capturing: bool,
    /// A stream of somebody else is.
    pub(crate) another_thread_captures: bool,
    pub(crate) trace: Option<PathBuf>,
}

impl Settings {
    fn read(text: &str) -> Settings {
        let mut settings = Settings {
            faults: Vec::new(),
            delay: Duration::ZERO,
            devices: 1,
            memory: 1 << 30,
            version: 13000,
            pins_read_only: true,
            shares_memory: true,
            compute_mode: 0,
            is_divided: false,
            is_capturing: false,
            another_thread_captures: false,
            trace: None,
        };
        for setting in text.split(';').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting
                .split_once('=')
                .unwrap_or_else(|| panic!("FAKE_CUDA: {setting} has no value"));
            settings.set(key, value);
        }
        settings
    }

    fn set(&mut self, key: &str, value: &str) {
        match key {
            "fail" | "sticky" | "die" | "hang" | "stall" => self.faults.push(fault(key, value)),
            "delay_us" => self.delay = Duration::from_micros(number(value)),
            "devices" => self.devices = number(value),
            "mem" => self.memory = number(value),
            "version" => self.version = number(value),
            "readonly" => self.pins_read_only = value != "0",
            "share" => self.shares_memory = value != "0",
            "mode" => self.compute_mode = number(value),
            "capture" => self.is_capturing = value != "0",
            "capture_elsewhere" => self.another_thread_captures = value != "0",
            "mig" => self.is_divided = value != "0",
            "trace" => self.trace = Some(value.into()),
            _ => panic!("FAKE_CUDA: {key} is no setting"),
        }
    }
}

/// Reads `NAME:CODE@N`, where each part may be missing.
fn fault(key: &str, value: &str) -> Fault {
    let (rest, call) = match value.split_once('@') {
        Some((rest, call)) => (rest, number(call)),
        None => (value, 1),
    };
    let (function, code) = match rest.split_once(':') {
        Some((function, code)) => (function, number(code)),
        None => (rest, 0),
    };
    let effect = match key {
        "fail" => Effect::Fail(code),
        "sticky" => Effect::Sticky(code),
        "die" => Effect::Die,
        "hang" => Effect::Hang,
        _ => Effect::Stall,
    };
    Fault {
        effect,
        function: (!function.is_empty()).then(|| function.to_owned()),
        call,
    }
}

fn number<N: std::str::FromStr>(text: &str) -> N {
    text.parse()
        .unwrap_or_else(|_| panic!("FAKE_CUDA: {text} is no number"))
}

/// Returns the settings, which are read once in a process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings::read(&std::env::var("FAKE_CUDA").unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_an_effect_a_function_and_a_call() {
        let settings = Settings::read("fail=cuMemCreate:2@3;die=@7;devices=2;readonly=0");
        let expected = [
            Fault {
                effect: Effect::Fail(2),
                function: Some("cuMemCreate".into()),
                call: 3,
            },
            Fault {
                effect: Effect::Die,
                function: None,
                call: 7,
            },
        ];
        assert_eq!(settings.faults, expected);
        assert_eq!((settings.devices, settings.pins_read_only), (2, false));
    }
}
