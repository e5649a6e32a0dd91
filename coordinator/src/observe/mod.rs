//! Measurements that the coordinator takes of its own work.
//!
//! * [`preparation_cost`]: the cost of one preparation.
//! * [`costs`]: the costs of all samples of a pipeline.
//! * [`stalls`]: the resource that jobs wait for, storage or processors.

pub(crate) mod costs;
pub(crate) mod preparation_cost;
pub(crate) mod stalls;
