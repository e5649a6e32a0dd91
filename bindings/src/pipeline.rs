//! Sources and operators.

use std::path::PathBuf;

use coprep_client::connection::How;
use coprep_client::control;
use coprep_protocol::dataset_path;
use coprep_protocol::spec::{
    DEFAULT_MAX_PIXELS, FileList, Interpolation, Op, Part, PipelineSpec, ResizeTo, Source,
    UserDataset,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::errors::{raise, signals};
use crate::place;

/// A source of images and the operators that prepare one.
#[pyclass(frozen, module = "coprep")]
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) spec: PipelineSpec,
}

/// A side, or (height, width).
#[derive(FromPyObject)]
enum Size {
    Side(u32),
    Both(u32, u32),
}

impl Size {
    fn both(self) -> (u32, u32) {
        match self {
            Size::Side(n) => (n, n),
            Size::Both(height, width) => (height, width),
        }
    }
}

fn interpolation(name: &str) -> PyResult<Interpolation> {
    match name {
        "nearest" => Ok(Interpolation::Nearest),
        "bilinear" => Ok(Interpolation::Bilinear),
        "bicubic" => Ok(Interpolation::Bicubic),
        other => {
            let text =
                format!("interpolation '{other}' is none of 'nearest', 'bilinear', 'bicubic'");
            Err(PyValueError::new_err(text))
        }
    }
}

/// A path as text, which messages carry.
fn text(path: PathBuf) -> PyResult<String> {
    let not_text = |p: std::ffi::OsString| {
        PyValueError::new_err(format!(
            "the path {} is not valid UTF-8: rename it",
            p.display()
        ))
    };
    path.into_os_string().into_string().map_err(not_text)
}

/// Images in one subfolder per class.
#[pyfunction]
pub(crate) fn image_folder(py: Python<'_>, root: PathBuf) -> PyResult<Pipeline> {
    let root = text(py.detach(|| dataset_path::folder(&root))?)?;
    Ok(Pipeline {
        spec: PipelineSpec {
            source: Source::ImageFolder { root },
            ops: Vec::new(),
        },
    })
}

/// Images by path.
#[pyfunction]
#[pyo3(signature = (paths, labels=None))]
pub(crate) fn files(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    labels: Option<Vec<i64>>,
) -> PyResult<Pipeline> {
    let labels = labels.unwrap_or_default();
    if !labels.is_empty() && labels.len() != paths.len() {
        let text = format!(
            "{} labels for {} paths: there must be one for each",
            labels.len(),
            paths.len()
        );
        return Err(PyValueError::new_err(text));
    }
    let paths = py.detach(|| dataset_path::files(&paths))?;
    let paths = paths.into_iter().map(text).collect::<PyResult<_>>()?;
    let source = Source::Files(FileList { paths, labels });
    Ok(Pipeline {
        spec: PipelineSpec {
            source,
            ops: Vec::new(),
        },
    })
}

/// A dataset of Python code, told apart by named parts of 16 bytes each.
#[pyfunction]
#[pyo3(signature = (name, samples, dataset, rest, *, split, in_job))]
pub(crate) fn user_dataset(
    name: String,
    samples: Option<u32>,
    dataset: Vec<(String, [u8; 16])>,
    rest: Vec<(String, [u8; 16])>,
    split: bool,
    in_job: bool,
) -> Pipeline {
    let parts = |parts: Vec<(String, [u8; 16])>| {
        let part = |(name, hash)| Part {
            name,
            hash: u128::from_le_bytes(hash),
        };
        parts.into_iter().map(part).collect()
    };
    let source = Source::UserCode(UserDataset {
        name,
        samples,
        dataset: parts(dataset),
        rest: parts(rest),
        split,
        in_job,
    });
    Pipeline {
        spec: PipelineSpec {
            source,
            ops: Vec::new(),
        },
    }
}

impl Pipeline {
    fn with(&self, op: Op) -> Self {
        let mut spec = self.spec.clone();
        spec.ops.push(op);
        Pipeline { spec }
    }

    fn describe(&self, py: Python<'_>, socket: Option<PathBuf>) -> PyResult<control::Description> {
        let source = PipelineSpec {
            source: self.spec.source.clone(),
            ops: Vec::new(),
        };
        let how = How {
            program: crate::loader::program(py),
            pulse: signals(),
            ..How::start("coprep")
        };
        py.detach(|| control::describe(&place(socket), &how, source))
            .map_err(raise)
    }
}

#[pymethods]
impl Pipeline {
    #[pyo3(signature = (*, apply_exif_orientation=false, max_pixels=DEFAULT_MAX_PIXELS, scaled=true))]
    fn decode(&self, apply_exif_orientation: bool, max_pixels: u64, scaled: bool) -> Self {
        self.with(Op::Decode {
            apply_exif_orientation,
            max_pixels,
            scaled,
        })
    }

    #[pyo3(signature = (size, *, interpolation="bilinear"))]
    fn resize(&self, size: Size, interpolation: &str) -> PyResult<Self> {
        let to = match size {
            Size::Side(n) => ResizeTo::Shorter(n),
            Size::Both(height, width) => ResizeTo::Exact { height, width },
        };
        Ok(self.with(Op::Resize {
            to,
            interpolation: self::interpolation(interpolation)?,
        }))
    }

    fn center_crop(&self, size: Size) -> Self {
        let (height, width) = size.both();
        self.with(Op::CenterCrop { height, width })
    }

    #[pyo3(signature = (size, *, scale=(0.08, 1.0), ratio=(3.0 / 4.0, 4.0 / 3.0), interpolation="bilinear"))]
    fn random_resized_crop(
        &self,
        size: Size,
        scale: (f32, f32),
        ratio: (f32, f32),
        interpolation: &str,
    ) -> PyResult<Self> {
        let (height, width) = size.both();
        let interpolation = self::interpolation(interpolation)?;
        Ok(self.with(Op::RandomResizedCrop {
            height,
            width,
            scale,
            ratio,
            interpolation,
        }))
    }

    #[pyo3(signature = (p=0.5))]
    fn random_horizontal_flip(&self, p: f32) -> Self {
        self.with(Op::RandomHorizontalFlip { p })
    }

    fn normalize(&self, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.with(Op::Normalize { mean, std })
    }

    #[getter]
    fn root(&self) -> Option<&str> {
        match &self.spec.source {
            Source::ImageFolder { root } => Some(root),
            Source::Files(_) | Source::UserCode(_) => None,
        }
    }

    #[getter]
    fn classes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.describe(py, None)?.classes)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.describe(py, None)?.samples as usize)
    }

    /// Always true: `if pipeline` asks nobody for its length.
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

    fn __repr__(&self) -> String {
        self.spec.to_string()
    }
}
