//! Preparation of audio: decoding, resampling, one crop, and a log-mel spectrogram.
//!
//! Parts that the crop does not need are neither decoded nor resampled. A sample that is prepared from its file is the same, bit
//! for bit, as one that is prepared from its decoded form, which is the resampled waveform.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use coprep_costs::MeasuredTimes;
use coprep_protocol::spec::{AudioChannels, Dtype, Field, Op};

use crate::audio_codec::{AudioHeader, OpenAudio};
use crate::crop::DecodedShape;
use crate::error::{self, Error, invalid};
use crate::mel::{MelScratch, MelTransform};
use crate::resample::{Resampler, output_frames};
use crate::rng::{Rng, SampleKey};
use crate::run::{DecodedView, Picture, PipelineRun, check_slot};

/// Tables of kernels that a thread keeps. A dataset has files of few rates.
const MOST_RESAMPLERS: usize = 8;

/// Operators of audio, in their one order.
#[derive(Clone, Debug)]
pub(crate) struct AudioPipeline {
    channels: AudioChannels,
    max_samples: u64,
    /// The rate that all samples get, in Hz. `None` leaves each as it is.
    rate: Option<u32>,
    crop: AudioCrop,
    mel: Option<Arc<MelTransform>>,
}

#[derive(Clone, Copy, Debug)]
struct AudioCrop {
    samples: u32,
    is_random: bool,
}

/// Memory of one worker thread for audio, used again for every sample.
#[derive(Default)]
pub(crate) struct AudioScratch {
    resamplers: Vec<Arc<Resampler>>,
    /// A decoded packet.
    packet: Vec<f32>,
    /// Decoded channels, one after another.
    decoded: Vec<f32>,
    /// Channels after resampling and the crop, one after another.
    cropped: Vec<f32>,
    mel: MelScratch,
}

impl AudioPipeline {
    /// Compiles operators whose order was checked.
    ///
    /// # Errors
    /// If no crop fixes the length.
    pub(crate) fn compile(ops: &[Op]) -> Result<Self, Error> {
        let mut pipeline = AudioPipeline {
            channels: AudioChannels::Mixed,
            max_samples: 0,
            rate: None,
            crop: AudioCrop {
                samples: 0,
                is_random: false,
            },
            mel: None,
        };
        for op in ops {
            pipeline.add(op)?;
        }
        if pipeline.crop.samples == 0 {
            let what = "samples would come out in different lengths, and a minibatch is one tensor";
            return Err(invalid(what).with_remedy("add random_crop(...) or crop(...)"));
        }
        Ok(pipeline)
    }

    fn add(&mut self, op: &Op) -> Result<(), Error> {
        match op {
            Op::DecodeAudio {
                channels,
                max_samples,
            } => {
                self.channels = *channels;
                self.max_samples = *max_samples;
            }
            Op::Resample { rate } => self.rate = Some(*rate),
            Op::RandomCrop { samples } | Op::Crop { samples } => {
                self.crop = AudioCrop {
                    samples: *samples,
                    is_random: op.is_random(),
                }
            }
            Op::LogMel(shape) => {
                let rate = self
                    .rate
                    .ok_or_else(|| invalid("log_mel() needs resample()"))?;
                self.mel = Some(Arc::new(MelTransform::new(*shape, rate)));
            }
            other => return Err(invalid(format!("{}() is not for audio", other.name()))),
        }
        Ok(())
    }

    pub(crate) fn output(&self) -> Field {
        let channels = u32::from(self.kept_channels());
        let shape = match &self.mel {
            None => vec![channels, self.crop.samples],
            Some(mel) => [&[channels][..], &mel.output(self.crop.samples)].concat(),
        };
        Field {
            name: "audio".into(),
            dtype: Dtype::F32,
            shape,
        }
    }

    pub(crate) fn is_deterministic(&self) -> bool {
        !self.crop.is_random
    }

    fn kept_channels(&self) -> u16 {
        match self.channels {
            AudioChannels::All(count) => count,
            AudioChannels::Mixed | AudioChannels::One(_) => 1,
        }
    }

