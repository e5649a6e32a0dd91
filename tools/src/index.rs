//! `coprep index`.

use std::process::ExitCode;

use coprep_protocol::size::human;
use coprep_protocol::spec::TarShards;
use coprep_shards::{Checksums, IndexFolder, IndexSummary, write_indexes};
use coprep_storage::Stores;
use serde_json::json;

use crate::Outcome;
use crate::args::IndexArgs;
use crate::output::print_line;
use crate::progress::WorkProgress;

/// Makes the indexes of shards that have none, and says what was done.
pub(crate) fn run(args: &IndexArgs) -> Outcome {
    let list = TarShards::named(&args.shards, &args.parts.image, args.parts.label())?;
    let mut progress = WorkProgress::new("shards");
    let mut update = |done| {
        progress.update(done, list.shards.len() as u64, "");
        true
    };
    let out = args.out.as_deref();
    let done = write_indexes(
        &list,
        &Stores::default(),
        &IndexFolder::of_user(),
        out,
        if args.checksums {
            Checksums::All
        } else {
            Checksums::IfFree
        },
        &mut update,
    );
    progress.finish();
    let done = done?;
    if args.json {
        print_line(as_json(&done))?;
    } else {
        print_line(sentence(&done))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(done: &IndexSummary) -> serde_json::Value {
    json!({
        "shards": done.shards,
        "samples": done.samples,
        "left_out": done.left_out.count(),
        "bytes": done.bytes,
        "kept": done.origins.kept,
        "beside": done.origins.beside,
        "scanned": done.origins.scanned,
    })
}

fn sentence(done: &IndexSummary) -> String {
    let noun = if done.shards == 1 { "shard" } else { "shards" };
    let counts = format!(
        "{} samples in {} {noun} of {}: {} read, {} had an index beside them, {} were indexed before",
        done.samples,
        done.shards,
        human(done.bytes),
        done.origins.scanned,
        done.origins.beside,
        done.origins.kept,
    );
    let left_out = done.left_out.note("these shards");
    left_out.map_or(counts.clone(), |left_out| format!("{counts}\n{left_out}"))
}
