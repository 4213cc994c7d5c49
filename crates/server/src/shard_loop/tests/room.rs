//! A node whose disk fills up: it hands over, appends no entries, stands still, and recovers.

use super::*;
use crate::disk::DiskGuard;
use taskyard_replica::Room;

const RESERVE: u64 = 64 << 20;
/// Below the reserve, below the floor, and with nothing left.
const SHORT: u64 = 60 << 20;
const FILLED: u64 = 15 << 20;
const NOTHING: u64 = 0;
const PLENTY: u64 = 1 << 30;

impl ByHand {
    /// Sets the free space of its disk.
    fn has_left(&mut self, bytes: u64) {
        if self.inner.disk.reserve_bytes() != RESERVE {
            self.inner.disk = DiskGuard::new(self._dir.path(), RESERVE);
        }
        self.inner.disk.pretend(bytes);
        self.inner.look_at_disk();
        self.turn();
    }

    /// A follower answers a heartbeat and reports its room.
    fn beats(&mut self, peer: u64, room: Room) {
        let term = self.replica().term();
        let hint = match room {
            Room::Enough => 0,
            Room::Low => 1,
            Room::Full => 2,
        };
        self.hear(peer, MessageType::MsgHeartbeatResponse, term, |it| it.reject_hint = hint);
        assert_eq!(self.replica().room_of(peer), room);
    }

    /// The outcome of an enqueue that the first peer acknowledges, if it is proposed.
    fn try_enqueue(&mut self) -> Option<Result<Outcome, Error>> {
        let shards = self.shards.clone();
        let mut call = async move { shards.local().propose(SHARD, enqueue(), true).await }.boxed();
        assert!((&mut call).now_or_never().is_none());
        self.turn();
        self.has_all(PEERS[0]);
        call.now_or_never()
    }

    /// Another leader sends an entry.
    fn append_from(&mut self, peer: u64) {
        let (last, term) = (self.replica().last_index(), self.replica().term());
        let log_term = self.replica().applied_term();
        let entry = LogEntry { index: last + 1, term, ..LogEntry::default() };
        self.hear(peer, MessageType::MsgAppend, term, |append| {
            (append.index, append.log_term) = (last, log_term);
            append.mut_entries().push(entry);
        });
    }
}

/// The disk fell from plenty to less than the reserve between two checks. Every enqueue was refused
/// until the control group's leader had noticed.
#[tokio::test]
async fn a_leader_whose_disk_fills_up_at_once_hands_over_before_it_refuses_anything() {
    let mut node = ByHand::new();
    let _networks = node.connect().await;
    node.beats(2, Room::Low);
    node.beats(3, Room::Enough);
    node.has_left(SHORT);
    assert_eq!(node.replica().heir(), Some(3), "it has room");
    let answer = node.try_enqueue();
    assert!(matches!(answer, Some(Err(Error::NotLeader { .. }))), "{answer:?}");

    let term = node.replica().term();
    node.hear(3, MessageType::MsgTransferLeader, term, |refusal| refusal.reject = true);
    node.inner.look_at_disk();
    assert_eq!(node.replica().heir(), None, "there is nobody else");
    let answer = node.try_enqueue();
    assert!(matches!(answer, Some(Err(Error::DiskFull(_)))), "{answer:?}");
    node.has_left(PLENTY);
    let answer = node.try_enqueue();
    assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
}

#[test]
fn a_full_follower_takes_no_entries_votes_and_goes_on_when_there_is_room() {
    let mut node = ByHand::new();
    node.is_deposed_by(2);
    node.has_left(FILLED);
    let last = node.replica().last_index();
    node.append_from(2);
    assert_eq!(node.replica().last_index(), last);
    let (term, log_term) = (node.replica().term() + 1, node.replica().applied_term());
    // Its leader is silent for long, and the other peer is a candidate.
    (0..20).for_each(|_| node.replica().tick());
    node.hear(3, MessageType::MsgRequestVote, term, |vote| {
        (vote.index, vote.log_term) = (last, log_term);
    });
    assert_eq!(node.replica().hard_state().vote, 3);
    node.has_left(PLENTY);
    node.append_from(3);
    assert_eq!(node.replica().last_index(), last + 1);
}

/// A leader sends again what was not acknowledged in time.
#[test]
fn entries_that_come_again_take_no_room() {
    const BYTES: usize = 4 << 20;
    let mut node = ByHand::new();
    node.is_deposed_by(2);
    node.has_left(FILLED + 4 * BYTES as u64);
    let (last, term) = (node.replica().last_index(), node.replica().term());
    let log_term = node.replica().applied_term();
    for _ in 0..10 {
        let data = vec![0; BYTES].into();
        let entry = LogEntry { index: last + 1, term, data, ..LogEntry::default() };
        node.hear(2, MessageType::MsgAppend, term, |append| {
            (append.index, append.log_term) = (last, log_term);
            append.mut_entries().push(entry);
        });
        assert_eq!(node.replica().last_index(), last + 1);
        assert_eq!(node.inner.room(), Room::Low);
    }
}

#[test]
fn a_full_leader_without_an_heir_refuses_at_once_and_delays_due_commands() {
    let mut node = ByHand::new();
    node.has_left(FILLED);
    assert!(node.leads());
    let last = node.replica().last_index();
    let answer = node.try_enqueue();
    assert!(matches!(answer, Some(Err(Error::DiskFull(_)))), "{answer:?}");
    let shards = node.shards.clone();
    let mut call = async move { shards.local().propose(SHARD, enqueue(), false).await }.boxed();
    assert!((&mut call).now_or_never().is_none());
    node.turn();
    let answer = call.now_or_never();
    assert!(matches!(answer, Some(Err(Error::DiskFull(_)))), "any command: {answer:?}");
    assert_eq!(node.replica().last_index(), last);
    node.inner.tick().unwrap();
    node.turn();
    assert_ne!(node.inner.wait(), Some(Duration::ZERO), "it would turn for nothing");
}

/// With a majority of full disks, every call waited until its deadline, with an unknown outcome.
#[test]
fn a_leader_whose_followers_are_full_refuses_at_once() {
    let mut node = ByHand::new();
    for peer in PEERS {
        node.beats(peer, Room::Full);
    }
    let last = node.replica().last_index();
    let answer = node.try_enqueue();
    assert!(matches!(answer, Some(Err(Error::DiskFull(_)))), "{answer:?}");
    assert_eq!(node.replica().last_index(), last);
    node.beats(2, Room::Low);
    let answer = node.try_enqueue();
    assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
}

#[test]
fn a_node_without_any_room_stands_still_until_there_is_some() {
    let mut node = ByHand::new();
    let term = node.replica().term();
    node.has_left(NOTHING);
    assert!(!node.leads(), "others need not wait for it");
    node.hear(2, MessageType::MsgHeartbeat, term + 1, |_| ());
    node.inner.next_tick = node.inner.real;
    for _ in 0..100 {
        node.inner.real += peers::TICK;
        node.inner.tick().unwrap();
    }
    node.turn();
    assert_eq!(node.replica().term(), term, "it can't remember another one");
    let answer = node.try_enqueue();
    assert!(matches!(answer, Some(Err(Error::NotLeader { .. }))), "{answer:?}");
    node.has_left(PLENTY);
    node.hear(2, MessageType::MsgHeartbeat, term + 1, |_| ());
    assert_eq!(node.replica().term(), term + 1);
}
