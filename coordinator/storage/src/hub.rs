//! Datasets of the Hugging Face Hub: `hf://datasets/OWNER/NAME@REVISION/path`.
//!
//! The Hub is a web server with a listing. Its clients would download whole files into a cache of their own, so only the
//! listing is done here, and `object_store` reads ranges as from every web server. The Hub sends each read on to the place
//! where the bytes lie. The token does not go there: the HTTP client leaves it out if the host is another one.
//!
//! A branch may move on while a dataset is read. So a listing first takes the commit that the branch stands for, gives it
//! to its objects as their ETag, and the objects are read from that commit, in which nothing ever changes.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use chrono::DateTime;
use coprep_protocol::dataset_url::UrlScheme;
use coprep_shared_memory::lock::lock;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use object_store::{
    ClientOptions, CopyOptions, Error, GetOptions, GetResult, HeaderMap, HeaderValue, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::connector::{StoreConnector, read_all};
use crate::file::read_text;
use crate::http_options::{is_plain, options, retry};
use crate::job_credentials::{CredentialPool, UsableCredentials};
use crate::lap::{Lap, SAME_PAGE};
use crate::odd_keys;
use crate::variables::Variables;

const NAME: &str = "Hub";
const USUAL_ENDPOINT: &str = "https://huggingface.co";
const USUAL_REVISION: &str = "main";
/// The variables that hold a token. The second one is the older name.
const TOKEN_VARIABLES: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// Returns the address of the Hub, or of the server that stands in for it.
pub(crate) fn endpoint(variables: &Variables) -> String {
    let named = variables
        .value("HF_ENDPOINT")
        .filter(|address| !address.is_empty());
    let address = named.unwrap_or_else(|| USUAL_ENDPOINT.to_owned());
    address.trim_end_matches('/').to_owned()
}

/// A token, and where it was found.
struct Token {
    text: String,
    place: String,
}

/// Returns the token of the environment, or the one that signing in has written, as Hugging Face's own tools do. Returns
/// `None` if there is none.
fn token(variables: &Variables) -> Result<Option<Token>> {
    let trimmed = |text: String| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    for name in TOKEN_VARIABLES {
        if let Some(text) = variables.value(name).and_then(trimmed) {
            let place = name.to_owned();
            return Ok(Some(Token { text, place }));
        }
    }
    let Some(path) = token_file(variables) else {
        return Ok(None);
    };
    let place = format!("the token in {}", path.display());
    match read_text(&path) {
        Ok(text) => Ok(trimmed(text).map(|text| Token { text, place })),
        // Public datasets are read without a token.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        Err(e) => Err(failed(format!(
            "{place} (HF_TOKEN_PATH) cannot be read: {e}"
        ))),
    }
}

fn token_file(variables: &Variables) -> Option<PathBuf> {
    let path = |name: &str| {
        let text = variables.value(name).filter(|text| !text.is_empty());
        text.map(PathBuf::from)
    };
    let home = || {
        let cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?;
        Some(cache.join("huggingface"))
    };
    path("HF_TOKEN_PATH").or_else(|| Some(path("HF_HOME").or_else(home)?.join("token")))
}

/// Returns where the token is, in words, or `None` if there is none.
pub(crate) fn named_token(variables: &Variables) -> Option<String> {
    // A file that cannot be read is an error of the client.
    let token = token(variables).ok().flatten();
    token.map(|token| token.place)
}

/// A dataset of the Hub.
#[derive(Clone, Debug)]
pub(crate) struct HubStore(Arc<HubDataset>);

#[derive(Debug)]
struct HubDataset {
    endpoint: String,
    /// Path of the dataset, such as `datasets/owner/name`.
    dataset: String,
    /// Branch, tag or commit, as it is written in a URL.
    revision: String,
    connector: StoreConnector,
    clients: HubClients,
}

/// The clients of a dataset. Their token is in a header of each request.
#[derive(Debug)]
enum HubClients {
    /// With the token of the variables.
    Named(Arc<HttpClients>),
    /// With the tokens that jobs give. The clients are those of the last token.
    Given {
        pool: Arc<CredentialPool>,
        last: Mutex<Option<(Arc<UsableCredentials>, Arc<HttpClients>)>>,
    },
}

#[derive(Debug)]
struct HttpClients {
    /// Asks for commits and listings.
    http: HttpClient,
    /// Reads files, below the address of the dataset.
    files: HttpStore,
}

impl HttpClients {
    /// Makes clients. `header` has the token, if there is one.
    fn new(
        endpoint: &str,
        dataset: &str,
        header: Option<HeaderValue>,
        connector: &StoreConnector,
    ) -> Result<Arc<Self>> {
        let options = client_options(endpoint, header)?;
        Ok(Arc::new(HttpClients {
            http: connector.connect(&options)?,
            files: HttpBuilder::new()
                .with_url(format!("{endpoint}/{dataset}"))
                .with_client_options(options)
                .with_retry(retry())
                .with_http_connector(connector.clone())
                .build()?,
        }))
    }
}

