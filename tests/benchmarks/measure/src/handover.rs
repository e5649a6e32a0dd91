//! Measures the cost of the hand-over of a minibatch of 9.6 MB between real processes.
//!
//! ```sh
//! cargo run --release -p coprep-benchmarks --bin handover [-- --json]
//! ```
//!
//! One process publishes, like the coordinator. Each consumer is a process that takes the minibatch, touches it, drops
//! its private pages, and releases it. The next minibatch is published when all consumers have released theirs and are
//! asleep. So every hand-over includes a wake-up, which is the most expensive case. *Latency* is the time from before
//! the publication to the first consumer until a consumer has the item. *CPU* is user and system time of a process.
//!
//! | touch | the consumer's work on the minibatch |
//! |---|---|
//! | nothing | none, which measures the hand-over by itself |
//! | read | reads a byte of every page |
//! | write | writes a byte of every page, in place: the kernel copies each page, and drops the copy |
#![expect(unsafe_code, reason = "touches what a view points to")]
#![expect(clippy::unwrap_used, reason = "a measurement ends at the first error")]

#[path = "../../../../cache/shared_memory/tests/common/mod.rs"]
#[expect(dead_code, reason = "shared with the tests")]
mod common;

use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{Peer, TIMEOUT, hear, receive, role, say, until_closed};
use coprep_shared_memory::handover::{Bell, Doorbell, Item, ItemKind, Receiver, Sender};
use coprep_shared_memory::staging::{Layout, Lease, StagingPool};
use coprep_shared_memory::view::StagingView;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};

const SLOTS: u32 = 64;
const IMAGE: usize = 3 * 224 * 224;
const BUFFERS: u32 = 4;
const PAGE: usize = 4096;
/// First minibatches, which do not count.
const WARM_UP: usize = 50;
const BATCHES: usize = 1000;
/// Pause before each publication. It is long enough for every consumer to be asleep again.
const PAUSE: Duration = Duration::from_millis(1);
const TOUCHES: [&str; 3] = ["nothing", "read", "write"];

fn main() {
    if let Some((touch, socket)) = role() {
        return consume(&touch, &socket);
    }
    let json = std::env::args().any(|argument| argument == "--json");
    let mut rows = Vec::new();
    for consumers in [1, 8] {
        for touch in TOUCHES {
            let row = Run::new(touch, consumers).measure();
            if !json {
                show(&row, rows.is_empty());
            }
            rows.push(row);
        }
    }
    if json {
        let bytes = IMAGE * SLOTS as usize;
        println!(
            "{}",
            json!({ "batch_bytes": bytes, "batches": BATCHES, "rows": rows })
        );
    }
}

fn show(row: &Value, is_first: bool) {
    let columns = [
        "consumers",
        "touch",
        "latency_median_us",
        "latency_p99_us",
        "cpu_us_per_batch_per_consumer",
        "cpu_us_per_batch_of_the_publisher",
    ];
    let line = |cell: &dyn Fn(&str) -> String| println!("| {} |", columns.map(cell).join(" | "));
    if is_first {
        line(&|name| name.replace('_', " "));
        line(&|_| "---".into());
    }
    line(&|name| match &row[name] {
        Value::String(text) => text.clone(),
        number => number.to_string(),
    });
}

fn layout() -> Layout {
    Layout::new(&[IMAGE, 8], SLOTS, BUFFERS).unwrap()
}

/// A publisher and its consumers.
struct Run {
    touch: &'static str,
    pool: StagingPool,
    doorbell: Doorbell,
    consumers: Vec<(Peer, Sender, Bell)>,
}

impl Run {
    fn new(touch: &'static str, consumers: usize) -> Self {
        let pool = StagingPool::create(layout()).unwrap();
        let doorbell = Doorbell::new().unwrap();
        let start = |_| {
            let (peer, mut sender) = (Peer::start(touch), Sender::create(16).unwrap());
            let bell = doorbell.bell().unwrap();
            let (deliver, reply) = sender.fds().unwrap();
            let staging = pool.reader_fd().unwrap();
            peer.send(&[staging, deliver, reply, bell.fd().unwrap()]);
            assert_eq!(hear(&peer.socket), 0, "ready");
            (peer, sender, bell)
        };
        let consumers = (0..consumers).map(start).collect();
        Run {
            touch,
            pool,
            doorbell,
            consumers,
        }
    }

