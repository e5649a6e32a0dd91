//! How many threads a pool that fetches and prepares should have at work.
//!
//! Preparing takes processors, of which there are `cpus`; fetching mostly waits. With `w` seconds of waiting and `c`
//! seconds of a processor per sample, `cpus * (1 + w / c)` threads keep the processors busy (Goetz et al., *Java
//! Concurrency in Practice*, 8.2; Little's law), and each thread more than that only holds memory. Both times are
//! measured, and both change: files get cached, storage turns slow, a control group is given fewer processors.
//!
//! The formula alone runs away where storage has no more to give: each thread more makes all of them wait longer. So
//! a pool grows in trials, by as much as is missing but at most to four times its size, while all its threads are busy,
//! samples wait to be fetched and processors are idle. Where storage then answers each as fast as before, it has more
//! to give. Where not, only those of the new threads are kept that its rate needs, and a few more, since samples are not
//! all alike, so that storage always has something to do; and this is a limit. From time to time it is tried whether
//! more threads help now, or fewer do as well; more and more seldom, as long as they do not. A limit is forgotten when
//! the rate changes.
//!
//! Rates are of bytes: those of storage that has no more to give are even, however much the samples' sizes differ; and
//! they are means over seconds, since one large sample is much of what comes in half of one.

/// What a pool did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Its length.
    pub seconds: f64,
    /// Samples that were fetched,
    pub fetched: u32,
    /// and their bytes.
    pub fetched_bytes: u64,
    /// Samples that were prepared, fetched or not.
    pub prepared: u32,
    /// Thread seconds spent in fetching,
    pub fetch_s: f64,
    /// of which on a processor.
    pub fetch_cpu_s: f64,
    /// Thread seconds spent in preparing.
    pub prepare_s: f64,
    /// Samples that waited to be fetched, on average.
    pub to_fetch: f64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Balance {
    most: u32,
    threads: u32,
    trial: Option<Trial>,
    limit: Option<ThreadLimit>,
    /// With as many threads as now.
    lately: SeenThroughput,
    /// Bytes fetched a second in the last intervals.
    usual: f64,
    /// Seconds since the start.
    now: f64,
}

/// Other threads than before, until it is known whether they do better.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: u32,
    before: SeenThroughput,
}

/// More threads than these did not help.
#[derive(Clone, Copy, Debug)]
struct ThreadLimit {
    threads: u32,
    /// With these, once it has [settled](SETTLES).
    rate: f64,
    /// The highest with these or more.
    best: f64,
    found: f64,
    /// Seconds until the next trial.
    holds: f64,
    /// What that will be of.
    next: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    More,
    Fewer,
}

/// What was seen since the threads became more or fewer.
#[derive(Clone, Copy, Debug, Default)]
struct SeenThroughput {
    /// Seconds to come that are still of the time before.
    skips: f64,
    seconds: f64,
    bytes: f64,
    samples: f64,
    fetch_s: f64,
}

impl SeenThroughput {
    /// After a change, when a fetch took so long.
    fn after(each: f64) -> SeenThroughput {
        SeenThroughput {
            skips: each.max(f64::MIN_POSITIVE),
            ..SeenThroughput::default()
        }
    }

    fn add(&mut self, seen: &Interval) {
        if self.skips > 0.0 {
            self.skips -= seen.seconds;
            return;
        }
        self.seconds += seen.seconds;
        self.bytes += seen.fetched_bytes as f64;
        self.samples += f64::from(seen.fetched);
        self.fetch_s += seen.fetch_s;
    }

    fn is_enough(&self, (seconds, samples): (f64, f64)) -> bool {
        self.seconds >= LONGEST || (self.seconds >= seconds && self.samples >= samples)
    }

