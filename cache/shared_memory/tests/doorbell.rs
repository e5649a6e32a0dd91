//! A consumer can use its bell, but it can harm neither the coordinator nor other consumers with it.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use coprep_shared_memory::handover::{Doorbell, Ringer};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

/// Longer than any test takes. A wait of this length counts as endless.
const FOR_EVER: Duration = Duration::from_secs(600);

fn clear_flags(fd: &OwnedFd) {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
}

/// Reads the bell until it is empty.
fn swallow(fd: &OwnedFd) {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    while poll(&mut fds, PollTimeout::ZERO).unwrap() > 0 {
        nix::unistd::read(fd, &mut [0; 8]).unwrap();
    }
}

#[test]
fn every_ring_wakes_though_nobody_reads_the_bell() {
    let doorbell = Doorbell::new().unwrap();
    let bell = doorbell.bell().unwrap();
    let ringer = Ringer::new(bell.fd().unwrap());
    assert!(!doorbell.wait(Duration::ZERO));
    for _ in 0..3 {
        ringer.ring();
        assert!(doorbell.wait(Duration::ZERO));
        assert!(!doorbell.wait(Duration::ZERO), "one ring wakes once");
    }
    doorbell.ring();
    assert!(doorbell.wait(Duration::ZERO));
}

#[test]
fn flags_that_a_consumer_changes_block_nobody() {
    let doorbell = Doorbell::new().unwrap();
    let (bell, other) = (doorbell.bell().unwrap(), doorbell.bell().unwrap());
    let fd = bell.fd().unwrap();
    clear_flags(&fd);
    // The count is at its maximum, so a blocking write to the bell would hang.
    nix::unistd::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        while doorbell.wait(Duration::ZERO) {}
        doorbell.ring();
        assert!(doorbell.wait(FOR_EVER));
        Ringer::new(other.fd().unwrap()).ring();
        assert!(doorbell.wait(FOR_EVER));
        drop(bell);
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn a_consumer_cannot_swallow_the_ring_of_another() {
    let doorbell = Doorbell::new().unwrap();
    let (hostile, honest) = (doorbell.bell().unwrap(), doorbell.bell().unwrap());
    let (hostile, honest) = (hostile.fd().unwrap(), Ringer::new(honest.fd().unwrap()));
    for _ in 0..100 {
        honest.ring();
        swallow(&hostile);
        assert!(doorbell.wait(Duration::ZERO));
    }
}

#[test]
fn the_bell_of_a_consumer_that_has_left_wakes_nobody() {
    let doorbell = Doorbell::new().unwrap();
    let bell = doorbell.bell().unwrap();
    let ringer = Ringer::new(bell.fd().unwrap());
    drop(bell);
    ringer.ring();
    assert!(!doorbell.wait(Duration::ZERO));
}

#[test]
fn more_rings_than_one_look_fetches_are_not_lost() {
    let doorbell = Doorbell::new().unwrap();
    let bells: Vec<_> = (0..200).map(|_| doorbell.bell().unwrap()).collect();
    for bell in &bells {
        Ringer::new(bell.fd().unwrap()).ring();
    }
    while doorbell.wait(Duration::ZERO) {}
    Ringer::new(bells[150].fd().unwrap()).ring();
    assert!(doorbell.wait(Duration::ZERO));
}

#[test]
fn who_changes_something_rings_only_for_an_idle_coordinator() {
    let doorbell = Doorbell::new().unwrap();
    doorbell.ring_if_idle();
    assert!(!doorbell.wait(Duration::ZERO));
    doorbell.set_idle();
    doorbell.ring_if_idle();
    assert!(doorbell.wait(FOR_EVER));
    doorbell.ring_if_idle();
    assert!(!doorbell.wait(Duration::ZERO));
}
