//! The hand-over of minibatches: from the coordinator to one consumer, and back.
//!
//! # The two regions
//!
//! Per consumer there are two small memory files. *deliver* is written by the coordinator; it is sealed, and
//! the consumer maps it read-only. *reply* is the only memory that the consumer writes.
//!
//! | word | region | who writes | who reads | zero means |
//! |---|---|---|---|---|
//! | `published` | deliver | coordinator | consumer; its futex | nothing published yet |
//! | `armed` | deliver | coordinator | consumer | the coordinator is awake; it is 1 from the beginning |
//! | `share` | deliver | coordinator | consumer | no buffer may be held |
//! | ring of [`Item`]s | deliver | coordinator | consumer | not an item |
//! | `taken` | reply | consumer | coordinator | nothing taken yet |
//! | `released` | reply | consumer | coordinator | nothing released yet |
//! | `sleeping` | reply | consumer | coordinator | the consumer is awake |
//! | ring of sequence numbers | reply | consumer | coordinator | the first item |
//!
//! Counts are modulo 2^32; either side keeps its own in 64 bits. They never differ by more than the
//! capacity, so the difference is exact.
//!
//! # The life of an item
//!
//! The coordinator **publishes** item number `seq` (0, 1, 2, ...), the consumer **takes** items in this
//! order, and **releases** each exactly once, in any order. An item is *in flight* from its publication
//! until the coordinator has read its release; there are never more than `capacity` in flight. From this
//! follows that neither ring overwrites what is still to be read:
//!
//! - *Items.* Publishing `seq` overwrites item `seq - capacity`. Fewer than `capacity` are in flight, so more
//!   than `seq - capacity` were released; each was checked to be taken, and items are taken in order: so
//!   item `seq - capacity` is taken, and was read before `taken` said so (release/acquire on `taken`).
//! - *Releases.* The consumer's release number `r` overwrites release `r - capacity`. Say it has seen
//!   `published = p`, so `r < p`. When the coordinator published item `p - 1` it had fewer than `capacity` in
//!   flight, so it had read more than `p - 1 - capacity >= r - capacity` releases, number `r - capacity`
//!   among them; and it read it before it stored `published = p` (release/acquire on `published`).
//!
//! # Sleeping
//!
//! Nobody makes a system call unless somebody sleeps. Either side that sleeps says so first and looks again,
//! and either side that did something looks whether the other sleeps: one of the two must see the other
//! (Dekker), because both put a sequentially consistent fence between their store and their load.
//!
//! A consumer is armed when its regions are made: the coordinator may be asleep while a session thread lets it in.
//!
//! | | stores | fence | loads |
//! |---|---|---|---|
//! | consumer going to sleep | `sleeping = 1` | | `published` |
//! | coordinator publishing | `published` | | `sleeping`: wakes the futex |
//! | coordinator going to sleep | `armed = 1` | | `taken`, `released` |
//! | consumer taking, releasing | `taken`, `released` | | `armed`: rings the [`Doorbell`] |
//!
//! The consumer sleeps on `published` by futex: the kernel compares it with what the consumer saw last, so a
//! publication between the look and the sleep is not missed. The coordinator sleeps in `epoll_wait` on an eventfd
//! per consumer, whose event waits in the epoll set, so a ring before the sleep is not missed either ([`Doorbell`]).
//!
//! # Whom to trust
//!
//! The coordinator trusts nothing in *reply*: `taken` must not go back nor past what is published, each
//! release must be of an item that is published, taken and not yet released, or the session ends
//! ([`crate::ErrorKind::Misbehaved`]). A consumer that says it sleeps while it does not costs a system call per item.
//! The consumer checks every item too ([`Item::check`]).
//!
//! The steps are in [`protocol`], free of system calls, and are model-checked by `tests/loom.rs`.

pub mod protocol;

#[cfg(not(loom))]
mod doorbell;
#[cfg(not(loom))]
mod receiver;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod sender;

pub use protocol::{Account, Item, ItemKind};

#[cfg(not(loom))]
pub use self::{
    doorbell::{Bell, Doorbell, Ringer},
    receiver::Receiver,
    sender::Sender,
};
