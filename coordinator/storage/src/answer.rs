//! The meaning of a store's answers.
//!
//! `object_store` gives errors as nested texts, which contain URLs. Here an error becomes one of the kinds of this crate,
//! with a short text that names the status and the store's own error code and nothing else, so that no secret can be in
//! it.

use std::error::Error as StdError;

use object_store::client::{HttpError, HttpErrorKind};

use crate::connector::TOO_LONG;
use crate::headers::NO_ADDRESS;
use crate::job_credentials::NONE_GIVEN;
use crate::lap::{SAME_PAGE, SAME_TOKEN};

/// The reason why a request has failed.
#[derive(Debug)]
pub(crate) struct FailedAnswer {
    pub(crate) meaning: AnswerMeaning,
    /// The answer in words, such as `503 Service Unavailable (SlowDown)`.
    pub(crate) text: String,
}

/// The meaning of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerMeaning {
    /// There is no such object.
    NoObject,
    /// The object is not the one that was asked for.
    OtherObject,
    /// There is no such bucket, container or dataset.
    NoBucket,
    /// The credentials are missing, wrong, expired, or do not suffice.
    Refused,
    /// The bucket lies in another region.
    OtherRegion,
    /// The store sends on to another address.
    SentOn,
    /// The key cannot be used in a request.
    BadKey,
    /// The server gives whole objects only.
    NoRanges,
    /// Nothing answers at this address.
    NoConnection,
    /// No request was made, because the jobs that give the credentials gave none.
    NoneGiven,
    /// A listing that cannot be used: it is too long, or comes round.
    Unusable,
    /// Something else, which may pass.
    Passing,
}

impl AnswerMeaning {
    /// Returns `true` if another try within seconds would end in the same way.
    pub(crate) fn is_lasting(self) -> bool {
        !matches!(
            self,
            AnswerMeaning::Passing | AnswerMeaning::NoConnection | AnswerMeaning::NoneGiven
        )
    }
}

/// Error codes for a bucket, container or dataset that does not exist.
const NO_BUCKET: [&str; 6] = [
    "NoSuchBucket",
    "ContainerNotFound",
    "InvalidBucketName",
    "The specified bucket does not exist",
    "RepoNotFound",
    "RevisionNotFound",
];
/// Error codes for credentials that are not accepted. Some come with status 400.
const REFUSED: [&str; 7] = [
    "ExpiredToken",
    "InvalidToken",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "RequestTimeTooSkewed",
    "AuthenticationFailed",
    "GatedRepo",
];

/// Interprets the error of a request.
pub(crate) fn interpret(error: &object_store::Error) -> FailedAnswer {
    use object_store::Error as Os;
    let chain = Chain::of(error);
    let meaning = match error {
        _ if chain.innermost.starts_with(NONE_GIVEN) => AnswerMeaning::NoneGiven,
        _ if chain.contains_any(&NO_BUCKET) => AnswerMeaning::NoBucket,
        _ if chain.contains_any(&REFUSED) => AnswerMeaning::Refused,
        _ if chain.text.contains("Received redirect without LOCATION") => {
            AnswerMeaning::OtherRegion
        }
        _ if chain.text.contains("Range request not supported") => AnswerMeaning::NoRanges,
        _ if chain.is_unusable() => AnswerMeaning::Unusable,
        Os::NotFound { .. } => AnswerMeaning::NoObject,
        Os::Precondition { .. } | Os::NotModified { .. } => AnswerMeaning::OtherObject,
        // The object has become shorter than the range that was asked for.
        _ if chain.status() == Some(416) => AnswerMeaning::OtherObject,
        Os::PermissionDenied { .. } | Os::Unauthenticated { .. } => AnswerMeaning::Refused,
        Os::InvalidPath { .. } => AnswerMeaning::BadKey,
        _ if matches!(chain.status(), Some(301 | 307)) => AnswerMeaning::OtherRegion,
        _ if matches!(chain.status(), Some(302 | 303 | 308)) => AnswerMeaning::SentOn,
        _ if matches!(chain.status(), Some(401 | 403)) => AnswerMeaning::Refused,
        _ if chain.transport == Some(HttpErrorKind::Connect) => AnswerMeaning::NoConnection,
        _ => AnswerMeaning::Passing,
    };
    FailedAnswer {
        meaning,
        text: chain.describe(),
    }
}

