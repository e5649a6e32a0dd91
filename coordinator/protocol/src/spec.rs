//! Pipelines as a job describes them: a source of samples and the operators that prepare one.
//!
//! A [`PipelineSpec`] is plain data. Two jobs whose specs have the same [`PipelineSpec::fingerprint`] prepare the same
//! tensors and can share a stream. The crate `coprep-pipeline` compiles a spec into something that runs.

use std::fmt;

use rkyv::rancor::{Panic, ResultExt};
use rkyv::{Archive, Deserialize, Serialize};

/// A source of samples. Ids are positions in this source, `0..len`.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Source {
    /// A folder with one subfolder per class, as in `torchvision.datasets.ImageFolder`: classes in
    /// lexicographic order, samples in the order of (class, path).
    ImageFolder {
        /// Absolute path of the root folder, or its URL: see [`crate::dataset_url`].
        root: String,
    },
    /// An explicit list of image files with integer labels.
    Files(FileList),
    /// A dataset in the job's own code.
    UserCode(UserDataset),
    /// Tar files in the layout of WebDataset.
    TarShards(TarShards),
    /// Windows of files of integers.
    Tokens(TokenFiles),
    /// Rows of `.npy` files.
    Arrays(ArrayFiles),
    /// A folder of audio files with one subfolder per class, listed like [`Source::ImageFolder`].
    AudioFolder {
        /// Absolute path of the root folder, or its URL.
        root: String,
    },
    /// Rows of parquet files.
    Parquet(ParquetFiles),
}

impl Source {
    /// Returns the folder, or the files, that the samples lie in, as paths or URLs. Empty for a dataset of the job's own code.
    #[must_use]
    pub fn locations(&self) -> &[String] {
        match self {
            Source::ImageFolder { root } | Source::AudioFolder { root } => {
                std::slice::from_ref(root)
            }
            Source::Files(list) => &list.paths,
            Source::TarShards(list) => &list.shards,
            Source::Parquet(list) => &list.files,
            Source::Tokens(list) => &list.files,
            Source::Arrays(list) => &list.files,
            Source::UserCode(_) => &[],
        }
    }
}

/// Files of integers without structure, such as the tokens of a text. A sample is a window of them: `window` tokens that
/// begin at token 0, `stride`, 2 `stride` and so on of a file. No window spans two files. Ids follow (file, position).
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct TokenFiles {
    /// Absolute paths, or URLs, without braces.
    pub files: Vec<String>,
    /// Type of the tokens in the files, in little-endian byte order.
    pub dtype: Dtype,
    /// Type of the tokens in a batch: `dtype`, or a wider one.
    pub out: Dtype,
    /// Tokens of a sample.
    pub window: u32,
    /// Tokens from the beginning of one window to the next.
    pub stride: u32,
    /// Bytes of a header at the beginning of each file. `None`: the files are looked at, and those of another format
    /// refused.
    pub offset: Option<u64>,
    /// Rule for the tokens behind the last whole stride of a file.
    pub tail: Tail,
}

/// Rule for the tokens at the end of a file that do not fill another window.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// They are left out.
    Drop,
    /// One more window ends at the end of the file, and overlaps the window before it by more than the others.
    Overlap,
}

/// `.npy` files whose rows are samples. All have one element type, and rows of one shape. Ids follow (file, row).
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
pub struct ArrayFiles {
    /// Absolute paths, or URLs, without braces.
    pub files: Vec<String>,
    /// One label for each row of all files, or empty. Without labels a batch has none.
    pub labels: Vec<i64>,
}

/// Tar files in the layout of WebDataset: consecutive files whose names agree up to the first dot are one sample. Ids
/// follow (shard, position in the shard).
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
pub struct TarShards {
    /// Absolute paths, or URLs, without braces.
    pub shards: Vec<String>,
    /// Endings of the image's name, separated by semicolons. The first one that a sample has is its image.
    pub image: String,
    /// Ending of the name of a file that holds the label, an integer in text. After a colon, the integer field of a JSON
    /// file. `None` for no labels (then every label is 0).
    pub label: Option<String>,
}

