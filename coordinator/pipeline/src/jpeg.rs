//! JPEG decoding, whole or in part, by libjpeg-turbo 3 through its TurboJPEG interface.
//!
//! This is the crate's only `unsafe` module. It owns one decompressor handle. It passes the handle the bytes, and a
//! destination whose length was checked against the size that the decoder itself reports.
//!
//! # Damaged files
//!
//! The rules are Pillow's. Data that end too soon are an error. Data that are complete but garbled inside are decoded
//! as they are. The decoder's other warnings (bytes between markers, an unknown revision) are harmless. The decoder
//! keeps the text of the first warning only, so an early end after another warning would go unseen;
//! [`crate::header::has_end`] finds that case.
#![expect(
    unsafe_code,
    reason = "the safe interface of `turbojpeg` has no partial decoding"
)]

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use turbojpeg::raw;

use crate::crop::{ImageSize, Rect};
use crate::error::{self, Error};

/// Most scans of a progressive file. A file with more is taken for a decompression bomb (libjpeg-turbo's own advice for
/// untrusted files).
const MAX_SCANS: c_int = 500;

/// A decompressor that decodes a single image.
///
/// A decompressor that is used again applies the tables of the previous image to an image without tables of its own, so
/// that pixels would depend on the order of the samples. A new handle costs about a thousandth of a decode.
pub(crate) struct JpegDecoder {
    handle: NonNull<std::ffi::c_void>,
}

/// Size, MCU width and colours of an image, as the decoder reports them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JpegHeader {
    pub(crate) size: ImageSize,
    /// Columns of one MCU, which is the granularity of partial decoding, or `None` if the image must be decoded whole.
    pub(crate) mcu_width: Option<u32>,
    pub(crate) colours: Colours,
}

/// Colour space of the decoder's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    /// Three bytes per pixel.
    Rgb,
    /// Four bytes per pixel.
    Cmyk,
}

impl Colours {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Colours::Rgb => 3,
            Colours::Cmyk => 4,
        }
    }

    fn format(self) -> raw::TJPF {
        match self {
            Colours::Rgb => raw::TJPF_TJPF_RGB,
            Colours::Cmyk => raw::TJPF_TJPF_CMYK,
        }
    }
}

impl JpegDecoder {
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: takes a number and gives a new handle or null.
        let handle = unsafe { raw::tj3Init(raw::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let handle = NonNull::new(handle)
            .ok_or_else(|| error::unsupported("the JPEG decoder did not start"))?;
        let decoder = JpegDecoder { handle };
        decoder.set(raw::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS)?;
        Ok(decoder)
    }

    /// Reads the header of `bytes`.
    pub(crate) fn read_header(&mut self, bytes: &[u8]) -> Result<JpegHeader, Error> {
        // SAFETY: the handle is alive; `bytes` is readable for its length, and the decoder does not
        // keep it beyond the call.
        let rc = unsafe {
            raw::tj3DecompressHeader(
                self.handle.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as raw::size_t,
            )
        };
        self.check(rc)?;
        let side = |param| u32::try_from(self.get(param)).unwrap_or(0);
        let size = ImageSize::new(
            side(raw::TJPARAM_TJPARAM_JPEGWIDTH),
            side(raw::TJPARAM_TJPARAM_JPEGHEIGHT),
        );
        Ok(JpegHeader {
            size,
            mcu_width: self.mcu_width(),
            colours: self.colours(),
        })
    }

    /// Decodes `region` of the image, reduced by `1 / denominator`, into `out`, row after row. The length of `out` must
    /// be exactly that of the region.
    ///
    /// `header` must be that of `bytes`, from the last [`JpegDecoder::read_header`].
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        header: &JpegHeader,
        denominator: u32,
        region: Rect,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let pitch = region.size.width as usize * header.colours.bytes();
        let wanted = pitch * region.size.height as usize;
        if out.len() != wanted {
            return Err(error::wrong_length("decoded JPEG", wanted, out.len()));
        }
        let reduced = header.size.reduced(denominator);
        if region.right() > reduced.width || region.bottom() > reduced.height {
            return Err(error::damaged("the JPEG is smaller than its header says"));
        }
        let part = (region != reduced.whole()).then_some(region);
        self.limit(denominator, part)?;
        // SAFETY: the handle is alive. `bytes` is readable for its length. The decoder reads the same
        // bytes' header again, so it finds `header.size`; with the reduction and the region that were
        // just accepted it writes rows of `region.size.width` pixels in the given format, `pitch`
        // bytes apart, `region.size.height` of them: `wanted` bytes, which `out` has.
        let rc = unsafe {
            raw::tj3Decompress8(
                self.handle.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as raw::size_t,
                out.as_mut_ptr(),
                pitch as c_int,
                header.colours.format(),
            )
        };
        self.check(rc)
    }

