//! How many threads a pool that fetches and prepares should have at work.
//!
//! Preparing takes processors, of which there are `cpus`; fetching mostly waits. With `w` seconds of waiting and `c`
//! seconds of a processor per sample, `cpus * (1 + w / c)` threads keep the processors busy (Goetz et al., *Java
//! Concurrency in Practice*, 8.2; Little's law), and each thread more than that only holds memory. Both times are
//! measured, and both change: files get cached, storage turns slow, a control group is given fewer processors.
//!
//! The formula alone runs away where storage has no more to give: each thread more makes all of them wait longer. So
//! a pool grows in steps, by as much as is missing but at most to four times its size, while all its threads are busy,
//! samples wait to be fetched and processors are idle; and of a step after which each
//! fetch took longer only that part is kept which the new rate needs, and it is not tried again
//! for some time, unless the rate changes; and a few more, since samples are not all alike, so that storage
//! always has something to do. Rates are of bytes: those of storage that has no more to give are even,
//! however much the samples' sizes differ.

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
    step: Option<Step>,
    limit: Option<Limit>,
    /// Bytes fetched a second, lately.
    usual: f64,
    /// Seconds since the start.
    now: f64,
}

/// A step that is being judged.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: u32,
    rate: f64,
    /// Seconds of a fetch.
    each: f64,
    /// Intervals since then. The first is still partly of the time before.
    age: u32,
}

/// More threads than these did not help.
#[derive(Clone, Copy, Debug)]
struct Limit {
    threads: u32,
    /// With these, once it has [settled](SETTLES).
    rate: f64,
    until: f64,
    holds: f64,
}

/// Part of the processors beyond which they count as busy.
const BUSY: f64 = 0.9;
/// Threads beyond what the formula gives, because samples are not all alike.
const MARGIN: f64 = 1.25;
/// Part of the work below which waiting may be how the clock was read.
const LITTLE: f64 = 0.05;
/// Part by which rates differ anyway.
const LEAST: f64 = 0.1;
/// Threads beyond what a rate needs if all samples were alike: while some wait, the others may all have short ones.
const SPARE: u32 = 4;
/// Part of the growth by which a fetch may take longer after a step, and storage still counts as answering as before.
const PATIENT: f64 = 0.3;
/// Seconds that a limit holds at first, and at most; it is doubled each time it is found again.
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
            step: None,
            limit: None,
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
        let rate = seen.fetched_bytes as f64 / seen.seconds;
        let each = seen.fetch_s / f64::from(seen.fetched.max(1));
        self.judge(rate, each);
        let busy = (seen.prepare_s + seen.fetch_cpu_s) / seen.seconds;
        let at_work = (seen.prepare_s + seen.fetch_s) / seen.seconds;
        let wanted = wanted(cpus, seen).clamp(cpus, self.most);
        if busy >= BUSY * f64::from(cpus) || seen.fetched == 0 {
            // Processors are what is missing.
            self.threads = self.threads.clamp(cpus, wanted);
        } else if at_work >= BUSY * f64::from(self.threads) && seen.to_fetch >= 1.0 {
            self.grow(cpus, wanted, rate, each);
        }
        self.threads = self.threads.clamp(cpus, self.most);
        self.threads
    }

    fn grow(&mut self, cpus: u32, wanted: u32, rate: f64, each: f64) {
        let is_limit = |limit: &Limit| self.threads >= limit.threads;
        if self.step.is_some() || self.limit.as_ref().is_some_and(is_limit) {
            return;
        }
        // Carefully where more threads did not help before.
        let most = match self.limit {
            Some(_) => 2 * self.threads,
            None => 4 * self.threads,
        };
        let target = wanted.min(most).max(cpus);
        if target > self.threads {
            self.step = Some(Step {
                from: self.threads,
                rate,
                each,
                age: 0,
            });
            self.threads = target;
        }
    }

    /// Whether the last step helped, and whether a limit still holds.
    fn judge(&mut self, rate: f64, each: f64) {
        self.usual += SMOOTH * (rate - self.usual);
        if let Some(limit) = &mut self.limit {
            let found = limit.until - limit.holds;
            if self.now <= found + SETTLES {
                limit.rate = self.usual;
            }
        }
        if let Some(limit) = self.limit {
            let is_other = self.usual > limit.rate * CHANGED || self.usual * CHANGED < limit.rate;
            if is_other {
                self.limit = None;
            } else if self.now >= limit.until {
                // Tried again; what it holds is remembered in case it is found again.
                self.limit = Some(Limit {
                    threads: u32::MAX,
                    ..limit
                });
            }
        }
        let Some(step) = &mut self.step else { return };
        step.age += 1;
        if step.age < 2 {
            return;
        }
        let step = *step;
        self.step = None;
        // Threads do not make storage so much slower: it turned slow by itself, and this says nothing of them.
        if rate * CHANGED < step.rate {
            return;
        }
        // Storage answers each as fast as before: it has more to give.
        let more = f64::from(self.threads) / f64::from(step.from) - 1.0;
        if each < step.each * (1.0 + PATIENT * more) {
            return;
        }
        let useful = useful(&step, rate).min(self.threads);
        if useful == self.threads {
            return;
        }
        let (spare, holds) = match self.limit {
            // It helped, as far as storage could.
            None if useful > step.from => (SPARE.min(useful), HOLDS.0),
            None => (0, HOLDS.0),
            // Tried again, with what is spare.
            Some(limit) => (0, (2.0 * limit.holds).min(HOLDS.1)),
        };
        self.threads = (useful + spare).min(self.threads);
        self.limit = Some(Limit {
            threads: self.threads,
            rate: self.usual,
            until: self.now + holds,
            holds,
        });
    }
}

/// Of the threads after a step, those that the rate needs, if each brings what it brought before.
fn useful(step: &Step, rate: f64) -> u32 {
    let gain = rate / step.rate.max(f64::MIN_POSITIVE);
    match gain < 1.0 + LEAST {
        true => step.from,
        false => (f64::from(step.from) * gain * (1.0 + LEAST)).ceil() as u32,
    }
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
    cpus.saturating_add((extra * MARGIN).ceil() as u32)
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
            let fetch_s = match self.rate(threads) >= self.bandwidth {
                true => f64::from(threads) * STEP - prepare_s,
                false => rate * (self.latency + 1.0 / self.bandwidth) * STEP,
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
            while balance.step.is_some() {
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
