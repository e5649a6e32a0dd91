//! Requests, read from a connection.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Longest body that is accepted, so that a wrong length allocates nothing absurd.
const LONGEST_BODY: u64 = 1 << 30;

/// A request.
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    /// Path, decoded, without the slash at its beginning.
    pub(crate) path: String,
    pub(crate) query: Query,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// The arguments of a URL, decoded.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Query {
        let argument = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decoded(name), decoded(&value.replace('+', " ")))
        };
        Query(
            text.split('&')
                .filter(|part| !part.is_empty())
                .map(argument)
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl HttpRequest {
    /// Reads a request. Returns `None` at the end of the connection.
    pub(crate) async fn read(
        from: &mut (impl AsyncBufRead + Unpin),
    ) -> io::Result<Option<HttpRequest>> {
        let mut line = String::new();
        if from.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, target) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = HttpRequest {
            method: method.to_owned(),
            path: decoded(path.trim_start_matches('/')),
            query: Query::parse(query),
            headers: Vec::new(),
            body: Vec::new(),
        };
        loop {
            let mut header = String::new();
            from.read_line(&mut header).await?;
            // The empty line that ends the headers has no colon.
            let Some((name, value)) = header.split_once(':') else {
                break;
            };
            request
                .headers
                .push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = request
            .header("content-length")
            .and_then(|n| n.parse().ok());
        let length = length.unwrap_or(0).min(LONGEST_BODY);
        from.take(length).read_to_end(&mut request.body).await?;
        Ok(Some(request))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns bucket and key.
    pub(crate) fn object(&self) -> (&str, &str) {
        self.path.split_once('/').unwrap_or((&self.path, ""))
    }

    /// Returns the first and the last byte that are asked for.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self
            .header("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        // A range without a last byte, such as `bytes=5-`, reaches to the end.
        Some((first.parse().ok()?, last.parse().unwrap_or(u64::MAX)))
    }
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let code = text
            .get(at + 1..at + 3)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code.filter(|_| byte == b'%') {
            Some(code) => {
                plain.push(code);
                at += 3;
            }
            None => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}
