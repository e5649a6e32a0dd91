//! The state of a stream's jobs, and the events that change it. The crate's documentation describes the rule.

mod choosing;

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::draw::{DrawKey, mix};
use crate::job::{Job, JobView, Known, Length, PendingRanks};
use crate::need::Need;
use crate::scheduler::choosing::{Choice, intersect};
use crate::windows::{Lead, WindowOrders};
use crate::{
    Behind, CarriedOver, Cohort, Config, Draw, DrawOrder, Error, ErrorKind, JobId, JobSpec,
    Minibatch, Resume, Target, error,
};

/// The scheduler of a stream: the state of its jobs, from which it draws minibatches.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) all: Arc<RoaringBitmap>,
    jobs: BTreeMap<JobId, Job>,
    cohorts: BTreeMap<String, Members>,
    pub(crate) known: Known,
    /// Number of minibatches made, which is the number of the next one.
    made: u64,
    /// Set if samples are drawn from windows.
    windows: Option<WindowOrders>,
}

/// Bit that is set in the visits of minibatches for jobs in different epochs.
const OUT_OF_STEP: u64 = 1 << 63;

/// Lower bound of [`Known::open_step`].
const OPEN_STEP: u32 = 1024;

/// A cohort's members.
#[derive(Debug, Clone)]
struct Members {
    size: u32,
    /// Members that have attached and have not left.
    here: Vec<JobId>,
    /// `true` if all members were attached once, or the cohort was begun without the others.
    complete: bool,
}

