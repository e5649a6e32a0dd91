//! Ranks that leave their job in order. The others continue without them, in a later stream as well.
//!
//! A job that loses its stream forms again when all its ranks have attached again. A rank that has left does not come
//! back, so the others must know. It announces its position before it goes ([`Departure`]), and each rank that is told
//! presents this when it attaches. The forming job counts such a rank as one that has come and left.
//!
//! A group may have many jobs, one after the other or at the same time. So each job has a token, which its ranks
//! present.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use coprep_protocol::id_set;
use coprep_protocol::message::{Attach, Departure, Reply};
use coprep_scheduler::{JobId, Resume};

use crate::Result;
use crate::connection::reply_queue::ReplyQueue;
use crate::error::invalid;
use crate::stream::engine::forming::{RankResume, merge_resume};
use crate::stream::engine::requests::{MOST_RANKS, resume_of};
use crate::stream::engine::{AttachedJob, Engine};
use crate::stream::{RankId, Stream};

/// A departure that was checked.
#[derive(Clone, Debug)]
pub(crate) struct Leaver {
    departure: Departure,
    resume: Resume,
}

impl Leaver {
    /// Checks the form of a departure.
    ///
    /// # Errors
    /// When the departure is inconsistent.
    pub(crate) fn check(departure: &Departure) -> Result<Self> {
        let rank = departure.rank;
        if rank >= MOST_RANKS {
            return Err(invalid(format!("there is no rank {rank}")));
        }
        Ok(Leaver {
            resume: resume_of(&departure.resume)?,
            departure: departure.clone(),
        })
    }

    /// Checks a departure against the epochs and the dataset of a stream. The sets are serialised again, so that only
    /// their canonical bytes are kept.
    fn of_stream(departure: &Departure, numbers: u32, samples: u32) -> Result<Self> {
        let mut leaver = Leaver::check(departure)?;
        let Resume { delivered, bad, .. } = &leaver.resume;
        for (set, of) in [(delivered, numbers), (bad, samples)] {
            if let Some(id) = set.max().filter(|&id| id >= of) {
                return Err(invalid(format!(
                    "a rank that has left was given sample {id}, and there are {of} samples"
                )));
            }
        }
        let kept = &mut leaver.departure.resume;
        (kept.delivered, kept.skipped) = (id_set::serialize(delivered), id_set::serialize(bad));
        // The ranks that are left know what comes first in their epoch.
        kept.carried.clear();
        leaver.resume.carried.clear();
        Ok(leaver)
    }
}

/// Largest number of tokens that are remembered of a job. Its ranks hold only a few different ones.
const MOST_TOKENS: usize = 64;

/// The tokens that tell a job from others of its group, and the ranks that have left it.
pub(in crate::stream) struct Membership {
    /// The token that the job's ranks are told.
    pub(in crate::stream) token: u128,
    /// Tokens that the job's ranks held when they came from earlier streams.
    before: Vec<u128>,
    /// Tokens that the job's ranks were told in earlier streams, whether or not those jobs had begun.
    told: Vec<u128>,
    left: BTreeMap<u32, Departure>,
}

impl Membership {
    /// Creates the membership of a job whose first rank presents `tokens`.
    pub(in crate::stream) fn new(tokens: &[u128]) -> Self {
        Membership {
            token: tokens.first().copied().unwrap_or_else(new_token),
            before: tokens.to_vec(),
            told: Vec::new(),
            left: BTreeMap::new(),
        }
    }

    pub(in crate::stream) fn has_left(&self, rank: usize) -> bool {
        self.left.contains_key(&(rank as u32))
    }

    /// Returns `true` if one of its ranks was given anything in an earlier stream.
    pub(in crate::stream) fn has_begun(&self) -> bool {
        !self.before.is_empty()
    }

    pub(in crate::stream) fn is_of(&self, token: u128) -> bool {
        self.token == token || self.before.contains(&token)
    }

    pub(in crate::stream) fn is_of_any(&self, tokens: &[u128]) -> bool {
        tokens.iter().any(|&token| self.is_of(token))
    }

    /// Remembers the tokens of a rank that joins.
    pub(in crate::stream) fn note(&mut self, request: &Attach) {
        for &token in &request.tokens {
            if token != self.token {
                remember(&mut self.before, token);
            }
        }
        if let Some(token) = request.told {
            remember(&mut self.told, token);
        }
    }

    /// Returns `true` if a rank that has left the job of this token has also left this job. See [`Attach::told`].
    fn has_lost(&self, token: u128) -> bool {
        self.is_of(token) || self.told.contains(&token)
    }
}

