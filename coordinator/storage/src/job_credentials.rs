//! Credentials that running jobs give, because they exist only in the jobs' processes.
//!
//! A [`JobProvider`] is a job that gives credentials by itself when they are about to expire, and when it is asked. The
//! jobs that share stores share a [`CredentialPool`]: each request takes the credentials of the first job in it that has
//! usable ones. If the store refuses them, that job becomes the last one of the pool. If no job has usable ones, the jobs are
//! asked one after the other.
//!
//! A job's own credentials come into a pool only after they were tried on its dataset. So a job whose credentials are wrong
//! harms no other one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use coprep_protocol::dataset_url::UrlScheme;
use coprep_protocol::given_credentials::{StoreCredentials, TimedCredentials};
use coprep_shared_memory::lock::lock;
use object_store::aws::AwsCredential;
use object_store::azure::{AzureAccessKey, AzureCredential};
use object_store::gcp::GcpCredential;
use object_store::{CredentialProvider, HeaderValue, Result};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind};
use crate::headers;

/// Longest time for a job to answer. Then the next one is asked, and its answer still counts when it comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which the failure of all jobs is repeated. Hundreds of reads may ask at the same time.
const FAILURE_AGE: Duration = Duration::from_secs(2);
/// Least age of credentials that count as refused. A store may refuse one object only, and each new try of its read would
/// ask the jobs again.
const LEAST_AGE: Duration = Duration::from_secs(2);
/// The name of a token in errors.
const TOKEN: &str = "the token";
/// The beginning of the error if no job gives credentials.
pub(crate) const NONE_GIVEN: &str = "no job gives credentials";

/// Credentials in the form of the client of their store.
pub(crate) struct UsableCredentials {
    form: ClientForm,
    /// `None` for credentials that do not expire.
    end: Option<SystemTime>,
    came: Instant,
}

enum ClientForm {
    S3(Arc<AwsCredential>),
    Google(Arc<GcpCredential>),
    Azure(Arc<AzureCredential>),
    /// The header with the token.
    Hub(HeaderValue),
}

impl UsableCredentials {
    fn new(scheme: UrlScheme, given: &TimedCredentials) -> std::result::Result<Self, String> {
        let (end, came) = (given.end(), Instant::now());
        let form = ClientForm::of(scheme, given.credentials.clone())?;
        Ok(UsableCredentials { form, end, came })
    }

    fn has_expired(&self) -> bool {
        self.end.is_some_and(|end| end <= SystemTime::now())
    }

    /// Returns the header with the token of the Hugging Face Hub, or `None` for other credentials.
    pub(crate) fn header(&self) -> Option<&HeaderValue> {
        match &self.form {
            ClientForm::Hub(header) => Some(header),
            _ => None,
        }
    }
}

/// Shows nothing of them, since they are secrets.
impl fmt::Debug for UsableCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UsableCredentials")
    }
}

impl ClientForm {
    fn of(scheme: UrlScheme, credentials: StoreCredentials) -> std::result::Result<Self, String> {
        let azure = |credential| Ok(ClientForm::Azure(Arc::new(credential)));
        match (scheme, credentials) {
            (
                UrlScheme::S3,
                StoreCredentials::Keys {
                    key_id,
                    secret_key,
                    token,
                },
            ) => {
                let keys = AwsCredential {
                    key_id,
                    secret_key,
                    token,
                };
                headers::check_keys(&keys)?;
                Ok(ClientForm::S3(Arc::new(keys)))
            }
            (UrlScheme::Gs, StoreCredentials::Token(bearer)) => {
                headers::check(TOKEN, &bearer)?;
                Ok(ClientForm::Google(Arc::new(GcpCredential { bearer })))
            }
            (UrlScheme::Hf, StoreCredentials::Token(token)) => header(&token).map(ClientForm::Hub),
            (UrlScheme::Az, StoreCredentials::Token(token)) => {
                headers::check(TOKEN, &token)?;
                azure(AzureCredential::BearerToken(token))
            }
            (UrlScheme::Az, StoreCredentials::Signature(query)) => {
                azure(AzureCredential::SASToken(query))
            }
            (UrlScheme::Az, StoreCredentials::AccountKey(key)) => {
                // The library's own message might repeat a part of the key.
                let key = AzureAccessKey::try_new(&key);
                let key = key.map_err(|_| "the access_key is no base64".to_owned())?;
                azure(AzureCredential::AccessKey(key))
            }
            (scheme, other) => Err(format!(
                "{other:?} is no credential of {}://",
                scheme.as_str()
            )),
        }
    }
}

