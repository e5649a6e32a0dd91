//! Resampling by a rational factor: a windowed sinc, with the kernel of `torchaudio.functional.resample`
//! (`sinc_interp_hann`, `lowpass_filter_width` 6, `rolloff` 0.99).
//!
//! Each output sample depends on a few input samples around it and on nothing else, so that a part of the output is the
//! same, bit for bit, however much is computed around it. That is why no streaming resampler is used, whose state depends
//! on where it began.

use std::f64::consts::PI;
use std::ops::Range;

use crate::error::{self, Error};

/// Zero crossings of the kernel on each side.
const HALF_WIDTH: f64 = 6.0;
/// Cut-off frequency, as a share of the lower of the two Nyquist frequencies.
const ROLLOFF: f64 = 0.99;
/// Most numbers of a table of kernels: 16 MiB.
const MOST_TAPS: usize = 4 << 20;

/// The kernels between two rates.
#[derive(Debug)]
pub(crate) struct Resampler {
    /// The rates, in Hz.
    pub(crate) rates: (u32, u32),
    /// The rates without their common divisor.
    from: u64,
    to: u64,
    /// Number of taps of each kernel.
    taps: usize,
    /// For each of `to` phases the position of its first tap, relative to the input sample at which the phases begin.
    first: Vec<i64>,
    /// The kernels, one after another.
    kernels: Vec<f32>,
}

impl Resampler {
    /// Computes the kernels.
    ///
    /// # Errors
    /// If the ratio of the rates is so odd that there would be too many.
    pub(crate) fn new(from_hz: u32, to_hz: u32) -> Result<Self, Error> {
        let divisor = gcd(from_hz, to_hz);
        let (from, to) = (from_hz / divisor, to_hz / divisor);
        let base = f64::from(from.min(to)) * ROLLOFF;
        // Input samples on each side of an output sample.
        let reach = HALF_WIDTH * f64::from(from) / base;
        let taps = (2.0 * reach).floor() as usize + 1;
        if taps.saturating_mul(to as usize) > MOST_TAPS {
            return Err(error::unsupported(format!(
                "resampling from {from_hz} to {to_hz} Hz, whose ratio {from}:{to} has too large numbers"
            )));
        }
        let mut first = Vec::with_capacity(to as usize);
        let mut kernels = Vec::with_capacity(taps * to as usize);
        for phase in 0..to {
            let centre = f64::from(phase) * f64::from(from) / f64::from(to);
            let start = (centre - reach).ceil();
            first.push(start as i64);
            for tap in 0..taps {
                let at = (start + tap as f64) / f64::from(from) - f64::from(phase) / f64::from(to);
                kernels.push((kernel(at * base) * base / f64::from(from)) as f32);
            }
        }
        Ok(Resampler {
            rates: (from_hz, to_hz),
            from: from.into(),
            to: to.into(),
            taps,
            first,
            kernels,
        })
    }

    /// Returns the input samples, of `frames`, that the output samples `part` depend on.
    pub(crate) fn input(&self, part: &Range<u64>, frames: u64) -> Range<u64> {
        if part.is_empty() {
            return 0..0;
        }
        let start = self.position(part.start);
        let end = self.position(part.end - 1) + self.taps as i64;
        let within = |at: i64| u64::try_from(at).unwrap_or(0).min(frames);
        within(start)..within(end)
    }

    /// Returns the input sample of the first tap of an output sample.
    fn position(&self, output: u64) -> i64 {
        let phase = (output % self.to) as usize;
        (output / self.to * self.from) as i64 + self.first[phase]
    }

    /// Computes the output samples from `start` on into `out`. `input` holds the input samples from `input_start` on;
    /// those that it lacks are zero.
    pub(crate) fn run(&self, input: &[f32], input_start: u64, start: u64, out: &mut [f32]) {
        for (output, out) in (start..).zip(out) {
            let phase = (output % self.to) as usize;
            let kernel = &self.kernels[phase * self.taps..][..self.taps];
            let at = self.position(output) - input_start as i64;
            let whole = usize::try_from(at)
                .ok()
                .and_then(|at| input.get(at..at + self.taps));
            *out = match whole {
                Some(samples) => dot(kernel, samples),
                None => self.at_an_edge(kernel, input, at),
            };
        }
    }

