//! Remembers the stream in which the ranks of a job meet, or the members of a cohort.
//!
//! A job without a seed takes part in any stream of its dataset. The ranks of one job must all take the same stream,
//! but another job may open a second one between two of them. So the registry remembers the first rank's choice. The
//! choice binds the others as long as that stream can serve them.

use std::sync::{Arc, Weak};

use coprep_protocol::message::Attach;

use crate::registry::identity::differs;
use crate::registry::{Registry, serves};
use crate::stream::{Stream, StreamKey};

/// The processes that must meet in one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MeetingParty {
    /// The ranks of the jobs of a group.
    Group(String),
    Cohort(String),
}

impl MeetingParty {
    pub(crate) fn of(request: &Attach) -> Option<Self> {
        match &request.cohort {
            Some(cohort) => Some(MeetingParty::Cohort(cohort.name.clone())),
            None if request.world_size > 1 => Some(MeetingParty::Group(request.group.clone())),
            None => None,
        }
    }

    /// Returns `true` if some of them are in a stream, and wait there for the others.
    fn waits_in(&self, stream: &Stream) -> bool {
        match self {
            MeetingParty::Group(group) => stream.awaits_ranks_of(group),
            MeetingParty::Cohort(cohort) => stream.awaits_members_of(cohort),
        }
    }
}

/// The streams that first ranks and first members have chosen.
#[derive(Default)]
pub(super) struct Meetings(Vec<(StreamKey, MeetingParty, Weak<Stream>)>);

impl Registry {
    /// Returns the stream that the other ranks or members have taken. If there is none, returns `found` and remembers
    /// it for them.
    pub(super) fn meet(
        &self,
        key: &StreamKey,
        request: &Attach,
        found: &Arc<Stream>,
    ) -> Arc<Stream> {
        let Some(party) = MeetingParty::of(request) else {
            return found.clone();
        };
        let mut open = self.open();
        let meetings = &mut open.meetings.0;
        // A stream that cannot serve this rank may serve the next one, because jobs of a group may differ in their
        // seeds. So only closed streams are forgotten.
        meetings.retain(|(_, _, stream)| stream.upgrade().is_some_and(|s| !s.is_closed()));
        let those = meetings.iter().filter(|(k, p, _)| k == key && *p == party);
        let mut chosen = those.filter_map(|(_, _, stream)| stream.upgrade());
        if let Some(stream) = chosen.find(|stream| serves(stream, key, request)) {
            return stream;
        }
        meetings.push((*key, party, Arc::downgrade(found)));
        found.clone()
    }

    /// Returns in what another stream differs in which fellows of a rank or member wait for it, or `None` if they do not
    /// wait elsewhere.
    pub(crate) fn fellows_elsewhere(
        &self,
        party: &MeetingParty,
        here: &Arc<Stream>,
    ) -> Option<String> {
        let open = self.open();
        let met = open.meetings.0.iter().filter(|(_, p, _)| p == party);
        let streams: Vec<_> = met.filter_map(|(_, _, stream)| stream.upgrade()).collect();
        drop(open);
        let others = streams.iter().filter(|stream| !stream.is_closed());
        others
            .filter(|other| !Arc::ptr_eq(other, here) && party.waits_in(other))
            .find_map(|other| differs(here, other))
    }
}
