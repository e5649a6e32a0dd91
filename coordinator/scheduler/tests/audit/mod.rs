//! Watches a scheduler's minibatches, and panics when one breaks a promise. It knows the promises only from the
//! documentation, and shares no code with the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use coprep_scheduler::{Delivery, DrawOrder, JobId, JobSpec, Minibatch, Target};
use roaring::RoaringBitmap;

/// The samples that a job may still be given, and the batches that it was given.
#[derive(Clone)]
struct Book {
    spec: JobSpec,
    set: RoaringBitmap,
    epoch: u64,
    left: RoaringBitmap,
    /// By rank.
    ranks: Vec<Rank>,
    /// Number of rounds of this epoch that some ranks were given before others returned.
    behind: usize,
    /// The state of the epoch before when its last sample was assigned.
    before: Option<Box<Book>>,
}

#[derive(Clone, Default)]
struct Rank {
    /// Sizes of this epoch's batches; the last one may be open.
    sizes: Vec<u32>,
    open: bool,
    ended: bool,
    /// The sample of this epoch that it was assigned last.
    last: Option<u32>,
}

/// A rank that returns to an epoch.
#[derive(Clone, Default)]
pub(crate) struct Back {
    /// Number of batches fewer it was given than the foremost rank.
    pub(crate) behind: u32,
    /// `true` if it was given all of the epoch.
    pub(crate) is_done: bool,
}

/// The audit of one stream; see the module.
pub(crate) struct Audit {
    samples: u32,
    slots: u32,
    order: DrawOrder,
    bad: RoaringBitmap,
    books: BTreeMap<JobId, Book>,
}

impl Audit {
    pub(crate) fn new(samples: u32, slots: u32, order: DrawOrder) -> Self {
        Audit {
            samples,
            slots,
            order,
            bad: RoaringBitmap::new(),
            books: BTreeMap::new(),
        }
    }

    /// Records that a job was admitted, and that the scheduler draws `epoch` for it. `back` tells how its ranks return
    /// to the epoch that it resumes.
    pub(crate) fn joined(&mut self, job: JobId, spec: &JobSpec, epoch: u64, back: &[Back]) {
        let all = || (0..self.samples).collect();
        let mut book = Book {
            set: spec.subset.clone().unwrap_or_else(all),
            spec: spec.clone(),
            epoch: 0,
            left: RoaringBitmap::new(),
            ranks: Vec::new(),
            behind: 0,
            before: None,
        };
        let resume = spec.resume.clone().unwrap_or_default();
        // Samples known to be bad may be assigned in the rest of an epoch if the ranks would not be level without them.
        let none = RoaringBitmap::new();
        let bad = spec.resume.as_ref().map_or(&self.bad, |_| &none);
        book.begin(resume.epoch, bad);
        book.left -= resume.delivered;
        let most = back.iter().map(|rank| rank.behind).max().unwrap_or(0);
        book.behind = most as usize;
        for (rank, back) in book.ranks.iter_mut().zip(back) {
            rank.sizes = vec![spec.batch_size; (most - back.behind) as usize];
            rank.ended = back.is_done;
        }
        if epoch != resume.epoch {
            assert_eq!(epoch, resume.epoch + 1);
            // Ranks that were not level may have left less than a sample for each.
            let n = book.lost(&self.bad);
            assert_eq!(book.rest_of(n), n, "{n} samples were never given");
            book.begin(epoch, &self.bad);
        }
        self.books.insert(job, book);
    }

    pub(crate) fn left(&mut self, job: JobId) {
        self.books.remove(&job);
    }

    /// Records that a job left its epoch, and that the scheduler continues with `epoch`.
    pub(crate) fn restarted(&mut self, job: JobId, epoch: u64) {
        let bad = self.bad.clone();
        self.book(job).begin(epoch, &bad);
    }

    /// Records that a job left its epoch after it was given these samples, in `steps` batches of each rank, and that
    /// the next epoch continues with what is assigned.
    pub(crate) fn continued(&mut self, job: JobId, given: &RoaringBitmap, steps: usize) {
        let bad = self.bad.clone();
        let book = self.book(job);
        book.epoch += 1;
        book.before = None;
        let again = &book.set & given;
        book.left |= if book.leaves_out_bad() {
            again - bad
        } else {
            again
        };
        for rank in &mut book.ranks {
            assert!(!rank.ended, "an end of the epoch stays");
            rank.sizes.drain(..steps);
        }
    }

