//! Compilation and execution of the operators of images.
//!
//! All geometry is computed first, from the header's size and the sample's key, as a list of moves. The first move then
//! tells the decoder which part is wanted and how small it may be. The following moves go from one reusable buffer to
//! another. Mirroring at the end is left to the last step, which writes the slot.

use std::time::Instant;

use coprep_costs::MeasuredTimes;
use coprep_protocol::normalize::NormalizeTable;
use coprep_protocol::spec::{Field, Interpolation, Op, ResizeTo};
use fast_image_resize::Resizer;

use crate::codec::{Codec, View};
use crate::crop::{self, DecodedShape, Freedom, ImageSize, Padding, Rect};
use crate::error::{self, Error, invalid};
use crate::header::{self, ImageFormat, ImageHeader};
use crate::layout;
use crate::orientation;
use crate::resize;
use crate::rng::{Rng, SampleKey};
use crate::run::{DecodedView, Picture, PipelineRun};

/// Operators in the order of application: immutable, and shared by all threads.
#[derive(Debug)]
pub(crate) struct ImagePipeline {
    decode: Decode,
    /// Steps before the first random operator.
    fixed: Vec<OperatorStep>,
    /// Steps from the first random operator on.
    random: Vec<OperatorStep>,
    normalize: Option<Normalize>,
    output: ImageSize,
}

#[derive(Clone, Copy, Debug)]
struct Decode {
    oriented: bool,
    max_pixels: u64,
    scaled: bool,
}

#[derive(Clone, Copy, Debug)]
enum OperatorStep {
    Resize {
        to: ResizeTo,
        filter: Interpolation,
    },
    CenterCrop(ImageSize),
    RandomResizedCrop {
        size: ImageSize,
        freedom: Freedom,
        filter: Interpolation,
    },
    RandomMirror {
        p: f64,
    },
}

#[derive(Debug)]
struct Normalize {
    mean: [f32; 3],
    std: [f32; 3],
    table: Box<NormalizeTable>,
}

/// A step with all its numbers known, for one sample.
#[derive(Clone, Copy, Debug)]
enum Move {
    Resize {
        part: Rect,
        to: ImageSize,
        filter: Interpolation,
    },
    Crop {
        part: Rect,
        padding: Padding,
        to: ImageSize,
    },
    Mirror,
}

/// Memory of one worker thread for images, used again for every sample.
#[derive(Default)]
pub(crate) struct ImageScratch {
    codec: Codec,
    canvas: Canvas,
    moves: Vec<Move>,
}

/// The resizer and two buffers between which the moves after decoding go back and forth.
#[derive(Default)]
struct Canvas {
    resizer: Resizer,
    front: Vec<u8>,
    back: Vec<u8>,
}

impl ImagePipeline {
    /// Compiles operators whose order was checked.
    ///
    /// # Errors
    ///
    /// If the prepared size is not the same for all samples (a minibatch is one tensor).
    pub(crate) fn compile(ops: &[Op]) -> Result<ImagePipeline, Error> {
        let (decode, rest) = split_decode(ops)?;
        let (steps, normalize) = split_normalize(rest);
        let steps = steps.iter().map(step).collect::<Result<Vec<_>, _>>()?;
        let output = output_size(&steps)?;
        let first_random = steps
            .iter()
            .position(OperatorStep::is_random)
            .unwrap_or(steps.len());
        let (fixed, random) = steps.split_at(first_random);
        Ok(ImagePipeline {
            decode,
            fixed: fixed.to_vec(),
            random: random.to_vec(),
            normalize,
            output,
        })
    }

    /// Returns the tensor that one sample becomes: `image`, 3 x height x width, uint8, or float32 if it is normalised.
    pub(crate) fn output(&self) -> Field {
        Field {
            name: "image".into(),
            dtype: layout::dtype(self.table()),
            shape: vec![3, self.output.height, self.output.width],
        }
    }

    /// Returns `true` if a sample is prepared the same way at every visit.
    pub(crate) fn is_deterministic(&self) -> bool {
        self.random.is_empty()
    }

    /// Returns `true` if large images are decoded at a fraction of their size.
    pub(crate) fn reduces(&self) -> bool {
        self.decode.scaled
    }

