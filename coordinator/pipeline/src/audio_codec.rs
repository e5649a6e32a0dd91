//! Decoding of WAV and FLAC, whole or in part, to channels of float32.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use coprep_protocol::spec::AudioChannels;
use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::{FormatReader, SeekMode, SeekTo};
use symphonia::core::packet::Packet;
use symphonia::core::units::{Duration, Timestamp};
use symphonia::default::formats::{FlacReader, WavReader};

use crate::audio_stream::{AudioFormat, AudioStream};
use crate::error::{self, Error};

/// Highest sampling rate of a file, in Hz. No recorder goes beyond it, so a higher one is a damaged header.
pub(crate) const MOST_RATE: u32 = 768_000;

/// The facts in the header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AudioHeader {
    /// Samples of each channel in a second.
    pub(crate) rate: u32,
    /// Samples of each channel.
    pub(crate) frames: u64,
    /// Number of channels.
    pub(crate) channels: usize,
}

/// A file whose header was read.
pub(crate) struct OpenAudio<'a> {
    pub(crate) header: AudioHeader,
    stream: AudioStream<'a>,
    reader: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
}

impl<'a> OpenAudio<'a> {
    /// Reads the header of a file.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, Error> {
        guarded(|| Self::read_header(bytes))
    }

    fn read_header(bytes: &'a [u8]) -> Result<Self, Error> {
        let stream = AudioStream::open(bytes)?;
        let reader = reader(&stream)?;
        let track = reader.tracks().first();
        let params = track.and_then(|track| Some((track, track.codec_params.as_ref()?.audio()?)));
        let Some((track, params)) = params else {
            return Err(error::damaged("the file has no audio"));
        };
        let (rate, channels) = (params.sample_rate, params.channels.as_ref());
        let header = AudioHeader {
            rate: rate.unwrap_or(0),
            frames: track.num_frames.unwrap_or(0),
            channels: channels.map_or(0, |channels| channels.count()),
        };
        if header.rate == 0 || header.rate > MOST_RATE || header.channels == 0 {
            return Err(error::damaged(format!(
                "its header tells of {} channels at {} Hz",
                header.channels, header.rate
            )));
        }
        let track = track.id;
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(params, &AudioDecoderOptions::default())
            .map_err(broken)?;
        let mut audio = OpenAudio {
            header,
            stream,
            decoder,
            track,
            reader,
        };
        if header.frames == 0 && audio.stream.format == AudioFormat::Flac {
            audio.header.frames = audio.count_frames()?;
        }
        // Decoded forms are measured in 32 bits.
        if audio.header.frames == 0 || audio.header.frames > u32::MAX.into() {
            return Err(error::unsupported(
                "a file without samples, or with 2^32 or more",
            ));
        }
        Ok(audio)
    }

    /// Returns the number of samples in a FLAC whose header does not say it, because it was written into a pipe.
    fn count_frames(&mut self) -> Result<u64, Error> {
        let last = self.last_packet()?;
        let before = first_frame(&last);
        if last.data.is_empty() {
            return Ok(before);
        }
        let decoded = self.decoder.decode(&last);
        let decoded = decoded.map_err(|_| error::damaged("the file is cut short"))?;
        Ok(before + decoded.frames() as u64)
    }

    /// Returns what follows the last packet of a FLAC that the reader gives. It is empty, or begins with a packet whose end
    /// the reader did not find, since other bytes follow, such as a tag, or since it is cut short.
    fn last_packet(&self) -> Result<Packet, Error> {
        let mut reader = reader(&self.stream)?;
        let (mut bytes, mut frames) = (0, 0);
        // The reader ends with an error where the header promises more.
        while let Ok(Some(packet)) = reader.next_packet() {
            bytes += packet.data.len();
            frames += packet.dur.get();
        }
        let rest = self.stream.samples.get(bytes..).unwrap_or_default();
        let pts = Timestamp::from(i64::try_from(frames).unwrap_or(i64::MAX));
        Ok(Packet::new(self.track, pts, Duration::ZERO, rest))
    }

    /// Returns the next packet, and `true` if it is the last.
    fn next_packet(&mut self, done: u64) -> Result<(Packet, bool), Error> {
        match self.reader.next_packet() {
            Ok(Some(packet)) => return Ok((packet, false)),
            Err(fault) if !is_end(&fault) => return Err(broken(fault)),
            _ => {}
        }
        if self.stream.format == AudioFormat::Flac {
            let last = self.last_packet()?;
            if !last.data.is_empty() {
                return Ok((last, true));
            }
        }
        Err(cut_short(done, self.header.frames))
    }

    /// Decodes the samples `part` of the wanted channels. Afterwards `planes` holds them, one channel after another.
    pub(crate) fn decode(
        &mut self,
        part: Range<u64>,
        channels: AudioChannels,
        scratch: &mut Vec<f32>,
        planes: &mut Vec<f32>,
    ) -> Result<(), Error> {
        guarded(|| self.decode_part(part, channels, scratch, planes))
    }

    fn decode_part(
        &mut self,
        part: Range<u64>,
        channels: AudioChannels,
        scratch: &mut Vec<f32>,
        planes: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let wanted = output_channels(channels, self.header.channels)?;
        let length = (part.end - part.start) as usize;
        planes.clear();
        planes.resize(wanted * length, 0.0);
        if length == 0 {
            return Ok(());
        }
        // The reader is at the beginning after it was opened, so only a later part is looked for.
        if part.start > 0 {
            let ts = Timestamp::from(i64::try_from(part.start).unwrap_or(i64::MAX));
            let track_id = self.track;
            let to = SeekTo::Timestamp { ts, track_id };
            self.reader.seek(SeekMode::Accurate, to).map_err(broken)?;
            self.decoder.reset();
        }
        let mut done = part.start;
        while done < part.end {
            let (packet, is_last) = self.next_packet(done)?;
            let at = first_frame(&packet);
            let decoded = self.decoder.decode(&packet).map_err(|fault| {
                if is_last {
                    cut_short(done, self.header.frames)
                } else {
                    broken(fault)
                }
            })?;
            if decoded.num_planes() != self.header.channels {
                return Err(error::damaged("its number of channels changes"));
            }
            let end = at + decoded.frames() as u64;
            if end <= done && is_last {
                return Err(cut_short(done, self.header.frames));
            }
            // Packets before the part, which a seek may begin with.
            if end <= done {
                continue;
            }
            // A packet that is missing would shift all samples behind it.
            if at > done {
                return Err(error::damaged(format!(
                    "samples {done} to {at} are missing"
                )));
            }
            let packet = PacketPart {
                skip: (done - at) as usize,
                take: (end.min(part.end) - done) as usize,
                to: (done - part.start) as usize,
                length,
            };
            packet.copy(&decoded, channels, scratch, planes);
            done = end;
        }
        Ok(())
    }
}

