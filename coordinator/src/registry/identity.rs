//! Identities of streams, caches and loaded user code, and descriptions of their differences for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coprep_pipeline::Dataset;
use coprep_protocol::message::CacheForm;
use coprep_protocol::operators;
use coprep_protocol::spec::{IdentityPart, Op, PipelineSpec, Source, UserDataset};

use super::job_stores::JobStores;
use crate::stream::{Stream, StreamConfig};

/// Returns the identity of a cache's content: the list of samples and, for the decoded form, the operators before it.
pub(super) fn content(spec: &PipelineSpec, form: CacheForm, dataset: &Dataset) -> u128 {
    // A cache that chooses the form of each sample may hold decoded ones, which depend on operators too.
    let done = if matches!(form, CacheForm::Decoded | CacheForm::Auto) {
        spec.decoded_fingerprint()
    } else {
        spec.source.fingerprint()
    };
    let mut both = done.to_le_bytes().to_vec();
    both.extend(dataset.fingerprint().to_le_bytes());
    xxhash_rust::xxh3::xxh3_128(&both)
}

/// Returns the identity of a preparation: equal ones make equal samples, at equal costs.
pub(super) fn preparation(spec: &PipelineSpec, dataset: &Dataset, is_exact: bool) -> u128 {
    let mut key = spec.fingerprint().to_le_bytes().to_vec();
    key.extend(dataset.fingerprint().to_le_bytes());
    key.push(u8::from(is_exact));
    xxhash_rust::xxh3::xxh3_128(&key)
}

/// Returns the identity of what is slow or quick together when samples are read. Jobs with other variables may be refused
/// what these ones are given, so none waits for a read of the others.
pub(super) fn reads_of(dataset: &Dataset, stores: &JobStores) -> u128 {
    let mut key = dataset.fingerprint().to_le_bytes().to_vec();
    key.extend(stores.number().to_le_bytes());
    xxhash_rust::xxh3::xxh3_128(&key)
}

/// Returns the differences of a stream from another that looks like it, or `None` if it does not look like it.
pub(super) fn differs(one: &Arc<Stream>, other: &Arc<Stream>) -> Option<String> {
    let (a, b) = (&one.config, &other.config);
    if a.id == b.id || !look_alike(a, b) {
        return None;
    }
    let mut parts = Vec::new();
    if let (Some(a), Some(b)) = (&a.identity, &b.identity) {
        parts.extend(user_parts_that_differ(a, b));
        if a.in_job != b.in_job {
            parts.push("num_workers=0".into());
        }
    }
    if let (Some(a), Some(b)) = (&a.spec, &b.spec) {
        parts.extend(sources_that_differ(&a.source, &b.source));
        parts.extend(operators_that_differ(&a.ops, &b.ops));
    }
    let others = [
        (
            "the environment of their stores",
            a.key.stores != b.key.stores,
        ),
        ("shuffle", a.key.shuffle != b.key.shuffle),
        (
            "cache",
            a.key.cache != b.key.cache || a.key.lru != b.key.lru,
        ),
        ("reuse", a.key.reuse != b.key.reuse),
        ("order", a.key.relaxed != b.key.relaxed),
        (
            "the sampler's weights or number of draws",
            a.key.draws != b.key.draws,
        ),
        (
            "the cohort, whose members have a sampler of their own or an iterable dataset",
            a.key.told != b.key.told,
        ),
    ];
    let others = others.iter().filter(|(_, differs)| *differs);
    parts.extend(others.map(|(name, _)| (*name).to_owned()));
    // Seeds that nobody named differ whenever something else does, so they are no reason.
    if parts.is_empty() && a.seed != b.seed {
        parts.push("seed".into());
    }
    Some(format!("stream {}: {}", b.id, parts.join(", ")))
}

/// Describes, for a job that is alone in a stream, in what its dataset differs from those of other jobs.
///
/// A program may use one class for its training data and its validation data. So only streams with as many samples
/// count, in which this process has no loader.
pub(super) fn unshared(stream: &Arc<Stream>, pid: u32, others: &[Arc<Stream>]) -> Vec<String> {
    let Some(here) = &stream.config.identity else {
        return Vec::new();
    };
    if stream.status(0).jobs.len() > 1 {
        return Vec::new();
    }
    let described = others.iter().filter_map(|other| {
        let there = other.config.identity.as_ref()?;
        if (&here.name, here.samples) != (&there.name, there.samples) {
            return None;
        }
        let parts = user_parts_that_differ(here, there);
        let jobs = other.status(0).jobs;
        let job = jobs.iter().find(|job| !job.pids.is_empty())?;
        let is_own = jobs.iter().any(|job| job.pids.contains(&pid));
        let who = format!("{} (pid {})", job.name, job.pids[0]);
        let text = format!("not shared with {who}: {}", parts.join(", "));
        (!parts.is_empty() && !is_own).then_some(text)
    });
    described.collect()
}

