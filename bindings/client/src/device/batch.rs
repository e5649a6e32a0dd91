//! A batch in a buffer of the GPU.

use std::sync::Arc;

use coprep_device::{DeviceMemory, PendingWork, Stream, StreamWork};
use coprep_protocol::gpu_batch::UploadedField;

use crate::device::array::DeviceArray;
use crate::device::assembly::UploadedBatch;
use crate::device::field::DeviceField;
use crate::device::here::Here;
use crate::device::messages::OpenDevice;
use crate::error::{Error, Result, invalid};
use crate::raw;

/// A batch on the GPU, which is to be written to tensors of the user.
///
/// Dropping it gives its buffer back.
pub struct DeviceBatch {
    device: Arc<OpenDevice>,
    batch: Here<UploadedBatch>,
    samples: u32,
    /// Ids of the samples.
    ids: Vec<i64>,
    /// Tensors to allocate.
    fields: Vec<DeviceField>,
}

impl DeviceBatch {
    pub(crate) fn new(device: Arc<OpenDevice>, batch: UploadedBatch, ids: Vec<i64>) -> Self {
        let samples = batch.samples;
        let fields = device.layout.fields().iter();
        DeviceBatch {
            fields: fields
                .map(|field| describe(&device, field, samples))
                .collect(),
            device,
            samples,
            batch: Here::new(batch),
            ids,
        }
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the ids of the samples.
    #[must_use]
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// Returns the reason in words why images stay as they are, although a conversion was asked for.
    #[must_use]
    pub fn why_unconverted(&self) -> Option<&str> {
        self.device.why_unconverted.as_deref()
    }

    /// Returns the tensors to allocate, in the order of the stream's fields.
    #[must_use]
    pub fn fields(&self) -> &[DeviceField] {
        &self.fields
    }

    /// Puts the work that fills the tensors into the user's stream, whose handle is as in [`UserStream`](crate::device::UserStream). `addresses` are
    /// those of tensors as [`fields`](Self::fields) describes them, in the memory of the GPU.
    ///
    /// # Errors
    /// If the stream is being captured into a CUDA graph, or the GPU fails; or the batch was written before.
    pub fn write(&mut self, addresses: &[u64], stream: u64) -> Result<()> {
        if addresses.len() != self.fields.len() {
            let (given, wanted) = (addresses.len(), self.fields.len());
            return Err(invalid(format!("{given} tensors for {wanted} fields")));
        }
        let stream = raw::user_stream(&self.device.context, stream);
        self.fill(addresses.iter().copied(), &stream).map(drop)
    }

    /// Returns the batch as arrays that own their memory, in the order of the stream's fields. The work that fills them
    /// goes into a stream of the loader's own.
    ///
    /// # Errors
    /// If the GPU's memory is short, or the GPU fails; or the batch was written before.
    pub fn arrays(&mut self) -> Result<Vec<DeviceArray>> {
        let context = &self.device.context;
        // CUDA allocates no memory of no bytes.
        let allocate = |field: &DeviceField| DeviceMemory::allocate(context, field.bytes().max(1));
        let memory: coprep_device::Result<Vec<_>> = self.fields.iter().map(allocate).collect();
        let memory = memory.map_err(Error::from_lower)?;
        let device = self.device.clone();
        let addresses = memory.iter().map(DeviceMemory::address);
        let work = self.fill(addresses, device.array_stream()?)?;
        let array =
            |(field, memory)| DeviceArray::new(&device.context, field, memory, work.clone());
        Ok(self.fields.iter().zip(memory).map(array).collect())
    }

    /// Puts the work that fills memory at these addresses into a stream.
    fn fill(
        &mut self,
        addresses: impl Iterator<Item = u64>,
        stream: &Stream,
    ) -> Result<Arc<PendingWork>> {
        let Some(mut batch) = self.batch.take() else {
            return Err(invalid("the batch was written before"));
        };
        let targets = addresses.zip(&self.fields);
        let targets = targets.map(|(address, field)| raw::tensor(address, field.bytes()));
        let targets: Vec<DeviceMemory> = targets.collect();
        let put = || {
            let mut work = StreamWork::begin(stream)?;
            // The copies are in another stream, for which the user's does not wait by itself.
            batch.copy.precede(stream)?;
            self.put(&mut work, &batch, &targets)?;
            work.submit()
        };
        let work = Arc::new(put().map_err(Error::from_lower)?);
        batch.read_by(work.clone());
        Ok(work)
    }

    fn put(
        &self,
        work: &mut StreamWork<'_>,
        batch: &UploadedBatch,
        targets: &[DeviceMemory],
    ) -> coprep_device::Result<()> {
        for (uploaded, to) in self.device.layout.fields().iter().zip(targets) {
            if to.bytes() == 0 {
                continue;
            }
            let from = batch.buffer.part(uploaded.place(0..self.samples))?;
            match &self.device.conversion {
                Some(conversion) => {
                    conversion.put(work, &uploaded.field, self.samples, &from, to)?;
                }
                None => work.copy(&from, to)?,
            }
        }
        Ok(())
    }
}

/// Returns the tensor for a field of a batch.
fn describe(device: &OpenDevice, uploaded: &UploadedField, samples: u32) -> DeviceField {
    let field = &uploaded.field;
    let converted = device.conversion.as_ref();
    let (dtype, is_channels_last) = converted
        .and_then(|conversion| conversion.form(field))
        .unwrap_or((field.dtype, false));
    let sample = field.shape.iter().map(|&n| n as usize);
    DeviceField {
        name: field.name.clone(),
        dtype,
        shape: std::iter::once(samples as usize).chain(sample).collect(),
        is_channels_last,
    }
}
