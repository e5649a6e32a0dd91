//! Logarithms of mel spectrograms, as `torchaudio.transforms.MelSpectrogram` defines them by default: a periodic Hann
//! window, frames centred with reflected edges, power 2, the HTK mel scale, filters that are not normalised.

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use coprep_protocol::spec::LogMel;
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

/// The tables of a log-mel spectrogram, computed once and shared by all threads.
pub(crate) struct MelTransform {
    shape: LogMel,
    /// Window, padded to the length of the transform.
    window: Vec<f32>,
    filters: Vec<Filter>,
    fft: Arc<dyn RealToComplex<f32>>,
}

/// A triangle over the frequencies, without the zeros around it.
#[derive(Debug)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

/// Memory of one thread, used again for every sample.
#[derive(Default)]
pub(crate) struct MelScratch {
    frame: Vec<f32>,
    spectrum: Vec<Complex<f32>>,
    power: Vec<f32>,
    fft: Vec<Complex<f32>>,
}

impl fmt::Debug for MelTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MelTransform")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl MelTransform {
    /// Computes window and filters for samples at `rate` Hz.
    pub(crate) fn new(shape: LogMel, rate: u32) -> Self {
        let (size, length) = (shape.n_fft as usize, shape.win_length as usize);
        let hann = |i: usize| (0.5 - 0.5 * (2.0 * PI * i as f64 / length as f64).cos()) as f32;
        let mut window = vec![0.0; size];
        let left = (size - length) / 2;
        (0..length).for_each(|i| window[left + i] = hann(i));
        MelTransform {
            window,
            filters: filters(&shape, rate),
            fft: RealFftPlanner::new().plan_fft_forward(size),
            shape,
        }
    }

    /// Returns the number of mel bands, and of frames of `samples` samples.
    pub(crate) fn output(&self, samples: u32) -> [u32; 2] {
        [self.shape.n_mels, samples / self.shape.hop_length + 1]
    }

    /// Writes the spectrogram of one channel into `out`: float32, bands x frames.
    pub(crate) fn run(&self, samples: &[f32], scratch: &mut MelScratch, out: &mut [u8]) {
        let size = self.shape.n_fft as usize;
        let frames = samples.len() / self.shape.hop_length as usize + 1;
        let MelScratch {
            frame,
            spectrum,
            power,
            fft,
        } = scratch;
        frame.resize(size, 0.0);
        spectrum.resize(size / 2 + 1, Complex::default());
        power.resize(size / 2 + 1, 0.0);
        fft.resize(self.fft.get_scratch_len(), Complex::default());
        let (values, _) = out.as_chunks_mut::<4>();
        for number in 0..frames {
            let start = (number * self.shape.hop_length as usize) as i64 - (size / 2) as i64;
            self.cut(samples, start, frame);
            // It fails only on buffers of another length.
            let transformed = self.fft.process_with_scratch(frame, spectrum, fft);
            debug_assert!(transformed.is_ok());
            let squares = spectrum.iter().map(Complex::norm_sqr);
            power
                .iter_mut()
                .zip(squares)
                .for_each(|(p, square)| *p = square);
            for (band, filter) in self.filters.iter().enumerate() {
                // Silence has no logarithm, so the floor stands for it.
                let value = filter.apply(power).max(self.shape.floor).ln();
                values[band * frames + number] = value.to_ne_bytes();
            }
        }
    }

    /// Cuts out a frame under the window. Beyond its edges the signal is reflected.
    fn cut(&self, samples: &[f32], start: i64, frame: &mut [f32]) {
        let last = samples.len() as i64 - 1;
        let whole = usize::try_from(start)
            .ok()
            .and_then(|start| samples.get(start..start + frame.len()));
        if let Some(samples) = whole {
            let windowed = samples.iter().zip(&self.window).map(|(x, w)| x * w);
            frame.iter_mut().zip(windowed).for_each(|(to, x)| *to = x);
            return;
        }
        for ((at, to), w) in (start..).zip(frame).zip(&self.window) {
            // The inner `abs` reflects at the first sample, and the outer one at the last.
            let inside = last - (last - at.abs()).abs();
            *to = samples[inside as usize] * w;
        }
    }
}

impl Filter {
    fn apply(&self, power: &[f32]) -> f32 {
        let power = &power[self.first..][..self.weights.len()];
        power.iter().zip(&self.weights).map(|(p, w)| p * w).sum()
    }
}

/// Returns the filters of `torchaudio.functional.melscale_fbanks` with `norm=None` and `mel_scale="htk"`.
fn filters(shape: &LogMel, rate: u32) -> Vec<Filter> {
    let bins = shape.n_fft as usize / 2 + 1;
    // Like torchaudio, which divides integers here.
    let nyquist = f64::from(rate / 2);
    let frequency = |bin: usize| nyquist * bin as f64 / (bins - 1) as f64;
    let mel = |hz: f64| 2595.0 * (1.0 + hz / 700.0).log10();
    let hz = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
    let low = mel(shape.f_min.into());
    let high = mel(shape.f_max.map_or(nyquist, f64::from));
    let points = shape.n_mels as usize + 1;
    let edge = |point: usize| hz(low + (high - low) * point as f64 / points as f64);
    let filter = |band: usize| {
        let (left, centre, right) = (edge(band), edge(band + 1), edge(band + 2));
        let weight = |bin: usize| {
            let up = (frequency(bin) - left) / (centre - left);
            let down = (right - frequency(bin)) / (right - centre);
            up.min(down).max(0.0) as f32
        };
        let weights: Vec<f32> = (0..bins).map(weight).collect();
        // A narrow band may lie between two frequencies of the transform. All its weights are then zero.
        let first = weights.iter().position(|&w| w > 0.0).unwrap_or(0);
        let end = weights
            .iter()
            .rposition(|&w| w > 0.0)
            .map_or(0, |last| last + 1);
        Filter {
            first,
            weights: weights[first..end.max(first)].to_vec(),
        }
    };
    (0..shape.n_mels as usize).map(filter).collect()
}
