//! Chooses the form in which a sample is worth its bytes in the cache.
//!
//! Each sample offers some forms. Each form takes a number of bytes and saves a number of seconds in every epoch. At
//! most one form of a sample is taken, and the bytes of all must not exceed the budget. This is the multiple-choice
//! knapsack problem (Kellerer, Pferschy, Pisinger, Knapsack Problems, 2004, chapter 11). At a common price of lambda
//! seconds per byte, every sample can be decided by itself: it takes the form that maximises `saves - lambda * bytes`,
//! or none if that is not above 0. With the right price this fills the budget with the most valuable bytes, up to a
//! single sample.
//!
//! # The price
//!
//! Only the offers on a sample's *efficient frontier* can be best at some price. In order of their bytes, these are the
//! offers whose further bytes save less and less (Sinha, Zoltners 1979). Each step along the frontier has a ratio, the
//! seconds that it adds per byte. A price takes exactly the steps with a higher ratio. So taking the steps of all
//! samples up to the budget, highest ratio first, is the optimum of the relaxed problem, in which a step may be taken
//! in part. The ratio of the last step is the price. [`optimum`] and [`offline`] do this for known samples.
//!
//! A [`Chooser`] decides each sample as it comes, once and for all. The samples come in random order, so the most
//! recent ones are a fair draw of those to come. The price is the one at which the recent samples would fill the rest
//! of the budget. It is computed again as the budget fills (the re-solving of online linear programs: Agrawal, Wang,
//! Ye, Operations Research 2014). Four things are added:
//!
//! - *Longest first.* The order is random except within the last window, where the longest samples are begun first. So
//!   an epoch ends with its smallest samples, which take fewer bytes than their number suggests. The samples to come
//!   are therefore counted by their bytes if that is less. Counted by number alone, photographs from the page cache
//!   left up to half of a small budget free, or a sixth of one for all of them.
//! - *Luck.* The number of good samples to come is uncertain, and the price may depend on it. If 5 % of the samples
//!   save 20 times as much per byte, the price is high if they fill the budget and low otherwise. So it is the mean
//!   over five cases from few to many.
//! - *The unseen.* The calculation includes one step of mean size that is better than all seen so far. Otherwise the
//!   first sample would be the best so far, and a small budget would be spent before there is anything to compare with.
//! - *The end.* The price is the amount that later samples pay. So the last sample pays nothing, and the rest of the
//!   budget goes to any offer that saves time.
//!
//! Results over random orders of samples like photographs (`tests/forms.rs`), for budgets of 5 to 200 % of the encoded
//! bytes. They are the time saved as a part of [`optimum`], mean of 20 seeds:
//!
//! | samples | local, 5 % of 20 times the time per byte | other tails, remote storage |
//! |---|---|---|
//! | 1,000 | 0.90 (5 %), 0.91 (10 %), 0.93 (20 %), 0.95 or more (35 % to 200 %) | 0.96 or more |
//! | 4,000 | 0.96 or more | 0.98 or more |
//!
//! The low values are due to luck: 5 % of the encoded bytes of 1,000 samples hold nine of the fifty slow samples
//! decoded.

/// A form in which a sample can be kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Bytes that the form takes.
    pub bytes: u64,
    /// Seconds that the form saves in every epoch. An offer that saves nothing, or whose value is not a number, is
    /// never taken.
    pub saves: f64,
}

impl Offer {
    fn worth(&self, price: f64) -> f64 {
        self.saves - price * self.bytes as f64
    }

    fn can_be_taken(&self, left: u64) -> bool {
        self.saves > 0.0 && self.saves.is_finite() && self.bytes <= left
    }
}

/// Number of recent samples from which the price is found.
const REMEMBERED: u32 = 4096;
/// Divisor of the samples decided, or of those to come if they are fewer. The price is computed again after this share
/// of them.
const PART: u32 = 64;
/// Divisor of all samples. This last part is the end, at which the price falls to nothing.
const THE_END: u32 = 8;

/// Five equally likely outcomes of a normal distribution, in standard deviations.
const LUCK: [f64; 5] = [-1.28, -0.52, 0.0, 0.52, 1.28];
/// Relative change of a price that decides whether the step that it was found from is taken.
const JUST: f64 = 1e-9;

/// Decides samples one after the other. See the module for the rule.
#[derive(Clone, Debug)]
pub struct Chooser {
    left: u64,
    taken: u64,
    saved: f64,
    by_index: Vec<u64>,
    samples: u32,
    decided: u32,
    /// Size of all samples in bytes.
    total: u64,
    /// Size of the samples decided so far.
    seen: u64,
    price: f64,
    /// The last price before the end.
    usual_price: f64,
    /// Number of decisions after which the price is computed again.
    due: u32,
    /// Steps of the recent samples, highest ratio first.
    steps: Vec<FrontierStep>,
}

