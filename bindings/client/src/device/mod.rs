//! Batches on the GPU of a job: own uploads, and those that an uploader makes for several jobs.
//!
//! ```text
//! item -> upload thread: staging buffer -> batch buffer (GPU) ----> DeviceBatch::write: tensors of the user
//!         (a stream of its own)            three of them            (the user's stream)
//!         or a ring buffer on the GPU
//! ```
//!
//! | module | task |
//! |---|---|
//! | `options` | says which GPU, and how images are to lie there |
//! | `conversion` | the kernels and the table that convert images, loaded for a GPU |
//! | `buffers` | buffers on the GPU, each for one batch |
//! | `assembly` | a batch whose parts are uploaded one by one |
//! | `ring` | a ring to which an uploader has copied minibatches for several jobs |
//! | `messages` | what the upload thread is asked for |
//! | `thread` | the upload thread: it makes all copies, and releases the items |
//! | `uploader` | the other threads' end of the upload thread |
//! | `batch` | a batch in a buffer, to be written to tensors of the user |
//! | `field` | the form of such a tensor |
//! | `array` | a field of a batch in memory of its own, for frameworks that take arrays over |
//! | `here` | values that a forked child must not touch |
//!
//! # Who owns what
//!
//! The **upload thread** owns the stream of the copies and the pinned view of the staging area. It begins with the first
//! batch and not before: a process that has used CUDA cannot fork children that use it. A buffer belongs to the upload
//! thread, then to the [`DeviceBatch`], and returns to the pool with the work that reads it. Tensors are the user's:
//! PyTorch allocates them, and nothing here keeps one.
//!
//! # The order of things
//!
//! 1. When the loader takes an item, the upload thread copies its slots to the batch buffer, unless it has done so
//!    already, and then looks at the items behind it ([`Receiver::peek`]) and copies those of the next two batches.
//! 2. The item is released as soon as its copy has ended. The coordinator then fills the staging buffer anew, while the
//!    batch waits on the GPU.
//! 3. [`DeviceBatch::write`] lets the user's stream wait for the copies, and puts the conversion behind them.
//! 4. The buffer is filled anew when that work has ended. The host waits for it, and not the stream of the copies, so
//!    that a job whose GPU lags behind holds no item.
//!
//! An item that was copied ahead may be taken back by the coordinator. Then an item of another number is taken, and what
//! was copied ahead is forgotten.
//!
//! An item that lies in a ring is treated alike: the upload thread copies it to the batch buffer too, on the GPU. So a
//! ring buffer is released after some microseconds, and a batch may have parts of both kinds.
//!
//! All parts of a batch go to one buffer, field by field. So a batch is converted by one launch, whichever staging
//! buffers its parts lay in.
//!
//! # Failures
//!
//! If the GPU fails, or a copy does not end within [`coprep_device::TIMEOUT`], the next call for a batch raises the
//! error, and so does every later one. The batch counts as not given. Before the connection ends, the upload thread
//! finishes the copies of the items that were taken ([`Uploader::settle`]), because the coordinator then uses their
//! buffers for other batches.
//!
//! [`Receiver::peek`]: coprep_shared_memory::handover::Receiver::peek

mod array;
mod assembly;
mod batch;
mod buffers;
mod conversion;
mod field;
mod here;
mod messages;
mod options;
mod ring;
mod thread;
mod uploader;

pub use array::DeviceArray;
pub(crate) use assembly::UploadedBatch;
pub use batch::DeviceBatch;
pub use field::DeviceField;
pub use options::{DeviceOptions, ImageConversion, UserStream};
pub(crate) use ring::{HeldPart, MappedRing, OfferedRing};
pub(crate) use uploader::{AwaitedAnswer, OpenDevice, Uploader};