/// Runs a step of the decoder. Its arithmetic with the numbers of a damaged header may overflow or divide by zero, which
/// panics. Such a file is damaged, and the decoder is not used again.
fn guarded<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let caught = catch_unwind(AssertUnwindSafe(step));
    caught.unwrap_or_else(|_| Err(error::damaged("the numbers in it contradict each other")))
}

/// The part of a packet that is wanted, and its place in planes of `length` samples.
struct PacketPart {
    skip: usize,
    take: usize,
    to: usize,
    length: usize,
}

impl PacketPart {
    fn copy(
        &self,
        decoded: &GenericAudioBufferRef<'_>,
        channels: AudioChannels,
        scratch: &mut Vec<f32>,
        planes: &mut [f32],
    ) {
        let stored = decoded.num_planes();
        decoded.copy_to_vec_interleaved::<f32>(scratch);
        let from = self.skip * stored..(self.skip + self.take) * stored;
        let frames = scratch[from].chunks_exact(stored);
        let plane = |number: usize| number * self.length + self.to;
        match channels {
            AudioChannels::Mixed => {
                let mean = |frame: &[f32]| frame.iter().sum::<f32>() / stored as f32;
                let out = &mut planes[plane(0)..][..self.take];
                out.iter_mut()
                    .zip(frames)
                    .for_each(|(x, frame)| *x = mean(frame));
            }
            AudioChannels::One(channel) => {
                let out = &mut planes[plane(0)..][..self.take];
                let channel = usize::from(channel);
                out.iter_mut()
                    .zip(frames)
                    .for_each(|(x, frame)| *x = frame[channel]);
            }
            AudioChannels::All(count) => {
                for channel in 0..usize::from(count) {
                    let out = &mut planes[plane(channel)..][..self.take];
                    let samples = frames.clone().map(|frame| frame[channel]);
                    out.iter_mut()
                        .zip(samples)
                        .for_each(|(x, sample)| *x = sample);
                }
            }
        }
    }
}

/// Returns the number of channels that are kept of `stored` ones.
fn output_channels(channels: AudioChannels, stored: usize) -> Result<usize, Error> {
    match channels {
        AudioChannels::Mixed => Ok(1),
        AudioChannels::One(channel) if usize::from(channel) < stored => Ok(1),
        AudioChannels::All(count) if usize::from(count) == stored => Ok(stored),
        AudioChannels::One(channel) => Err(error::other_channels(format!(
            "it has {stored} channels, and channel={channel} is wanted, counted from 0"
        ))),
        AudioChannels::All(count) => Err(error::other_channels(format!(
            "it has {stored} channels, and channels={count} are wanted"
        ))),
    }
}

fn reader<'a>(stream: &AudioStream<'a>) -> Result<Box<dyn FormatReader + 'a>, Error> {
    let (bytes, options) = (stream.bytes(), Default::default());
    Ok(match stream.format {
        AudioFormat::Wav => Box::new(WavReader::try_new(bytes, options).map_err(broken)?),
        AudioFormat::Flac => Box::new(FlacReader::try_new(bytes, options).map_err(broken)?),
    })
}

/// Returns the number of the first sample in a packet.
fn first_frame(packet: &Packet) -> u64 {
    u64::try_from(packet.pts.get()).unwrap_or(0)
}

fn is_end(fault: &Fault) -> bool {
    matches!(fault, Fault::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof)
}

fn cut_short(done: u64, frames: u64) -> Error {
    error::damaged(format!(
        "the file is cut short: it ends after {done} of {frames} samples"
    ))
}

/// Converts an error of the decoder.
fn broken(fault: Fault) -> Error {
    match fault {
        Fault::Unsupported(what) => error::unsupported(what),
        fault if is_end(&fault) => error::damaged("the file is cut short"),
        other => error::damaged(other),
    }
}
