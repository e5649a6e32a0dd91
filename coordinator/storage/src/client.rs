//! Clients of stores, made from the settings of the environment.

use std::time::Duration;

use coprep_protocol::dataset_url::{DatasetUrl, UrlScheme};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, Result, RetryConfig};

/// Longest time to connect, and longest time without a byte.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The library's own retries. They are short, because they use the credentials of the first try.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections that are kept for each host: as many as reads that may be under way. Each further one would be opened
/// anew for each read.
const IDLE_CONNECTIONS: usize = 512;

/// Variables beside those of the process's environment.
pub(crate) type Variables = Vec<(String, String)>;

pub(crate) const RESTART: &str =
    "start the coordinator anew (coprep stop), which takes the environment of the next job";

/// Returns the settings of the environment that describe a store, as advice.
pub(crate) fn environment(scheme: UrlScheme) -> String {
    let variables = match scheme {
        UrlScheme::S3 => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true for a public bucket), AWS_REGION and \
             AWS_ENDPOINT_URL"
        }
        UrlScheme::Gs => "GOOGLE_APPLICATION_CREDENTIALS",
        UrlScheme::Az => {
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or another Azure credential"
        }
        UrlScheme::Http | UrlScheme::Https => {
            return "see whether the URL opens in a browser".into();
        }
    };
    format!("set {variables}, and {RESTART}")
}

/// The variables by which an environment names credentials of S3.
const S3_CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

/// Returns `true` if nothing names credentials, so that only the metadata server of a cloud's machine could give some.
pub(crate) fn lacks_credentials(scheme: UrlScheme, variables: &Variables) -> bool {
    let is_set = |name: &&str| {
        std::env::var_os(name).is_some() || variables.iter().any(|(known, _)| known == name)
    };
    scheme == UrlScheme::S3 && !S3_CREDENTIALS.iter().any(is_set)
}

/// Returns a client of the store of a URL. No request is made.
pub(crate) fn client(url: &DatasetUrl, variables: &Variables) -> Result<Box<dyn ObjectStore>> {
    let bucket = &url.bucket;
    Ok(match url.scheme {
        UrlScheme::S3 => Box::new(s3(bucket, variables)?),
        UrlScheme::Gs => Box::new(gs(bucket, variables)?),
        UrlScheme::Az => Box::new(az(bucket, variables)?),
        UrlScheme::Http | UrlScheme::Https => Box::new(
            HttpBuilder::new()
                .with_url(url.store())
                .with_client_options(options(url.scheme == UrlScheme::Http))
                .with_retry(retry())
                .build()?,
        ),
    })
}

fn options(is_plain: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(is_plain)
        .with_connect_timeout(CONNECT_TIMEOUT)
        // A large object may take longer than any fixed time, so only silence counts.
        .with_timeout_disabled()
        .with_read_timeout(READ_TIMEOUT)
        .with_pool_max_idle_per_host(IDLE_CONNECTIONS)
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: RETRIES,
        retry_timeout: RETRY_TIMEOUT,
    }
}

/// Applies variables to a builder. Those that are no setting of its store are left out, as in an environment.
fn configured<B, K: std::str::FromStr>(
    builder: B,
    variables: &Variables,
    with: impl Fn(B, K, &str) -> B,
) -> B {
    variables.iter().fold(builder, |builder, (name, value)| {
        match name.to_ascii_lowercase().parse() {
            Ok(key) => with(builder, key, value),
            Err(_) => builder,
        }
    })
}

fn s3(bucket: &str, variables: &Variables) -> Result<AmazonS3> {
    let builder = configured(AmazonS3Builder::from_env(), variables, |b, key, value| {
        b.with_config(key, value)
    });
    let keys = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = keys.iter().find_map(|key| builder.get_config_value(key));
    // Whoever names an endpoint without TLS wants it so.
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    builder
        .with_client_options(options(is_plain))
        .with_bucket_name(bucket)
        .with_retry(retry())
        .build()
}

fn gs(bucket: &str, variables: &Variables) -> Result<GoogleCloudStorage> {
    let from_env = GoogleCloudStorageBuilder::from_env();
    let builder = configured(from_env, variables, |b, key, value| {
        b.with_config(key, value)
    });
    builder
        .with_client_options(options(false))
        .with_bucket_name(bucket)
        .with_retry(retry())
        .build()
}

fn az(container: &str, variables: &Variables) -> Result<MicrosoftAzure> {
    let from_env = MicrosoftAzureBuilder::from_env();
    let builder = configured(from_env, variables, |b, key, value| {
        b.with_config(key, value)
    });
    builder
        .with_client_options(options(false))
        .with_container_name(container)
        .with_retry(retry())
        .build()
}