    /// Bytes a second.
    fn rate(&self) -> f64 {
        self.bytes / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Seconds of a fetch.
    fn each(&self) -> f64 {
        self.fetch_s / self.samples.max(1.0)
    }
}

/// Part of the processors beyond which they count as busy.
const BUSY: f64 = 0.9;
/// Threads beyond what the formula gives, because samples are not all alike.
const MARGIN: f64 = 1.25;
/// Part of the work below which waiting may be how the clock was read.
const LITTLE: f64 = 0.05;
/// Part by which rates differ anyway.
const LEAST: f64 = 0.1;
/// Part of the best rate that fewer threads must still bring.
const SAME: f64 = 0.97;
/// Threads beyond what a rate needs if all samples were alike: while some wait, the others may all have short ones.
const SPARE: u32 = 4;
/// Part of the growth by which a fetch may take longer after it, and storage still counts as answering as before.
const PATIENT: f64 = 0.3;
/// Seconds and samples over which rates are compared in a first trial, which is waited for.
const FIRST: (f64, f64) = (3.0, 128.0);
/// The same where a limit is tried: what it may gain is less.
const AGAIN: (f64, f64) = (6.0, 512.0);
/// The same where a trial seems to be in vain.
const IN_VAIN: (f64, f64) = (1.0, 64.0);
/// Seconds after which there must be an answer.
const LONGEST: f64 = 30.0;
/// Samples from which on their mean time is told from another at once.
const MANY: f64 = 64.0;
/// Seconds that a limit holds at first, and at most; doubled each time that more threads do not help.
const HOLDS: (f64, f64) = (4.0, 64.0);
/// Seconds after a limit was found in which a rate tells nothing: what the threads that were too many have begun
/// comes late, and then all at once.
const SETTLES: f64 = 2.0;
/// Weight of the last interval's rate, where one is not enough.
const SMOOTH: f64 = 0.5;
/// A rate that changed by this much is of another time.
const CHANGED: f64 = 1.5;

impl Balance {
    /// For a pool of `cpus` threads that may grow to `most`.
    #[must_use]
    pub fn new(cpus: u32, most: u32) -> Self {
        Balance {
            most: most.max(cpus),
            threads: cpus,
            trial: None,
            limit: None,
            lately: SeenThroughput::default(),
            usual: 0.0,
            now: 0.0,
        }
    }

    /// Threads that should be at work.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// After an interval in which `cpus` processors could be used: the threads that should be at work now.
    pub fn observe(&mut self, cpus: u32, seen: &Interval) -> u32 {
        self.now += seen.seconds;
        self.most = self.most.max(cpus);
        self.follow(seen);
        self.lately.add(seen);
        self.judge();
        let busy = (seen.prepare_s + seen.fetch_cpu_s) / seen.seconds;
        let at_work = (seen.prepare_s + seen.fetch_s) / seen.seconds;
        let wanted = wanted(cpus, seen).clamp(cpus, self.most);
        if busy >= BUSY * f64::from(cpus) || seen.fetched == 0 {
            // Processors are what is missing.
            self.change(self.threads.clamp(cpus, wanted));
        } else if at_work >= BUSY * f64::from(self.threads) && seen.to_fetch >= 1.0 {
            self.try_others(cpus, wanted);
        }
        self.change(self.threads.clamp(cpus, self.most));
        self.threads
    }

    fn change(&mut self, threads: u32) {
        if threads != self.threads {
            self.threads = threads;
            self.trial = None;
            self.lately = SeenThroughput::after(self.lately.each());
        }
    }

    /// Storage has no more to give, or it is not known whether it has.
    fn try_others(&mut self, cpus: u32, wanted: u32) {
        if self.trial.is_some() || self.lately.seconds == 0.0 {
            return;
        }
        let more = wanted.min(2 * self.threads);
        let fewer = (2 * self.threads / 3).max(cpus + SPARE).min(self.threads);
        let target = match &self.limit {
            None => wanted.min(4 * self.threads),
            Some(limit)
                if self.now < limit.found + limit.holds || !self.lately.is_enough(AGAIN) =>
            {
                wanted.min(limit.threads).max(self.threads)
            }
            Some(limit) if limit.next == Direction::More && more > self.threads => more,
            Some(_) if fewer < self.threads => fewer,
            Some(_) => more,
        };
        let trial = Trial {
            from: self.threads,
            before: self.lately,
        };
        if target != self.threads {
            if let Some(limit) = &mut self.limit
                && self.lately.is_enough(AGAIN)
            {
                limit.best = limit.best.max(self.lately.rate());
            }
            self.change(target);
            self.trial = Some(trial);
        } else if self.limit.is_none() && self.threads == self.most {
            self.limit = Some(self.limit_here());
        }
    }

