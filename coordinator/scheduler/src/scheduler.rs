//! The rule: see the crate's documentation.

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::ascending;
use crate::draw::{self, Key, mix};
use crate::job::{Job, JobView, Known, Length, Waiting};
use crate::need::Need;
use crate::{
    AttachError, Behind, Cohort, Config, Draw, DrawOrder, JobId, JobSpec, Minibatch, Resume, Target,
};

/// The state of a stream's jobs. See the crate.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) all: Arc<RoaringBitmap>,
    jobs: BTreeMap<JobId, Job>,
    cohorts: BTreeMap<String, Members>,
    pub(crate) known: Known,
    /// Minibatches made.
    made: u64,
}

/// Set in the visits of minibatches for jobs in different epochs.
const OUT_OF_STEP: u64 = 1 << 63;

/// Least [`Known::open_step`].
const OPEN_STEP: u32 = 1024;

/// A cohort's members.
#[derive(Debug, Clone)]
struct Members {
    size: u32,
    /// Those that came, and have not left.
    here: Vec<JobId>,
    /// All had come once.
    complete: bool,
}

/// Jobs that are served together or not at all: one job, or the members of a cohort that are level.
#[derive(Debug, Clone)]
struct Unit {
    members: Vec<JobId>,
    is_cohort: bool,
    /// A minibatch may be made for its sake: somebody has begun the epoch, or is expected to. Otherwise it only takes part
    /// in what is made for others.
    may_lead: bool,
    starves: bool,
    /// Largest number of minibatches a member was passed over.
    passed_over: u32,
    /// Among units with an equal right to lead, the one with the smallest leads.
    precedence: u64,
}

/// What was chosen: who, and from what is drawn.
struct Choice {
    lead: JobId,
    targets: Vec<JobId>,
    ids: Vec<u32>,
    is_cohort: bool,
}

