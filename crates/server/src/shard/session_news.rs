//! SessionNews: what a node tells leaders on other nodes about its workers' sessions, and what they
//! tell it, as bytes.
//!
//! No news is answered or waited for: lost news is sent again or corrects itself within seconds.
//! News of one node is taken in the order in which it was sent.

use super::{CancelledClaim, HeardWorker, Shards, gateway::News, inbox::Input};
use crate::cluster::call_kind;
use bytes::Bytes;
use taskyard_machine::{
    DecodeError, SessionId, TaskId,
    wire::{decode_from_node, encode_for_node, wire_enum},
};
use taskyard_replica::NodeId;

/// The byte after the kind: the version of the layout.
const VERSION: u8 = 1;

/// News of one node about sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionNews {
    /// See [`Shards::sessions_alive`].
    Alive(Vec<SessionId>),
    /// See [`Shards::session_cut`].
    Cut(SessionId),
    /// See [`Shards::session_not_started`].
    NotStarted(SessionId, Vec<TaskId>),
    /// The workers of these claims should stop: for the node with their sessions, not for leaders.
    Cancelled(Vec<CancelledClaim>),
    /// See [`Shards::heard`]: for nodes with connections of the same workers.
    Heard(Vec<HeardWorker>),
    /// See [`Shards::sessions_asking`].
    Asking(Vec<SessionId>),
}

wire_enum!(SessionNews {
    1 => Alive(sessions),
    2 => Cut(session),
    3 => NotStarted(session, tasks),
    4 => Cancelled(claims),
    5 => Heard(workers),
    6 => Asking(sessions),
});

impl SessionNews {
    /// The news as bytes, after the byte that names the receiver.
    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![call_kind::SHARD];
        bytes.extend(encode_for_node(VERSION, self));
        bytes.into()
    }

    /// The reverse of [`SessionNews::encode`].
    pub fn decode(bytes: &[u8]) -> Result<SessionNews, DecodeError> {
        match bytes {
            [call_kind::SHARD, news @ ..] => decode_from_node(VERSION, news),
            _ => Err(DecodeError { what: "the message is not for the shards".into() }),
        }
    }
}

impl Shards {
    /// Takes news of node `from` about sessions.
    pub fn take_news(&self, from: NodeId, news: SessionNews) {
        match &news {
            SessionNews::Alive(sessions) | SessionNews::Asking(sessions)
                if from != self.routes().me() =>
            {
                self.tell_gateway(News::Elsewhere(sessions));
            }
            SessionNews::Cancelled(claims) => return self.tell_gateway(News::Cancelled(claims)),
            SessionNews::Heard(workers) => return self.tell_gateway(News::Heard(workers)),
            _ => {}
        }
        self.tell(Input::Sessions { from, news });
    }

    /// Tells the leaders on all nodes about sessions of this node.
    pub(super) fn broadcast_news(&self, news: SessionNews) {
        self.tell_others(&news);
        self.take_news(self.routes().me(), news);
    }

    /// Tells all other nodes.
    pub(super) fn tell_others(&self, news: &SessionNews) {
        let Some(network) = self.others() else { return };
        let (me, bytes) = (self.routes().me(), news.encode());
        for &node in self.routes().control().nodes().keys().filter(|node| **node != me) {
            network.tell(node, bytes.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::Activity;
    use taskyard_machine::{ClaimToken, ShardId};

    #[test]
    fn news_arrive_as_they_were_and_damage_is_an_error() {
        let home = ShardId(1);
        let task = TaskId { incarnation: 7, home, origin: home, sequence: 300 };
        for news in [
            SessionNews::Alive(vec![SessionId(1), SessionId(u128::MAX)]),
            SessionNews::Asking(vec![SessionId(2)]),
            SessionNews::Cut(SessionId(1)),
            SessionNews::NotStarted(SessionId(1), vec![task]),
            SessionNews::Cancelled(vec![CancelledClaim {
                session: SessionId(1),
                task,
                token: ClaimToken(9),
            }]),
            SessionNews::Heard(vec![HeardWorker {
                session: SessionId(1),
                activity: Activity::Quiet,
                silent_ms: 900,
            }]),
        ] {
            let bytes = news.encode();
            assert_eq!(SessionNews::decode(&bytes), Ok(news));
            for end in 0..bytes.len() {
                assert!(SessionNews::decode(&bytes[..end]).is_err(), "cut at {end}");
            }
        }
        assert!(SessionNews::decode(&[call_kind::CLUSTER, 1, 2]).is_err());
        assert!(SessionNews::decode(&[call_kind::SHARD, 1, 77]).is_err());
    }
}
