//! Epochs whose number of samples is told when they begin, by the first member of a cohort that begins them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, VecDeque};

use coprep_scheduler::{Cohort, Config, Delivery, DrawOrder, JobId, JobSpec, Resume, Scheduler};
use proptest::prelude::*;

const FREE: u32 = 64;

/// A member as its client sees it.
struct Member {
    spec: JobSpec,
    epoch: u64,
    has_begun: bool,
    /// Number of samples of its epoch that it was given. They come in order.
    given: u32,
    /// Number of samples in the batch that it is putting together.
    batch: u32,
    queue: VecDeque<Item>,
    /// Number of epochs that it finished or left.
    finished: u64,
}

enum Item {
    Part(Delivery, Vec<u32>),
    End(u64),
}

/// A coordinator that can be lost, and the members of one cohort.
struct World {
    config: Config,
    size: u32,
    scheduler: Scheduler,
    members: BTreeMap<JobId, Member>,
    /// By epoch: the number of samples, as the members that were told know it.
    told: BTreeMap<u64, u32>,
}

#[derive(Clone, Debug)]
enum Op {
    /// The member begins its epoch if it has not, and takes `items` items. It would tell `samples` samples.
    Step {
        who: u8,
        items: u8,
        samples: u32,
    },
    Leave(u8),
    /// The member loses its connection, and attaches again.
    Rejoin(u8),
    /// The member leaves its epoch early, and begins the next.
    Restart {
        who: u8,
        samples: u32,
    },
    TakeBack(u8),
    /// The coordinator dies, and all members attach again.
    Lose,
}

fn spec(batch_size: u32, drop_last: bool, size: u32) -> JobSpec {
    JobSpec {
        batch_size,
        world_size: 1,
        drop_last,
        subset: None,
        resume: None,
        cohort: Some(Cohort {
            name: "of all".into(),
            size,
        }),
        skip_bad: false,
    }
}

impl World {
    fn new(slots: u32, batch_sizes: &[u32], drop_last: bool) -> Self {
        let config = Config {
            samples: 1,
            slots,
            depth: 8,
            low_water: 2,
            seed: 7,
            order: DrawOrder::Ascending,
            is_told: true,
            windows: None,
        };
        let size = batch_sizes.len() as u32;
        let mut world = World {
            scheduler: Scheduler::new(config.clone()),
            config,
            size,
            members: BTreeMap::new(),
            told: BTreeMap::new(),
        };
        for (number, &batch_size) in (0..).zip(batch_sizes) {
            let member = Member {
                spec: spec(batch_size, drop_last, size),
                epoch: 0,
                has_begun: false,
                given: 0,
                batch: 0,
                queue: VecDeque::new(),
                finished: 0,
            };
            world.members.insert(JobId(number), member);
            world.attach(JobId(number));
        }
        world
    }

    /// Attaches a member, with the samples that it was given.
    fn attach(&mut self, id: JobId) {
        let member = self.members.get_mut(&id).unwrap();
        // The part of a batch that it was given is assigned again.
        member.queue.clear();
        member.given -= std::mem::take(&mut member.batch);
        let resume = Resume {
            epoch: member.epoch,
            delivered: (0..member.given).collect(),
            ..Resume::default()
        };
        let spec = JobSpec {
            resume: Some(resume),
            ..member.spec.clone()
        };
        self.scheduler.attach(id, spec).unwrap();
        self.scheduler.set_ahead(id, 0);
        if self.members[&id].has_begun {
            self.begin(id, None);
        }
    }

    /// A member begins its epoch, and tells the number of its samples if no other has.
    fn begin(&mut self, id: JobId, samples: Option<u32>) {
        let member = self.members.get_mut(&id).unwrap();
        member.has_begun = true;
        let epoch = member.epoch;
        self.scheduler.epoch_started(id, 0, epoch);
        // A member that began and lost its connection tells the same number again.
        let samples = *self.told.entry(epoch).or_insert(samples.unwrap_or(9));
        if self.scheduler.untold(id) == Some(epoch) {
            self.scheduler.tell_epoch(epoch, samples);
        }
    }

