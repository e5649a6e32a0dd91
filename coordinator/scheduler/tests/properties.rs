//! Random histories: every promise holds whatever jobs do ([`audit`]), no job waits for ever, and sequences that are
//! promised to be reproducible are so.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod audit;
mod specs;
mod world;

use std::collections::BTreeSet;

use coprep_scheduler::{
    CarriedOver, Cohort, Config, Draw, DrawOrder, JobId, JobSpec, Resume, Scheduler, Windows,
};
use proptest::prelude::*;
use roaring::RoaringBitmap;
use specs::spec;
use world::{Op, World};

/// `COPREP_PROPERTY_TIMES` multiplies the number of cases. Failures are not kept in a file: a history that failed
/// becomes a test of its own.
fn cases(cases: u32) -> ProptestConfig {
    let times = std::env::var("COPREP_PROPERTY_TIMES");
    ProptestConfig {
        cases: cases * times.map_or(1, |times| times.parse().unwrap()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn config(samples: u32, slots: u32, seed: u64) -> Config {
    Config {
        samples,
        slots,
        depth: 8,
        low_water: 2,
        seed,
        order: DrawOrder::Random,
        is_told: false,
        windows: None,
    }
}

fn orders() -> impl Strategy<Value = DrawOrder> {
    prop_oneof![
        2 => Just(DrawOrder::Random),
        2 => Just(DrawOrder::Ascending),
        1 => Just(DrawOrder::AscendingInCommon),
    ]
}

/// Generates windows of a dataset of 600 samples or fewer. The coordinator's end with the last sample.
fn windows() -> impl Strategy<Value = Option<Windows>> {
    let some = (1..40u32, 1..9u32).prop_map(|(block, open)| Windows {
        block_ends: (1..=600u32.div_ceil(block)).map(|n| n * block).collect(),
        open,
    });
    prop::option::of(some)
}

/// Generates a job on samples `from..from + len` of 200, or on all.
fn jobs() -> impl Strategy<Value = JobSpec> {
    let subset = prop_oneof![
        2 => Just(None),
        1 => (0..200u32, 1..200u32).prop_map(|(from, len)| Some((from..from + len).collect())),
        1 => (1..7u32, 0..7u32).prop_map(|(k, r)| Some((0..200).filter(|i| i % k != r % k).collect())),
    ];
    (
        1..12u32,
        1..5u32,
        any::<bool>(),
        subset,
        prop::option::weighted(0.2, 1..4u32),
        any::<bool>(),
    )
        .prop_map(
            |(batch_size, world_size, drop_last, subset, cohort, skip_bad)| JobSpec {
                batch_size,
                world_size,
                drop_last,
                subset,
                cohort: cohort.map(|size| Cohort {
                    name: format!("of {size}"),
                    size,
                }),
                skip_bad,
                resume: None,
            },
        )
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = || any::<u8>();
    let op = prop_oneof![
        2 => jobs().prop_map(Op::Join),
        30 => (who(), prop::option::weighted(0.3, any::<u8>()), 1..30u8)
            .prop_map(|(who, rank, steps)| Op::Step { who, rank, steps }),
        1 => who().prop_map(Op::Leave),
        2 => who().prop_map(Op::Rejoin),
        2 => who().prop_map(Op::Restart),
        2 => who().prop_map(Op::Pause),
        2 => who().prop_map(Op::TakeBack),
        1 => (0..200u32).prop_map(Op::Break),
        2 => who().prop_map(Op::State),
        2 => (who(), prop_oneof![0..100u64, Just(u64::MAX)])
            .prop_map(|(who, samples)| Op::Ahead { who, samples }),
        2 => who().prop_map(Op::Align),
    ];
    prop::collection::vec(op, 1..60)
}

fn without_bad(ops: &mut Vec<Op>) {
    ops.retain(|op| !matches!(op, Op::Break(_)));
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn every_promise_holds_and_every_job_gets_on(
        samples in 1..200u32, slots in 1..24u32, order in orders(), windows in windows(), spare in 0..20u32, bad: bool, mut ops in ops(),
    ) {
        if !bad {
            without_bad(&mut ops);
        }
        let config = Config { order, windows, ..config(samples, slots, 7) };
        let mut world = World::new(config, (1, 1 + spare));
        ops.into_iter().for_each(|op| world.apply(op));
        world.everybody_reads();
        world.everybody_finishes_an_epoch();
    }

    #[test]
    fn a_paused_job_stops_nobody_while_there_are_two_buffers_each_and_two(
        samples in 1..200u32, slots in 1..24u32, order in orders(), mut ops in ops(),
    ) {
        without_bad(&mut ops);
        let config = Config { order, ..config(samples, slots, 7) };
        let mut world = World::new(config, (2, 2));
        ops.into_iter().for_each(|op| world.apply(op));
        world.everybody_finishes_an_epoch();
    }
}

fn ops_with_stops() -> impl Strategy<Value = Vec<Op>> {
    let stop = any::<u8>().prop_map(Op::Stop);
    let often = prop::collection::vec(stop, 0..6);
    (ops(), often).prop_map(|(mut ops, stops)| {
        ops.retain(|op| !matches!(op, Op::Break(_) | Op::Pause(_)));
        let every = ops.len() / (stops.len() + 1) + 1;
        for (n, stop) in stops.into_iter().enumerate() {
            ops.insert(((n + 1) * every).min(ops.len()), stop);
        }
        ops
    })
}

/// Largest number of minibatches in a queue, as in the coordinator.
const DEPTH: u32 = 16;

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn jobs_that_stop_for_good_stop_nobody_while_each_rank_may_fill_its_queue(
        samples in 1..600u32, slots in 1..24u32, order in orders(), windows in windows(), ops in ops_with_stops(), who: u8,
    ) {
        let config = Config { order, windows, depth: DEPTH, ..config(samples, slots, 7) };
        let mut world = World::new(config, (DEPTH + 1, 1));
        ops.into_iter().for_each(|op| world.apply(op));
        world.all_others_stop(who);
        world.everybody_finishes_an_epoch();
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn jobs_that_pause_stop_nobody_if_what_they_have_not_taken_is_taken_back(
        samples in 1..200u32, slots in 1..24u32, order in orders(), windows in windows(), bad: bool, mut ops in ops(),
    ) {
        if !bad {
            without_bad(&mut ops);
        }
        let config = Config { order, windows, ..config(samples, slots, 7) };
        let mut world = World::relieving(config, (1, 2));
        ops.into_iter().for_each(|op| world.apply(op));
        world.everybody_finishes_an_epoch();
        world.everybody_reads();
        world.everybody_finishes_an_epoch();
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Short epochs put most deaths near a border. The world asserts that no rank loses the rest of its epoch, and the
    /// audit that each sample is assigned once and all ranks get equally many batches.
    #[test]
    fn ranks_that_come_back_near_the_border_of_an_epoch_lack_nothing(
        samples in 4..40u32, slots in 1..12u32, batch_size in 1..6u32, world_size in 2..5u32, drop_last: bool,
        moves in prop::collection::vec((any::<u8>(), 1..4u8, any::<bool>()), 1..40),
    ) {
        let mut world = World::new(config(samples, slots, 7), (2, 2));
        world.apply(Op::Join(JobSpec { world_size, drop_last, ..spec(batch_size) }));
        for (rank, steps, die) in moves {
            world.apply(Op::Step { who: 0, rank: Some(rank), steps });
            if die {
                world.apply(Op::Rejoin(0));
            }
        }
        world.everybody_finishes_an_epoch();
    }
}

/// A single job, which may be interrupted and may leave its epochs early, and the draws of these.
struct Alone {
    scheduler: Scheduler,
    spec: JobSpec,
    id: JobId,
    /// By epoch.
    draws: Vec<Vec<Draw>>,
    /// Deliveries that were drawn and not taken.
    queue: std::collections::VecDeque<Part>,
    /// Draws of the batch that is being put together.
    part: Vec<Draw>,
    epoch: u64,
    /// By epoch: the number of batches after which it is left, if it is.
    limits: Vec<Option<u64>>,
    /// Number of batches that it was given of its epoch, and of them since it attached.
    batches: (u64, u64),
    is_complete: bool,
    carried: Vec<CarriedOver>,
}

/// A delivery to a job alone.
struct Part {
    epoch: u64,
    draws: Vec<Draw>,
    ends_batch: bool,
    ends_epoch: bool,
}

impl Alone {
    fn new(config: Config, spec: JobSpec, limits: &[Option<u64>]) -> Self {
        let mut scheduler = Scheduler::new(config);
        scheduler.attach(JobId(1), spec.clone()).unwrap();
        Alone {
            scheduler,
            spec,
            id: JobId(1),
            draws: vec![Vec::new(); limits.len()],
            queue: std::collections::VecDeque::new(),
            part: Vec::new(),
            epoch: 0,
            limits: limits.to_vec(),
            batches: (0, 0),
            is_complete: false,
            carried: Vec::new(),
        }
    }

    fn epochs(&self) -> u64 {
        self.limits.len() as u64
    }

    fn draw(&mut self, free: u32) -> bool {
        let Some(minibatch) = self.scheduler.next(free) else {
            return false;
        };
        for d in &minibatch.deliveries {
            let draws = minibatch.samples[d.start as usize..(d.start + d.len) as usize].to_vec();
            self.queue.push_back(Part {
                epoch: d.epoch,
                draws,
                ends_batch: d.ends_batch,
                ends_epoch: d.ends_epoch,
            });
        }
        true
    }

    /// Takes a delivery, or goes on to the next epoch.
    fn take(&mut self) -> bool {
        if self.epoch == self.epochs() {
            return false;
        }
        if self.is_complete {
            self.begin(self.epoch + 1);
        } else if self.limits[self.epoch as usize] == Some(self.batches.0) {
            self.leave();
        } else {
            let Some(part) = self.queue.pop_front() else {
                return false;
            };
            self.scheduler.taken(self.id, 0, 1);
            assert_eq!(part.epoch, self.epoch);
            self.part.extend(part.draws);
            if part.ends_batch {
                self.draws[self.epoch as usize].append(&mut self.part);
                self.batches = (self.batches.0 + 1, self.batches.1 + 1);
            }
            self.is_complete = part.ends_epoch;
        }
        true
    }

    fn begin(&mut self, epoch: u64) {
        (self.epoch, self.batches, self.is_complete) = (epoch, (0, 0), false);
        self.carried = self.scheduler.carried_over(self.id).to_vec();
        self.scheduler.epoch_started(self.id, 0, epoch);
    }

    fn leave(&mut self) {
        let batches = self.batches.1;
        if let Some(void) = self.scheduler.leave_epoch(self.id, self.epoch, batches) {
            self.queue.truncate(self.queue.len() - void[0] as usize);
            self.queue.iter_mut().for_each(|part| part.epoch += 1);
        } else {
            self.queue.clear();
            self.part.clear();
        }
        self.begin(self.epoch + 1);
    }

    /// Takes back the deliveries that it has not taken.
    fn take_back(&mut self) {
        let void = self.scheduler.take_back(self.id)[0] as usize;
        self.queue.truncate(self.queue.len() - void);
    }

    /// Lets it die and return, or return to a new coordinator.
    fn interrupt(&mut self, anew: bool, config: &Config) {
        if self.epoch == self.epochs() {
            return;
        }
        // A client presents the next epoch, so that nobody finds out again that nothing is left of this one.
        if self.is_complete {
            self.begin(self.epoch + 1);
        }
        let Some(draws) = self.draws.get(self.epoch as usize) else {
            return;
        };
        let delivered = draws.iter().map(|d| d.id).collect();
        self.scheduler.detach(self.id);
        if anew {
            self.scheduler = Scheduler::new(config.clone());
        }
        self.id.0 += 1;
        let resume = Some(Resume {
            epoch: self.epoch,
            delivered,
            carried: self.carried.clone(),
            ..Resume::default()
        });
        self.scheduler
            .attach(
                self.id,
                JobSpec {
                    resume,
                    ..self.spec.clone()
                },
            )
            .unwrap();
        self.queue.clear();
        self.part.clear();
        self.batches.1 = 0;
    }

    fn finish(mut self) -> Vec<Vec<Draw>> {
        while self.epoch < self.epochs() {
            let progress = self.draw(4) | self.take();
            assert!(progress, "it stands still");
        }
        self.draws
    }

    /// Lets all of this happen to it, and lets it finish.
    fn live(mut self, beats: Vec<Beat>, config: &Config) -> Vec<Vec<Draw>> {
        for (free, takes, takes_back, dies) in beats {
            self.draw(free);
            for _ in 0..takes {
                self.take();
            }
            if takes_back {
                self.take_back();
            }
            if let Some(anew) = dies {
                self.interrupt(anew, config);
            }
        }
        self.finish()
    }
}

/// Epochs that are not left early.
const WHOLE: [Option<u64>; 3] = [None; 3];

/// The events between two checks: minibatches drawn, deliveries taken, whether the rest is taken back, and whether the
/// job dies.
type Beat = (u32, u32, bool, Option<bool>);

fn beats() -> impl Strategy<Value = Vec<Beat>> {
    let dies = prop::option::weighted(0.1, any::<bool>());
    prop::collection::vec((0..12u32, 0..12u32, any::<bool>(), dies), 0..40)
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn a_job_alone_is_assigned_the_same_however_it_is_cut_interrupted_and_taken_back(
        samples in 1..200u32, batch in 1..12u32, more in 0..12u32, seed: u64, order in orders(), windows in windows(),
        beats in beats(),
    ) {
        let config = |samples, slots, seed| Config { order, windows: windows.clone(), ..config(samples, slots, seed) };
        let plain = Alone::new(config(samples, 200, seed), spec(batch), &WHOLE).finish();
        prop_assert_eq!(plain.iter().map(Vec::len).collect::<Vec<_>>(), vec![samples as usize; 3]);
        let cut = config(samples, batch + more, seed);
        let alone = Alone::new(cut.clone(), spec(batch), &WHOLE);
        prop_assert_eq!(alone.live(beats, &cut), plain);
    }

    #[test]
    fn what_a_job_alone_is_assigned_depends_on_how_much_it_was_given_of_epochs_that_it_left(
        samples in 1..200u32, batch in 1..12u32, more in 0..12u32, seed: u64, windows in windows(), drop_last: bool,
        limits in prop::collection::vec(prop::option::weighted(0.8, 1..20u64), 1..8), beats in beats(),
    ) {
        prop_assume!(!drop_last || samples >= batch);
        let config = |slots| Config { windows: windows.clone(), ..config(samples, slots, seed) };
        let spec = JobSpec { drop_last, ..spec(batch) };
        let plain = Alone::new(config(200), spec.clone(), &limits).finish();
        let whole = u64::from(if drop_last { samples - samples % batch } else { samples });
        for (draws, limit) in plain.iter().zip(&limits) {
            let distinct: BTreeSet<u32> = draws.iter().map(|draw| draw.id).collect();
            prop_assert_eq!(distinct.len(), draws.len());
            let batches = limit.map_or(u64::MAX, |limit| limit * u64::from(batch));
            prop_assert_eq!(draws.len() as u64, whole.min(batches));
        }
        let guises: BTreeSet<(u32, u64)> = plain.iter().flatten().map(|d| (d.id, d.visit)).collect();
        prop_assert_eq!(guises.len(), plain.iter().map(Vec::len).sum::<usize>());
        let cut = config(batch + more);
        let alone = Alone::new(cut.clone(), spec, &limits);
        prop_assert_eq!(alone.live(beats, &cut), plain);
    }

    #[test]
    fn a_cohort_is_assigned_what_a_job_alone_is(
        samples in 1..200u32, batch in 1..12u32, more in 0..12u32, seed: u64, size in 1..4u32,
        order in orders(), windows in windows(), ops in ops(), batch_of_others in 1..12u32, skip_bad: bool,
    ) {
        let config = |samples, slots, seed| Config { order, windows: windows.clone(), ..config(samples, slots, seed) };
        let plain = Alone::new(config(samples, 200, seed), spec(batch), &WHOLE).finish();
        let cohort = Some(Cohort { name: "it".into(), size });
        let config = config(samples, batch + more, seed);
        let mut world = World::new(config, (2, 2));
        world.apply(Op::Join(spec(batch_of_others)));
        let members: Vec<JobId> = (0..size)
            .map(|_| world.join(JobSpec { cohort: cohort.clone(), skip_bad, ..spec(batch) }).unwrap())
            .collect();
        world.keep(&members);
        ops.into_iter().for_each(|op| world.apply(op));
        world.everybody_reads();
        world.everybody_finishes_an_epoch();
        // Samples that fail are missing, and everything else is the same.
        let readable = |draws: &[Draw]| -> Vec<Draw> {
            draws.iter().filter(|draw| !world.broken().contains(draw.id)).copied().collect()
        };
        for id in members {
            let taken = world.draws_of(id);
            prop_assert_eq!(readable(&taken[&0]), readable(&plain[0]));
            for (&epoch, taken) in taken.range(..WHOLE.len() as u64) {
                let (taken, plain) = (readable(taken), readable(&plain[epoch as usize]));
                prop_assert_eq!(&taken[..], &plain[..taken.len()]);
            }
        }
    }

    #[test]
    fn no_job_meets_a_sample_twice_in_the_same_guise(
        samples in 1..60u32, slots in 4..24u32, speeds in prop::collection::vec(1..9u8, 2..5),
        starts in prop::collection::vec(0..40u8, 5), order in orders(), leaves in 3..200u8,
    ) {
        let config = Config { order, ..config(samples, slots, 3) };
        let mut world = World::new(config, (3, 2));
        let mut ids = vec![None; speeds.len()];
        for beat in 0..120 {
            // Its epoch is left by one job after another.
            if beat % leaves == 0 {
                world.apply(Op::Restart(beat / leaves));
            }
            for (at, id) in ids.iter_mut().enumerate() {
                match *id {
                    None if beat == starts[at] => *id = world.join(spec(4)),
                    Some(id) if beat % speeds[at] == 0 => world.steps(id, None, 1),
                    _ => {}
                }
            }
        }
        for id in ids.into_iter().flatten() {
            let draws = world.draws_of(id).values().flatten().map(|d| (d.id, d.visit));
            let distinct: BTreeSet<_> = draws.clone().collect();
            prop_assert_eq!(distinct.len(), draws.count());
        }
    }
}

#[test]
fn an_epoch_begins_with_what_the_one_that_was_left_did_not_give() {
    for batches in 1..25 {
        let left = [Some(batches), None];
        let draws = Alone::new(config(100, 4, 1), spec(4), &left).finish();
        let ids = |draws: &[Draw]| draws.iter().map(|d| d.id).collect::<BTreeSet<u32>>();
        let not_given = &ids(&draws[1]) - &ids(&draws[0]);
        assert_eq!(ids(&draws[1][..not_given.len()]), not_given);
        assert_eq!(not_given.len() + draws[0].len(), 100);
    }
}

#[test]
fn a_resumed_job_is_not_given_what_it_had() {
    let mut scheduler = Scheduler::new(config(10, 4, 1));
    let delivered: RoaringBitmap = [0, 3, 4, 5, 9].into_iter().collect();
    let resume = Some(Resume {
        epoch: 2,
        delivered: delivered.clone(),
        ..Resume::default()
    });
    scheduler
        .attach(JobId(1), JobSpec { resume, ..spec(4) })
        .unwrap();
    let mut given = RoaringBitmap::new();
    while let Some(minibatch) = scheduler.next(8) {
        if minibatch.targets[0].epoch > 2 {
            break;
        }
        given.extend(minibatch.samples.iter().map(|s| s.id));
    }
    assert_eq!(given, (0..10).collect::<RoaringBitmap>() - delivered);
}
