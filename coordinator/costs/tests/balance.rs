//! Tests of the balance in a simulated pool, event by event. Some of its photographs are many times as large as others.

mod random;

use std::collections::{BinaryHeap, VecDeque};

use coprep_costs::balance::{Balance, Interval};
use random::Random;

const CPUS: u32 = 2;
/// Largest number of threads.
const MOST: u32 = 130;
/// Least and most seconds from one decision to the next. It is the most if few samples came.
const STEP: (f64, f64) = (0.5, 2.0);
/// Number of samples that make an interval significant.
const ENOUGH: u32 = 32;
/// Number of samples that may be begun, from the first unfinished one on.
const WINDOW: usize = 512;
/// Seconds of a processor per byte: about 1.5 ms for a photograph.
const WORK: f64 = 8e-9;
/// Approximate bytes of a photograph.
const MEAN: f64 = 1.77e5;
const MIB: f64 = (1u32 << 20) as f64;

/// A storage device. Reads wait for their share of its rate, in the order in which they come.
#[derive(Clone, Copy, Debug)]
struct Storage {
    bytes_per_s: f64,
    latency: f64,
}

#[derive(Clone, Copy)]
enum Done {
    Fetched,
    Prepared,
}

/// An event of the simulation. The earliest is the greatest, because a heap pops its greatest element.
struct Event {
    at: f64,
    sample: usize,
    done: Done,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        other.at.total_cmp(&self.at)
    }
}

/// A pool that prepares endless samples.
struct Pool {
    balance: Balance,
    /// A fixed number of threads that overrides the balance.
    threads: Option<u32>,
    storage: Storage,
    free_at: f64,
    now: f64,
    random: Random,
    /// Bytes of every sample that was begun.
    bytes: Vec<f64>,
    /// For each sample from `first` on, whether it is done.
    is_done: VecDeque<bool>,
    first: usize,
    to_prepare: VecDeque<usize>,
    events: BinaryHeap<Event>,
    fetching: u32,
    preparing: u32,
    seen: Interval,
}

impl Pool {
    fn new(storage: Storage, seed: u64) -> Pool {
        Pool {
            balance: Balance::new(CPUS, MOST),
            threads: None,
            storage,
            free_at: 0.0,
            now: 0.0,
            random: Random(seed),
            bytes: Vec::new(),
            is_done: VecDeque::new(),
            first: 0,
            to_prepare: VecDeque::new(),
            events: BinaryHeap::new(),
            fetching: 0,
            preparing: 0,
            seen: Interval::default(),
        }
    }

    fn turn(&mut self, storage: Storage) {
        self.storage = storage;
        self.free_at = self.now;
    }

    fn photograph(&mut self) -> f64 {
        if self.random.unit() < 0.05 {
            5.5e5 + 2.2e6 * f64::from(self.random.unit())
        } else {
            f64::from(self.random.lognormal(9e4, 0.5))
        }
    }

    /// Continues for `seconds` seconds. Returns bytes per second, and the number of threads in each interval.
    fn run(&mut self, seconds: f64) -> (f64, Vec<u32>) {
        let (began, mut bytes, mut threads) = (self.now, 0, Vec::new());
        while self.now < began + seconds {
            let seen = self.interval();
            bytes += seen.fetched_bytes;
            threads.push(self.balance.observe(CPUS, &seen));
        }
        (bytes as f64 / (self.now - began), threads)
    }

    fn interval(&mut self) -> Interval {
        let began = self.now;
        while self.now < began + STEP.0 || (self.seen.fetched < ENOUGH && self.now < began + STEP.1)
        {
            self.go_on();
        }
        self.seen.seconds = self.now - began;
        self.seen.to_fetch /= self.seen.seconds;
        std::mem::take(&mut self.seen)
    }

    /// Advances to the next event, but not far beyond now.
    fn go_on(&mut self) {
        self.begin();
        let next = self.events.peek().map_or(f64::MAX, |event| event.at);
        let until = next.min(self.now + STEP.0 / 10.0);
        let time = until - self.now;
        self.seen.fetch_s += time * f64::from(self.fetching);
        self.seen.prepare_s += time * f64::from(self.preparing);
        self.seen.to_fetch += time * if self.may_draw() { 8.0 } else { 0.0 };
        self.now = until;
        if until == next
            && let Some(event) = self.events.pop()
        {
            self.take(&event);
        }
    }

    fn may_draw(&self) -> bool {
        self.is_done.len() < WINDOW
    }

    fn take(&mut self, event: &Event) {
        match event.done {
            Done::Fetched => {
                self.fetching -= 1;
                self.seen.fetched += 1;
                self.seen.fetched_bytes += self.bytes[event.sample] as u64;
                self.to_prepare.push_back(event.sample);
            }
            Done::Prepared => {
                self.preparing -= 1;
                self.seen.prepared += 1;
                self.is_done[event.sample - self.first] = true;
                while self.is_done.front() == Some(&true) {
                    self.is_done.pop_front();
                    self.first += 1;
                }
            }
        }
    }