/// The answer of the Hub about a revision.
#[derive(Deserialize)]
struct HubRevision {
    sha: String,
}

/// An entry of a listing.
#[derive(Deserialize)]
struct HubEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
}

impl HubStore {
    /// Makes the client of a dataset, such as `datasets/owner/name@main`. No request is made.
    pub(crate) fn new(
        dataset: &str,
        variables: &Variables,
        connector: &StoreConnector,
    ) -> Result<Self> {
        let (dataset, revision) = dataset.split_once('@').unwrap_or((dataset, USUAL_REVISION));
        let endpoint = endpoint(variables);
        let clients = if let Some(pool) = variables.pool(UrlScheme::Hf) {
            HubClients::Given {
                pool: pool.clone(),
                last: Mutex::new(None),
            }
        } else {
            let header = named_header(variables)?;
            HubClients::Named(HttpClients::new(&endpoint, dataset, header, connector)?)
        };
        Ok(HubStore(Arc::new(HubDataset {
            clients,
            connector: connector.clone(),
            endpoint,
            dataset: dataset.to_owned(),
            revision: revision.to_owned(),
        })))
    }
}

/// Returns the header with the token that the variables name, or `None` if they name none.
fn named_header(variables: &Variables) -> Result<Option<HeaderValue>> {
    let Some(token) = token(variables)? else {
        return Ok(None);
    };
    let header = HeaderValue::try_from(format!("Bearer {}", token.text));
    let mut header = header.map_err(|_| {
        let place = token.place;
        failed(format!(
            "{place} is not a token: it has characters that a header cannot have"
        ))
    })?;
    header.set_sensitive(true);
    Ok(Some(header))
}

/// Returns the options of the HTTP clients, with the token in a header of each request.
fn client_options(endpoint: &str, header: Option<HeaderValue>) -> Result<ClientOptions> {
    let options = options(is_plain(Some(endpoint)));
    let Some(header) = header else {
        return Ok(options);
    };
    let headers = HeaderMap::from_iter([("authorization".parse().map_err(unexpected)?, header)]);
    Ok(options.with_default_headers(headers))
}

fn failed(text: String) -> Error {
    Error::Generic {
        store: NAME,
        source: text.into(),
    }
}

fn unexpected(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic {
        store: NAME,
        source: Box::new(error),
    }
}

impl HubDataset {
    /// Returns the clients for one request. A job may be asked for a token.
    async fn clients(&self) -> Result<Arc<HttpClients>> {
        let (pool, last) = match &self.clients {
            HubClients::Named(clients) => return Ok(clients.clone()),
            HubClients::Given { pool, last } => (pool, last),
        };
        let given = pool.get().await?;
        let mut last = lock(last);
        if let Some((before, clients)) = &*last
            && Arc::ptr_eq(before, &given)
        {
            return Ok(clients.clone());
        }
        let header = given.header().cloned();
        let clients = HttpClients::new(&self.endpoint, &self.dataset, header, &self.connector)?;
        *last = Some((given, clients.clone()));
        Ok(clients)
    }

    /// Returns the commit that the revision stands for now.
    async fn commit(&self) -> Result<String> {
        let (endpoint, dataset, revision) = (&self.endpoint, &self.dataset, &self.revision);
        let url = format!("{endpoint}/api/{dataset}/revision/{revision}");
        let found: HubRevision = parsed(self.ask(&url).await?).await?;
        // It becomes part of paths.
        let is_commit = !found.sha.is_empty() && found.sha.bytes().all(|b| b.is_ascii_hexdigit());
        is_commit
            .then_some(found.sha)
            .ok_or_else(|| failed("it gives no commit for the revision".into()))
    }

    /// Begins to list the files below a folder.
    async fn pages(self: Arc<Self>, folder: String) -> Result<HubPages> {
        let commit = self.commit().await?;
        let (endpoint, dataset) = (&self.endpoint, &self.dataset);
        let tree = format!("{endpoint}/api/{dataset}/tree/{commit}");
        Ok(HubPages {
            next: Some(below(&tree, &folder)?),
            dataset: self,
            commit,
            lap: Lap::default(),
        })
    }

    /// Asks the Hub's interface. Returns the answer if it is a good one.
    async fn ask(&self, url: &str) -> Result<HttpResponse> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().map_err(unexpected)?;
        let clients = self.clients().await?;
        let answer = clients.http.execute(request).await.map_err(unexpected)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = header(&answer, "x-error-code");
        if code == Some("EntryNotFound") {
            return Err(Error::NotFound {
                path: url.to_owned(),
                source: "EntryNotFound".into(),
            });
        }
        // The error has the form of the library's own ones, which `answer` reads.
        let code = code.map(|code| format!(": <Code>{code}</Code>"));
        let (status, code) = (answer.status(), code.unwrap_or_default());
        Err(failed(format!("status code: {status}{code}")))
    }
}

