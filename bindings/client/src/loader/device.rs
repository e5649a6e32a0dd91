//! Batches on the job's GPU, as the loader takes them.

use std::time::Instant;

use coprep_protocol::message::GpuUse;

use crate::device::{DeviceBatch, DeviceOptions, Uploader, UserStream};
use crate::error::{Result, interrupted, timed_out};
use crate::loader::link::LoaderLink;
use crate::loader::{DeviceEvent, Loader, LoaderState};
use crate::timeout::POLL_INTERVAL;

impl Loader {
    /// As [`step`](Self::step), for batches on the GPU of a stream, or for any if there is none.
    pub(super) fn step_on(
        &self,
        inner: &mut LoaderState,
        end: Instant,
        stream: Option<UserStream>,
    ) -> Result<Option<DeviceEvent>> {
        if let Some(stream) = stream
            && inner.position.is_iterating()
            && !self.is_device_ready(inner, stream, end)?
        {
            return Ok(None);
        }
        if inner.link.as_ref().is_some_and(LoaderLink::awaits_upload) {
            let batch = self.take_uploaded(inner, end)?;
            return Ok(batch.map(DeviceEvent::Batch));
        }
        Ok(self.step(inner, end)?.map(DeviceEvent::Host))
    }

    /// Makes the GPU ready for the batches of the present connection. Returns `true` when it is, or when batches stay on
    /// the host.
    fn is_device_ready(
        &self,
        inner: &mut LoaderState,
        stream: UserStream,
        end: Instant,
    ) -> Result<bool> {
        let most_samples = self.most_samples(inner);
        let (Some(options), Some(link)) = (&self.options.device, &mut inner.link) else {
            return Ok(true);
        };
        if !link.is_uploadable() {
            return Ok(true);
        }
        let uploader = match &inner.uploader {
            Some(uploader) => uploader.clone(),
            None => Uploader::start(options.clone(), stream.gpu, most_samples)?,
        };
        inner.uploader = Some(uploader.clone());
        // No item is taken after a failure, since its batch could not be given.
        uploader.check()?;
        let left = end.saturating_duration_since(Instant::now());
        let Some(device) = link.open_device(&uploader, left.min(POLL_INTERVAL))? else {
            return Ok(false);
        };
        device.check_stream(stream)?;
        if !link.is_gpu_announced() {
            self.announce_gpu(link, options)?;
        }
        if options.is_shared {
            self.map_rings(link)?;
        }
        Ok(true)
    }

    /// Tells the coordinator which GPU the batches of this connection go to.
    fn announce_gpu(&self, link: &mut LoaderLink, options: &DeviceOptions) -> Result<()> {
        let Some(device) = link.device() else {
            return Ok(());
        };
        self.lock_stats().bounced = device.why_bounced.clone();
        let gpu = GpuUse {
            uuid: device.uuid.clone(),
            is_shared: options.is_shared,
            environment: options.environment.clone(),
        };
        link.announce_gpu(gpu);
        Ok(())
    }

    /// Maps a ring that the coordinator has offered. Tells the user if uploads are not shared.
    fn map_rings(&self, link: &mut LoaderLink) -> Result<()> {
        let Some(why) = link.map_rings()? else {
            return Ok(());
        };
        let mut stats = self.lock_stats();
        let is_first = stats.not_shared.is_none();
        let text = format!(
            "uploads to the GPU are not shared, and this job copies its batches itself: {why}"
        );
        stats.not_shared = Some(why);
        drop(stats);
        if is_first {
            (self.options.notice)(&text).map_err(interrupted)?;
        }
        Ok(())
    }

    /// Waits until the copies of the item that was taken have begun. Returns the batch if the item completes it.
    fn take_uploaded(&self, inner: &mut LoaderState, end: Instant) -> Result<Option<DeviceBatch>> {
        let Some(link) = &mut inner.link else {
            return Ok(None);
        };
        let began = Instant::now();
        let limit = end.saturating_duration_since(began).min(POLL_INTERVAL);
        let uploaded = link.uploaded(limit)?;
        let waited = link.waited_for_upload();
        self.count_uploads(inner, began);
        if let Some(waited) = waited
            && waited >= self.options.timeout
        {
            let why = "the work that the job has given it before is not done".to_owned();
            return Err(timed_out("the GPU", waited, why));
        }
        let Some(batch) = uploaded else {
            return Ok(None);
        };
        let is_given = self.give(
            inner,
            &batch.numbers,
            batch.ends_epoch,
            batch.batch.samples(),
        )?;
        Ok(is_given.then_some(batch.batch))
    }

    fn count_uploads(&self, inner: &LoaderState, began: Instant) {
        let mut stats = self.lock_stats();
        stats.upload_wait += began.elapsed();
        let counts = inner.uploader.as_ref().map(|uploader| uploader.counts());
        let counts = counts.unwrap_or_default();
        (stats.uploads, stats.uploaded_bytes) = (counts.uploads, counts.bytes);
        stats.shared_uploads = counts.shared;
    }
}
