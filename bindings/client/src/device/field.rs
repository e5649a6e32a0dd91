//! The form of a field of a batch on the GPU.

use coprep_protocol::spec::Dtype;

/// A field of a batch on the GPU: a tensor that [`DeviceBatch::write`](crate::device::DeviceBatch::write) fills, or a
/// [`DeviceArray`](crate::device::DeviceArray).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceField {
    /// Name of the field: `image`, `label`, or a path of a part of user code's samples.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape, samples first.
    pub shape: Vec<usize>,
    /// `true` if the tensor's second dimension is the innermost one in memory (`torch.channels_last`).
    pub is_channels_last: bool,
}

impl DeviceField {
    /// Returns the bytes of the tensor.
    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}
