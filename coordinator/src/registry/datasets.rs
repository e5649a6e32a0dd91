//! Opening datasets: a folder is listed once for all jobs that ask for it meanwhile.

use std::sync::Arc;

use coprep_pipeline::Dataset;
use coprep_protocol::spec::Source;

use super::flights::{Flight, FlightOutcome, FlightParty, Waiter};
use super::{Registry, wait_for};
use crate::Result;
use crate::error::from_lower;

impl Registry {
    /// Lists a dataset. Jobs that ask for the same one meanwhile are given the same list.
    pub(crate) fn dataset(
        self: &Arc<Self>,
        source: &Source,
        party: &dyn FlightParty,
    ) -> Result<Arc<Dataset>> {
        let Source::ImageFolder { root } = source else {
            // A list of files needs no listing, so no flight.
            let listed = Dataset::open(source).map_err(from_lower)?;
            return Ok(Arc::new(listed.slowed(self.throttle.clone())));
        };
        loop {
            let waiter = self.list_folder(root);
            if let Some(dataset) = wait_for(waiter, party)? {
                return Ok(dataset);
            }
        }
    }

    fn list_folder(self: &Arc<Self>, root: &str) -> Waiter<Arc<Dataset>> {
        let mut open = self.open();
        if let Some(waiter) = open.listing.join(&root.to_owned()) {
            return waiter;
        }
        let step = format!("the files of the folder {root} are being listed");
        let (flight, waiter) = open.listing.begin(root.to_owned(), step);
        drop(open);
        let root = root.to_owned();
        let list = move |registry: &Arc<Registry>, _: &Arc<Flight<Arc<Dataset>>>| {
            let dataset = Dataset::open(&Source::ImageFolder { root }).map_err(from_lower)?;
            Ok(Some((
                Arc::new(dataset.slowed(registry.throttle.clone())),
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
