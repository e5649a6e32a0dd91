//! Operators as Python writes them: reading their arguments, and writing the same calls for pickles.

use coprep_protocol::spec::{AudioChannels, Interpolation, LogMel, Op, ResizeTo};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};

// Reading of arguments.

/// A size argument: one side, or (height, width).
pub(crate) enum SizeArgument {
    Side(u32),
    Both(u32, u32),
}

impl SizeArgument {
    /// Accepts the sizes that torchvision accepts: an integer, or a sequence of one or two.
    pub(crate) fn of(operator: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = || {
            PyTypeError::new_err(format!(
                "{operator}: size must be a positive integer or (height, width), not {}",
                shown(value)
            ))
        };
        if let Some(side) = integer(value) {
            return Ok(SizeArgument::Side(positive(side).ok_or_else(wrong)?));
        }
        let items = sequence(value).ok_or_else(wrong)?;
        let sides: Option<Vec<u32>> = items
            .iter()
            .map(|item| integer(item).and_then(positive))
            .collect();
        match sides.as_deref() {
            Some(&[side]) => Ok(SizeArgument::Side(side)),
            Some(&[height, width]) => Ok(SizeArgument::Both(height, width)),
            _ => Err(wrong()),
        }
    }

    pub(crate) fn both(self) -> (u32, u32) {
        match self {
            SizeArgument::Side(side) => (side, side),
            SizeArgument::Both(height, width) => (height, width),
        }
    }
}

fn shown(value: &Bound<'_, PyAny>) -> String {
    value
        .repr()
        .map_or_else(|_| "what has no repr".into(), |text| text.to_string())
}

/// Returns an integer, including NumPy's. `True` does not count as one.
fn integer(value: &Bound<'_, PyAny>) -> Option<i64> {
    if value.is_instance_of::<PyBool>() {
        return None;
    }
    value.extract().ok()
}

/// Returns a number of pixels or samples. Zero passes here, because the operator's rules refuse it.
pub(crate) fn integer_argument(
    operator: &str,
    argument: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<u64> {
    let found = integer(value).and_then(|found| u64::try_from(found).ok());
    found.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{operator}: {argument} must be a positive integer, not {}",
            shown(value)
        ))
    })
}

/// Returns a side that is not negative. Zero passes here, because the operator's rules refuse it and name the operator.
fn positive(side: i64) -> Option<u32> {
    u32::try_from(side).ok()
}

/// Returns the items of a list, a tuple, an array or a tensor.
fn sequence<'py>(value: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    // A string can be iterated over too, but its characters are not numbers.
    if value.is_instance_of::<PyString>() {
        return None;
    }
    value.try_iter().ok()?.collect::<PyResult<_>>().ok()
}

/// Returns exactly `N` numbers. `meaning` describes them in the error.
pub(crate) fn numbers<const N: usize>(
    operator: &str,
    argument: &str,
    value: &Bound<'_, PyAny>,
    meaning: &str,
) -> PyResult<[f32; N]> {
    // A value that is not a sequence gives no numbers, which leads to the error below.
    let items = sequence(value).unwrap_or_default();
    let found: Option<Vec<f32>> = items.iter().map(|item| item.extract().ok()).collect();
    found
        .and_then(|found| found.try_into().ok())
        .ok_or_else(|| {
            PyTypeError::new_err(format!(
                "{operator}: {argument} must be {meaning}, not {}",
                shown(value)
            ))
        })
}

pub(crate) fn number(operator: &str, argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f32> {
    value.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "{operator}: {argument} must be a number, not {}",
            shown(value)
        ))
    })
}