impl Chooser {
    /// Creates a chooser for `samples` decisions over `budget` bytes.
    ///
    /// `total` is the size of all these samples together, in the sense of [`decide`](Self::decide). A value that is too
    /// large does little harm, and `u64::MAX` means that it is not known.
    pub fn new(budget: u64, samples: u32, total: u64) -> Self {
        Chooser {
            left: budget,
            taken: 0,
            saved: 0.0,
            by_index: Vec::new(),
            samples,
            decided: 0,
            total,
            seen: 0,
            price: 0.0,
            usual_price: 0.0,
            due: 0,
            steps: Vec::new(),
        }
    }

    /// Returns the offer that the next sample takes, if any. The caller calls it once for each sample, in an order that
    /// is at least nearly random.
    ///
    /// `size` is the bytes of the sample at its source, whatever its forms take.
    pub fn decide(&mut self, size: u64, offers: &[Offer]) -> Option<usize> {
        self.seen = self.seen.saturating_add(size);
        climb(&mut self.steps, self.decided, offers, self.left);
        if self.decided >= self.due {
            self.forget();
            by_ratio(&mut self.steps);
            self.price = self.find_price();
            // The falling price at the end is not the one that most samples paid.
            if self.to_come() > self.samples / THE_END {
                self.usual_price = self.price;
            }
            let part = self.decided.min(self.to_come()) / PART;
            self.due = self.decided.saturating_add(part.max(1));
        }
        self.decided = self.decided.saturating_add(1);
        let choice = best(offers, self.price, self.left)?;
        self.take(choice, offers[choice]);
        Some(choice)
    }

