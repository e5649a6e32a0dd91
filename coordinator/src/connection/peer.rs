//! The process at the other end of a connection.
//!
//! The end of a connection is not the end of the process that made it: a child that it forked has the socket too, and
//! keeps it open as long as it lives. So the process itself is watched, by a descriptor of it (*pidfd*), which becomes
//! readable when the process has ended.
//!
//! Linux 6.5 gives the descriptor with the socket (`SO_PEERPIDFD`). An older kernel gives the number of the process
//! (`SO_PEERCRED`). Another process may have taken over that number meanwhile, but it began after the connection. Where
//! neither is available, for example for a process in another pid namespace, only the socket is watched.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use coprep_protocol::polling::poll;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{getsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The process at the other end; see the module.
pub(crate) struct Peer {
    process: PeerProcess,
}

enum PeerProcess {
    Watched(OwnedFd),
    /// The process ended before it could be watched.
    Gone,
    Unknown,
}

/// The result of waiting for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    /// The socket has something to read, or has reached the end of the stream.
    Something,
    /// The process is gone, and has left nothing to read.
    Gone,
}

impl Peer {
    /// Finds the process at the other end.
    pub(crate) fn of(socket: &UnixStream) -> Peer {
        let process = match getsockopt(socket, sockopt::PeerPidfd) {
            Ok(fd) => PeerProcess::Watched(fd),
            // Either the kernel does not have it, or the process has been waited for.
            Err(_) => by_number(socket),
        };
        Peer { process }
    }

    /// Returns true when the process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        match &self.process {
            PeerProcess::Watched(fd) => {
                let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
            }
            PeerProcess::Gone => true,
            PeerProcess::Unknown => false,
        }
    }

    /// Waits until the socket can be read or the process is gone. Data that it sent before it ended comes first.
    ///
    /// # Errors
    /// When `poll` fails.
    pub(crate) fn wait(&self, socket: &UnixStream) -> std::io::Result<ConnectionEvent> {
        let readable = PollFd::new(socket.as_fd(), PollFlags::POLLIN);
        let mut fds = vec![readable];
        let mut limit = None;
        match &self.process {
            PeerProcess::Watched(fd) => fds.push(PollFd::new(fd.as_fd(), PollFlags::POLLIN)),
            PeerProcess::Gone => limit = Some(Duration::ZERO),
            PeerProcess::Unknown => {}
        }
        poll(&mut fds, limit)?;
        if fds[0].any().unwrap_or(true) {
            Ok(ConnectionEvent::Something)
        } else {
            Ok(ConnectionEvent::Gone)
        }
    }
}

/// Opens the process by its number. The number still belongs to the process that connected only if the process is older
/// than this call.
fn by_number(socket: &UnixStream) -> PeerProcess {
    let Ok(credentials) = getsockopt(socket, sockopt::PeerCredentials) else {
        return PeerProcess::Unknown;
    };
    // The kernel reports 0 for a process that this namespace cannot name.
    let Some(pid) = Pid::from_raw(credentials.pid()) else {
        return PeerProcess::Unknown;
    };
    let accepted = uptime();
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => match age_at(pid, accepted) {
            Some(is_older) if !is_older => PeerProcess::Gone,
            // If /proc does not tell, the process that has the number now is taken to be the peer.
            _ => PeerProcess::Watched(fd),
        },
        Err(rustix::io::Errno::SRCH) => PeerProcess::Gone,
        // Kernels before 5.3 do not have this call.
        Err(_) => PeerProcess::Unknown,
    }
}

/// Returns the time since the machine was started.
fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Returns `true` if the process that has this number now existed at `time`, or `None` if that is not known.
fn age_at(pid: Pid, time: Duration) -> Option<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let began = start_ticks(&stat)?;
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    Some(began as f64 / per_second as f64 <= time.as_secs_f64())
}

/// Returns when a process began, in ticks since the machine was started (`proc_pid_stat(5)`, field 22).
fn start_ticks(stat: &str) -> Option<u64> {
    // The name of the program, in parentheses, may contain anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_lives_is_not_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for peer in [
            Peer::of(&ours),
            Peer {
                process: by_number(&ours),
            },
        ] {
            assert!(matches!(peer.process, PeerProcess::Watched(_)));
            assert!(!peer.is_gone());
        }
        drop(theirs);
        assert_eq!(
            Peer::of(&ours).wait(&ours).unwrap(),
            ConnectionEvent::Something
        );
    }

    #[test]
    fn a_process_began_before_now_and_not_before_the_machine() {
        let me = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        assert_eq!(age_at(me, uptime()), Some(true));
        assert_eq!(age_at(me, Duration::ZERO), Some(false));
    }

    #[test]
    fn the_name_of_a_program_may_look_like_anything() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(&format!("7 (a b) 9) {rest}")), Some(4711));
        assert_eq!(start_ticks("malformed"), None);
    }
}