/// Parquet files with a column of images. Ids follow (file, row).
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
pub struct ParquetFiles {
    /// Absolute paths, or URLs, without braces.
    pub files: Vec<String>,
    /// Column of binary values, or of structs with the field `bytes`. Fields of structs follow a dot.
    pub image: String,
    /// Column of integers. `None` for no labels (then every label is 0).
    pub label: Option<String>,
}

/// A dataset of the job's own code. These fields are its identity. The way to run it travels separately, in
/// [`crate::message::Attach::code`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct UserDataset {
    /// Name of the class, for people.
    pub name: String,
    /// Number of samples, or `None` if only its workers know it.
    pub samples: Option<u32>,
    /// Identity of the part of a sample that may be cached.
    pub dataset: Vec<IdentityPart>,
    /// Identity of the rest: the random transform and the collation.
    pub rest: Vec<IdentityPart>,
    /// `true` if there is a deterministic part that may be cached apart from the rest.
    pub split: bool,
    /// `true` if the jobs make the samples themselves. They are then given ids, and the visit numbers that determine
    /// their random numbers.
    pub in_job: bool,
    /// `true` if the dataset can only be iterated. One worker, the reader, iterates it anew in each epoch. Each batch
    /// that it yields is a sample, and the ids count these samples. The reader reports the end of the epoch
    /// ([`Raised::END`](crate::code::Raised::END)). Such a dataset is for jobs of one rank in a cohort, with batches of
    /// one such sample.
    pub is_iterated: bool,
    /// The working directory of the job. It is no part of a fingerprint, see [`WorkingDirectory`].
    pub directory: WorkingDirectory,
}

/// A named part of an identity.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct IdentityPart {
    /// Name of the part, for people: `dataset.root`, `transform`.
    pub name: String,
    /// Hash of the part's content.
    pub hash: u128,
    /// The content, for people. Empty if it is long, or may be a secret. It is no part of a fingerprint.
    pub value: String,
    /// Why the part counts, for people: `read in data.py:41 (augment)`. It is no part of a fingerprint.
    pub why: String,
}

/// The working directory of a job. Relative paths lead elsewhere in another one.
///
/// Whether a path leads anywhere may change while jobs run, for example because the first one writes a file. Jobs of one
/// directory must share nevertheless. So the directory counts as it did for the first job of that directory.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingDirectory {
    /// Hash of its path.
    pub hash: u128,
    /// `true` if a string that the dataset holds or its code names is a relative path that leads to something.
    pub is_used: bool,
}

/// Image files by path, with one label each.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
pub struct FileList {
    /// Absolute paths, by [`dataset_path::text_of`](crate::dataset_path::text_of), or URLs. The position of a path is the
    /// sample id.
    pub paths: Vec<String>,
    /// One label per path, or empty (then every label is 0).
    pub labels: Vec<i64>,
}

/// Method of interpolating pixels. Downscaling is always antialiased, as in Pillow.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Nearest neighbour.
    Nearest,
    /// Triangle filter (Pillow's `BILINEAR`).
    Bilinear,
    /// Catmull-Rom (Pillow's `BICUBIC`, a = -0.5).
    Bicubic,
}

/// The target of a resize.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTo {
    /// The shorter side gets this many pixels, the aspect ratio stays.
    Shorter(u32),
    /// Exactly `height` x `width` pixels.
    Exact {
        /// Height in pixels.
        height: u32,
        /// Width in pixels.
        width: u32,
    },
}

/// The channels of a sample of audio.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudioChannels {
    /// One channel, the mean of those in the file.
    Mixed,
    /// The channel with this number, counted from 0.
    One(u16),
    /// All of them, which must be so many.
    All(u16),
}