    /// Computes an output sample whose kernel reaches beyond the input, by the same sum as inside.
    fn at_an_edge(&self, kernel: &[f32], input: &[f32], at: i64) -> f32 {
        let sample = |tap: usize| {
            let index = usize::try_from(at + tap as i64).ok();
            index
                .and_then(|index| input.get(index))
                .copied()
                .unwrap_or(0.0)
        };
        let samples: Vec<f32> = (0..self.taps).map(sample).collect();
        dot(kernel, &samples)
    }
}

/// Returns the number of samples that `frames` samples become by resampling.
pub(crate) fn output_frames(frames: u64, from_hz: u32, to_hz: u32) -> u64 {
    let wide = u128::from(frames) * u128::from(to_hz);
    u64::try_from(wide.div_ceil(from_hz.into())).unwrap_or(u64::MAX)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums, which the compiler keeps in vectors. The order is the same for every output sample.
    let mut sums = [0.0f32; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Returns the kernel at `t` zero crossings from its centre: a sinc under a Hann window.
fn kernel(t: f64) -> f64 {
    if t.abs() >= HALF_WIDTH {
        return 0.0;
    }
    let window = (t * PI / HALF_WIDTH / 2.0).cos().powi(2);
    let sinc = if t == 0.0 {
        1.0
    } else {
        (t * PI).sin() / (t * PI)
    };
    window * sinc
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(frames: usize) -> Vec<f32> {
        (0..frames)
            .map(|i| ((i * i % 977) as f32 / 488.0 - 1.0) * 0.5)
            .collect()
    }

    #[test]
    fn a_part_is_the_same_as_that_part_of_the_whole() {
        for (from, to) in [
            (44_100, 16_000),
            (16_000, 44_100),
            (8_000, 16_000),
            (48_000, 16_000),
            (7, 5),
        ] {
            let resampler = Resampler::new(from, to).expect("small numbers");
            let input = signal(3_000);
            let frames = output_frames(3_000, from, to);
            let mut whole = vec![0.0; frames as usize];
            resampler.run(&input, 0, 0, &mut whole);
            for part in [0..10, 5..frames.min(300), frames - 7..frames, 3..3] {
                let wanted = resampler.input(&part, 3_000);
                let cut = &input[wanted.start as usize..wanted.end as usize];
                let mut out = vec![0.0; (part.end - part.start) as usize];
                resampler.run(cut, wanted.start, part.start, &mut out);
                assert_eq!(
                    out,
                    whole[part.start as usize..part.end as usize],
                    "{from} {to} {part:?}"
                );
            }
        }
    }

    #[test]
    fn a_tone_stays_a_tone() {
        let (from, to, hz) = (44_100, 16_000, 440.0);
        let tone = |rate: u32, i: usize| (2.0 * PI * hz * i as f64 / f64::from(rate)).sin();
        let input: Vec<f32> = (0..8_820).map(|i| tone(from, i) as f32).collect();
        let resampler = Resampler::new(from, to).expect("small numbers");
        let mut out = vec![0.0; output_frames(8_820, from, to) as usize];
        resampler.run(&input, 0, 0, &mut out);
        assert_eq!(out.len(), 3_200);
        // Not at the edges, beyond which the input is zero.
        for (i, &sample) in out.iter().enumerate().take(3_150).skip(50) {
            let error = (f64::from(sample) - tone(to, i)).abs();
            assert!(error < 1e-3, "sample {i} differs by {error}");
        }
    }

    #[test]
    fn rates_without_a_small_ratio_are_refused() {
        assert!(Resampler::new(767_999, 44_101).is_err());
        assert!(Resampler::new(44_100, 16_000).is_ok());
    }
}
