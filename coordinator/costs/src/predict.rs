//! Predicts the cost of a sample before it was ever prepared.
//!
//! Each stage has a line, `seconds = a + b * bytes + c * pixels`. It is fitted to the samples as they come by
//! exponentially weighted recursive least squares (Haykin, Adaptive Filter Theory, the chapter on recursive least
//! squares), in its information form. The state is the weighted means and covariances of features and seconds, and the
//! line is solved for when it is needed. For two features that costs no more. The state is a mean of past values, so it
//! can neither grow without bound nor lose its sign.
//!
//! - **Forgetting.** A sample's weight falls by 1/256 with every later one.
//! - **Scale.** The covariances are solved as correlations with a small ridge (Hoerl, Kennard 1970), as if half an
//!   observation had seen no slope. So units do not matter, and few samples make no steep line. A feature that does not
//!   vary, or varies only along with the other one, does no harm.
//! - **Weight.** Noise grows with the cost, so a sample weighs by the inverse square of its expected cost. Otherwise
//!   the largest samples would determine the line, and it would be wrong for all others.
//! - **Outliers.** A value counts only up to 8 mean deviations from its expected value (Huber 1964). The deviation
//!   itself adapts, so that a change of the law comes through.

use crate::table::{ExpectedCost, MeasuredTimes};

/// Features of a sample that are known without preparing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// Size in storage.
    pub bytes: u64,
    /// Width times height.
    pub pixels: u64,
}

impl Features {
    /// Features of a sample of user code, about which nothing is known.
    pub const UNKNOWN: Features = Features {
        bytes: 0,
        pixels: 0,
    };

    fn vector(self) -> [f64; 2] {
        [self.bytes as f64, self.pixels as f64]
    }
}

/// Learns the cost of each stage.
#[derive(Clone, Debug, Default)]
pub struct Predictor {
    fetch: StageModel,
    decode: StageModel,
    fixed: StageModel,
    random: StageModel,
    cpu: StageModel,
}

impl Predictor {
    /// Creates a predictor that expects every sample to cost nothing.
    pub fn new() -> Self {
        Predictor::default()
    }

    /// Learns from a sample that was prepared. Values that are negative or not finite are ignored.
    pub fn observe(&mut self, features: Features, measured: &MeasuredTimes) {
        let each = [
            (&mut self.fetch, measured.fetch),
            (&mut self.decode, measured.decode),
            (&mut self.fixed, measured.fixed),
            (&mut self.random, measured.random),
            (&mut self.cpu, measured.cpu),
        ];
        for (line, seconds) in each {
            if let Some(seconds) = seconds.filter(|s| s.is_finite() && *s >= 0.0) {
                line.observe(features, f64::from(seconds));
            }
        }
    }

    /// Returns the expected cost of a sample, which is finite and not negative. If its features are unknown, that is
    /// the mean of all samples.
    pub fn predict(&self, features: Features) -> ExpectedCost {
        ExpectedCost {
            fetch: self.fetch.predict(features) as f32,
            decode: self.decode.predict(features) as f32,
            fixed: self.fixed.predict(features) as f32,
            random: self.random.predict(features) as f32,
            cpu: self.cpu.predict(features) as f32,
        }
    }
}

/// Share of the past that each observation keeps.
const KEEP: f64 = 1.0 - 1.0 / 256.0;
/// Mean deviations from the expected value up to which a value counts.
const CLIP: f64 = 8.0;
/// Observations before any value is clipped.
const ENOUGH: u32 = 16;
/// Least noise, as a part of a prediction. A smaller measured deviation does not tighten the clipping.
const NOISE: f64 = 0.05;
/// Number of prior observations without a slope.
const PRIOR: f64 = 0.5;
/// Upper bound of seconds, including a prediction for a sample far outside the range seen.
const LONGEST: f64 = 86_400.0;

/// The model of one stage.
#[derive(Clone, Debug, Default)]
struct StageModel {
    observed: u32,
    mean: Mean,
    /// Mean deviation, as a part of the [`size`](StageModel::size) of the expected value.
    deviation: Mean,
    fit: Fit,
}

impl StageModel {
    fn observe(&mut self, features: Features, seconds: f64) {
        let expected = self.predict(features);
        let off = (seconds.min(LONGEST) - expected) / self.size(expected);
        let most = if self.observed < ENOUGH {
            f64::INFINITY
        } else {
            CLIP * self.deviation.value.max(NOISE)
        };
        let off = off.clamp(-most, most);
        let seconds = expected + off * self.size(expected);
        self.mean.observe(seconds);
        // The first value has no earlier expectation to deviate from.
        if self.observed > 0 {
            self.deviation.observe(off.abs());
        }
        if features != Features::UNKNOWN {
            // Relative to the mean, so that weights do not depend on the unit.
            let weight = (self.size(0.0) / self.size(expected)).powi(2);
            self.fit.observe(weight, features.vector(), seconds);
        }
        self.observed = self.observed.saturating_add(1);
    }

