//! Decides how many threads of a pool should fetch and prepare.
//!
//! Preparing needs processors, of which there are `cpus`; fetching mostly waits. With `w` seconds of waiting and `c`
//! seconds of a processor per sample, `cpus * (1 + w / c)` threads keep the processors busy (Goetz et al., *Java
//! Concurrency in Practice*, 8.2; Little's law). Further threads only hold memory. Both times are measured, and both
//! change: files get cached, storage turns slow, a control group is given fewer processors.
//!
//! The formula alone runs away if storage has no more to give, because each further thread makes all of them wait
//! longer. So a pool grows in trials. It starts a trial if all its threads are busy, samples wait to be fetched and
//! processors are idle. A trial adds the threads that are missing by the formula, but makes the pool at most four times
//! as large. If storage then answers each thread as fast as before, it has more to give. Otherwise the pool keeps only
//! the threads that the rate needs, plus a few, because samples differ and storage should always have something to do.
//! This number is a limit. From time to time a trial shows whether more threads help now, or whether fewer do as well.
//! Trials become rarer as long as they change nothing. A limit is forgotten when the rate changes.
//!
//! Rates are in bytes, because the byte rate of exhausted storage is even, however much the sizes of samples differ.
//! Rates are means over seconds, because one large sample is a considerable part of the bytes of half a second.

/// Measurements of a pool over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Length of the interval.
    pub seconds: f64,
    /// Number of samples fetched.
    pub fetched: u32,
    /// Bytes of the samples fetched.
    pub fetched_bytes: u64,
    /// Number of samples prepared, whether they were fetched or not.
    pub prepared: u32,
    /// Thread seconds spent fetching.
    pub fetch_s: f64,
    /// Part of `fetch_s` spent on a processor.
    pub fetch_cpu_s: f64,
    /// Thread seconds spent preparing.
    pub prepare_s: f64,
    /// Mean number of samples that waited to be fetched.
    pub to_fetch: f64,
}

/// Decides the number of threads of a pool. See the module.
#[derive(Clone, Debug)]
pub struct Balance {
    most: u32,
    threads: u32,
    trial: Option<Trial>,
    limit: Option<ThreadLimit>,
    /// Throughput with the present number of threads.
    lately: SeenThroughput,
    /// Smoothed rate of the last intervals, in bytes per second.
    usual: f64,
    /// Seconds since the start.
    now: f64,
}

/// A trial of another number of threads, until it is known whether they do better.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: u32,
    before: SeenThroughput,
}

/// A number of threads beyond which more did not help.
#[derive(Clone, Copy, Debug)]
struct ThreadLimit {
    threads: u32,
    /// Rate with this number of threads, once it has [settled](SETTLES).
    rate: f64,
    /// Highest rate with this number of threads or more.
    best: f64,
    found: f64,
    /// Seconds until the next trial.
    holds: f64,
    /// Direction of the next trial.
    next: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    More,
    Fewer,
}

/// Throughput since the number of threads last changed.
#[derive(Clone, Copy, Debug, Default)]
struct SeenThroughput {
    /// Seconds to skip, whose measurements still belong to the time before.
    skips: f64,
    seconds: f64,
    bytes: f64,
    samples: f64,
    fetch_s: f64,
}

impl SeenThroughput {
    /// Starts a measurement after a change. The first `each` seconds, the time of one fetch, are skipped.
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

    /// Returns the rate in bytes per second.
    fn rate(&self) -> f64 {
        self.bytes / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns the mean seconds of a fetch.
    fn each(&self) -> f64 {
        self.fetch_s / self.samples.max(1.0)
    }
}

/// Part of the processors above which they count as busy.
const BUSY: f64 = 0.9;
/// Factor on a computed number of threads, because samples differ.
const MARGIN: f64 = 1.25;
/// Factor on a computed number of threads above which a pool has too many. Each interval gives another number. A pool that
/// followed every lower one would keep the lowest, and with that its processors would wait for storage in other intervals.
const SURPLUS: f64 = 1.25;
/// Part of the work below which waiting may be an artefact of reading the clock.
const LITTLE: f64 = 0.05;
/// Part by which rates differ even without a cause.
const LEAST: f64 = 0.1;
/// Part of the best rate that fewer threads must reach to count as equally good.
const SAME: f64 = 0.97;
/// Threads beyond the number that a rate would need if all samples were equal: while some wait, the others may all have
/// short samples.
const SPARE: u32 = 4;
/// Part of the growth by which a fetch may slow down while storage still counts as answering as fast as before.
const PATIENT: f64 = 0.3;
/// Least seconds and samples of a first trial. It is short, because the pool waits for its result.
const FIRST: (f64, f64) = (3.0, 128.0);
/// Least seconds and samples of a trial at a limit. It is longer, because it has less to gain.
const AGAIN: (f64, f64) = (6.0, 512.0);
/// Least seconds and samples of a trial that seems to be in vain.
const IN_VAIN: (f64, f64) = (1.0, 64.0);
/// Seconds after which a trial ends in any case.
const LONGEST: f64 = 30.0;
/// Number of samples whose mean time can be compared reliably.
const MANY: f64 = 64.0;
/// Seconds that a limit holds at first, and at most. The time doubles whenever more threads do not help.
const HOLDS: (f64, f64) = (4.0, 64.0);
/// Seconds after finding a limit in which a rate says nothing: the samples begun by surplus threads come late, and then
/// all at once.
const SETTLES: f64 = 2.0;
/// Weight of the last interval in a smoothed rate, because one interval is not enough.
const SMOOTH: f64 = 0.5;
/// Factor of change above which a rate counts as that of changed storage.
const CHANGED: f64 = 1.5;

impl Balance {
    /// Starts with `cpus` threads for a pool that may grow to `most`.
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

