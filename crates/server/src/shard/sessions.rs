//! Sessions: which worker sessions are alive, as leaders on this node remember it. Never logged.
//!
//! A session with claims that is silent for 15 s is ended: each shard with claims of the session
//! gets an `EndSession`, repeated until all claims there have ended.
//!
//! A closed connection shortens this to 5 s, if it was to the node that last reported the session:
//! a worker may have moved to another node long before its old node notices. A new leader gives
//! every session a fresh 15 s. A session that calls over connections of its own has a minute from
//! its node's last report, because it may beat at another node only then.

use super::{session_news::SessionNews, standstill::Lost};
use crate::limits;
use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};
use taskyard_machine::{SessionId, ShardId, TaskId};
use taskyard_replica::NodeId;

/// The longest silence of a session.
const SILENCE_MAX: Duration = Duration::from_millis(limits::SILENCE_MS_MAX);
/// The longest silence of a session that calls over connections of its own.
const SILENCE_ASKING_MAX: Duration = Duration::from_millis(limits::ASKING_SILENCE_MS_MAX);
/// The longest silence after the session's connection closed without a goodbye.
const SILENCE_AFTER_CUT_MAX: Duration = Duration::from_millis(limits::SILENCE_AFTER_CUT_MS_MAX);

struct Session {
    ends_at: Instant,
    /// The node that last reported the session alive.
    named_by: Option<NodeId>,
    /// The node that did so before; either report may be late.
    named_before_by: Option<NodeId>,
    /// Shards where the session has claims, or had some lately.
    shards: BTreeSet<ShardId>,
    /// Shards where an `EndSession` is on its way through the log.
    ending: BTreeSet<ShardId>,
    not_started: Vec<TaskId>,
}

/// The sessions with claims on shards that this node leads.
#[derive(Default)]
pub(crate) struct Sessions {
    sessions: HashMap<SessionId, Session>,
    /// No session ends before this moment.
    next_end_at: Option<Instant>,
}

impl Sessions {
    /// Notes that the session has claims on `shard`. A claim is no sign of life, because a parked
    /// claim is served even if its worker is gone. An unknown session begins with the full time,
    /// and so does one whose end was decided, because its claims from now on are new.
    pub(crate) fn note_claims(&mut self, session: SessionId, shard: ShardId, now: Instant) {
        let ends_at = now + SILENCE_MAX;
        let known = self.sessions.entry(session).or_insert_with(|| Session {
            ends_at,
            named_by: None,
            named_before_by: None,
            shards: BTreeSet::new(),
            ending: BTreeSet::new(),
            not_started: Vec::new(),
        });
        if known.ends_at <= now {
            known.ends_at = ends_at;
        }
        known.shards.insert(shard);
        let ends_at = known.ends_at;
        self.look_at(ends_at);
    }

    pub(crate) fn hear(&mut self, from: NodeId, news: SessionNews, now: Instant) {
        match news {
            SessionNews::Alive(sessions) => self.alive(from, &sessions, now + SILENCE_MAX),
            SessionNews::Asking(sessions) => {
                self.alive(from, &sessions, now + SILENCE_ASKING_MAX);
            }
            SessionNews::Cut(session) => self.cut(from, session, now),
            SessionNews::NotStarted(session, tasks) => self.not_started(from, session, tasks),
            // For the workers' side of the node, which has them by now.
            SessionNews::Cancelled(_) | SessionNews::Heard(_) => {}
        }
    }

    /// These sessions are alive on node `from`, until `ends_at` without further news.
    fn alive(&mut self, from: NodeId, sessions: &[SessionId], ends_at: Instant) {
        for session in sessions {
            if let Some(known) = self.sessions.get_mut(session) {
                if known.named_by != Some(from) {
                    known.named_before_by = known.named_by.replace(from);
                }
                known.ends_at = ends_at;
                known.not_started.clear();
            }
        }
    }

    /// The session's connection to node `from` closed without a goodbye.
    fn cut(&mut self, from: NodeId, session: SessionId, now: Instant) {
        let ends_at = now + SILENCE_AFTER_CUT_MAX;
        if let Some(known) = self.known_of(from, session) {
            known.ends_at = known.ends_at.min(ends_at);
            self.look_at(ends_at);
        }
    }

