//! Opening datasets: a folder or a store is listed once for all jobs that ask for it meanwhile.

use std::sync::Arc;

use coprep_pipeline::Dataset;
use coprep_protocol::dataset_url::{DatasetUrl, UrlScheme};
use coprep_protocol::spec::Source;
use coprep_storage::while_wanted;

use super::flights::{Flight, FlightOutcome, FlightParty, Waiter};
use super::identity::source_name;
use super::job_stores::JobStores;
use super::{Registry, wait_for};
use crate::Result;
use crate::error::from_lower;

/// The identity of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListingKey {
    source: u128,
    /// Number of the stores: one job may be given what another one is refused.
    stores: u64,
}

impl Registry {
    /// Lists a dataset. Jobs that ask for the same one in the same stores meanwhile are given the same list.
    pub(crate) fn dataset(
        self: &Arc<Self>,
        source: &Source,
        stores: &Arc<JobStores>,
        party: &dyn FlightParty,
    ) -> Result<Arc<Dataset>> {
        // A list of local files needs no listing, so no flight.
        if !needs_listing(source) {
            return self.open_dataset(source, stores, &mut |_| true);
        }
        loop {
            let waiter = self.list(source, stores);
            if let Some(dataset) = wait_for(waiter, party)? {
                return Ok(dataset);
            }
        }
    }

    /// Opens a dataset. `goes_on` is told the number of objects that were listed so far.
    fn open_dataset(
        &self,
        source: &Source,
        stores: &JobStores,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Arc<Dataset>> {
        let listed = Dataset::open_in(source, &stores.stores, goes_on).map_err(from_lower)?;
        if listed.is_remote() {
            self.workers.expect_remote();
        }
        if let Some(note) = listed.left_out().note(&source_name(source)) {
            tracing::warn!("{note}");
        }
        Ok(Arc::new(listed.slowed(self.throttle.clone())))
    }

    fn list(self: &Arc<Self>, source: &Source, stores: &Arc<JobStores>) -> Waiter<Arc<Dataset>> {
        let key = ListingKey {
            source: source.fingerprint(),
            stores: stores.number(),
        };
        let mut open = self.open();
        // The listing of a store ends once nobody waits for it. That of a local folder cannot be ended, so that whoever comes
        // later joins it all the same.
        let under_way = if is_remote(source) {
            open.listing.join_awaited(&key)
        } else {
            open.listing.join(&key)
        };
        if let Some(waiter) = under_way {
            return waiter;
        }
        let step = listing_step(source, 0);
        let (flight, waiter) = open.listing.begin(key, step);
        drop(open);
        let (source, stores) = (source.clone(), stores.clone());
        let list = move |registry: &Arc<Registry>, flight: &Arc<Flight<Arc<Dataset>>>| {
            let mut goes_on = |listed: u64| {
                flight.step(listing_step(&source, listed));
                flight.is_awaited()
            };
            let flying = flight.clone();
            let open = || registry.open_dataset(&source, &stores, &mut goes_on);
            Ok(Some((
                while_wanted(move || flying.is_awaited(), open)?,
                None,
            )))
        };
        self.fly(flight, list, Registry::land_dataset);
        waiter
    }

    fn land_dataset(
        &self,
        flight: &Arc<Flight<Arc<Dataset>>>,
        outcome: FlightOutcome<Arc<Dataset>>,
    ) {
        self.open().listing.remove(flight);
        flight.land(outcome, |_| {});
    }
}

/// Returns `true` if a folder or a store is asked for the samples, which may take long.
fn needs_listing(source: &Source) -> bool {
    // An invalid URL is reported when the dataset is opened.
    let is_url = |path: &String| !matches!(DatasetUrl::parse(path), Ok(None));
    match source {
        Source::ImageFolder { .. }
        | Source::AudioFolder { .. }
        | Source::TarShards(_)
        | Source::Parquet(_)
        | Source::Tokens(_)
        | Source::Arrays(_) => true,
        Source::Files(list) => list.paths.iter().any(is_url),
        Source::UserCode(_) => false,
    }
}

/// Returns `true` if samples of a source lie in a store.
fn is_remote(source: &Source) -> bool {
    let mut locations = source.locations().iter();
    locations.any(|location| UrlScheme::of(location).is_some())
}

/// Describes the step of listing a source, after `listed` objects.
fn listing_step(source: &Source, listed: u64) -> String {
    let so_far = match listed {
        0 => String::new(),
        listed => format!(" ({listed} so far)"),
    };
    match source {
        Source::ImageFolder { root } | Source::AudioFolder { root } => {
            format!("the files of the folder {root} are being listed{so_far}")
        }
        Source::TarShards(_) => format!(
            "the shards {} are being opened, which reads them if they have no index{so_far}",
            source_name(source)
        ),
        Source::Parquet(_) => format!(
            "the footers and labels of {} are being read{so_far}",
            source_name(source)
        ),
        _ => format!("{} are being looked up{so_far}", source_name(source)),
    }
}