    /// Lets the pool grow to `most` threads, if that is more than before.
    pub fn allow(&mut self, most: u32) {
        self.most = self.most.max(most);
    }

    /// Raises the number of threads to `threads`, for storage that is known to answer late. Returns the number now.
    ///
    /// The trials would find this number too, but only after some seconds in which processors are idle. If it is more
    /// than enough, the first interval shows that.
    pub fn begin_with(&mut self, threads: u32) -> u32 {
        self.change(threads.clamp(self.threads, self.most.max(self.threads)));
        self.threads
    }

    /// Returns the number of threads that should be at work.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Takes in an interval in which `cpus` processors were available, and returns the number of threads that should be
    /// at work now.
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
            // Processors are the bottleneck, so threads far beyond those of the formula would only hold memory.
            if wanted == cpus || f64::from(self.threads) > SURPLUS * f64::from(wanted) {
                self.change(wanted);
            }
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
            // Measurements with another number of threads say nothing about this one.
            self.lately = SeenThroughput::after(self.lately.each());
        }
    }

    /// Starts a trial if none is running, or finds that the pool is at its maximum.
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

    /// Forgets the trial and the limit if the rate changed without a change of threads, because storage has changed.
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

    /// Ends a trial once it is clear whether its number of threads does better.
    fn judge(&mut self) {
        let Some(trial) = self.trial else { return };
        let (before, after) = (trial.before, self.lately);
        if after.seconds == 0.0 {
            return;
        }
        let is_fewer = self.threads < trial.from;
        // A change of threads does not make storage that much slower, nor do fewer threads make it faster. So storage
        // itself has changed.
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
        // Storage answers each thread as fast as before, so it has more to give. Chance may look the same, so require
        // certainty or a long trial.
        let grown = f64::from(self.threads) / f64::from(trial.from);
        let tolerance = 1.0 + PATIENT * (grown - 1.0);
        let is_sure = after.rate() * tolerance >= before.rate() * grown
            || (self.limit.is_none() && after.samples >= MANY);
        let is_long = after.is_enough(if self.limit.is_none() { FIRST } else { AGAIN });
        if after.each() < before.each() * tolerance && (is_sure || is_long) {
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
        // Keep as many threads as the rate needs if each brings as much as before.
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
            Some(before) if here.threads == trial.from => {
                before.after_failed_trial(here, Direction::More)
            }
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
            limit.after_failed_trial(here, Direction::Fewer)
        });
    }
}

impl ThreadLimit {
    /// Returns the limit after a failed trial. It holds on, and for longer if more threads were tried.
    fn after_failed_trial(self, here: ThreadLimit, tried: Direction) -> ThreadLimit {
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

/// Returns the number of threads that would keep the processors busy.
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

    /// A model of storage and processors that serve a pool.
    #[derive(Clone, Copy, Debug)]
    struct World {
        cpus: u32,
        /// Seconds of a processor per sample.
        prepare: f64,
        latency: f64,
        /// Samples per second that storage can deliver.
        bandwidth: f64,
    }

    #[test]
    fn a_pool_may_be_allowed_more_threads_and_never_fewer() {
        let mut balance = Balance::new(2, 10);
        balance.allow(5);
        assert_eq!(balance.most, 10);
        balance.allow(20);
        assert_eq!(balance.most, 20);
    }

    #[test]
    fn a_pool_that_begins_with_more_threads_keeps_those_that_it_needs() {
        let mut balance = Balance::new(2, 500);
        assert_eq!(balance.begin_with(64), 64);
        assert_eq!(balance.begin_with(3), 64, "never fewer");
        assert_eq!(
            Balance::new(2, 40).begin_with(64),
            40,
            "never more than allowed"
        );
        let late = World {
            cpus: 2,
            prepare: 0.002,
            latency: 0.05,
            bandwidth: 1e6,
        };
        let early = World {
            latency: 0.0001,
            ..late
        };
        assert!(balance.observe(2, &late.seen(64, 1.0)) >= 50);
        assert!(balance.observe(2, &early.seen(64, 1.0)) <= 8);
    }

    #[test]
    fn threads_do_not_go_because_fewer_would_have_done_in_one_interval() {
        let usual = World {
            cpus: 2,
            prepare: 5e-4,
            latency: 0.05,
            bandwidth: 1e6,
        };
        let with_latency = |latency: f64| World { latency, ..usual };
        let mut balance = Balance::new(2, 512);
        balance.begin_with(512);
        let kept = balance.observe(2, &usual.seen(512, 1.0));
        assert!((200..=260).contains(&kept), "{kept}");
        for latency in [0.042, 0.05, 0.042, 0.045] {
            let seen = with_latency(latency).seen(kept, 1.0);
            assert_eq!(balance.observe(2, &seen), kept, "after {latency} s");
        }
        assert!(balance.observe(2, &with_latency(0.02).seen(kept, 1.0)) < kept / 2);
    }

    const STEP: f64 = 0.5;

    impl World {
        /// Returns samples per second, by the bounds of a closed queueing network.
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
            // If storage is exhausted, all remaining threads wait there. Otherwise each waits only for its own request.
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
        // Many samples begin at once, so few are finished for a while, and then all of them.
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
