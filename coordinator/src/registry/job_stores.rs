//! The stores of each job: those that the variables of its environment describe.
//!
//! Jobs that give credentials themselves have the same stores if their other variables and their source are the same. Each of
//! them is tried on the source before it may use these stores: see [`credentials`](super::credentials). The source counts
//! because credentials that may read one bucket or one folder may be refused by another.
//!
//! Jobs with the same variables have the same stores, and may share a stream. Variables are compared themselves, because
//! they hold secrets, of which nobody keeps a hash. So each set of them has a number, which stands for it in identities and
//! means nothing outside of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coprep_protocol::dataset_url::UrlScheme;
use coprep_protocol::store_variables::StoreVariables;
use coprep_shared_memory::lock::lock;
use coprep_storage::{CredentialPool, EarlyReads, JobProvider, OutageReport, StoreTraffic, Stores};

/// Number of the stores of jobs without variables: they read local files and web servers.
const NO_VARIABLES: u64 = 0;

/// The stores of all jobs with the same variables.
pub(crate) struct JobStores {
    number: u64,
    variables: StoreVariables,
    /// The stores and the source for which jobs give credentials, or `None` if the variables name the credentials.
    provided: Option<Provided>,
    /// The jobs that give the credentials, if jobs do.
    pub(crate) pool: Option<Arc<CredentialPool>>,
    /// Datasets hold them too, so that the number stays for as long as something is read from them.
    pub(crate) stores: Arc<Stores>,
}

/// The stores and the source for which jobs give credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Provided {
    pub(crate) scheme: UrlScheme,
    /// The identity of the source; see the module.
    pub(crate) source: u128,
}

impl JobStores {
    /// Returns the number that stands for the variables in identities; see the module.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

/// The stores of all jobs; see the module.
pub(crate) struct AllStores {
    without_variables: Arc<JobStores>,
    state: Mutex<StoresState>,
}

#[derive(Default)]
struct StoresState {
    /// The stores of jobs that have variables.
    used: Vec<Arc<JobStores>>,
    /// The number of sets of variables so far.
    sets: u64,
    /// Requests of stores that are closed, so that the counts of a store never fall.
    closed: Vec<StoreTraffic>,
}

impl StoresState {
    /// Keeps the counts of stores that are closed.
    fn add_closed(&mut self, stores: &Stores) {
        self.closed.extend(stores.traffic());
        self.closed = merged(std::mem::take(&mut self.closed));
    }
}

impl AllStores {
    /// Returns an empty table. `stores` have the threads and the memory that all of them share.
    pub(crate) fn new(stores: &Stores) -> Self {
        let variables = StoreVariables::default();
        AllStores {
            without_variables: Arc::new(JobStores {
                number: NO_VARIABLES,
                provided: None,
                pool: None,
                stores: Arc::new(stores.of_job(&variables)),
                variables,
            }),
            state: Mutex::default(),
        }
    }

    /// Returns the stores of a job with these variables. `provided` says for what the job gives credentials, if it
    /// does. As long as somebody holds them, jobs with the same ones get them too. New ones replace those that nobody
    /// holds any more.
    pub(crate) fn of(
        &self,
        variables: &StoreVariables,
        provided: Option<Provided>,
    ) -> Arc<JobStores> {
        if variables.is_empty() && provided.is_none() {
            return self.without_variables.clone();
        }
        let mut state = lock(&self.state);
        let is_same = |s: &&Arc<JobStores>| s.variables == *variables && s.provided == provided;
        if let Some(known) = state.used.iter().find(is_same) {
            return known.clone();
        }
        // Only this table gives them out, so nobody can take those that it alone holds.
        let is_unused = |job: &mut Arc<JobStores>| {
            Arc::strong_count(job) == 1 && Arc::strong_count(&job.stores) == 1
        };
        let unused: Vec<_> = state.used.extract_if(.., is_unused).collect();
        for stores in &unused {
            state.add_closed(&stores.stores);
        }
        state.sets += 1;
        let pool = provided.map(|provided| CredentialPool::new(provided.scheme));
        let all = &self.without_variables.stores;
        let new = Arc::new(JobStores {
            number: NO_VARIABLES + state.sets,
            variables: variables.clone(),
            provided,
            stores: Arc::new(match &pool {
                Some(pool) => all.of_providers(variables, pool),
                None => all.of_job(variables),
            }),
            pool,
        });
        state.used.push(new.clone());
        // Their connections are closed, which may take a while.
        drop(state);
        drop(unused);
        new
    }

    /// Calls `use_them` with stores that have the credentials of one job alone, which are closed afterwards.
    pub(crate) fn with_own<T>(
        &self,
        variables: &StoreVariables,
        provider: &Arc<JobProvider>,
        use_them: impl FnOnce(&Stores) -> T,
    ) -> T {
        let pool = CredentialPool::of(provider);
        let own = self.without_variables.stores.of_providers(variables, &pool);
        let result = use_them(&own);
        lock(&self.state).add_closed(&own);
        result
    }

    fn all(&self) -> Vec<Arc<JobStores>> {
        self.all_in(&lock(&self.state))
    }

