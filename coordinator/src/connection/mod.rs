//! The coordinator's end of a connection.
//!
//! * [`peer`]: the process at the other end, and when it hangs up.
//! * [`reply_queue`]: replies on their way to it. No thread waits for a peer that does not read.

pub(crate) mod peer;
pub(crate) mod reply_queue;
