//! The state of a stream, for people.

use std::time::Duration;

use coprep_protocol::message::{Awaited, CostStatus, SampleCost, StreamStatus};

use crate::produce::producer::Producer;
use crate::stream::{RankId, Stream, engine};

/// Time from which a read is worth mentioning to a job that waits.
const LONG_READ: Duration = Duration::from_secs(1);

impl Stream {
    pub(crate) fn explain(&self, rank_id: RankId) -> String {
        let mut text =
            engine::explain::explain(&self.engine(), rank_id, self.pool.free(), &self.config);
        text.extend(self.long_read().map(|read| format!("; {read}")));
        let stuck = self
            .config
            .producer
            .process_pool()
            .map_or(0, |process_pool| process_pool.stuck());
        if stuck == 0 {
            return text;
        }
        format!(
            "{text}; {stuck} workers wait for memory, because what is prepared or held takes most of the {} KiB that \
             samples may take which are larger than most (--staging, COPREP_STAGING)",
            self.pool.layout().large_limit() >> 10
        )
    }

    /// Names the file that has been read for longest, if that takes longer than usual.
    fn long_read(&self) -> Option<String> {
        let Producer::Native(recipe) = &self.config.producer else {
            return None;
        };
        if let Some(outage) = recipe.dataset.outages().next() {
            return Some(outage.to_string());
        }
        let source = recipe.read_from;
        let (sample, since) = self.workers.longest_read(source)?;
        let time = since.elapsed();
        let shortage = coprep_storage::descriptor_shortage();
        let why = shortage.unwrap_or("its storage is slow or does not answer");
        (time >= LONG_READ).then(|| {
            format!(
                "reading {} (sample {sample}) has taken {:.1} s so far, because {why}",
                self.config.producer.path(sample),
                time.as_secs_f64()
            )
        })
    }

    /// Describes the remote stores of the dataset that do not answer.
    fn outage_notes(&self) -> Vec<String> {
        match &self.config.producer {
            Producer::Native(recipe) => recipe.dataset.outages().map(|o| o.to_string()).collect(),
            Producer::ProcessPool { .. } | Producer::Jobs { .. } => Vec::new(),
        }
    }

    /// Returns whom a consumer waits for, if it waits for somebody else and not for its samples.
    pub(crate) fn who_is_awaited(&self, rank_id: RankId) -> Option<Awaited> {
        engine::explain::who_is_awaited(&self.engine(), rank_id)
    }

    /// Returns `true` if a job of this group waits for some of its ranks.
    pub(crate) fn awaits_ranks_of(&self, group: &str) -> bool {
        self.engine().awaits_ranks_of(group)
    }

    /// Returns `true` if a cohort of this name waits for some of its members.
    pub(crate) fn awaits_members_of(&self, cohort: &str) -> bool {
        let engine = self.engine();
        let mut incomplete = engine.scheduler.incomplete_cohorts();
        incomplete.any(|(name, _)| name == cohort)
    }

    pub(crate) fn status(&self, slow: u32) -> StreamStatus {
        let layout = self.pool.layout();
        let costs = self.cost_status(slow);
        let engine = self.engine();
        StreamStatus {
            id: self.config.id,
            dataset: self.config.dataset_name.clone(),
            samples: self.config.producer.samples(),
            pipeline: self.config.pipeline_text.clone(),
            seed: self.config.seed,
            cache: self.config.key.cache,
            relaxed: self.config.key.relaxed,
            costs,
            worker_pids: self
                .config
                .producer
                .process_pool()
                .map_or(Vec::new(), |c| c.pids()),
            busy_workers: self.config.producer.process_pool().map_or(0, |c| c.busy()),
            differs: Vec::new(),
            notes: self.outage_notes(),
            slots: layout.slots,
            buffers: layout.buffers,
            buffers_free: self.pool.free(),
            staging_bytes: self.pool.reserved_bytes(),
            block_bytes: self.config.producer.block_bytes(),
            totals: self.counters.totals(),
            stalls: engine.stalls(),
            jobs: engine.status(),
        }
    }

    fn cost_status(&self, slow: u32) -> CostStatus {
        let Some(costs) = self.config.producer.costs() else {
            return CostStatus::default();
        };
        let sample = |(id, cost): (u32, coprep_costs::ExpectedCost)| SampleCost {
            id,
            path: self.config.producer.path(id),
            fetch_s: cost.fetch,
            decode_s: cost.decode,
            fixed_s: cost.fixed,
            random_s: cost.random,
            cpu_s: cost.cpu,
        };
        let slowest = costs.slowest(slow as usize);
        let (measured, bytes) = costs.size();
        let engine = self.engine();
        CostStatus {
            measured,
            bytes: bytes as u64,
            mean_s: costs.lately().map_or(0.0, |lately| lately.mean),
            budget_s: costs.budget(),
            window: engine.window,
            overtaken: engine.slot_swaps,
            slowest: slowest.into_iter().map(sample).collect(),
        }
    }
}