    /// Returns the same pipeline with reduced decoding off, so that pixels do not depend on whether a sample's decoded
    /// form was at hand.
    pub(crate) fn exact(&self) -> ImagePipeline {
        ImagePipeline {
            decode: Decode {
                scaled: false,
                ..self.decode
            },
            fixed: self.fixed.clone(),
            random: self.random.clone(),
            normalize: self.normalize.as_ref().map(Normalize::rebuilt),
            output: self.output,
        }
    }

    /// Returns the size in the file, and that of the decoded form, which is an image after decoding and the operators
    /// before the first random one. Only the header is read; the first few hundred kilobytes of a file are enough.
    ///
    /// # Errors
    ///
    /// If the header is no image's, or the image is too large.
    pub(crate) fn inspect(&self, encoded: &[u8]) -> Result<Picture, Error> {
        let header = self.header(encoded)?;
        let ImageSize { width, height } =
            self.plan(header.size(), &self.fixed, None, &mut Vec::new())?;
        Ok(Picture {
            pixels: header.size().pixels(),
            decoded: DecodedShape::of_image(ImageSize { width, height }),
        })
    }

    /// Writes the decoded form into `out`: rows of RGB, exactly [`DecodedShape::bytes`] of them.
    ///
    /// # Errors
    ///
    /// If the sample cannot be decoded, or `out` has another length.
    pub(crate) fn decode_into(
        &self,
        encoded: &[u8],
        scratch: &mut ImageScratch,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let header = self.header(encoded)?;
        let ImageScratch {
            codec,
            canvas,
            moves,
        } = scratch;
        moves.clear();
        let size = self.plan(header.size(), &self.fixed, None, moves)?;
        if out.len() != size.bytes() {
            return Err(error::wrong_length("decoded form", size.bytes(), out.len()));
        }
        // No move follows, so the decoder can write the result itself.
        if moves.is_empty() {
            return codec.whole_into(encoded, &header, out);
        }
        let view = self.decode_first(encoded, &header, codec, moves)?;
        let (done, _) = canvas.run(view, moves, moves.len())?;
        resize::paste(done, size, Padding::default(), out);
        Ok(())
    }