/// Accepts the name of an interpolation, or torchvision's `InterpolationMode`. The default is bilinear.
pub(crate) fn interpolation(
    operator: &str,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<Interpolation> {
    let Some(value) = value else {
        return Ok(Interpolation::Bilinear);
    };
    let name = value.extract::<String>();
    // torchvision's `InterpolationMode` is an enum whose value is the name.
    let name = name.or_else(|_| value.getattr("value")?.extract::<String>());
    match name.as_deref() {
        Ok("nearest") => Ok(Interpolation::Nearest),
        Ok("bilinear") => Ok(Interpolation::Bilinear),
        Ok("bicubic") => Ok(Interpolation::Bicubic),
        found => {
            let text = format!(
                "{operator}: interpolation must be 'nearest', 'bilinear' or 'bicubic', not {}",
                shown(value)
            );
            Err(match found {
                Ok(_) => PyValueError::new_err(text),
                Err(_) => PyTypeError::new_err(text),
            })
        }
    }
}

// Writing of calls.

/// Returns the calls that make these operators, as a list of (name, positional arguments, keyword arguments).
pub(crate) fn calls<'py>(py: Python<'py>, ops: &[Op]) -> PyResult<Bound<'py, PyList>> {
    let calls = PyList::empty(py);
    for op in ops {
        let named = PyDict::new(py);
        let arguments = arguments(py, op, &named)?;
        calls.append((op.name(), arguments, named))?;
    }
    Ok(calls)
}

/// Returns the positional arguments of the call that makes an operator, and puts the keyword arguments into `named`.
fn arguments<'py>(
    py: Python<'py>,
    op: &Op,
    named: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyTuple>> {
    match *op {
        Op::Decode {
            apply_exif_orientation,
            max_pixels,
            scaled,
        } => {
            named.set_item("apply_exif_orientation", apply_exif_orientation)?;
            named.set_item("max_pixels", max_pixels)?;
            named.set_item("scaled", scaled)?;
            Ok(PyTuple::empty(py))
        }
        Op::DecodeNpy => Ok(PyTuple::empty(py)),
        Op::DecodeAudio {
            channels,
            max_samples,
        } => {
            match channels {
                AudioChannels::Mixed => {}
                AudioChannels::One(channel) => named.set_item("channel", channel)?,
                AudioChannels::All(count) => named.set_item("channels", count)?,
            }
            named.set_item("max_samples", max_samples)?;
            Ok(PyTuple::empty(py))
        }
        Op::Resample { rate } => (rate,).into_pyobject(py),
        Op::RandomCrop { samples } | Op::Crop { samples } => {
            named.set_item("samples", samples)?;
            Ok(PyTuple::empty(py))
        }
        Op::LogMel(ref shape) => {
            name_mel_arguments(shape, named)?;
            Ok(PyTuple::empty(py))
        }
        Op::Resize { to, interpolation } => {
            named.set_item("interpolation", interpolation.name())?;
            match to {
                ResizeTo::Shorter(side) => (side,).into_pyobject(py),
                ResizeTo::Exact { height, width } => ((height, width),).into_pyobject(py),
            }
        }
        Op::CenterCrop { height, width } => ((height, width),).into_pyobject(py),
        Op::RandomResizedCrop {
            height,
            width,
            scale,
            ratio,
            interpolation,
        } => {
            named.set_item("scale", scale)?;
            named.set_item("ratio", ratio)?;
            named.set_item("interpolation", interpolation.name())?;
            ((height, width),).into_pyobject(py)
        }
        Op::RandomHorizontalFlip { p } => (p,).into_pyobject(py),
        Op::Normalize { mean, std } => (mean, std).into_pyobject(py),
    }
}

fn name_mel_arguments(shape: &LogMel, named: &Bound<'_, PyDict>) -> PyResult<()> {
    named.set_item("n_fft", shape.n_fft)?;
    named.set_item("win_length", shape.win_length)?;
    named.set_item("hop_length", shape.hop_length)?;
    named.set_item("n_mels", shape.n_mels)?;
    named.set_item("f_min", shape.f_min)?;
    named.set_item("f_max", shape.f_max)?;
    named.set_item("floor", shape.floor)
}