/// A mel spectrogram, as `torchaudio.transforms.MelSpectrogram` defines it with its other arguments left out.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub struct LogMel {
    /// Samples of a Fourier transform.
    pub n_fft: u32,
    /// Samples of the Hann window, at most `n_fft`.
    pub win_length: u32,
    /// Samples from one frame to the next.
    pub hop_length: u32,
    /// Number of mel bands.
    pub n_mels: u32,
    /// Lowest frequency, in Hz.
    pub f_min: f32,
    /// Highest frequency, in Hz, or `None` for half the sampling rate.
    pub f_max: Option<f32>,
    /// Smallest value that a logarithm is taken of.
    pub floor: f32,
}

/// One step of preparation, in the order of application.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Op {
    /// Decodes the file to 8-bit RGB. Must be the first operator.
    Decode {
        /// `true` if the image is turned as its EXIF tag says. Off by default, as in torchvision.
        apply_exif_orientation: bool,
        /// Largest number of pixels of a file. A larger image is refused, as a decompression bomb.
        max_pixels: u64,
        /// `true` if the JPEG decoder may scale by 1/2, 1/4 or 1/8 where the sample will be made smaller anyway. This
        /// is faster, but pixels differ slightly from decoding in full and resizing.
        scaled: bool,
    },
    /// Reads the file as a `.npy` array. Must be the only operator. All files have the type and shape of the first.
    DecodeNpy,
    /// Decodes a WAV or FLAC file to float32 samples from -1 to 1. Must be the first operator.
    DecodeAudio {
        /// The channels of a sample.
        channels: AudioChannels,
        /// Most samples of a channel of a file. A longer file is refused.
        max_samples: u64,
    },
    /// Resamples audio. Comes right after decoding. Deterministic.
    Resample {
        /// Samples of each channel in a second, for all files.
        rate: u32,
    },
    /// Cuts out a random part of audio, padded with zeros at the end where it is shorter.
    RandomCrop {
        /// Length, in samples after [`Op::Resample`].
        samples: u32,
    },
    /// Cuts out the beginning of audio, padded with zeros at the end where it is shorter. Deterministic.
    Crop {
        /// Length, in samples after [`Op::Resample`].
        samples: u32,
    },
    /// Computes the logarithm of a mel spectrogram. Must be the last operator.
    LogMel(LogMel),
    /// Resizes the image. Deterministic.
    Resize {
        /// Target size.
        to: ResizeTo,
        /// Interpolation filter.
        interpolation: Interpolation,
    },
    /// Cuts out the centre, padding with zeros where the image is smaller. Deterministic.
    CenterCrop {
        /// Height in pixels.
        height: u32,
        /// Width in pixels.
        width: u32,
    },
    /// Crops a random area and aspect ratio, then resizes (`torchvision.transforms.RandomResizedCrop`).
    RandomResizedCrop {
        /// Height in pixels.
        height: u32,
        /// Width in pixels.
        width: u32,
        /// Lower and upper bound of the area's share of the image.
        scale: (f32, f32),
        /// Lower and upper bound of width / height.
        ratio: (f32, f32),
        /// Interpolation filter.
        interpolation: Interpolation,
    },
    /// Mirrors left to right with probability `p`.
    RandomHorizontalFlip {
        /// Probability in 0..=1.
        p: f32,
    },
    /// Computes `(x / 255 - mean) / std` per channel. The output is float32. Must be the last operator.
    Normalize {
        /// Mean per channel, in units of 0..1.
        mean: [f32; 3],
        /// Standard deviation per channel, in units of 0..1.
        std: [f32; 3],
    },
}

impl Op {
    /// Returns `true` if the operator draws random numbers. The result of everything before the first random operator
    /// may be cached as the *decoded* form.
    #[must_use]
    pub fn is_random(&self) -> bool {
        matches!(
            self,
            Op::RandomResizedCrop { .. } | Op::RandomHorizontalFlip { .. } | Op::RandomCrop { .. }
        )
    }

    fn with_scaled(&self, is_scaled: bool) -> Op {
        let mut op = self.clone();
        if let Op::Decode { scaled, .. } = &mut op {
            *scaled = is_scaled;
        }
        op
    }
}