    pub(crate) fn marked_bad(&mut self, id: u32) {
        self.bad.insert(id);
    }

    /// Records that `id` is given to all `targets` in place of a bad sample.
    pub(crate) fn replaced(&mut self, targets: &[Target], id: u32) {
        assert!(!self.bad.contains(id), "{id} is known to be bad");
        assert_ne!(self.order, DrawOrder::Ascending, "{id} comes too early");
        for target in targets {
            let Some(book) = self.books.get_mut(&target.job) else {
                continue;
            };
            assert_eq!(book.epoch, target.epoch);
            assert!(
                book.left.remove(id),
                "{id} was given to {:?} before",
                target.job
            );
        }
    }

    pub(crate) fn drawn(&mut self, minibatch: &Minibatch) {
        let ids: Vec<u32> = minibatch.samples.iter().map(|s| s.id).collect();
        assert!(
            !ids.is_empty() && ids.len() <= self.slots as usize,
            "{} samples",
            ids.len()
        );
        assert_eq!(
            ids.iter().collect::<BTreeSet<_>>().len(),
            ids.len(),
            "a sample twice"
        );
        let targets: BTreeSet<JobId> = minibatch.targets.iter().map(|t| t.job).collect();
        assert_eq!(targets.len(), minibatch.targets.len(), "a target twice");
        for target in &minibatch.targets {
            let all = minibatch.deliveries.iter().filter(|d| d.job == target.job);
            let slots: u32 = all.clone().map(|d| d.len).sum();
            assert_eq!(
                slots as usize,
                ids.len(),
                "a target is given the whole minibatch"
            );
            for delivery in all {
                assert_eq!(delivery.epoch, target.epoch);
                self.delivered(delivery, &ids);
            }
        }
        assert!(
            minibatch
                .deliveries
                .iter()
                .all(|d| targets.contains(&d.job))
        );
    }

    fn delivered(&mut self, d: &Delivery, ids: &[u32]) {
        let bad = self.bad.clone();
        let is_ascending = self.order == DrawOrder::Ascending;
        let book = self.book(d.job);
        // Where samples are lost, or ranks were not level, a rank may have to take samples of another.
        let is_even = bad.is_empty() && book.behind == 0;
        let ascends = is_ascending && (book.spec.world_size == 1 || is_even);
        assert_eq!(
            d.epoch, book.epoch,
            "{:?} was not done with its epoch",
            d.job
        );
        for id in &ids[d.start as usize..(d.start + d.len) as usize] {
            assert!(
                book.left.remove(*id),
                "{id} was given to {:?} before, or is not its",
                d.job
            );
            let before = book.ranks[d.rank as usize].last.replace(*id);
            assert!(
                !ascends || before.is_none_or(|before| before < *id),
                "{:?} is given {id} after {before:?}",
                d.job
            );
        }
        book.add(d);
        if book.ranks.iter().all(|r| r.ended) {
            book.check_left(&bad);
            book.check_batches();
            let before = book.clone();
            book.begin(book.epoch + 1, &bad);
            book.before = Some(Box::new(before));
            book.forget();
        }
    }

    /// Records that deliveries of a job, the latest first, are void. Each comes with its samples, including
    /// replacements.
    pub(crate) fn taken_back(&mut self, job: JobId, void: &[(Delivery, Vec<u32>)]) {
        let book = self.book(job);
        for (delivery, ids) in void {
            if delivery.epoch < book.epoch {
                let before = book.before.take().expect("few epochs are begun ahead");
                assert!(
                    book.ranks.iter().all(|r| r.sizes.is_empty()),
                    "a later epoch stays"
                );
                *book = *before;
            }
            assert_eq!(delivery.epoch, book.epoch);
            book.left.extend(ids);
            // In ascending order it may be assigned these next.
            let rank = &mut book.ranks[delivery.rank as usize];
            rank.last = ids.iter().min().and_then(|first| first.checked_sub(1));
            rank.undo(delivery);
        }
    }

    fn book(&mut self, job: JobId) -> &mut Book {
        self.books.get_mut(&job).expect("a job that is attached")
    }
}

