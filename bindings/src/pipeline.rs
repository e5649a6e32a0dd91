//! Sources and operators, for Python.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coprep_client::control;
use coprep_protocol::array_files;
use coprep_protocol::dataset_path::{self, bytes_of};
use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::message::Describe;
use coprep_protocol::operators::{audio_rate, check_next, check_source};
use coprep_protocol::parquet_files::{DEFAULT_IMAGE_COLUMN, DEFAULT_LABEL_COLUMN};
use coprep_protocol::shard_list::{DEFAULT_IMAGE, DEFAULT_LABEL};
use coprep_protocol::spec::{
    ArrayFiles, AudioChannels, DEFAULT_FLIP, DEFAULT_MAX_PIXELS, DEFAULT_MAX_SAMPLES,
    DEFAULT_RATIO, DEFAULT_SCALE, Dtype, FileList, IdentityPart, LogMel, Op, ParquetFiles,
    PipelineSpec, ResizeTo, Source, Tail, TarShards, TokenFiles, UserDataset, WorkingDirectory,
};
use coprep_protocol::store_variables::{StoreVariables, provided_scheme};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::connect::{coordinator_paths, start_or_find};
use crate::credentials::{ProvidedCredentials, link_of};
use crate::errors::raise;
use crate::operators::{self, SizeArgument, calls, number, numbers};
use crate::options::field;

/// A source of samples, and the operators that prepare one.
///
/// Made by `coprep.ImageFolder`, `coprep.AudioFolder`, `coprep.Files`, `coprep.WebDataset` or `coprep.Parquet`; by `coprep.Tokens` and
/// `coprep.Arrays`, whose samples are tensors already and take no operators. A pipeline is immutable: every method
/// returns a new one. It can be pickled, copied and compared.
///
/// Of images `decode` comes first and `normalize` last. The others may come in any order, as often as you like. One of
/// them must fix the size: `random_resized_crop`, `center_crop`, or `resize((height, width))`. Images are 8-bit RGB. A
/// batch of them is uint8, or float32 after `normalize`, of shape (batch, 3, height, width).
///
/// The order of audio is `decode_audio`, `resample`, `random_crop` or `crop`, `log_mel`. One crop is needed.
///
/// The result of the operators before the first random one can be cached as the decoded form.
///
/// >>> coprep.ImageFolder("data/train").decode().random_resized_crop(224).random_horizontal_flip()
#[pyclass(frozen, name = "Pipeline", module = "coprep")]
#[derive(Clone)]
pub(crate) struct PyPipeline {
    pub(crate) spec: PipelineSpec,
    /// Set if code of the job makes the credentials of the source's stores.
    pub(crate) provided: Option<ProvidedCredentials>,
}

/// Returns a path as text, because messages carry text.
fn text(path: PathBuf) -> PyResult<String> {
    let not_text = |p: std::ffi::OsString| {
        PyValueError::new_err(format!(
            "the path {} is not valid UTF-8: rename it",
            p.display()
        ))
    };
    path.into_os_string().into_string().map_err(not_text)
}

/// Returns the URL that a path is, in its one spelling, or `None` if it is a path.
fn url(path: &Path) -> PyResult<Option<String>> {
    // A path that is no text cannot be a URL.
    let parsed = path.to_str().map(DatasetUrl::parse).transpose();
    let parsed = parsed.map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok(parsed.flatten().map(|url| url.to_string()))
}