    fn measure(mut self) -> Value {
        (0..WARM_UP).for_each(|_| self.hand_over());
        let before = cpu();
        (0..BATCHES).for_each(|_| self.hand_over());
        let publisher = cpu() - before;
        let (mut latencies, mut consumed) = (Vec::new(), 0.0);
        for (peer, _, _) in &mut self.consumers {
            latencies.extend((0..BATCHES).map(|_| peer.hear()));
            consumed += peer.hear() as f64 / 1e3;
            peer.ends_well();
        }
        latencies.sort_unstable();
        let latency =
            |share: f64| latencies[(latencies.len() as f64 * share) as usize] as f64 / 1e3;
        let batches = BATCHES as f64;
        json!({
            "consumers": self.consumers.len(),
            "touch": self.touch,
            "latency_median_us": tenths(latency(0.5)),
            "latency_p99_us": tenths(latency(0.99)),
            "cpu_us_per_batch_per_consumer": tenths(consumed / batches / self.consumers.len() as f64),
            "cpu_us_per_batch_of_the_publisher": tenths(publisher.as_secs_f64() * 1e6 / batches),
        })
    }

    /// Hands one minibatch to every consumer, and waits until all have released it.
    fn hand_over(&mut self) {
        let lease = self.fill();
        std::thread::sleep(PAUSE);
        let item = item(lease.buffer(), now());
        for (_, sender, _) in &mut self.consumers {
            sender.publish(item).unwrap();
        }
        while self.in_flight() > 0 {
            // The bells are armed before the look at the queues, so that a release in between rings.
            self.consumers
                .iter()
                .for_each(|(_, sender, _)| sender.arm());
            if !self
                .consumers
                .iter()
                .any(|(_, sender, _)| sender.has_news())
            {
                assert!(self.doorbell.wait(TIMEOUT), "nobody rang");
            }
            self.consumers
                .iter()
                .for_each(|(_, sender, _)| sender.disarm());
        }
    }

    /// Returns a buffer as if its slots had been written. Writing is not part of the measurement.
    fn fill(&self) -> Lease {
        let (slots, unfinished) = self.pool.allocate().unwrap().split(SLOTS);
        drop(slots);
        unfinished.finish()
    }

    fn in_flight(&mut self) -> usize {
        let left = |(_, sender, _): &mut (Peer, Sender, Bell)| {
            sender.taken().unwrap();
            sender.poll_released(|_| ()).unwrap();
            sender.in_flight()
        };
        self.consumers.iter_mut().map(left).sum()
    }
}

fn item(buffer: u32, tag: u64) -> Item {
    Item {
        kind: ItemKind::Part as u32,
        buffer,
        len: SLOTS,
        tag,
        ..Item::default()
    }
}

fn consume(touch: &str, socket: &UnixStream) {
    let [staging, deliver, reply, doorbell] = receive(socket);
    let view = StagingView::open(staging, layout()).unwrap();
    let receiver = Receiver::open(deliver, reply, doorbell).unwrap();
    say(socket, 0);
    let once = || {
        let (seq, item) = next(&receiver);
        let latency = now().saturating_sub(item.tag);
        touch_pages(touch, &view, item.buffer);
        view.drop_private_pages(item.buffer).unwrap();
        receiver.release(seq).unwrap();
        latency
    };
    for _ in 0..WARM_UP {
        once();
    }
    let before = cpu();
    let latencies: Vec<u64> = (0..BATCHES).map(|_| once()).collect();
    let used = cpu() - before;
    latencies.iter().for_each(|&latency| say(socket, latency));
    say(socket, used.as_nanos() as u64);
    until_closed(socket);
}

fn next(receiver: &Receiver) -> (u64, Item) {
    loop {
        if let Some(next) = receiver.try_next().unwrap() {
            next.1.check(&layout()).unwrap();
            return next;
        }
        receiver.wait(TIMEOUT);
    }
}

fn touch_pages(touch: &str, view: &StagingView, buffer: u32) {
    let start = view.field(buffer, 0);
    for at in (0..view.layout().field_bytes(0)).step_by(PAGE) {
        // SAFETY: inside the field, of a buffer that is taken and not released; nobody writes it, and writes here go to
        // this view's own pages.
        unsafe {
            let byte = start.add(at);
            match touch {
                "read" => drop(byte.read_volatile()),
                "write" => byte.write_volatile(1),
                _ => {}
            }
        }
    }
}

/// Returns the time of a clock that all processes share, in nanoseconds.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_nanos() as u64
}

/// Returns the CPU time that this process has used.
fn cpu() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let microseconds = used.user_time().num_microseconds() + used.system_time().num_microseconds();
    Duration::from_micros(microseconds as u64)
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