    fn predict(&self, features: Features) -> f64 {
        let known = features != Features::UNKNOWN && self.fit.weight > 0.0;
        let seconds = if known {
            self.fit.predict(features.vector())
        } else {
            self.mean.value
        };
        seconds.clamp(0.0, LONGEST)
    }

    /// Returns the value that noise is proportional to, in seconds. It is never 0.
    fn size(&self, expected: f64) -> f64 {
        expected + self.mean.value + 1e-9
    }
}

/// An exponentially weighted mean. The first values have equal weights.
#[derive(Clone, Debug, Default)]
struct Mean {
    weight: f64,
    value: f64,
}

impl Mean {
    fn observe(&mut self, value: f64) {
        self.weight = KEEP * self.weight + 1.0;
        self.value += (value - self.value) / self.weight;
    }
}

/// Weighted means and covariances of two features and the seconds (Welford 1962, West 1979).
#[derive(Clone, Debug, Default)]
struct Fit {
    count: f64,
    weight: f64,
    features: [f64; 2],
    seconds: f64,
    /// Covariances of the features: first, second, both.
    squares: [f64; 3],
    /// Covariances of each feature with the seconds.
    products: [f64; 2],
}

impl Fit {
    fn observe(&mut self, weight: f64, [x, y]: [f64; 2], seconds: f64) {
        self.count = KEEP * self.count + 1.0;
        let before = KEEP * self.weight;
        self.weight = before + weight;
        let share = weight / self.weight;
        let (dx, dy, ds) = (
            x - self.features[0],
            y - self.features[1],
            seconds - self.seconds,
        );
        self.features = [self.features[0] + share * dx, self.features[1] + share * dy];
        self.seconds += share * ds;
        let blend = |old: f64, new: f64| (1.0 - share) * (old + share * new);
        let (s, p) = (self.squares, self.products);
        self.squares = [
            blend(s[0], dx * dx),
            blend(s[1], dy * dy),
            blend(s[2], dx * dy),
        ];
        self.products = [blend(p[0], dx * ds), blend(p[1], dy * ds)];
    }

    fn predict(&self, [x, y]: [f64; 2]) -> f64 {
        let [b, c] = self.slopes();
        self.seconds + b * (x - self.features[0]) + c * (y - self.features[1])
    }

