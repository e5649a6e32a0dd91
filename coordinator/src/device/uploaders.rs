//! The uploaders of a coordinator, by the GPU that they copy to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use coprep_protocol::message::{GpuUse, MPS_DIRECTORY};
use coprep_shared_memory::lock::lock;

use crate::Result;
use crate::device::uploader::{RingHandle, RingOwner, Uploader};

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
    pub(crate) fn of(gpu: &GpuUse) -> Self {
        let variables = gpu.environment.iter();
        let mps = variables
            .filter(|(name, _)| name == MPS_DIRECTORY.as_bytes())
            .map(|(_, value)| value.clone());
        GpuKey {
            uuid: gpu.uuid.clone(),
            mps: mps.last().unwrap_or_default(),
        }
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
        let key = GpuKey::of(gpu);
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
