//! A signal ends no wait before its time.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use coprep_protocol::code::Channel;
use coprep_protocol::frame;
use coprep_protocol::message::Request;
use coprep_protocol::polling::poll;
use nix::poll::{PollFd, PollFlags};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::Signal::SIGUSR1;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `wait` in a thread, and disturbs the thread by signals. The thread then still waits for its message.
fn disturbed<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
    let (tell, told) = channel::<Pthread>();
    let thread = spawn(move || {
        tell.send(pthread_self()).unwrap();
        wait()
    });
    let waiter = told.recv().unwrap();
    for _ in 0..20 {
        sleep(Duration::from_millis(5));
        pthread_kill(waiter, SIGUSR1).unwrap();
    }
    thread
}

#[test]
fn a_message_is_waited_for_despite_signals() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut channel = Channel::new(there);
    let thread = disturbed(move || channel.receive(LIMIT).unwrap());
    Channel::new(here).send(b"late", &[]).unwrap();
    assert_eq!(thread.join().unwrap().as_deref(), Some(&b"late"[..]));
}

#[test]
fn a_greeting_is_waited_for_despite_signals() {
    let (here, there) = UnixStream::pair().unwrap();
    there.set_read_timeout(Some(LIMIT)).unwrap();
    let thread = disturbed(move || frame::receive_despite_signals::<Request>(&there).unwrap());
    let request = Request::RestartEpoch {
        epoch: 3,
        batches: 0,
    };
    frame::send(&here, &request, &[]).unwrap();
    assert_eq!(thread.join().unwrap().0, request);
}

#[test]
fn a_wait_without_a_limit_goes_on_after_signals() {
    let (here, there) = UnixStream::pair().unwrap();
    let thread = disturbed(move || {
        let mut fds = [PollFd::new(there.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, None).unwrap();
        // Returned as well, so that it stays open until all parts of the message are sent.
        (ready, there)
    });
    frame::send(
        &here,
        &Request::RestartEpoch {
            epoch: 3,
            batches: 0,
        },
        &[],
    )
    .unwrap();
    assert_eq!(thread.join().unwrap().0, 1);
}

#[test]
fn a_wait_ends_when_its_time_is_up() {
    let (_here, there) = UnixStream::pair().unwrap();
    let mut fds = [PollFd::new(there.as_fd(), PollFlags::POLLIN)];
    for limit in [Duration::ZERO, Duration::from_micros(1500)] {
        let began = std::time::Instant::now();
        assert_eq!(poll(&mut fds, Some(limit)).unwrap(), 0);
        assert!(began.elapsed() >= limit);
    }
}