fn header(token: &str) -> std::result::Result<HeaderValue, String> {
    headers::check(TOKEN, token)?;
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|_| format!("{TOKEN} cannot be sent"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// A job that gives credentials.
pub struct JobProvider {
    /// The job, for people, such as `process 12 (train.py)`.
    job: String,
    scheme: UrlScheme,
    /// Sends the question to the job, without waiting.
    ask: Box<dyn Fn() + Send + Sync>,
    state: Mutex<ProviderState>,
    /// The number of answers so far.
    answers: watch::Sender<u64>,
}

struct ProviderState {
    credentials: Option<Arc<UsableCredentials>>,
    /// Reason why the job gave none when it was asked last.
    trouble: Option<String>,
    /// Time of the question that the job has not answered.
    asked: Option<Instant>,
    has_ended: bool,
}

impl JobProvider {
    /// Returns a job that has given credentials for stores of this kind. `ask` sends it the question for new ones, and must
    /// not wait.
    ///
    /// # Errors
    /// If they are no credentials of such stores.
    pub fn new(
        job: String,
        scheme: UrlScheme,
        given: &TimedCredentials,
        ask: impl Fn() + Send + Sync + 'static,
    ) -> std::result::Result<Arc<Self>, Error> {
        let credentials = UsableCredentials::new(scheme, given).map_err(|why| {
            let what = format!("the credentials of {job} cannot be used");
            Error::new(ErrorKind::Invalid, what)
                .because(why)
                .with_remedy("check what its credential_provider returns")
        })?;
        Ok(Arc::new(JobProvider {
            job,
            scheme,
            ask: Box::new(ask),
            state: Mutex::new(ProviderState {
                credentials: Some(Arc::new(credentials)),
                trouble: None,
                asked: None,
                has_ended: false,
            }),
            answers: watch::Sender::new(1),
        }))
    }

    fn state(&self) -> MutexGuard<'_, ProviderState> {
        lock(&self.state)
    }

    /// Returns the kind of stores that the credentials are for.
    #[must_use]
    pub fn scheme(&self) -> UrlScheme {
        self.scheme
    }

    /// Takes new credentials of the job.
    pub fn give(&self, given: &TimedCredentials) {
        match UsableCredentials::new(self.scheme, given) {
            Ok(credentials) => self.answer(Some(credentials), None),
            Err(why) => self.fail(why),
        }
    }

    /// Records that the job cannot give credentials now. Those that it gave before serve until they expire.
    pub fn fail(&self, why: String) {
        self.answer(None, Some(why));
    }

    /// Forgets the credentials, because the job gives no more.
    pub fn end(&self) {
        let mut state = self.state();
        (state.has_ended, state.credentials) = (true, None);
        drop(state);
        self.answer(None, Some("it has ended".into()));
    }

    fn answer(&self, credentials: Option<UsableCredentials>, trouble: Option<String>) {
        let mut state = self.state();
        if let Some(credentials) = credentials
            && !state.has_ended
        {
            state.credentials = Some(Arc::new(credentials));
        }
        (state.trouble, state.asked) = (trouble, None);
        drop(state);
        self.answers.send_modify(|answers| *answers += 1);
    }

    /// Returns the credentials, unless they have expired or the job gives none.
    fn usable(&self) -> Option<Arc<UsableCredentials>> {
        let state = self.state();
        let credentials = state.credentials.as_ref()?;
        (!credentials.has_expired()).then(|| credentials.clone())
    }

    /// Notes that the job is asked. Returns `false` if it was asked a moment ago, and has not answered yet.
    fn is_to_be_asked(&self) -> bool {
        let mut state = self.state();
        let is_asked = state
            .asked
            .is_some_and(|when| when.elapsed() < ANSWER_TIMEOUT);
        if !is_asked {
            state.asked = Some(Instant::now());
        }
        !is_asked
    }

    /// Asks the job for credentials, unless it was asked a moment ago, and waits for its answer.
    async fn renew(&self) -> std::result::Result<(), String> {
        let mut answers = self.answers.subscribe();
        if self.is_to_be_asked() {
            (self.ask)();
        }
        let answered = timeout(ANSWER_TIMEOUT, answers.changed()).await;
        let job = &self.job;
        if answered.is_err() {
            let seconds = ANSWER_TIMEOUT.as_secs();
            return Err(format!(
                "the credential_provider of {job} has not returned for {seconds} s"
            ));
        }
        match self.state().trouble.as_ref() {
            Some(trouble) => Err(format!("the credential_provider of {job}: {trouble}")),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for JobProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobProvider of {}", self.job)
    }
}

/// The jobs that give credentials for the same stores; see the module.
#[derive(Debug)]
pub struct CredentialPool {
    scheme: UrlScheme,
    providers: Mutex<Vec<Arc<JobProvider>>>,
    /// The last time that no job gave credentials, and why. The lock is held while jobs are asked, so that they are asked
    /// once for all requests.
    failed: tokio::sync::Mutex<Option<(Instant, String)>>,
}

impl CredentialPool {
    /// Returns a pool without jobs, for stores of this kind.
    #[must_use]
    pub fn new(scheme: UrlScheme) -> Arc<Self> {
        Arc::new(CredentialPool {
            scheme,
            providers: Mutex::default(),
            failed: tokio::sync::Mutex::new(None),
        })
    }

    /// Returns a pool of one job alone.
    #[must_use]
    pub fn of(provider: &Arc<JobProvider>) -> Arc<Self> {
        let pool = CredentialPool::new(provider.scheme);
        pool.admit(provider);
        pool
    }

    /// Adds a job. It leaves when it [ends](JobProvider::end).
    pub fn admit(&self, provider: &Arc<JobProvider>) {
        let mut providers = lock(&self.providers);
        if !providers.iter().any(|known| Arc::ptr_eq(known, provider)) {
            providers.push(provider.clone());
        }
    }

    /// Returns the kind of stores that the credentials are for.
    #[must_use]
    pub fn scheme(&self) -> UrlScheme {
        self.scheme
    }

    /// Returns the jobs that have not ended, in the order in which their credentials are used.
    fn providers(&self) -> MutexGuard<'_, Vec<Arc<JobProvider>>> {
        let mut providers = lock(&self.providers);
        providers.retain(|provider| !provider.state().has_ended);
        providers
    }

    /// Returns the credentials that a request would use now, or `None` if a job has to be asked first.
    pub(crate) fn present(&self) -> Option<Arc<UsableCredentials>> {
        self.providers()
            .iter()
            .find_map(|provider| provider.usable())
    }

    /// Records that a store has refused a request. `before` are the present credentials of the time before the request.
    /// Returns `true` if another try may have other ones.
    pub(crate) fn refuse(&self, before: Option<&Arc<UsableCredentials>>) -> bool {
        let mut providers = self.providers();
        let usable = providers.iter().map(|provider| provider.usable());
        let present = usable
            .enumerate()
            .find_map(|(at, usable)| Some((at, usable?)));
        let (Some(before), Some((at, present))) = (before, present) else {
            return true;
        };
        // If others have come since, the request may have used either.
        if !Arc::ptr_eq(before, &present) {
            return true;
        }
        if present.came.elapsed() < LEAST_AGE {
            return false;
        }
        let provider = providers.remove(at);
        provider.state().credentials = None;
        providers.push(provider);
        true
    }

    /// Returns credentials, for which jobs are asked if necessary.
    pub(crate) async fn get(&self) -> Result<Arc<UsableCredentials>> {
        if let Some(present) = self.present() {
            return Ok(present);
        }
        let mut failed = self.failed.lock().await;
        // Another request may have asked meanwhile.
        if let Some(present) = self.present() {
            return Ok(present);
        }
        if let Some((when, why)) = &*failed
            && when.elapsed() < FAILURE_AGE
        {
            return Err(none_given(why));
        }
        let asked = self.ask_all().await;
        *failed = asked
            .as_ref()
            .err()
            .map(|why| (Instant::now(), why.clone()));
        asked.map_err(|why| none_given(&why))
    }

    async fn ask_all(&self) -> std::result::Result<Arc<UsableCredentials>, String> {
        let providers = self.providers().clone();
        let mut last = Err("all jobs that gave some have ended".to_owned());
        for provider in providers {
            last = provider.renew().await;
            // Another job may have given some meanwhile, too.
            if let Some(present) = self.present() {
                return Ok(present);
            }
        }
        Err(last
            .err()
            .unwrap_or_else(|| "those that were given have expired".into()))
    }

    /// Returns the credentials of S3 for a client.
    pub(crate) fn for_s3(self: &Arc<Self>) -> PoolProvider<AwsCredential> {
        self.provider(|form| match form {
            ClientForm::S3(credential) => Some(credential),
            _ => None,
        })
    }

    /// Returns the credentials of Google for a client.
    pub(crate) fn for_google(self: &Arc<Self>) -> PoolProvider<GcpCredential> {
        self.provider(|form| match form {
            ClientForm::Google(credential) => Some(credential),
            _ => None,
        })
    }

    /// Returns the credentials of Azure for a client.
    pub(crate) fn for_azure(self: &Arc<Self>) -> PoolProvider<AzureCredential> {
        self.provider(|form| match form {
            ClientForm::Azure(credential) => Some(credential),
            _ => None,
        })
    }

    fn provider<C>(self: &Arc<Self>, form: fn(&ClientForm) -> Option<&Arc<C>>) -> PoolProvider<C> {
        PoolProvider {
            pool: self.clone(),
            form,
        }
    }
}

fn none_given(why: &str) -> object_store::Error {
    object_store::Error::Generic {
        store: "jobs",
        source: format!("{NONE_GIVEN}: {why}").into(),
    }
}

/// The credentials of a pool, in the form of one kind of client.
pub(crate) struct PoolProvider<C> {
    pool: Arc<CredentialPool>,
    form: fn(&ClientForm) -> Option<&Arc<C>>,
}

impl<C> fmt::Debug for PoolProvider<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolProvider of {:?}", self.pool)
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync> CredentialProvider for PoolProvider<C> {
    type Credential = C;

    async fn get_credential(&self) -> Result<Arc<C>> {
        let usable = self.pool.get().await?;
        let of_client = (self.form)(&usable.form);
        // All jobs of a pool give credentials of its kind.
        of_client
            .cloned()
            .ok_or_else(|| none_given("they are of another kind"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn keys(id: &str, left: Option<i64>) -> TimedCredentials {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap().as_millis() as i64;
        TimedCredentials {
            credentials: StoreCredentials::Keys {
                key_id: id.into(),
                secret_key: "SECRET".into(),
                token: None,
            },
            expires_ms: left.map(|left| u64::try_from(now + left).unwrap()),
        }
    }

    /// A job whose credentials have this name and expire after some milliseconds. Counts how often it is asked.
    fn job(id: &str, left: Option<i64>) -> (Arc<JobProvider>, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let ask = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let job = JobProvider::new(id.into(), UrlScheme::S3, &keys(id, left), ask);
        (job.unwrap(), asked)
    }

    fn used(pool: &CredentialPool) -> Option<String> {
        match &pool.present()?.form {
            ClientForm::S3(credential) => Some(credential.key_id.clone()),
            _ => None,
        }
    }

    /// Lets the credentials of a pool be as old as those that a store may refuse.
    fn age(pool: &CredentialPool) {
        for provider in pool.providers().iter() {
            let mut state = provider.state();
            let old = state.credentials.as_ref().map(|usable| UsableCredentials {
                form: match &usable.form {
                    ClientForm::S3(credential) => ClientForm::S3(credential.clone()),
                    _ => panic!("the tests have S3 only"),
                },
                end: usable.end,
                came: Instant::now().checked_sub(LEAST_AGE).unwrap(),
            });
            state.credentials = old.map(Arc::new);
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn refused_credentials_are_replaced_by_those_of_another_job() {
        let ((a, _), (b, _)) = (job("a", None), job("b", None));
        let pool = CredentialPool::of(&a);
        pool.admit(&b);
        let before = pool.present();
        assert!(!pool.refuse(before.as_ref()), "they are new");
        age(&pool);
        let before = pool.present();
        assert!(pool.refuse(before.as_ref()));
        assert_eq!(used(&pool).as_deref(), Some("b"));
        // A late answer to a request with the former ones changes nothing.
        assert!(pool.refuse(before.as_ref()));
        assert_eq!(used(&pool).as_deref(), Some("b"));
        // A job that was refused comes last, also with new credentials.
        a.give(&keys("a2", None));
        assert_eq!(used(&pool).as_deref(), Some("b"));
        b.end();
        assert_eq!(used(&pool).as_deref(), Some("a2"));
    }

    #[test]
    fn expired_credentials_are_not_used_and_the_next_job_is_asked() {
        let ((a, asked_a), (b, asked_b)) = (job("a", Some(-1)), job("b", Some(-1)));
        let pool = CredentialPool::of(&a);
        pool.admit(&b);
        assert_eq!(used(&pool), None);
        let got = block_on(async {
            let answers = async {
                while asked_a.load(Ordering::Relaxed) == 0 {
                    tokio::task::yield_now().await;
                }
                a.fail("RuntimeError".into());
                while asked_b.load(Ordering::Relaxed) == 0 {
                    tokio::task::yield_now().await;
                }
                b.give(&keys("b2", Some(60_000)));
            };
            futures_util::join!(pool.get(), answers).0
        });
        assert!(got.is_ok());
        assert_eq!(used(&pool).as_deref(), Some("b2"));
        assert_eq!(asked_a.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn without_a_job_the_reason_is_told() {
        let (a, _) = job("process 12 (train.py)", Some(-1));
        let pool = CredentialPool::of(&a);
        let error = block_on(async {
            let fails = async { a.fail("RuntimeError was raised".into()) };
            futures_util::join!(pool.get(), fails).0
        });
        let error = error.err().unwrap().to_string();
        let expected = "no job gives credentials: the credential_provider of process 12 (train.py): RuntimeError was raised";
        assert!(error.contains(expected), "{error}");
        let pool = CredentialPool::of(&a);
        a.end();
        let error = block_on(pool.get()).err().unwrap().to_string();
        assert!(
            error.contains("all jobs that gave some have ended"),
            "{error}"
        );
    }

    #[test]
    fn credentials_of_another_kind_are_refused_without_being_shown() {
        let given = keys("a", None);
        let error = JobProvider::new("a".into(), UrlScheme::Gs, &given, || {});
        let error = error.err().unwrap().to_string();
        assert!(error.contains("no credential of gs://") && !error.contains("SECRET"));
        let key = TimedCredentials {
            credentials: StoreCredentials::AccountKey("SECRET!".into()),
            expires_ms: None,
        };
        let error = JobProvider::new("a".into(), UrlScheme::Az, &key, || {});
        let error = error.err().unwrap().to_string();
        assert!(error.contains("no base64") && !error.contains("SECRET"));
    }
}