    /// Undoes a decision for offer `index`, because the caller could not keep it. Other samples can take its bytes.
    pub fn give_back(&mut self, index: usize, offer: Offer) {
        let bytes = offer.bytes.min(self.taken);
        self.left += bytes;
        self.taken -= bytes;
        self.saved -= offer.saves;
        if let Some(count) = self.by_index.get_mut(index) {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns the price in seconds per byte that most samples pay. It excludes the last samples, which get the rest of
    /// the budget.
    pub fn lambda(&self) -> f64 {
        self.usual_price
    }

    /// Returns the seconds per epoch that all taken offers save.
    pub fn saved(&self) -> f64 {
        self.saved
    }

    /// Returns the bytes of all taken offers.
    pub fn taken_bytes(&self) -> u64 {
        self.taken
    }

    /// Returns how many samples took their first offer, their second, and so on, up to the highest one taken.
    pub fn by_index(&self) -> &[u64] {
        &self.by_index
    }

    fn take(&mut self, index: usize, offer: Offer) {
        self.left -= offer.bytes;
        self.taken += offer.bytes;
        self.saved += offer.saves;
        if self.by_index.len() <= index {
            self.by_index.resize(index + 1, 0);
        }
        self.by_index[index] += 1;
    }

    fn forget(&mut self) {
        if let Some(last) = self.decided.checked_sub(REMEMBERED) {
            self.steps.retain(|step| step.sample > last);
        }
    }

    /// Returns the number of samples to be decided, including the next one.
    fn to_come(&self) -> u32 {
        self.samples.saturating_sub(self.decided).max(1)
    }

    /// Returns the number of samples after the next one. It is their number, or their bytes divided by the mean size of
    /// those seen, whichever is less.
    fn after(&self) -> f64 {
        let count = f64::from(self.to_come() - 1);
        if self.seen == 0 {
            return count;
        }
        let bytes = self.total.saturating_sub(self.seen) as f64;
        count.min(bytes / self.seen as f64 * f64::from(self.decided + 1))
    }

    /// Returns the expected price that samples after this one will pay for a byte: the mean over the cases of [`LUCK`].
    fn find_price(&self) -> f64 {
        let after = self.after();
        // Nobody comes after the last sample, so it pays nothing.
        if after <= 0.0 {
            return 0.0;
        }
        let known = f64::from((self.decided + 1).min(REMEMBERED));
        let share = known / after;
        let prices = LUCK.map(|luck| self.price_with(luck, share));
        prices.iter().sum::<f64>() / LUCK.len() as f64
    }

    /// Returns the price at which the rest of the budget is filled. The recent samples are `share` times as many as
    /// those to come, and steps as good as these come more often by `luck` standard deviations.
    fn price_with(&self, luck: f64, share: f64) -> f64 {
        let room = self.left as f64 * share;
        // The unseen step, which counts as better than all others.
        let unseen = self.mean_step();
        let (mut bytes, mut squares) = (unseen, unseen * unseen);
        let last = self
            .steps
            .iter()
            .filter(|s| s.bytes > 0 && s.total <= self.left)
            .find(|s| {
                bytes += s.bytes as f64;
                squares += (s.bytes as f64).powi(2);
                bytes + luck * (squares * (1.0 + share)).sqrt() > room
            });
        // The last step fits only in part. It is taken if the budget would fill too slowly even with it.
        match last {
            Some(step) if self.is_behind_by(step.bytes) => step.ratio * (1.0 - JUST),
            Some(step) => step.ratio * (1.0 + JUST),
            None => 0.0,
        }
    }

    fn mean_step(&self) -> f64 {
        let bytes: f64 = self.steps.iter().map(|s| s.bytes as f64).sum();
        bytes / self.steps.len().max(1) as f64
    }

    /// Returns `true` if the budget would still fill more slowly than samples pass if `bytes` more bytes were taken.
    fn is_behind_by(&self, bytes: u64) -> bool {
        let budget = (self.left + self.taken) as f64;
        let decided = f64::from(self.decided);
        let passed = decided / (decided + 1.0 + self.after());
        (self.taken + bytes) as f64 <= budget * passed
    }
}

fn best(offers: &[Offer], price: f64, left: u64) -> Option<usize> {
    let worth = |&(_, offer): &(usize, &Offer)| offer.worth(price);
    let possible = offers.iter().enumerate();
    possible
        .filter(|(_, o)| o.can_be_taken(left) && o.worth(price) > 0.0)
        .max_by(|a, b| worth(a).total_cmp(&worth(b)))
        .map(|(index, _)| index)
}

/// One step along the frontier of a sample.
#[derive(Clone, Copy, Debug)]
struct FrontierStep {
    sample: u32,
    offer: usize,
    /// Bytes of the offer that the step leads to.
    total: u64,
    /// Bytes that the offer takes beyond the one before it on the frontier.
    bytes: u64,
    /// Seconds that the offer saves beyond the one before.
    saves: f64,
    ratio: f64,
}

impl FrontierStep {
    fn new(sample: u32, offer: usize, total: u64, bytes: u64, saves: f64) -> Self {
        let ratio = match bytes {
            0 => f64::MAX,
            bytes => saves / bytes as f64,
        };
        FrontierStep {
            sample,
            offer,
            total,
            bytes,
            saves,
            ratio,
        }
    }
}

fn by_ratio(steps: &mut [FrontierStep]) {
    // A stable sort keeps the steps of one sample in order. It is quick, because most are sorted already.
    steps.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
}

/// Adds the steps of a sample along its frontier, the upper hull of its offers up to `most` bytes (Andrew 1979).
fn climb(steps: &mut Vec<FrontierStep>, sample: u32, offers: &[Offer], most: u64) {
    let mut sorted: Vec<(usize, &Offer)> = offers.iter().enumerate().collect();
    sorted.retain(|(_, o)| o.can_be_taken(most));
    // Of offers with equal bytes, the one that saves most comes first, and the others are no step up.
    sorted.sort_by(|(_, a), (_, b)| a.bytes.cmp(&b.bytes).then(b.saves.total_cmp(&a.saves)));
    let (first, mut reached) = (steps.len(), 0.0);
    for (index, offer) in sorted {
        if offer.saves > reached {
            step_up(steps, first, sample, index, offer, offer.saves - reached);
            reached = offer.saves;
        }
    }
}

fn step_up(
    steps: &mut Vec<FrontierStep>,
    first: usize,
    sample: u32,
    index: usize,
    offer: &Offer,
    mut saves: f64,
) {
    loop {
        let before = steps[first..].last().copied();
        let from = before.map_or(0, |b| b.total);
        let step = FrontierStep::new(sample, index, offer.bytes, offer.bytes - from, saves);
        match before {
            // The step before is not on the hull, so merge it with this one.
            Some(before) if before.ratio <= step.ratio => {
                saves += before.saves;
                steps.pop();
            }
            _ => return steps.push(step),
        }
    }
}

fn steps_of(samples: &[Vec<Offer>], budget: u64) -> Vec<FrontierStep> {
    let mut steps = Vec::with_capacity(samples.len());
    for (sample, offers) in (0..).zip(samples) {
        climb(&mut steps, sample, offers, budget);
    }
    by_ratio(&mut steps);
    steps
}

/// Returns the seconds per epoch that no choice within the budget can exceed: the optimum if a step of one sample could
/// be taken in part.
pub fn optimum(samples: &[Vec<Offer>], budget: u64) -> f64 {
    let (mut left, mut saved) = (budget as f64, 0.0);
    for step in steps_of(samples, budget) {
        let bytes = step.bytes as f64;
        if bytes > left {
            return saved + step.ratio * left;
        }
        left -= bytes;
        saved += step.saves;
    }
    saved
}

/// Returns the offer that each sample takes if all samples are known beforehand. It takes the steps in order of their
/// ratio, as far as they fit. The result saves less than the best choice by at most the saving of one sample.
pub fn offline(samples: &[Vec<Offer>], budget: u64) -> Vec<Option<usize>> {
    let mut choices: Vec<Option<usize>> = vec![None; samples.len()];
    let mut left = budget;
    for step in steps_of(samples, budget) {
        let offers = &samples[step.sample as usize];
        let now = choices[step.sample as usize].map_or(0, |index| offers[index].bytes);
        let more = offers[step.offer].bytes - now;
        if more <= left {
            left -= more;
            choices[step.sample as usize] = Some(step.offer);
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(bytes: u64, saves: f64) -> Offer {
        Offer { bytes, saves }
    }

    #[test]
    fn offers_below_the_frontier_are_never_a_step() {
        let offers = vec![
            offer(10, 1.0),
            offer(20, 4.0),
            offer(30, 3.0),
            offer(40, 5.0),
            offer(20, 2.0),
        ];
        let steps: Vec<(usize, u64)> = steps_of(&[offers], 100)
            .iter()
            .map(|s| (s.offer, s.bytes))
            .collect();
        assert_eq!(steps, [(1, 20), (3, 20)]);
    }

    #[test]
    fn what_saves_nothing_or_no_number_or_does_not_fit_is_never_taken() {
        let offers = [
            offer(1, 0.0),
            offer(1, -1.0),
            offer(1, f64::NAN),
            offer(1, f64::INFINITY),
            offer(101, 1.0),
        ];
        assert_eq!(Chooser::new(100, 1, 1).decide(1, &offers), None);
        assert_eq!(offline(&[offers.to_vec()], 100), [None]);
        assert_eq!(optimum(&[offers.to_vec()], 100), 0.0);
    }

    #[test]
    fn the_price_that_most_paid_is_told_when_all_are_decided() {
        let mut chooser = Chooser::new(1000, 200, 2000);
        for saves in 1..=200u32 {
            chooser.decide(10, &[offer(10, f64::from(1 + saves * 73 % 200))]);
        }
        assert!(chooser.lambda() > 5.0, "{}", chooser.lambda());
    }

    #[test]
    fn where_everything_fits_the_price_is_0_and_each_takes_what_saves_most() {
        let mut chooser = Chooser::new(1 << 40, 200, u64::MAX);
        for _ in 0..200 {
            assert_eq!(
                chooser.decide(10, &[offer(10, 1.0), offer(60, 3.0), offer(80, 2.0)]),
                Some(1)
            );
        }
        assert_eq!(chooser.lambda(), 0.0);
        assert_eq!(
            (chooser.saved(), chooser.taken_bytes(), chooser.by_index()),
            (600.0, 12_000, &[0, 200][..])
        );
    }

    #[test]
    fn bytes_that_are_free_are_always_taken() {
        let mut chooser = Chooser::new(0, 3, 3);
        assert_eq!(chooser.decide(1, &[offer(0, 1.0)]), Some(0));
        assert_eq!(optimum(&[vec![offer(0, 1.0), offer(5, 2.0)]], 0), 1.0);
    }

    #[test]
    fn what_was_given_back_is_taken_by_others() {
        let mut chooser = Chooser::new(100, 2, 200);
        assert_eq!(chooser.decide(100, &[offer(100, 2.0)]), Some(0));
        assert_eq!(chooser.decide(100, &[offer(100, 1.0)]), None);
        chooser.give_back(0, offer(100, 2.0));
        assert_eq!(
            (chooser.saved(), chooser.taken_bytes(), chooser.by_index()),
            (0.0, 0, &[0][..])
        );
        assert_eq!(chooser.decide(100, &[offer(100, 1.0)]), Some(0));
    }

    #[test]
    fn more_samples_than_announced_are_decided_all_the_same() {
        let mut chooser = Chooser::new(1000, 0, 0);
        let taken = (0..20).filter(|_| chooser.decide(100, &[offer(100, 1.0)]).is_some());
        assert_eq!(taken.count(), 10);
    }
}