/// A dataset and its transform may depend on the same settings, which are named once.
fn user_parts_that_differ(a: &UserDataset, b: &UserDataset) -> Vec<String> {
    parts_that_differ(
        a.dataset.iter().chain(&a.rest),
        b.dataset.iter().chain(&b.rest),
    )
}

/// Returns `true` if a person may expect two streams to be one. That is so if their datasets have one name. It is also
/// so if they apply the same operators to as many samples of another folder, which may be a copy, or the same folder
/// under another mount.
fn look_alike(a: &StreamConfig, b: &StreamConfig) -> bool {
    let same_work = match (&a.spec, &b.spec) {
        (Some(x), Some(y)) => x.ops == y.ops && a.producer.samples() == b.producer.samples(),
        _ => false,
    };
    same_work || a.dataset_name == b.dataset_name
}

fn sources_that_differ(a: &Source, b: &Source) -> Option<String> {
    match (a, b) {
        (Source::ImageFolder { root: a }, Source::ImageFolder { root: b })
        | (Source::AudioFolder { root: a }, Source::AudioFolder { root: b }) => {
            (a != b).then(|| format!("folder {a} and {b}"))
        }
        (Source::Files(a), Source::Files(b)) => {
            let pairs = a.paths.iter().zip(&b.paths).enumerate();
            let first = pairs.into_iter().find(|(_, (a, b))| a != b);
            let path = |(id, (a, b))| format!("path of sample {id}, {a} and {b}");
            let labels = || (a.labels != b.labels).then(|| "labels".into());
            first.map(path).or_else(labels)
        }
        (Source::TarShards(a), Source::TarShards(b)) if a.shards == b.shards => {
            (a != b).then(|| format!("parts of samples, {a} and {b}"))
        }
        (Source::Parquet(a), Source::Parquet(b)) if a.files == b.files => {
            (a != b).then(|| format!("columns, {a} and {b}"))
        }
        (Source::Tokens(a), Source::Tokens(b)) if a.files == b.files => {
            (a != b).then(|| format!("windows, {a} and {b}"))
        }
        (Source::Arrays(a), Source::Arrays(b)) if a.files == b.files => {
            (a != b).then(|| "labels".into())
        }
        _ => (a != b).then(|| format!("source {} and {}", source_name(a), source_name(b))),
    }
}

/// Describes the operators of both, without the ones that they share at the beginning and at the end.
fn operators_that_differ(a: &[Op], b: &[Op]) -> Option<String> {
    if a == b {
        return None;
    }
    let alike = |(a, b): &(&Op, &Op)| a == b;
    let before = a.iter().zip(b).take_while(alike).count();
    let (a, b) = (&a[before..], &b[before..]);
    let after = a.iter().rev().zip(b.iter().rev()).take_while(alike).count();
    let shown = |ops: &[Op]| match &ops[..ops.len() - after] {
        [] => "none".into(),
        ops => operators::describe(ops),
    };
    Some(format!("operators {} and {}", shown(a), shown(b)))
}

/// Describes the parts in which two identities differ, those of the first as what is here.
fn parts_that_differ<'a>(
    a: impl Iterator<Item = &'a IdentityPart>,
    b: impl Iterator<Item = &'a IdentityPart>,
) -> Vec<String> {
    let a: BTreeMap<&str, &IdentityPart> = a.map(|part| (part.name.as_str(), part)).collect();
    let b: BTreeMap<&str, &IdentityPart> = b.map(|part| (part.name.as_str(), part)).collect();
    let names: BTreeSet<&str> = a.keys().chain(b.keys()).copied().collect();
    let both = names
        .into_iter()
        .map(|name| (name, a.get(name), b.get(name)));
    let hash = |part: Option<&&IdentityPart>| part.map(|part| part.hash);
    let mut found: Vec<String> = both
        .filter(|(_, here, there)| hash(*here) != hash(*there))
        .map(|(name, here, there)| difference(name, here.copied(), there.copied()))
        .collect();
    if found.len() > SHOWN {
        let rest = found.len() - SHOWN;
        found.truncate(SHOWN);
        found.push(format!("and {rest} more"));
    }
    found
}

