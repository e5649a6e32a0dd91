//! `coprep status`, `coprep stop`, `coprep drop`.

use std::process::ExitCode;

use coprep_client::{Error, control};
use coprep_protocol::message::{
    CacheStatus, CostStatus, FormStatus, JobStatus, PoolStatus, SampleCost, Status, StreamStatus,
};
use coprep_protocol::place::Place;

use crate::show::{duration, table};
use crate::{Outcome, args};
use coprep_protocol::size::human;

pub(crate) fn run(place: &Place, args: &args::Status) -> Outcome {
    let status = control::status(place, args.slow)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        println!("{}", describe(&status));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn throttle(place: &Place, args: &args::Throttle) -> Outcome {
    let latency = args.latency.unwrap_or_default();
    control::throttle(place, args.rate, latency)?;
    match (args.rate, latency.is_zero()) {
        (None, true) => println!("storage is as it is"),
        (rate, _) => println!(
            "each read takes {} ms more, and all together get {}",
            latency.as_secs_f64() * 1e3,
            rate.map_or("what storage gives".into(), |r| format!(
                "{} a second",
                human(r)
            ))
        ),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn stop(place: &Place) -> Outcome {
    let pid = control::stop(place)?;
    println!("coordinator {pid} has ended");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn drop_caches(place: &Place, dataset: Option<String>) -> Outcome {
    let named = dataset.is_some();
    let mut bytes = match control::drop_caches(place, dataset) {
        Err(Error::Absent { .. }) if !named => 0,
        other => other?,
    };
    if !named {
        bytes += coprep_coordinator::drop_left_segments()?;
    }
    println!("{} freed", human(bytes));
    Ok(ExitCode::SUCCESS)
}

fn describe(status: &Status) -> String {
    let mut parts = vec![format!(
        "coordinator {} (version {}), up {}, {}, {} of memory, caches may take {}",
        status.pid,
        status.version,
        duration(status.uptime_s),
        pool(&status.pool),
        human(status.pss_bytes),
        human(status.cache_budget)
    )];
    parts.push(caches(&status.caches));
    parts.extend(status.streams.iter().map(stream));
    if status.streams.is_empty() {
        parts.push("no jobs".into());
    }
    parts.join("\n\n")
}

/// What the threads do now.
fn pool(p: &PoolStatus) -> String {
    format!(
        "{} CPUs, {} threads ({} fetching, {} preparing)",
        p.cpus, p.threads, p.fetching, p.preparing
    )
}

fn caches(caches: &[CacheStatus]) -> String {
    if caches.is_empty() {
        return "no caches".into();
    }
    let header = [
        "cache", "form", "policy", "samples", "used", "capacity", "hits", "misses", "saves",
    ];
    let row = |c: &CacheStatus| {
        vec![
            c.dataset.clone(),
            format!("{:?}", c.form).to_lowercase(),
            c.policy.clone(),
            c.entries.to_string(),
            human(c.used),
            human(c.capacity),
            c.hits.to_string(),
            c.misses.to_string(),
            c.saves_s_per_epoch
                .map_or(String::new(), |s| format!("{s:.1} s per epoch")),
        ]
    };
    let rows = table(&header, &caches.iter().map(row).collect::<Vec<_>>());
    let prices = caches.iter().filter_map(price);
    std::iter::once(rows)
        .chain(prices)
        .collect::<Vec<_>>()
        .join("\n")
}

/// What is cached in which form, where that is chosen by price.
fn price(c: &CacheStatus) -> Option<String> {
    let lambda = c.lambda_s_per_mib?;
    let form = |f: &FormStatus| {
        format!(
            "{} {} ({})",
            f.entries,
            format!("{:?}", f.form).to_lowercase(),
            human(f.bytes)
        )
    };
    let forms: Vec<String> = c.by_form.iter().map(form).collect();
    let forms = if forms.is_empty() {
        "nothing yet".into()
    } else {
        forms.join(", ")
    };
    Some(format!(
        "  {}: {forms}; a MiB must save {lambda:.4} s per epoch",
        c.dataset
    ))
}

/// What the samples cost.
fn costs(c: &CostStatus) -> String {
    if c.measured == 0 {
        return String::new();
    }
    let slow = c.budget_s.map_or(String::new(), |budget| {
        format!(", slow over {:.1} ms", budget * 1e3)
    });
    let line = format!(
        "\n  {} samples measured, {:.2} ms each{slow}; {} minibatches drawn ahead, {} samples overtaken",
        c.measured,
        c.mean_s * 1e3,
        c.window,
        c.overtaken
    );
    if c.slowest.is_empty() {
        return line;
    }
    let header = [
        "slow sample",
        "fetch",
        "decode",
        "fixed",
        "random",
        "cpu",
        "path",
    ];
    let ms = |seconds: f32| format!("{:.2} ms", seconds * 1e3);
    let row = |s: &SampleCost| {
        vec![
            s.id.to_string(),
            ms(s.fetch_s),
            ms(s.decode_s),
            ms(s.fixed_s),
            ms(s.random_s),
            ms(s.cpu_s),
            s.path.clone(),
        ]
    };
    let rows: Vec<_> = c.slowest.iter().map(row).collect();
    format!("{line}\n{}", table(&header, &rows))
}

fn stream(s: &StreamStatus) -> String {
    let t = &s.totals;
    let share = if t.prepared == 0 {
        0.0
    } else {
        t.delivered as f64 / t.prepared as f64
    };
    let head = format!(
        "stream {}: {} ({} samples)\n  {}\n  seed {}, {} order, cache {}, {} of {} staging buffers free ({})\n  \
         prepared {}, delivered {}, share factor {share:.2}, failed {}, fetched {}",
        s.id,
        s.dataset,
        s.samples,
        s.pipeline,
        s.seed,
        if s.relaxed {
            "relaxed"
        } else {
            "deterministic"
        },
        format!("{:?}", s.cache).to_lowercase(),
        s.buffers_free,
        s.buffers,
        human(s.staging_bytes),
        t.prepared,
        t.delivered,
        t.failed,
        human(t.fetched_bytes),
    );
    let pids: Vec<String> = s.worker_pids.iter().map(u32::to_string).collect();
    let workers = match pids.is_empty() {
        true => String::new(),
        false => format!("\n  workers {}", pids.join(", ")),
    };
    let differs: String = s
        .differs
        .iter()
        .map(|d| format!("\n  not shared with {d}"))
        .collect();
    let header = [
        "job",
        "name",
        "pids",
        "batch",
        "epoch",
        "need",
        "delivered",
        "queued",
        "held",
        "skipped",
        "idle",
    ];
    format!(
        "{head}{workers}{differs}{}\n{}",
        costs(&s.costs),
        table(&header, &s.jobs.iter().map(job).collect::<Vec<_>>())
    )
}

fn job(j: &JobStatus) -> Vec<String> {
    let pids: Vec<String> = j.pids.iter().map(u32::to_string).collect();
    vec![
        j.id.to_string(),
        j.name.clone(),
        pids.join(","),
        j.batch_size.to_string(),
        j.epoch.to_string(),
        format!("{} of {}", j.need, j.samples),
        j.delivered.to_string(),
        j.queued.to_string(),
        j.held.to_string(),
        j.skipped.to_string(),
        format!("{:.1} s", j.idle_s),
    ]
}