/// An error and its sources.
struct Chain {
    /// The texts of all of them. They may contain URLs, so they are searched but never shown.
    text: String,
    /// The text of the innermost error.
    innermost: String,
    transport: Option<HttpErrorKind>,
}

impl Chain {
    fn of(error: &object_store::Error) -> Chain {
        let mut chain = Chain {
            text: error.to_string(),
            innermost: error.to_string(),
            transport: None,
        };
        let mut next: Option<&(dyn StdError + 'static)> = error.source();
        while let Some(error) = next {
            chain.innermost = error.to_string();
            chain.text.push('\n');
            chain.text.push_str(&chain.innermost);
            let http = error.downcast_ref::<HttpError>();
            chain.transport = http.map(HttpError::kind).or(chain.transport);
            next = error.source();
        }
        chain
    }

    fn contains_any(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.text.contains(word))
    }

    /// Returns `true` if this crate refuses the answer.
    fn is_unusable(&self) -> bool {
        [TOO_LONG, SAME_TOKEN, SAME_PAGE].contains(&self.innermost.as_str())
    }

    /// Returns the text after the words that introduce a status.
    fn after_status(&self) -> Option<&str> {
        let words = "status code: ";
        let at = self.text.rfind(words)?;
        Some(&self.text[at + words.len()..])
    }

    fn status(&self) -> Option<u16> {
        self.after_status()?.get(..3)?.parse().ok()
    }

    /// Describes the answer by its status and error code, or by the reason why there is none.
    fn describe(&self) -> String {
        let Some(after) = self.after_status() else {
            return self.describe_without_status();
        };
        // The status ends before the body.
        let status = after.split([':', '\n']).next().unwrap_or(after).trim();
        match self.code() {
            Some(code) => format!("{status} ({code})"),
            None => status.to_owned(),
        }
    }

    fn describe_without_status(&self) -> String {
        if let Some(code) = self.code() {
            return code.to_owned();
        }
        match self.transport {
            _ if self.is_unusable() => self.innermost.clone(),
            Some(HttpErrorKind::Timeout) => "it does not answer in time".into(),
            // The innermost error is that of the operating system or of TLS, which knows no URL.
            Some(HttpErrorKind::Connect) => format!("no connection: {}", self.innermost),
            Some(_) => format!("the connection broke: {}", self.innermost),
            // These URLs are examples.
            None if self.innermost.ends_with(NO_ADDRESS) => self.innermost.clone(),
            None if self.innermost.contains("://") => "it answers in an unknown way".into(),
            None => self.innermost.clone(),
        }
    }

    /// Returns the error code in the body of the answer, which is XML.
    fn code(&self) -> Option<&str> {
        let (_, after) = self.text.split_once("<Code>")?;
        let (code, _) = after.split_once("</Code>")?;
        let is_code = code.len() < 64 && code.chars().all(|c| c.is_ascii_alphanumeric());
        is_code.then_some(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic {
            store: "S3",
            source: text.to_owned().into(),
        }
    }

    const SLOW_DOWN: &str = "Error performing GET http://host/bucket/key?sig=SECRET in 1s, after 3 retries - Server \
                             returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code></Error>";

    #[test]
    fn an_answer_is_shown_by_its_status_and_code_without_the_url() {
        let answer = interpret(&generic(SLOW_DOWN));
        assert_eq!(answer.text, "503 Service Unavailable (SlowDown)");
        assert_eq!(answer.meaning, AnswerMeaning::Passing);
        let unknown = interpret(&generic("GET http://host/bucket/key?sig=SECRET"));
        assert!(!unknown.text.contains("SECRET"), "{}", unknown.text);
    }

    #[test]
    fn answers_that_ask_for_another_remedy_have_another_meaning() {
        let of = |text: &str| interpret(&generic(text)).meaning;
        let status = |rest: &str| of(&format!("non-2xx status code: {rest}"));
        assert_eq!(
            status("400 Bad Request: <Code>ExpiredToken</Code>"),
            AnswerMeaning::Refused
        );
        assert_eq!(status("403 Forbidden"), AnswerMeaning::Refused);
        assert_eq!(
            status("404 Not Found: <Code>NoSuchBucket</Code>"),
            AnswerMeaning::NoBucket
        );
        assert_eq!(
            status("416 Range Not Satisfiable"),
            AnswerMeaning::OtherObject
        );
        assert_eq!(
            of("Received redirect without LOCATION"),
            AnswerMeaning::OtherRegion
        );
        assert_eq!(status("500 Internal Server Error"), AnswerMeaning::Passing);
    }
}
