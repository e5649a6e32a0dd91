//! The hand-over of minibatches from the coordinator to one consumer, and their return.
//!
//! # The two regions
//!
//! Each consumer has two small memory files. The coordinator writes *deliver*, which is sealed; the consumer maps it
//! read-only. *reply* is the only memory that the consumer writes.
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
//! `taken` and `sleeping` have 64 bits and never wrap. `published` (a futex) and `released` are counts modulo 2^32.
//! Each side keeps its own 64-bit copy of these counts. The copies never differ by more than the capacity, so the
//! difference is exact.
//!
//! # The life of an item
//!
//! The coordinator **publishes** item number `seq` (0, 1, 2, ...). The consumer **takes** items in this order, and
//! **releases** each exactly once, in any order. The coordinator may **take back** items that are published and not
//! taken. It does so if a consumer has stopped reading while others have no items.
//!
//! Both sides take by a compare-and-swap of `taken`: the consumer from `t` to `t + 1`, the coordinator from `t` to
//! `published`. Only one of the two succeeds, so an item is either the consumer's or taken back. A consumer that fails
//! discards the item that it read, and tries again. It looks at a buffer only after it has taken the item.
//!
//! An item is *in flight* from its publication until it is taken back, or until the coordinator has read its release.
//! Never more than `capacity` items are in flight. It follows that neither ring overwrites an entry that is still
//! needed:
//!
//! - *Items.* Publishing `seq` overwrites item `seq - capacity`. Fewer than `capacity` items are in flight, so more
//!   than `seq - capacity` are not. Each of these was taken back, or was released after it was taken, which the
//!   coordinator checked. So `taken` is more than `seq - capacity`, and there are two cases for item `seq - capacity`.
//!   If the consumer took it, the consumer read it before `taken` said so (release/acquire on `taken`). If it was taken
//!   back, a consumer may still read it, or a mixture of it and the next one. That consumer expects a value of `taken`
//!   that will not come again, so its compare-and-swap fails.
//! - *Releases.* The consumer's release number `r` overwrites release `r - capacity`. Suppose that the consumer has
//!   seen `published = p`, and that `b` items were taken back before item `p - 1` was published. The consumer took at
//!   most `p - b` items and at least `r + 1`, so `r < p - b`. When the coordinator published item `p - 1`, fewer than
//!   `capacity` items were in flight. So it had read more than `p - 1 - b - capacity >= r - capacity` releases, and
//!   number `r - capacity` was among them. It read that release before it stored `published = p` (release/acquire on
//!   `published`).
//!
//! # Sleeping
//!
//! Nobody makes a system call unless the other side sleeps. A side that goes to sleep first announces it and then looks
//! again. A side that changes something then checks whether the other sleeps. One of the two must see the other
//! (Dekker), because both put a sequentially consistent fence between their store and their load.
//!
//! A consumer is armed from the moment its regions are created, because the coordinator may be asleep while a session
//! thread admits the consumer.
//!
//! | | stores | fence | loads |
//! |---|---|---|---|
//! | consumer going to sleep | `sleeping` | | `published`; `absent`: rings the [`Doorbell`] |
//! | coordinator publishing | `published` | | `sleeping`: wakes the futex |
//! | coordinator going to sleep | `armed = 1` | | `taken`, `released` |
//! | consumer taking, releasing | `taken`, `released` | | `armed`: rings the [`Doorbell`] |
//! | coordinator that gives a consumer up as absent | `absent = 1` | | `sleeping`: it is not absent |
//!
//! The consumer sleeps on `published` by futex. The kernel compares the word with the value that the consumer saw last,
//! so it does not miss a publication between the check and the sleep. The coordinator sleeps in `epoll_wait` on one
//! eventfd per consumer. The event of an eventfd stays in the epoll set, so a ring before the sleep is not missed
//! either ([`Doorbell`]).
//!
//! No items are kept ready for an *absent* consumer, so the coordinator cannot see it take one. It notices that the
//! consumer reads again when the consumer goes to sleep. A consumer that is stopped (`SIGSTOP`) in its sleep keeps
//! saying that it sleeps. `sleeping` therefore names the item that the consumer sleeps for: the consumer waits only if
//! that is the item to be published next.
//!
//! # Trust
//!
//! The coordinator trusts nothing in *reply*. `taken` must not decrease, not even below the items taken back, and must
//! not pass `published`. Each release must be of an item that is published, taken and not yet released. Otherwise the
//! session ends ([`crate::ErrorKind::ProtocolViolation`]). A consumer that falsely says that it sleeps costs one system
//! call per item. The consumer checks every item too ([`Item::check`]).
//!
//! The steps are in [`protocol`]. They make no system calls, and `tests/loom.rs` model-checks them.

pub mod protocol;

#[cfg(not(feature = "loom"))]
mod doorbell;
#[cfg(not(feature = "loom"))]
mod receiver;
#[cfg(not(feature = "loom"))]
mod region;
#[cfg(not(feature = "loom"))]
mod sender;

pub use protocol::{Account, Full, Item, ItemKind};

#[cfg(not(feature = "loom"))]
pub use self::{
    doorbell::{Bell, Doorbell, Ringer},
    receiver::Receiver,
    sender::Sender,
};