    /// Reads the header of a file, and refuses one that is too long, before memory is taken for its samples.
    fn open<'a>(&self, encoded: &'a [u8]) -> Result<OpenAudio<'a>, Error> {
        let audio = OpenAudio::open(encoded)?;
        let AudioHeader { rate, frames, .. } = audio.header;
        // The waveform takes memory before resampling and after it.
        let longest = frames.max(output_frames(frames, rate, self.rate.unwrap_or(rate)));
        if longest > self.max_samples {
            return Err(error::too_long(longest, self.max_samples));
        }
        Ok(audio)
    }

    /// Returns the sizes that the header tells.
    pub(crate) fn inspect(&self, encoded: &[u8]) -> Result<Picture, Error> {
        let header = self.open(encoded)?.header;
        let kept = self.kept_form(self.resampled_frames(&header));
        let width = u32::try_from(kept.end - kept.start).unwrap_or(u32::MAX);
        Ok(Picture {
            pixels: header.frames.saturating_mul(header.channels as u64),
            decoded: DecodedShape {
                // A crop from the beginning is part of the decoded form, with its padding.
                width: if self.crop.is_random {
                    width
                } else {
                    self.crop.samples
                },
                height: self.kept_channels().into(),
                pixel_bytes: size_of::<f32>() as u32,
            },
        })
    }

    fn resampled_frames(&self, header: &AudioHeader) -> u64 {
        let rate = self.rate.unwrap_or(header.rate);
        output_frames(header.frames, header.rate, rate)
    }

    /// Returns the part of `frames` resampled samples that the decoded form holds.
    fn kept_form(&self, frames: u64) -> Range<u64> {
        if self.crop.is_random {
            0..frames
        } else {
            0..frames.min(self.crop.samples.into())
        }
    }

    /// Returns the part of `frames` resampled samples that a preparation needs.
    fn draw(&self, frames: u64, key: SampleKey) -> Range<u64> {
        let spare = frames.saturating_sub(self.crop.samples.into());
        let start = if self.crop.is_random {
            // A resampled file may be longer than 32 bits count. Its end is then never drawn.
            u64::from(Rng::new(key).below(u32::try_from(spare + 1).unwrap_or(u32::MAX)))
        } else {
            0
        };
        start..frames.min(start + u64::from(self.crop.samples))
    }

    pub(crate) fn decode_into(
        &self,
        encoded: &[u8],
        scratch: &mut AudioScratch,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let mut audio = self.open(encoded)?;
        let part = self.kept_form(self.resampled_frames(&audio.header));
        let width = if self.crop.is_random {
            (part.end - part.start) as usize
        } else {
            self.crop.samples as usize
        };
        let wanted = width * usize::from(self.kept_channels()) * size_of::<f32>();
        if out.len() != wanted {
            return Err(error::wrong_length("decoded form", wanted, out.len()));
        }
        self.cut(&mut audio, part, width, scratch)?;
        write(&scratch.cropped, out);
        Ok(())
    }

    pub(crate) fn prepare_encoded<'s>(
        &self,
        encoded: &[u8],
        key: SampleKey,
        scratch: &mut AudioScratch,
        slot: impl FnOnce() -> &'s mut [u8],
    ) -> Result<PipelineRun, Error> {
        let began = Instant::now();
        let mut audio = self.open(encoded)?;
        let header = audio.header;
        let part = self.draw(self.resampled_frames(&header), key);
        self.cut(&mut audio, part, self.crop.samples as usize, scratch)?;
        let decoded = Instant::now();
        self.finish(scratch, slot())?;
        Ok(PipelineRun {
            times: MeasuredTimes {
                decode: MeasuredTimes::stage(decoded - began),
                random: MeasuredTimes::stage(decoded.elapsed()),
                ..MeasuredTimes::default()
            },
            pixels: header.frames.saturating_mul(header.channels as u64),
        })
    }

    pub(crate) fn prepare_decoded<'s>(
        &self,
        view: DecodedView<'_>,
        key: SampleKey,
        scratch: &mut AudioScratch,
        slot: impl FnOnce() -> &'s mut [u8],
    ) -> Result<PipelineRun, Error> {
        let began = Instant::now();
        let (frames, channels) = (view.width as usize, usize::from(self.kept_channels()));
        let wanted = frames * channels * size_of::<f32>();
        if view.height as usize != channels || view.pixels.len() != wanted || wanted == 0 {
            return Err(error::wrong_length(
                "decoded form",
                wanted,
                view.pixels.len(),
            ));
        }
        let part = self.draw(frames as u64, key);
        let length = self.crop.samples as usize;
        scratch.cropped.clear();
        scratch.cropped.resize(channels * length, 0.0);
        let (stored, _) = view.pixels.as_chunks::<4>();
        for (plane, out) in stored
            .chunks_exact(frames)
            .zip(scratch.cropped.chunks_exact_mut(length))
        {
            let samples = &plane[part.start as usize..part.end as usize];
            out.iter_mut()
                .zip(samples)
                .for_each(|(to, x)| *to = f32::from_ne_bytes(*x));
        }
        self.finish(scratch, slot())?;
        Ok(PipelineRun {
            times: MeasuredTimes {
                random: MeasuredTimes::stage(began.elapsed()),
                ..MeasuredTimes::default()
            },
            pixels: 0,
        })
    }

    /// Decodes and resamples the part of the resampled waveform, into channels of `length` samples in
    /// [`AudioScratch::cropped`]. What the part lacks is zero.
    fn cut(
        &self,
        audio: &mut OpenAudio<'_>,
        part: Range<u64>,
        length: usize,
        scratch: &mut AudioScratch,
    ) -> Result<(), Error> {
        let header = audio.header;
        let resampler = match self.rate.filter(|&rate| rate != header.rate) {
            Some(rate) => Some(scratch.resampler(header.rate, rate)?),
            None => None,
        };
        let needed = match &resampler {
            Some(resampler) => resampler.input(&part, header.frames),
            None => part.clone(),
        };
        let AudioScratch {
            packet,
            decoded,
            cropped,
            ..
        } = scratch;
        audio.decode(needed.clone(), self.channels, packet, decoded)?;
        let channels = usize::from(self.kept_channels());
        cropped.clear();
        cropped.resize(channels * length, 0.0);
        let found = decoded.len() / channels;
        let wanted = (part.end - part.start) as usize;
        for (number, out) in cropped.chunks_exact_mut(length.max(1)).enumerate() {
            let plane = &decoded[number * found..][..found];
            match &resampler {
                Some(resampler) => {
                    resampler.run(plane, needed.start, part.start, &mut out[..wanted]);
                }
                None => out[..wanted].copy_from_slice(plane),
            }
        }
        Ok(())
    }

    /// Writes the channels in [`AudioScratch::cropped`], or their spectrograms, into the slot.
    fn finish(&self, scratch: &mut AudioScratch, slot: &mut [u8]) -> Result<(), Error> {
        let channels = usize::from(self.kept_channels());
        check_slot(slot, self.output().sample_bytes())?;
        let Some(mel) = &self.mel else {
            write(&scratch.cropped, slot);
            return Ok(());
        };
        let planes = scratch.cropped.chunks_exact(self.crop.samples as usize);
        let parts = slot.chunks_exact_mut(slot.len() / channels);
        for (plane, out) in planes.zip(parts) {
            mel.run(plane, &mut scratch.mel, out);
        }
        Ok(())
    }
}

impl AudioScratch {
    /// Returns the kernels between two rates, which are computed when they are first needed.
    fn resampler(&mut self, from: u32, to: u32) -> Result<Arc<Resampler>, Error> {
        let found = self.resamplers.iter().find(|r| r.rates == (from, to));
        if let Some(found) = found {
            return Ok(found.clone());
        }
        if self.resamplers.len() == MOST_RESAMPLERS {
            self.resamplers.remove(0);
        }
        let new = Arc::new(Resampler::new(from, to)?);
        self.resamplers.push(new.clone());
        Ok(new)
    }
}

fn write(samples: &[f32], out: &mut [u8]) {
    let (slots, _) = out.as_chunks_mut::<4>();
    slots
        .iter_mut()
        .zip(samples)
        .for_each(|(slot, x)| *slot = x.to_ne_bytes());
}
