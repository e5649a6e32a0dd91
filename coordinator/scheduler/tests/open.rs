//! Epochs whose number of samples is unknown until a sample is asked for that does not exist.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, VecDeque};

use coprep_scheduler::{Cohort, Config, DrawOrder, JobId, JobSpec, Resume, Scheduler};
use proptest::prelude::*;

const FREE: u32 = 64;
/// Length of a long epoch: longer than the step by which open epochs grow.
const LONG: u32 = 2600;

enum Item {
    /// A number of an epoch.
    Part(u64, u32),
    End(u64),
}

#[derive(Default)]
struct Member {
    epoch: u64,
    has_begun: bool,
    /// Number of elements of its epoch that the member was given. They come in order.
    given: u32,
    /// Items that are assigned and not handed over. They are handed over in order, once they are made.
    queue: VecDeque<Item>,
    finished: u64,
}

struct World {
    config: Config,
    size: u32,
    scheduler: Scheduler,
    members: BTreeMap<JobId, Member>,
    /// The length of each epoch, which only the reader knows.
    lengths: Vec<u32>,
    /// Epochs and numbers that the reader was asked for and has not made.
    asked: VecDeque<(u64, u32)>,
    /// Number of times that each number was made.
    made: BTreeMap<(u64, u32), u32>,
    /// Numbers that were made or found missing.
    done: std::collections::BTreeSet<(u64, u32)>,
}

#[derive(Clone, Debug)]
enum Op {
    Step {
        who: u8,
        items: u16,
    },
    /// The reader makes `count` of the numbers that it was asked for, from the back or the front.
    Read {
        count: u16,
        from_back: bool,
    },
    Leave(u8),
    Rejoin(u8),
    Restart(u8),
    TakeBack(u8),
    Lose,
}

impl World {
    fn new(slots: u32, size: u32, lengths: Vec<u32>) -> Self {
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
        let mut world = World {
            scheduler: Scheduler::new(config.clone()),
            config,
            size,
            members: BTreeMap::new(),
            lengths,
            asked: VecDeque::new(),
            made: BTreeMap::new(),
            done: Default::default(),
        };
        for number in 0..u64::from(size) {
            world.members.insert(JobId(number), Member::default());
            world.attach(JobId(number));
        }
        world
    }

    fn length(&self, epoch: u64) -> u32 {
        self.lengths[epoch as usize % self.lengths.len()]
    }

    fn attach(&mut self, id: JobId) {
        let member = self.members.get_mut(&id).unwrap();
        member.queue.clear();
        let spec = JobSpec {
            batch_size: 1,
            world_size: 1,
            drop_last: false,
            subset: None,
            resume: Some(Resume {
                epoch: member.epoch,
                delivered: (0..member.given).collect(),
                ..Resume::default()
            }),
            cohort: Some(Cohort {
                name: "of all".into(),
                size: self.size,
            }),
            skip_bad: false,
        };
        self.scheduler.attach(id, spec).unwrap();
        self.scheduler.set_ahead(id, 0);
        if self.members[&id].has_begun {
            self.begin(id);
        }
    }

    fn begin(&mut self, id: JobId) {
        let member = self.members.get_mut(&id).unwrap();
        member.has_begun = true;
        let epoch = member.epoch;
        self.scheduler.epoch_started(id, 0, epoch);
        if self.scheduler.untold(id) == Some(epoch) {
            self.scheduler.open_epoch(epoch);
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
            Op::Step { who, items } => self.on(who, |w, id| {
                for _ in 0..items {
                    w.step(id);
                    w.pump();
                }
            }),
            Op::Read { count, from_back } => {
                for _ in 0..count {
                    self.read(from_back);
                    self.pump();
                }
            }
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
            Op::Restart(who) => self.on(who, World::restart),
            Op::TakeBack(who) => self.on(who, World::take_back),
            Op::Lose => {
                self.scheduler = Scheduler::new(self.config.clone());
                self.asked.clear();
                let ids: Vec<JobId> = self.members.keys().copied().collect();
                ids.into_iter().for_each(|id| self.attach(id));
                self.scheduler.begin_cohort("of all");
            }
        }
        self.pump();
    }

    fn restart(&mut self, id: JobId) {
        let member = self.members.get_mut(&id).unwrap();
        if !member.has_begun {
            return;
        }
        self.scheduler.restart_epoch(id);
        let epoch = self.scheduler.job(id).unwrap().epoch;
        assert_eq!(epoch, member.epoch + 1);
        member.queue.clear();
        (member.epoch, member.given) = (epoch, 0);
        member.finished += 1;
        self.begin(id);
    }

    fn take_back(&mut self, id: JobId) {
        self.note_ended();
        let mut left = self.scheduler.take_back(id)[0];
        let queue = &mut self.members.get_mut(&id).unwrap().queue;
        while left > 0 {
            // Ends behind a part go with it.
            if let Some(Item::Part(..)) = queue.pop_back() {
                left -= 1;
            }
        }
    }

