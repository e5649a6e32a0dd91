//! WAV and FLAC files as their decoder reads them: a plain header that is written anew, and the bytes of the samples.
//!
//! Programs that write into a pipe do not know the length, others never come back to write it, and tags and chunks of
//! any kind lie around the samples. The decoder's own readers believe what a header says. Here the bytes of the file
//! count, as in libsndfile, and the decoder sees nothing of a header but what it needs.

use std::io::{Cursor, Read, Seek, SeekFrom};

use symphonia::core::io::{MediaSource, MediaSourceStream};

use crate::MOST_BYTES;
use crate::chunks::array;
use crate::error::{self, Error};
use crate::header;

/// A format of audio that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AudioFormat {
    Wav,
    Flac,
}

/// A file, without all that the decoder does not need.
#[derive(Clone, Debug)]
pub(crate) struct AudioStream<'a> {
    pub(crate) format: AudioFormat,
    header: Vec<u8>,
    /// The encoded samples, and whatever follows them in the file.
    pub(crate) samples: &'a [u8],
}

impl<'a> AudioStream<'a> {
    /// Finds the samples of a file, and what its header says of them.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, Error> {
        let bytes = without_id3(bytes);
        match bytes {
            [b'f', b'L', b'a', b'C', blocks @ ..] => flac(blocks),
            [] => Err(error::not_audio("the file is empty")),
            _ if is_wave(bytes) => wav(bytes),
            _ => Err(error::not_audio(format!(
                "not a known audio format (the file starts with {})",
                header::start(bytes)
            ))),
        }
    }

    /// Returns the bytes from their beginning.
    pub(crate) fn bytes(&self) -> MediaSourceStream<'a> {
        let source = Spliced {
            header: self.header.clone(),
            samples: self.samples,
            at: 0,
        };
        MediaSourceStream::new(Box::new(source), Default::default())
    }
}

/// Skips the ID3v2 tags that some programs write before any format. A length in them has 7 bits a byte.
fn without_id3(mut bytes: &[u8]) -> &[u8] {
    while let [b'I', b'D', b'3', _, _, flags, a, b, c, d, rest @ ..] = bytes {
        let length = [a, b, c, d]
            .iter()
            .fold(0, |sum, &&byte| sum << 7 | usize::from(byte & 0x7f));
        let footer = if flags & 0x10 != 0 { 10 } else { 0 };
        bytes = rest.get(length + footer..).unwrap_or_default();
    }
    bytes
}

/// Returns `true` for RIFF and for RF64, whose sizes have 64 bits.
fn is_wave(bytes: &[u8]) -> bool {
    let magic = array(bytes, 0);
    let is_riff = [*b"RIFF", *b"RF64", *b"BW64"].map(Some).contains(&magic);
    is_riff && array(bytes, 8) == Some(*b"WAVE")
}

/// Reads a WAV up to its samples.
fn wav(bytes: &[u8]) -> Result<AudioStream<'_>, Error> {
    let number = |at| array(bytes, at).map(u32::from_le_bytes);
    let mut format = None;
    let mut long_size = None;
    let mut at = 12;
    while let (Some(name), Some(size)) = (array::<4>(bytes, at), number(at + 4)) {
        let (body, length) = (at + 8, size as usize);
        match &name {
            b"fmt " => {
                format = Some(WavFormat::read(
                    &bytes[body..bytes.len().min(body + length)],
                )?)
            }
            // Programs that write into a pipe leave zeros there.
            b"ds64" if array(bytes, body) != Some([0; 16]) => {
                long_size = array(bytes, body + 8).map(u64::from_le_bytes);
            }
            b"data" => {
                let format =
                    format.ok_or_else(|| error::damaged("it has no format before its samples"))?;
                let promised = long_size
                    .filter(|_| size == u32::MAX)
                    .unwrap_or(size.into());
                let length = wav_length(bytes, body, promised);
                return Ok(AudioStream {
                    format: AudioFormat::Wav,
                    header: format.header(length as u32),
                    samples: &bytes[body..],
                });
            }
            _ => {}
        }
        // A chunk of odd length has a byte of padding.
        at = body + length.next_multiple_of(2);
    }
    Err(error::damaged("it has no samples (no \"data\" chunk)"))
}

/// Returns the length of the samples at `body`, of which the header promises `promised` bytes.
fn wav_length(bytes: &[u8], body: usize, promised: u64) -> u64 {
    let there = (bytes.len() - body) as u64;
    let end_of_file = array(bytes, 4).map_or(0, |size| u64::from(u32::from_le_bytes(size)) + 8);
    let was_never_closed = promised == 0 && end_of_file <= body as u64;
    // No file is so long, so it is what programs write that do not know the length yet.
    let is_unknown = promised > MOST_BYTES;
    // Only where the length of the whole file says the same do bytes lack. Otherwise the promise is wrong.
    let is_wrong = promised > there && end_of_file <= bytes.len() as u64;
    if was_never_closed || is_unknown || is_wrong {
        there
    } else {
        promised
    }
}

/// The encoding of a WAV's samples.
#[derive(Clone, Copy, Debug)]
struct WavFormat {
    tag: u16,
    channels: u16,
    rate: u32,
    /// Bytes of a sample of one channel.
    bytes: u16,
}

impl WavFormat {
    const PCM: u16 = 1;
    const FLOAT: u16 = 3;
    const A_LAW: u16 = 6;
    const MU_LAW: u16 = 7;
    const EXTENSIBLE: u16 = 0xfffe;
    /// Most channels that the decoder has names for.
    const MOST_CHANNELS: u16 = 26;

