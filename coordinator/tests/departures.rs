//! Ranks that leave their job in order. In another stream the others do not wait for them.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_client::connection::{ConnectOptions, Connection};
use coprep_client::{Event, Loader, control, no_interrupt};
use coprep_protocol::message::{
    Attach, Attached, CohortRequest, Departure, Refusal, RefusalKind, Reply, Request, ResumePoint,
};
use roaring::RoaringBitmap;

mod common;

use common::{LIMIT, Node};

const SAMPLES: u32 = 80;
const BATCH_SIZE: u32 = 4;
/// The serialised form of an empty set.
const EMPTY: [u8; 8] = [0x3a, 0x30, 0, 0, 0, 0, 0, 0];
/// Steps of each of two ranks.
const STEPS: usize = 10;

impl Node {
    /// Starts the coordinator again. A rank that has lost its connection, and with it all its ready items, attaches.
    fn begin_with_a_rank(&mut self) {
        self.begin();
        let has_a_job = || {
            let ask = Request::Status { slow: 0 };
            match self
                .connect()
                .ask(&ask, "the state", LIMIT, &no_interrupt())
            {
                Ok(Reply::Status(status)) => status.streams.iter().any(|s| !s.jobs.is_empty()),
                other => panic!("{other:?}"),
            }
        };
        let end = Instant::now() + LIMIT;
        while !has_a_job() {
            assert!(Instant::now() < end, "no rank attaches");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn rank(&self, attach: Attach) -> Rank {
        Rank {
            loader: self.loader(attach),
            given: Vec::new(),
        }
    }

    fn connect(&self) -> Connection {
        Connection::open(&self.paths(), &ConnectOptions::find("test")).unwrap()
    }

    fn refusal(&self, request: &Request) -> Refusal {
        let connection = self.connect();
        connection.send(request).unwrap();
        match connection.receive(LIMIT, &no_interrupt()).unwrap().unwrap() {
            (Reply::Refused(refusal), _) => refusal,
            (other, _) => panic!("{other:?}"),
        }
    }

    fn leave(&self, departure: Departure) {
        let told = self.connect().ask(
            &Request::Leave(departure),
            "an answer",
            LIMIT,
            &no_interrupt(),
        );
        assert!(matches!(told.unwrap(), Reply::Left { .. }));
    }
}

fn attach(rank: u32, world_size: u32) -> Attach {
    attach_to(SAMPLES, rank, world_size)
}

fn attach_to(samples: u32, rank: u32, world_size: u32) -> Attach {
    Attach {
        rank,
        world_size,
        group: "ranks".into(),
        ..common::attach(common::numbers(samples), BATCH_SIZE)
    }
}

fn departure(token: u128, rank: u32, ids: std::ops::Range<u32>, batches: u64) -> Departure {
    let mut delivered = Vec::new();
    let ids: RoaringBitmap = ids.collect();
    ids.serialize_into(&mut delivered).unwrap();
    Departure {
        token,
        rank,
        resume: ResumePoint {
            epoch: 0,
            delivered,
            batches,
            is_done: false,
            skipped: EMPTY.to_vec(),
            carried: Vec::new(),
        },
    }
}

/// A rank as its user sees it.
struct Rank {
    loader: Arc<Loader>,
    /// The ids that it was given, by batch.
    given: Vec<Vec<u32>>,
}

impl Rank {
    fn take(&mut self, batches: usize) {
        for _ in 0..batches {
            assert!(self.next());
        }
    }

    /// Takes a batch. Returns `false` at the end of the epoch.
    fn next(&mut self) -> bool {
        loop {
            match self.loader.next(Duration::from_millis(100)).unwrap() {
                Event::Batch(batch) => {
                    self.given.push(common::ids(&batch));
                    return true;
                }
                Event::EndOfEpoch => return false,
                Event::NotYet | Event::Skipped(_) => {}
            }
        }
    }

    fn take_the_rest(&mut self) {
        while self.next() {}
    }
}

fn two_ranks(node: &Node) -> [Rank; 2] {
    begin([0, 1].map(|rank| node.rank(attach(rank, 2))))
}

fn begin(ranks: [Rank; 2]) -> [Rank; 2] {
    for rank in &ranks {
        rank.loader.start_epoch().unwrap();
    }
    ranks
}

fn assert_exact(ranks: &[Rank]) {
    let given = || ranks.iter().flat_map(|rank| rank.given.iter().flatten());
    assert_eq!(given().count(), SAMPLES as usize);
    assert_eq!(given().collect::<BTreeSet<_>>().len(), SAMPLES as usize);
    assert!(ranks.iter().all(|rank| rank.given.len() == STEPS));
}

/// Attaches a rank. Returns its connection, the reply, and the departures that it was told.
fn join(node: &Node, attach: Attach) -> (Connection, Attached, Vec<Departure>) {
    let connection = node.connect();
    connection.send(&Request::Attach(Box::new(attach))).unwrap();
    let mut departed = Vec::new();
    loop {
        match connection.receive(LIMIT, &no_interrupt()).unwrap().unwrap() {
            (Reply::Attached(attached), _) => return (connection, *attached, departed),
            (Reply::Departed(departure), _) => departed.push(departure),
            (other, _) => panic!("{other:?}"),
        }
    }
}

/// Returns the coordinator's words for the cause of a rank's wait.
fn who_is_awaited(connection: &Connection) -> String {
    connection.send(&Request::Explain).unwrap();
    match connection.receive(LIMIT, &no_interrupt()).unwrap().unwrap() {
        (Reply::Explanation(text), _) => text,
        (other, _) => panic!("{other:?}"),
    }
}

#[test]
fn the_next_coordinator_does_not_wait_for_a_rank_that_has_left() {
    let mut node = Node::start();
    let mut ranks = two_ranks(&node);
    ranks[0].take(3);
    ranks[1].take(STEPS);
    ranks[1].loader.close();
    node.end();
    node.begin_with_a_rank();
    ranks[0].take_the_rest();
    assert_exact(&ranks);
    ranks[0].loader.close();
}

#[test]
fn a_rank_leaves_while_there_is_no_coordinator() {
    let mut node = Node::start();
    let mut ranks = two_ranks(&node);
    ranks[0].take(3);
    ranks[1].take(STEPS);
    node.end();
    let loader = ranks[1].loader.clone();
    let leaves = std::thread::spawn(move || loader.close());
    node.begin_with_a_rank();
    ranks[0].take_the_rest();
    leaves.join().unwrap();
    assert_exact(&ranks);
    ranks[0].loader.close();
}

#[test]
fn a_departure_that_does_not_fit_the_socket_is_heard() {
    let mut node = Node::start();
    let of_many = |rank| Attach {
        shuffle: false,
        batch_size: 50_000,
        ..attach_to(128 * 50_000, rank, 2)
    };
    let mut ranks = begin([0, 1].map(|rank| node.rank(of_many(rank))));
    for _ in 0..60 {
        ranks[0].take(1);
        ranks[1].take(1);
    }
    ranks[1].take_the_rest();
    ranks[1].loader.close();
    // Nobody asks the other rank for a batch. It hears of the departure by itself, because it looks five times a
    // second.
    std::thread::sleep(Duration::from_secs(3));
    node.end();
    node.begin_with_a_rank();
    ranks[0].take_the_rest();
    let given = ranks.iter().flat_map(|rank| rank.given.iter().flatten());
    let ids: RoaringBitmap = given.copied().collect();
    assert_eq!(ids.len(), 128 * 50_000);
    assert_eq!([ranks[0].given.len(), ranks[1].given.len()], [64, 64]);
    ranks[0].loader.close();
}

#[test]
fn a_job_that_forms_begins_when_the_rank_that_it_waits_for_has_left() {
    let node = Node::start();
    let token = 1 << 77;
    let own = |rank| Attach {
        tokens: vec![token],
        ..attach(rank, 3)
    };
    let (rank_0, attached, _) = join(&node, own(0));
    assert_eq!(attached.token, token);
    assert!(who_is_awaited(&rank_0).starts_with("waiting for rank 1, 2 of 3"));
    node.leave(departure(token, 2, 0..8, 2));
    let told = rank_0.receive(LIMIT, &no_interrupt()).unwrap().unwrap().0;
    assert_eq!(told, Reply::Departed(departure(token, 2, 0..8, 2)));
    assert!(who_is_awaited(&rank_0).starts_with("waiting for rank 1 of 3"));
    node.leave(departure(token, 1, 8..12, 1));
    let told = rank_0.receive(LIMIT, &no_interrupt()).unwrap().unwrap().0;
    assert_eq!(told, Reply::Departed(departure(token, 1, 8..12, 1)));
    assert!(who_is_awaited(&rank_0).starts_with("stream 1 (Numbers)"));
}

#[test]
fn an_epoch_that_a_rank_began_before_its_job_formed_is_prepared() {
    let node = Node::start();
    let token = 1 << 77;
    let done = |ids| ResumePoint {
        is_done: true,
        ..departure(token, 1, ids, STEPS as u64).resume
    };
    let own = Attach {
        tokens: vec![token],
        resume: Some(done(0..SAMPLES / 2)),
        ..attach(0, 2)
    };
    let (rank_0, ..) = join(&node, own);
    rank_0.send(&Request::EpochStarted { epoch: 1 }).unwrap();
    assert!(who_is_awaited(&rank_0).starts_with("waiting for rank 1 of 2"));
    node.leave(Departure {
        token,
        rank: 1,
        resume: done(SAMPLES / 2..SAMPLES),
    });
    let end = Instant::now() + LIMIT;
    while control::status(&node.paths(), 0).unwrap().streams[0]
        .totals
        .prepared
        == 0
    {
        assert!(Instant::now() < end, "nothing is prepared");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn who_attaches_is_told_who_has_left_and_tells_the_others() {
    let node = Node::start();
    let own = |rank, departed: &[Departure]| Attach {
        tokens: vec![5],
        departed: departed.to_vec(),
        ..attach(rank, 4)
    };
    let gone = [departure(5, 2, 0..8, 2), departure(5, 3, 8..12, 1)];
    let (rank_0, _, told) = join(&node, own(0, &gone[..1]));
    assert_eq!(told, [], "it knows that itself");
    assert!(who_is_awaited(&rank_0).starts_with("waiting for rank 1, 3 of 4"));
    let (rank_1, _, told) = join(&node, own(1, &gone[1..]));
    assert_eq!(told, gone[..1]);
    let told = rank_0.receive(LIMIT, &no_interrupt()).unwrap().unwrap().0;
    assert_eq!(told, Reply::Departed(gone[1].clone()));
    for rank in [&rank_0, &rank_1] {
        assert!(who_is_awaited(rank).starts_with("stream 1 (Numbers)"));
    }
}

#[test]
fn a_departure_is_of_one_job_and_not_of_its_group() {
    let node = Node::start();
    node.leave(departure(5, 1, 0..8, 2));
    let with = |rank, token: Option<u128>| Attach {
        tokens: token.into_iter().collect(),
        ..attach(rank, 2)
    };
    let (later, attached, told) = join(&node, with(0, None));
    assert_eq!(told, []);
    assert!(who_is_awaited(&later).starts_with("waiting for rank 1 of 2"));
    // Attach to the job that the rank has left, at the same time.
    let (own, other, told) = join(&node, with(0, Some(5)));
    assert_eq!((other.token, told.len()), (5, 1));
    assert_ne!((attached.job, attached.token), (other.job, other.token));
    assert!(who_is_awaited(&own).starts_with("stream 1 (Numbers)"));
    assert!(who_is_awaited(&later).starts_with("waiting for rank 1 of 2"));
    let (last, attached_1, _) = join(&node, with(1, None));
    assert_eq!(
        (attached_1.job, attached_1.token),
        (attached.job, attached.token)
    );
    for rank in [&later, &last] {
        assert!(who_is_awaited(rank).starts_with("stream 1 (Numbers)"));
    }
}

#[test]
fn a_rank_that_was_given_nothing_hears_of_one_that_has_left() {
    let node = Node::start();
    let told = |token, rank, world_size| Attach {
        told: Some(token),
        ..attach(rank, world_size)
    };
    // One rank has left before, and another leaves while the job forms.
    node.leave(departure(5, 0, 0..4, 1));
    let (rank_1, _, departed) = join(&node, told(5, 1, 2));
    assert_eq!(departed, [departure(5, 0, 0..4, 1)]);
    assert!(who_is_awaited(&rank_1).starts_with("stream 1 (Numbers)"));
    let (rank_2, _, _) = join(&node, told(6, 2, 3));
    node.leave(departure(6, 0, 0..4, 1));
    let heard = rank_2.receive(LIMIT, &no_interrupt()).unwrap().unwrap().0;
    assert_eq!(heard, Reply::Departed(departure(6, 0, 0..4, 1)));
    assert!(who_is_awaited(&rank_2).starts_with("waiting for rank 1 of 3"));
}

#[test]
fn a_rank_that_had_left_its_epoch_is_told_when_the_others_are_in_the_next() {
    let of_epoch = |rank, epoch| Attach {
        tokens: vec![5],
        resume: Some(ResumePoint {
            epoch,
            ..departure(5, rank, 0..0, 0).resume
        }),
        ..attach(rank, 2)
    };
    // Its connection was lost before it was told that all ranks had left. It asks again while the job forms, or later.
    for asks_first in [true, false] {
        let node = Node::start();
        let (asks, _, _) = join(&node, of_epoch(0, 0));
        let leave = || {
            asks.send(&Request::RestartEpoch {
                epoch: 0,
                batches: 0,
            })
            .unwrap()
        };
        if asks_first {
            leave();
            // The request is read before the other rank attaches.
            assert!(who_is_awaited(&asks).starts_with("waiting for rank 1 of 2"));
        }
        let (_other, _, _) = join(&node, of_epoch(1, 1));
        if !asks_first {
            leave();
        }
        let told = asks.receive(LIMIT, &no_interrupt()).unwrap().unwrap().0;
        assert_eq!(
            told,
            Reply::Restarted {
                epoch: 1,
                first_seq: 0,
                goes_on: false,
                carried: Vec::new()
            }
        );
    }
}

#[test]
fn a_cohort_that_had_begun_goes_on_without_members_that_do_not_come_again() {
    let node = Node::start();
    let member = |name: &str, has_begun| Attach {
        cohort: Some(CohortRequest {
            name: name.into(),
            size: 3,
        }),
        has_begun,
        ..attach(0, 1)
    };
    let (new, _, _) = join(&node, member("new", false));
    let (comes_again, _, _) = join(&node, member("had begun", true));
    let (another, _, _) = join(&node, member("had begun", true));
    for one in [&new, &comes_again, &another] {
        assert!(who_is_awaited(one).contains("of its 3 members are here"));
    }
    let end = Instant::now() + LIMIT;
    let waits = |one| who_is_awaited(one).contains("of its 3 members are here");
    while waits(&comes_again) || waits(&another) {
        assert!(Instant::now() < end, "the members wait for the third");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(waits(&new), "all members of a new cohort are awaited");
}

#[test]
fn ranks_that_meet_again_find_the_job_that_they_had() {
    let node = Node::start();
    let of = |token: Option<u128>, rank| Attach {
        tokens: token.into_iter().collect(),
        ..attach(rank, 2)
    };
    let jobs = [Some(5), Some(6), None].map(|token| join(&node, of(token, 0)));
    // The second ranks attach in another order.
    let met = [Some(6), Some(5), Some(7)].map(|token| join(&node, of(token, 1)));
    let job = |at: usize| jobs[at].1.job;
    assert_eq!([met[0].1.job, met[1].1.job], [job(1), job(0)]);
    // The first job had been given nothing when it lost its connection.
    assert_eq!(met[2].1.job, job(2));
    assert_eq!(met[2].1.token, jobs[2].1.token);
}

#[test]
fn ranks_meet_that_were_told_different_tokens_since_they_were_given_something() {
    let node = Node::start();
    let of = |rank, tokens: &[u128]| Attach {
        tokens: tokens.to_vec(),
        ..attach(rank, 2)
    };
    // One rank was given something of job 6. The other, of job 5, was registered there as well.
    let (_first, one, _) = join(&node, of(0, &[6]));
    let (_second, other, _) = join(&node, of(1, &[5, 6]));
    assert_eq!(one.job, other.job);
    let (_third, one, _) = join(&node, of(1, &[15, 16]));
    let (_fourth, other, _) = join(&node, of(0, &[16]));
    assert_eq!(one.job, other.job);
}

#[test]
fn an_invalid_departure_is_refused_and_changes_nothing() {
    let node = Node::start();
    let (rank_0, _, _) = join(
        &node,
        Attach {
            tokens: vec![5],
            ..attach(0, 2)
        },
    );
    let garbled = Departure {
        resume: ResumePoint {
            delivered: vec![0xff; 9],
            ..departure(5, 1, 0..1, 1).resume
        },
        ..departure(5, 1, 0..1, 1)
    };
    let too_many = departure(5, 1, 0..SAMPLES + 1, 1);
    let mut too_late = departure(5, 1, 0..1, 1);
    too_late.resume.epoch = u64::MAX;
    let wrong = [
        (Request::Leave(garbled.clone()), "malformed delivered"),
        (Request::Leave(departure(5, 5000, 0..1, 1)), "no rank 5000"),
        (Request::Leave(too_many.clone()), "sample 80"),
        (Request::Leave(too_late.clone()), "no job comes so far"),
    ];
    let presented = |departed: Departure| {
        Request::Attach(Box::new(Attach {
            departed: vec![departed],
            ..attach(0, 2)
        }))
    };
    let wrong = wrong.into_iter().chain([
        (presented(garbled), "malformed delivered"),
        (presented(too_many), "sample 80"),
        (presented(too_late), "no job comes so far"),
        (presented(departure(5, 0, 0..1, 1)), "rank 0 of 2"),
        (presented(departure(5, 2, 0..1, 1)), "rank 2 of 2"),
    ]);
    for (request, why) in wrong {
        let refusal = node.refusal(&request);
        assert_eq!(refusal.kind, RefusalKind::Invalid);
        assert!(refusal.message.contains(why), "{}", refusal.message);
    }
    // Rank 7 does not exist in the job.
    node.leave(departure(5, 7, 0..1, 1));
    assert!(who_is_awaited(&rank_0).starts_with("waiting for rank 1 of 2"));
}
