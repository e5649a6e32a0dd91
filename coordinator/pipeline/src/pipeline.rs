//! Pipelines: one kind for each kind of samples, behind one interface.

use coprep_protocol::operators;
use coprep_protocol::spec::{Field, Op};

use crate::array_pipeline::ArrayPipeline;
use crate::audio_pipeline::{AudioPipeline, AudioScratch};
use crate::crop::DecodedShape;
use crate::error::{Error, invalid};
use crate::image_pipeline::{ImagePipeline, ImageScratch};
use crate::rng::SampleKey;
use crate::run::{DecodedView, Picture, PipelineRun};
use crate::source::Dataset;

/// Operators in the order of application: immutable, and shared by all threads.
#[derive(Debug)]
pub struct Pipeline {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Image(ImagePipeline),
    Array(ArrayPipeline),
    Audio(AudioPipeline),
}

/// Memory of one worker thread, used again for every sample.
#[derive(Default)]
pub struct Scratch {
    image: ImageScratch,
    audio: AudioScratch,
}

impl Scratch {
    /// Returns an empty scratch. It grows to the largest sample seen.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Compiles a list of operators that says everything about the samples, after checking the operators and their order.
    ///
    /// # Errors
    ///
    /// If they do not form a pipeline: the first does not decode, normalize is not last, a size is zero, or the prepared
    /// size is not the same for all samples (a minibatch is one tensor). If the samples are arrays, whose shape only
    /// their dataset knows.
    pub fn compile(ops: &[Op]) -> Result<Pipeline, Error> {
        operators::check(ops).map_err(invalid)?;
        let kind = match ops.first() {
            Some(Op::DecodeNpy) => {
                return Err(invalid(
                    "the shape of arrays is not known without their files",
                ));
            }
            Some(Op::DecodeAudio { .. }) => Kind::Audio(AudioPipeline::compile(ops)?),
            _ => Kind::Image(ImagePipeline::compile(ops)?),
        };
        Ok(Pipeline { kind })
    }

    /// Checks a list of operators as far as that is possible without the dataset.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::compile`].
    pub fn check(ops: &[Op]) -> Result<(), Error> {
        match ops.first() {
            None | Some(Op::DecodeNpy) => operators::check(ops).map_err(invalid),
            Some(_) => Pipeline::compile(ops).map(drop),
        }
    }

    /// Compiles a list of operators for a dataset. The first file is read if it determines the shape of the samples.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::compile`]. If the operators do not fit the dataset, or the first file cannot be read.
    pub fn for_dataset(ops: &[Op], dataset: &Dataset) -> Result<Pipeline, Error> {
        if let Some(form) = dataset.array_form() {
            if let Some(op) = ops.first() {
                return Err(invalid(format!("{}() cannot follow arrays", op.name()))
                    .with_remedy("leave it out"));
            }
            let kind = Kind::Array(ArrayPipeline::of_windows(form.clone()));
            return Ok(Pipeline { kind });
        }
        if ops.first() != Some(&Op::DecodeNpy) {
            return Pipeline::compile(ops);
        }
        operators::check(ops).map_err(invalid)?;
        let of_first = |error: Error| {
            let path = dataset.path(0);
            error.within(format!("the first array, {}", path.display()))
        };
        let mut head = Vec::new();
        dataset.fetch_head(0, &mut head).map_err(of_first)?;
        let arrays = ArrayPipeline::of_npy_files(&head).map_err(of_first)?;
        Ok(Pipeline {
            kind: Kind::Array(arrays),
        })
    }

    /// Returns the tensor that one sample becomes. `image`: 3 x height x width, uint8, or float32 if it is normalised.
    /// `tokens` or `array`: as the source says. `audio`: float32, channels x samples, or channels x bands x frames.
    #[must_use]
    pub fn output(&self) -> Field {
        match &self.kind {
            Kind::Image(images) => images.output(),
            Kind::Array(arrays) => arrays.output(),
            Kind::Audio(audio) => audio.output(),
        }
    }