    /// The nodes that may have the session: the last two that reported it alive. Empty if none has
    /// since this node became leader.
    pub(crate) fn nodes_of(&self, session: SessionId) -> impl Iterator<Item = NodeId> {
        let known = self.sessions.get(&session);
        let nodes = known.map(|known| [known.named_by, known.named_before_by]);
        nodes.into_iter().flatten().flatten()
    }

    /// These claims of the session never began, as far as node `from` knows.
    fn not_started(&mut self, from: NodeId, session: SessionId, tasks: Vec<TaskId>) {
        if let Some(known) = self.known_of(from, session) {
            known.not_started = tasks;
        }
    }

    /// The session, unless another node has reported it since.
    fn known_of(&mut self, from: NodeId, session: SessionId) -> Option<&mut Session> {
        let known = self.sessions.get_mut(&session)?;
        known.named_by.is_none_or(|node| node == from).then_some(known)
    }

    /// The session has ended on `shard`, or has no more claims there.
    pub(crate) fn ended(&mut self, session: SessionId, shard: ShardId) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.shards.remove(&shard);
            known.ending.remove(&shard);
            if known.shards.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }

    /// The session's end was not decided: it is proposed again.
    pub(crate) fn not_ended(&mut self, session: SessionId, shard: ShardId, now: Instant) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.ending.remove(&shard);
            self.look_at(now);
        }
    }

    /// Forgets a shard that this node no longer leads.
    pub(crate) fn forget(&mut self, shard: ShardId) {
        self.sessions.retain(|_, session| {
            session.shards.remove(&shard);
            session.ending.remove(&shard);
            !session.shards.is_empty()
        });
    }

    /// Makes up for time in which no worker could be heard. That time does not count as silence,
    /// and every session gets it again, up to the full time.
    pub(crate) fn make_up(&mut self, lost: Lost, now: Instant) {
        let again_by = now + (lost.stood + lost.jumped).min(SILENCE_MAX);
        let mut next: Option<Instant> = None;
        for session in self.sessions.values_mut() {
            session.ends_at = (session.ends_at + lost.stood).max(again_by);
            next = next.into_iter().chain([session.ends_at]).min();
        }
        self.next_end_at = next;
    }

    /// When the next session may end.
    pub(crate) fn next_end_at(&self) -> Option<Instant> {
        self.next_end_at
    }

    /// The sessions that have been silent for too long, on each shard with claims of theirs, with
    /// the claims there that never began. Each is returned once until its end is decided.
    pub(crate) fn take_silent(&mut self, now: Instant) -> Vec<(SessionId, ShardId, Vec<TaskId>)> {
        if self.next_end_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut silent = Vec::new();
        let mut next: Option<Instant> = None;
        for (&id, session) in &mut self.sessions {
            if session.ends_at > now {
                next = Some(next.map_or(session.ends_at, |next| next.min(session.ends_at)));
                continue;
            }
            for &shard in session.shards.difference(&session.ending) {
                let of_shard =
                    session.not_started.iter().copied().filter(|task| task.home == shard);
                silent.push((id, shard, of_shard.collect()));
            }
            session.ending = session.shards.clone();
        }
        self.next_end_at = next;
        silent
    }

    fn look_at(&mut self, at: Instant) {
        self.next_end_at = Some(self.next_end_at.map_or(at, |next| next.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId(7);
    const NODE: NodeId = 1;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn silent_at(sessions: &mut Sessions, at: Instant) -> Vec<ShardId> {
        sessions.take_silent(at).into_iter().map(|(_, shard, _)| shard).collect()
    }

    #[test]
    fn silence_ends_a_session_on_every_shard_once() {
        let start = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), start);
        sessions.note_claims(S, ShardId(4), start);
        assert_eq!(silent_at(&mut sessions, start + seconds(14)), []);
        assert_eq!(silent_at(&mut sessions, start + seconds(15)), [ShardId(1), ShardId(4)]);
        assert_eq!(silent_at(&mut sessions, start + seconds(16)), [], "under way");
        sessions.ended(S, ShardId(1));
        sessions.not_ended(S, ShardId(4), start + seconds(16));
        assert_eq!(silent_at(&mut sessions, start + seconds(16)), [ShardId(4)]);
        sessions.ended(S, ShardId(4));
        assert!(sessions.sessions.is_empty());
    }

    #[test]
    fn a_sign_of_life_delays_the_end_and_a_cut_hastens_it() {
        let start = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), start);
        sessions.alive(NODE, &[S, SessionId(8)], start + seconds(25));
        assert_eq!(silent_at(&mut sessions, start + seconds(20)), []);
        sessions.cut(NODE, S, start + seconds(11));
        assert_eq!(silent_at(&mut sessions, start + seconds(15)), []);
        assert_eq!(silent_at(&mut sessions, start + seconds(16)), [ShardId(1)]);
    }

    #[test]
    fn a_session_that_asks_has_a_minute_after_its_node_is_gone_unless_it_was_cut() {
        let start = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), start);
        sessions.hear(NODE, SessionNews::Asking(vec![S]), start);
        assert_eq!(silent_at(&mut sessions, start + seconds(59)), []);
        assert_eq!(silent_at(&mut sessions, start + seconds(60)), [ShardId(1)]);
        sessions.not_ended(S, ShardId(1), start + seconds(60));
        sessions.hear(NODE, SessionNews::Asking(vec![S]), start + seconds(60));
        sessions.hear(NODE, SessionNews::Cut(S), start + seconds(61));
        assert_eq!(silent_at(&mut sessions, start + seconds(66)), [ShardId(1)]);
    }

    #[test]
    fn a_claim_is_no_sign_of_life() {
        let start = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), start);
        sessions.note_claims(S, ShardId(2), start + seconds(14));
        assert_eq!(silent_at(&mut sessions, start + seconds(15)), [ShardId(1), ShardId(2)]);
        // A claim made after the end was decided has its own time.
        sessions.ended(S, ShardId(2));
        sessions.note_claims(S, ShardId(2), start + seconds(16));
        assert_eq!(silent_at(&mut sessions, start + seconds(30)), []);
        assert_eq!(silent_at(&mut sessions, start + seconds(31)), [ShardId(2)]);
    }

    #[test]
    fn a_session_lives_on_if_it_is_heard_after_a_cut() {
        let start = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), start);
        sessions.cut(NODE, S, start + seconds(1));
        sessions.alive(NODE, &[S], start + seconds(19));
        assert_eq!(silent_at(&mut sessions, start + seconds(18)), []);
        assert_eq!(silent_at(&mut sessions, start + seconds(19)), [ShardId(1)]);
    }

    #[test]
    fn a_late_cut_of_an_old_node_is_ignored() {
        let start = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), start);
        sessions.alive(NODE, &[S], start + SILENCE_MAX);
        sessions.alive(2, &[S], start + seconds(20));
        sessions.cut(NODE, S, start + seconds(6));
        assert_eq!(silent_at(&mut sessions, start + seconds(19)), []);
        sessions.cut(2, S, start + seconds(10));
        assert_eq!(silent_at(&mut sessions, start + seconds(15)), [ShardId(1)]);
    }

    #[test]
    fn a_late_report_of_an_old_node_does_not_hide_the_new_one() {
        let now = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), now);
        let mut nodes_after = |named_by: &[NodeId]| {
            named_by.iter().for_each(|&node| sessions.alive(node, &[S], now));
            sessions.nodes_of(S).collect::<Vec<_>>()
        };
        assert!(nodes_after(&[]).is_empty());
        assert_eq!(nodes_after(&[1, 1]), [1]);
        assert_eq!(nodes_after(&[2]), [2, 1]);
        assert_eq!(nodes_after(&[1]), [1, 2], "it was late");
        assert_eq!(nodes_after(&[2, 3]), [3, 2]);
    }

    #[test]
    fn claims_that_never_began_are_reported_to_their_shard_until_the_session_lives_again() {
        let task = |home, sequence| TaskId {
            incarnation: 1,
            home: ShardId(home),
            origin: ShardId(home),
            sequence,
        };
        let start = Instant::now();
        let mut sessions = Sessions::default();
        sessions.note_claims(S, ShardId(1), start);
        sessions.not_started(NODE, S, vec![task(1, 5), task(2, 6)]);
        let silent = sessions.take_silent(start + seconds(15));
        assert_eq!(silent, [(S, ShardId(1), vec![task(1, 5)])]);
        sessions.not_ended(S, ShardId(1), start + seconds(15));
        sessions.alive(NODE, &[S], start + seconds(30));
        assert_eq!(sessions.take_silent(start + seconds(30)), [(S, ShardId(1), vec![])]);
    }
}
