//! Statuses for tests. The tests of `coprep status` include this file too, so it names no other module.

use coprep_protocol::message::{
    CacheForm, CacheStatus, CostStatus, FormStatus, JobStatus, PoolStatus, SampleCost, Stalls,
    Status, StreamStatus, Totals,
};

pub(crate) fn a_job(id: u64) -> JobStatus {
    JobStatus {
        id,
        name: format!("train_{id}.py"),
        pids: vec![4000 + id as u32],
        batch_size: 64,
        epoch: 2,
        need: 600,
        samples: 1000,
        delivered: 2400,
        queued: 3,
        held: 2,
        skipped: 0,
        idle_s: 0.1,
        batches: 38,
        age_s: 10.0,
        stalls: Stalls::default(),
    }
}

pub(crate) fn a_stream(id: u64, jobs: Vec<JobStatus>) -> StreamStatus {
    let slow = |id| SampleCost {
        id,
        path: format!("/data/train/class{id}/a_picture_with_a_long_name_{id:05}.jpg"),
        fetch_s: 0.001,
        decode_s: 0.050,
        fixed_s: 0.0,
        random_s: 0.002,
        cpu_s: 0.052,
    };
    StreamStatus {
        id,
        dataset: "/data/train".into(),
        samples: 1000,
        pipeline: "decode > random_resized_crop 224".into(),
        seed: 7,
        cache: CacheForm::Auto,
        relaxed: false,
        costs: CostStatus {
            measured: 1000,
            mean_s: 0.0024,
            budget_s: Some(0.0051),
            slowest: (1..=8).map(slow).collect(),
            ..CostStatus::default()
        },
        worker_pids: Vec::new(),
        busy_workers: 0,
        differs: Vec::new(),
        notes: Vec::new(),
        slots: 64,
        buffers: 14,
        buffers_free: 12,
        staging_bytes: 256 << 20,
        block_bytes: 0,
        stalls: Stalls::default(),
        totals: Totals {
            prepared: 1000,
            delivered: 3900,
            ..Totals::default()
        },
        jobs,
    }
}

pub(crate) fn a_cache() -> CacheStatus {
    let form = |form, bytes| FormStatus {
        form,
        entries: 10,
        bytes,
    };
    CacheStatus {
        dataset: "/data/train".into(),
        form: CacheForm::Auto,
        pipeline: "decode".into(),
        warmed: false,
        kept: false,
        policy: "no-eviction".into(),
        capacity: 1000,
        used: 750,
        entries: 20,
        by_form: vec![form(CacheForm::Encoded, 250), form(CacheForm::Decoded, 500)],
        lambda_s_per_mib: Some(0.001),
        saves_s_per_epoch: Some(1.0),
        hits: 100,
        misses: 50,
        users: 1,
    }
}

/// Returns two statuses, two seconds apart.
pub(crate) fn two_statuses() -> (Status, Status) {
    let mut now = Status {
        pid: 4711,
        version: "0.1.0".into(),
        uptime_s: 100.0,
        pool: PoolStatus {
            cpus: 2,
            threads: 8,
            fetching: 3,
            preparing: 2,
            to_fetch: 40,
            to_prepare: 5,
            fetched: 1000,
            prepared: 900,
            ..PoolStatus::default()
        },
        pss_bytes: 412 << 20,
        cache_budget: 1 << 30,
        caches: vec![a_cache()],
        given_way: Vec::new(),
        disk: None,
        streams: vec![
            a_stream(1, vec![a_job(1), a_job(2)]),
            a_stream(2, vec![a_job(1)]),
        ],
        stores: Vec::new(),
        early_bytes: 0,
        outages: Vec::new(),
        gpus: Vec::new(),
    };
    let before = now.clone();
    now.uptime_s += 2.0;
    now.pool.fetch_s += 6.0;
    now.pool.prepare_s += 4.0;
    (before, now)
}