    /// Returns `true` if a sample is prepared the same way at every visit.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        match &self.kind {
            Kind::Image(images) => images.is_deterministic(),
            Kind::Array(_) => true,
            Kind::Audio(audio) => audio.is_deterministic(),
        }
    }

    /// Returns `true` if large images are decoded at a fraction of their size.
    #[must_use]
    pub fn reduces(&self) -> bool {
        match &self.kind {
            Kind::Image(images) => images.reduces(),
            Kind::Array(_) | Kind::Audio(_) => false,
        }
    }

    /// Returns the same pipeline with reduced decoding off, so that pixels do not depend on whether a sample's decoded
    /// form was at hand.
    #[must_use]
    pub fn exact(&self) -> Pipeline {
        let kind = match &self.kind {
            Kind::Image(images) => Kind::Image(images.exact()),
            Kind::Array(arrays) => Kind::Array(arrays.clone()),
            Kind::Audio(audio) => Kind::Audio(audio.clone()),
        };
        Pipeline { kind }
    }

    /// Returns the size of the decoded form, which is a sample after decoding and the operators before the first random
    /// one. Only the header is read; the first few hundred kilobytes of a file are enough.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::inspect`].
    pub fn decoded_size(&self, encoded: &[u8]) -> Result<DecodedShape, Error> {
        Ok(self.inspect(encoded)?.decoded)
    }

    /// Returns the size of the decoded form, as [`Pipeline::decoded_size`] does, and the size in the file.
    ///
    /// # Errors
    ///
    /// If the header is not that of a known format, or the sample is too large.
    pub fn inspect(&self, encoded: &[u8]) -> Result<Picture, Error> {
        match &self.kind {
            Kind::Image(images) => images.inspect(encoded),
            Kind::Array(arrays) => Ok(arrays.inspect()),
            Kind::Audio(audio) => audio.inspect(encoded),
        }
    }

    /// Writes the decoded form into `out`, which has exactly [`DecodedShape::bytes`].
    ///
    /// # Errors
    ///
    /// If the sample cannot be decoded, or `out` has another length.
    pub fn decode_into(
        &self,
        encoded: &[u8],
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), Error> {
        match &self.kind {
            Kind::Image(images) => images.decode_into(encoded, &mut scratch.image, out),
            Kind::Array(arrays) => arrays.decode_into(encoded, out),
            Kind::Audio(audio) => audio.decode_into(encoded, &mut scratch.audio, out),
        }
    }

    /// Prepares a sample from its file's bytes into a slot of exactly the bytes of [`Pipeline::output`].
    ///
    /// `slot` is called only when the last step is about to write.
    ///
    /// # Errors
    ///
    /// If the sample cannot be decoded, or the slot has another length. The slot may then hold anything.
    pub fn prepare_encoded<'s>(
        &self,
        encoded: &[u8],
        key: SampleKey,
        scratch: &mut Scratch,
        slot: impl FnOnce() -> &'s mut [u8],
    ) -> Result<PipelineRun, Error> {
        match &self.kind {
            Kind::Image(images) => images.prepare_encoded(encoded, key, &mut scratch.image, slot),
            Kind::Array(arrays) => arrays.prepare_encoded(encoded, slot()),
            Kind::Audio(audio) => audio.prepare_encoded(encoded, key, &mut scratch.audio, slot),
        }
    }

    /// Prepares a sample from its decoded form, like [`Pipeline::prepare_encoded`].
    ///
    /// # Errors
    ///
    /// If `decoded` or the slot has another length than it should. The slot may then hold anything.
    pub fn prepare_decoded<'s>(
        &self,
        decoded: DecodedView<'_>,
        key: SampleKey,
        scratch: &mut Scratch,
        slot: impl FnOnce() -> &'s mut [u8],
    ) -> Result<PipelineRun, Error> {
        match &self.kind {
            Kind::Image(images) => images.prepare_decoded(decoded, key, &mut scratch.image, slot),
            Kind::Array(arrays) => arrays.prepare_decoded(decoded.pixels, slot()),
            Kind::Audio(audio) => audio.prepare_decoded(decoded, key, &mut scratch.audio, slot),
        }
    }
}
