//! Clients of stores, made from the variables of a process or of a job.

use std::path::Path;
use std::sync::Arc;

use crate::aws_profile::AwsProfile;
use crate::connector::StoreConnector;
use crate::file::{check_text, read_text};
use crate::headers;
use crate::http_options::{is_plain, options, retry};
use crate::hub::{self, HubStore};
use crate::traffic::TrafficCounters;
use crate::variables::Variables;
use coprep_protocol::dataset_url::{DatasetUrl, UrlScheme};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ObjectStore, Result};

/// File below a home with the credentials of `gcloud auth application-default login`.
const GOOGLE_SIGN_IN: &str = ".config/gcloud/application_default_credentials.json";

/// End of the names of directory buckets of S3.
const DIRECTORY_BUCKET: &str = "--x-s3";

/// The published account of Azurite, with its key, and its usual address.
const EMULATOR_ACCOUNT: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const EMULATOR_ADDRESS: &str = "http://127.0.0.1:10000";

/// The place to set variables in, as advice.
pub(crate) const IN_JOB: &str = "in the environment of the job";

/// Returns the variables that describe a store, as advice.
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
    format!("set {variables} {IN_JOB}")
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
    if variables.pool(scheme).is_some() {
        return Some("the credential_provider of a job".into());
    }
    let known: &[(&str, &'static str)] = match scheme {
        UrlScheme::S3 => &S3_CREDENTIALS,
        UrlScheme::Gs => &GS_CREDENTIALS,
        UrlScheme::Az => &AZ_CREDENTIALS,
        UrlScheme::Hf => return hub::named_token(variables),
        UrlScheme::Http | UrlScheme::Https => return None,
    };
    let is_set = |(name, _): &&(&str, &str)| variables.value(name).is_some();
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
    let is_set = |(name, _): &(&str, &str)| variables.value(name).is_some();
    if variables.pool(UrlScheme::S3).is_some() || S3_CREDENTIALS.iter().any(is_set) {
        return Ok(None);
    }
    AwsProfile::read(variables)
}