    fn all_in(&self, state: &StoresState) -> Vec<Arc<JobStores>> {
        let mut all = vec![self.without_variables.clone()];
        all.extend(state.used.iter().cloned());
        all
    }

    pub(crate) fn early_reads(&self) -> &EarlyReads {
        self.without_variables.stores.early_reads()
    }

    pub(crate) fn patience(&self) -> Duration {
        self.without_variables.stores.patience()
    }

    /// Returns the numbers of requests to each store, those of all jobs together.
    pub(crate) fn traffic(&self) -> Vec<StoreTraffic> {
        // Together, so that stores that are closed meanwhile are counted once. The stores are asked without the lock, since
        // opening one reads files of a job, which may take long, and jobs of other stores must not wait for that.
        let (closed, all) = {
            let state = lock(&self.state);
            (state.closed.clone(), self.all_in(&state))
        };
        let used = all.iter().flat_map(|stores| stores.stores.traffic());
        merged(closed.into_iter().chain(used))
    }

    /// Returns the stores that do not answer some job.
    pub(crate) fn outages(&self) -> Vec<OutageReport> {
        let all = self.all();
        longest(all.iter().flat_map(|stores| stores.stores.outages()))
    }

    /// Ends all waits for stores, because the process ends.
    pub(crate) fn stop(&self) {
        self.all().iter().for_each(|stores| stores.stores.stop());
    }
}

/// Adds up the requests to stores of one name.
fn merged(traffic: impl IntoIterator<Item = StoreTraffic>) -> Vec<StoreTraffic> {
    one_for_each_store(traffic, |one| one.store.clone(), StoreTraffic::add)
}

/// Returns one outage for each name of a store: the one that lasts longest, with the reads that wait for any.
fn longest(outages: impl IntoIterator<Item = OutageReport>) -> Vec<OutageReport> {
    one_for_each_store(outages, |one| one.store.clone(), OutageReport::merge)
}

/// Joins the reports that name the same store.
fn one_for_each_store<T>(
    reports: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> String,
    join: impl Fn(&mut T, &T),
) -> Vec<T> {
    let mut by_name = BTreeMap::new();
    for one in reports {
        let known = by_name.entry(name(&one));
        known.and_modify(|known| join(known, &one)).or_insert(one);
    }
    by_name.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(key: &str) -> StoreVariables {
        let mut variables = StoreVariables::default();
        variables.set("AWS_ACCESS_KEY_ID", key);
        variables
    }

    #[test]
    fn the_same_variables_have_the_same_stores_as_long_as_somebody_holds_them() {
        let all = AllStores::new(&Stores::default());
        let (a, b) = (all.of(&variables("a"), None), all.of(&variables("b"), None));
        assert_eq!(a.number(), all.of(&variables("a"), None).number());
        assert_ne!(a.number(), b.number());
        let (number, held) = (a.number(), a.stores.clone());
        drop(a);
        all.of(&variables("c"), None);
        assert_eq!(all.of(&variables("a"), None).number(), number);
        drop(held);
        all.of(&variables("d"), None);
        assert_ne!(all.of(&variables("a"), None).number(), number);
        assert_eq!(all.of(&variables("b"), None).number(), b.number());
    }

    #[test]
    fn jobs_that_give_credentials_have_stores_of_their_own() {
        let all = AllStores::new(&Stores::default());
        let none = StoreVariables::default();
        let for_source = |scheme, source| Some(Provided { scheme, source });
        let given = all.of(&none, for_source(UrlScheme::S3, 1));
        let number = |provided| all.of(&none, provided).number();
        assert_ne!(given.number(), number(None));
        assert_ne!(given.number(), number(for_source(UrlScheme::Gs, 1)));
        assert_ne!(given.number(), number(for_source(UrlScheme::S3, 2)));
        assert_eq!(given.number(), number(for_source(UrlScheme::S3, 1)));
    }

    #[test]
    fn jobs_without_variables_have_the_same_stores_for_ever() {
        let all = AllStores::new(&Stores::default());
        let none = StoreVariables::default();
        let number = all.of(&none, None).number();
        for key in ["a", "b", "c"] {
            all.of(&variables(key), None);
        }
        assert_eq!(all.of(&none, None).number(), number);
    }

    #[test]
    fn requests_to_a_store_are_those_of_all_jobs_and_never_fall() {
        let of = |store: &str, requests| StoreTraffic {
            store: store.into(),
            requests,
            ..StoreTraffic::default()
        };
        let sums = merged([of("s3://a", 1), of("s3://b", 2), of("s3://a", 4)]);
        assert_eq!(sums, [of("s3://a", 5), of("s3://b", 2)]);
    }

    #[test]
    fn a_store_that_does_not_answer_some_jobs_is_one_outage() {
        let of = |lasts, answer: &str, next, waiting| OutageReport {
            store: "s3://a".into(),
            lasts: Duration::from_secs(lasts),
            last_answer: answer.into(),
            next_try: Duration::from_secs(next),
            waiting,
        };
        let all = [of(3, "503", 1, 2), of(9, "403", 4, 1)];
        let one = longest(all);
        assert_eq!(one, [of(9, "403", 1, 3)]);
    }
}
