//! What tells streams, caches and loaded user code apart, and how that is said to people.

use std::sync::Arc;

use coprep_pipeline::Dataset;
use coprep_protocol::message::{Attach, CacheForm};
use coprep_protocol::spec::{Op, Part, PipelineSpec, Source};

use crate::stream::Stream;

/// Identity of what a cache holds: the list of samples, and for the decoded form what was done to them.
pub(super) fn content(spec: &PipelineSpec, form: CacheForm, dataset: &Dataset) -> u128 {
    let done = if matches!(form, CacheForm::Decoded | CacheForm::Auto) {
        spec.decoded_fingerprint()
    } else {
        spec.source.fingerprint()
    };
    let mut both = done.to_le_bytes().to_vec();
    both.extend(dataset.fingerprint().to_le_bytes());
    xxhash_rust::xxh3::xxh3_128(&both)
}

/// What the costs of samples depend on.
pub(super) fn timed_alike(spec: &PipelineSpec, dataset: &Dataset, is_exact: bool) -> u128 {
    let mut key = spec.fingerprint().to_le_bytes().to_vec();
    key.extend(dataset.fingerprint().to_le_bytes());
    key.push(u8::from(is_exact));
    xxhash_rust::xxh3::xxh3_128(&key)
}

/// What a process that has loaded user code is good for: the same code, run in the same way.
pub(super) fn code_key(request: &Attach) -> u128 {
    let mut key = xxhash_rust::xxh3::Xxh3::new();
    key.update(&request.pipeline.fingerprint().to_le_bytes());
    let mut part = |bytes: &[u8]| {
        key.update(&(bytes.len() as u64).to_le_bytes());
        key.update(bytes);
    };
    if let Some(code) = &request.code {
        code.command.iter().for_each(|argument| part(argument));
        part(&code.directory);
        for (name, value) in &code.environment {
            part(name);
            part(value);
        }
    }
    key.digest128()
}

/// In what a stream differs from another that looks like it.
pub(super) fn differs(one: &Arc<Stream>, other: &Arc<Stream>) -> Option<String> {
    let (a, b) = (&one.blueprint, &other.blueprint);
    if a.id == b.id || a.dataset_name != b.dataset_name {
        return None;
    }
    let mut parts = Vec::new();
    if let (Some(a), Some(b)) = (&a.identity, &b.identity) {
        parts.extend(parts_that_differ(&a.dataset, &b.dataset));
        parts.extend(parts_that_differ(&a.rest, &b.rest));
        if a.in_job != b.in_job {
            parts.push("num_workers=0".into());
        }
    } else if a.pipeline_text != b.pipeline_text || a.key.pipeline != b.key.pipeline {
        parts.push("operators".into());
    }
    let others = [
        ("shuffle", a.key.shuffle != b.key.shuffle),
        (
            "cache",
            a.key.cache != b.key.cache || a.key.lru != b.key.lru,
        ),
        ("reuse", a.key.reuse != b.key.reuse),
        ("order", a.key.relaxed != b.key.relaxed),
    ];
    let others = others.iter().filter(|(_, differs)| *differs);
    parts.extend(others.map(|(name, _)| (*name).to_owned()));
    // Where something else differs, seeds that nobody named do too.
    if parts.is_empty() && a.seed != b.seed {
        parts.push("seed".into());
    }
    Some(format!("stream {}: {}", b.id, parts.join(", ")))
}

fn parts_that_differ(a: &[Part], b: &[Part]) -> Vec<String> {
    let of = |parts: &[Part]| -> std::collections::BTreeMap<String, u128> {
        parts.iter().map(|p| (p.name.clone(), p.hash)).collect()
    };
    let (a, b) = (of(a), of(b));
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|name| a.get(*name) != b.get(*name));
    differing.cloned().collect()
}

pub(super) fn source_name(source: &Source) -> String {
    match source {
        Source::ImageFolder { root } => root.clone(),
        Source::Files(list) => format!("{} files", list.paths.len()),
        Source::UserCode(user) => user.name.clone(),
    }
}

/// Operators, for people.
pub fn describe(spec: &PipelineSpec) -> String {
    match &spec.source {
        Source::UserCode(user) if user.in_job => "made by the jobs".into(),
        Source::UserCode(user) if user.split => "dataset[i] > transform".into(),
        Source::UserCode(_) => "dataset[i]".into(),
        _ => describe_operators(&spec.ops),
    }
}

fn describe_operators(ops: &[Op]) -> String {
    let name = |op: &Op| match op {
        Op::Decode { .. } => "decode".into(),
        Op::Resize { to, .. } => format!("resize({to:?})"),
        Op::CenterCrop { height, width } => format!("center_crop({height}, {width})"),
        Op::RandomResizedCrop { height, width, .. } => {
            format!("random_resized_crop({height}, {width})")
        }
        Op::RandomHorizontalFlip { p } => format!("random_horizontal_flip({p})"),
        Op::Normalize { .. } => "normalize".into(),
    };
    ops.iter().map(name).collect::<Vec<String>>().join(" > ")
}