/// The pages of a listing.
struct HubPages {
    dataset: Arc<HubDataset>,
    commit: String,
    next: Option<Url>,
    /// The pages so far.
    lap: Lap,
}

impl HubPages {
    /// Returns the files of the next page, or `None` after the last one.
    async fn next(&mut self) -> Result<Option<Vec<Result<ObjectMeta>>>> {
        let Some(page) = self.next.take() else {
            return Ok(None);
        };
        if self.lap.is_closed_by(page.as_str()) {
            return Err(failed(SAME_PAGE.into()));
        }
        let answer = match self.dataset.ask(page.as_str()).await {
            Ok(answer) => answer,
            // A folder that does not exist is empty, as in a bucket.
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        self.next = next_page(&page, &answer)?;
        let entries: Vec<HubEntry> = parsed(answer).await?;
        let files = entries.iter().filter(|entry| entry.kind == "file");
        Ok(Some(files.map(|e| object(e, &self.commit)).collect()))
    }
}

fn header<'a>(answer: &'a HttpResponse, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

async fn parsed<T: DeserializeOwned>(answer: HttpResponse) -> Result<T> {
    let bytes = read_all(answer).await.map_err(unexpected)?;
    serde_json::from_slice(&bytes).map_err(unexpected)
}

/// Returns the URL of the page that follows another one in a listing, or `None` after the last page.
fn next_page(page: &Url, answer: &HttpResponse) -> Result<Option<Url>> {
    let links = header(answer, "link").unwrap_or_default();
    let is_next = |link: &&str| link.contains("rel=\"next\"");
    let Some(link) = links.split(',').find(is_next) else {
        return Ok(None);
    };
    let target = link.split_once('<').and_then(|(_, t)| t.split_once('>'));
    let (target, _) = target.ok_or_else(|| failed("it names no next page of a listing".into()))?;
    let target = page.join(target).map_err(unexpected)?;
    // The server stays the same, because the token must go to no other one.
    let mut next = page.clone();
    next.set_path(target.path());
    next.set_query(target.query());
    Ok(Some(next))
}

/// Returns the URL of the listing of everything below a folder.
fn below(tree: &str, folder: &str) -> Result<Url> {
    let mut url = Url::parse(tree).map_err(unexpected)?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.extend(folder.split('/').filter(|part| !part.is_empty()));
    }
    url.set_query(Some("recursive=true&expand=false"));
    Ok(url)
}

fn object(entry: &HubEntry, commit: &str) -> Result<ObjectMeta> {
    Ok(ObjectMeta {
        location: Path::parse(
            odd_keys::stand_in(&entry.path)
                .as_ref()
                .unwrap_or(&entry.path),
        )?,
        // The Hub tells it only for few objects at a time, and nobody asks for it.
        last_modified: DateTime::UNIX_EPOCH,
        size: entry.size,
        e_tag: Some(format!("\"{commit}\"")),
        version: None,
    })
}

impl fmt::Display for HubStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

fn not_written() -> Error {
    Error::NotImplemented {
        operation: "writing".into(),
        implementer: NAME.into(),
    }
}

#[async_trait]
impl ObjectStore for HubStore {
    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        let etag = match options.if_match.take() {
            Some(etag) => etag,
            None => self.0.commit().await?,
        };
        let commit = etag.trim_matches('"').to_owned();
        let parts = ["resolve", &commit].into_iter().map(Into::into);
        let path = Path::from_iter(parts.chain(location.parts()));
        let clients = self.0.clients().await?;
        let mut got = clients.files.get_opts(&path, options).await?;
        got.meta.location = location.clone();
        // The answer has the ETag of the place to which the read was sent on.
        got.meta.e_tag = Some(format!("\"{commit}\""));
        Ok(got)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let folder = prefix
            .map(|path| path.as_ref().to_owned())
            .unwrap_or_default();
        // Page by page, since nobody knows how many there are.
        let next = |mut pages: HubPages| async move {
            let files = pages.next().await?;
            Ok::<_, Error>(files.map(|files| (stream::iter(files), pages)))
        };
        stream::once(self.0.clone().pages(folder))
            .map_ok(move |pages| stream::try_unfold(pages, next).try_flatten())
            .try_flatten()
            .boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(Error::NotImplemented {
            operation: "listing one folder only".into(),
            implementer: NAME.into(),
        })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(not_written())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_written())
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        locations.map(|_| Err(not_written())).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_written())
    }
}