    /// Returns the seconds per byte and per pixel.
    fn slopes(&self) -> [f64; 2] {
        let [dx, dy] = [self.squares[0].sqrt(), self.squares[1].sqrt()];
        // A feature that does not vary has no slope.
        let part = |of: f64, by: f64| if by > 0.0 { of / by } else { 0.0 };
        let correlation = part(self.squares[2], dx * dy);
        let (p, q) = (part(self.products[0], dx), part(self.products[1], dy));
        let ridge = 1.0 + PRIOR / self.count;
        let determinant = ridge * ridge - correlation * correlation;
        let b = (ridge * p - correlation * q) / determinant;
        let c = (ridge * q - correlation * p) / determinant;
        [part(b, dx), part(c, dy)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    fn decoded(seconds: f32) -> MeasuredTimes {
        MeasuredTimes {
            decode: Some(seconds),
            ..MeasuredTimes::default()
        }
    }

    /// Returns the features of a photograph of about 93 kB, with 2 to 3 pixels per byte.
    fn photograph(random: &mut Random) -> Features {
        let bytes = random.lognormal(93_000.0, 0.7);
        let pixels = bytes * (1.5 + 1.5 * random.unit());
        Features {
            bytes: bytes as u64,
            pixels: pixels as u64,
        }
    }

    fn law([a, b, c]: [f32; 3], f: Features) -> f32 {
        a + b * f.bytes as f32 + c * f.pixels as f32
    }

    const LAW: [f32; 3] = [2e-4, 1e-8, 6e-9];

    /// Returns the root of the mean square of the relative errors.
    fn error(predictor: &Predictor, of: [f32; 3], random: &mut Random) -> f32 {
        let square = |_| {
            let f = photograph(random);
            (predictor.predict(f).decode / law(of, f) - 1.0).powi(2)
        };
        ((0..500).map(square).sum::<f32>() / 500.0).sqrt()
    }

    fn learn(
        predictor: &mut Predictor,
        of: [f32; 3],
        samples: u32,
        random: &mut Random,
        noise: impl Fn(&mut Random) -> f32,
    ) {
        for _ in 0..samples {
            let f = photograph(random);
            let factor = noise(random);
            predictor.observe(f, &decoded(law(of, f) * factor));
        }
    }

    fn jitter(random: &mut Random) -> f32 {
        1.0 + 0.2 * random.normal()
    }

    /// Returns 20 for 5 % of the samples, without any cause.
    fn heavy(random: &mut Random) -> f32 {
        let tail = if random.unit() < 0.05 { 20.0 } else { 1.0 };
        tail * jitter(random).abs()
    }

    #[test]
    fn a_linear_law_is_found_under_noise_of_a_fifth() {
        for seed in 0..20 {
            let (mut predictor, mut random) = (Predictor::new(), Random(seed));
            learn(&mut predictor, LAW, 300, &mut random, jitter);
            let error = error(&predictor, LAW, &mut random);
            assert!(error < 0.06, "seed {seed}: {error}");
        }
    }

    #[test]
    fn a_change_of_the_law_is_followed() {
        for (seed, factor) in (0..).zip([0.02, 0.2, 5.0, 50.0]) {
            let (mut predictor, mut random) = (Predictor::new(), Random(seed));
            learn(&mut predictor, LAW, 500, &mut random, jitter);
            let law = LAW.map(|l| l * factor);
            learn(&mut predictor, law, 2_500, &mut random, jitter);
            let error = error(&predictor, law, &mut random);
            assert!(error < 0.1, "{factor}: {error}");
        }
    }

    #[test]
    fn heavy_noise_moves_it_no_further_than_the_mean_of_that_noise() {
        for seed in 0..20 {
            let (mut predictor, mut random) = (Predictor::new(), Random(seed));
            learn(&mut predictor, LAW, 2_000, &mut random, heavy);
            let mut over = || {
                let f = photograph(&mut random);
                predictor.predict(f).decode / law(LAW, f)
            };
            let mean = (0..500).map(|_| over()).sum::<f32>() / 500.0;
            assert!((0.9..2.4).contains(&mean), "seed {seed}: {mean}");
        }
    }

    #[test]
    fn one_outlier_does_not_wreck_it() {
        let (mut predictor, mut random) = (Predictor::new(), Random(1));
        learn(&mut predictor, LAW, 300, &mut random, jitter);
        predictor.observe(photograph(&mut random), &decoded(3_000.0));
        let error = error(&predictor, LAW, &mut random);
        assert!(error < 0.08, "{error}");
    }

    #[test]
    fn unknown_features_are_given_the_mean() {
        let mut predictor = Predictor::new();
        for i in 0..1000 {
            predictor.observe(Features::UNKNOWN, &decoded([0.01, 0.03][i % 2]));
        }
        let cost = predictor.predict(Features::UNKNOWN);
        assert!((cost.decode - 0.02).abs() < 0.001, "{cost:?}");
        assert_eq!(cost.fetch, 0.0);
        let file = Features {
            bytes: 1000,
            pixels: 0,
        };
        assert_eq!(predictor.predict(file), cost);
    }

    #[test]
    fn a_feature_that_says_nothing_does_no_harm() {
        let mut predictor = Predictor::new();
        let same = |bytes: u64| Features {
            bytes,
            pixels: 6 * bytes,
        };
        for i in 0..500u64 {
            let bytes = 1_000 + i % 7 * 500;
            predictor.observe(same(bytes), &decoded(bytes as f32 * 1e-6));
        }
        let decode = predictor.predict(same(8_000)).decode;
        assert!((decode - 0.008).abs() < 1e-4, "{decode}");
    }

    fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(u64::MAX), 0..10u64, any::<u64>()]
    }

    proptest! {
        #[test]
        fn whatever_is_observed_predictions_are_finite_and_not_negative(
            seen in prop::collection::vec((numbers(), numbers(), any::<f32>()), 0..80), bytes in numbers(), pixels in numbers(),
        ) {
            let mut predictor = Predictor::new();
            for (bytes, pixels, seconds) in seen {
                let s = Some(seconds);
                predictor.observe(Features { bytes, pixels }, &MeasuredTimes { fetch: s, decode: s, fixed: s, random: s, cpu: s });
                let c = predictor.predict(Features { bytes: pixels, pixels: bytes });
                prop_assert!(c.total().is_finite() && c.total() >= 0.0 && c.cpu >= 0.0, "{:?}", c);
            }
            let c = predictor.predict(Features { bytes, pixels });
            prop_assert!(c.total().is_finite() && c.total() >= 0.0);
        }
    }
}