    /// What changed by itself says that nothing is known of storage.
    fn follow(&mut self, seen: &Interval) {
        let rate = seen.fetched_bytes as f64 / seen.seconds;
        let weight = (f64::from(seen.fetched) / MANY).min(SMOOTH);
        self.usual += weight * (rate - self.usual);
        if self.trial.is_some() {
            return;
        }
        let is_of_another_time = match &mut self.limit {
            None => {
                let each = seen.fetch_s / f64::from(seen.fetched.max(1));
                self.lately.seconds > 0.0 && is_other(each, self.lately.each())
            }
            Some(limit) => {
                if self.now <= limit.found + SETTLES {
                    limit.rate = self.usual;
                } else if self.lately.seconds >= SETTLES {
                    limit.rate = self.lately.rate();
                }
                is_other(self.usual, limit.rate)
            }
        };
        if is_of_another_time {
            self.forget();
        }
    }

    fn forget(&mut self) {
        (self.trial, self.limit) = (None, None);
        self.lately = SeenThroughput::after(0.0);
    }

    /// Whether the threads of a trial do better.
    fn judge(&mut self) {
        let Some(trial) = self.trial else { return };
        let (before, after) = (trial.before, self.lately);
        if after.seconds == 0.0 {
            return;
        }
        let is_fewer = self.threads < trial.from;
        // Threads do not make storage so much slower, nor fewer make it faster: it changed by itself.
        if after.rate() * CHANGED < before.rate()
            || (is_fewer && is_other(self.usual, before.rate()))
        {
            self.forget();
            return;
        }
        if is_fewer {
            self.judge_fewer(&trial);
            return;
        }
        // Storage answers each as fast as before: it has more to give. By chance it may seem so.
        let grown = f64::from(self.threads) / f64::from(trial.from);
        let patience = 1.0 + PATIENT * (grown - 1.0);
        let is_sure = after.rate() * patience >= before.rate() * grown
            || (self.limit.is_none() && after.samples >= MANY);
        let is_long = after.is_enough(if self.limit.is_none() { FIRST } else { AGAIN });
        if after.each() < before.each() * patience && (is_sure || is_long) {
            (self.trial, self.limit) = (None, None);
        } else {
            self.judge_more(&trial);
        }
    }

    fn judge_more(&mut self, trial: &Trial) {
        let is_first = self.limit.is_none();
        let gain = self.lately.rate() / trial.before.rate().max(f64::MIN_POSITIVE);
        let is_in_vain = gain < 1.0 + LITTLE && self.lately.is_enough(IN_VAIN);
        if !is_in_vain && !self.lately.is_enough(if is_first { FIRST } else { AGAIN }) {
            return;
        }
        // Of the threads, as many as the rate needs, if each brings what it brought before.
        let needed = f64::from(trial.from) * gain;
        let useful = match gain {
            _ if gain < 1.0 + LITTLE => trial.from,
            _ if is_first && gain < 1.0 + LEAST => needed as u32 + 1,
            _ => (needed * MARGIN) as u32 + SPARE,
        };
        self.trial = None;
        self.change(useful.min(self.threads));
        let here = self.limit_here();
        self.limit = Some(match self.limit {
            Some(before) if here.threads == trial.from => before.again(here, Direction::More),
            _ => here,
        });
    }

    fn limit_here(&self) -> ThreadLimit {
        ThreadLimit {
            threads: self.threads,
            rate: self.usual,
            best: 0.0,
            found: self.now,
            holds: HOLDS.0,
            next: Direction::More,
        }
    }

