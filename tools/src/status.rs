//! `coprep status`, `coprep stop`, `coprep drop`.

use std::path::Path;
use std::process::ExitCode;

use coprep_client::{Error, control};
use coprep_protocol::dataset_path;
use coprep_protocol::message::{
    CacheForm, CacheStatus, CostStatus, FormStatus, JobStatus, PoolStatus, SampleCost, Status,
    StreamStatus,
};
use coprep_protocol::place::Place;

use crate::show::{duration, number, table, wrapped};
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
    let bytes = match dataset {
        Some(named) => drop_of_dataset(place, &named)?,
        None => drop_all(place)?,
    };
    println!("{} freed", human(bytes));
    Ok(ExitCode::SUCCESS)
}

fn drop_all(place: &Place) -> Outcome<u64> {
    let bytes = match control::drop_caches(place, None) {
        // Named segments may be left of a coordinator that has ended.
        Err(Error::Absent { .. }) => 0,
        other => other?,
    };
    Ok(bytes + coprep_coordinator::drop_left_segments()?)
}

/// Frees the caches of a dataset, which is named as `status` shows it, or by any path of its folder.
fn drop_of_dataset(place: &Place, named: &str) -> Outcome<u64> {
    let caches = control::status(place, 0)?.caches;
    let of = |name: &str| {
        caches
            .iter()
            .filter(|c| c.dataset == name)
            .collect::<Vec<_>>()
    };
    let mut name = named.to_owned();
    if of(&name).is_empty() {
        let folder = dataset_path::folder(Path::new(named))?;
        name = folder.to_string_lossy().into_owned();
    }
    let found = of(&name);
    if found.is_empty() {
        return Err(no_cache_of(named, &caches).into());
    }
    if found.iter().all(|c| c.users > 0) {
        let text =
            format!("the cache of {name} is in use: it can be dropped when its jobs have ended");
        return Err(text.into());
    }
    Ok(control::drop_caches(place, Some(name))?)
}

fn no_cache_of(named: &str, caches: &[CacheStatus]) -> String {
    let mut names: Vec<&str> = caches.iter().map(|c| c.dataset.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => format!("no cache of {named}; there are no caches"),
        names => format!("no cache of {named}; there are: {}", names.join(", ")),
    }
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
    caches.iter().map(cache).collect::<Vec<_>>().join("\n\n")
}

/// Shows one cache. Two of one dataset differ in their form, in what was done before, or in their policy.
fn cache(c: &CacheStatus) -> String {
    let mut kind = vec![form_name(c.form)];
    kind.extend((!c.pipeline.is_empty()).then(|| format!("after {}", c.pipeline)));
    kind.push(c.policy.clone());
    kind.extend(c.warmed.then(|| "warmed".into()));
    let mut facts = vec![format!(
        "{}, {} of {}",
        count(c.entries, "sample"),
        human(c.used),
        human(c.capacity)
    )];
    facts.push(format!("{}, {} misses", count(c.hits, "hit"), c.misses));
    // With a single form, the line above says all.
    if c.by_form.len() > 1 {
        let form =
            |f: &FormStatus| format!("{} {} ({})", f.entries, form_name(f.form), human(f.bytes));
        facts.push(c.by_form.iter().map(form).collect::<Vec<_>>().join(", "));
    }
    let saves = c.saves_s_per_epoch.filter(|&s| s > 0.0);
    facts.extend(saves.map(|s| format!("saves {} s per epoch", number(s))));
    // Where everything has room, nothing has a price.
    let price = c.lambda_s_per_mib.filter(|&lambda| lambda >= 1e-4);
    facts.extend(
        price.map(|lambda| format!("a MiB must save {} ms per epoch", number(lambda * 1e3))),
    );
    let head = wrapped(&format!("cache of {}", c.dataset), 0);
    format!(
        "{head}{}{}",
        wrapped(&kind.join(", "), 2),
        wrapped(&facts.join("; "), 2)
    )
    .trim_end()
    .to_owned()
}

fn form_name(form: CacheForm) -> String {
    format!("{form:?}").to_lowercase()
}

/// `1 sample`, `2 samples`.
fn count(n: u64, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {what}{plural}")
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
    let differs = s.differs.iter().map(|d| format!("not shared with {d}"));
    let notes: String = differs
        .chain(s.notes.iter().cloned())
        .map(|note| format!("\n{}", wrapped(&note, 2).trim_end()))
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
        "{head}{workers}{notes}{}\n{}",
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
