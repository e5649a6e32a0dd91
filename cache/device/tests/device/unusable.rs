//! The ways in which a process has no GPU that it can use. Each is one error with a remedy.

use crate::common::{Fake, say, say_error};
use coprep_device::{
    ComputeMode, Context, DeviceMemory, Driver, Error, Gpu, ShareableMemory, Stream,
};

/// Runs a scenario, if it is one of these.
pub(crate) fn run(scenario: &str) -> Option<Result<(), Error>> {
    Some(match scenario {
        "describe" => describe(),
        "fourth GPU" => Driver::load()
            .and_then(|driver| Gpu::at(driver, 3))
            .map(drop),
        "memory" => use_memory(),
        "forked" => forked(),
        _ => return None,
    })
}

/// Says what is known of each GPU.
fn describe() -> Result<(), Error> {
    let driver = Driver::load()?;
    say(format!("CUDA {}", driver.version()?));
    for gpu in Gpu::all(driver)? {
        let (major, minor) = gpu.compute_capability()?;
        let mode = gpu.compute_mode()?;
        say(format!(
            "{gpu} {} {} {} {major}.{minor} {mode:?}{}{}",
            gpu.name()?,
            gpu.uuid()?,
            gpu.memory_bytes()?,
            if gpu.pins_read_only()? { " pins" } else { "" },
            if gpu.shares_memory()? { " shares" } else { "" },
        ));
        assert_eq!(mode == ComputeMode::Shared, !scenario_has("mode"));
    }
    Ok(())
}

fn scenario_has(setting: &str) -> bool {
    std::env::var("FAKE_CUDA").is_ok_and(|settings| settings.contains(setting))
}

/// Uses a GPU and takes memory of each kind.
fn use_memory() -> Result<(), Error> {
    let context = Context::retain(Gpu::at(Driver::load()?, 0)?)?;
    Stream::create(&context)?;
    ShareableMemory::allocate(&context, 3 << 20)?;
    DeviceMemory::allocate(&context, 3 << 20)?;
    say("enough");
    Ok(())
}

/// Uses the driver in a process that was forked after the driver had begun.
#[expect(unsafe_code, reason = "forks")]
fn forked() -> Result<(), Error> {
    Driver::load()?;
    // SAFETY: no other thread of this process has a lock that the child needs: the harness waits for this test.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let error = Driver::load().err().expect("it must be refused");
            say_error(&error);
            std::process::exit(0)
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None).unwrap();
            Ok(())
        }
    }
}

#[test]
fn gpus_have_a_name_and_an_identity() {
    let run = Fake::new().with("devices=2;mem=8589934592").run("describe");
    let expected = [
        "CUDA 13.0",
        "GPU 0 Fake GPU GPU-fafafafa-fafa-fafa-fafa-fafafafafa00 8589934592 9.0 Shared pins shares",
        "GPU 1 Fake GPU GPU-fafafafa-fafa-fafa-fafa-fafafafafa01 8589934592 9.0 Shared pins shares",
    ];
    assert_eq!(run.said(), expected);
}

#[test]
fn an_instance_of_a_divided_gpu_says_so() {
    let settings = "mig=1;mem=4096;version=12090;mode=3;readonly=0;share=0";
    let run = Fake::new().with(settings).run("describe");
    let expected = [
        "CUDA 12.9",
        "GPU 0 Fake GPU MIG 1g.5gb MIG-fafafafa-fafa-fafa-fafa-fafafafafa00 4096 9.0 Exclusive",
    ];
    assert_eq!(run.said(), expected);
}

/// Runs a scenario that must end in one error. Returns the error.
fn error_of(fake: &Fake, scenario: &str) -> String {
    let run = fake.run(scenario);
    let line = run.line().to_owned();
    assert!(!run.errors.contains("panicked"), "{}", run.errors);
    let (_, remedy) = line
        .rsplit_once("; ")
        .unwrap_or_else(|| panic!("no remedy: {line}"));
    assert!(remedy.len() > 10, "{line}");
    line
}

#[test]
fn each_way_of_having_no_usable_gpu_is_one_error_with_a_remedy() {
    let ways = [
        ("fail=cuInit:34", "describe", "UnusableDriver", "stub"),
        (
            "fail=cuInit:35",
            "describe",
            "UnusableDriver",
            "CUDA error 35; update the NVIDIA driver",
        ),
        (
            "fail=cuInit:803",
            "describe",
            "UnusableDriver",
            "restart the machine",
        ),
        ("fail=cuInit:999", "describe", "Refused", "nvidia-smi"),
        ("devices=0", "describe", "NoDevice", "--gpus all"),
        (
            "devices=3",
            "fourth GPU",
            "NoSuchDevice",
            "cannot find GPU 3: invalid device ordinal",
        ),
        (
            "fail=cuDevicePrimaryCtxRetain:46",
            "memory",
            "Unavailable",
            "cannot begin to use GPU 0: ",
        ),
        (
            "fail=cuDevicePrimaryCtxRetain:2",
            "memory",
            "OutOfMemory",
            "end other processes",
        ),
        (
            "fail=cuDevicePrimaryCtxRetain:805",
            "memory",
            "Unavailable",
            "MPS",
        ),
        (
            "mem=4000000",
            "memory",
            "OutOfMemory",
            "cannot allocate 3.0 MiB of memory to share on GPU 0: out of memory",
        ),
        (
            "fail=cuMemAlloc_v2:2",
            "memory",
            "OutOfMemory",
            "cannot allocate 3.0 MiB of memory on GPU 0: out of memory",
        ),
    ];
    for (settings, scenario, kind, words) in ways {
        let error = error_of(&Fake::new().with(settings), scenario);
        assert!(
            error.starts_with(&format!("{kind} cannot ")),
            "{settings}: {error}"
        );
        assert!(error.contains(words), "{settings}: {error}");
    }
}

#[test]
fn without_a_driver_the_remedy_is_to_install_it_or_to_start_the_container_with_gpus() {
    let expected = "NoDriver cannot load the NVIDIA driver: libcuda.so.1 is not found; install the driver, or start the container with --gpus all";
    assert_eq!(error_of(&Fake::broken(), "describe"), expected);
}

#[test]
fn memory_that_cannot_be_shared_is_refused_and_other_memory_is_not() {
    let line = Fake::new().with("share=0").run("memory").line().to_owned();
    let expected = "Unsupported cannot allocate 3.0 MiB of memory to share on GPU 0: its memory cannot be shared by descriptors";
    assert_eq!(line, expected);
}

#[test]
fn a_process_that_was_forked_after_the_driver_had_begun_is_told_so() {
    let error = error_of(&Fake::new().with("devices=1"), "forked");
    assert!(error.contains("start such processes by spawn"), "{error}");
}

#[test]
fn a_driver_without_one_of_the_functions_is_an_error_that_names_it() {
    let source = include_str!("../../src/functions.rs");
    let list = source.split("\nfunctions! {\n").nth(1).unwrap();
    let names: Vec<&str> = list
        .lines()
        .filter_map(|line| line.trim().split_once('(').map(|(name, _)| name))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        let error = error_of(&Fake::without(name), "describe");
        let expected = format!(
            "UnusableDriver cannot use the NVIDIA driver: libcuda.so.1 lacks {name}; update the NVIDIA driver"
        );
        assert_eq!(error, expected);
    }
}
