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
//! | `absent` | deliver | coordinator | consumer | items are kept ready for the consumer |
//! | ring of [`Item`]s | deliver | coordinator | consumer | not an item |
//! | `taken` | reply | both, by compare-and-swap | both | nothing taken yet |
//! | `released` | reply | consumer | coordinator | nothing released yet |
//! | `sleeping` | reply | consumer | coordinator | the consumer is awake |
//! | ring of sequence numbers | reply | consumer | coordinator | the first item |
//!
//! `taken` and `sleeping` have 64 bits and never wrap. `published`, a futex, and `released` are counts modulo 2^32 of
//! which either side keeps its own in 64 bits. They never differ by more than the capacity, so the difference is exact.
//!
//! # The life of an item
//!
//! The coordinator **publishes** item number `seq` (0, 1, 2, ...), the consumer **takes** items in this
//! order, and **releases** each exactly once, in any order. The coordinator may **take back** what is published and not
//! taken: for a consumer that has stopped reading, while others have nothing.
//!
//! Both take by the same step, a compare-and-swap of `taken`: the consumer from `t` to `t + 1`, the coordinator from `t`
//! to `published`. One of the two succeeds, so an item is either the consumer's or taken back. A consumer that does not
//! succeed discards what it read, and looks again. It looks at a buffer only when it has taken the item.
//!
//! An item is *in flight* from its publication until it is taken back, or until the coordinator has read its release.
//! There are never more than `capacity` in flight. From this follows that neither ring overwrites what is still to be
//! read:
//!
//! - *Items.* Publishing `seq` overwrites item `seq - capacity`. Fewer than `capacity` are in flight, so more
//!   than `seq - capacity` are not: these were taken back, or released, which was checked to come after they were taken.
//!   So `taken` is more than `seq - capacity`, and item `seq - capacity` is either of two. The consumer took it: then it
//!   was read before `taken` said so (release/acquire on `taken`). Or it was taken back: then a consumer that reads it
//!   now, or a mixture of it and the next one, expects a count that `taken` will not have again, and does not succeed.
//! - *Releases.* The consumer's release number `r` overwrites release `r - capacity`. Say it has seen
//!   `published = p`, and say `b` items were taken back before item `p - 1` was published. The consumer took at most
//!   `p - b` items, and it took `r + 1` at least: so `r < p - b`. When the coordinator published item `p - 1` it had fewer
//!   than `capacity` in flight, so it had read more than `p - 1 - b - capacity >= r - capacity` releases, number
//!   `r - capacity` among them; and it read it before it stored `published = p` (release/acquire on `published`).
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
//! | consumer going to sleep | `sleeping` | | `published`; `absent`: rings the [`Doorbell`] |
//! | coordinator publishing | `published` | | `sleeping`: wakes the futex |
//! | coordinator going to sleep | `armed = 1` | | `taken`, `released` |
//! | consumer taking, releasing | `taken`, `released` | | `armed`: rings the [`Doorbell`] |
//! | coordinator that gives a consumer up as absent | `absent = 1` | | `sleeping`: it is not absent |
//!
//! The consumer sleeps on `published` by futex: the kernel compares it with what the consumer saw last, so a
//! publication between the look and the sleep is not missed. The coordinator sleeps in `epoll_wait` on an eventfd
//! per consumer, whose event waits in the epoll set, so a ring before the sleep is not missed either ([`Doorbell`]).
//!
//! For an *absent* consumer nothing is kept ready, so it cannot be seen to take. That it reads again is seen when it goes
//! to sleep. `sleeping` names the item that it sleeps for, because a consumer may be stopped (`SIGSTOP`) in its sleep, and
//! says that it sleeps for as long as it is: it waits only if it sleeps for the item that is published next.
//!
//! # Whom to trust
//!
//! The coordinator trusts nothing in *reply*: `taken` must not go back (past what was taken back neither) nor past what is
//! published, each
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