    fn on(&mut self, who: u8, what: impl FnOnce(&mut Self, JobId)) {
        let at = usize::from(who) % self.members.len().max(1);
        if let Some(&id) = self.members.keys().nth(at) {
            what(self, id);
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Step {
                who,
                items,
                samples,
            } => self.on(who, |w, id| {
                for _ in 0..items {
                    w.step(id, samples);
                    w.pump();
                }
            }),
            Op::Leave(who) if self.members.len() > 1 => self.on(who, |w, id| {
                w.scheduler.detach(id);
                w.members.remove(&id);
            }),
            Op::Leave(_) => {}
            Op::Rejoin(who) => self.on(who, |w, id| {
                w.scheduler.detach(id);
                w.attach(id);
                w.scheduler.begin_cohort("of all");
            }),
            Op::Restart { who, samples } => self.on(who, |w, id| w.restart(id, samples)),
            Op::TakeBack(who) => self.on(who, World::take_back),
            Op::Lose => {
                self.scheduler = Scheduler::new(self.config.clone());
                let ids: Vec<JobId> = self.members.keys().copied().collect();
                ids.into_iter().for_each(|id| self.attach(id));
                self.scheduler.begin_cohort("of all");
            }
        }
        self.pump();
    }

    fn restart(&mut self, id: JobId, samples: u32) {
        let member = self.members.get_mut(&id).unwrap();
        if !member.has_begun {
            return;
        }
        self.scheduler.restart_epoch(id);
        let epoch = self.scheduler.job(id).unwrap().epoch;
        assert_eq!(epoch, member.epoch + 1);
        member.queue.clear();
        (member.epoch, member.given, member.batch) = (epoch, 0, 0);
        member.finished += 1;
        self.begin(id, Some(samples));
    }

    fn take_back(&mut self, id: JobId) {
        let void = self.scheduler.take_back(id)[0];
        let member = self.members.get_mut(&id).unwrap();
        let mut left = void;
        while left > 0 {
            if let Some(Item::Part(..)) = member.queue.pop_back() {
                left -= 1;
            }
        }
    }

    fn pump(&mut self) {
        self.note_ended();
        while let Some(minibatch) = self.scheduler.next(FREE) {
            let ids: Vec<u32> = minibatch.samples.iter().map(|draw| draw.id).collect();
            assert!(!ids.is_empty() && ids.len() <= self.config.slots as usize);
            for delivery in minibatch.deliveries {
                let draws = &minibatch.samples;
                assert!(draws.iter().all(|draw| draw.visit == delivery.epoch));
                let slots = delivery.start as usize..(delivery.start + delivery.len) as usize;
                let member = self.members.get_mut(&delivery.job).unwrap();
                member
                    .queue
                    .push_back(Item::Part(delivery, ids[slots].to_vec()));
                if delivery.ends_epoch {
                    member.queue.push_back(Item::End(delivery.epoch));
                }
            }
            self.note_ended();
        }
    }

    fn note_ended(&mut self) {
        for (id, epoch) in self.scheduler.take_ended() {
            let member = self.members.get_mut(&id).unwrap();
            member.queue.push_back(Item::End(epoch));
        }
    }

    /// A member begins its epoch, or takes an item. Returns `true` if it did either.
    fn step(&mut self, id: JobId, samples: u32) -> bool {
        let member = self.members.get_mut(&id).unwrap();
        if !member.has_begun {
            self.begin(id, Some(samples));
            return true;
        }
        let Some(item) = member.queue.pop_front() else {
            return false;
        };
        let told = self.told[&member.epoch];
        match item {
            Item::Part(delivery, ids) => {
                assert_eq!(delivery.epoch, member.epoch);
                let next: Vec<u32> = (member.given..member.given + delivery.len).collect();
                assert_eq!(ids, next, "of {told}, for {id:?}");
                member.given += delivery.len;
                member.batch += delivery.len;
                assert!(member.given <= told);
                if delivery.ends_batch {
                    let is_full = member.batch == member.spec.batch_size;
                    assert!(is_full || (!member.spec.drop_last && member.given == told));
                    member.batch = 0;
                }
                self.scheduler.taken(id, 0, 1);
            }
            Item::End(epoch) => {
                assert_eq!(epoch, member.epoch);
                let lost = told - member.given;
                assert!(lost == 0 || (member.spec.drop_last && lost < member.spec.batch_size));
                (member.epoch, member.given, member.has_begun) = (epoch + 1, 0, false);
                member.finished += 1;
            }
        }
        true
    }

