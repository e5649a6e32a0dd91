//! The options of the HTTP clients of all stores: times to wait, connections, retries.

use std::time::Duration;

use coprep_shared_memory::descriptors;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, RetryConfig};
use reqwest::ClientBuilder;

/// Longest time to connect, and longest time without a byte.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time to connect to the metadata server of a cloud, which is near or not there.
const METADATA_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The library's own retries. They are short, because they use the credentials of the first try.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections that are kept for each host: as many as reads that may be under way with 64 processors. Each further one
/// would be opened anew for each read.
const IDLE_CONNECTIONS: usize = 4096;
/// The divisor for the share of this process's descriptors that idle connections to one host may take. Without a descriptor
/// for a new job the coordinator would not answer it.
const SHARE_OF_DESCRIPTORS: usize = 4;

pub(crate) fn options(is_plain: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(is_plain)
        .with_connect_timeout(CONNECT_TIMEOUT)
        // A large object may take longer than any fixed time, so only silence counts.
        .with_timeout_disabled()
        .with_read_timeout(READ_TIMEOUT)
        .with_pool_max_idle_per_host(idle_connections(descriptors::limit().ok()))
}

/// Returns what builds an HTTP client as the library does for these [`options`], or for those of a cloud's metadata server
/// that the library makes of them. It can be given more than the library passes on.
pub(crate) fn client(given: &ClientOptions) -> ClientBuilder {
    let value = |key| given.get_config_value(&key);
    let is_plain = value(ClientConfigKey::AllowHttp).as_deref() == Some("true");
    let connect_timeout = if is_of_metadata(given) {
        METADATA_CONNECT_TIMEOUT
    } else {
        CONNECT_TIMEOUT
    };
    ClientBuilder::new()
        .https_only(!is_plain)
        .connect_timeout(connect_timeout)
        .read_timeout(READ_TIMEOUT)
        .pool_max_idle_per_host(idle_connections(descriptors::limit().ok()))
        // As the library's: many reads at once need many connections, and bodies come as they are stored.
        .http1_only()
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
}

/// Returns `true` for the options that the library makes for a cloud's metadata server.
pub(crate) fn is_of_metadata(given: &ClientOptions) -> bool {
    let key = ClientConfigKey::ConnectTimeout;
    given.get_config_value(&key) != options(false).get_config_value(&key)
}

/// Returns the number of idle connections to a host, in a process that may have this many descriptors.
fn idle_connections(descriptors: Option<u64>) -> usize {
    let limit = descriptors.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    });
    IDLE_CONNECTIONS.min(limit / SHARE_OF_DESCRIPTORS)
}

pub(crate) fn retry() -> RetryConfig {
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

/// Returns `true` for the address of a server without TLS. Whoever names such an address wants it so.
pub(crate) fn is_plain(address: Option<&str>) -> bool {
    address.is_some_and(|address| address.starts_with("http://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_leave_descriptors_for_others() {
        assert_eq!(idle_connections(None), 4096);
        assert_eq!(idle_connections(Some(65_536)), 4096);
        assert_eq!(idle_connections(Some(1024)), 256);
    }
}
