//! Credentials of a store that a running job gives, because they exist only in its process.
//!
//! They pass from the job to the coordinator over a socket that only their user can open, and stay in memory there. Nobody
//! prints, hashes or writes them: [`StoreCredentials`] shows its kind alone.

use std::fmt;
use std::time::{Duration, SystemTime};

use rkyv::{Archive, Deserialize, Serialize};

use crate::dataset_url::UrlScheme;

/// Credentials of a store.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub enum StoreCredentials {
    /// Keys of S3.
    Keys {
        /// Identity of the key.
        key_id: String,
        /// The secret key.
        secret_key: String,
        /// Token of the session, which temporary keys have.
        token: Option<String>,
    },
    /// A bearer token of Google, Azure or the Hugging Face Hub.
    Token(String),
    /// The access key of an account of Azure, in base64.
    AccountKey(String),
    /// A shared access signature of Azure, as the names and values of a query.
    Signature(Vec<(String, String)>),
}

impl StoreCredentials {
    /// Returns `true` if stores of this kind take such credentials.
    #[must_use]
    pub fn are_for(&self, scheme: UrlScheme) -> bool {
        match self {
            StoreCredentials::Keys { .. } => scheme == UrlScheme::S3,
            StoreCredentials::Token(_) => {
                matches!(scheme, UrlScheme::Gs | UrlScheme::Az | UrlScheme::Hf)
            }
            StoreCredentials::AccountKey(_) | StoreCredentials::Signature(_) => {
                scheme == UrlScheme::Az
            }
        }
    }
}

/// Shows the kind only, since everything else may be secret.
impl fmt::Debug for StoreCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreCredentials::Keys { .. } => "Keys",
            StoreCredentials::Token(_) => "Token",
            StoreCredentials::AccountKey(_) => "AccountKey",
            StoreCredentials::Signature(_) => "Signature",
        })
    }
}

/// Credentials, and the time at which they expire.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TimedCredentials {
    /// The credentials.
    pub credentials: StoreCredentials,
    /// Milliseconds from the beginning of 1970 to their end, or `None` if they do not expire.
    pub expires_ms: Option<u64>,
}

impl TimedCredentials {
    /// Returns the time at which they expire, or `None` if they do not.
    #[must_use]
    pub fn end(&self) -> Option<SystemTime> {
        // A time beyond the clock's range never comes.
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.expires_ms?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        let secret = || "SECRET".to_owned();
        let all = [
            StoreCredentials::Keys {
                key_id: secret(),
                secret_key: secret(),
                token: Some(secret()),
            },
            StoreCredentials::Token(secret()),
            StoreCredentials::AccountKey(secret()),
            StoreCredentials::Signature(vec![("sig".into(), secret())]),
        ];
        for credentials in all {
            let given = TimedCredentials {
                credentials,
                expires_ms: Some(1),
            };
            let shown = format!("{given:?}");
            assert!(
                shown.contains("expires_ms") && !shown.contains("SECRET"),
                "{shown}"
            );
        }
    }

    #[test]
    fn each_store_takes_credentials_of_its_own_kinds() {
        let token = StoreCredentials::Token(String::new());
        let schemes = [UrlScheme::S3, UrlScheme::Gs, UrlScheme::Az, UrlScheme::Hf];
        let takers = schemes.map(|scheme| token.are_for(scheme));
        assert_eq!(takers, [false, true, true, true]);
        let key = StoreCredentials::AccountKey(String::new());
        assert!(key.are_for(UrlScheme::Az) && !key.are_for(UrlScheme::Gs));
    }
}