    /// Prepares a sample from its file's bytes into a slot of exactly the bytes of [`ImagePipeline::output`].
    ///
    /// `slot` is called only when the last step is about to write.
    ///
    /// # Errors
    ///
    /// If the sample cannot be decoded, or the slot has another length. The slot may then hold anything.
    pub(crate) fn prepare_encoded<'s>(
        &self,
        encoded: &[u8],
        key: SampleKey,
        scratch: &mut ImageScratch,
        slot: impl FnOnce() -> &'s mut [u8],
    ) -> Result<PipelineRun, Error> {
        let began = Instant::now();
        let header = self.header(encoded)?;
        let ImageScratch {
            codec,
            canvas,
            moves,
        } = scratch;
        moves.clear();
        let size = self.plan(header.size(), &self.fixed, None, moves)?;
        let fixed = moves.len();
        self.plan(size, &self.random, Some(key), moves)?;
        // Writing the slot can mirror on the way, so a mirror at the end needs no pass of its own.
        let mirrored = take_mirrors(moves);
        let view = self.decode_first(encoded, &header, codec, moves)?;
        let decoded = Instant::now();
        let (done, after_fixed) = canvas.run(view, moves, fixed)?;
        self.write(done, mirrored, slot())?;
        Ok(PipelineRun {
            times: MeasuredTimes {
                decode: MeasuredTimes::stage(decoded - began),
                fixed: MeasuredTimes::stage(after_fixed - decoded),
                random: MeasuredTimes::stage(after_fixed.elapsed()),
                ..MeasuredTimes::default()
            },
            pixels: header.size().pixels(),
        })
    }

    /// Prepares a sample from its decoded form, like [`ImagePipeline::prepare_encoded`].
    ///
    /// # Errors
    ///
    /// If `decoded` or the slot has another length than it should. The slot may then hold anything.
    pub(crate) fn prepare_decoded<'s>(
        &self,
        decoded: DecodedView<'_>,
        key: SampleKey,
        scratch: &mut ImageScratch,
        slot: impl FnOnce() -> &'s mut [u8],
    ) -> Result<PipelineRun, Error> {
        let began = Instant::now();
        let size = ImageSize::new(decoded.width, decoded.height);
        if size.pixels() == 0 || decoded.pixels.len() != size.bytes() {
            return Err(error::wrong_length(
                "decoded form",
                size.bytes(),
                decoded.pixels.len(),
            ));
        }
        let ImageScratch { canvas, moves, .. } = scratch;
        moves.clear();
        self.plan(size, &self.random, Some(key), moves)?;
        let mirrored = take_mirrors(moves);
        let (done, _) = canvas.run(View::whole(decoded.pixels, size), moves, 0)?;
        self.write(done, mirrored, slot())?;
        Ok(PipelineRun {
            times: MeasuredTimes {
                random: MeasuredTimes::stage(began.elapsed()),
                ..MeasuredTimes::default()
            },
            pixels: 0,
        })
    }

    fn write(&self, done: View<'_>, mirrored: bool, slot: &mut [u8]) -> Result<(), Error> {
        self.check_slot(slot)?;
        layout::write(done, mirrored, self.table(), slot);
        Ok(())
    }

    fn header(&self, encoded: &[u8]) -> Result<ImageHeader, Error> {
        let mut header = header::read(encoded, self.decode.max_pixels)?;
        if self.decode.oriented {
            header.orientation = orientation::read(header.format, encoded);
        }
        Ok(header)
    }

    fn table(&self) -> Option<&NormalizeTable> {
        self.normalize.as_ref().map(|n| n.table.as_ref())
    }

    fn check_slot(&self, out: &[u8]) -> Result<(), Error> {
        let wanted = self.output.bytes() * layout::dtype(self.table()).size();
        if out.len() == wanted {
            Ok(())
        } else {
            Err(error::wrong_length("slot", wanted, out.len()))
        }
    }

    /// Appends the moves of `steps` for an image of `size`, and returns the size after them.
    fn plan(
        &self,
        size: ImageSize,
        steps: &[OperatorStep],
        key: Option<SampleKey>,
        moves: &mut Vec<Move>,
    ) -> Result<ImageSize, Error> {
        // Fixed steps draw no numbers, so they need no key.
        let mut rng = Rng::new(key.unwrap_or_default());
        let mut size = size;
        for step in steps {
            let Some(next) = step.resolve(size, &mut rng) else {
                continue;
            };
            size = next.size(size);
            // Resizing to a shorter side can make a long, thin image huge, so each size is bounded, not only the
            // file's.
            if size.pixels() > self.decode.max_pixels.max(self.output.pixels()) {
                let what = format!("resized to {} x {} pixels, it", size.width, size.height);
                return Err(error::too_large(what, self.decode.max_pixels));
            }
            moves.push(next);
        }
        Ok(size)
    }

    /// Decodes the part that the first move needs, and replaces that move's part by the decoded one.
    fn decode_first<'a>(
        &self,
        encoded: &[u8],
        header: &ImageHeader,
        codec: &'a mut Codec,
        moves: &mut [Move],
    ) -> Result<View<'a>, Error> {
        let whole = header.size().whole();
        let (part, target) = match moves.first() {
            Some(&Move::Resize { part, to, filter }) => {
                (part, self.may_reduce(header, filter).then_some(to))
            }
            Some(&Move::Crop { part, .. }) => (part, None),
            _ => (whole, None),
        };
        let view = codec.part(encoded, header, part, target)?;
        if let Some(Move::Resize { part, .. } | Move::Crop { part, .. }) = moves.first_mut() {
            *part = view.rect.size.whole();
        }
        Ok(view)
    }

    /// Returns `true` if the decoder may reduce. Nearest-pixel resizing may not, since it picks single pixels of the
    /// full image.
    fn may_reduce(&self, header: &ImageHeader, filter: Interpolation) -> bool {
        self.decode.scaled && header.format == ImageFormat::Jpeg && filter != Interpolation::Nearest
    }
}