/// Adds a token, unless there are too many: ranks may come and go for long while a job forms.
fn remember(tokens: &mut Vec<u128>, token: u128) {
    if !tokens.contains(&token) && tokens.len() < MOST_TOKENS {
        tokens.push(token);
    }
}

impl AttachedJob {
    /// Returns `true` if the job cannot begin without this rank, which is not attached.
    pub(in crate::stream) fn awaits(&self, rank: usize) -> bool {
        self.ranks[rank].is_none() && !self.membership.has_left(rank)
    }

    pub(in crate::stream) fn awaits_any(&self) -> bool {
        (0..self.ranks.len()).any(|rank| self.awaits(rank))
    }

    /// Returns `true` if the job waits for ranks of a job such as the one of `request`.
    pub(in crate::stream) fn forms_for(&self, request: &Attach) -> bool {
        let ranks = request.world_size as usize;
        self.forming.is_some() && self.group == request.group && self.ranks.len() == ranks
    }

    /// Returns `true` if the rank of `request`, whose job some ranks have left, can be a rank of this job.
    ///
    /// A rank that presents no token was given nothing before it lost its connection, or is new. The token that it was
    /// told proves nothing then: the job may never have begun, and another rank may have been told another token.
    pub(in crate::stream) fn can_be_joined(&self, request: &Attach, departed: &[Leaver]) -> bool {
        let rank = request.rank as usize;
        let is_here = |leaver: &Leaver| self.ranks[leaver.departure.rank as usize].is_some();
        let is_new = || self.membership.before.is_empty() && !departed.iter().any(is_here);
        let fits = || {
            let tokens = &request.tokens;
            tokens.is_empty() || self.membership.is_of_any(tokens) || is_new()
        };
        self.awaits(rank) && fits()
    }

    /// Counts a rank as one that has come and left. Returns `false` if that was known before.
    fn depart(&mut self, leaver: &Leaver) -> bool {
        let Leaver { departure, resume } = leaver;
        let rank = departure.rank as usize;
        if rank >= self.ranks.len() || self.membership.has_left(rank) {
            return false;
        }
        self.membership
            .left
            .insert(departure.rank, departure.clone());
        // A rank that is attached has presented its position when it attached.
        if let (Some(forming), None) = (&mut self.forming, &self.ranks[rank]) {
            merge_resume(forming, resume);
            self.resumes[rank] = RankResume::of(&departure.resume);
        }
        true
    }

    /// Returns the reply queues of the attached ranks except `rank`.
    fn reply_queues_but(&self, rank: u32) -> impl Iterator<Item = &Arc<ReplyQueue>> {
        let others = (0..).zip(&self.ranks).filter(move |(r, _)| *r != rank);
        others.filter_map(|(_, consumer)| consumer.as_ref().map(|c| &c.reply_queue))
    }
}

impl Engine {
    pub(in crate::stream) fn token(&self, rank_id: RankId) -> u128 {
        self.jobs
            .get(&rank_id.job)
            .map_or(0, |job| job.membership.token)
    }

    /// Checks the departures from the job of a rank that attaches: the ones that it presents, and the `known` ones.
    pub(in crate::stream) fn departed(
        &self,
        request: &Attach,
        known: &[Departure],
    ) -> Result<Vec<Leaver>> {
        let is_other = |d: &&Departure| d.rank != request.rank && d.rank < request.world_size;
        if let Some(Departure { rank, .. }) = request.departed.iter().find(|d| !is_other(d)) {
            return Err(invalid(format!(
                "rank {rank} of {} cannot have left the job of rank {}",
                request.world_size, request.rank
            )));
        }
        let (numbers, samples) = (self.scheduler.samples(), self.dataset_samples);
        let presented = request
            .departed
            .iter()
            .map(|d| Leaver::of_stream(d, numbers, samples));
        let mut departed = presented.collect::<Result<Vec<_>>>()?;
        let known = known.iter().filter(is_other);
        // A mistake of another client is no reason to refuse this one, so a bad known departure is ignored.
        departed.extend(known.filter_map(|d| Leaver::of_stream(d, numbers, samples).ok()));
        Ok(departed)
    }

    /// Records the departures from the job that `rank_id` has just joined, and tells each of its ranks the ones that it
    /// does not know.
    pub(in crate::stream) fn share_departures(
        &mut self,
        rank_id: RankId,
        presented: &[Departure],
        departed: &[Leaver],
    ) {
        let Some(job) = self.jobs.get_mut(&rank_id.job) else {
            return;
        };
        for leaver in departed {
            if job.depart(leaver) {
                let told = Reply::Departed(leaver.departure.clone());
                for reply_queue in job.reply_queues_but(rank_id.rank) {
                    reply_queue.queue_reply(&told);
                }
            }
        }
        let is_new = |d: &&Departure| presented.iter().all(|known| known.rank != d.rank);
        if let Some(consumer) = &job.ranks[rank_id.rank as usize] {
            for departure in job.membership.left.values().filter(is_new) {
                consumer
                    .reply_queue
                    .queue_reply(&Reply::Departed(departure.clone()));
            }
        }
    }