/// A source and its operators.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct PipelineSpec {
    /// Source of the samples.
    pub source: Source,
    /// Operators in order. The first decodes. Tokens and rows of arrays have none.
    pub ops: Vec<Op>,
}

/// Default of [`Op::Decode::max_pixels`]: Pillow's decompression-bomb limit (2 x 89,478,485).
pub const DEFAULT_MAX_PIXELS: u64 = 178_956_970;

/// Default of [`Op::RandomResizedCrop::scale`], the share of the image that is cut out, as in torchvision.
pub const DEFAULT_SCALE: (f32, f32) = (0.08, 1.0);
/// Default of [`Op::RandomResizedCrop::ratio`], width to height, as in torchvision.
pub const DEFAULT_RATIO: (f32, f32) = (3.0 / 4.0, 4.0 / 3.0);
/// Default of [`Op::RandomHorizontalFlip::p`].
pub const DEFAULT_FLIP: f32 = 0.5;

/// Default of [`Op::DecodeAudio::max_samples`]: 46 minutes at 48 kHz, and 512 MiB of a decoded channel.
pub const DEFAULT_MAX_SAMPLES: u64 = 1 << 27;
/// Default of [`LogMel::floor`].
pub const DEFAULT_FLOOR: f32 = 1e-10;

/// Element type of a field.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Boolean, one byte.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// 16-bit float.
    F16,
    /// 16-bit float with the exponent range of a 32-bit one (bfloat16).
    BF16,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// Complex number of two 32-bit floats.
    C64,
    /// Complex number of two 64-bit floats.
    C128,
}

impl Dtype {
    /// All element types.
    pub const ALL: [Dtype; 15] = [
        Dtype::Bool,
        Dtype::U8,
        Dtype::I8,
        Dtype::U16,
        Dtype::I16,
        Dtype::U32,
        Dtype::I32,
        Dtype::U64,
        Dtype::I64,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
        Dtype::F64,
        Dtype::C64,
        Dtype::C128,
    ];

    /// Returns the number of bytes per element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 | Dtype::I8 => 1,
            Dtype::U16 | Dtype::I16 | Dtype::F16 | Dtype::BF16 => 2,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 4,
            Dtype::U64 | Dtype::I64 | Dtype::F64 | Dtype::C64 => 8,
            Dtype::C128 => 16,
        }
    }

    /// Returns the name that NumPy gives the type, or `bfloat16`, which NumPy does not have.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::U8 => "uint8",
            Dtype::I8 => "int8",
            Dtype::U16 => "uint16",
            Dtype::I16 => "int16",
            Dtype::U32 => "uint32",
            Dtype::I32 => "int32",
            Dtype::U64 => "uint64",
            Dtype::I64 => "int64",
            Dtype::F16 => "float16",
            Dtype::BF16 => "bfloat16",
            Dtype::F32 => "float32",
            Dtype::F64 => "float64",
            Dtype::C64 => "complex64",
            Dtype::C128 => "complex128",
        }
    }

    /// Returns the type with this name, or `None` if there is none.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

/// Name of the field for values of no fixed size, as bytes that user code packs and unpacks. A stream whose field turns
/// out to be too small is opened again with a larger one.
pub const BLOB: &str = "*";
/// Name of the field, in the place of [`BLOB`], where samples have a fixed size. It is empty but for samples that differ
/// from the others in structure, which lie behind the buffers as bytes.
pub const SPARE: &str = "*spare";
/// Name of the field with the ids of the samples.
pub const INDEX: &str = "index";
/// Name of the field with the numbers of draws, which name the samples that a job was given. The field exists only
/// where samples are drawn with replacement; elsewhere the ids do that.
pub const NUMBER: &str = "#";

/// One tensor of a minibatch, described by one sample's part of it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name: `image`, `label`, [`INDEX`], [`BLOB`], [`SPARE`], [`NUMBER`], or the path of a leaf in a sample of user code.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape of one sample, without the batch dimension; empty for a scalar.
    pub shape: Vec<u32>,
}

