//! Orders of epochs, which travel beside a message: a memory file of sample ids, 32 bits each, native-endian.
//!
//! An epoch may have millions of samples, so its order is not part of the message.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Most samples of an epoch whose order is told.
pub const MOST_SAMPLES: u32 = 1 << 27;

/// Writes an order to a memory file and seals it, so that no process can change it any more.
///
/// # Errors
/// When memory or descriptors run out.
pub fn write(ids: &[u32]) -> Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create("coprep-order", flags)?);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    file.write_all(&bytes)?;
    let seals = SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// Reads an order of `samples` samples that another process has written. The ids are copied, so later changes to the
/// file have no effect on the result.
///
/// # Errors
/// When `file` is not a regular file of exactly this size, or `samples` is above [`MOST_SAMPLES`].
pub fn read(file: OwnedFd, samples: u32) -> Result<Vec<u32>> {
    let malformed = |why: String| Err(Error::new(ErrorKind::InvalidData, why));
    if samples > MOST_SAMPLES {
        return malformed(format!(
            "an epoch of {samples} samples: it may have {MOST_SAMPLES}"
        ));
    }
    let file = File::from(file);
    let (found, bytes) = (file.metadata()?, samples as usize * size_of::<u32>());
    // This check comes before the allocation, because another process chose the size.
    if !found.is_file() || found.len() != bytes as u64 {
        return malformed(format!(
            "the order of {samples} samples is a file of {} bytes",
            found.len()
        ));
    }
    let mut read = vec![0; bytes];
    file.read_exact_at(&mut read, 0)?;
    let ids = read.as_chunks::<4>().0.iter();
    Ok(ids.map(|id| u32::from_ne_bytes(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for ids in [vec![], vec![7], (0..100_000).rev().collect::<Vec<u32>>()] {
            let file = write(&ids).expect("memory");
            assert_eq!(read(file, ids.len() as u32).expect("an order"), ids);
        }
    }

    #[test]
    fn a_file_of_another_size_is_refused() {
        let of_three = || write(&[1, 2, 3]).expect("memory");
        for samples in [0, 2, 4, MOST_SAMPLES, u32::MAX] {
            assert!(read(of_three(), samples).is_err(), "{samples}");
        }
        let (pipe, _other) = nix::unistd::pipe().expect("a pipe");
        assert!(read(pipe, 0).is_err());
    }

    #[test]
    fn a_file_that_is_written_stays_as_it_is() {
        let file = File::from(write(&[1, 2, 3]).expect("memory"));
        assert!(file.write_at(&[9], 0).is_err());
        assert!(file.set_len(4).is_err());
    }
}
