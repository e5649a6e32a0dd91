//! Samples that are arrays already: windows of tokens, rows of arrays, and `.npy` files. Nothing is decoded; the bytes
//! are copied into the slot, or each element is made wider on the way.

use std::time::Instant;

use coprep_costs::MeasuredTimes;
use coprep_protocol::spec::{Dtype, Field};

use crate::crop::DecodedShape;
use crate::error::{self, Error, invalid};
use crate::npy::{self, NpyHeader};
use crate::run::{Picture, PipelineRun, check_slot};

/// The tensor that a sample is, and the type of its elements in storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrayForm {
    pub(crate) field: Field,
    pub(crate) stored: Dtype,
}

impl ArrayForm {
    fn elements(&self) -> usize {
        self.field.sample_bytes() / self.field.dtype.size()
    }

    /// Returns the bytes of a sample in storage.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.elements() * self.stored.size()
    }
}

/// Copies arrays into slots.
#[derive(Clone, Debug)]
pub(crate) struct ArrayPipeline {
    form: ArrayForm,
    /// `true` if each sample is a file with a header.
    has_header: bool,
}

impl ArrayPipeline {
    /// Returns the pipeline of samples that are bytes without a header.
    pub(crate) fn of_windows(form: ArrayForm) -> Self {
        ArrayPipeline {
            form,
            has_header: false,
        }
    }

    /// Returns the pipeline of `.npy` files with the type and shape of the first, which begins with `head`.
    pub(crate) fn of_npy_files(head: &[u8]) -> Result<Self, Error> {
        let NpyHeader { dtype, shape, .. } = npy::header(head)?;
        let field = Field {
            name: "array".into(),
            dtype,
            shape,
        };
        if field.sample_bytes() as u64 > crate::MOST_BYTES {
            return Err(invalid("it is larger than a sample may be"));
        }
        Ok(ArrayPipeline {
            form: ArrayForm {
                stored: dtype,
                field,
            },
            has_header: true,
        })
    }

    pub(crate) fn output(&self) -> Field {
        self.form.field.clone()
    }

    pub(crate) fn inspect(&self) -> Picture {
        Picture {
            pixels: self.form.elements() as u64,
            decoded: DecodedShape {
                // A sample has at most 1 GiB.
                width: self.form.stored_bytes() as u32,
                height: 1,
                pixel_bytes: 1,
            },
        }
    }

    pub(crate) fn decode_into(&self, encoded: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let data = self.data(encoded)?;
        if out.len() != data.len() {
            return Err(error::wrong_length("decoded form", data.len(), out.len()));
        }
        out.copy_from_slice(data);
        Ok(())
    }

    pub(crate) fn prepare_encoded(
        &self,
        encoded: &[u8],
        slot: &mut [u8],
    ) -> Result<PipelineRun, Error> {
        self.prepare_decoded(self.data(encoded)?, slot)
    }

    /// Prepares a sample from its elements alone.
    pub(crate) fn prepare_decoded(
        &self,
        data: &[u8],
        slot: &mut [u8],
    ) -> Result<PipelineRun, Error> {
        let began = Instant::now();
        check_slot(slot, self.form.field.sample_bytes())?;
        if data.len() != self.form.stored_bytes() {
            return Err(error::wrong_length(
                "array",
                self.form.stored_bytes(),
                data.len(),
            ));
        }
        convert(data, self.form.stored, self.form.field.dtype, slot);
        Ok(PipelineRun {
            times: MeasuredTimes {
                decode: MeasuredTimes::stage(began.elapsed()),
                ..MeasuredTimes::default()
            },
            pixels: self.form.elements() as u64,
        })
    }

    /// Returns the elements of a sample, after checking its header.
    fn data<'a>(&self, encoded: &'a [u8]) -> Result<&'a [u8], Error> {
        if !self.has_header {
            return Ok(encoded);
        }
        let found = npy::header(encoded)?;
        let Field { dtype, shape, .. } = &self.form.field;
        if (found.dtype, &found.shape) != (*dtype, shape) {
            return Err(error::other_shape(format!(
                "it holds {} of shape {:?}, and the first array of the dataset {} of shape {shape:?}",
                found.dtype.name(),
                found.shape,
                dtype.name(),
            )));
        }
        let data = &encoded[found.data_at..];
        // Bytes behind the array are left out, as by `numpy.load`.
        data.get(..self.form.stored_bytes()).ok_or_else(|| {
            error::damaged(format!(
                "its header tells of {} bytes of elements, and there are {}",
                self.form.stored_bytes(),
                data.len()
            ))
        })
    }
}

/// Copies elements, made wider where `to` is another type than `from`; see
/// [`converts_to`](coprep_protocol::array_files::converts_to). Files and memory are both little-endian.
fn convert(data: &[u8], from: Dtype, to: Dtype, out: &mut [u8]) {
    if from == to {
        out.copy_from_slice(data);
        return;
    }
    match from {
        Dtype::U8 => widen(data, to, out, |x| u8::from_le_bytes(x).into()),
        Dtype::I8 => widen(data, to, out, |x| i8::from_le_bytes(x).into()),
        Dtype::U16 => widen(data, to, out, |x| u16::from_le_bytes(x).into()),
        Dtype::I16 => widen(data, to, out, |x| i16::from_le_bytes(x).into()),
        Dtype::U32 => widen(data, to, out, |x| u32::from_le_bytes(x).into()),
        _ => widen(data, to, out, |x| i32::from_le_bytes(x).into()),
    }
}

fn widen<const N: usize>(data: &[u8], to: Dtype, out: &mut [u8], value: impl Fn([u8; N]) -> i64) {
    let values = data.as_chunks::<N>().0.iter().map(|&x| value(x));
    if to == Dtype::I32 {
        let slots = out.as_chunks_mut::<4>().0.iter_mut();
        slots
            .zip(values)
            .for_each(|(slot, x)| *slot = (x as i32).to_le_bytes());
    } else {
        let slots = out.as_chunks_mut::<8>().0.iter_mut();
        slots
            .zip(values)
            .for_each(|(slot, x)| *slot = x.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use coprep_protocol::array_files::converts_to;

    use super::*;

    #[test]
    fn every_conversion_keeps_the_extreme_values() {
        let stored = [
            (Dtype::U8, 0i64, i64::from(u8::MAX)),
            (Dtype::I8, i8::MIN.into(), i8::MAX.into()),
            (Dtype::U16, 0, u16::MAX.into()),
            (Dtype::I16, i16::MIN.into(), i16::MAX.into()),
            (Dtype::U32, 0, u32::MAX.into()),
            (Dtype::I32, i32::MIN.into(), i32::MAX.into()),
            (Dtype::I64, i64::MIN, i64::MAX),
        ];
        for (from, low, high) in stored {
            let bytes = |value: i64, dtype: Dtype| value.to_le_bytes()[..dtype.size()].to_vec();
            let data = [bytes(low, from), bytes(high, from)].concat();
            for to in converts_to(from) {
                let mut out = vec![0; 2 * to.size()];
                convert(&data, from, to, &mut out);
                assert_eq!(
                    out,
                    [bytes(low, to), bytes(high, to)].concat(),
                    "{from:?} {to:?}"
                );
            }
        }
    }
}
