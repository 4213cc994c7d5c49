//! Room: what this node does while its disk is nearly full.
//!
//! Below the reserve, a leader hands over each shard to a replica on a disk with more room, in the
//! turn in which it notices; callers wait for the next leader and are not refused. Below the floor,
//! the node appends no entries, begins no checkpoint and fetches no snapshot; it still votes. If
//! even a vote may not fit, the node stands still until there is room again.

use super::{ShardLoop, hand_over::choose};
use crate::Error;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use taskyard_replica::{
    NodeId, Room,
    eraftpb::{Message, MessageType},
    message_bytes,
};

/// How long after a round of offers all heirs are asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The disk's room as last seen, and the heirs that were asked to lead.
#[derive(Debug, Default)]
pub(super) struct DiskRoom {
    room: Room,
    stands_still: bool,
    /// By group: the replicas that were asked.
    offered: BTreeMap<u64, BTreeSet<u64>>,
    /// By node: how many groups it was asked to lead.
    given: BTreeMap<NodeId, usize>,
    forget_at: Option<Instant>,
}

impl ShardLoop {
    /// Checks the free space, before any input is taken.
    pub(super) fn look_at_disk(&mut self) {
        self.disk.begin_turn();
        self.follow_disk();
        if self.disk.is_full() {
            self.give_way();
        }
    }

    /// Applies the disk's room to replicas, checkpoints and the fetcher.
    fn follow_disk(&mut self) {
        let (room, stands_still) = (self.disk.room(), !self.disk.can_write());
        self.checkpoints.set_room(self.disk.room_bytes(), room);
        if (room, stands_still) == (self.disk_room.room, self.disk_room.stands_still) {
            return;
        }
        (self.disk_room.room, self.disk_room.stands_still) = (room, stands_still);
        self.fetcher.pause(room == Room::Full);
        for number in self.shards.numbers() {
            let shard = &mut self.shards[number];
            shard.replica.set_room(room);
            if stands_still && shard.has_peers {
                // It could not even vote in an election: the others need not wait for it.
                shard.replica.abdicate();
            }
            self.activate(number);
        }
        if let Some(control) = &mut self.control
            && stands_still
            && control.has_peers
        {
            control.replica.abdicate();
        }
    }

    /// The disk's room as last seen.
    pub(super) fn room(&self) -> Room {
        self.disk_room.room
    }

    /// Whether nothing at all may be written.
    pub(super) fn stands_still(&self) -> bool {
        self.disk_room.stands_still
    }

    /// Whether a shard that this node leads may append commands of its own.
    pub(super) fn may_append(&self, number: usize) -> bool {
        let can_commit = |shard: &super::LocalShard| shard.replica.can_commit();
        self.disk_room.room != Room::Full
            && !self.is_kept_out()
            && self.shards.get(number).is_some_and(can_commit)
    }

    /// Refuses a caller's command if this node's disk or a majority of the replicas' disks are
    /// full.
    pub(super) fn room_for(&mut self, number: usize, bytes: usize) -> Result<(), Error> {
        let shard = &self.shards[number];
        if shard.replica.is_handing_over() {
            // The command is not proposed: the caller is redirected to the next leader.
            return Ok(());
        }
        if !shard.replica.can_commit() && self.disk_room.room != Room::Full {
            let what = format!(
                "the disks of most nodes with a copy of shard {} are full; free some space there, or \
                 add nodes, and send it again",
                shard.id
            );
            return Err(Error::DiskFull(what));
        }
        let taken = self.disk.take(bytes as u64);
        self.follow_disk();
        taken
    }

    /// Whether the disk has room for what a peer's message writes.
    pub(super) fn has_room_for(&mut self, number: usize, message: &Message) -> bool {
        if self.disk_room.stands_still {
            return false;
        }
        match message.get_msg_type() {
            // A replica that knows that its disk is full refuses the entries itself.
            MessageType::MsgAppend if !message.entries.is_empty() => {
                if self.shards[number].adds(message) {
                    let _ = self.disk.take(message_bytes(message) as u64);
                    self.follow_disk();
                }
                true
            }
            MessageType::MsgSnapshot => self.disk_room.room != Room::Full,
            _ => true,
        }
    }

    /// Hands the shards that this node leads to replicas on disks with room.
    fn give_way(&mut self) {
        if self.hand_over.is_some() {
            return;
        }
        let state = &mut self.disk_room;
        if state.forget_at.is_none_or(|at| at <= self.real) {
            state.forget_at = Some(self.real + AGAIN_AFTER);
            state.offered.clear();
            state.given.clear();
        }
        for number in self.shards.numbers() {
            let shard = &self.shards[number];
            if shard.leading.is_none() || !shard.has_peers || shard.replica.is_handing_over() {
                continue;
            }
            let (group, voters) = (shard.group, shard.replica.members().voters);
            let was_offered = |id| {
                self.disk_room.offered.get(&group).is_some_and(|offered| offered.contains(&id))
            };
            let is_reached =
                |node| self.network.get().is_some_and(|network| network.is_reached(node));
            let heirs = shard.replica.peers().into_iter().filter(|peer| {
                let may_lead =
                    peer.active && peer.room == Room::Enough && voters.contains(&peer.id);
                may_lead && peer.id != shard.replica.id() && !was_offered(peer.id)
            });
            let heirs = heirs.filter_map(|peer| {
                let node = self.node_of(group, peer.id).filter(|node| is_reached(*node))?;
                Some((node, peer.id, peer.lag))
            });
            let chosen = choose(&heirs.collect::<Vec<_>>(), &self.disk_room.given);
            let Some((node, heir)) = chosen else { continue };
            tracing::info!("the disk is full: node {node} is asked to lead shard {}", shard.id);
            self.disk_room.offered.entry(group).or_default().insert(heir);
            *self.disk_room.given.entry(node).or_default() += 1;
            self.shards[number].replica.transfer_leader(heir);
            self.activate(number);
        }
    }
}