impl Scheduler {
    /// A stream without jobs.
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
            config,
        }
    }

    /// Samples of the dataset.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.config.samples
    }

    // Coming and going.

    /// A job comes. It has not begun to iterate another epoch than the one it resumes, or the first.
    ///
    /// # Errors
    /// When it cannot be served as it asks; nothing has changed then.
    pub fn attach(&mut self, id: JobId, spec: JobSpec) -> Result<(), AttachError> {
        self.attach_behind(id, spec, Behind::default())
    }

    /// Whether a job could be attached now, but for its number.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn admits(&self, spec: &JobSpec) -> Result<(), AttachError> {
        self.check(spec)?;
        let job = Job::new(spec, Behind::default(), &self.all, &self.known)?;
        spec.cohort
            .as_ref()
            .map_or(Ok(()), |cohort| self.has_place(cohort, &job))
    }

    /// As [`attach`](Self::attach), for a job whose ranks resume from different steps of an epoch. What ranks were given
    /// less than others comes first, so that all ranks end the epoch after equally many batches.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_behind(
        &mut self,
        id: JobId,
        spec: JobSpec,
        behind: Behind<'_>,
    ) -> Result<(), AttachError> {
        if self.jobs.contains_key(&id) {
            return Err(AttachError::Duplicate(id));
        }
        self.check(&spec)?;
        let mut job = self.job_behind(&spec, behind)?;
        if let Some(cohort) = &spec.cohort {
            self.join(cohort, id, &job)?;
        }
        // Jobs that come with equal needs share them from the start.
        if let Some(other) = self
            .jobs
            .values()
            .find(|other| other.need.equals(&job.need))
        {
            job.need = other.need.clone();
        }
        self.jobs.insert(id, job);
        Ok(())
    }

    fn check(&self, spec: &JobSpec) -> Result<(), AttachError> {
        if spec.batch_size == 0 {
            return Err(AttachError::NoBatchSize);
        }
        if spec.world_size == 0 {
            return Err(AttachError::NoRanks);
        }
        let samples = self.config.samples;
        let sets = spec
            .subset
            .iter()
            .chain(spec.resume.as_ref().map(|r| &r.delivered));
        match sets.filter_map(RoaringBitmap::max).max() {
            // The number of samples is not known yet.
            _ if self.config.is_told => Ok(()),
            Some(id) if id >= samples => Err(AttachError::OutOfRange { id, samples }),
            _ => Ok(()),
        }
    }

    /// Whether a job can become a member.
    fn has_place(&self, cohort: &Cohort, job: &Job) -> Result<(), AttachError> {
        let Cohort { name, size } = cohort.clone();
        if size == 0 {
            return Err(AttachError::EmptyCohort(name));
        }
        let Some(members) = self.cohorts.get(&name) else {
            return Ok(());
        };
        if members.size != size {
            return Err(AttachError::CohortSize {
                name,
                known: members.size,
                asked: size,
            });
        }
        if members.here.len() as u32 >= size {
            return Err(AttachError::CohortFull { name, size });
        }
        let same = |member: &JobId| {
            let other = self.jobs.get(member);
            // Where samples are told, they are told to all members.
            self.config.is_told || other.is_none_or(|other| other.set == job.set)
        };
        match members.here.iter().all(same) {
            true => Ok(()),
            false => Err(AttachError::CohortSubset(name)),
        }
    }

    fn join(&mut self, cohort: &Cohort, id: JobId, job: &Job) -> Result<(), AttachError> {
        self.has_place(cohort, job)?;
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

    /// Returns the cohorts that wait until all their members are here, each with the members that are.
    pub fn incomplete_cohorts(&self) -> impl Iterator<Item = (&str, &[JobId])> {
        let incomplete = self.cohorts.iter().filter(|(_, members)| !members.complete);
        incomplete.map(|(name, members)| (name.as_str(), &members.here[..]))
    }

    /// Lets a cohort go on with the members that are here. Others may still come: what they lack is made for them first.
    pub fn begin_cohort(&mut self, name: &str) {
        if let Some(members) = self.cohorts.get_mut(name) {
            members.complete = true;
        }
    }

    /// A job leaves, or has died.
    pub fn detach(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        if self.jobs.is_empty() {
            // The next jobs tell their own.
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

    // What happened.

    /// A rank took `deliveries` of what it was dealt, the oldest.
    pub fn taken(&mut self, id: JobId, rank: u32, deliveries: u32) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.take(rank, deliveries);
        }
    }

    /// A rank was told something of what it takes next, so that this is not taken back.
    pub fn told(&mut self, id: JobId, rank: u32) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.keep_next(rank);
        }
    }

    /// Takes back what a job was dealt after the last minibatch of which a rank took something: its samples are in the
    /// job's need again. Returns by rank how many deliveries are void, counted from the latest.
    ///
    /// A job alone and a cohort are then dealt the same sequence as without it. Minibatches that are not prepared yet are
    /// no longer for this job: it must not be among the targets that [`replace`](Self::replace) and
    /// [`exchange`](Self::exchange) are called with for them.
    pub fn take_back(&mut self, id: JobId) -> Vec<u32> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Vec::new();
        };
        let void = job.take_back(&self.known);
        let need = job.need.clone();
        let mut others = self.jobs.iter().filter(|(other, _)| **other != id);
        let equal = others.find(|(_, other)| other.need.equals(&need));
        if let Some(shared) = equal.map(|(_, other)| other.need.clone()) {
            self.set_need(id, &shared);
        }
        void
    }

    /// Says whether a job reads. While it does not, nothing is made for it and nobody waits for it, but for its cohort.
    pub fn set_absent(&mut self, id: JobId, is_absent: bool) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.is_absent = is_absent;
        }
    }

    /// A rank began to iterate an epoch.
    pub fn epoch_started(&mut self, id: JobId, rank: u32, epoch: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.start(rank, epoch, &self.known);
        }
    }

    // Epochs whose number of samples is told.

    /// Returns the epoch that a job comes to next, if the number of its samples has not been told. Nothing is made for the
    /// job before it is.
    #[must_use]
    pub fn untold(&self, id: JobId) -> Option<u64> {
        self.jobs.get(&id)?.untold()
    }

    /// Tells how many samples `epoch` has, `0..samples`, for all jobs. It is told once: another number is ignored.
    ///
    /// Of an epoch that was [opened](Self::open_epoch), no further sample is dealt. Those from `samples` on that were dealt
    /// already do not exist: nothing is to come of their deliveries. Jobs that were dealt all the others are told the end by
    /// [`take_ended`](Self::take_ended).
    pub fn tell_epoch(&mut self, epoch: u64, samples: u32) {
        self.tell_length(epoch, Length::Known(samples));
    }

    /// Begins an epoch of which nobody knows how many samples it has: they are dealt until
    /// [`tell_epoch`](Self::tell_epoch) says how many they are. For batches far smaller than 1024 samples, in
    /// ascending order.
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
        let known = told.entry(epoch).or_insert(length);
        if *known == Length::Open {
            *known = length;
        }
        let length = *known;
        told.retain(|&other, _| other >= oldest || other == epoch);
        for job in self.jobs.values_mut() {
            job.tell(epoch, length, &self.known);
        }
    }

    /// Returns the oldest epoch that a job iterates. Nothing is drawn of an earlier one.
    #[must_use]
    pub fn oldest_epoch(&self) -> u64 {
        let iterated = self.jobs.values().map(Job::iterated);
        iterated.min().unwrap_or(0)
    }

    /// Returns the jobs and their epochs that ended without a delivery since this was last called: nothing was left of
    /// them, or they have no samples.
    pub fn take_ended(&mut self) -> Vec<(JobId, u64)> {
        let of_job = |(&id, job): (&JobId, &mut Job)| {
            let ended = job.take_ended().into_iter();
            ended.map(move |epoch| (id, epoch))
        };
        self.jobs.iter_mut().flat_map(of_job).collect()
    }

    /// Bounds how many samples of an epoch are drawn for a job's sake before a rank of it begins that epoch. Without this
    /// call they are as many as its queues hold.
    ///
    /// The job takes part in minibatches that are made for others all the same: that costs nothing, and it needs these
    /// samples when it goes on.
    pub fn set_ahead(&mut self, id: JobId, samples: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.set_ahead(samples);
        }
    }

    /// All ranks left the epoch they iterate: the job's next one begins. What was dealt is void.
    pub fn restart_epoch(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.restart(&self.known);
        }
    }

    /// A sample cannot be read: jobs that skip such samples are not dealt it any more, but for members of a cohort.
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

    /// Another sample for the place of `bad` in a minibatch for `targets`: one that all of them need. None
    /// if there is none: the minibatch gets shorter. In ascending order, and for a cohort, there never is one.
    pub fn replace(&mut self, targets: &[Target], bad: u32) -> Option<Draw> {
        // Any other sample that they need has a later id, and would come before those in between.
        if self.config.order == DrawOrder::Ascending {
            return None;
        }
        // The need depends on how far ahead the job was drawn. A member that is dealt the minibatch at another time would be
        // given another sample.
        let is_member = |t: &Target| {
            self.jobs
                .get(&t.job)
                .is_some_and(|job| job.cohort.is_some())
        };
        if targets.iter().any(is_member) {
            return None;
        }
        let jobs = || {
            targets
                .iter()
                .filter_map(|t| self.jobs.get(&t.job).map(|job| (t, job)))
        };
        if !jobs().all(|(t, job)| job.epoch == t.epoch && job.can_lose_one()) {
            return None;
        }
        let (lead, first) = jobs().min_by_key(|(_, job)| job.need.len())?;
        let common = jobs().try_fold(first.need.ids().clone(), |common, (_, job)| {
            intersect(&common, &job.need, 1)
        })?;
        let from = &*common - &self.known.bad;
        let key = Key {
            seed: self.config.seed,
            epoch: first.epoch,
            position: first.position(),
            salt: mix(u64::from(bad)) | 1,
        };
        let visit = self.visit(lead.job, targets, false);
        let id = self.draw(&from, 1, key).pop()?;
        for target in targets {
            if let Some(job) = self.jobs.get_mut(&target.job) {
                job.need.remove(&[id]);
                job.replaced(bad, id);
            }
        }
        Some(Draw { id, visit })
    }

    /// Samples `one` and `other`, drawn for the same `targets`, are dealt each in the place of the other.
    pub fn exchange(&mut self, targets: &[Target], one: u32, other: u32) {
        for target in targets {
            if let Some(job) = self.jobs.get_mut(&target.job) {
                job.exchange(target.epoch, one, other);
            }
        }
    }

    // What is known.

    /// What `job` was given once every rank has taken `batches` batches of `epoch` that were dealt since it
    /// was attached. None if that is not known any more.
    #[must_use]
    pub fn state(&self, id: JobId, epoch: u64, batches: u64) -> Option<Resume> {
        self.jobs.get(&id)?.state(epoch, batches)
    }

    /// Where a job is.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView> {
        self.jobs.get(&id).map(Job::view)
    }

    /// Returns whether a job reads, has no whole batch of its epoch, and waits for nothing but a staging buffer.
    #[must_use]
    pub fn lacks_buffers(&self) -> bool {
        let mut jobs = self.jobs.iter();
        jobs.any(|(&id, job)| {
            job.is_out_of_batches(&self.config) && self.cohort_waits(id).is_none()
        })
    }

    /// Returns whether [`take_back`](Self::take_back) would take anything back.
    #[must_use]
    pub fn can_take_back(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(Job::can_be_taken_back)
    }

    /// Why a job's cohort is not served, if that is the reason why the job is not.
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
        let (bound, waiting) = (self.config.depth, Waiting::default());
        let full = |id: &&JobId| {
            let job = self.jobs.get(id);
            // A member of which nothing is to be dealt has not begun its epoch.
            let is_full = |job: &Job| !job.has_room(bound, &self.config, &waiting);
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

    /// The next minibatch to prepare, with `free` staging buffers left; None if there is none to make now.
    pub fn next(&mut self, free: u32) -> Option<Minibatch> {
        if free == 0 {
            return None;
        }
        let bound = self.bound(free);
        let mut units = self.units(bound);
        let present = self.jobs.values().filter(|job| !job.is_absent).count();
        let all_have_room = units.iter().map(|u| u.members.len()).sum::<usize>() == present;
        if !all_have_room && !units.iter().any(|u| u.starves) {
            return None;
        }
        let patience = self.jobs.len() as u32;
        units.sort_by_key(|u| {
            let overdue = if u.starves && u.passed_over > patience {
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
        // Rule 3: from the second on, starving or not does not matter.
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

    /// Most minibatches in a rank's queue: a buffer is left for every rank whose queue is empty.
    fn bound(&self, free: u32) -> u32 {
        let present = self.jobs.values().filter(|job| !job.is_absent);
        let empty: u32 = present.map(Job::empty_queues).sum();
        free.saturating_sub(empty)
            .clamp(1, self.config.depth.max(1))
    }

    /// Everybody who can be given a minibatch.
    fn units(&self, bound: u32) -> Vec<Unit> {
        let mut waiting = Waiting::default();
        self.jobs
            .values()
            .for_each(|job| job.count_waiting(&mut waiting));
        let with_room = |job: &Job| job.has_room(bound, &self.config, &waiting);
        let alone = self
            .jobs
            .iter()
            .filter(|(_, job)| job.cohort.is_none() && with_room(job));
        let alone = alone.map(|(&id, _)| self.unit(vec![id], None));
        let complete = self.cohorts.values().filter(|members| members.complete);
        let level = complete.map(|members| (self.rearmost(members), members));
        let level = level.filter(|(ids, _)| {
            ids.iter()
                .all(|id| self.jobs.get(id).is_some_and(with_room))
        });
        let cohorts = level.map(|(ids, cohort)| self.unit(ids, Some(cohort)));
        alone.chain(cohorts).collect()
    }

    /// Members of a cohort that are furthest behind: all of them, unless it has just been resumed.
    fn rearmost(&self, members: &Members) -> Vec<JobId> {
        let place = |id: &JobId| self.jobs.get(id).map(|job| (job.epoch, job.position()));
        let behind = members.here.iter().filter_map(place).min();
        members
            .here
            .iter()
            .copied()
            .filter(|id| place(id) == behind)
            .collect()
    }

    /// The jobs of a unit are in one epoch, at one place.
    fn unit(&self, members: Vec<JobId>, cohort: Option<&Members>) -> Unit {
        let jobs = || members.iter().filter_map(|id| self.jobs.get(id));
        // Members of a cohort that are further on wait for those of the unit, so they count.
        let waiting = cohort.map_or(&members, |cohort| &cohort.here);
        let epoch = jobs().map(|job| job.epoch).next().unwrap_or(0);
        let has_begun = |id| self.jobs.get(id).is_some_and(|job| job.has_begun(epoch));
        let may_lead =
            waiting.iter().any(has_begun) || jobs().any(|job| job.may_be_ahead(self.config.slots));
        Unit {
            is_cohort: cohort.is_some(),
            may_lead,
            starves: may_lead && jobs().any(|job| job.starves(&self.config)),
            passed_over: jobs().map(|job| job.passed_over).max().unwrap_or(0),
            precedence: jobs().map(|job| self.precedence(job)).min().unwrap_or(0),
            members,
        }
    }

    fn precedence(&self, job: &Job) -> u64 {
        match self.config.order {
            DrawOrder::Random | DrawOrder::AscendingInCommon => job.need.len(),
            // The job that is behind catches up with those ahead, and shares with them from there on.
            DrawOrder::Ascending => u64::from(job.need.ids().min().unwrap_or(0)),
        }
    }

    /// Samples of the next minibatch that is made for `lead`.
    fn want(&self, lead: &Unit) -> u64 {
        // Members of a cohort that drop their last batch may end before others.
        let deliverable = lead.members.iter().map(|id| self.jobs[id].deliverable());
        let want = deliverable.min().unwrap_or(0);
        want.min(u64::from(self.config.slots))
    }

    fn choose(&self, lead: &Unit, others: &[Unit]) -> Choice {
        let first = lead.members[0];
        let job = &self.jobs[&first];
        let slots = u64::from(self.config.slots);
        let want = self.want(lead);
        let ends = want == job.deliverable();
        let takes_all = |id: &JobId| {
            let other = &self.jobs[id];
            // A short minibatch goes only to jobs whose epoch it ends.
            if ends && want < slots {
                other.deliverable() == want
            } else {
                other.deliverable() >= want
            }
        };
        if lead.is_cohort {
            return self.choose_for_cohort(lead, others, want as u32, takes_all);
        }
        let (mut common, mut targets) = (job.need.ids().clone(), vec![first]);
        for unit in others.iter().filter(|u| !u.is_cohort) {
            let id = unit.members[0];
            if !takes_all(&id) {
                continue;
            }
            if let Some(both) = intersect(&common, &self.jobs[&id].need, want) {
                common = both;
                targets.push(id);
            }
        }
        let level = targets
            .iter()
            .all(|id| self.jobs[id].need.len() == common.len());
        let key = self.key(job, if level { 0 } else { mix(first.0) | 1 });
        Choice {
            lead: first,
            ids: self.draw(&common, want as u32, key),
            targets,
            is_cohort: false,
        }
    }

    /// A cohort's samples do not depend on other jobs; who happens to need them takes part.
    fn choose_for_cohort(
        &self,
        lead: &Unit,
        others: &[Unit],
        want: u32,
        takes_all: impl Fn(&JobId) -> bool,
    ) -> Choice {
        let first = lead.members[0];
        let job = &self.jobs[&first];
        let ids = self.draw(job.need.ids(), want, self.key(job, 0));
        let needed = |id: &JobId| {
            let need = &self.jobs[id].need;
            need.equals(&job.need) || ids.iter().all(|&sample| need.ids().contains(sample))
        };
        let others = others
            .iter()
            .filter(|u| !u.is_cohort)
            .flat_map(|u| &u.members)
            .filter(|id| takes_all(id));
        let everyone = lead.members[1..]
            .iter()
            .chain(others)
            .filter(|id| needed(id));
        let targets = std::iter::once(first).chain(everyone.copied()).collect();
        Choice {
            lead: first,
            targets,
            ids,
            is_cohort: true,
        }
    }

    /// The next ids of `lead`, and everybody who needs just these next.
    fn choose_ascending(&self, lead: &Unit, others: &[Unit]) -> Choice {
        let first = lead.members[0];
        let need = &self.jobs[&first].need;
        let mut ids = ascending::next_ids(need, self.want(lead));
        let elsewhere = self
            .jobs
            .values()
            .filter(|job| !job.need.shares_bitmap(need));
        let meeting_points =
            elsewhere.filter_map(|job| ascending::meeting_point(need, &ids, &job.need));
        if let Some(nearest) = meeting_points.min() {
            ids.truncate(nearest);
        }
        let takes_part = |id: &&JobId| {
            let job = &self.jobs[id];
            job.deliverable() >= ids.len() as u64 && ascending::begins_with(&job.need, &ids)
        };
        let others = others.iter().filter(|u| !u.is_cohort);
        let others = others.flat_map(|u| &u.members);
        let everyone = lead.members[1..].iter().chain(others).filter(takes_part);
        Choice {
            lead: first,
            targets: std::iter::once(first).chain(everyone.copied()).collect(),
            is_cohort: lead.is_cohort,
            ids,
        }
    }

    fn key(&self, job: &Job, salt: u64) -> Key {
        Key {
            seed: self.config.seed,
            epoch: job.epoch,
            position: job.position(),
            salt,
        }
    }

    fn draw(&self, from: &RoaringBitmap, count: u32, key: Key) -> Vec<u32> {
        match self.config.order {
            DrawOrder::Random => draw::random(from, count, key),
            DrawOrder::Ascending | DrawOrder::AscendingInCommon => draw::ascending(from, count),
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
        let visit = self.visit(choice.lead, &targets, choice.is_cohort);
        let samples = choice.ids.iter().map(|&id| Draw { id, visit }).collect();
        self.remove(&choice.targets, &choice.ids);
        let mut deliveries = Vec::new();
        for (&id, before) in choice.targets.iter().zip(before) {
            if let Some(job) = self.jobs.get_mut(&id) {
                deliveries.extend(job.deal(id, &choice.ids, before, self.made, &self.known));
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

    /// Takes samples out of jobs' needs, once for all that share a bitmap.
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
            // While only one holds it, it need not be copied to be changed.
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

    /// Keys the random operators of samples drawn for `targets`: no job may meet a sample twice with one
    /// visit. So if they stand in different epochs, it is a number that nobody had and nobody will have.
    fn visit(&self, lead: JobId, targets: &[Target], is_cohort: bool) -> u64 {
        let epoch = self.jobs[&lead].epoch;
        if is_cohort || targets.iter().all(|t| t.epoch == epoch) {
            return epoch;
        }
        let words = [lead.0, epoch, self.made];
        OUT_OF_STEP | words.iter().fold(0, |hash, &word| mix(hash ^ mix(word)))
    }
}

/// What `common` and `need` share, if that is at least `want` samples.
fn intersect(common: &Arc<RoaringBitmap>, need: &Need, want: u64) -> Option<Arc<RoaringBitmap>> {
    if Arc::ptr_eq(common, need.ids()) {
        return Some(common.clone());
    }
    match common.intersection_len(need.ids()) {
        len if len < want => None,
        len if len == common.len() => Some(common.clone()),
        len if len == need.len() => Some(need.ids().clone()),
        _ => Some(Arc::new(&**common & &**need.ids())),
    }
}
