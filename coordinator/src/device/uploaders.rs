//! The uploaders of a coordinator, by the GPU that they copy to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use coprep_protocol::message::{GpuUse, MPS_DIRECTORY};
use coprep_shared_memory::lock::lock;

use crate::Result;
use crate::device::uploader::{RingHandle, RingOwner, Uploader};
use crate::error::invalid;

/// Longest UUID, without its first letters.
const MOST_DIGITS: usize = 64;

/// The identity of a GPU for jobs that share uploads there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GpuKey {
    /// UUID of the GPU, or of an instance of one that is divided.
    pub(crate) uuid: String,
    /// The folder of the MPS server that the jobs go through, if they do. Processes within and outside MPS cannot use a
    /// GPU in the same way.
    mps: Vec<u8>,
}

impl GpuKey {
    /// Returns the identity of a consumer's GPU.
    ///
    /// # Errors
    /// If the consumer names it by something that is no UUID. It becomes an argument of a command.
    pub(crate) fn of(gpu: &GpuUse) -> Result<Self> {
        let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
        let digits = ["GPU-", "MIG-"]
            .iter()
            .find_map(|kind| gpu.uuid.strip_prefix(kind));
        if !digits.is_some_and(|digits| digits.len() <= MOST_DIGITS && digits.chars().all(is_part))
        {
            return Err(invalid("a job names its GPU by something that is no UUID"));
        }
        let mut variables = gpu.environment.iter();
        let mps = variables.find(|(name, _)| name == MPS_DIRECTORY.as_bytes());
        Ok(GpuKey {
            uuid: gpu.uuid.clone(),
            mps: mps.map_or(Vec::new(), |(_, value)| value.clone()),
        })
    }
}

/// The uploaders that run; see the module.
#[derive(Default)]
pub(crate) struct Uploaders {
    running: Mutex<HashMap<GpuKey, Weak<Uploader>>>,
}

impl Uploaders {
    /// Opens a ring on a GPU. The owner is told when it is open, or why it is not. Starts an uploader if the GPU has
    /// none.
    pub(crate) fn open(&self, gpu: &GpuUse, owner: Arc<dyn RingOwner>) -> Result<RingHandle> {
        let key = GpuKey::of(gpu)?;
        let mut running = lock(&self.running);
        let found = running.get(&key).and_then(Weak::upgrade);
        let uploader = match found {
            Some(uploader) => uploader,
            None => {
                let uploader = Uploader::start(&gpu.uuid, gpu.environment.clone())?;
                running.insert(key, Arc::downgrade(&uploader));
                uploader
            }
        };
        running.retain(|_, uploader| uploader.strong_count() > 0);
        drop(running);
        Ok(uploader.open(owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, mps: Option<&str>) -> GpuUse {
        let variable = |value: &str| (MPS_DIRECTORY.into(), value.into());
        GpuUse {
            uuid: uuid.into(),
            is_shared: true,
            environment: mps.map(variable).into_iter().collect(),
        }
    }

    #[test]
    fn gpus_are_told_apart_by_their_uuid_and_their_mps_server() {
        let key = |uuid, mps| GpuKey::of(&gpu(uuid, mps)).unwrap();
        assert_eq!(key("GPU-fa-00", None), key("GPU-fa-00", None));
        assert_ne!(key("GPU-fa-00", None), key("MIG-fa-00", None));
        assert_ne!(key("GPU-fa-00", None), key("GPU-fa-00", Some("/tmp/mps")));
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        let long = format!("GPU-{}", "0".repeat(65));
        for wrong in ["", "0", "--help", "GPU-../x", "GPU-0\0", &long] {
            assert!(GpuKey::of(&gpu(wrong, None)).is_err(), "{wrong}");
        }
    }
}
