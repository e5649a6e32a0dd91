//! Options of a job whose batches go to its GPU.

use coprep_device::{ElementOrder, ElementType};
use coprep_protocol::spec::{Op, PipelineSpec};

/// Options of batches on a GPU.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Conversion of images, or `None` if all fields are copied as they are.
    pub images: Option<ImageConversion>,
    /// `true` if an uploader may copy batches, once for all such jobs on the GPU.
    pub is_shared: bool,
    /// Variables of the environment, as names and values. The uploader gets those that the driver reads.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The form that images of 8 bits get on the GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageConversion {
    /// Mean per channel, in units of 0..1.
    pub mean: [f32; 3],
    /// Standard deviation per channel, in units of 0..1.
    pub std: [f32; 3],
    /// Type of the elements.
    pub element: ElementType,
    /// Order of the elements.
    pub order: ElementOrder,
}

impl ImageConversion {
    /// Takes the last operator out of a pipeline if it normalises, and returns what the GPU has to do in its place.
    ///
    /// Without it the pipeline leaves images of 8 bits, which jobs with other means, types and orders share.
    #[must_use]
    pub fn take_out(
        pipeline: &mut PipelineSpec,
        element: ElementType,
        order: ElementOrder,
    ) -> Option<Self> {
        let &Op::Normalize { mean, std } = pipeline.ops.last()? else {
            return None;
        };
        pipeline.ops.pop();
        Some(ImageConversion {
            mean,
            std,
            element,
            order,
        })
    }
}

/// The GPU and the stream that a user's tensors are for.
///
/// `stream` is a handle of a stream of that GPU in this process, such as that of PyTorch's current stream, which lives
/// until the call that it is given to has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserStream {
    /// Number of the GPU in this process, in the order of its `CUDA_VISIBLE_DEVICES`.
    pub gpu: u32,
    /// The handle. 0 is the default stream.
    pub stream: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use coprep_protocol::spec::{FileList, Source};

    #[test]
    fn pipelines_that_differ_in_what_the_gpu_does_become_one() {
        let plain = PipelineSpec {
            source: Source::Files(FileList::default()),
            ops: vec![Op::RandomHorizontalFlip { p: 0.5 }],
        };
        let normalise = |mean, element| {
            let mut pipeline = plain.clone();
            let std = [0.5; 3];
            pipeline.ops.push(Op::Normalize { mean, std });
            let taken = ImageConversion::take_out(&mut pipeline, element, ElementOrder::Planes);
            (pipeline, taken.map(|images| (images.mean, images.element)))
        };
        for (mean, element) in [([0.1; 3], ElementType::F32), ([0.2; 3], ElementType::Bf16)] {
            assert_eq!(
                normalise(mean, element),
                (plain.clone(), Some((mean, element)))
            );
        }
        let mut without = plain.clone();
        let taken = ImageConversion::take_out(&mut without, ElementType::F32, ElementOrder::Planes);
        assert_eq!((without, taken), (plain, None));
    }
}
