//! Checks of what goes into the headers of requests. The clients of stores panic over what no header can have.

use object_store::HeaderValue;
use object_store::aws::AwsCredential;
use reqwest::Url;

/// The end of the error for what is no address.
pub(crate) const NO_ADDRESS: &str =
    "is no address such as http://127.0.0.1:9000 or https://store.example";

/// Refuses a text that no header can have. `what` names it, because it may be a secret.
pub(crate) fn check(what: &str, text: &str) -> Result<(), String> {
    if HeaderValue::from_str(text).is_ok() {
        return Ok(());
    }
    Err(if text.ends_with('\n') {
        format!("{what} ends with a line feed, as the text of a file does: leave that out")
    } else {
        format!("{what} has characters that a header cannot have")
    })
}

/// Refuses keys of S3 that no header can have.
pub(crate) fn check_keys(keys: &AwsCredential) -> Result<(), String> {
    check("the key id", &keys.key_id)?;
    check("the secret key", &keys.secret_key)?;
    keys.token
        .iter()
        .try_for_each(|token| check("the token", token))
}

/// Refuses an address of a store that is no URL of HTTP.
pub(crate) fn check_address(what: &str, address: &str) -> Result<(), String> {
    let is_http = |url: Url| {
        matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|h| !h.is_empty())
    };
    if Url::parse(address).is_ok_and(is_http) {
        return Ok(());
    }
    // An address may have a user and a password in it.
    Err(format!("{what} {NO_ADDRESS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_no_header_can_have_are_refused_without_being_shown() {
        check("TOKEN", "a-b_c/d+e==").unwrap();
        let why = check("TOKEN", "secret\n").unwrap_err();
        assert!(why.starts_with("TOKEN ends with a line feed") && !why.contains("secret"));
        let why = check("TOKEN", "sec\nret").unwrap_err();
        assert_eq!(why, "TOKEN has characters that a header cannot have");
    }

    #[test]
    fn an_address_is_a_url_of_http() {
        for address in [
            "http://127.0.0.1:9000",
            "https://host/path",
            "http://[::1]:9000",
        ] {
            check_address("A", address).unwrap();
        }
        for address in [
            "127.0.0.1:9000",
            "localhost:9000",
            "file:///etc",
            "http://[::1",
            "",
            "http://",
        ] {
            check_address("A", address).unwrap_err();
        }
    }
}