impl Normalize {
    fn new(mean: [f32; 3], std: [f32; 3]) -> Self {
        Normalize {
            mean,
            std,
            table: Box::new(NormalizeTable::new(mean, std)),
        }
    }

    fn rebuilt(&self) -> Self {
        Self::new(self.mean, self.std)
    }
}

/// Removes the mirrors at the end of the moves, and returns `true` if an odd number of them was there.
fn take_mirrors(moves: &mut Vec<Move>) -> bool {
    let mut mirrored = false;
    while let Some(Move::Mirror) = moves.last() {
        moves.pop();
        mirrored = !mirrored;
    }
    mirrored
}

impl OperatorStep {
    fn is_random(&self) -> bool {
        matches!(
            self,
            OperatorStep::RandomResizedCrop { .. } | OperatorStep::RandomMirror { .. }
        )
    }

    /// Returns the size after this step, or `None` if it is not the same for all samples.
    fn output(&self, before: Option<ImageSize>) -> Option<ImageSize> {
        match *self {
            OperatorStep::Resize {
                to: ResizeTo::Exact { height, width },
                ..
            } => Some(ImageSize::new(width, height)),
            OperatorStep::Resize {
                to: ResizeTo::Shorter(shorter),
                ..
            } => before.map(|size| crop::shorter_side(size, shorter)),
            OperatorStep::CenterCrop(size) | OperatorStep::RandomResizedCrop { size, .. } => {
                Some(size)
            }
            OperatorStep::RandomMirror { .. } => before,
        }
    }

    /// Returns the move that this step makes on an image of `size`, or `None` if it leaves the image as it is.
    fn resolve(&self, size: ImageSize, rng: &mut Rng) -> Option<Move> {
        match *self {
            OperatorStep::Resize { to, filter } => {
                let to = match to {
                    ResizeTo::Shorter(shorter) => crop::shorter_side(size, shorter),
                    ResizeTo::Exact { height, width } => ImageSize::new(width, height),
                };
                (to != size).then_some(Move::Resize {
                    part: size.whole(),
                    to,
                    filter,
                })
            }
            OperatorStep::CenterCrop(to) => {
                let (part, padding) = crop::center(size, to);
                (to != size).then_some(Move::Crop { part, padding, to })
            }
            OperatorStep::RandomResizedCrop {
                size: to,
                freedom,
                filter,
            } => {
                let part = crop::random_resized(size, freedom, rng);
                (part != to.whole() || to != size).then_some(Move::Resize { part, to, filter })
            }
            OperatorStep::RandomMirror { p } => (rng.unit() < p).then_some(Move::Mirror),
        }
    }
}

impl Move {
    fn size(&self, before: ImageSize) -> ImageSize {
        match *self {
            Move::Resize { to, .. } | Move::Crop { to, .. } => to,
            Move::Mirror => before,
        }
    }
}

/// The buffer that holds the image at present.
#[derive(Clone, Copy)]
enum CurrentBuffer {
    Given,
    Front,
    Back,
}

impl Canvas {
    /// Makes the moves one after another, beginning with `given`. Returns the result and the time at which the first
    /// `fixed` moves were done.
    fn run<'a>(
        &'a mut self,
        given: View<'a>,
        moves: &[Move],
        fixed: usize,
    ) -> Result<(View<'a>, Instant), Error> {
        let Canvas {
            resizer,
            front,
            back,
        } = self;
        let mut current = CurrentBuffer::Given;
        let mut frame = given;
        let mut after_fixed = Instant::now();
        for (number, step) in moves.iter().enumerate() {
            if number == fixed {
                after_fixed = Instant::now();
            }
            // A crop without padding needs no copy: the view is narrowed.
            if let Some(less) = narrowed(frame, *step) {
                frame = less;
                continue;
            }
            let size = step.size(frame.rect.size);
            // The target is the buffer that does not hold the image.
            let (pixels, target): (&[u8], &mut Vec<u8>) = match current {
                CurrentBuffer::Given => (given.pixels, front),
                CurrentBuffer::Front => (front, back),
                CurrentBuffer::Back => (back, front),
            };
            target.resize(size.bytes(), 0);
            apply(resizer, View { pixels, ..frame }, *step, target)?;
            current = match current {
                CurrentBuffer::Front => CurrentBuffer::Back,
                _ => CurrentBuffer::Front,
            };
            // The pixels are looked up by `current` when they are needed, so the frame keeps only the size.
            frame = View {
                pixels: &[],
                ..View::whole(&[], size)
            };
        }
        let pixels = match current {
            CurrentBuffer::Given => given.pixels,
            CurrentBuffer::Front => front,
            CurrentBuffer::Back => back,
        };
        // No later move came at which the time could be taken.
        if fixed >= moves.len() {
            after_fixed = Instant::now();
        }
        Ok((View { pixels, ..frame }, after_fixed))
    }
}

