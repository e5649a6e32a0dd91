//! Clients of stores, made from the settings of the environment.

use std::sync::Arc;

use crate::aws_profile::AwsProfile;
use crate::http_options::{is_plain, options, retry};
use crate::hub::{self, HubStore};
use crate::traffic::{CountingConnector, TrafficCounters};
use crate::variables::{Variables, value};
use coprep_protocol::dataset_url::{DatasetUrl, UrlScheme};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ObjectStore, Result};

pub(crate) const RESTART: &str =
    "start the coordinator anew (coprep stop), which takes the environment of the next job";

/// Returns the settings of the environment that describe a store, as advice.
pub(crate) fn environment(scheme: UrlScheme) -> String {
    let variables = match scheme {
        UrlScheme::S3 => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (or AWS_SKIP_SIGNATURE=true for a public bucket), \
             AWS_REGION and AWS_ENDPOINT_URL"
        }
        UrlScheme::Gs => "GOOGLE_APPLICATION_CREDENTIALS",
        UrlScheme::Az => {
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or another Azure credential"
        }
        UrlScheme::Hf => {
            "HF_TOKEN to a token that may read the dataset, or sign in by `hf auth login`"
        }
        UrlScheme::Http | UrlScheme::Https => {
            return "see whether the URL opens in a browser".into();
        }
    };
    format!("set {variables}, and {RESTART}")
}

/// The variables by which an environment names credentials, in the order in which they are used, and what to call them.
const S3_CREDENTIALS: [(&str, &str); 5] = [
    (
        "AWS_SKIP_SIGNATURE",
        "AWS_SKIP_SIGNATURE: requests are not signed",
    ),
    (
        "AWS_ACCESS_KEY_ID",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE, a web identity",
    ),
    (
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, the role of the container",
    ),
    (
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI, the role of the container",
    ),
];
const GS_CREDENTIALS: [(&str, &str); 5] = [
    (
        "GOOGLE_SKIP_SIGNATURE",
        "GOOGLE_SKIP_SIGNATURE: requests are not signed",
    ),
    (
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT, a key file",
    ),
    (
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_PATH, a key file",
    ),
    ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_APPLICATION_CREDENTIALS, a file",
    ),
];
const AZ_CREDENTIALS: [(&str, &str); 5] = [
    (
        "AZURE_SKIP_SIGNATURE",
        "AZURE_SKIP_SIGNATURE: requests are not signed",
    ),
    ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    (
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_KEY, a shared access signature",
    ),
    (
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_FEDERATED_TOKEN_FILE, a workload identity",
    ),
    ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET"),
];

