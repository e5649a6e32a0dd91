//! Errors of GPUs and their driver.

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a GPU or its driver. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The NVIDIA driver (`libcuda.so.1`) is not installed here, or not visible in this container.
    NoDriver,
    /// A driver is here and cannot work: it is too old, does not fit the kernel's module, or is a toolkit's stub.
    UnusableDriver,
    /// The driver works and shows this process no GPU.
    NoDevice,
    /// No visible GPU has the number or the UUID that was asked for.
    NoSuchDevice,
    /// The GPU takes no further process, or the MPS server does not.
    Unavailable,
    /// Memory of the GPU, or host memory that can be pinned, is short.
    OutOfMemory,
    /// This GPU or this driver lacks a feature. Other features work.
    Unsupported,
    /// The GPU, or a kernel on it, failed. All further calls of this process to this GPU fail too.
    Fault,
    /// Work on the GPU did not end in time. It may still end.
    Timeout,
    /// An argument is wrong: a range, a shape, or a stream that is being captured.
    Invalid,
    /// The driver refused a call for another reason.
    Refused,
}

/// A refusal whose cause is known: its codes, its class, and the remedy.
type Known = (&'static [u32], ErrorKind, &'static str);

const TOO_OLD: &str = "update the NVIDIA driver";
const KNOWN: &[Known] = &[
    (
        &[2],
        ErrorKind::OutOfMemory,
        "end other processes on the GPU, or let them take less memory (nvidia-smi lists them)",
    ),
    (
        &[3],
        ErrorKind::Refused,
        "CUDA cannot be used in a process that was forked after it had begun: start such processes by spawn",
    ),
    (
        &[34],
        ErrorKind::UnusableDriver,
        "the libcuda.so that was found is a CUDA toolkit's stub: take its folder (.../stubs) out of LD_LIBRARY_PATH",
    ),
    // 35 is the number that the CUDA runtime has for the same as 36.
    (&[35, 36], ErrorKind::UnusableDriver, TOO_OLD),
    (
        &[46],
        ErrorKind::Unavailable,
        "another process has the GPU for itself: end it, or set the compute mode to default (nvidia-smi -c DEFAULT)",
    ),
    (
        &[100],
        ErrorKind::NoDevice,
        "check that nvidia-smi shows a GPU, that CUDA_VISIBLE_DEVICES is not empty, and that a container is started with --gpus all",
    ),
    (
        &[101],
        ErrorKind::NoSuchDevice,
        "check CUDA_VISIBLE_DEVICES, and nvidia-smi -L for the GPUs that there are",
    ),
    (&[200, 209, 218, 222], ErrorKind::Unsupported, TOO_OLD),
    (
        &[
            214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721,
        ],
        ErrorKind::Fault,
        "start the process again; if it happens again, look for Xid messages of the driver in dmesg",
    ),
    (&[800, 801], ErrorKind::Unsupported, ""),
    (
        &[802],
        ErrorKind::UnusableDriver,
        "the system is not ready: start nvidia-fabricmanager, or wait until it runs",
    ),
    (
        &[803],
        ErrorKind::UnusableDriver,
        "libcuda.so.1 and the kernel's NVIDIA module have different versions: restart the machine after an update of the driver, and the container with it",
    ),
    (
        &[804],
        ErrorKind::UnusableDriver,
        "take the folder of CUDA's forward compatibility (.../compat) out of LD_LIBRARY_PATH, or update the NVIDIA driver",
    ),
    (
        &[805, 806, 807, 808, 809, 810],
        ErrorKind::Unavailable,
        "check the MPS server (nvidia-cuda-mps-control), or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    (
        &[999],
        ErrorKind::Refused,
        "check that nvidia-smi works, and look for messages of the driver in dmesg",
    ),
];

/// Returns the error of a call that the driver answered with `code`, and with the given words.
pub(crate) fn refused(context: String, code: u32, words: String) -> Error {
    let known = KNOWN.iter().find(|(codes, ..)| codes.contains(&code));
    let (kind, remedy) = known.map_or((ErrorKind::Refused, ""), |&(_, kind, remedy)| {
        (kind, remedy)
    });
    let error = Error::new(kind, context).because(words);
    if remedy.is_empty() {
        error
    } else {
        error.with_remedy(remedy)
    }
}

pub(crate) fn no_driver() -> Error {
    Error::new(ErrorKind::NoDriver, "cannot load the NVIDIA driver")
        .because("libcuda.so.1 is not found")
        .with_remedy("install the driver, or start the container with --gpus all")
}

/// Returns the error of a library that lacks functions.
pub(crate) fn lacks(names: &[&str]) -> Error {
    let why = format!("libcuda.so.1 lacks {}", names.join(", "));
    Error::new(ErrorKind::UnusableDriver, "cannot use the NVIDIA driver")
        .because(why)
        .with_remedy(TOO_OLD)
}

pub(crate) fn timeout(context: String, seconds: f64) -> Error {
    Error::new(ErrorKind::Timeout, context)
        .because(format!("not done after {seconds:.1} s"))
        .with_remedy("look for Xid messages of the driver in dmesg")
}

pub(crate) fn invalid(context: impl Into<String>, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, context).because(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_meaning() {
        let mut codes: Vec<u32> = KNOWN
            .iter()
            .flat_map(|(codes, ..)| *codes)
            .copied()
            .collect();
        let all = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all);
    }

    #[test]
    fn an_unknown_code_is_a_refusal_in_the_words_of_the_driver() {
        let error = refused("cannot jump".into(), 4321, "CUDA error 4321".into());
        assert_eq!(*error.kind(), ErrorKind::Refused);
        assert_eq!(error.to_string(), "cannot jump: CUDA error 4321");
    }
}
