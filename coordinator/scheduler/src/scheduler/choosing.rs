//! Choosing the jobs that share the next minibatch, and its samples. Nothing changes here.

use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::ascending;
use crate::carried::Group;
use crate::draw::{self, DrawKey, mix};
use crate::job::{Job, PendingRanks};
use crate::scheduler::{Members, Scheduler};
use crate::{DrawOrder, JobId};

/// Jobs that are served together or not at all: one job, or the members of a cohort that are level.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) members: Vec<JobId>,
    is_cohort: bool,
    /// `true` if a minibatch may be made for the sake of this unit: a rank has begun the epoch, or is expected to.
    /// Otherwise the unit only takes part in minibatches that are made for others.
    pub(super) may_lead: bool,
    pub(super) starves: bool,
    /// Largest number of minibatches that a member was passed over.
    pub(super) passed_over: u32,
    /// Rank among units with an equal right to lead: the unit with the smallest value leads.
    pub(super) precedence: u64,
}

/// The choice for the next minibatch: the jobs that share it, and its samples.
pub(super) struct Choice {
    pub(super) lead: JobId,
    pub(super) targets: Vec<JobId>,
    pub(super) ids: Vec<u32>,
    pub(super) is_cohort: bool,
}

impl Scheduler {
    /// Returns the largest number of minibatches in a rank's queue. One buffer is left for every rank whose queue is
    /// empty.
    pub(super) fn bound(&self, free: u32) -> u32 {
        let present = self.jobs.values().filter(|job| !job.is_absent);
        let empty: u32 = present.map(Job::empty_queues).sum();
        free.saturating_sub(empty)
            .clamp(1, self.config.depth.max(1))
    }