impl Rank {
    /// Undoes the last slice, which was not assigned after all.
    fn undo(&mut self, d: &Delivery) {
        let size = self.sizes.last_mut().expect("a batch");
        *size -= d.len;
        self.open = *size > 0;
        if !self.open {
            self.sizes.pop();
        }
        self.ended = false;
    }
}

impl Book {
    fn begin(&mut self, epoch: u64, bad: &RoaringBitmap) {
        self.epoch = epoch;
        (self.behind, self.before) = (0, None);
        self.left = self.set.clone();
        // If all good samples would be dropped, or there are none, the user gets the bad ones too.
        let good = &self.set - bad;
        if self.leaves_out_bad() && self.rest_of(good.len()) < good.len() {
            self.left = good;
        }
        self.ranks = vec![Rank::default(); self.spec.world_size as usize];
    }

    /// Returns the number of samples that are left and could have been given.
    fn lost(&self, bad: &RoaringBitmap) -> u64 {
        if self.spec.skip_bad {
            (&self.left - bad).len()
        } else {
            self.left.len()
        }
    }

    /// Members of a cohort are assigned samples that are known to be bad as well.
    fn leaves_out_bad(&self) -> bool {
        self.spec.skip_bad && self.spec.cohort.is_none()
    }

    /// Forgets old epochs, because no scheduler takes back deliveries from that long ago.
    fn forget(&mut self) {
        let mut oldest = Some(self);
        for _ in 0..3 {
            oldest = oldest.and_then(|book| book.before.as_deref_mut());
        }
        if let Some(book) = oldest {
            book.before = None;
        }
    }

    /// Returns how many of `n` samples are left over.
    fn rest_of(&self, n: u64) -> u64 {
        let (round, ranks) = (self.round(), u64::from(self.spec.world_size));
        let drops = self.spec.drop_last || (self.spec.batch_size == 1 && ranks > 1);
        match drops {
            true => n % round,
            false if n < ranks => n,
            false => 0,
        }
    }

    fn round(&self) -> u64 {
        u64::from(self.spec.batch_size) * u64::from(self.spec.world_size)
    }

    fn add(&mut self, d: &Delivery) {
        let batch_size = self.spec.batch_size;
        let rank = &mut self.ranks[d.rank as usize];
        assert!(!rank.ended && d.len > 0);
        if !rank.open {
            rank.sizes.push(0);
        }
        let size = rank.sizes.last_mut().expect("just pushed");
        *size += d.len;
        assert!(*size <= batch_size, "a batch of {size}");
        rank.open = !d.ends_batch;
        rank.ended = d.ends_epoch;
        assert!(
            d.ends_batch || !d.ends_epoch,
            "an epoch ends in the middle of a batch"
        );
    }

    /// Checks the samples that are left at the end of an epoch.
    fn check_left(&self, bad: &RoaringBitmap) {
        let lost = self.lost(bad);
        let round = self.round();
        // With batches of one sample, nothing can even out the gap of a bad sample, or the sample that it adds to the
        // rest of an epoch when its batch is assigned again.
        let drops = self.spec.drop_last || (self.spec.batch_size == 1 && !bad.is_empty());
        assert!(
            lost == 0 || (drops && lost < round + (&self.left & bad).len()),
            "{lost} samples were never given"
        );
    }

    fn check_batches(&self) {
        let counts: BTreeSet<usize> = self.ranks.iter().map(|r| r.sizes.len()).collect();
        assert_eq!(
            counts.len(),
            1,
            "ranks differ in their number of batches: {counts:?}"
        );
        assert!(self.ranks.iter().all(|r| !r.open));
        let batch_size = self.spec.batch_size;
        let rounds = self.ranks[0].sizes.len();
        // Ranks that return behind the others may be assigned the whole rest of the epoch.
        let last = 2.max(self.behind + 1);
        let full = |r: &Rank| {
            r.sizes[..rounds.saturating_sub(last)]
                .iter()
                .all(|&s| s == batch_size)
        };
        assert!(self.ranks.iter().all(full), "a short batch in mid-epoch");
        let short = self
            .ranks
            .iter()
            .flat_map(|r| &r.sizes)
            .filter(|&&s| s < batch_size)
            .count();
        assert!(
            !self.spec.drop_last || short == 0,
            "a short batch with drop_last"
        );
        assert!(
            self.spec.world_size > 1 || short <= 1,
            "more than one short batch"
        );
    }
}