impl Field {
    /// Returns `true` if values of this field may be larger than their slots: [`BLOB`] and [`SPARE`].
    #[must_use]
    pub fn may_be_large(&self) -> bool {
        self.name == BLOB || self.name == SPARE
    }

    /// Returns the bytes of one sample, or [`usize::MAX`] if they exceed the address space. Only a malformed shape is
    /// so large; no staging area is laid out for it.
    #[must_use]
    pub fn sample_bytes(&self) -> usize {
        let dimensions = self.shape.iter().map(|&d| d as usize);
        dimensions.fold(self.dtype.size(), usize::saturating_mul)
    }
}

impl PipelineSpec {
    /// Returns the identity of the prepared samples: equal specs have equal fingerprints.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        fingerprint(self)
    }

    /// Returns the identity of the decoded form, which is made by the source and the operators before the first one
    /// that is random, leaves 8-bit pixels, or makes a spectrogram. Whether the decoder may scale makes no difference, because the decoded
    /// form is always decoded in full.
    #[must_use]
    pub fn decoded_fingerprint(&self) -> u128 {
        if let Source::UserCode(user) = &self.source {
            return user.dataset_fingerprint();
        }
        let ops = self.cached_ops();
        PipelineSpec {
            source: self.source.clone(),
            ops: ops.iter().map(|op| op.with_scaled(false)).collect(),
        }
        .fingerprint()
    }

    /// Returns the pipeline up to the point at which samples are cached as *decoded*: the source, and the operators
    /// before the first one that is random or leaves 8-bit pixels.
    #[must_use]
    pub fn cached(&self) -> PipelineSpec {
        PipelineSpec {
            source: self.source.clone(),
            ops: self.cached_ops(),
        }
    }

    /// Returns the operators of [`PipelineSpec::cached`]. The permission to scale while decoding is left at its
    /// default.
    #[must_use]
    pub fn cached_ops(&self) -> Vec<Op> {
        let is_last = |op: &Op| matches!(op, Op::Normalize { .. } | Op::LogMel(_));
        let cached = |op: &&Op| !op.is_random() && !is_last(op);
        let ops = self.ops.iter().take_while(cached);
        ops.map(|op| op.with_scaled(true)).collect()
    }
}

/// Writes the Python expression that makes the pipeline.
impl fmt::Display for PipelineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::ImageFolder { root } => write!(f, "ImageFolder({root:?})")?,
            Source::Files(list) => write!(f, "Files({} paths)", list.paths.len())?,
            Source::UserCode(user) => f.write_str(&user.name)?,
            Source::TarShards(shards) => write!(f, "{shards}")?,
            Source::Parquet(files) => write!(f, "{files}")?,
            Source::AudioFolder { root } => write!(f, "AudioFolder({root:?})")?,
            Source::Tokens(tokens) => write!(f, "{tokens}")?,
            Source::Arrays(arrays) => write!(f, "{arrays}")?,
        }
        self.ops.iter().try_for_each(|op| write!(f, ".{op}"))
    }
}

/// Writes the Python call that adds the operator, with the arguments that differ from their defaults.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments = self
            .audio_arguments()
            .unwrap_or_else(|| self.image_arguments());
        write!(f, "{}({})", self.name(), arguments.join(", "))
    }
}

impl Op {
    /// Returns the Python arguments of an operator of audio, or `None` if it is for other samples.
    fn audio_arguments(&self) -> Option<Vec<String>> {
        let mut arguments = Vec::new();
        match *self {
            Op::DecodeAudio {
                channels,
                max_samples,
            } => {
                arguments.extend(channels.argument());
                let differs = max_samples != DEFAULT_MAX_SAMPLES;
                arguments.extend(differs.then(|| format!("max_samples={max_samples}")));
            }
            Op::Resample { rate } => arguments.push(rate.to_string()),
            Op::RandomCrop { samples } | Op::Crop { samples } => {
                arguments.push(format!("samples={samples}"));
            }
            Op::LogMel(shape) => arguments.extend(shape.arguments()),
            _ => return None,
        }
        Some(arguments)
    }

