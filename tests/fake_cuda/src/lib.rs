//! An NVIDIA driver for tests, whose GPUs are host memory. README.md has its settings.
//!
//! The functions have CUDA's names and signatures. Their meaning is that of CUDA's manual, as far as coprep uses it.
#![deny(unsafe_code)]

#[macro_use]
mod call;
mod contexts;
mod device_memory;
mod driver;
mod events;
mod host_memory;
pub mod install;
mod kernels;
mod settings;
mod shareable;
mod streams;
