//! Messages between the coordinator and an uploader, the process that copies the minibatches of several jobs to a GPU.
//!
//! They only open and close rings. The minibatches to copy go through a hand-over in shared memory, as to any consumer:
//! an item names the staging buffer, and its tag the buffer of the ring. Its release says that the copy has ended.

use rkyv::{Archive, Deserialize, Serialize};

use crate::spec::Field;

/// A request of the coordinator to an uploader.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum UploaderRequest {
    /// Open a ring for a stream. Four descriptors come with it: staging, deliver, reply and doorbell.
    Open(OpenRing),
    /// Close a ring. Jobs that have mapped its memory keep it.
    Close {
        /// Number of the ring.
        ring: u64,
    },
}

/// A ring that is to be opened.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct OpenRing {
    /// Number of the ring, which no other ring of this coordinator has.
    pub ring: u64,
    /// Tensors of a batch, in the order of the staging layout.
    pub fields: Vec<Field>,
    /// Samples of one staging buffer.
    pub slots: u32,
    /// Number of staging buffers.
    pub buffers: u32,
    /// Fewest buffers with which the ring is of use.
    pub fewest: u32,
    /// Most buffers of the ring.
    pub most: u32,
    /// Bytes of the GPU's memory that all rings of this uploader may take.
    pub budget: u64,
}

/// A message of an uploader.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum UploaderEvent {
    /// A ring is open. A descriptor of its memory comes with it.
    Opened {
        /// Number of the ring.
        ring: u64,
        /// Number of its buffers.
        buffers: u32,
        /// Bytes of its memory.
        bytes: u64,
        /// Reason why the staging area is not pinned, and the processor copies everything first.
        why_bounced: Option<String>,
        /// Number of the GPU's NUMA node, if the process runs on its processors alone.
        node: Option<u32>,
    },
    /// A ring cannot be opened. Others are not affected.
    Refused {
        /// Number of the ring.
        ring: u64,
        /// Reason, with the remedy.
        why: String,
    },
    /// The GPU has failed, and the uploader ends.
    Failed {
        /// Reason, with the remedy.
        why: String,
    },
}