    fn pump(&mut self) {
        self.note_ended();
        while let Some(minibatch) = self.scheduler.next(FREE) {
            let draws = &minibatch.samples;
            assert!(!draws.is_empty() && draws.len() <= self.config.slots as usize);
            self.asked
                .extend(draws.iter().map(|draw| (draw.visit, draw.id)));
            for delivery in &minibatch.deliveries {
                let member = self.members.get_mut(&delivery.job).unwrap();
                assert_eq!(delivery.len, 1);
                let number = draws[delivery.start as usize].id;
                member.queue.push_back(Item::Part(delivery.epoch, number));
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

    fn read(&mut self, from_back: bool) -> bool {
        let asked = if from_back {
            self.asked.pop_back()
        } else {
            self.asked.pop_front()
        };
        let Some((epoch, number)) = asked else {
            return false;
        };
        self.done.insert((epoch, number));
        if number < self.length(epoch) {
            *self.made.entry((epoch, number)).or_default() += 1;
        } else {
            self.scheduler.tell_epoch(epoch, self.length(epoch));
        }
        true
    }

    /// A member begins its epoch, or takes an item that is made. Returns `true` if it did either.
    fn step(&mut self, id: JobId) -> bool {
        let member = self.members.get_mut(&id).unwrap();
        if !member.has_begun {
            self.begin(id);
            return true;
        }
        let length = self.lengths[member.epoch as usize % self.lengths.len()];
        match member.queue.front() {
            None => return false,
            Some(Item::Part(epoch, number)) if !self.done.contains(&(*epoch, *number)) => {
                return false;
            }
            Some(Item::Part(epoch, number)) => {
                assert_eq!(*epoch, member.epoch);
                // A number that does not exist leaves a gap, and its delivery is empty.
                if *number < length {
                    assert_eq!(*number, member.given, "for {id:?}");
                    member.given += 1;
                } else {
                    assert_eq!(member.given, length, "for {id:?}");
                }
                self.scheduler.taken(id, 0, 1);
            }
            Some(Item::End(epoch)) => {
                assert_eq!((*epoch, member.given), (member.epoch, length), "for {id:?}");
                (member.epoch, member.given, member.has_begun) = (epoch + 1, 0, false);
                member.finished += 1;
            }
        }
        member.queue.pop_front();
        true
    }

    /// Lets all members go on until each has finished two more epochs.
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
            let mut progress = self.read(false);
            for &id in &ids {
                progress |= self.step(id);
                self.pump();
            }
            assert!(progress, "a deadlock");
        }
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = || any::<u8>();
    let op = prop_oneof![
        20 => (who(), 1..30u16).prop_map(|(who, items)| Op::Step { who, items }),
        20 => (1..40u16, any::<bool>())
            .prop_map(|(count, from_back)| Op::Read { count, from_back }),
        1 => who().prop_map(Op::Leave),
        2 => who().prop_map(Op::Rejoin),
        1 => who().prop_map(Op::Restart),
        2 => who().prop_map(Op::TakeBack),
        1 => Just(Op::Lose),
    ];
    prop::collection::vec(op, 1..80)
}

fn lengths() -> impl Strategy<Value = Vec<u32>> {
    let length = prop_oneof![2 => Just(0u32), 8 => 1..40u32, 1 => LONG..LONG + 3];
    prop::collection::vec(length, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_members_are_given_each_number_once_and_in_order_and_then_the_end(
        slots in 1..6u32, size in 1..5u32, lengths in lengths(), ops in ops(),
    ) {
        let mut world = World::new(slots, size, lengths);
        ops.into_iter().for_each(|op| world.apply(op));
        world.all_get_on();
    }

    #[test]
    fn of_an_epoch_that_nobody_leaves_each_number_is_asked_for_once(
        size in 1..5u32, lengths in lengths(), steps in prop::collection::vec((any::<u8>(), 1..30u16), 1..60),
    ) {
        let mut world = World::new(1, size, lengths);
        for (who, items) in steps {
            world.apply(Op::Read { count: items, from_back: false });
            world.apply(Op::Step { who, items });
        }
        world.all_get_on();
        prop_assert!(world.made.values().all(|&times| times == 1));
    }
}

#[test]
fn little_is_asked_for_beyond_the_end() {
    let mut world = World::new(1, 2, vec![5]);
    let (one, other) = (JobId(0), JobId(1));
    assert!(world.scheduler.next(FREE).is_none(), "nobody has begun");
    world.begin(one);
    world.pump();
    let asked: Vec<u32> = world.asked.iter().map(|&(_, number)| number).collect();
    assert_eq!(asked, (0..8).collect::<Vec<u32>>(), "a queue of it");
    assert_eq!(world.scheduler.told_length(0), None);
    while world.read(false) {}
    world.pump();
    assert_eq!(world.scheduler.told_length(0), Some(5));
    assert_eq!(world.made.len(), 5);
    assert!(world.asked.is_empty());
    assert_eq!(world.scheduler.untold(one), Some(1));
    assert_eq!(world.scheduler.untold(other), Some(1));
    assert_eq!(world.scheduler.job(one).unwrap().queued(0), 8);
    // Its first answer stands.
    world.scheduler.tell_epoch(0, 7);
    while world.step(other) && world.members[&other].finished == 0 {}
    assert_eq!(world.members[&other].finished, 1);
}

#[test]
fn an_open_epoch_is_resumed_wherever_that_is() {
    let mut world = World::new(1, 1, vec![u32::MAX]);
    let one = JobId(0);
    world.scheduler.detach(one);
    let member = world.members.get_mut(&one).unwrap();
    (member.given, member.has_begun) = (1_000_000, true);
    world.attach(one);
    world.pump();
    assert_eq!(world.asked.front(), Some(&(0, 1_000_000)));
}