    /// Returns the Python arguments of any other operator.
    fn image_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        match *self {
            Op::Decode {
                apply_exif_orientation,
                max_pixels,
                scaled,
            } => {
                arguments
                    .extend(apply_exif_orientation.then(|| "apply_exif_orientation=True".into()));
                let differs = max_pixels != DEFAULT_MAX_PIXELS;
                arguments.extend(differs.then(|| format!("max_pixels={max_pixels}")));
                arguments.extend((!scaled).then(|| "scaled=False".into()));
            }
            Op::Resize { to, interpolation } => {
                arguments.push(match to {
                    ResizeTo::Shorter(side) => side.to_string(),
                    // A single number would mean the shorter side, so a square needs both numbers.
                    ResizeTo::Exact { height, width } => format!("({height}, {width})"),
                });
                arguments.extend(interpolation.argument());
            }
            Op::CenterCrop { height, width } => arguments.push(size(height, width)),
            Op::RandomResizedCrop {
                height,
                width,
                scale,
                ratio,
                interpolation,
            } => {
                arguments.push(size(height, width));
                let differs = scale != DEFAULT_SCALE;
                arguments.extend(differs.then(|| format!("scale={scale:?}")));
                let differs = ratio != DEFAULT_RATIO;
                arguments.extend(differs.then(|| format!("ratio={ratio:?}")));
                arguments.extend(interpolation.argument());
            }
            Op::RandomHorizontalFlip { p } => {
                arguments.extend((p != DEFAULT_FLIP).then(|| format!("{p:?}")));
            }
            Op::Normalize { mean, std } => {
                arguments.extend([mean, std].map(|[r, g, b]| format!("({r:?}, {g:?}, {b:?})")));
            }
            _ => {}
        }
        arguments
    }
}

impl AudioChannels {
    /// Returns the Python argument, or `None` for the default.
    fn argument(self) -> Option<String> {
        match self {
            AudioChannels::Mixed => None,
            AudioChannels::One(channel) => Some(format!("channel={channel}")),
            AudioChannels::All(count) => Some(format!("channels={count}")),
        }
    }
}

impl LogMel {
    /// Returns the Python arguments that differ from their defaults.
    fn arguments(&self) -> Vec<String> {
        let default = LogMel::of(self.n_fft, self.win_length, self.n_mels);
        let [n_fft, n_mels] = [self.n_fft, self.n_mels];
        let mut arguments = vec![format!("n_fft={n_fft}")];
        let differs = self.win_length != self.n_fft;
        arguments.extend(differs.then(|| format!("win_length={}", self.win_length)));
        let differs = self.hop_length != default.hop_length;
        arguments.extend(differs.then(|| format!("hop_length={}", self.hop_length)));
        arguments.push(format!("n_mels={n_mels}"));
        let differs = self.f_min != default.f_min;
        arguments.extend(differs.then(|| format!("f_min={:?}", self.f_min)));
        arguments.extend(self.f_max.map(|f_max| format!("f_max={f_max:?}")));
        let differs = self.floor != default.floor;
        arguments.extend(differs.then(|| format!("floor={:?}", self.floor)));
        arguments
    }

    /// Returns a spectrogram whose other numbers have their defaults.
    #[must_use]
    pub const fn of(n_fft: u32, win_length: u32, n_mels: u32) -> Self {
        LogMel {
            n_fft,
            win_length,
            hop_length: win_length / 2,
            n_mels,
            f_min: 0.0,
            f_max: None,
            floor: DEFAULT_FLOOR,
        }
    }
}

fn size(height: u32, width: u32) -> String {
    if height == width {
        height.to_string()
    } else {
        format!("({height}, {width})")
    }
}

impl Interpolation {
    /// Returns its name in Python.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Interpolation::Nearest => "nearest",
            Interpolation::Bilinear => "bilinear",
            Interpolation::Bicubic => "bicubic",
        }
    }

    /// Returns the Python argument, or `None` for the default.
    fn argument(self) -> Option<String> {
        let differs = self != Interpolation::Bilinear;
        differs.then(|| format!("interpolation=\"{}\"", self.name()))
    }
}