fn within(view: View<'_>, part: Rect) -> View<'_> {
    if part == view.rect.size.whole() {
        return view;
    }
    let rect = Rect {
        x: view.rect.x + part.x,
        y: view.rect.y + part.y,
        size: part.size,
    };
    View { rect, ..view }
}

fn narrowed(view: View<'_>, step: Move) -> Option<View<'_>> {
    match step {
        Move::Crop { part, to, .. } if part.size == to => Some(within(view, part)),
        _ => None,
    }
}

fn apply(resizer: &mut Resizer, view: View<'_>, step: Move, out: &mut [u8]) -> Result<(), Error> {
    match step {
        Move::Resize { part, to, filter } => {
            resize::resize(resizer, within(view, part), to, filter, out)
        }
        Move::Crop { part, padding, to } => {
            resize::paste(within(view, part), to, padding, out);
            Ok(())
        }
        Move::Mirror => {
            resize::mirror(view, out);
            Ok(())
        }
    }
}

// The functions below may rely on the rules of `operators::check`.

fn split_decode(ops: &[Op]) -> Result<(Decode, &[Op]), Error> {
    match ops {
        [
            Op::Decode {
                apply_exif_orientation: oriented,
                max_pixels,
                scaled,
            },
            rest @ ..,
        ] => Ok((
            Decode {
                oriented: *oriented,
                max_pixels: *max_pixels,
                scaled: *scaled,
            },
            rest,
        )),
        _ => Err(invalid("a pipeline begins with decode()").with_remedy("put it first")),
    }
}

fn split_normalize(ops: &[Op]) -> (&[Op], Option<Normalize>) {
    match ops.split_last() {
        Some((Op::Normalize { mean, std }, rest)) => (rest, Some(Normalize::new(*mean, *std))),
        _ => (ops, None),
    }
}

fn step(op: &Op) -> Result<OperatorStep, Error> {
    match *op {
        Op::Resize {
            to,
            interpolation: filter,
        } => Ok(OperatorStep::Resize { to, filter }),
        Op::CenterCrop { height, width } => {
            Ok(OperatorStep::CenterCrop(ImageSize::new(width, height)))
        }
        Op::RandomResizedCrop {
            height,
            width,
            scale,
            ratio,
            interpolation: filter,
        } => Ok(OperatorStep::RandomResizedCrop {
            size: ImageSize::new(width, height),
            freedom: freedom(scale, ratio),
            filter,
        }),
        Op::RandomHorizontalFlip { p } => Ok(OperatorStep::RandomMirror { p: p.into() }),
        ref other => Err(invalid(format!("{}() is in the wrong place", other.name()))),
    }
}

fn freedom(scale: (f32, f32), ratio: (f32, f32)) -> Freedom {
    let wide = |(low, high): (f32, f32)| (f64::from(low), f64::from(high));
    Freedom {
        scale: wide(scale),
        ratio: wide(ratio),
    }
}

fn output_size(steps: &[OperatorStep]) -> Result<ImageSize, Error> {
    // The size is unknown after decoding, until a step fixes it.
    let known = steps.iter().fold(None, |size, step| step.output(size));
    known.ok_or_else(|| {
        invalid("samples would come out in different sizes, and a minibatch is one tensor").with_remedy(
            "add random_resized_crop(size), center_crop(size), or resize((height, width)); resize(size) alone keeps \
             each image's aspect ratio",
        )
    })
}
