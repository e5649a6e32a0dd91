//! Producers of samples.
//!
//! * [`producer`]: the producer of a stream: the coordinator's threads, processes that run the jobs' own code, or the jobs
//!   themselves.
//! * [`native`]: one sample's way from storage, or the cache, into its slot, by a pipeline of the coordinator's own.
//! * [`threads`]: the pool of threads that run those pipelines.
//! * [`processes`]: the pools of processes that run the jobs' own code.
//! * [`failure`]: the reason why a sample cannot be made.
//! * [`deadline_queue`]: pending work of both pools, ordered by planned start time.

pub(crate) mod deadline_queue;
pub(crate) mod failure;
pub(crate) mod native;
pub(crate) mod processes;
pub(crate) mod producer;
pub(crate) mod threads;
