//! Answers, written to a connection.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How long a stalled answer says nothing. Its reader gives up long before.
const STALL: Duration = Duration::from_secs(120);

/// An answer: its head, and the part of some bytes that is its body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Answer {
    pub(crate) fn new(status: u16, body: impl Into<Arc<[u8]>>) -> Answer {
        let body = body.into();
        Answer {
            status,
            headers: Vec::new(),
            from: 0,
            to: body.len(),
            body,
        }
    }

    /// Returns an error as S3 gives it.
    pub(crate) fn error(status: u16, code: &str) -> Answer {
        let body = format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        );
        Answer::new(status, body.into_bytes())
    }

    fn head(&self, length: usize) -> String {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Length: {length}\r\n",
            self.status,
            reason(self.status)
        );
        // Any time will do, but the header must be there.
        head.push_str("Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n");
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head
    }

    fn part(&self) -> &[u8] {
        &self.body[self.from..self.to]
    }

    /// Sends the answer. `is_head` leaves its body out.
    pub(crate) async fn send(&self, to: &mut TcpStream, is_head: bool) -> io::Result<()> {
        let head = self.head(self.to - self.from);
        let body = if is_head { &[][..] } else { self.part() };
        // One call for head and body, so that the client is woken once, and no copy of the body.
        let parts = &mut [IoSlice::new(head.as_bytes()), IoSlice::new(body)][..];
        write_all_vectored(to, parts).await
    }

    async fn send_half(&self, to: &mut TcpStream) -> io::Result<()> {
        to.write_all(self.head(self.to - self.from).as_bytes())
            .await?;
        let part = self.part();
        to.write_all(&part[..part.len() / 2]).await
    }

    /// Sends half of the answer and resets the connection.
    pub(crate) async fn break_off(&self, to: &mut TcpStream) -> io::Result<()> {
        self.send_half(to).await?;
        // The half should arrive before the reset overtakes it.
        sleep(Duration::from_millis(5)).await;
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&to.as_fd(), sockopt::Linger, &linger)?;
        Err(io::ErrorKind::ConnectionReset.into())
    }

    /// Sends half of the answer, and the other half after a time.
    pub(crate) async fn pause(&self, to: &mut TcpStream, time: Duration) -> io::Result<()> {
        self.send_half(to).await?;
        sleep(time).await;
        let part = self.part();
        to.write_all(&part[part.len() / 2..]).await
    }

    /// Sends half of the answer, and then nothing for a time, which is long if `time` is zero.
    pub(crate) async fn stall(&self, to: &mut TcpStream, time: Duration) -> io::Result<()> {
        self.send_half(to).await?;
        sleep(if time.is_zero() { STALL } else { time }).await;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

/// Writes all parts, in as few calls as the system allows.
async fn write_all_vectored(to: &mut TcpStream, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    // This leaves out empty parts, so that the loop ends where only they are left.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match to.write_vectored(parts).await {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        207 => "Multi-Status",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