/// Most parts that a description of a difference has.
const SHOWN: usize = 5;

fn difference(name: &str, here: Option<&IdentityPart>, there: Option<&IdentityPart>) -> String {
    let value = |part: Option<&IdentityPart>| match part {
        Some(part) => part.value.clone(),
        None => "not read".into(),
    };
    let mut text = match (value(here), value(there)) {
        (here, there) if here.is_empty() || there.is_empty() || here == there => name.to_owned(),
        (here, there) => format!("{name} is {here} here and {there} there"),
    };
    let why = here.or(there).map_or("", |part| part.why.as_str());
    if !why.is_empty() {
        text.push_str(&format!(" ({why})"));
    }
    text
}

pub(super) fn source_name(source: &Source) -> String {
    match source {
        Source::ImageFolder { root } | Source::AudioFolder { root } => root.clone(),
        Source::Files(list) => format!("{} files", list.paths.len()),
        Source::UserCode(user) => user.name.clone(),
        Source::TarShards(shards) => shards.name(),
        Source::Parquet(files) => files.name(),
        Source::Tokens(tokens) => tokens.name(),
        Source::Arrays(arrays) => arrays.name(),
    }
}

/// Describes the operators of a pipeline for people.
pub fn describe(spec: &PipelineSpec) -> String {
    match &spec.source {
        Source::UserCode(user) if user.in_job => "made by the jobs".into(),
        Source::UserCode(user) if user.split => "dataset[i] > transform".into(),
        Source::UserCode(_) => "dataset[i]".into(),
        Source::Tokens(_) => "windows of tokens".into(),
        Source::Arrays(_) => "rows of arrays".into(),
        _ => operators::describe(&spec.ops),
    }
}

#[cfg(test)]
mod tests {
    use coprep_protocol::spec::{DEFAULT_RATIO, DEFAULT_SCALE, Interpolation};

    use super::*;

    fn crop(scale: (f32, f32)) -> Op {
        Op::RandomResizedCrop {
            height: 64,
            width: 64,
            scale,
            ratio: DEFAULT_RATIO,
            interpolation: Interpolation::Bilinear,
        }
    }

    #[test]
    fn parts_that_differ_are_shown_with_their_values() {
        let part = |name: &str, hash, value: &str, why: &str| IdentityPart {
            name: name.into(),
            hash,
            value: value.into(),
            why: why.into(),
        };
        let line = "read in data.py:3 (get)";
        let before = [
            part("dataset.root", 1, "", ""),
            part("dataset.size", 1, "3", line),
        ];
        let after = [
            part("SEED", 1, "7", ""),
            part("dataset.root", 2, "", ""),
            part("dataset.size", 2, "4", ""),
        ];
        assert_eq!(
            parts_that_differ(before.iter(), after.iter()),
            [
                "SEED is not read here and 7 there",
                "dataset.root",
                "dataset.size is 3 here and 4 there (read in data.py:3 (get))",
            ]
        );
        let many: Vec<_> = (0..9).map(|n| part(&n.to_string(), 1, "", "")).collect();
        let found = parts_that_differ([].iter(), many.iter());
        assert_eq!(found.len(), SHOWN + 1);
        assert_eq!(found.last().unwrap(), "and 4 more");
    }

    #[test]
    fn operators_that_differ_are_shown_with_their_arguments() {
        let flip = Op::RandomHorizontalFlip { p: 0.5 };
        let (a, b) = (crop(DEFAULT_SCALE), crop((0.5, 1.0)));
        let differ = |a: &[Op], b: &[Op]| operators_that_differ(a, b);
        assert_eq!(
            differ(&[a.clone(), flip.clone()], &[b, flip.clone()]).as_deref(),
            Some("operators random_resized_crop(64) and random_resized_crop(64, scale=(0.5, 1.0))")
        );
        assert_eq!(
            differ(std::slice::from_ref(&a), &[a.clone(), flip]).as_deref(),
            Some("operators none and random_horizontal_flip")
        );
        let alone = std::slice::from_ref(&a);
        assert_eq!(differ(alone, alone), None);
    }
}