/// Returns the absolute paths of files, and URLs in their one spelling.
fn resolved(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<String>> {
    let urls = paths
        .iter()
        .map(|path| url(path))
        .collect::<PyResult<Vec<_>>>()?;
    let are_local = urls.iter().map(Option::is_none);
    let local: Vec<PathBuf> = paths
        .into_iter()
        .zip(are_local)
        .filter_map(|(p, is_local)| is_local.then_some(p))
        .collect();
    let mut local = py.detach(|| dataset_path::files(&local))?.into_iter();
    let next = |url: Option<String>| match url {
        Some(url) => url,
        // There is one resolved path for each that is no URL.
        None => dataset_path::text_of(&local.next().unwrap_or_default()),
    };
    Ok(urls.into_iter().map(next).collect())
}

/// Returns the absolute path of a folder, or its URL in its one spelling.
fn resolved_folder(py: Python<'_>, root: &Path) -> PyResult<String> {
    match url(root)? {
        Some(url) => Ok(url),
        None => text(py.detach(|| dataset_path::folder(root))?),
    }
}

/// Returns the images of a folder with one subfolder per class.
#[pyfunction]
pub(crate) fn image_folder(py: Python<'_>, root: PathBuf) -> PyResult<PyPipeline> {
    let root = resolved_folder(py, &root)?;
    Ok(PyPipeline::of(Source::ImageFolder { root }))
}

/// Returns the audio files of a folder with one subfolder per class.
#[pyfunction]
pub(crate) fn audio_folder(py: Python<'_>, root: PathBuf) -> PyResult<PyPipeline> {
    let root = resolved_folder(py, &root)?;
    Ok(PyPipeline::of(Source::AudioFolder { root }))
}

/// Returns images by path.
#[pyfunction]
#[pyo3(signature = (paths, labels=None))]
pub(crate) fn files(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    labels: Option<Vec<i64>>,
) -> PyResult<PyPipeline> {
    let labels = labels.unwrap_or_default();
    if !labels.is_empty() && labels.len() != paths.len() {
        let text = format!(
            "{} labels for {} paths: there must be one for each",
            labels.len(),
            paths.len()
        );
        return Err(PyValueError::new_err(text));
    }
    let paths = resolved(py, paths)?;
    let source = Source::Files(FileList { paths, labels });
    Ok(PyPipeline::of(source))
}

/// Returns the images in tar shards. `shards` are paths or URLs, with or without braces.
#[pyfunction]
#[pyo3(signature = (shards, image=DEFAULT_IMAGE, label=Some(DEFAULT_LABEL)))]
pub(crate) fn web_dataset(
    py: Python<'_>,
    shards: Vec<String>,
    image: &str,
    label: Option<&str>,
) -> PyResult<PyPipeline> {
    let named = py.detach(|| TarShards::named(&shards, image, label));
    let named = named.map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok(PyPipeline::of(Source::TarShards(named)))
}

/// Returns the images in a column of parquet files. `files` are paths or URLs, with or without braces.
#[pyfunction]
#[pyo3(signature = (files, image=DEFAULT_IMAGE_COLUMN, label=Some(DEFAULT_LABEL_COLUMN)))]
pub(crate) fn parquet(
    py: Python<'_>,
    files: Vec<String>,
    image: &str,
    label: Option<&str>,
) -> PyResult<PyPipeline> {
    let named = py.detach(|| ParquetFiles::named(&files, image, label));
    let named = named.map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok(PyPipeline::of(Source::Parquet(named)))
}

/// The keyword arguments of `coprep.Tokens`, as a dict. `dtype` and `out` are names of NumPy's types.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TokenOptions {
    window: u32,
    dtype: String,
    stride: u32,
    out: String,
    offset: Option<u64>,
    tail: String,
}

/// Returns windows of files of tokens. `files` are paths or URLs, with or without braces.
#[pyfunction]
pub(crate) fn tokens(
    py: Python<'_>,
    files: Vec<String>,
    options: TokenOptions,
) -> PyResult<PyPipeline> {
    let element = |argument, name: &str| {
        let unknown = || format!("{argument}={name:?} is no type that a tensor may have");
        Dtype::of_name(name).ok_or_else(|| PyValueError::new_err(unknown()))
    };
    let TokenOptions {
        window,
        stride,
        offset,
        ..
    } = options;
    let tail = Tail::of_name(&options.tail).ok_or_else(|| {
        PyValueError::new_err(format!(
            "tail={:?} must be \"drop\" or \"overlap\"",
            options.tail
        ))
    })?;
    let files = py.detach(|| array_files::resolved(&files));
    let list = TokenFiles {
        files: files.map_err(PyValueError::new_err)?,
        dtype: element("dtype", &options.dtype)?,
        out: element("out", &options.out)?,
        window,
        stride,
        offset,
        tail,
    };
    list.check().map_err(PyValueError::new_err)?;
    Ok(PyPipeline::of(Source::Tokens(list)))
}