    /// Sets the reduction, and the region to decode (`None` for the whole image).
    fn limit(&mut self, denominator: u32, region: Option<Rect>) -> Result<(), Error> {
        let scale = raw::tjscalingfactor {
            num: 1,
            denom: denominator as c_int,
        };
        let none = raw::tjregion {
            x: 0,
            y: 0,
            w: 0,
            h: 0,
        };
        let region = region.map_or(none, |r| raw::tjregion {
            x: r.x as c_int,
            y: r.y as c_int,
            w: r.size.width as c_int,
            h: r.size.height as c_int,
        });
        let handle = self.handle.as_ptr();
        // SAFETY: the handle is alive; the other argument is a plain value that the call checks.
        // The reduction comes first: a region is checked against the reduced size.
        self.check(unsafe { raw::tj3SetScalingFactor(handle, scale) })?;
        // SAFETY: as above.
        self.check(unsafe { raw::tj3SetCroppingRegion(handle, region) })
    }

    fn set(&self, param: raw::TJPARAM, value: c_int) -> Result<(), Error> {
        // SAFETY: the handle is alive; parameter and value are plain numbers that the call checks.
        self.check(unsafe { raw::tj3Set(self.handle.as_ptr(), param as c_int, value) })
    }

    fn get(&self, param: raw::TJPARAM) -> c_int {
        // SAFETY: the handle is alive; the call gives -1 for a parameter that it does not know.
        unsafe { raw::tj3Get(self.handle.as_ptr(), param as c_int) }
    }

    fn mcu_width(&self) -> Option<u32> {
        // A lossless JPEG has no DCT blocks, so it can be decoded whole only.
        if self.get(raw::TJPARAM_TJPARAM_LOSSLESS) != 0 {
            return None;
        }
        // The entries are in the order of TJSAMP: 4:4:4, 4:2:2, 4:2:0, gray, 4:4:0, 4:1:1, 4:4:1.
        let widths = [8, 16, 16, 8, 8, 32, 8];
        let subsampling = usize::try_from(self.get(raw::TJPARAM_TJPARAM_SUBSAMP)).ok()?;
        widths.get(subsampling).copied()
    }

    fn colours(&self) -> Colours {
        let space = self.get(raw::TJPARAM_TJPARAM_COLORSPACE);
        if space == raw::TJCS_TJCS_CMYK as c_int || space == raw::TJCS_TJCS_YCCK as c_int {
            Colours::Cmyk
        } else {
            Colours::Rgb
        }
    }

    /// Turns a return code of the decoder into an error, unless it stands for a harmless warning.
    fn check(&self, rc: c_int) -> Result<(), Error> {
        if rc == 0 {
            return Ok(());
        }
        // SAFETY: the handle is alive; the string lies in it, ends with a zero, and is copied before
        // the next call could change it.
        let text = unsafe { CStr::from_ptr(raw::tj3GetErrorStr(self.handle.as_ptr())) };
        judge(&text.to_string_lossy())
    }
}

/// Tells a harmless warning from a failure by its text. The error code is not enough: it says "warning" for a failure
/// that follows a warning, but the text is then that of the failure.
fn judge(text: &str) -> Result<(), Error> {
    const HARMLESS: [&str; 6] = [
        "Corrupt JPEG data",
        "Inconsistent progression sequence",
        "Unknown Adobe color transform",
        "Warning: unknown JFIF revision",
        "Invalid SOS parameters for sequential JPEG",
        "Application transferred too many scanlines",
    ];
    if HARMLESS.iter().any(|warning| text.starts_with(warning)) {
        return Ok(());
    }
    Err(error::damaged(format!(
        "the JPEG cannot be decoded ({text})"
    )))
}

impl Drop for JpegDecoder {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and this is its last use.
        unsafe { raw::tj3Destroy(self.handle.as_ptr()) }
    }
}
