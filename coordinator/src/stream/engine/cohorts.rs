//! Cohorts whose members attach again after they lost their coordinator or their stream.
//!
//! A cohort begins when all its members are here. Once it has begun, members may end or be killed, and the others
//! continue without them. A member that has ended does not attach again after the connection was lost. So a cohort that
//! had begun continues when no member has attached for a while. A member that attaches later is first assigned the
//! samples that it lacks, which are the same that the others were given.

use std::time::{Duration, Instant};

use coprep_scheduler::JobId;

use crate::stream::engine::Engine;

/// Longest time between two members that attach again. They lose their connections together, so they attach at nearly
/// the same time.
const GRACE: Duration = Duration::from_secs(5);

impl Engine {
    /// Lets cohorts continue that have waited long enough. Returns `true` if there was one, and the time when the next
    /// one is due.
    pub(in crate::stream) fn begin_cohorts(&mut self) -> (bool, Option<Instant>) {
        let waiting: Vec<(String, Instant)> = (self.scheduler.incomplete_cohorts())
            .filter_map(|(name, members)| Some((name.to_owned(), self.goes_on_at(members)?)))
            .collect();
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, at)| *at <= now);
        for (cohort, _) in &due {
            tracing::info!(
                stream = self.stream,
                cohort,
                "a cohort goes on with the members that have come again"
            );
            self.scheduler.begin_cohort(cohort);
        }
        (!due.is_empty(), later.into_iter().map(|(_, at)| at).min())
    }

    /// Returns the time when a cohort continues with these members, or `None` if it has not begun and waits for all of
    /// them.
    fn goes_on_at(&self, members: &[JobId]) -> Option<Instant> {
        let jobs = || members.iter().filter_map(|id| self.jobs.get(&id.0));
        let latest = jobs().map(|job| job.came).max()?;
        jobs().any(|job| job.has_begun).then(|| latest + GRACE)
    }
}