/// Returns what names the credentials of a store, in words: a variable, or a profile. Never the credentials themselves.
/// Without a name, only the metadata server of a cloud's machine can give some.
pub(crate) fn named_credentials(scheme: UrlScheme, variables: &Variables) -> Option<String> {
    let known: &[(&str, &'static str)] = match scheme {
        UrlScheme::S3 => &S3_CREDENTIALS,
        UrlScheme::Gs => &GS_CREDENTIALS,
        UrlScheme::Az => &AZ_CREDENTIALS,
        UrlScheme::Hf => return hub::named_token(variables),
        UrlScheme::Http | UrlScheme::Https => return None,
    };
    let is_set = |(name, _): &&(&str, &str)| value(name, variables).is_some();
    if let Some((_, text)) = known.iter().find(is_set) {
        return Some((*text).to_owned());
    }
    if scheme != UrlScheme::S3 {
        return None;
    }
    // A profile that cannot be read is an error of the client.
    let profile = profile(variables).ok().flatten();
    profile.and_then(|profile| profile.describe())
}

/// Returns the profile that is used. Variables with credentials come before it.
fn profile(variables: &Variables) -> Result<Option<AwsProfile>> {
    let is_set = |(name, _): &(&str, &str)| value(name, variables).is_some();
    if S3_CREDENTIALS.iter().any(is_set) {
        return Ok(None);
    }
    AwsProfile::read(variables)
}

/// Returns the address of a store, for people.
pub(crate) fn endpoint(url: &DatasetUrl, variables: &Variables) -> String {
    let (names, usual): (&[&str], String) = match url.scheme {
        UrlScheme::S3 => {
            let region = ["AWS_REGION", "AWS_DEFAULT_REGION"];
            let region = region.iter().find_map(|name| value(name, variables));
            let region = region.unwrap_or_else(|| "us-east-1".into());
            (
                &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
                format!("Amazon S3 in {region}"),
            )
        }
        UrlScheme::Gs => (&["GOOGLE_BASE_URL"], "Google Cloud Storage".into()),
        UrlScheme::Az => (
            &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
            "Azure Blob Storage".into(),
        ),
        UrlScheme::Hf => return without_user(&hub::endpoint(variables)),
        UrlScheme::Http | UrlScheme::Https => (&[], url.store()),
    };
    match names.iter().find_map(|name| value(name, variables)) {
        None => usual,
        Some(address) => without_user(&address),
    }
}

/// Returns an address without a user and a password, which a proxy may want in it.
fn without_user(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{host}")
}

/// Returns a client of the store of a URL, whose requests `counters` count. No request is made.
pub(crate) fn client(
    url: &DatasetUrl,
    variables: &Variables,
    counters: &Arc<TrafficCounters>,
) -> Result<Arc<dyn ObjectStore>> {
    let connector = CountingConnector(counters.clone());
    let bucket = &url.bucket;
    Ok(match url.scheme {
        UrlScheme::S3 => Arc::new(s3(bucket, variables, connector)?),
        UrlScheme::Gs => Arc::new(gs(bucket, variables, connector)?),
        UrlScheme::Az => Arc::new(az(bucket, variables, connector)?),
        UrlScheme::Hf => Arc::new(HubStore::new(bucket, variables, &connector)?),
        UrlScheme::Http | UrlScheme::Https => Arc::new(
            HttpBuilder::new()
                .with_url(url.store())
                .with_client_options(options(url.scheme == UrlScheme::Http))
                .with_retry(retry())
                .with_http_connector(connector)
                .build()?,
        ),
    })
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

fn s3(bucket: &str, variables: &Variables, connector: CountingConnector) -> Result<AmazonS3> {
    let builder = configured(AmazonS3Builder::from_env(), variables, |b, key, value| {
        b.with_config(key, value)
    });
    let builder = match profile(variables)? {
        Some(profile) => profile.apply(builder)?,
        None => builder,
    };
    let keys = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = keys.iter().find_map(|key| builder.get_config_value(key));
    let is_plain = is_plain(endpoint.as_deref());
    builder
        .with_client_options(options(is_plain))
        .with_bucket_name(bucket)
        .with_retry(retry())
        .with_http_connector(connector)
        .build()
}

fn gs(
    bucket: &str,
    variables: &Variables,
    connector: CountingConnector,
) -> Result<GoogleCloudStorage> {
    let from_env = GoogleCloudStorageBuilder::from_env();
    let builder = configured(from_env, variables, |b, key, value| {
        b.with_config(key, value)
    });
    let base = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    builder
        .with_client_options(options(is_plain(base.as_deref())))
        .with_bucket_name(bucket)
        .with_retry(retry())
        .with_http_connector(connector)
        .build()
}

fn az(
    container: &str,
    variables: &Variables,
    connector: CountingConnector,
) -> Result<MicrosoftAzure> {
    let from_env = MicrosoftAzureBuilder::from_env();
    let builder = configured(from_env, variables, |b, key, value| {
        b.with_config(key, value)
    });
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let emulator = builder.get_config_value(&AzureConfigKey::UseEmulator);
    // The emulator speaks plain HTTP.
    let is_plain = is_plain(endpoint.as_deref()) || emulator.as_deref() == Some("true");
    builder
        .with_client_options(options(is_plain))
        .with_container_name(container)
        .with_retry(retry())
        .with_http_connector(connector)
        .build()
}