    fn judge_fewer(&mut self, trial: &Trial) {
        let Some(limit) = self.limit else { return };
        let share = self.lately.rate() / limit.best.max(f64::MIN_POSITIVE);
        let is_in_vain = share < SAME - LEAST && self.lately.is_enough(IN_VAIN);
        if !is_in_vain && !self.lately.is_enough(AGAIN) {
            return;
        }
        self.trial = None;
        let does_as_well = share >= SAME;
        if !does_as_well {
            self.change(trial.from);
        }
        let here = self.limit_here();
        self.limit = Some(if does_as_well {
            ThreadLimit {
                best: limit.best,
                next: Direction::Fewer,
                ..here
            }
        } else {
            limit.again(here, Direction::Fewer)
        });
    }
}

impl ThreadLimit {
    /// Others were tried, and it holds on.
    fn again(self, here: ThreadLimit, tried: Direction) -> ThreadLimit {
        let (next, holds) = match tried {
            Direction::More => (Direction::Fewer, (2.0 * self.holds).min(HOLDS.1)),
            Direction::Fewer => (Direction::More, self.holds),
        };
        ThreadLimit {
            rate: self.rate,
            best: self.best,
            holds,
            next,
            ..here
        }
    }
}

fn is_other(one: f64, other: f64) -> bool {
    one > other * CHANGED || one * CHANGED < other
}

/// Threads that would keep the processors busy.
fn wanted(cpus: u32, seen: &Interval) -> u32 {
    let waits = (seen.fetch_s - seen.fetch_cpu_s).max(0.0);
    let works = seen.prepare_s + seen.fetch_cpu_s;
    if works <= 0.0 {
        return u32::MAX;
    }
    if waits < LITTLE * works {
        return cpus;
    }
    let extra = f64::from(cpus) * waits / works;
    let spare = SPARE.min((2.0 * extra) as u32);
    cpus.saturating_add((extra * MARGIN).ceil() as u32 + spare)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Storage and processors, as they answer a pool of so many threads.
    #[derive(Clone, Copy, Debug)]
    struct World {
        cpus: u32,
        /// Seconds.
        prepare: f64,
        latency: f64,
        /// Samples a second.
        bandwidth: f64,
    }

    const STEP: f64 = 0.5;

    impl World {
        /// Samples a second, by the bounds of a closed queueing network.
        fn rate(&self, threads: u32) -> f64 {
            let alone = self.prepare + self.latency + 1.0 / self.bandwidth;
            (f64::from(threads) / alone)
                .min(self.bandwidth)
                .min(f64::from(self.cpus) / self.prepare)
        }

        fn best(&self, most: u32) -> f64 {
            self.rate(most)
        }

        fn seen(&self, threads: u32, noise: f64) -> Interval {
            let rate = self.rate(threads) * noise;
            let prepare_s = rate * self.prepare * STEP;
            // Where storage has no more to give, all threads wait there; else each has what it asked for.
            let fetch_s = if self.rate(threads) >= self.bandwidth {
                f64::from(threads) * STEP - prepare_s
            } else {
                rate * (self.latency + 1.0 / self.bandwidth) * STEP
            };
            Interval {
                seconds: STEP,
                fetched: (rate * STEP).max(1.0) as u32,
                fetched_bytes: (rate * STEP * 1e5) as u64,
                prepared: (rate * STEP).max(1.0) as u32,
                fetch_s,
                fetch_cpu_s: 0.0,
                prepare_s,
                to_fetch: 10.0,
            }
        }

        fn random(random: &mut Random) -> World {
            let mut log = |low: f64, high: f64| low * (high / low).powf(f64::from(random.unit()));
            World {
                cpus: log(1.0, 17.0) as u32,
                prepare: log(5e-4, 2e-2),
                latency: log(1e-5, 1e-1),
                bandwidth: log(50.0, 1e5),
            }
        }
    }

    fn run(balance: &mut Balance, world: World, steps: u32, random: &mut Random) {
        for _ in 0..steps {
            let noise = 0.95 + 0.1 * f64::from(random.unit());
            balance.observe(world.cpus, &world.seen(balance.threads(), noise));
        }
    }

    #[test]
    fn it_finds_what_storage_and_processors_can_do() {
        for seed in 0..500 {
            let mut random = Random(seed);
            let world = World::random(&mut random);
            let mut balance = Balance::new(world.cpus, 128);
            run(&mut balance, world, 12, &mut random);
            while balance.trial.is_some() {
                run(&mut balance, world, 1, &mut random);
            }
            let (threads, best) = (balance.threads(), world.best(128));
            assert!(
                world.rate(threads) >= 0.8 * best,
                "seed {seed}: {world:?}: {threads} threads give {} of {best}",
                world.rate(threads)
            );
            let fewest = (1..=128)
                .find(|&n| world.rate(n) >= 0.95 * best)
                .unwrap_or(128);
            assert!(
                threads <= (3 * fewest).max(world.cpus + 2),
                "seed {seed}: {threads} threads where {fewest} would do"
            );
        }
    }

    #[test]
    fn it_follows_storage_that_turns_slow_and_back() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let fast = World {
                cpus: 2,
                prepare: 1.5e-3,
                latency: 5e-5,
                bandwidth: 1e5,
            };
            let slow = World {
                latency: 0.02,
                bandwidth: 1000.0,
                ..fast
            };
            let mut balance = Balance::new(2, 128);
            run(&mut balance, fast, 20, &mut random);
            assert_eq!(balance.threads(), 2);
            run(&mut balance, slow, 12, &mut random);
            assert!(
                slow.rate(balance.threads()) >= 0.8 * slow.best(128),
                "seed {seed}"
            );
            run(&mut balance, fast, 4, &mut random);
            assert!(balance.threads() <= 4, "seed {seed}: {}", balance.threads());
        }
    }

    #[test]
    fn storage_that_has_no_more_is_not_asked_again_and_again() {
        let mut random = Random(1);
        let disk = World {
            cpus: 2,
            prepare: 1e-3,
            latency: 0.0,
            bandwidth: 100.0,
        };
        let mut balance = Balance::new(2, 128);
        let mut tried = 0;
        for _ in 0..200 {
            run(&mut balance, disk, 1, &mut random);
            tried += u32::from(balance.threads() > 2);
        }
        assert!(
            tried < 30,
            "{tried} of 200 intervals with more threads than help"
        );
    }

    #[test]
    fn fewer_threads_that_bring_less_do_not_stay_however_slowly_samples_come() {
        let far = World {
            cpus: 2,
            prepare: 1e-3,
            latency: 0.3,
            bandwidth: 60.0,
        };
        let mut random = Random(1);
        let mut balance = Balance::new(2, 128);
        balance.threads = 24;
        balance.limit = Some(ThreadLimit {
            next: Direction::Fewer,
            ..balance.limit_here()
        });
        let mut seen = Vec::new();
        for _ in 0..40 {
            run(&mut balance, far, 1, &mut random);
            seen.push(balance.threads());
        }
        assert!(seen.contains(&16) && balance.threads() == 24, "{seen:?}");
    }

    #[test]
    fn what_too_many_threads_have_begun_is_no_sign_that_storage_changed() {
        let disk = World {
            cpus: 2,
            prepare: 1e-3,
            latency: 0.0,
            bandwidth: 100.0,
        };
        let mut random = Random(1);
        let mut balance = Balance::new(2, 128);
        while balance.limit.is_none() {
            run(&mut balance, disk, 1, &mut random);
        }
        // So many begin at once that few are done for a while, and then all.
        for noise in [0.5, 0.3, 1.7, 1.7] {
            balance.observe(2, &disk.seen(balance.threads(), noise));
        }
        for _ in 0..(HOLDS.0 / STEP) as u32 - 5 {
            run(&mut balance, disk, 1, &mut random);
            assert_eq!(balance.threads(), 2);
        }
    }

    #[test]
    fn jobs_that_ask_for_little_do_not_make_it_grow() {
        let mut balance = Balance::new(4, 64);
        let idle = Interval {
            seconds: STEP,
            fetched: 50,
            fetched_bytes: 5_000_000,
            prepared: 50,
            fetch_s: 0.5,
            prepare_s: 0.1,
            ..Interval::default()
        };
        for _ in 0..20 {
            assert_eq!(balance.observe(4, &idle), 4);
        }
    }

    #[test]
    fn it_has_a_thread_for_each_processor_that_comes_and_goes() {
        let world = |cpus| World {
            cpus,
            prepare: 2e-3,
            latency: 0.0,
            bandwidth: 1e9,
        };
        let mut balance = Balance::new(8, 64);
        let mut random = Random(3);
        run(&mut balance, world(8), 4, &mut random);
        assert_eq!(balance.threads(), 8);
        run(&mut balance, world(2), 4, &mut random);
        assert_eq!(balance.threads(), 2);
        run(&mut balance, world(16), 4, &mut random);
        assert_eq!(balance.threads(), 16);
    }
}