/// Returns the options of [`tokens`] that give the same list.
fn token_options<'py>(py: Python<'py>, list: &TokenFiles) -> PyResult<Bound<'py, PyDict>> {
    let options = PyDict::new(py);
    options.set_item("window", list.window)?;
    options.set_item("dtype", list.dtype.name())?;
    options.set_item("stride", list.stride)?;
    options.set_item("out", list.out.name())?;
    options.set_item("offset", list.offset)?;
    options.set_item("tail", list.tail.name())?;
    Ok(options)
}

/// Returns the rows of `.npy` files. `files` are paths or URLs, with or without braces.
#[pyfunction]
#[pyo3(signature = (files, labels=None))]
pub(crate) fn arrays(
    py: Python<'_>,
    files: Vec<String>,
    labels: Option<Vec<i64>>,
) -> PyResult<PyPipeline> {
    let files = py.detach(|| array_files::resolved(&files));
    Ok(PyPipeline::of(Source::Arrays(ArrayFiles {
        files: files.map_err(PyValueError::new_err)?,
        labels: labels.unwrap_or_default(),
    })))
}

/// Name, hash of 16 bytes, content, and reason of a part of an identity.
type Part = (String, [u8; 16], String, String);

/// Returns a dataset of Python code, by its `coprep._usercode.Identity`, and the parts of that with descriptions.
#[pyfunction]
#[pyo3(signature = (identity, dataset, rest, *, split, in_job))]
pub(crate) fn user_dataset(
    identity: &Bound<'_, PyAny>,
    dataset: Vec<Part>,
    rest: Vec<Part>,
    split: bool,
    in_job: bool,
) -> PyResult<PyPipeline> {
    let parts = |parts: Vec<Part>| {
        let part = |(name, hash, value, why)| IdentityPart {
            name,
            hash: u128::from_le_bytes(hash),
            value,
            why,
        };
        parts.into_iter().map(part).collect()
    };
    let (directory, is_used): ([u8; 16], bool) = field(identity, "directory")?;
    let source = Source::UserCode(UserDataset {
        name: field(identity, "name")?,
        samples: field(identity, "samples")?,
        dataset: parts(dataset),
        rest: parts(rest),
        split,
        in_job,
        is_iterated: field(identity, "is_iterated")?,
        directory: WorkingDirectory {
            hash: u128::from_le_bytes(directory),
            is_used,
        },
    });
    Ok(PyPipeline::of(source))
}

impl PyPipeline {
    fn of(source: Source) -> Self {
        PyPipeline {
            spec: PipelineSpec {
                source,
                ops: Vec::new(),
            },
            provided: None,
        }
    }

    fn with(&self, op: Op) -> PyResult<Self> {
        // The checks are made here, so that the traceback shows the call that is wrong.
        check_source(&self.spec.source, &op).map_err(PyValueError::new_err)?;
        check_next(&self.spec.ops, &op).map_err(PyValueError::new_err)?;
        let mut spec = self.spec.clone();
        spec.ops.push(op);
        Ok(PyPipeline {
            spec,
            provided: self.provided.clone(),
        })
    }

