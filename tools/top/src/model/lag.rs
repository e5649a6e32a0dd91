//! The distance between a job and the furthest job of its stream.

use coprep_protocol::message::JobStatus;

use super::earlier::Earlier;

/// Distance between a job and the furthest job of its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lag {
    pub(crate) samples: u64,
    /// The furthest job; `None` if it is this one.
    pub(crate) behind: Option<u64>,
    /// Samples per second by which the distance grows.
    pub(crate) growth: Option<f64>,
}

/// Returns the samples drawn for a job since its first epoch began.
pub(super) fn position(job: &JobStatus) -> u64 {
    let samples = u64::from(job.samples);
    let drawn = samples.saturating_sub(u64::from(job.need));
    job.epoch.saturating_mul(samples).saturating_add(drawn)
}

/// Returns the distance of a job from the furthest one, and its growth since the earlier status.
pub(super) fn lag(
    earlier: Option<Earlier>,
    stream: u64,
    now: &JobStatus,
    furthest: &JobStatus,
) -> Lag {
    let samples = position(furthest).saturating_sub(position(now));
    if samples == 0 {
        return Lag::default();
    }
    let growth = earlier.and_then(|s| {
        let before = |id| s.job((stream, id)).map(position);
        let lag = before(furthest.id)? as f64 - before(now.id)? as f64;
        Some((samples as f64 - lag) / s.seconds)
    });
    Lag {
        samples,
        behind: Some(furthest.id),
        growth,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures::two_statuses;
    use crate::model::tests::overview;

    #[test]
    fn a_job_lags_by_the_samples_that_the_furthest_was_given_more() {
        let mut statuses = two_statuses();
        // 2,400 samples in at the first status; now 2,900 and 2,500.
        statuses.1.streams[0].jobs[0].need = 100;
        statuses.1.streams[0].jobs[1].need = 500;
        let report = overview(&statuses);
        assert_eq!(report.jobs[0].lag, Lag::default());
        let lag = Lag {
            samples: 400,
            behind: Some(1),
            growth: Some(200.0),
        };
        assert_eq!(report.jobs[1].lag, lag);
        // Another stream's job is not compared with them.
        assert_eq!(report.jobs[2].lag, Lag::default());
    }

    #[test]
    fn an_epoch_more_is_further_than_a_smaller_need() {
        let mut statuses = two_statuses();
        statuses.1.streams[0].jobs[0].epoch = 3;
        statuses.1.streams[0].jobs[0].need = 1000;
        statuses.1.streams[0].jobs[1].need = 1;
        let report = overview(&statuses);
        assert_eq!(
            (report.jobs[0].lag.samples, report.jobs[1].lag.samples),
            (0, 1)
        );
    }
}
