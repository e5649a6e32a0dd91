//! Serves the numbers of `coprep status` to Prometheus, as `coprep serve --metrics` does.
//!
//! | module | purpose |
//! |---|---|
//! | `families` | the names, meanings and labels |
//! | `text` | writes them in the formats of Prometheus |
//! | `http` | answers requests, with limits on their number, size and time |
//!
//! A single thread does all of it, and exists only if metrics are asked for. It takes the coordinator's status at each
//! scrape, as `coprep status` does; nothing is counted for its sake. So a job that has left leaves no series behind.

mod families;
mod http;
mod text;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use coprep_coordinator::Monitor;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// A server of metrics, until it is dropped.
pub struct Metrics {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The error that keeps metrics from being served. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else listens at the address.
    InUse,
    /// This user may not listen at the port.
    Denied,
    /// The operating system refused the address or a thread.
    Os,
}

impl Metrics {
    /// Listens at this address. Port 0 is any free one.
    ///
    /// # Errors
    /// If the address cannot be listened at, or if no thread can be started.
    pub fn serve(address: SocketAddr, monitor: Monitor) -> Result<Self, Error> {
        let failed = |source| cannot_serve(address, source);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (end, ended) = oneshot::channel();
        let run = runtime(listener, monitor, ended).map_err(failed)?;
        let builder = std::thread::Builder::new().name("metrics".into());
        let thread = builder.spawn(run).map_err(failed)?;
        Ok(Metrics {
            address,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Returns the address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // The thread ends when this channel is closed.
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, its message is printed already, and the coordinator ends as usual.
            let _ = thread.join();
        }
    }
}

fn cannot_serve(address: SocketAddr, source: io::Error) -> Error {
    let reason = source.kind();
    let error =
        |kind| Error::new(kind, format!("cannot serve metrics at {address}")).because(source);
    match reason {
        io::ErrorKind::AddrInUse => error(ErrorKind::InUse).with_remedy(
            "somebody else listens there, perhaps another coordinator: choose another port, or 0 for any free one, with \
             --metrics or COPREP_METRICS",
        ),
        io::ErrorKind::PermissionDenied => {
            error(ErrorKind::Denied).with_remedy("choose a port above 1023")
        }
        _ => error(ErrorKind::Os),
    }
}

/// Returns the body of the server's thread. Connections that are open at its end are closed.
fn runtime(
    listener: TcpListener,
    monitor: Monitor,
    ended: oneshot::Receiver<()>,
) -> io::Result<impl FnOnce() + Send> {
    listener.set_nonblocking(true)?;
    let runtime: Runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let listener = {
        // `from_std` registers the listener with the current runtime.
        let _within = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    Ok(move || {
        runtime.spawn(http::listen(listener, monitor));
        // The sender is only ever dropped, so this error is the signal to end.
        let _ = runtime.block_on(ended);
    })
}

/// Parses an address that only this machine reaches: metrics name datasets and jobs, and need no password.
///
/// # Errors
/// Returns a sentence for the user if the text is no such address.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "it is no address with a port, such as 127.0.0.1:9400".to_owned())?;
    // `::ffff:127.0.0.1` is this machine too.
    if address.ip().to_canonical().is_loopback() {
        return Ok(address);
    }
    // Port 0 would be no use in the example.
    let port = match address.port() {
        0 => 9400,
        port => port,
    };
    Err(format!(
        "metrics are served on this machine only, without a password: use 127.0.0.1:{port}, and from elsewhere an ssh \
         tunnel (ssh -L {port}:127.0.0.1:{port} HOST) or a proxy that knows its users"
    ))
}

#[cfg(test)]
mod tests {
    use super::loopback;

    #[test]
    fn only_this_machine_is_served() {
        for good in [
            "127.0.0.1:9400",
            "127.1.2.3:0",
            "[::1]:9400",
            "[::ffff:127.0.0.1]:9400",
        ] {
            assert!(loopback(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:9400", "[::]:9400", "10.0.0.1:9400", "[fe80::1]:1"] {
            let why = loopback(bad).unwrap_err();
            assert!(why.contains("ssh"), "{bad}: {why}");
        }
        for bad in ["9400", "127.0.0.1", "localhost:9400", ""] {
            let why = loopback(bad).unwrap_err();
            assert!(why.contains("127.0.0.1:9400"), "{bad}: {why}");
        }
    }
}
