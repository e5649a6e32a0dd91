//! Temporary credentials: those that requests must use, and the metadata service that gives them.

use crate::answer::Answer;
use crate::request::{HttpRequest, Query};

/// Temporary credentials of a server. Signatures are not checked, but the key and the token must be these.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The identity of the key.
    pub key: String,
    /// The secret key, which is given but never sent back.
    pub secret: String,
    /// The token of the session.
    pub token: String,
    /// The only bucket that they may read, or empty for all.
    pub bucket: String,
}

/// The folder of the metadata service of Amazon EC2, and the role that it has here.
const FOLDER: &str = "latest/meta-data/iam/security-credentials/";
const ROLE: &str = "tests";
/// The time at which all credentials expire by their own account, so that only the server ends them.
const EXPIRATION: &str = "2100-01-01T00:00:00Z";

impl Credentials {
    /// Reads credentials from the query of a request that controls the server. Each parameter has those of all, with commas
    /// between them.
    pub(crate) fn from_query(query: &Query) -> Vec<Credentials> {
        let texts = |name: &str| {
            let all = query.get(name).unwrap_or_default().split(',');
            all.map(str::to_owned).collect::<Vec<_>>()
        };
        let (keys, secrets, tokens) = (texts("key"), texts("secret"), texts("token"));
        let buckets = texts("bucket")
            .into_iter()
            .chain(std::iter::repeat(String::new()));
        let parts = keys.into_iter().zip(secrets).zip(tokens).zip(buckets);
        let of = |(((key, secret), token), bucket)| Credentials {
            key,
            secret,
            token,
            bucket,
        };
        parts.map(of).collect()
    }

    /// Returns `true` if a request names this key and this token, as S3 wants it, or has the token as a bearer token.
    pub(crate) fn are_used_by(&self, request: &HttpRequest) -> bool {
        let Some(header) = request.header("authorization") else {
            return false;
        };
        if !self.bucket.is_empty() && request.object().0 != self.bucket {
            return false;
        }
        let has_key = header.contains(&format!("Credential={}/", self.key));
        let has_both = has_key && request.header("x-amz-security-token") == Some(&self.token);
        has_both || header == format!("Bearer {}", self.token)
    }

    /// Returns the refusal of a request. As that of S3, it repeats what the request has told.
    pub(crate) fn refuse(request: &HttpRequest) -> Answer {
        let told = |name: &str| request.header(name).unwrap_or_default().to_owned();
        let (key, token) = (told("authorization"), told("x-amz-security-token"));
        let body = format!(
            "<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Message>The provided token {token} has expired.\
             </Message><AWSAccessKeyId>{key}</AWSAccessKeyId><Token-0>{token}</Token-0></Error>"
        );
        Answer::new(403, body.into_bytes())
    }

    /// Answers a request to the metadata service. Returns `None` for any other request.
    pub(crate) fn answer(&self, request: &HttpRequest) -> Option<Answer> {
        // Clients of the service's second version ask for a token first. Any will do here.
        if request.path == "latest/api/token" {
            return Some(Answer::new(200, b"metadata".to_vec()));
        }
        let rest = request.path.strip_prefix(FOLDER)?;
        let text = if rest.is_empty() {
            ROLE.to_owned()
        } else {
            let Credentials {
                key, secret, token, ..
            } = self;
            format!(
                "{{\"AccessKeyId\": \"{key}\", \"SecretAccessKey\": \"{secret}\", \"Token\": \"{token}\", \
                 \"Expiration\": \"{EXPIRATION}\"}}"
            )
        };
        Some(Answer::new(200, text.into_bytes()))
    }
}