    /// Checks that all members can finish another epoch.
    fn all_get_on(&mut self) {
        let due: BTreeMap<JobId, u64> = self
            .members
            .iter()
            .map(|(&id, member)| (id, member.finished + 2))
            .collect();
        let ids: Vec<JobId> = due.keys().copied().collect();
        while !due
            .iter()
            .all(|(id, due)| self.members[id].finished >= *due)
        {
            self.pump();
            let mut progress = false;
            for &id in &ids {
                progress |= self.step(id, 11);
                self.pump();
            }
            assert!(progress, "a deadlock");
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = || any::<u8>();
    let samples = || prop_oneof![1 => Just(0u32), 4 => 1..80u32];
    let op = prop_oneof![
        20 => (who(), 1..20u8, samples())
            .prop_map(|(who, items, samples)| Op::Step { who, items, samples }),
        1 => who().prop_map(Op::Leave),
        2 => who().prop_map(Op::Rejoin),
        1 => (who(), samples()).prop_map(|(who, samples)| Op::Restart { who, samples }),
        2 => who().prop_map(Op::TakeBack),
        1 => Just(Op::Lose),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_members_are_given_each_number_of_what_was_told_once_and_in_order(
        slots in 1..24u32, batch_sizes in prop::collection::vec(1..12u32, 1..5), drop_last: bool, ops in ops(),
    ) {
        let mut world = World::new(slots, &batch_sizes, drop_last);
        ops.into_iter().for_each(|op| world.apply(op));
        world.all_get_on();
        prop_assert!(world.size > 0);
    }
}

#[test]
fn nothing_is_made_before_the_number_of_samples_is_told_and_no_more_than_that() {
    let mut world = World::new(8, &[8, 8], false);
    let (one, other) = (JobId(0), JobId(1));
    world.scheduler.epoch_started(one, 0, 0);
    assert!(world.scheduler.next(FREE).is_none());
    assert_eq!(world.scheduler.untold(one), Some(0));
    world.scheduler.tell_epoch(0, 3);
    // A second number for the same epoch is ignored.
    world.scheduler.tell_epoch(0, 5);
    let minibatch = world.scheduler.next(FREE).unwrap();
    assert_eq!(minibatch.samples.len(), 3);
    assert!(
        minibatch
            .deliveries
            .iter()
            .all(|delivery| delivery.ends_epoch)
    );
    assert_eq!(world.scheduler.untold(other), Some(1));
    assert!(world.scheduler.next(FREE).is_none());
}

#[test]
fn an_epoch_of_no_samples_ends_when_it_has_begun() {
    let mut world = World::new(8, &[8, 8], false);
    let (one, other) = (JobId(0), JobId(1));
    world.scheduler.epoch_started(one, 0, 0);
    world.scheduler.tell_epoch(0, 0);
    assert_eq!(world.scheduler.take_ended(), [(one, 0)]);
    world.scheduler.epoch_started(other, 0, 0);
    assert_eq!(world.scheduler.take_ended(), [(other, 0)]);
    assert_eq!(world.scheduler.untold(other), Some(1));
}

#[test]
fn what_was_given_of_an_epoch_is_known_before_and_after_it_is_told() {
    let mut world = World::new(4, &[4], false);
    let one = JobId(0);
    world.scheduler.detach(one);
    world.members.get_mut(&one).unwrap().given = 4;
    world.attach(one);
    let delivered = |world: &World, batches| {
        let state = world.scheduler.state(one, 0, batches).unwrap();
        state.delivered.into_iter().collect::<Vec<u32>>()
    };
    assert_eq!(delivered(&world, 0), [0, 1, 2, 3]);
    world.scheduler.tell_epoch(0, 10);
    while world.scheduler.next(FREE).is_some() {}
    assert_eq!(delivered(&world, 0), [0, 1, 2, 3]);
    assert_eq!(delivered(&world, 1), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(
        delivered(&world, 2).len(),
        10,
        "the epoch is drawn to its end"
    );
}

#[test]
fn a_cohort_that_comes_when_all_have_left_tells_its_own() {
    let mut world = World::new(8, &[8], false);
    let one = JobId(0);
    world.scheduler.tell_epoch(0, 3);
    world.scheduler.detach(one);
    world.attach(one);
    assert_eq!(world.scheduler.untold(one), Some(0));
}