    fn begin(&mut self) {
        let threads = self.threads.unwrap_or(self.balance.threads());
        loop {
            let is_full = self.fetching + self.preparing >= threads;
            // After a reduction of threads, surplus threads that wait for storage do not keep others from preparing.
            let may_prepare =
                self.preparing < CPUS && (!is_full || threads > CPUS || self.fetching > threads);
            if let Some(sample) = self.to_prepare.pop_front_if(|_| may_prepare) {
                self.preparing += 1;
                let at = self.now + WORK * self.bytes[sample];
                self.expect(at, sample, Done::Prepared);
            } else if !is_full
                && self.may_draw()
                && self.to_prepare.len() < (CPUS + threads) as usize
            {
                let (sample, bytes) = (self.bytes.len(), self.photograph());
                self.bytes.push(bytes);
                self.is_done.push_back(false);
                self.fetching += 1;
                self.free_at = self.now.max(self.free_at) + bytes / self.storage.bytes_per_s;
                let at = self.free_at + self.storage.latency;
                self.expect(at, sample, Done::Fetched);
            } else {
                return;
            }
        }
    }

    fn expect(&mut self, at: f64, sample: usize, done: Done) {
        self.events.push(Event { at, sample, done });
    }
}

fn storage(mib_per_s: f64, latency: f64) -> Storage {
    Storage {
        bytes_per_s: mib_per_s * MIB,
        latency,
    }
}

impl Storage {
    fn random(random: &mut Random) -> Storage {
        let mut log = |low: f64, high: f64| low * (high / low).powf(f64::from(random.unit()));
        storage(log(5.0, 2000.0), log(5e-5, 1e-1))
    }

    /// Returns the rate that the largest number of threads reaches.
    fn best(self, seed: u64) -> f64 {
        let mut pool = Pool::new(self, seed);
        pool.threads = Some(MOST);
        pool.run(5.0);
        pool.run(60.0).0
    }

    /// Returns the number of threads that would do if all samples were equal (Little's law).
    fn needs(self, best: f64) -> f64 {
        best / MEAN * (self.latency + MEAN / self.bytes_per_s + WORK * MEAN)
    }
}

/// 4 threads are enough for 20 MiB/s.
#[test]
fn storage_that_has_no_more_to_give_keeps_few_threads_however_much_samples_differ() {
    let slow = storage(20.0, 0.01);
    for seed in 0..20 {
        let mut pool = Pool::new(slow, seed);
        pool.run(10.0);
        for _ in 0..20 {
            let (rate, mut threads) = pool.run(30.0);
            assert!(rate >= 0.97 * slow.bytes_per_s, "seed {seed}: {rate}");
            threads.sort_unstable();
            let (usual, most) = (threads[threads.len() / 2], threads[threads.len() - 1]);
            assert!(usual <= 12 && most <= 24, "seed {seed}: {threads:?}");
        }
    }
}

#[test]
fn with_any_storage_it_reaches_what_many_threads_would_with_about_as_many_as_it_takes() {
    let mut shares = Vec::new();
    for seed in 0..60 {
        let there = Storage::random(&mut Random(seed));
        let best = there.best(seed);
        let mut pool = Pool::new(there, seed);
        pool.run(10.0);
        let (soon, _) = pool.run(20.0);
        let (rate, _) = pool.run(120.0);
        let (threads, needs) = (pool.balance.threads(), there.needs(best));
        assert!(
            soon >= 0.9 * best && rate >= 0.9 * best,
            "seed {seed}: {there:?}: {soon}, {rate} of {best}"
        );
        assert!(
            f64::from(threads) <= 3.0 * needs + 8.0,
            "seed {seed}: {there:?}: {threads} threads, where {needs} would do"
        );
        shares.push(rate / best);
    }
    shares.sort_by(f64::total_cmp);
    assert!(shares[30] >= 0.985, "{shares:?}");
}

#[test]
fn it_follows_storage_that_turns_slow_and_back_within_seconds() {
    for (usual, poor) in [
        (storage(200.0, 0.001), storage(20.0, 0.01)),
        (storage(1e5, 0.005), storage(1e5, 0.05)),
        (storage(200.0, 0.05), storage(20.0, 0.05)),
    ] {
        for seed in 0..10 {
            let mut pool = Pool::new(usual, seed);
            pool.run(20.0);
            for there in [poor, usual] {
                let best = there.best(seed);
                pool.turn(there);
                pool.run(4.0);
                let (rate, _) = pool.run(10.0);
                assert!(
                    rate >= 0.85 * best,
                    "seed {seed}: {there:?}: {rate} of {best}"
                );
                pool.run(40.0);
            }
        }
    }
}

#[test]
fn threads_that_storage_has_no_use_for_any_more_go() {
    for seed in 0..10 {
        let mut pool = Pool::new(storage(200.0, 0.05), seed);
        pool.run(20.0);
        assert!(pool.balance.threads() > 60);
        let slow = storage(20.0, 0.05);
        pool.turn(slow);
        pool.run(60.0);
        let (rate, _) = pool.run(60.0);
        assert!(rate >= 0.95 * slow.bytes_per_s, "seed {seed}: {rate}");
        let threads = pool.balance.threads();
        assert!(threads <= 40, "seed {seed}: {threads}");
    }
}