    /// Returns the length of a crop of audio in samples, which is given in samples or in seconds.
    fn crop_samples(
        &self,
        name: &str,
        seconds: Option<&Bound<'_, PyAny>>,
        samples: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u32> {
        let invalid = |text: String| Err(PyValueError::new_err(format!("{name}: {text}")));
        let samples = match (seconds, samples) {
            (None, Some(samples)) => operators::integer_argument(name, "samples", samples)?,
            (Some(seconds), None) => {
                let seconds = f64::from(number(name, "seconds", seconds)?);
                let Some(rate) = audio_rate(&self.spec.ops) else {
                    return invalid(
                        "seconds are as many samples as a file's sampling rate says: add resample(rate) before, or \
                         give samples="
                            .into(),
                    );
                };
                (seconds * f64::from(rate))
                    .round()
                    .clamp(0.0, u32::MAX.into()) as u64
            }
            _ => return invalid("give either seconds= or samples=".into()),
        };
        // A crop that long is refused by the operator's rules.
        Ok(u32::try_from(samples).unwrap_or(u32::MAX))
    }

    /// Returns the variables that describe the stores of the source. If code of the job makes their credentials, these are
    /// settings alone, and the code may have some that the environment does not set.
    pub(crate) fn store_variables(&self, py: Python<'_>) -> PyResult<StoreVariables> {
        let variables = StoreVariables::of(&self.spec.source);
        let Some(ProvidedCredentials { provider, scheme }) = &self.provided else {
            return Ok(variables);
        };
        let mut variables = variables.without_credentials(*scheme);
        // Providers of obstore have settings of their store there, such as the region of a session.
        let config = provider.bind(py).getattr_opt("config")?;
        if let Some(config) = config.and_then(|config| config.cast_into::<PyDict>().ok()) {
            for (name, value) in config {
                if let (Ok(name), Ok(value)) = (name.extract::<String>(), value.str()) {
                    variables.set_default(*scheme, &name, &value.extract::<String>()?);
                }
            }
        }
        Ok(variables)
    }

    fn describe(&self, py: Python<'_>, socket: Option<PathBuf>) -> PyResult<control::Description> {
        const NAME: &str = "coprep";
        // Length and classes depend on the source alone, so a pipeline without all operators has them too.
        let source = PipelineSpec {
            source: self.spec.source.clone(),
            ops: Vec::new(),
        };
        let request = Describe {
            store_variables: self.store_variables(py)?,
            provider: None,
            pipeline: source,
        };
        let connect = start_or_find(py, NAME);
        let credentials = link_of(self.provided.as_ref(), NAME, socket.clone());
        py.detach(|| {
            let credentials = credentials.as_ref();
            control::describe(&coordinator_paths(socket), &connect, request, credentials)
        })
        .map_err(raise)
    }
}

#[pymethods]
impl PyPipeline {
    /// Returns the pipeline with code of the job that makes the credentials of its stores, which Python has checked.
    fn _with_provider(&self, provider: Py<PyAny>) -> PyResult<Self> {
        let scheme = provided_scheme(&self.spec.source).map_err(PyValueError::new_err)?;
        Ok(PyPipeline {
            spec: self.spec.clone(),
            provided: Some(ProvidedCredentials {
                provider: Arc::new(provider),
                scheme,
            }),
        })
    }

