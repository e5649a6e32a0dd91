//! Credentials of S3 from the agent of a container, as EKS Pod Identity gives them.
//!
//! `object_store` asks for them in the same way, but sends the text of the token file as it is, and panics if it ends with a
//! line feed. Here it is trimmed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use chrono::DateTime;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, AwsCredential};
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::{CredentialProvider, HeaderValue, Result};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::connector::{StoreConnector, read_all};
use crate::file::read_text;
use crate::headers;
use crate::http_options::options;

/// Time before their end at which credentials are asked for anew, as by `object_store`.
const LEAST_LEFT: Duration = Duration::from_secs(300);

/// The agent, and the credentials that it gave last.
#[derive(Debug)]
struct ContainerCredentials {
    url: String,
    token_file: PathBuf,
    client: HttpClient,
    /// The credentials and their end. Locked over a request, so that it is made once for all who wait.
    last: Mutex<Option<(Arc<AwsCredential>, SystemTime)>>,
}

/// The JSON that the agent answers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AgentAnswer {
    access_key_id: String,
    secret_access_key: String,
    token: String,
    expiration: String,
}

/// Adds the credentials of the agent to a builder that would ask the agent itself, because it has no other ones.
pub(crate) fn apply(
    builder: AmazonS3Builder,
    connector: &StoreConnector,
) -> Result<AmazonS3Builder> {
    let value = |key| builder.get_config_value(&key);
    let has_other = value(Key::AccessKeyId).is_some()
        || value(Key::SecretAccessKey).is_some()
        || value(Key::ContainerCredentialsRelativeUri).is_some()
        || (value(Key::WebIdentityTokenFile).is_some() && value(Key::RoleArn).is_some());
    let url = value(Key::ContainerCredentialsFullUri);
    let token_file = value(Key::ContainerAuthorizationTokenFile);
    let (Some(url), Some(token_file), false) = (url, token_file, has_other) else {
        return Ok(builder);
    };
    Ok(builder.with_credentials(Arc::new(ContainerCredentials {
        url,
        token_file: token_file.into(),
        client: connector.connect(&options(true))?,
        last: Mutex::default(),
    })))
}

impl ContainerCredentials {
    /// Asks the agent. An error repeats nothing of its answer, because that holds secrets.
    async fn ask(&self) -> std::result::Result<(Arc<AwsCredential>, SystemTime), String> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = self.url.parse().map_err(|_| "its address is no URL")?;
        request
            .headers_mut()
            .insert("authorization", self.header().await?);
        let answer = self.client.execute(request).await;
        let answer = answer.map_err(|_| "it does not answer")?;
        if !answer.status().is_success() {
            return Err(format!("status code: {}", answer.status()));
        }
        let body = read_all(answer)
            .await
            .map_err(|_| "its answer is cut off, or too long")?;
        let given: AgentAnswer = serde_json::from_slice(&body).map_err(
            |_| "it answers no JSON with AccessKeyId, SecretAccessKey, Token and Expiration",
        )?;
        let end = DateTime::parse_from_rfc3339(&given.expiration)
            .map_err(|_| "its Expiration is no time")?;
        let keys = AwsCredential {
            key_id: given.access_key_id,
            secret_key: given.secret_access_key,
            token: Some(given.token),
        };
        headers::check_keys(&keys)?;
        Ok((Arc::new(keys), end.into()))
    }

    /// Returns the header with the token, whose file may be replaced at any time.
    async fn header(&self) -> std::result::Result<HeaderValue, String> {
        let path = self.token_file.clone();
        let read =
            move || read_text(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()));
        let text = spawn_blocking(read).await.map_err(|e| e.to_string())??;
        let header = HeaderValue::from_str(text.trim());
        let mut header =
            header.map_err(|_| "its token has characters that a header cannot have")?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[async_trait]
impl CredentialProvider for ContainerCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        let mut last = self.last.lock().await;
        if let Some((keys, end)) = &*last
            && SystemTime::now() + LEAST_LEFT < *end
        {
            return Ok(keys.clone());
        }
        let given = self
            .ask()
            .await
            .map_err(|why| object_store::Error::Generic {
                store: "S3",
                source: format!("the agent of the container gives no credentials: {why}").into(),
            })?;
        *last = Some(given.clone());
        Ok(given.0)
    }
}
