//! Scenarios in child processes that find the fake driver of `tests/fake_cuda`.
//!
//! The dynamic loader reads its search path when a process starts. So a test starts its own binary again, which runs
//! the test `child` alone, and that one runs the scenario.
//!
//! With `COPREP_TEST_REAL_GPU` set, scenarios that need no fault run on this machine's driver and GPU.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const SCENARIO: &str = "COPREP_TEST_SCENARIO";
/// Begins each line that a scenario prints for its test, because the harness of tests writes to the same output.
const SAYS: &str = "says: ";
/// Limit for a scenario. None takes as long, on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the scenario that this process was started for.
pub(crate) fn scenario() -> Option<String> {
    std::env::var(SCENARIO).ok()
}

/// Tells the test something.
pub(crate) fn say(text: impl std::fmt::Display) {
    // The harness may have left the cursor behind the name of the test.
    println!("\n{SAYS}{text}");
}

/// Tells the test an error, and its kind.
pub(crate) fn say_error(error: &coprep_device::Error) {
    say(format!("{:?} {error}", error.kind()));
}

/// A driver that scenarios find.
pub(crate) struct Fake {
    folder: TempDir,
    settings: String,
    /// `true` if no driver of a machine can take its place.
    is_faulty: bool,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        let fake = Fake::empty(false);
        coprep_fake_cuda::install::install(fake.folder.path()).unwrap();
        fake
    }

    /// A driver that lacks a function.
    pub(crate) fn without(function: &str) -> Fake {
        let fake = Fake::empty(true);
        coprep_fake_cuda::install::install_without(fake.folder.path(), function).unwrap();
        fake
    }

    /// A machine whose driver cannot be loaded. If this machine has one, it is not found either.
    pub(crate) fn broken() -> Fake {
        let fake = Fake::empty(true);
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::fs::write(fake.folder.path().join(name), "no library").unwrap();
        }
        fake
    }

    fn empty(is_faulty: bool) -> Fake {
        Fake {
            folder: tempfile::tempdir().unwrap(),
            settings: String::new(),
            is_faulty,
        }
    }

    /// Adds settings, as the README of the fake driver names them.
    pub(crate) fn with(mut self, settings: &str) -> Fake {
        self.settings += settings;
        self.settings += ";";
        self.is_faulty = true;
        self
    }

    fn trace(&self) -> PathBuf {
        self.folder.path().join("trace")
    }

    /// Runs a scenario to its end.
    pub(crate) fn run(&self, scenario: &str) -> Run {
        let mut child = self.command(scenario).spawn().unwrap();
        let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let code = end_of(&mut child);
        let output = stdout.join().unwrap();
        Run {
            scenario: format!("{scenario} with {:?}", self.settings),
            code,
            said: output
                .lines()
                .filter_map(|line| line.strip_prefix(SAYS))
                .map(str::to_owned)
                .collect(),
            errors: format!("{}\n{output}", stderr.join().unwrap()),
            calls: calls(&std::fs::read_to_string(self.trace()).unwrap_or_default()),
        }
    }

    fn command(&self, scenario: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .env(SCENARIO, scenario)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.is_faulty || std::env::var_os("COPREP_TEST_REAL_GPU").is_none() {
            let trace = format!("{}trace={}", self.settings, self.trace().display());
            command
                .env("LD_LIBRARY_PATH", self.folder.path())
                .env("FAKE_CUDA", trace);
        }
        command
    }
}

fn reader(source: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    let mut source = source.unwrap();
    std::thread::spawn(move || {
        let mut text = String::new();
        source.read_to_string(&mut text).unwrap();
        text
    })
}

/// Waits for the end of a process, and returns its code, or `None` if a signal ended it.
fn end_of(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("the scenario hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The end of a scenario.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) scenario: String,
    pub(crate) code: Option<i32>,
    pub(crate) said: Vec<String>,
    pub(crate) errors: String,
    pub(crate) calls: Vec<Call>,
}

impl Run {
    /// Returns what the scenario said. It must have ended well.
    pub(crate) fn said(&self) -> &[String] {
        assert_eq!(self.code, Some(0), "{}: {}", self.scenario, self.errors);
        &self.said
    }

    /// Returns the one line that the scenario said.
    pub(crate) fn line(&self) -> &str {
        match self.said() {
            [line] => line,
            said => panic!("{}: {said:?}", self.scenario),
        }
    }

    /// Returns how often a function succeeded.
    pub(crate) fn successes(&self, function: &str) -> usize {
        let of_function = |call: &&Call| call.function == function && call.answer == "0";
        self.calls.iter().filter(of_function).count()
    }
}

/// A line of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) function: String,
    pub(crate) answer: String,
}

fn calls(trace: &str) -> Vec<Call> {
    let call = |line: &str| {
        let mut words = line.split(' ').skip(1).map(str::to_owned);
        Call {
            function: words.next().unwrap(),
            answer: words.next().unwrap(),
        }
    };
    trace.lines().map(call).collect()
}