    /// Decodes JPEG, PNG or WebP to 8-bit RGB, as `PIL.Image.convert("RGB")` does. Must come first.
    ///
    /// Args:
    ///     apply_exif_orientation: whether to turn the image as its EXIF or XMP says, as Pillow's `exif_transpose` does
    ///         (torchvision does not).
    ///     max_pixels: most pixels of a file, 1 or more. Larger files are refused. The default is Pillow's limit.
    ///     scaled: whether the JPEG decoder may scale by 1/2, 1/4 or 1/8 where the sample is made smaller anyway. This
    ///         is faster; pixels differ slightly from decoding in full.
    #[pyo3(
        signature = (*, apply_exif_orientation=false, max_pixels=None, scaled=true),
        text_signature = "($self, *, apply_exif_orientation=False, max_pixels=178956970, scaled=True)"
    )]
    fn decode(
        &self,
        apply_exif_orientation: bool,
        max_pixels: Option<&Bound<'_, PyAny>>,
        scaled: bool,
    ) -> PyResult<Self> {
        self.with(Op::Decode {
            apply_exif_orientation,
            max_pixels: max_pixels.map_or(Ok(DEFAULT_MAX_PIXELS), |pixels| {
                operators::integer_argument("decode", "max_pixels", pixels)
            })?,
            scaled,
        })
    }

    /// Reads each file as a ``.npy`` array. Must be the only operator.
    ///
    /// All arrays have the type and shape of the first file's.
    ///
    /// >>> coprep.Files(paths, labels).decode_npy()
    /// >>> coprep.WebDataset("train-{000..099}.tar", image="npy").decode_npy()
    fn decode_npy(&self) -> PyResult<Self> {
        self.with(Op::DecodeNpy)
    }

    /// Decodes WAV or FLAC to float32 samples from -1 to 1, as `torchaudio.load` does. Must come first.
    ///
    /// Only the part that a crop needs is decoded. A batch has the shape (batch, channels, samples).
    ///
    /// Args:
    ///     channels: 1 mixes all channels of a file down to their mean; a larger number keeps that many, which every file
    ///         must have.
    ///     channel: number of the only channel to keep, counted from 0, instead of ``channels``.
    ///     max_samples: most samples of a channel of a file, 1 or more, before and after resampling. Longer files are
    ///         refused.
    #[pyo3(
        signature = (*, channels=1, channel=None, max_samples=None),
        text_signature = "($self, *, channels=1, channel=None, max_samples=134217728)"
    )]
    fn decode_audio(
        &self,
        channels: u16,
        channel: Option<u16>,
        max_samples: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let kept = match (channels, channel) {
            (1, None) => AudioChannels::Mixed,
            (1, Some(channel)) => AudioChannels::One(channel),
            (count @ 2.., None) => AudioChannels::All(count),
            _ => {
                let text = "decode_audio: give either channels, 1 or more, or channel";
                return Err(PyValueError::new_err(text));
            }
        };
        self.with(Op::DecodeAudio {
            channels: kept,
            max_samples: max_samples.map_or(Ok(DEFAULT_MAX_SAMPLES), |samples| {
                operators::integer_argument("decode_audio", "max_samples", samples)
            })?,
        })
    }

    /// Resamples audio to one rate, as `torchaudio.functional.resample` does. Deterministic. Comes right after
    /// `decode_audio`.
    ///
    /// Args:
    ///     rate: samples of each channel in a second, 1 to 768000.
    fn resample(&self, rate: u32) -> PyResult<Self> {
        self.with(Op::Resample { rate })
    }

    /// Cuts out a random part of audio. Random. Shorter audio gets zeros at its end.
    ///
    /// Args:
    ///     seconds: length of the part, after `resample`, which must come before.
    ///     samples: length of the part, instead of ``seconds``.
    #[pyo3(signature = (seconds=None, *, samples=None))]
    fn random_crop(
        &self,
        seconds: Option<&Bound<'_, PyAny>>,
        samples: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let samples = self.crop_samples("random_crop", seconds, samples)?;
        self.with(Op::RandomCrop { samples })
    }

    /// Cuts out the beginning of audio. Deterministic. Shorter audio gets zeros at its end.
    ///
    /// Args:
    ///     seconds: length of the part, after `resample`, which must come before.
    ///     samples: length of the part, instead of ``seconds``.
    #[pyo3(signature = (seconds=None, *, samples=None))]
    fn crop(
        &self,
        seconds: Option<&Bound<'_, PyAny>>,
        samples: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let samples = self.crop_samples("crop", seconds, samples)?;
        self.with(Op::Crop { samples })
    }

    /// Computes the natural logarithm of a mel spectrogram, as `torchaudio.transforms.MelSpectrogram` defines it by default:
    /// centred frames with reflected edges, a Hann window, power 2, the HTK scale. Deterministic. Must come last.
    ///
    /// A batch has the shape (batch, channels, n_mels, samples // hop_length + 1), float32.
    ///
    /// Args:
    ///     n_fft: samples of a Fourier transform, 2 to 65536.
    ///     win_length: samples of the window, at most `n_fft`, which is the default.
    ///     hop_length: samples from one frame to the next; by default half of `win_length`.
    ///     n_mels: mel bands, 1 to 1024.
    ///     f_min: lowest frequency in Hz.
    ///     f_max: highest frequency in Hz; by default half of the sampling rate.
    ///     floor: smallest value that a logarithm is taken of.
    #[expect(
        clippy::too_many_arguments,
        reason = "they are those of torchaudio's transform"
    )]
    #[pyo3(
        signature = (*, n_fft=400, win_length=None, hop_length=None, n_mels=128, f_min=0.0, f_max=None, floor=1e-10)
    )]
    fn log_mel(
        &self,
        n_fft: u32,
        win_length: Option<u32>,
        hop_length: Option<u32>,
        n_mels: u32,
        f_min: f32,
        f_max: Option<f32>,
        floor: f32,
    ) -> PyResult<Self> {
        let shape = LogMel::of(n_fft, win_length.unwrap_or(n_fft), n_mels);
        self.with(Op::LogMel(LogMel {
            hop_length: hop_length.unwrap_or(shape.hop_length),
            f_min,
            f_max,
            floor,
            ..shape
        }))
    }

    /// `true` if samples are images, which have types and memory formats of their own.
    #[getter]
    fn _is_of_images(&self) -> bool {
        let is_other = matches!(
            self.spec.source,
            Source::Tokens(_)
                | Source::Arrays(_)
                | Source::AudioFolder { .. }
                | Source::UserCode(_)
        );
        let first = self.spec.ops.first();
        !is_other && !matches!(first, Some(Op::DecodeNpy | Op::DecodeAudio { .. }))
    }

    /// Resizes with antialiasing. Deterministic, like `torchvision.transforms.Resize`.
    ///
    /// Args:
    ///     size: pixels of the shorter side, which keeps the aspect ratio, or (height, width). Sides are 1 to 16384.
    ///     interpolation: "nearest", "bilinear" or "bicubic", or torchvision's `InterpolationMode` of that name.
    #[pyo3(
        signature = (size, *, interpolation=None),
        text_signature = "($self, size, *, interpolation='bilinear')"
    )]
    fn resize(
        &self,
        size: &Bound<'_, PyAny>,
        interpolation: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let to = match SizeArgument::of("resize", size)? {
            SizeArgument::Side(side) => ResizeTo::Shorter(side),
            SizeArgument::Both(height, width) => ResizeTo::Exact { height, width },
        };
        self.with(Op::Resize {
            to,
            interpolation: operators::interpolation("resize", interpolation)?,
        })
    }

    /// Cuts out the centre, with zeros where the image is smaller. Deterministic, like torchvision's `CenterCrop`.
    ///
    /// Args:
    ///     size: pixels of each side, or (height, width). Sides are 1 to 16384.
    #[pyo3(signature = (size), text_signature = "($self, size)")]
    fn center_crop(&self, size: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (height, width) = SizeArgument::of("center_crop", size)?.both();
        self.with(Op::CenterCrop { height, width })
    }

    /// Cuts out a random area and resizes it. Random, like `torchvision.transforms.RandomResizedCrop`.
    ///
    /// Args:
    ///     size: pixels of each side of the result, or (height, width). Sides are 1 to 16384.
    ///     scale: bounds of the area, as a share of the image: (low, high) with 0 < low <= high.
    ///     ratio: bounds of width / height: (low, high) with 0 < low <= high.
    ///     interpolation: "nearest", "bilinear" or "bicubic", or torchvision's `InterpolationMode` of that name.
    #[pyo3(
        signature = (size, *, scale=None, ratio=None, interpolation=None),
        text_signature = "($self, size, *, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), interpolation='bilinear')"
    )]
    fn random_resized_crop(
        &self,
        size: &Bound<'_, PyAny>,
        scale: Option<&Bound<'_, PyAny>>,
        ratio: Option<&Bound<'_, PyAny>>,
        interpolation: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        const NAME: &str = "random_resized_crop";
        let (height, width) = SizeArgument::of(NAME, size)?.both();
        let bounds = |argument, value: Option<&Bound<'_, PyAny>>, default| {
            let Some(value) = value else {
                return Ok(default);
            };
            let [low, high] = numbers(NAME, argument, value, "two numbers, (low, high)")?;
            PyResult::Ok((low, high))
        };
        self.with(Op::RandomResizedCrop {
            height,
            width,
            scale: bounds("scale", scale, DEFAULT_SCALE)?,
            ratio: bounds("ratio", ratio, DEFAULT_RATIO)?,
            interpolation: operators::interpolation(NAME, interpolation)?,
        })
    }

    /// Mirrors left to right. Random, like `torchvision.transforms.RandomHorizontalFlip`.
    ///
    /// Args:
    ///     p: probability of mirroring, 0 to 1.
    #[pyo3(signature = (p=None), text_signature = "($self, p=0.5)")]
    fn random_horizontal_flip(&self, p: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let p = p.map_or(Ok(DEFAULT_FLIP), |p| {
            number("random_horizontal_flip", "p", p)
        })?;
        self.with(Op::RandomHorizontalFlip { p })
    }

    /// Computes `(x / 255 - mean) / std` per channel, as float32, unless the loader is given another `dtype`. Must come
    /// last.
    ///
    /// Args:
    ///     mean: three finite numbers, for red, green and blue, in units of 0 to 1.
    ///     std: three finite numbers that are not 0, in the same units.
    #[pyo3(signature = (mean, std), text_signature = "($self, mean, std)")]
    fn normalize(&self, mean: &Bound<'_, PyAny>, std: &Bound<'_, PyAny>) -> PyResult<Self> {
        let channels = |argument, value| {
            let meaning = "three numbers, one for each channel, such as (0.5, 0.5, 0.5)";
            numbers("normalize", argument, value, meaning)
        };
        self.with(Op::Normalize {
            mean: channels("mean", mean)?,
            std: channels("std", std)?,
        })
    }

    /// Absolute path or URL of the folder, or `None` for lists of files and shards.
    #[getter]
    fn root(&self) -> Option<&str> {
        match &self.spec.source {
            Source::ImageFolder { root } | Source::AudioFolder { root } => Some(root),
            _ => None,
        }
    }

    /// Names of the classes, by label. Asks the coordinator.
    #[getter]
    fn classes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.describe(py, None)?.classes)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.describe(py, None)?.samples as usize)
    }

    /// Always true, so that `if pipeline` does not ask the coordinator for the length.
    fn __bool__(&self) -> bool {
        true
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn __hash__(&self) -> u64 {
        self.spec.fingerprint() as u64
    }

    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a pipeline is not iterable: give it to coprep.DataLoader",
        ))
    }

    /// Returns the call that restores the pipeline. See [`restore`].
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let source = match &self.spec.source {
            Source::ImageFolder { root } => ("image_folder", (root,).into_pyobject(py)?),
            Source::AudioFolder { root } => ("audio_folder", (root,).into_pyobject(py)?),
            Source::Files(list) => {
                let labels = (!list.labels.is_empty()).then_some(&list.labels);
                let path = |text: &String| OsString::from_vec(bytes_of(text).into_owned());
                let paths: Vec<OsString> = list.paths.iter().map(path).collect();
                ("files", (paths, labels).into_pyobject(py)?)
            }
            Source::TarShards(list) => (
                "web_dataset",
                (&list.shards, &list.image, &list.label).into_pyobject(py)?,
            ),
            Source::Parquet(list) => (
                "parquet",
                (&list.files, &list.image, &list.label).into_pyobject(py)?,
            ),
            Source::Tokens(list) => {
                let options = token_options(py, list)?;
                ("tokens", (&list.files, options).into_pyobject(py)?)
            }
            Source::Arrays(list) => {
                let labels = (!list.labels.is_empty()).then_some(&list.labels);
                ("arrays", (&list.files, labels).into_pyobject(py)?)
            }
            Source::UserCode(_) => {
                return Err(PyTypeError::new_err(
                    "cannot pickle what a dataset of Python code comes to: pickle the dataset",
                ));
            }
        };
        let restore = py.import("coprep._coprep")?.getattr("restore")?;
        let provider = self
            .provided
            .as_ref()
            .map(|provided| provided.provider.bind(py));
        let arguments = (source.0, source.1, calls(py, &self.spec.ops)?, provider);
        (restore, arguments).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        self.spec.to_string()
    }
}

/// Restores a pickled pipeline by the calls that made it: a function of this module, then methods.
#[pyfunction]
#[pyo3(signature = (source, arguments, operators, provider=None))]
pub(crate) fn restore<'py>(
    py: Python<'py>,
    source: &str,
    arguments: &Bound<'py, PyTuple>,
    operators: Vec<(String, Bound<'py, PyTuple>, Bound<'py, PyDict>)>,
    provider: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let source = py.import("coprep._coprep")?.getattr(source)?;
    let mut pipeline = source.call1(arguments)?;
    if let Some(provider) = provider {
        pipeline = pipeline.call_method1("_with_provider", (provider,))?;
    }
    for (name, arguments, named) in operators {
        pipeline = pipeline.getattr(name)?.call(arguments, Some(&named))?;
    }
    Ok(pipeline)
}
