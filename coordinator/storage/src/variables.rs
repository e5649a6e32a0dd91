//! Variables that describe stores: those of the process's environment, with others that come first, or those of a job
//! alone.

use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;

use coprep_protocol::dataset_url::UrlScheme;
use coprep_protocol::store_variables::{StoreVariables, is_read_for};

use crate::job_credentials::CredentialPool;

/// The variable that a complete set takes from the process if it has none of its own. Profiles and tokens lie below it, and
/// a job without it, as under some schedulers, belongs to the same user.
const HOME: &str = "HOME";

/// The variables that the stores of a process, or of a job, are described by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables {
    given: StoreVariables,
    /// `true` if the environment of this process counts for nothing, since it is another job's.
    is_complete: bool,
    /// The jobs that give the credentials of stores of one kind. Then no variable names any for these.
    pool: Option<Arc<CredentialPool>>,
}

impl Variables {
    /// Returns the variables of a job.
    pub(crate) fn complete(given: StoreVariables) -> Self {
        Variables {
            given,
            is_complete: true,
            pool: None,
        }
    }

    /// Returns these variables, for stores whose credentials jobs give.
    pub(crate) fn with_pool(self, pool: Arc<CredentialPool>) -> Self {
        Variables {
            pool: Some(pool),
            ..self
        }
    }

    /// Returns the jobs that give the credentials of stores of this kind, or `None` if the variables name them.
    pub(crate) fn pool(&self, scheme: UrlScheme) -> Option<&Arc<CredentialPool>> {
        self.pool.as_ref().filter(|pool| pool.scheme() == scheme)
    }

    /// Sets a variable, which comes before one of the environment.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.given.set(name, value);
    }

    /// Returns the value of a variable.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        let given = self.given.get(name).map(str::to_owned);
        given.or_else(|| {
            let may_be_of_process = !self.is_complete || name == HOME;
            std::env::var(name).ok().filter(|_| may_be_of_process)
        })
    }

    /// Returns `true` if the environment of this process counts for nothing.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the builder of a client, with the environment if that counts, and with all variables that begin with
    /// `prefix` and are settings of its store.
    pub(crate) fn configured<B: Default, K: FromStr>(
        &self,
        prefix: &str,
        from_environment: fn() -> B,
        with: impl Fn(B, K, &str) -> B,
    ) -> B {
        let builder = if self.is_complete {
            B::default()
        } else {
            from_environment()
        };
        let variables = self.given.iter();
        let of_store = variables.filter(|(name, _)| name.starts_with(prefix));
        of_store.fold(builder, |builder, (name, value)| {
            match name.to_ascii_lowercase().parse() {
                Ok(key) => with(builder, key, value),
                Err(_) => builder,
            }
        })
    }

    /// Sets the environment of a program that prints credentials of S3. All that does not describe a store of S3, such as
    /// `PATH`, is this process's, because jobs do not tell it.
    pub(crate) fn apply_to(&self, program: &mut Command) {
        if self.is_complete {
            for (name, _) in std::env::vars_os() {
                let is_of_s3 = |name: &str| is_read_for(UrlScheme::S3, name);
                if name != HOME && name.to_str().is_some_and(is_of_s3) {
                    program.env_remove(name);
                }
            }
        }
        program.envs(self.given.iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_set_has_nothing_of_the_process_but_its_home() {
        let process = Variables::default();
        let job = Variables::complete(StoreVariables::default());
        // Cargo sets it for tests.
        assert!(process.value("CARGO_MANIFEST_DIR").is_some());
        assert!(job.value("CARGO_MANIFEST_DIR").is_none());
        assert_eq!(job.value(HOME), std::env::var(HOME).ok());
        let mut job = job;
        job.set(HOME, "/of/the/job");
        assert_eq!(job.value(HOME).as_deref(), Some("/of/the/job"));
    }
}