    /// Returns all units that have room for a minibatch.
    pub(super) fn units(&self, bound: u32) -> Vec<Unit> {
        let mut waiting = PendingRanks::default();
        self.jobs
            .values()
            .for_each(|job| job.count_waiting(&mut waiting));
        let with_room = |job: &Job| job.has_room(bound, &self.config, &waiting, self.made);
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

    /// Returns the members of a cohort that are furthest behind: all members, unless the cohort has just been resumed.
    fn rearmost(&self, members: &Members) -> Vec<JobId> {
        let progress = |id: &JobId| self.jobs.get(id).map(|job| (job.epoch, job.position()));
        let behind = members.here.iter().filter_map(progress).min();
        members
            .here
            .iter()
            .copied()
            .filter(|id| progress(id) == behind)
            .collect()
    }

    /// Describes a unit of jobs that are in one epoch, at one position.
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
            // The job that is behind catches up with those ahead, and shares minibatches with them from there on.
            DrawOrder::Ascending => u64::from(job.need.ids().min().unwrap_or(0)),
        }
    }

    /// Returns the number of samples of the next minibatch that is made for `lead`.
    fn want(&self, lead: &Unit) -> u64 {
        // Members of a cohort that drop their last batch may end before others.
        let deliverable = lead.members.iter().map(|id| self.jobs[id].deliverable());
        let want = deliverable.min().unwrap_or(0);
        want.min(u64::from(self.config.slots))
    }

    pub(super) fn choose(&self, lead: &Unit, others: &[Unit]) -> Choice {
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
        let mut groups = job.next_groups(want);
        let Some(last) = groups.pop() else {
            unreachable!("a need has a last group")
        };
        let whole: u64 = groups.iter().map(|group| group.ids.len()).sum();
        let rest = want - whole;
        let (mut common, mut targets) = (last.ids.clone(), vec![first]);
        for unit in others.iter().filter(|u| !u.is_cohort) {
            let id = unit.members[0];
            let need = &self.jobs[&id].need;
            if !takes_all(&id) || !groups.iter().all(|group| group.ids.is_subset(need.ids())) {
                continue;
            }
            // Samples that come first for the other job, too, serve both best.
            let of_first = self.jobs[&id].first_group();
            let both = of_first.and_then(|first| intersect(&common, &first, rest));
            if let Some(both) = both.or_else(|| intersect(&common, need.ids(), rest)) {
                common = both;
                targets.push(id);
            }
        }
        // Targets with equal needs go through the same sequence, which is promised to depend on nothing else. The salt
        // separates the draws of other leaders at the same position.
        let level = last.ids.len() == common.len()
            && targets[1..]
                .iter()
                .all(|id| self.jobs[id].draws_from(want, &groups, &common));
        let salt = if level { 0 } else { mix(first.0) | 1 };
        let draw = |group: &Group, from: &RoaringBitmap, count: u64| {
            let key = DrawKey {
                seed: self.config.seed,
                epoch: group.epoch,
                position: group.position,
                salt,
            };
            self.draw(from, count as u32, key, first)
        };
        let mut ids: Vec<u32> = groups
            .iter()
            .flat_map(|group| draw(group, &group.ids, group.ids.len()))
            .collect();
        ids.extend(draw(&last, &common, rest));
        Choice {
            lead: first,
            ids,
            targets,
            is_cohort: false,
        }
    }

    /// Chooses samples for a cohort. They do not depend on other jobs. Other jobs take part if they happen to need
    /// them.
    fn choose_for_cohort(
        &self,
        lead: &Unit,
        others: &[Unit],
        want: u32,
        takes_all: impl Fn(&JobId) -> bool,
    ) -> Choice {
        let first = lead.members[0];
        let job = &self.jobs[&first];
        let key = DrawKey {
            seed: self.config.seed,
            epoch: job.epoch,
            position: job.position(),
            salt: 0,
        };
        let ids = self.draw(job.need.ids(), want, key, first);
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

    /// Chooses the next ids of `lead`, and every job that needs exactly these next.
    pub(super) fn choose_ascending(&self, lead: &Unit, others: &[Unit]) -> Choice {
        let first = lead.members[0];
        let job = &self.jobs[&first];
        let mut ids = job.next_ids(self.want(lead), self.made, &self.config);
        if let Some(nearest) = self.meeting_point(job, &ids) {
            ids.truncate(nearest);
        }
        let takes_part = |id: &&JobId| {
            let job = &self.jobs[id];
            job.deliverable() >= ids.len() as u64 && job.is_next(&ids, self.made, &self.config)
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

    /// Returns how many of its next `ids` this job is assigned before it meets another one.
    fn meeting_point(&self, job: &Job, ids: &[u32]) -> Option<usize> {
        // The ids of several ranks do not ascend from one to the next. Such jobs share where they are level.
        if job.has_ranks() {
            return None;
        }
        let others = self.jobs.values();
        let elsewhere =
            others.filter(|other| !other.has_ranks() && !other.need.shares_bitmap(&job.need));
        let points =
            elsewhere.filter_map(|other| ascending::meeting_point(&job.need, ids, &other.need));
        points.min()
    }

    /// Draws samples of `from`, all of which this job needs.
    pub(super) fn draw(
        &self,
        from: &RoaringBitmap,
        count: u32,
        key: DrawKey,
        job: JobId,
    ) -> Vec<u32> {
        match self.config.order {
            DrawOrder::Random => match &self.windows {
                Some(windows) => windows.draw(from, count, key, job),
                None => draw::random(from, count, key),
            },
            DrawOrder::Ascending | DrawOrder::AscendingInCommon => draw::ascending(from, count),
        }
    }
}

/// Returns the intersection of `common` and `ids` if it has at least `want` samples.
pub(super) fn intersect(
    common: &Arc<RoaringBitmap>,
    ids: &Arc<RoaringBitmap>,
    want: u64,
) -> Option<Arc<RoaringBitmap>> {
    if Arc::ptr_eq(common, ids) {
        return Some(common.clone());
    }
    match common.intersection_len(ids) {
        len if len < want => None,
        len if len == common.len() => Some(common.clone()),
        len if len == ids.len() => Some(ids.clone()),
        _ => Some(Arc::new(&**common & &**ids)),
    }
}