    /// Returns `true` if a job whose ranks come from the job of this token waits for none of them.
    fn has_all_of(&self, token: u128) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|job| job.membership.has_lost(token) && !job.awaits_any())
    }

    /// Handles the departure of a rank. A forming job that waits for nobody else begins. Returns the reply queues of
    /// the ranks to tell.
    ///
    /// # Errors
    /// When the departure is inconsistent.
    pub(crate) fn depart(&mut self, departure: &Departure) -> Result<Vec<Arc<ReplyQueue>>> {
        let jobs = self.jobs.iter();
        let its_own = jobs.filter(|(_, job)| job.membership.has_lost(departure.token));
        let ids: Vec<u64> = its_own.map(|(&id, _)| id).collect();
        let mut told = Vec::new();
        for id in ids {
            let leaver =
                Leaver::of_stream(departure, self.scheduler.samples(), self.dataset_samples)?;
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            if !job.depart(&leaver) {
                continue;
            }
            tracing::info!(
                stream = self.stream,
                job = id,
                rank = departure.rank,
                "a rank leaves its job in order"
            );
            told.extend(job.reply_queues_but(departure.rank).cloned());
            if let Err(e) = self.start_if_complete(id, departure.rank) {
                tracing::warn!(stream = self.stream, job = id, error = %e, "a job cannot go on without a rank that has left");
            }
        }
        Ok(told)
    }
}

impl Engine {
    /// Handles a rank that has lost its connection while its process lives. The rank will attach again, and needs the
    /// other ranks for that. So all of them are sent away, and attach again with the samples that each was given.
    ///
    /// If the others continued without it, the samples that were assigned to it and not taken would be lost.
    fn lose_rank(&mut self, rank_id: RankId) {
        let Some(job) = self.jobs.get_mut(&rank_id.job) else {
            return;
        };
        let has_others = job.reply_queues_but(rank_id.rank).next().is_some();
        let has_left = job.membership.has_left(rank_id.rank as usize);
        // A forming job waits for the rank as it waited before.
        if !has_others || has_left || job.forming.is_some() || job.is_over {
            return;
        }
        tracing::warn!(
            stream = self.stream,
            job = rank_id.job,
            rank = rank_id.rank,
            "a rank has lost its connection: all ranks of its job come again"
        );
        // Set before the rank is removed, because the others must not be given anything of the next epoch.
        job.is_over = true;
        // Their sessions last until they have noticed and have copied the batches that they hold. This stream
        // continues, and reuses the buffers of a session once that has ended.
        job.reply_queues_but(rank_id.rank)
            .for_each(|reply_queue| reply_queue.part());
        self.scheduler.detach(JobId(rank_id.job));
    }
}

impl Stream {
    /// Returns `true` if other ranks of the same job are attached.
    pub(crate) fn has_other_ranks(&self, rank_id: RankId) -> bool {
        let engine = self.engine();
        let job = engine.jobs.get(&rank_id.job);
        job.is_some_and(|job| job.reply_queues_but(rank_id.rank).next().is_some())
    }

    /// Handles a rank that has lost its connection; see [`Engine::lose_rank`].
    pub(crate) fn lose_rank(&self, rank_id: RankId) {
        self.engine().lose_rank(rank_id);
    }

    /// Handles the orderly departure of a rank, if its job is one of this stream's. Returns `true` if it is, and all other
    /// ranks are attached, or have left as well.
    ///
    /// # Errors
    /// When the departure is inconsistent.
    pub(crate) fn depart(self: &Arc<Self>, departure: &Departure) -> Result<bool> {
        let mut engine = self.engine();
        let told = engine.depart(departure)?;
        if !told.is_empty() {
            self.pump(&mut engine);
        }
        let is_known = engine.has_all_of(departure.token);
        drop(engine);
        // Sent at once, because the coordinator may die as soon as the rank has left.
        let reply = Reply::Departed(departure.clone());
        told.iter()
            .for_each(|reply_queue| reply_queue.push_reply(&reply));
        Ok(is_known)
    }
}

/// Returns a token that no other job has, on this node or another.
fn new_token() -> u128 {
    // The standard library's hasher is keyed by the operating system's randomness.
    let half = |n: u8| u128::from(RandomState::new().hash_one((std::process::id(), n)));
    half(0) << 64 | half(1)
}