impl Source {
    /// Returns the identity of the samples.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        PipelineSpec {
            source: self.clone(),
            ops: Vec::new(),
        }
        .fingerprint()
    }
}

impl UserDataset {
    /// Returns the identity of the part that may be cached, independent of the rest.
    fn dataset_fingerprint(&self) -> u128 {
        let user = UserDataset {
            rest: Vec::new(),
            ..self.clone()
        };
        Source::UserCode(user).fingerprint()
    }

    /// Returns the dataset with its identity alone.
    fn without_descriptions(&self) -> UserDataset {
        let silent = |part: &IdentityPart| IdentityPart {
            name: part.name.clone(),
            hash: part.hash,
            value: String::new(),
            why: String::new(),
        };
        UserDataset {
            name: self.name.clone(),
            dataset: self.dataset.iter().map(silent).collect(),
            rest: self.rest.iter().map(silent).collect(),
            directory: WorkingDirectory::default(),
            ..*self
        }
    }
}

fn fingerprint(spec: &PipelineSpec) -> u128 {
    let silent;
    let spec = if let Source::UserCode(user) = &spec.source {
        let source = Source::UserCode(user.without_descriptions());
        silent = PipelineSpec {
            source,
            ops: spec.ops.clone(),
        };
        &silent
    } else {
        spec
    };
    // Serialising plain data can fail only beyond 2 GiB, and no message is so long. It would have to be a panic: with one
    // fingerprint for all such specs, jobs of different pipelines would share samples.
    let bytes = rkyv::to_bytes::<Panic>(spec).always_ok();
    xxhash_rust::xxh3::xxh3_128(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_written_as_python_makes_it() {
        let interpolation = Interpolation::Bilinear;
        let (height, width) = (64, 64);
        let mut spec = PipelineSpec {
            source: Source::ImageFolder {
                root: "/data".into(),
            },
            ops: vec![
                Op::Decode {
                    apply_exif_orientation: false,
                    max_pixels: DEFAULT_MAX_PIXELS,
                    scaled: true,
                },
                Op::Resize {
                    to: ResizeTo::Shorter(256),
                    interpolation: Interpolation::Bicubic,
                },
                Op::RandomResizedCrop {
                    height,
                    width,
                    scale: DEFAULT_SCALE,
                    ratio: DEFAULT_RATIO,
                    interpolation,
                },
            ],
        };
        let before = r#"ImageFolder("/data").decode().resize(256, interpolation="bicubic")"#;
        assert_eq!(spec.cached().to_string(), before);
        assert_eq!(
            spec.to_string(),
            format!("{before}.random_resized_crop(64)")
        );
        spec.ops = vec![
            Op::Decode {
                apply_exif_orientation: true,
                max_pixels: 1000,
                scaled: false,
            },
            Op::Resize {
                to: ResizeTo::Exact { height, width },
                interpolation,
            },
            Op::CenterCrop { height, width: 32 },
            Op::RandomHorizontalFlip { p: 0.25 },
            Op::Normalize {
                mean: [0.5; 3],
                std: [0.25, 1.0, 2.0],
            },
        ];
        assert_eq!(
            spec.to_string(),
            "ImageFolder(\"/data\").decode(apply_exif_orientation=True, max_pixels=1000, scaled=False).resize((64, 64))\
             .center_crop((64, 32)).random_horizontal_flip(0.25).normalize((0.5, 0.5, 0.5), (0.25, 1.0, 2.0))"
        );
    }

    #[test]
    fn a_shape_has_a_size_however_large() {
        let bytes = |shape: &[u32]| {
            Field {
                name: "image".into(),
                dtype: Dtype::F32,
                shape: shape.to_vec(),
            }
            .sample_bytes()
        };
        assert_eq!(bytes(&[]), 4);
        assert_eq!(bytes(&[3, 224, 100]), 3 * 224 * 100 * 4);
        assert_eq!(bytes(&[u32::MAX; 3]), usize::MAX);
    }
}