impl Scheduler {
    /// Creates the scheduler of a stream without jobs.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let mut all = RoaringBitmap::new();
        all.insert_range(0..config.samples);
        Scheduler {
            all: Arc::new(all),
            jobs: BTreeMap::new(),
            cohorts: BTreeMap::new(),
            known: Known {
                bad: RoaringBitmap::new(),
                told: config.is_told.then(BTreeMap::new),
                open_step: config.slots.saturating_mul(8).max(OPEN_STEP),
            },
            made: 0,
            windows: config.windows.clone().map(WindowOrders::new),
            config,
        }
    }

    /// Returns the number of samples of the dataset.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.config.samples
    }

    /// Returns the order in which jobs are assigned the samples of an epoch.
    #[must_use]
    pub fn order(&self) -> DrawOrder {
        self.config.order
    }

    // Attaching and detaching.

    /// Attaches a job. It has not begun to iterate any epoch but the one it resumes, or the first.
    ///
    /// # Errors
    /// When the job cannot be served as it asks. Nothing has changed then.
    pub fn attach(&mut self, id: JobId, spec: JobSpec) -> Result<(), Error> {
        self.attach_behind(id, spec, Behind::default())
    }

    /// Checks whether a job could be attached now, apart from its number.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn admits(&self, spec: &JobSpec) -> Result<(), Error> {
        self.check(spec)?;
        let job = Job::new(spec, Behind::default(), &self.all, &self.known)?;
        spec.cohort
            .as_ref()
            .map_or(Ok(()), |cohort| self.check_cohort(cohort, &job))
    }

    /// Does the same as [`attach`](Self::attach) for a job whose ranks resume from different steps of an epoch. Ranks
    /// that were given less than others catch up first, so that all ranks end the epoch after equally many batches.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_behind(
        &mut self,
        id: JobId,
        spec: JobSpec,
        behind: Behind<'_>,
    ) -> Result<(), Error> {
        if self.jobs.contains_key(&id) {
            return Err(error::duplicate(id));
        }
        self.check(&spec)?;
        let mut job = self.job_behind(&spec, behind)?;
        if let Some(cohort) = &spec.cohort {
            self.join(cohort, id, &job)?;
        }
        // Jobs that come with equal needs share one bitmap from the start.
        if let Some(other) = self
            .jobs
            .values()
            .find(|other| other.need.equals(&job.need))
        {
            job.need = other.need.clone();
        }
        self.jobs.insert(id, job);
        self.look_again();
        Ok(())
    }

    /// Considers all blocks of the dataset for the next window, because a job needs more samples of its epoch than
    /// before.
    fn look_again(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.look_again();
        }
    }

    fn check(&self, spec: &JobSpec) -> Result<(), Error> {
        if spec.batch_size == 0 {
            return Err(error::zero(ErrorKind::NoBatchSize, "batch_size is 0"));
        }
        if spec.world_size == 0 {
            return Err(error::zero(ErrorKind::NoRanks, "world_size is 0"));
        }
        let samples = self.config.samples;
        let sets = spec
            .subset
            .iter()
            .chain(spec.resume.as_ref().map(|r| &r.delivered));
        match sets.filter_map(RoaringBitmap::max).max() {
            // The number of samples is not known yet, so no id is out of range.
            _ if self.config.is_told => Ok(()),
            Some(id) if id >= samples => Err(error::out_of_range(id, samples)),
            _ => Ok(()),
        }
    }

    /// Checks whether a job can become a member of a cohort.
    fn check_cohort(&self, cohort: &Cohort, job: &Job) -> Result<(), Error> {
        let &Cohort { ref name, size } = cohort;
        if size == 0 {
            let what = format!("cohort '{name}' has size 0");
            return Err(error::zero(ErrorKind::EmptyCohort, what));
        }
        let Some(members) = self.cohorts.get(name) else {
            return Ok(());
        };
        if members.size != size {
            return Err(error::cohort_size(cohort, members.size));
        }
        if members.here.len() as u32 >= size {
            return Err(error::cohort_full(cohort));
        }
        let same = |member: &JobId| {
            let other = self.jobs.get(member);
            // Where lengths of epochs are told, they are told to all members.
            self.config.is_told || other.is_none_or(|other| other.set == job.set)
        };
        if members.here.iter().all(same) {
            Ok(())
        } else {
            Err(error::cohort_subset(name))
        }
    }

    fn join(&mut self, cohort: &Cohort, id: JobId, job: &Job) -> Result<(), Error> {
        self.check_cohort(cohort, job)?;
        let Cohort { name, size } = cohort.clone();
        let members = self.cohorts.entry(name).or_insert(Members {
            size,
            here: Vec::new(),
            complete: false,
        });
        members.here.push(id);
        members.complete |= members.here.len() as u32 == size;
        Ok(())
    }

    /// Returns the cohorts that wait until all their members are attached, each with its attached members.
    pub fn incomplete_cohorts(&self) -> impl Iterator<Item = (&str, &[JobId])> {
        let incomplete = self.cohorts.iter().filter(|(_, members)| !members.complete);
        incomplete.map(|(name, members)| (name.as_str(), &members.here[..]))
    }

    /// Lets a cohort go on with the members that are attached. Others may still come. The samples that they lack are
    /// made for them first.
    pub fn begin_cohort(&mut self, name: &str) {
        if let Some(members) = self.cohorts.get_mut(name) {
            members.complete = true;
        }
    }

    /// Removes a job that leaves or has died.
    pub fn detach(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        self.look_again();
        if self.jobs.is_empty() {
            // The lengths of epochs belong to these jobs. The next jobs tell their own.
            self.known.told.iter_mut().for_each(BTreeMap::clear);
        }
        let Some(name) = job.cohort else { return };
        if let Some(members) = self.cohorts.get_mut(&name) {
            members.here.retain(|&member| member != id);
            if members.here.is_empty() {
                self.cohorts.remove(&name);
            }
        }
    }

    // Events.

    /// Records that a rank took the oldest `deliveries` of its deliveries.
    pub fn taken(&mut self, id: JobId, rank: u32, deliveries: u32) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.take(rank, deliveries);
        }
    }

    /// Records that a rank was told something about its next delivery, so that this delivery is not taken back.
    pub fn told(&mut self, id: JobId, rank: u32) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.keep_next(rank);
        }
    }

    /// Takes back the deliveries that a job was assigned after the last minibatch from which a rank took something.
    /// Their samples are in the job's need again. Returns for each rank how many deliveries are void, counted from the
    /// latest.
    ///
    /// The sequence that is assigned to a job alone, or to a cohort, is the same with and without this call.
    /// Minibatches that are not prepared yet are no longer for this job: it must not be among the targets that
    /// [`replace`](Self::replace) and [`exchange`](Self::exchange) are called with for them.
    pub fn take_back(&mut self, id: JobId) -> Vec<u32> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Vec::new();
        };
        let void = job.take_back(&self.known);
        let need = job.need.clone();
        self.look_again();
        let mut others = self.jobs.iter().filter(|(other, _)| **other != id);
        let equal = others.find(|(_, other)| other.need.equals(&need));
        if let Some(shared) = equal.map(|(_, other)| other.need.clone()) {
            self.set_need(id, &shared);
        }
        void
    }

    /// Sets whether a job is absent, which means that it does not read. Nothing is made for an absent job, and only its
    /// cohort waits for it.
    pub fn set_absent(&mut self, id: JobId, is_absent: bool) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_absent = is_absent;
        }
    }

    /// From the next round on, assigns the batches of a job so that jobs with as many ranks and batches of the same size
    /// assign one minibatch to one rank, wherever in their epochs they are.
    ///
    /// Which rank gets a batch then depends on what was drawn for others before. So this has no effect in ascending
    /// order, which is for runs that can be repeated. The members of a cohort are assigned the same anyway.
    pub fn align_ranks(&mut self, id: JobId) {
        let is_random = self.config.order == DrawOrder::Random;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_aligned = is_random && job.cohort.is_none();
        }
    }

    /// Records that a rank began to iterate an epoch.
    pub fn epoch_started(&mut self, id: JobId, rank: u32, epoch: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.start(rank, epoch, &self.known);
        }
    }

    // Epochs whose number of samples is told.

    /// Returns a job's next epoch if its number of samples has not been told. Nothing is made for the job until it is
    /// told.
    #[must_use]
    pub fn untold(&self, id: JobId) -> Option<u64> {
        self.jobs.get(&id)?.untold()
    }

    /// Tells how many samples `epoch` has, `0..samples`, for all jobs. The first number stands: another one is ignored.
    ///
    /// No further sample is assigned from an epoch that was [opened](Self::open_epoch). Samples from `samples` on that
    /// were assigned already do not exist, and nothing may come of their deliveries. [`take_ended`](Self::take_ended)
    /// announces the end to jobs that were assigned all the others.
    pub fn tell_epoch(&mut self, epoch: u64, samples: u32) {
        self.tell_length(epoch, Length::Known(samples));
    }

    /// Begins an epoch whose number of samples is unknown. Samples are assigned until [`tell_epoch`](Self::tell_epoch)
    /// says how many there are. This is for batches far smaller than 1024 samples, in ascending order.
    pub fn open_epoch(&mut self, epoch: u64) {
        self.tell_length(epoch, Length::Open);
    }

    /// Returns the number of samples that an epoch was told to have.
    #[must_use]
    pub fn told_length(&self, epoch: u64) -> Option<u32> {
        match self.known.told.as_ref()?.get(&epoch)? {
            Length::Known(samples) => Some(*samples),
            Length::Open => None,
        }
    }

    fn tell_length(&mut self, epoch: u64, length: Length) {
        let oldest = self.oldest_epoch();
        let Some(told) = &mut self.known.told else {
            return;
        };
        // The first length stands, except that an open epoch may still be told its end.
        let known = told.entry(epoch).or_insert(length);
        if *known == Length::Open {
            *known = length;
        }
        let length = *known;
        told.retain(|&other, _| other >= oldest || other == epoch);
        for job in self.jobs.values_mut() {
            job.set_length(epoch, length, &self.known);
        }
    }

    /// Returns the oldest epoch that a job iterates. Nothing is drawn from an earlier one.
    #[must_use]
    pub fn oldest_epoch(&self) -> u64 {
        let iterated = self.jobs.values().map(Job::iterated);
        iterated.min().unwrap_or(0)
    }

    /// Returns the jobs and their epochs that ended without a delivery since the last call: nothing was left to assign,
    /// or the epoch has no samples.
    pub fn take_ended(&mut self) -> Vec<(JobId, u64)> {
        let of_job = |(&id, job): (&JobId, &mut Job)| {
            let ended = job.take_ended().into_iter();
            ended.map(move |epoch| (id, epoch))
        };
        self.jobs.iter_mut().flat_map(of_job).collect()
    }

    /// Bounds how many samples of an epoch are drawn for a job's sake before one of its ranks begins that epoch.
    /// Without this call the bound is the size of its queues.
    ///
    /// The job still takes part in minibatches that are made for others: that costs nothing, and the job needs these
    /// samples when it goes on.
    pub fn set_ahead(&mut self, id: JobId, samples: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.set_ahead(samples);
        }
    }

    /// Begins a job's next epoch because all ranks have left the current one. All deliveries that are not taken are
    /// void.
    pub fn restart_epoch(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.restart(&self.known);
        }
        self.look_again();
    }

    /// Begins a job's next epoch, which continues `epoch`: all ranks have left that, after `batches` batches each that
    /// were assigned since the job was attached. Samples that were not given in it come first, then the rest. So the next
    /// epoch has each sample once, too, if it is iterated to its end.
    ///
    /// Deliveries that are assigned and not taken stay, and belong to the next epoch, except those of the end of
    /// `epoch`. Returns for each rank how many are void, counted from the latest. Returns `None` if all of them are
    /// void, as are parts of batches that were taken. Minibatches that are in preparation are for the next epoch of the
    /// job, or not for it: see [`take_back`](Self::take_back).
    ///
    /// Does the same as [`restart_epoch`](Self::restart_epoch) for the members of a cohort, where lengths of epochs are
    /// told, if the ranks are not in this epoch or resumed it from different steps, and if what was given is not known
    /// any more. The sequence of other jobs ascends only without this call.
    pub fn leave_epoch(&mut self, id: JobId, epoch: u64, batches: u64) -> Option<Vec<u32>> {
        let is_alone = self.jobs.len() == 1;
        let void = self
            .jobs
            .get_mut(&id)
            .and_then(|job| job.leave(epoch, batches, is_alone, &self.known));
        self.look_again();
        void
    }

    /// Returns the samples that come first in a job's epoch, because it continues one that was left early.
    #[must_use]
    pub fn carried_over(&self, id: JobId) -> &[CarriedOver] {
        self.jobs.get(&id).map_or(&[], |job| &job.carried)
    }

    /// Records that a sample cannot be read. Jobs that skip such samples are not assigned it any more, except members
    /// of a cohort.
    pub fn mark_bad(&mut self, id: u32) {
        self.known.bad.insert(id);
        let bad = RoaringBitmap::from([id]);
        let jobs = self.jobs.values_mut();
        jobs.filter(|job| job.leaves_out_bad())
            .for_each(|job| job.lose(&bad));
    }

    /// Returns the samples that are left out of a job's epochs because they could not be read.
    #[must_use]
    pub fn left_out(&self, id: JobId) -> RoaringBitmap {
        match self.jobs.get(&id) {
            Some(job) if job.skip_bad => &*job.set & &self.known.bad,
            _ => RoaringBitmap::new(),
        }
    }

    /// Draws a sample that takes the place of `bad` in a minibatch for `targets`. All of them need the new sample.
    /// Returns `None` if there is no such sample, and the minibatch gets shorter. There never is one in ascending order,
    /// for a cohort, and for several ranks that do not skip bad samples.
    pub fn replace(&mut self, targets: &[Target], bad: u32) -> Option<Draw> {
        // Any other sample that they need has a later id, and would come before those in between.
        if self.config.order == DrawOrder::Ascending {
            return None;
        }
        let jobs = || {
            targets
                .iter()
                .filter_map(|t| self.jobs.get(&t.job).map(|job| (t, job)))
        };
        let may = |(t, job): (&Target, &Job)| {
            job.takes_replacements() && job.epoch == t.epoch && job.can_lose_one()
        };
        if !jobs().all(may) {
            return None;
        }
        let (lead, first) = jobs().min_by_key(|(_, job)| job.need.len())?;
        let common = jobs().try_fold(first.need.ids().clone(), |common, (_, job)| {
            intersect(&common, job.need.ids(), 1)
        })?;
        let from = &*common - &self.known.bad;
        let key = DrawKey {
            seed: self.config.seed,
            epoch: first.epoch,
            position: first.position(),
            salt: mix(u64::from(bad)) | 1,
        };
        let id = self.draw(&from, 1, key, lead.job).pop()?;
        let visit = self.visit(id, lead.job, targets, false);
        for target in targets {
            if let Some(job) = self.jobs.get_mut(&target.job) {
                job.need.remove(&[id]);
                job.replaced(bad, id);
            }
        }
        Some(Draw { id, visit })
    }

    /// Exchanges the positions of samples `one` and `other`, both drawn for `targets`.
    pub fn exchange(&mut self, targets: &[Target], one: u32, other: u32) {
        for target in targets {
            if let Some(job) = self.jobs.get_mut(&target.job) {
                job.exchange(target.epoch, one, other);
            }
        }
    }

    // Queries.

    /// Returns the samples that `job` was given once every rank has taken `batches` batches of `epoch` that were
    /// assigned since the job was attached. Returns `None` if that is not known any more.
    #[must_use]
    pub fn state(&self, id: JobId, epoch: u64, batches: u64) -> Option<Resume> {
        self.jobs.get(&id)?.state(epoch, batches)
    }

    /// Returns the state of a job, or `None` if it is not attached.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView> {
        self.jobs.get(&id).map(Job::view)
    }

    /// Returns `true` if a job reads, has no whole batch of its epoch, and waits for nothing but a staging buffer.
    #[must_use]
    pub fn lacks_buffers(&self) -> bool {
        let mut jobs = self.jobs.iter();
        jobs.any(|(&id, job)| {
            job.is_out_of_batches(&self.config, self.made) && self.cohort_waits(id).is_none()
        })
    }

    /// Returns `true` if [`take_back`](Self::take_back) would take anything back.
    #[must_use]
    pub fn can_take_back(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(Job::can_be_taken_back)
    }

    /// Returns why a job's cohort is not served, if that is the reason why the job is not.
    #[must_use]
    pub fn cohort_waits(&self, id: JobId) -> Option<String> {
        let name = self.jobs.get(&id)?.cohort.as_ref()?;
        let members = self.cohorts.get(name)?;
        if !members.complete {
            let here = members.here.len();
            return Some(format!(
                "cohort '{name}' waits: {here} of its {} members are here",
                members.size
            ));
        }
        let (bound, waiting) = (self.config.depth, PendingRanks::default());
        let full = |id: &&JobId| {
            let job = self.jobs.get(id);
            // A member that has nothing left to assign has not begun its next epoch, and is not full.
            let is_full = |job: &Job| !job.has_room(bound, &self.config, &waiting, self.made);
            job.is_some_and(|job| job.deliverable() > 0 && is_full(job))
        };
        let full: Vec<String> = members
            .here
            .iter()
            .filter(full)
            .map(|job| job.0.to_string())
            .collect();
        let jobs = full.join(", ");
        (!full.is_empty())
            .then(|| format!("cohort '{name}' waits for job {jobs}, which does not read"))
    }

    // The rule.

    /// Draws the next minibatch to prepare, with `free` staging buffers left. Returns `None` if there is none to make
    /// now.
    pub fn next(&mut self, free: u32) -> Option<Minibatch> {
        if free == 0 {
            return None;
        }
        let bound = self.bound(free);
        let mut units = self.units(bound);
        let present = self.jobs.values().filter(|job| !job.is_absent).count();
        // Rule 2. Absent jobs have no room, but nobody waits for them.
        let all_have_room = units.iter().map(|u| u.members.len()).sum::<usize>() == present;
        if !all_have_room && !units.iter().any(|u| u.starves) {
            return None;
        }
        let most_passed_over = self.jobs.len() as u32;
        // Rules 3 and 5. A unit that may not lead comes last, whatever its need.
        units.sort_by_key(|u| {
            let overdue = if u.starves && u.passed_over > most_passed_over {
                u.passed_over
            } else {
                0
            };
            (
                !u.may_lead,
                std::cmp::Reverse(overdue),
                !u.starves,
                u.precedence,
            )
        });
        let lead = units.first().filter(|u| u.may_lead)?.clone();
        self.prepare_windows(lead.members[0]);
        // Rule 3: from the second unit on, it does not matter whether a unit starves.
        units[1..].sort_by_key(|u| u.precedence);
        let choice = match self.config.order {
            DrawOrder::Ascending => self.choose_ascending(&lead, &units[1..]),
            DrawOrder::Random | DrawOrder::AscendingInCommon => self.choose(&lead, &units[1..]),
        };
        for id in units.iter().filter(|u| u.starves).flat_map(|u| &u.members) {
            if let Some(job) = self.jobs.get_mut(id) {
                job.passed_over += 1;
            }
        }
        Some(self.make(&choice))
    }

    /// Prepares the windows of the epochs that key the next draws for this job.
    fn prepare_windows(&mut self, lead: JobId) {
        let carried = self.jobs.values().flat_map(|job| job.carried.iter());
        let carried = carried.map(|group| group.epoch).min();
        let oldest = self.oldest_epoch().min(carried.unwrap_or(u64::MAX));
        let job = &self.jobs[&lead];
        if let Some(windows) = &mut self.windows {
            for group in job.next_groups(self.config.slots.into()) {
                let lead = Lead {
                    job: lead,
                    epoch: group.epoch,
                };
                windows.prepare(self.config.seed, lead, oldest, job.need.ids());
            }
        }
    }

    fn make(&mut self, choice: &Choice) -> Minibatch {
        let before: Vec<u64> = choice
            .targets
            .iter()
            .map(|id| self.jobs[id].need.len())
            .collect();
        let targets: Vec<Target> = choice
            .targets
            .iter()
            .map(|&job| Target {
                job,
                epoch: self.jobs[&job].epoch,
            })
            .collect();
        let samples = choice.ids.iter().map(|&id| Draw {
            id,
            visit: self.visit(id, choice.lead, &targets, choice.is_cohort),
        });
        let samples = samples.collect();
        self.remove(&choice.targets, &choice.ids);
        let mut deliveries = Vec::new();
        for (&id, before) in choice.targets.iter().zip(before) {
            if let Some(job) = self.jobs.get_mut(&id) {
                deliveries.extend(job.assign(
                    id,
                    &choice.ids,
                    before,
                    self.made,
                    &self.config,
                    &self.known,
                ));
            }
        }
        self.share(&choice.targets);
        self.made += 1;
        Minibatch {
            samples,
            deliveries,
            targets,
        }
    }

    /// Removes samples from jobs' needs, once for all jobs that share a bitmap.
    fn remove(&mut self, targets: &[JobId], ids: &[u32]) {
        let nothing = Need::new(RoaringBitmap::new());
        let mut waiting: Vec<JobId> = targets.to_vec();
        while let Some(&first) = waiting.first() {
            let Some(mut need) = self.jobs.get(&first).map(|job| job.need.clone()) else {
                return;
            };
            let shares = |id: &JobId| {
                self.jobs
                    .get(id)
                    .is_some_and(|job| job.need.shares_bitmap(&need))
            };
            let (same, others) = waiting.iter().partition(|id| shares(id));
            let same: Vec<JobId> = same;
            waiting = others;
            // A bitmap with a single holder can be changed without a copy.
            same.iter().for_each(|id| self.set_need(*id, &nothing));
            need.remove(ids);
            same.iter().for_each(|id| self.set_need(*id, &need));
        }
    }

    fn set_need(&mut self, id: JobId, need: &Need) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.need = need.clone();
        }
    }

    /// Lets targets whose needs have become equal share one bitmap.
    fn share(&mut self, targets: &[JobId]) {
        let needs: Vec<Need> = targets
            .iter()
            .map(|id| self.jobs[id].need.clone())
            .collect();
        for (at, id) in targets.iter().enumerate().skip(1) {
            if let Some(equal) = needs[..at].iter().find(|n| n.equals(&needs[at])) {
                self.set_need(*id, equal);
            }
        }
    }

    /// Returns the visit that keys the random operators of a sample drawn for `targets`. No job may meet a sample twice
    /// with one visit. If the targets are in different epochs, the visit is therefore a number that no job has had or
    /// will have.
    fn visit(&self, id: u32, lead: JobId, targets: &[Target], is_cohort: bool) -> u64 {
        let visit = self.jobs[&lead].visit_of(id);
        // Jobs that have left since the minibatch was drawn meet nothing any more.
        let mut others = targets.iter().filter_map(|t| self.jobs.get(&t.job));
        if is_cohort || others.all(|job| job.visit_of(id) == visit) {
            return visit;
        }
        let words = [lead.0, self.jobs[&lead].epoch, self.made];
        OUT_OF_STEP | words.iter().fold(0, |hash, &word| mix(hash ^ mix(word)))
    }
}
