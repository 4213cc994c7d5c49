//! Machine: the state of one shard, and `apply`, its only door.

use crate::batch_memory::BatchMemory;
use crate::deadlines::Deadlines;
use crate::dedup::DedupRecord;
use crate::digest::{Digest, Marks};
use crate::flow::{Flow, Node, NodeNames, StagedFlow};
use crate::ids::Ids;
use crate::image::Cut;
use crate::kept::Kept;
use crate::keys::Keys;
use crate::life::Task;
use crate::names::Names;
use crate::outbox::{Link, Owed};
use crate::queue::{Queue, Queues};
use crate::replay::{ClaimKey, Resent};
use crate::schedule::Schedule;
use crate::slab::{Slab, Slot};
use crate::stage::Staged;
use crate::tally::Tally;
use crate::turn::Turn;
use crate::unique::Window;
use crate::wire::wire_struct;
use crate::{
    EnqueueCut, Entry, Event, Outcome, Payloads, RULES_CURRENT, Rejection, SessionId, ShardId,
    TaskId, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};

/// The identity of a shard: its number, the number of shards, and the cluster's incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's incarnation, part of every task id.
    pub incarnation: u32,
    /// The number of this shard.
    pub shard: ShardId,
    /// How many shards the cluster has.
    pub shards: u16,
}

/// The state of one shard, as a value: two machines fed the same entries are equal byte for byte.
#[derive(Debug)]
pub struct Machine {
    pub(crate) identity: Identity,
    pub(crate) counters: Counters,

    // Records: what a checkpoint stores, beside the counters.
    pub(crate) tasks: Slab<Task>,
    pub(crate) queues: Queues,
    pub(crate) keys: Keys,
    pub(crate) dedup: Kept<DedupRecord>,
    pub(crate) resent: Kept<Resent>,
    pub(crate) batches: Kept<BatchMemory>,
    pub(crate) staged: Kept<Staged>,
    pub(crate) outbox: Kept<Owed>,
    pub(crate) links: Kept<Link>,
    pub(crate) windows: Kept<Window>,
    pub(crate) flows: Kept<Flow>,
    /// Nodes of flows, by flow and number.
    pub(crate) nodes: Kept<Node>,
    pub(crate) staged_flows: Kept<StagedFlow>,
    pub(crate) schedules: Kept<Schedule>,
    pub(crate) tallies: Kept<Tally>,

    // Indexes: derived from the records, and rebuilt from them.
    pub(crate) ids: Ids,
    pub(crate) deadlines: Deadlines,
    pub(crate) names: Names,
    /// Dead letters, in id order.
    pub(crate) dead: BTreeMap<TaskId, Slot>,
    /// Dead letters by the time of their death.
    pub(crate) died: BTreeSet<(Timestamp, TaskId)>,
    /// Claims of each session, by the order in which they were made.
    pub(crate) session_claims: BTreeMap<SessionId, BTreeMap<u64, Slot>>,
    /// Claimed tasks by the numbered claim that got them, in the order in which it got them.
    pub(crate) numbered_claims: BTreeMap<(ClaimKey, u64), Slot>,
    /// Tasks that have a unique key, by the hash of queue and key.
    pub(crate) unique: BTreeMap<u128, Slot>,
    /// Nodes of flows by the hash of their name.
    pub(crate) node_names: NodeNames,
    /// Nodes of flows that have ended and are still kept.
    pub(crate) ended_nodes: u64,
    /// Bytes that tasks take on the heap, beside their slots.
    pub(crate) task_heap_bytes: u64,

    /// The checkpoint that is being taken.
    pub(crate) cut: Cut,
    /// Queues whose limits let more tasks through than before; empty between commands.
    pub(crate) opened: Vec<Slot>,
    /// Deleted queues that lost a task or a key; empty between commands.
    pub(crate) shrunk: Vec<Slot>,
}

/// The numbers of a shard that belong to no single task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The time of the last entry.
    pub(crate) now: Timestamp,
    /// No claim ends by itself before this moment.
    pub(crate) lease_floor: Timestamp,
    /// The sum of all times by which claims were put off, see [`crate::PutOff`].
    pub(crate) put_off_ms: u64,
    /// The sequence of the next task id.
    pub(crate) next_sequence: u64,
    /// The next claim token.
    pub(crate) next_token: u64,
    /// The order of the next task at the back of a lane.
    pub(crate) next_back: u64,
    /// The order of the next task at the front of a lane; it counts down.
    pub(crate) next_front: u64,
    /// The highest version of the rules of a spread queue that was deleted here.
    pub(crate) laid_version: u64,
    /// The running digest of all entries so far.
    pub(crate) digest: Digest,
    /// The digests at the last marks.
    pub(crate) marks: Marks,
}

wire_struct!(Counters {
    now,
    lease_floor,
    put_off_ms,
    next_sequence,
    next_token,
    next_back,
    next_front,
    laid_version,
    digest,
    marks,
});

impl Default for Counters {
    fn default() -> Counters {
        const MIDDLE: u64 = 1 << 63;
        Counters {
            now: Timestamp(0),
            lease_floor: Timestamp(0),
            put_off_ms: 0,
            next_sequence: 1,
            next_token: 1,
            next_back: MIDDLE,
            next_front: MIDDLE - 1,
            laid_version: 0,
            digest: Digest::default(),
            marks: Marks::default(),
        }
    }
}