/// Returns the address of a store, for people.
pub(crate) fn endpoint(url: &DatasetUrl, variables: &Variables) -> String {
    let (names, usual): (&[&str], String) = match url.scheme {
        UrlScheme::S3 => {
            let region = ["AWS_REGION", "AWS_DEFAULT_REGION"];
            let region = region.iter().find_map(|name| variables.value(name));
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
    match names.iter().find_map(|name| variables.value(name)) {
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

/// The variable that names a file whose text is sent in a header as it is.
const CONTAINER_TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

/// The variables that name files which the library reads by itself. It would wait for a pipe, and read a device for ever.
const FILES: [(UrlScheme, &str); 7] = [
    (UrlScheme::S3, "AWS_WEB_IDENTITY_TOKEN_FILE"),
    (UrlScheme::S3, CONTAINER_TOKEN_FILE),
    (UrlScheme::Gs, "GOOGLE_SERVICE_ACCOUNT"),
    (UrlScheme::Gs, "GOOGLE_SERVICE_ACCOUNT_PATH"),
    (UrlScheme::Gs, "SERVICE_ACCOUNT"),
    (UrlScheme::Gs, "GOOGLE_APPLICATION_CREDENTIALS"),
    (UrlScheme::Az, "AZURE_FEDERATED_TOKEN_FILE"),
];

/// Refuses files with credentials that are no regular files of a few bytes, or that the library cannot send.
fn check_files(scheme: UrlScheme, variables: &Variables) -> Result<()> {
    // Credentials that a job gives by itself are in no file.
    if variables.pool(scheme).is_some() {
        return Ok(());
    }
    for (_, name) in FILES.iter().filter(|(of, _)| *of == scheme) {
        let Some(path) = variables.value(name) else {
            continue;
        };
        check_text(Path::new(&path)).map_err(|e| object_store::Error::Generic {
            store: "credentials",
            source: format!("{path} ({name}) cannot be read: {e}").into(),
        })?;
        if *name == CONTAINER_TOKEN_FILE
            && let Ok(text) = read_text(Path::new(&path))
        {
            check_texts(&[(name, Some(text))])?;
        }
    }
    Ok(())
}

/// Refuses values of variables that no header can have.
fn check_texts(values: &[(&str, Option<String>)]) -> Result<()> {
    check(headers::check, values)
}

/// Refuses values of variables that are no addresses.
fn check_addresses(values: &[(&str, Option<String>)]) -> Result<()> {
    check(headers::check_address, values)
}

fn check(
    refuse: fn(&str, &str) -> std::result::Result<(), String>,
    values: &[(&str, Option<String>)],
) -> Result<()> {
    let given = values
        .iter()
        .filter_map(|(name, value)| Some((*name, value.as_deref()?)));
    for (name, value) in given {
        refuse(name, value).map_err(|why| object_store::Error::Generic {
            store: "variables",
            source: why.into(),
        })?;
    }
    Ok(())
}

/// Returns a client of the store of a URL, whose requests `counters` count. No request is made.
pub(crate) fn client(
    url: &DatasetUrl,
    variables: &Variables,
    counters: &Arc<TrafficCounters>,
) -> Result<Arc<dyn ObjectStore>> {
    check_files(url.scheme, variables)?;
    let bucket = &url.bucket;
    let open = || StoreConnector::Open(counters.clone());
    Ok(match url.scheme {
        UrlScheme::S3 => Arc::new(s3(bucket, variables, counters)?),
        UrlScheme::Gs => Arc::new(gs(bucket, variables, counters)?),
        UrlScheme::Az => Arc::new(az(bucket, variables, counters)?),
        UrlScheme::Hf => Arc::new(HubStore::new(bucket, variables, &open())?),
        UrlScheme::Http | UrlScheme::Https => Arc::new(
            HttpBuilder::new()
                .with_url(url.store())
                .with_client_options(options(url.scheme == UrlScheme::Http))
                .with_retry(retry())
                .with_http_connector(open())
                .build()?,
        ),
    })
}

/// Returns `false` if listings of a store are known to be in another order than that of the keys.
pub(crate) fn may_list_in_order(url: &DatasetUrl, variables: &Variables) -> bool {
    match url.scheme {
        UrlScheme::S3 => {
            let builder =
                variables.configured("AWS_", AmazonS3Builder::from_env, |b, key, value| {
                    AmazonS3Builder::with_config(b, key, value)
                });
            let is_express = builder.get_config_value(&AmazonS3ConfigKey::S3Express);
            is_express.as_deref() == Some("false") && !url.bucket.ends_with(DIRECTORY_BUCKET)
        }
        // The files of a WebDAV folder come as the server finds them.
        UrlScheme::Http | UrlScheme::Https => false,
        // The Hub promises no order, and cannot begin a listing at a key.
        UrlScheme::Hf => false,
        UrlScheme::Gs | UrlScheme::Az => true,
    }
}

fn s3(bucket: &str, variables: &Variables, counters: &Arc<TrafficCounters>) -> Result<AmazonS3> {
    let with = |b: AmazonS3Builder, key, value: &str| b.with_config(key, value);
    let builder = variables.configured("AWS_", AmazonS3Builder::from_env, with);
    let builder = match profile(variables)? {
        Some(profile) => profile.apply(builder, variables)?,
        None => builder,
    };
    let builder = match variables.pool(UrlScheme::S3) {
        Some(pool) => builder.with_credentials(Arc::new(pool.for_s3())),
        None => builder,
    };
    let value = |key| builder.get_config_value(&key);
    check_texts(&[
        ("AWS_ACCESS_KEY_ID", value(AmazonS3ConfigKey::AccessKeyId)),
        (
            "AWS_SECRET_ACCESS_KEY",
            value(AmazonS3ConfigKey::SecretAccessKey),
        ),
        ("AWS_SESSION_TOKEN", value(AmazonS3ConfigKey::Token)),
        ("AWS_REGION", value(AmazonS3ConfigKey::Region)),
        (
            "AWS_DEFAULT_REGION",
            value(AmazonS3ConfigKey::DefaultRegion),
        ),
    ])?;
    let endpoint = value(AmazonS3ConfigKey::Endpoint);
    let s3_endpoint = value(AmazonS3ConfigKey::S3Endpoint);
    check_addresses(&[
        ("AWS_ENDPOINT_URL_S3", s3_endpoint.clone()),
        ("AWS_ENDPOINT_URL", endpoint.clone()),
        (
            "AWS_ENDPOINT_URL_STS",
            value(AmazonS3ConfigKey::StsEndpoint),
        ),
        (
            "AWS_METADATA_ENDPOINT",
            value(AmazonS3ConfigKey::MetadataEndpoint),
        ),
        (
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            value(AmazonS3ConfigKey::ContainerCredentialsFullUri),
        ),
    ])?;
    let is_plain = is_plain(s3_endpoint.or(endpoint).as_deref());
    builder
        .with_client_options(options(is_plain))
        .with_bucket_name(bucket)
        .with_retry(retry())
        .with_http_connector(StoreConnector::Signed(counters.clone()))
        .build()
}

fn gs(
    bucket: &str,
    variables: &Variables,
    counters: &Arc<TrafficCounters>,
) -> Result<GoogleCloudStorage> {
    let with = |b: GoogleCloudStorageBuilder, key, value: &str| b.with_config(key, value);
    let builder = variables.configured("GOOGLE_", GoogleCloudStorageBuilder::from_env, with);
    let builder = match variables.pool(UrlScheme::Gs) {
        Some(pool) => builder.with_credentials(Arc::new(pool.for_google())),
        None if variables.is_complete() => with_google_files(builder, variables)?,
        None => builder,
    };
    let base = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    check_addresses(&[("GOOGLE_BASE_URL", base.clone())])?;
    let is_plain = is_plain(base.as_deref());
    builder
        .with_client_options(options(is_plain))
        .with_bucket_name(bucket)
        .with_retry(retry())
        .with_http_connector(StoreConnector::Signed(counters.clone()))
        .build()
}

/// Names the file with credentials that the library would find by this process's environment, where a job has its own.
fn with_google_files(
    builder: GoogleCloudStorageBuilder,
    variables: &Variables,
) -> Result<GoogleCloudStorageBuilder> {
    let keys = [
        GoogleConfigKey::ServiceAccount,
        GoogleConfigKey::ServiceAccountKey,
        GoogleConfigKey::ApplicationCredentials,
    ];
    if keys
        .iter()
        .any(|key| builder.get_config_value(key).is_some())
    {
        return Ok(builder);
    }
    if let Some(path) = variables.value("SERVICE_ACCOUNT") {
        return Ok(builder.with_service_account_path(path));
    }
    let below = |home: String| Some(Path::new(&home).join(GOOGLE_SIGN_IN)).filter(|f| f.exists());
    let own = variables.value("HOME").and_then(below);
    let others = std::env::var("HOME").ok().and_then(below);
    match (own.as_deref().and_then(Path::to_str), others) {
        (Some(file), _) => Ok(builder.with_application_credentials(file)),
        // The library would sign in with the file of another home, which the job does not know.
        (None, Some(_)) if named_credentials(UrlScheme::Gs, variables).is_none() => {
            Err(object_store::Error::Generic {
                store: "GCS",
                source: "the job has no credentials, and its HOME is not that of the coordinator"
                    .into(),
            })
        }
        (None, _) => Ok(builder),
    }
}

fn az(
    container: &str,
    variables: &Variables,
    counters: &Arc<TrafficCounters>,
) -> Result<MicrosoftAzure> {
    let with = |b: MicrosoftAzureBuilder, key, value: &str| b.with_config(key, value);
    let builder = variables.configured("AZURE_", MicrosoftAzureBuilder::from_env, with);
    let builder = if variables.is_complete() {
        check_azure_program(&builder, variables)?;
        with_azure_addresses(builder, variables)
    } else {
        builder
    };
    let builder = match variables.pool(UrlScheme::Az) {
        Some(pool) => builder.with_credentials(Arc::new(pool.for_azure())),
        None => builder,
    };
    let value = |key| builder.get_config_value(&key);
    check_texts(&[
        (
            "AZURE_STORAGE_ACCOUNT_NAME",
            value(AzureConfigKey::AccountName),
        ),
        (
            "AZURE_STORAGE_ACCOUNT_KEY",
            value(AzureConfigKey::AccessKey),
        ),
        ("AZURE_STORAGE_SAS_KEY", value(AzureConfigKey::SasKey)),
        ("AZURE_STORAGE_TOKEN", value(AzureConfigKey::Token)),
    ])?;
    let endpoint = value(AzureConfigKey::Endpoint);
    check_addresses(&[
        ("AZURE_STORAGE_ENDPOINT", endpoint.clone()),
        ("AZURE_AUTHORITY_HOST", value(AzureConfigKey::AuthorityHost)),
        ("IDENTITY_ENDPOINT", value(AzureConfigKey::MsiEndpoint)),
    ])?;
    // The emulator speaks plain HTTP.
    let is_plain = is_plain(endpoint.as_deref()) || is_emulated(&builder);
    builder
        .with_client_options(options(is_plain))
        .with_container_name(container)
        .with_retry(retry())
        .with_http_connector(StoreConnector::Signed(counters.clone()))
        .build()
}

fn is_emulated(builder: &MicrosoftAzureBuilder) -> bool {
    let emulator = builder.get_config_value(&AzureConfigKey::UseEmulator);
    emulator.as_deref() == Some("true")
}

/// Refuses a job that signs in by `az` with another folder than this process, whose environment `az` would find.
fn check_azure_program(builder: &MicrosoftAzureBuilder, variables: &Variables) -> Result<()> {
    const FOLDER: &str = "AZURE_CONFIG_DIR";
    let program = builder.get_config_value(&AzureConfigKey::UseAzureCli);
    let is_used = program.as_deref() == Some("true");
    if is_used && variables.value(FOLDER) != std::env::var(FOLDER).ok() {
        return Err(object_store::Error::Generic {
            store: "Azure",
            source: format!("{FOLDER} is not that of the coordinator, which runs az").into(),
        });
    }
    Ok(())
}

/// Names the addresses that the library would find by this process's environment.
fn with_azure_addresses(
    mut builder: MicrosoftAzureBuilder,
    variables: &Variables,
) -> MicrosoftAzureBuilder {
    // The service that gives the role of this machine is the same for all its processes.
    if let Ok(address) = std::env::var("IDENTITY_ENDPOINT") {
        builder = builder.with_msi_endpoint(address);
    }
    if !is_emulated(&builder) {
        return builder;
    }
    // The library reads the address of the emulator from the environment of its process, so a job's emulator is described
    // as the account that it is.
    let value = |key| builder.get_config_value(&key);
    let account = value(AzureConfigKey::AccountName).unwrap_or_else(|| EMULATOR_ACCOUNT.into());
    let is_signed = [
        AzureConfigKey::AccessKey,
        AzureConfigKey::Token,
        AzureConfigKey::SasKey,
    ]
    .into_iter()
    .any(|key| value(key).is_some());
    let address = variables.value("AZURITE_BLOB_STORAGE_URL");
    let address = address.unwrap_or_else(|| EMULATOR_ADDRESS.into());
    let endpoint = format!("{}/{account}", address.trim_end_matches('/'));
    let builder = builder
        .with_use_emulator(false)
        .with_account(account)
        .with_endpoint(endpoint);
    if is_signed {
        builder
    } else {
        builder.with_access_key(EMULATOR_KEY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coprep_protocol::store_variables::StoreVariables;

    fn complete(variables: &[(&str, &str)]) -> Variables {
        let owned = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Variables::complete(StoreVariables::from_iter(owned))
    }

    #[test]
    fn an_emulator_of_a_job_is_an_account_at_its_address() {
        let variables = complete(&[
            ("AZURE_STORAGE_USE_EMULATOR", "true"),
            ("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:7/"),
        ]);
        let with = |b: MicrosoftAzureBuilder, key, value: &str| b.with_config(key, value);
        let builder = variables.configured("AZURE_", MicrosoftAzureBuilder::from_env, with);
        let builder = with_azure_addresses(builder, &variables);
        let value = |key| builder.get_config_value(&key);
        assert_eq!(
            value(AzureConfigKey::Endpoint).as_deref(),
            Some("http://127.0.0.1:7/devstoreaccount1")
        );
        assert_eq!(
            value(AzureConfigKey::AccessKey).as_deref(),
            Some(EMULATOR_KEY)
        );
        assert!(!is_emulated(&builder));
    }

    #[test]
    fn a_job_signs_in_at_google_by_the_file_of_its_own_home() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(GOOGLE_SIGN_IN);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{}").unwrap();
        let of = |variables: &[(&str, &str)]| {
            let variables = complete(variables);
            let with = |b: GoogleCloudStorageBuilder, key, value: &str| b.with_config(key, value);
            let from_env = GoogleCloudStorageBuilder::from_env;
            let builder = variables.configured("GOOGLE_", from_env, with);
            let builder = with_google_files(builder, &variables).unwrap();
            let keys = [
                GoogleConfigKey::ApplicationCredentials,
                GoogleConfigKey::ServiceAccount,
            ];
            keys.map(|key| builder.get_config_value(&key))
        };
        let home = home.path().to_str().unwrap();
        let signed_in = file.to_str().map(str::to_owned);
        assert_eq!(of(&[("HOME", home)]), [signed_in, None]);
        let named = [("HOME", home), ("SERVICE_ACCOUNT", "/key.json")];
        assert_eq!(of(&named), [None, Some("/key.json".to_owned())]);
    }
}
