//! Messages between replicas: their bytes, and the checks before a replica accepts them.
//!
//! A raft node trusts its messages: some messages that no healthy peer sends would stop it. Every
//! message from outside therefore passes `is_sound` first; a message that fails is ignored like a
//! lost packet.

use crate::eraftpb::{Message, MessageType};
use protobuf::Message as _;

/// The error of bytes that are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer message of {bytes} bytes can't be read: {what}")]
pub struct InvalidMessage {
    bytes: usize,
    what: String,
}

/// A message as bytes for the wire.
pub fn encode_message(message: &Message) -> Vec<u8> {
    message.write_to_bytes().expect("a message has no required fields that could be missing")
}

/// The length of [`encode_message`]'s result, computed without encoding.
pub fn message_bytes(message: &Message) -> usize {
    message.compute_size() as usize
}

/// Decodes the bytes of [`encode_message`].
pub fn decode_message(bytes: &[u8]) -> Result<Message, InvalidMessage> {
    Message::parse_from_bytes(bytes)
        .map_err(|error| InvalidMessage { bytes: bytes.len(), what: error.to_string() })
}

/// Whether a replica `id` whose log ends at `last_index` may hand this message to its raft node.
pub(crate) fn is_sound(message: &Message, id: u64, last_index: u64) -> bool {
    // Term 0 marks the messages of a node to itself.
    let addressed = message.to == id && message.from != 0 && message.from != id && message.term > 0;
    addressed
        && match message.get_msg_type() {
            MessageType::MsgAppend => entries_are_sound(message),
            // A peer cannot have more of this log than there is.
            MessageType::MsgAppendResponse => message.index <= last_index || message.reject,
            MessageType::MsgSnapshot => {
                let metadata = message.get_snapshot().get_metadata();
                let voters = metadata.get_conf_state().get_voters();
                metadata.index > 0 && metadata.term > 0 && !voters.is_empty()
            }
            MessageType::MsgRequestVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgHeartbeat
            | MessageType::MsgHeartbeatResponse
            | MessageType::MsgTimeoutNow => true,
            // An heir refuses leadership with this message; see `transfer.rs`.
            MessageType::MsgTransferLeader => message.reject,
            // Only the leader's own driver sends proposals, reads and transfers; the others never
            // leave a node.
            MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgPropose
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum
            | MessageType::MsgReadIndex
            | MessageType::MsgReadIndexResp => false,
        }
}

fn entries_are_sound(message: &Message) -> bool {
    let mut before = (message.index, message.log_term);
    message.entries.iter().all(|entry| {
        let follows = before.0.checked_add(1) == Some(entry.index)
            && entry.term >= before.1
            && entry.term <= message.term;
        before = (entry.index, entry.term);
        follows
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eraftpb::Entry;

    fn append(entries: &[(u64, u64)]) -> Message {
        let mut message =
            Message { from: 2, to: 1, term: 5, index: 7, log_term: 3, ..Default::default() };
        message.set_msg_type(MessageType::MsgAppend);
        for &(index, term) in entries {
            message.mut_entries().push(Entry { index, term, ..Default::default() });
        }
        message
    }

    #[test]
    fn messages_survive_the_wire_and_invalid_bytes_are_rejected() {
        let message = append(&[(8, 3), (9, 5)]);
        let bytes = encode_message(&message);
        assert_eq!(message_bytes(&message), bytes.len());
        assert_eq!(decode_message(&bytes), Ok(message));
        assert!(decode_message(&[0xff, 0xff, 0xff]).is_err());
    }

    #[test]
    fn appends_must_be_whole() {
        for (entries, sound) in [
            (vec![], true),
            (vec![(8, 3), (9, 5)], true),
            (vec![(9, 3)], false),
            (vec![(8, 3), (10, 3)], false),
            (vec![(8, 2)], false),
            (vec![(8, 6)], false),
        ] {
            assert_eq!(is_sound(&append(&entries), 1, 100), sound, "{entries:?}");
        }
    }

    #[test]
    fn only_messages_of_peers_to_this_replica_pass() {
        let message = |kind, from, to, term| {
            let mut message = Message { from, to, term, ..Default::default() };
            message.set_msg_type(kind);
            message
        };
        use MessageType::*;
        for (kind, from, to, term, sound) in [
            (MsgHeartbeat, 2, 1, 5, true),
            (MsgHeartbeat, 2, 3, 5, false),
            (MsgHeartbeat, 1, 1, 5, false),
            (MsgHeartbeat, 0, 1, 5, false),
            (MsgHeartbeat, 2, 1, 0, false),
            (MsgHup, 2, 1, 5, false),
            (MsgPropose, 2, 1, 5, false),
            (MsgReadIndex, 2, 1, 5, false),
            (MsgTransferLeader, 2, 1, 5, false),
            (MsgSnapshot, 2, 1, 5, false),
        ] {
            assert_eq!(
                is_sound(&message(kind, from, to, term), 1, 100),
                sound,
                "{kind:?} {from}->{to}"
            );
        }
        let mut refusal = message(MsgTransferLeader, 2, 1, 5);
        refusal.reject = true;
        assert!(is_sound(&refusal, 1, 100), "an heir may refuse");
        let mut ahead = message(MsgAppendResponse, 2, 1, 5);
        ahead.index = 101;
        assert!(!is_sound(&ahead, 1, 100), "a peer claims entries that do not exist");
    }
}
