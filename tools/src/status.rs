//! `coprep status`, `coprep throttle`, `coprep stop`, `coprep drop`.

use std::path::Path;
use std::process::ExitCode;

use coprep_client::{ErrorKind, control};
use coprep_protocol::dataset_path;
use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::message::{
    CacheForm, CacheStatus, CostStatus, DiskCacheStatus, DiskStatus, FormStatus, GivenWay,
    GpuStatus, JobStatus, OutageStatus, RingStatus, SampleCost, Status, StreamStatus,
};
use coprep_protocol::parquet_files::names_parquet;
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::shard_list::{DEFAULT_IMAGE, names_shards};
use coprep_protocol::size::human;
use coprep_protocol::spec::{ParquetFiles, TarShards};
use coprep_terminal::{BETWEEN, WIDTH, clean, duration, ending, label, number, table, wrapped};

use crate::output::print_line;
use crate::{Outcome, args};

/// Prints the status of the coordinator.
pub(crate) fn run(paths: &CoordinatorPaths, args: &args::StatusArgs) -> Outcome {
    let status = control::status(paths, args.slow)?;
    if args.json {
        print_line(serde_json::to_string_pretty(&status)?)?;
    } else {
        print_line(describe(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Slows down the coordinator's reads, or ends the slowdown.
pub(crate) fn throttle(paths: &CoordinatorPaths, args: &args::ThrottleArgs) -> Outcome {
    let latency = args.latency.unwrap_or_default();
    control::throttle(paths, args.rate, latency)?;
    print_line(match (args.rate, latency.is_zero()) {
        (None, true) => "storage is as it is".to_owned(),
        (rate, _) => format!(
            "each read takes {} ms more, and all together get {}",
            latency.as_secs_f64() * 1e3,
            rate.map_or("what storage gives".into(), |r| format!(
                "{} a second",
                human(r)
            ))
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Stops the coordinator, and waits for its end.
pub(crate) fn stop(paths: &CoordinatorPaths) -> Outcome {
    let pid = control::stop(paths)?;
    print_line(format_args!("coordinator {pid} has ended"))?;
    Ok(ExitCode::SUCCESS)
}

/// Frees unused caches, of one dataset or of all.
pub(crate) fn drop_caches(paths: &CoordinatorPaths, dataset: Option<String>) -> Outcome {
    let bytes = match dataset {
        Some(named) => drop_of_dataset(paths, &named)?,
        None => drop_all(paths)?,
    };
    print_line(format_args!("{} freed", human(bytes)))?;
    Ok(ExitCode::SUCCESS)
}

/// Frees all unused caches and the named segments that no coordinator uses. Returns their bytes.
fn drop_all(paths: &CoordinatorPaths) -> Outcome<u64> {
    let bytes = match control::drop_caches(paths, None) {
        // A coordinator that has ended may have left named segments.
        Err(e) if *e.kind() == ErrorKind::Absent => 0,
        other => other?,
    };
    Ok(bytes + coprep_coordinator::drop_left_segments()?)
}

/// Frees the caches of a dataset. `named` is its name as `status` shows it, or any path of its folder.
fn drop_of_dataset(paths: &CoordinatorPaths, named: &str) -> Outcome<u64> {
    let Status {
        caches,
        disk,
        streams,
        ..
    } = control::status(paths, 0)?;
    let of = |name: &str| {
        caches
            .iter()
            .filter(|c| c.dataset == name)
            .collect::<Vec<_>>()
    };
    let on_disk = disk.map_or(Vec::new(), |disk| disk.caches);
    let is_on_disk = |name: &str| on_disk.iter().any(|c| c.dataset == name);
    let mut name = named.to_owned();
    if of(&name).is_empty() && !is_on_disk(&name) {
        // It is no name that `status` shows, so it must be a path or a URL.
        name = dataset_name(named)?;
    }
    let found = of(&name);
    if found.is_empty() && !is_on_disk(&name) {
        let in_memory = caches.iter().map(|c| c.dataset.as_str());
        let names = in_memory.chain(on_disk.iter().map(|c| c.dataset.as_str()));
        return Err(no_cache_of(named, names.collect()).into());
    }
    let in_use =
        format!("the cache of {name} is in use: it can be dropped when its jobs have ended");
    if !found.is_empty() && found.iter().all(|c| c.users > 0) {
        return Err(in_use.into());
    }
    let bytes = control::drop_caches(paths, Some(name.clone()))?;
    // A file has some bytes, so that nothing was removed.
    if bytes == 0 && is_on_disk(&name) {
        if streams.iter().any(|s| s.dataset == name) {
            return Err(in_use.into());
        }
        let text = format!(
            "the file of {name} in the disk cache cannot be removed: the coordinator's log says why"
        );
        return Err(text.into());
    }
    Ok(bytes)
}

/// Returns the name that `status` shows for a path or URL.
fn dataset_name(named: &str) -> Outcome<String> {
    // The parts of samples, and columns, are no part of the name.
    if names_parquet(named) && !Path::new(named).is_dir() {
        return Ok(ParquetFiles::of_command(named, DEFAULT_IMAGE, None)?.name());
    }
    if names_shards(named) && !Path::new(named).is_dir() {
        return Ok(TarShards::named(&[named.to_owned()], DEFAULT_IMAGE, None)?.name());
    }
    Ok(match DatasetUrl::parse(named)? {
        Some(url) => url.to_string(),
        None => dataset_path::folder(Path::new(named))?
            .to_string_lossy()
            .into_owned(),
    })
}

/// Says that a dataset has no cache, and names the datasets that have one.
fn no_cache_of(named: &str, mut names: Vec<&str>) -> String {
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => format!("no cache of {named}; there are no caches"),
        names => format!("no cache of {named}; there are: {}", names.join(", ")),
    }
}

fn describe(status: &Status) -> String {
    let head = format!(
        "coordinator {} (version {}), up {}, {}, {} of memory, caches may take {}",
        status.pid,
        status.version,
        duration(status.uptime_s),
        pool(status),
        human(status.pss_bytes),
        human(status.cache_budget)
    );
    let mut parts = vec![wrapped(&head, 0).trim_end().to_owned()];
    parts.extend(status.outages.iter().map(outage));
    parts.push(caches(&status.caches));
    parts.extend(status.given_way.iter().map(given_way));
    parts.extend(status.disk.as_ref().map(disk));
    parts.extend(status.streams.iter().map(stream));
    if status.streams.is_empty() {
        parts.push("no jobs".into());
    }
    parts.extend(status.gpus.iter().map(gpu));
    parts.join("\n\n")
}

/// Describes a remote store that does not answer.
fn outage(outage: &OutageStatus) -> String {
    let text = format!(
        "{} has not answered for {}, last answer: {}, next try in {}, {} reads wait; after {} jobs get an error",
        outage.store,
        duration(outage.lasts_s),
        outage.last_answer,
        duration(outage.next_try_s),
        outage.waiting,
        duration(outage.patience_s),
    );
    wrapped(&text, 0).trim_end().to_owned()
}

/// Describes the copies to a GPU.
fn gpu(g: &GpuStatus) -> String {
    let head = format!(
        "{}: {}, {} of them share uploads",
        g.uuid,
        count(g.consumers.into(), "consumer"),
        g.sharing
    );
    let facts = format!(
        "{} shared ({}, {:.1} s), {} of consumers alone ({}); consumers waited for it {:.1} s",
        count(g.shared_uploads, "upload"),
        human(g.shared_bytes),
        g.shared_s,
        g.own_uploads,
        human(g.own_bytes),
        g.wait_s
    );
    let mut lines = vec![wrapped(&head, 0), wrapped(&facts, 2)];
    lines.extend(g.rings.iter().map(ring));
    let note = |why: &String| wrapped(&format!("uploads are not shared: {why}"), 2);
    lines.extend(g.notes.iter().map(note));
    lines.concat().trim_end().to_owned()
}

fn ring(r: &RingStatus) -> String {
    let pinned = r.why_bounced.as_ref();
    let pinned = pinned.map_or(String::new(), |why| format!("; not pinned: {why}"));
    let node = r
        .node
        .map_or(String::new(), |node| format!(" on NUMA node {node}"));
    let text = format!(
        "ring of stream {}: {} of {} buffers free ({}), uploader {}{node}{pinned}",
        r.stream,
        r.buffers_free,
        r.buffers,
        human(r.bytes),
        r.uploader_pid
    );
    wrapped(&text, 2)
}

/// Describes the current work of threads and worker processes.
fn pool(status: &Status) -> String {
    let p = &status.pool;
    let slow = match p.slow_reads {
        0 => String::new(),
        reads => format!(", {reads} reads of slow storage"),
    };
    let text = format!(
        "{} CPUs, {} threads ({} fetching, {} preparing){slow}",
        p.cpus, p.threads, p.fetching, p.preparing
    );
    let processes: usize = status.streams.iter().map(|s| s.worker_pids.len()).sum();
    let busy: u32 = status.streams.iter().map(|s| s.busy_workers).sum();
    if processes == 0 {
        text
    } else {
        format!("{text}, {processes} worker processes ({busy} at work)")
    }
}

fn caches(caches: &[CacheStatus]) -> String {
    if caches.is_empty() {
        return "no caches".into();
    }
    caches.iter().map(cache).collect::<Vec<_>>().join("\n\n")
}

/// Describes one cache. Caches of one dataset differ in their form, in the operators before it, or in their policy.
fn cache(c: &CacheStatus) -> String {
    let mut kind = vec![form_name(c.form)];
    kind.extend((!c.pipeline.is_empty()).then(|| format!("after {}", c.pipeline)));
    kind.push(c.policy.clone());
    kind.extend(c.warmed.then(|| "warmed".into()));
    kind.extend(c.kept.then(|| "kept".into()));
    let mut facts = vec![format!(
        "{}, {} of {}",
        count(c.entries, "sample"),
        human(c.used),
        human(c.capacity)
    )];
    facts.push(format!("{}, {} misses", count(c.hits, "hit"), c.misses));
    // With a single form, the line above says everything.
    if c.by_form.len() > 1 {
        let form =
            |f: &FormStatus| format!("{} {} ({})", f.entries, form_name(f.form), human(f.bytes));
        facts.push(c.by_form.iter().map(form).collect::<Vec<_>>().join(", "));
    }
    let saves = c.saves_s_per_epoch.filter(|&s| s > 0.0);
    facts.extend(saves.map(|s| format!("saves {} s per epoch", number(s))));
    // Memory of a cache with room for everything is worth nothing.
    let value_of_memory = c.lambda_s_per_mib.filter(|&lambda| lambda >= 1e-4);
    facts.extend(
        value_of_memory
            .map(|lambda| format!("a MiB must save {} ms per epoch", number(lambda * 1e3))),
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

/// Describes a cache that is no more.
fn given_way(gone: &GivenWay) -> String {
    let text = format!(
        "the cache of {} ({}, {}) gave way to {} {} ago, since no job used it",
        gone.dataset,
        form_name(gone.form),
        human(gone.bytes),
        gone.to,
        duration(gone.ago_s)
    );
    wrapped(&text, 0).trim_end().to_owned()
}

/// Describes the samples on the local disk.
fn disk(d: &DiskStatus) -> String {
    let head = format!(
        "disk cache {}, files may take {}",
        d.folder,
        human(d.budget)
    );
    let mut lines = vec![wrapped(&head, 0)];
    lines.extend(d.caches.iter().map(|c| wrapped(&disk_cache(c), 2)));
    lines.concat().trim_end().to_owned()
}

fn disk_cache(c: &DiskCacheStatus) -> String {
    let mut facts = vec![
        format!(
            "{}: {}, {} of {}",
            c.dataset,
            count(c.entries, "sample"),
            human(c.used),
            human(c.capacity)
        ),
        format!("{}, {} misses", count(c.hits, "hit"), c.misses),
    ];
    let damaged = format!("{} were damaged and dropped", count(c.dropped, "sample"));
    facts.extend((c.dropped > 0).then_some(damaged));
    facts.join("; ")
}

fn form_name(form: CacheForm) -> String {
    format!("{form:?}").to_lowercase()
}

/// Returns a number with its noun: `1 sample`, `2 samples`.
fn count(n: u64, what: &str) -> String {
    counted(n, what, &format!("{what}s"))
}

fn counted(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

/// Describes the costs of samples, and lists the most expensive ones.
fn costs(c: &CostStatus) -> Vec<String> {
    if c.measured == 0 {
        return Vec::new();
    }
    let slow = c.budget_s.map_or(String::new(), |budget| {
        format!(", slow over {:.1} ms", budget * 1e3)
    });
    let line = format!(
        "{} measured, {:.2} ms each{slow}; {} drawn ahead, {} overtaken",
        count(u64::from(c.measured), "sample"),
        c.mean_s * 1e3,
        counted(u64::from(c.window), "minibatch", "minibatches"),
        count(c.overtaken, "sample")
    );
    let mut lines = vec![wrapped(&line, 2)];
    if !c.slowest.is_empty() {
        lines.push(wrapped(
            "milliseconds of the slow samples, when made anew:",
            2,
        ));
        lines.push(slowest(&c.slowest));
    }
    lines
}

/// Formats the most expensive samples as a table.
fn slowest(samples: &[SampleCost]) -> String {
    let header = [
        "slow sample",
        "fetch",
        "decode",
        "fixed",
        "random",
        "cpu",
        "made from",
    ];
    let ms = |seconds: f32| format!("{:.2}", seconds * 1e3);
    let row = |s: &SampleCost| {
        let mut row = vec![s.id.to_string()];
        row.extend([s.fetch_s, s.decode_s, s.fixed_s, s.random_s, s.cpu_s].map(ms));
        row.push(clean(&label(s)));
        row
    };
    let mut rows: Vec<_> = samples.iter().map(row).collect();
    let fixed: usize = (0..header.len() - 1)
        .map(|i| {
            let cells = rows.iter().map(|row| row[i].len());
            cells.chain([header[i].len()]).max().unwrap_or(0) + BETWEEN.len()
        })
        .sum();
    for row in &mut rows {
        if let Some(path) = row.last_mut() {
            // Paths get the columns that the other cells leave.
            *path = ending(path, WIDTH.saturating_sub(fixed));
        }
    }
    format!("{}\n", table(&header, &rows))
}

fn stream(s: &StreamStatus) -> String {
    let head = format!(
        "stream {}: {} ({})",
        s.id,
        s.dataset,
        count(s.samples.into(), "sample")
    );
    let mut lines = vec![wrapped(&head, 0)];
    let mut paragraphs = vec![s.pipeline.clone(), setting(s), totals(s)];
    if !s.worker_pids.is_empty() {
        let pids: Vec<String> = s.worker_pids.iter().map(u32::to_string).collect();
        paragraphs.push(format!("workers {}", pids.join(", ")));
    }
    paragraphs.extend(s.differs.iter().map(|d| format!("not shared with {d}")));
    paragraphs.extend(s.notes.iter().cloned());
    lines.extend(paragraphs.iter().map(|text| wrapped(text, 2)));
    lines.extend(costs(&s.costs));
    lines.extend(s.jobs.iter().map(job));
    lines.concat().trim_end().to_owned()
}

/// Describes the settings that all jobs of a stream share.
fn setting(s: &StreamStatus) -> String {
    let order = if s.relaxed {
        "relaxed"
    } else {
        "deterministic"
    };
    let mut parts = vec![
        format!("{order} order"),
        format!("cache {}", form_name(s.cache)),
    ];
    parts.extend(s.chosen_seed().map(|seed| format!("seed {seed}")));
    parts.push(format!(
        "{} of {} staging buffers free ({})",
        s.buffers_free,
        s.buffers,
        human(s.staging_bytes)
    ));
    if s.block_bytes > 0 {
        parts.push(format!("{} of blocks in memory", human(s.block_bytes)));
    }
    parts.join(", ")
}

fn totals(s: &StreamStatus) -> String {
    let t = &s.totals;
    let share = if t.prepared == 0 {
        0.0
    } else {
        t.delivered as f64 / t.prepared as f64
    };
    let mut parts = vec![
        format!("prepared {}", t.prepared),
        format!("delivered {}", t.delivered),
        format!("share factor {share:.2}"),
        format!("failed {}", t.failed),
    ];
    // Worker processes do not report the bytes that user code reads.
    parts.extend(
        s.worker_pids
            .is_empty()
            .then(|| format!("fetched {}", human(t.fetched_bytes))),
    );
    parts.join(", ")
}

fn job(j: &JobStatus) -> String {
    let pids: Vec<String> = j.pids.iter().map(u32::to_string).collect();
    let head = format!(
        "job {}: {} ({}), batch size {}, epoch {}: {} of {} left",
        j.id,
        j.name,
        pids.join(", "),
        j.batch_size,
        j.epoch,
        j.need,
        count(j.samples.into(), "sample")
    );
    let mut facts = vec![
        format!("{} delivered", count(j.delivered, "sample")),
        format!("{} queued", counted(j.queued.into(), "batch", "batches")),
        format!("{} held", counted(j.held.into(), "buffer", "buffers")),
    ];
    facts.extend((j.skipped > 0).then(|| format!("{} skipped", count(j.skipped, "sample"))));
    facts.push(format!("idle for {:.1} s", j.idle_s));
    format!("{}{}", wrapped(&head, 2), wrapped(&facts.join(", "), 4))
}

#[cfg(test)]
#[expect(dead_code, reason = "the tests of the screen use all of it")]
#[path = "../top/src/model/fixtures.rs"]
mod fixtures;

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::fixtures::{a_cache, a_job, a_stream};
    use super::*;

    /// Returns the status of a coordinator with long names and large numbers.
    fn busy() -> Status {
        let mut stream = a_stream(1, vec![a_job(1), a_job(2)]);
        stream.seed = 6_917_529_027_641_081_856;
        stream.samples = 1_281_167;
        stream.dataset = format!("/data/{}/train", "a long name of a folder/".repeat(5));
        stream.worker_pids = (4_000_000..4_000_040).collect();
        stream.busy_workers = 3;
        stream.differs = vec![format!("stream 2: folder {} and /data", stream.dataset)];
        stream.jobs[0].name =
            "a_script_with_a_name_that_is_longer_than_most_of_them_are.py".repeat(2);
        stream.jobs[0].pids = (1_000_000..1_000_016).collect();
        stream.costs.measured = 1;
        stream.costs.slowest = vec![SampleCost {
            id: 1_281_166,
            path: format!("{}/n01440764_10026.JPEG", stream.dataset),
            fetch_s: 12.345,
            decode_s: 1.0,
            fixed_s: 0.0,
            random_s: 0.001,
            cpu_s: 0.5,
        }];
        let mut cache = a_cache();
        cache.pipeline =
            "decode > resize(256, interpolation=\"bicubic\") > center_crop(224)".into();
        cache.lambda_s_per_mib = Some(0.0);
        let ring = RingStatus {
            stream: 1,
            uploader_pid: 4_000_041,
            buffers: 18,
            buffers_free: 2,
            bytes: 172 << 20,
            why_bounced: Some(
                "it does not copy from memory that is pinned for reading only".into(),
            ),
            node: Some(1),
        };
        let gpu = GpuStatus {
            uuid: "GPU-fafafafa-fafa-fafa-fafa-fafafafafafa".into(),
            consumers: 8,
            sharing: 7,
            own_uploads: 1,
            shared_uploads: 1,
            shared_bytes: 10_000_000,
            rings: vec![ring],
            notes: vec!["the uploader of the GPU has ended 4 times".into()],
            ..GpuStatus::default()
        };
        let on_disk = DiskCacheStatus {
            dataset: format!("s3://bucket/{}", "a long name of a folder/".repeat(5)),
            entries: 1_281_167,
            hits: 1,
            dropped: 1,
            ..DiskCacheStatus::default()
        };
        let disk = DiskStatus {
            folder: format!("/nvme/{}", "a long name of a folder/".repeat(5)),
            budget: 500 << 30,
            caches: vec![on_disk],
        };
        Status {
            caches: vec![cache],
            disk: Some(disk),
            streams: vec![stream],
            gpus: vec![gpu],
            ..Status::default()
        }
    }

    #[test]
    fn each_dataset_with_a_cache_is_named_once() {
        assert_eq!(
            no_cache_of("x", vec!["b", "a", "b"]),
            "no cache of x; there are: a, b"
        );
        assert_eq!(
            no_cache_of("x", Vec::new()),
            "no cache of x; there are no caches"
        );
    }

    #[test]
    fn status_fits_eighty_columns() {
        let text = describe(&busy());
        let wide: Vec<&str> = text.lines().filter(|line| line.width() > WIDTH).collect();
        assert_eq!(wide, Vec::<&str>::new(), "{text}");
        assert!(text.contains("n01440764_10026.JPEG"), "{text}");
    }

    #[test]
    fn status_leaves_out_what_says_nothing() {
        let text = describe(&busy());
        for noise in [
            "6917529027641081856",
            "0.0000",
            "fetched",
            "1 samples",
            "0 skipped",
        ] {
            assert!(!text.contains(noise), "{noise} in {text}");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("40 worker processes (3 at work)"), "{words}");
        assert!(words.contains("1 sample measured"), "{words}");
        assert!(
            words.contains("8 consumers, 7 of them share uploads"),
            "{words}"
        );
        assert!(
            words.contains("1281167 samples, 0 B of 0 B; 1 hit, 0 misses; 1 sample"),
            "{words}"
        );
        assert!(
            words.contains("uploader 4000041 on NUMA node 1; not pinned"),
            "{words}"
        );
        assert!(
            words.contains("1 upload shared (9.5 MiB, 0.0 s)"),
            "{words}"
        );
    }
}