impl Machine {
    /// An empty shard.
    pub fn new(identity: Identity) -> Machine {
        Machine {
            identity,
            counters: Counters::default(),
            tasks: Slab::new(),
            queues: Queues::new(),
            keys: Keys::new(),
            dedup: Kept::new(),
            resent: Kept::new(),
            batches: Kept::new(),
            staged: Kept::new(),
            outbox: Kept::new(),
            links: Kept::new(),
            windows: Kept::new(),
            flows: Kept::new(),
            nodes: Kept::new(),
            staged_flows: Kept::new(),
            schedules: Kept::new(),
            tallies: Kept::new(),
            ids: Ids::new(identity.shard),
            deadlines: Deadlines::default(),
            names: Names::default(),
            dead: BTreeMap::new(),
            died: BTreeSet::new(),
            session_claims: BTreeMap::new(),
            numbered_claims: BTreeMap::new(),
            unique: BTreeMap::new(),
            node_names: NodeNames::new(),
            ended_nodes: 0,
            task_heap_bytes: 0,
            cut: Cut::default(),
            opened: Vec::new(),
            shrunk: Vec::new(),
        }
    }

    /// The shard, its cluster and the number of shards.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Applies the commands of one committed entry; the state changes in no other way.
    ///
    /// Answers each command, in order. Time never goes back: an entry with an older time is applied
    /// at the state's time.
    ///
    /// # Panics
    /// On rules that this build does not know, because going on would diverge from the other
    /// replicas.
    pub fn apply(
        &mut self,
        entry: &Entry<'_>,
        payloads: &mut dyn Payloads,
        events: &mut Vec<Event>,
    ) -> Vec<Result<Outcome, Rejection>> {
        assert!(
            entry.is_known(),
            "an entry follows rules {} and this build knows {RULES_CURRENT}; upgrade this node",
            entry.rules
        );
        self.counters.now = self.counters.now.max(entry.now);
        let mut turn = Turn::new(self, payloads, events);
        let answers = entry.commands.iter().map(|command| turn.apply(command)).collect();
        turn.store_owed();
        self.fold_kept();
        answers
    }

    /// The time of the last entry.
    pub fn now(&self) -> Timestamp {
        self.counters.now
    }

    /// The cut between the tasks that this shard has now and those that come later.
    pub fn enqueue_cut(&self) -> EnqueueCut {
        EnqueueCut { next_sequence: self.counters.next_sequence, now: self.counters.now }
    }

    /// When `ExpireDue` next has something to do; `None` if nothing has a deadline. The moment may
    /// have passed. Schedules have a time of their own, see [`Machine::next_schedule`].
    pub fn next_due(&self) -> Option<Timestamp> {
        let parts = [
            self.deadlines.next_due(),
            self.dedup.next_due(),
            self.resent.next_due(),
            self.batches.next_due(),
            self.staged.next_due(),
            self.windows.next_due(),
            self.flows.next_due(),
            self.staged_flows.next_due(),
            self.tallies.next_due(),
        ];
        parts.into_iter().flatten().min()
    }

    /// Estimated bytes of memory that this state takes, without bodies. Counters make the question
    /// cheap.
    pub fn memory_bytes(&self) -> u64 {
        /// The id in its group, and the slot's marks.
        const ID_BYTES: usize = 6;
        let per_task = Slab::<Task>::VALUE_BYTES + ID_BYTES;
        let per_dead = (size_of::<(TaskId, Slot)>() + size_of::<(Timestamp, TaskId)>()) * 3 / 2;
        let per_key = size_of::<(u128, Slot)>() * 3 / 2;
        let per_claim = size_of::<((ClaimKey, u64), Slot)>() * 3 / 2;
        let fixed = self.tasks.len() * per_task
            + self.queues.by_name.len() * Slab::<Queue>::VALUE_BYTES
            + self.dead.len() * per_dead
            + self.unique.len() * per_key
            + self.numbered_claims.len() * per_claim;
        fixed as u64
            + self.task_heap_bytes
            + self.deadlines.memory_bytes()
            + self.names.memory_bytes()
            + self.keys.memory_bytes()
            + self.dedup.memory_bytes()
            + self.resent.memory_bytes()
            + self.batches.memory_bytes()
            + self.staged.memory_bytes()
            + self.outbox.memory_bytes()
            + self.links.memory_bytes()
            + self.windows.memory_bytes()
            + self.flows.memory_bytes()
            + self.nodes.memory_bytes()
            + self.staged_flows.memory_bytes()
            + self.schedules.memory_bytes()
            + self.tallies.memory_bytes()
    }

    /// The number of tasks in the state, finished ones included.
    pub fn task_count(&self) -> u64 {
        self.tasks.len() as u64
    }
}

/// Shard of a queue: the hash of its name over the number of shards.
pub fn home_shard(queue: &str, shards: u16) -> ShardId {
    let hash = xxhash_rust::xxh3::xxh3_64(queue.as_bytes());
    ShardId((hash % u64::from(shards.max(1))) as u16)
}