    /// Reads the body of a "fmt " chunk.
    fn read(body: &[u8]) -> Result<Self, Error> {
        let number = |at| array(body, at).map(u16::from_le_bytes);
        let fields = [0, 2, 12, 14].map(number);
        let rate = array(body, 4).map(u32::from_le_bytes);
        let ([Some(tag), Some(channels), Some(block), Some(bits)], Some(rate)) = (fields, rate)
        else {
            return Err(error::damaged("it has no format that is whole"));
        };
        let tag = if tag == Self::EXTENSIBLE {
            extended_tag(body).unwrap_or(tag)
        } else {
            tag
        };
        let format = WavFormat {
            tag,
            channels,
            rate,
            bytes: bits.div_ceil(8),
        };
        let is_known = match tag {
            Self::PCM => (8..=32).contains(&bits),
            Self::FLOAT => matches!(bits, 32 | 64),
            Self::A_LAW | Self::MU_LAW => bits == 8,
            _ => false,
        };
        if !is_known || channels > Self::MOST_CHANNELS {
            return Err(error::unsupported(format!(
                "a WAV of format {tag:04x} (hexadecimal) with {bits} bits and {channels} channels (PCM of 8 to 32 bits, \
                 float of 32 and 64 bits, A-law and mu-law of up to {} channels are decoded)",
                Self::MOST_CHANNELS
            )));
        }
        // A block of 0 is one that the program did not write.
        if block != 0 && block != channels * format.bytes {
            return Err(error::unsupported(format!(
                "a WAV with {bits} bits a sample, {channels} channels and {block} bytes a block, which contradict each \
                 other: programs read different samples from it"
            )));
        }
        Ok(format)
    }

    /// Returns the header of a WAV with `length` bytes of samples, in the one form that the decoder takes for every tag.
    fn header(self, length: u32) -> Vec<u8> {
        let Self {
            tag,
            channels,
            rate,
            bytes,
        } = self;
        let block = channels * bytes;
        let per_second = rate.wrapping_mul(block.into());
        [
            b"RIFF",
            &length.saturating_add(38).to_le_bytes(),
            b"WAVE",
            b"fmt ",
            &18u32.to_le_bytes(),
            &tag.to_le_bytes()[..],
            &channels.to_le_bytes(),
            &rate.to_le_bytes(),
            &per_second.to_le_bytes(),
            &block.to_le_bytes(),
            &(bytes * 8).to_le_bytes(),
            &[0, 0],
            b"data",
            &length.to_le_bytes(),
        ]
        .concat()
    }
}

/// Returns the tag within WAVE_FORMAT_EXTENSIBLE, or `None` if its GUID is not made of a tag.
fn extended_tag(body: &[u8]) -> Option<u16> {
    const OF_TAGS: [u8; 14] = *b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71";
    const OF_AMBISONICS: [u8; 14] = *b"\0\0\x21\x07\xd3\x11\x86\x44\xc8\xc1\xca\0\0\0";
    let tag = array(body, 24).map(u16::from_le_bytes);
    tag.filter(|_| matches!(array(body, 26), Some(OF_TAGS | OF_AMBISONICS)))
}

/// Reads the metadata blocks of a FLAC, which follow its first four bytes. The decoder gets STREAMINFO alone.
fn flac(mut blocks: &[u8]) -> Result<AudioStream<'_>, Error> {
    const STREAMINFO: u8 = 0;
    let mut info = None;
    loop {
        let block = blocks
            .split_first_chunk()
            .and_then(|([kind, a, b, c], rest)| {
                let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                Some((*kind, rest.split_at_checked(length)?))
            });
        let Some((kind, (body, rest))) = block else {
            return Err(error::damaged("the file is cut short in its header"));
        };
        if kind & 0x7f == STREAMINFO {
            info = info.or(body.first_chunk::<34>());
        }
        blocks = rest;
        if kind & 0x80 != 0 {
            break;
        }
    }
    let info = info.ok_or_else(|| error::damaged("its header has no STREAMINFO block"))?;
    Ok(AudioStream {
        format: AudioFormat::Flac,
        header: flac_header(info, blocks),
        samples: blocks,
    })
}

/// Returns the header of a FLAC whose only metadata block is STREAMINFO (RFC 9639, section 8.2), without the fields that
/// the decoder can do without: sizes of frames and a checksum.
fn flac_header(info: &[u8; 34], frames: &[u8]) -> Vec<u8> {
    let longest = [info[2], info[3]];
    // The decoder takes blocks for fixed if the shortest is as long as the longest. Their frames say it, and the header
    // of some programs has the length of the last block or 0 here.
    let is_variable = frames.get(1).is_some_and(|byte| byte & 1 == 1);
    let shortest = if is_variable { [0, 16] } else { longest };
    let no_sizes = [0; 6];
    let no_checksum = [0; 16];
    [
        b"fLaC\x80\0\0\x22",
        &shortest[..],
        &longest,
        &no_sizes,
        &info[10..18],
        &no_checksum,
    ]
    .concat()
}

/// A header and samples that lie elsewhere, as one file.
struct Spliced<'a> {
    header: Vec<u8>,
    samples: &'a [u8],
    at: u64,
}

impl Spliced<'_> {
    fn length(&self) -> u64 {
        (self.header.len() + self.samples.len()) as u64
    }
}

impl Read for Spliced<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let mut part = Cursor::new(&self.header[..]);
        part.set_position(self.at);
        let mut read = part.read(out)?;
        if read == 0 {
            let mut part = Cursor::new(self.samples);
            part.set_position(self.at.saturating_sub(self.header.len() as u64));
            read = part.read(out)?;
        }
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Spliced<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.length().checked_add_signed(by),
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl MediaSource for Spliced<'_> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.length())
    }
}
