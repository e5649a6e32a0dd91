//! Decides which jobs use a cache that was filled on purpose, and tells the others why they do not.

use coprep_pipeline::Dataset;
use coprep_protocol::message::{Attach, CacheForm, CacheRequest};
use coprep_protocol::operators;
use coprep_protocol::spec::{PipelineSpec, Source};

use super::Registry;
use super::identity::content;
use super::job_stores::JobStores;
use crate::caches::{CacheKey, CachedPipeline, DatasetCache};
use crate::produce::producer::Producer;
use crate::stream::{Stream, StreamConfig, StreamKey};

impl Registry {
    /// Returns the key of a stream. If no form was asked for, the key has the form in which its samples are cached.
    pub(super) fn key_of_new_stream(
        &self,
        request: &Attach,
        stores: &JobStores,
        producer: &Producer,
    ) -> StreamKey {
        let key = self.key(request, stores);
        if !names_no_form(request) {
            return key;
        }
        let cache = producer.cache().map_or(CacheForm::Off, |cache| cache.form);
        StreamKey { cache, ..key }
    }

    /// Returns the form of a warmed cache that a job without a form can use. The coordinator's default form comes
    /// first.
    pub(super) fn warmed_form(
        &self,
        spec: &PipelineSpec,
        request: &CacheRequest,
        default: CacheForm,
        dataset: &Dataset,
    ) -> Option<CacheForm> {
        if request.form.is_some() || request.lru {
            return None;
        }
        let caches = self.caches();
        let is_warm = |form: &CacheForm| {
            let key = CacheKey {
                content: content(spec, *form, dataset),
                form: *form,
                lru: false,
                reuse: 0,
            };
            caches.iter().any(|c| c.key == key && c.is_warmed())
        };
        // Forms that save more come first.
        let others = [CacheForm::Decoded, CacheForm::Auto, CacheForm::Encoded];
        if caches.iter().any(|c| c.is_warmed()) {
            [default].into_iter().chain(others).find(is_warm)
        } else {
            None
        }
    }

    /// Returns what the jobs of a stream are told: why it does not use the local disk, or a warmed cache of its samples.
    pub(super) fn notes(&self, stream: &Stream) -> Vec<String> {
        let mut notes = self.notes_on_warmth(stream);
        if let Producer::Native(recipe) = &stream.config.producer {
            notes.extend(recipe.disk_note.clone());
        }
        notes
    }

    /// Returns the reasons why a stream does not use a warmed cache of its samples. Empty if it uses one, or must not
    /// use any.
    fn notes_on_warmth(&self, stream: &Stream) -> Vec<String> {
        let config = &stream.config;
        let used = config.producer.cache();
        let is_off = used.is_none() && !config.takes_any_form;
        if is_off || used.is_some_and(|cache| cache.is_warmed()) {
            return Vec::new();
        }
        let caches = self.caches();
        let warmed = caches.iter().filter(|cache| cache.is_warmed());
        warmed
            .filter_map(|cache| unused_warmth(config, cache))
            .collect()
    }
}

/// Returns `true` for a native pipeline whose job leaves the form of its cache to the coordinator.
pub(super) fn names_no_form(request: &Attach) -> bool {
    let is_native = !matches!(request.pipeline.source, Source::UserCode(_));
    is_native && request.cache.form.is_none() && !request.cache.lru
}

/// Returns the reason why a stream does not use a warmed cache of the same samples, or `None` if the cache holds other
/// samples.
fn unused_warmth(config: &StreamConfig, cache: &DatasetCache) -> Option<String> {
    let (spec, held) = (config.spec.as_ref()?, cache.cached_pipeline()?);
    // The stream's own cache knows its source. Computing it from a long list of files takes a while.
    let own = config
        .producer
        .cache()
        .and_then(|cache| cache.cached_pipeline());
    let source = own.map_or_else(|| spec.source.fingerprint(), |own| own.source);
    if held.source != source {
        return None;
    }
    let wanted = CachedPipeline::ops_of(spec, cache.form);
    let form = format!("{:?}", cache.form).to_lowercase();
    let why = if held.ops != wanted {
        format!(
            "it holds samples after {}, and this pipeline has {} before its first random operator",
            operators::describe(&held.ops),
            operators::describe(&wanted)
        )
    } else if config.key.lru {
        "it never evicts, and the job asked for cache_policy=\"lru\"".into()
    } else if !config.takes_any_form {
        format!(
            "its form is {form}, and the job asked for another: leave cache= out, or give cache=\"{form}\""
        )
    } else if cache.form != config.key.cache {
        // A stream keeps its cache for as long as it has jobs.
        "it was warmed when this stream's jobs had come; jobs that start after those have ended use it".into()
    } else {
        "the list of its files has changed since it was warmed".into()
    };
    Some(format!(
        "a warmed cache of {} exists but is not used: {why}",
        cache.dataset()
    ))
}
