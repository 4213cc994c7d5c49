//! Commands: what is asked of shards, in their real encoding, and what a frame with one takes on the
//! wire between two nodes.

use taskyard_machine::{
    Ack, Body, Claim, ClaimNumber, ClaimQueue, ClaimToken, Command, EncodedCommand, Enqueue,
    NewTask, QueueSettings, SessionId, SetQueue, TaskId,
};

/// The one queue of each shard.
const QUEUE: &str = "queue";
/// Longer than any task runs here.
const LEASE_MS: u64 = 30_000;

/// A frame's length, kind and stream.
pub(crate) const FRAME_BYTES: usize = 13;
/// Version, kind of call, shard, lengths: what a call or reply has around its commands.
pub(crate) const CALL_BYTES: usize = FRAME_BYTES + 8;
/// The answer to an enqueue or ack: an id or nothing.
pub(crate) const ANSWER_BYTES: usize = CALL_BYTES + 20;
/// What a handed-out task has beside its payload: id, token, queue, type, times.
pub(crate) const TASK_BYTES: usize = CALL_BYTES + 90;
/// A session's id in the list of those that live.
pub(crate) const SESSION_BYTES: usize = 16;
/// A ping carries a clock.
pub(crate) const PING_BYTES: usize = FRAME_BYTES + 8;
/// What a client's message has around what it says: an HTTP/2 frame, a gRPC prefix, field tags.
pub(crate) const CLIENT_BYTES: usize = 30;
/// A worker's beat: an empty message, or the few claims it holds.
pub(crate) const BEAT_BYTES: usize = CLIENT_BYTES + 32;

/// The commands that are alike each time.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) enqueue: EncodedCommand,
    pub(crate) begin_term: EncodedCommand,
    /// Finished tasks are not kept: a run of any length stays within memory.
    pub(crate) settings: EncodedCommand,
    pub(crate) expire: EncodedCommand,
}

impl Commands {
    pub(crate) fn new(payload_bytes: usize) -> Commands {
        let payload = vec![b'x'; payload_bytes];
        let body = Body { payload: &payload, ..Body::default() };
        let task = NewTask { task_type: "send-mail", body, ..NewTask::default() };
        let settings = QueueSettings { retention_count: Some(0), ..QueueSettings::default() };
        Commands {
            enqueue: EncodedCommand::new(&Command::Enqueue(Enqueue { queue: QUEUE, task })),
            begin_term: EncodedCommand::new(&Command::BeginTerm),
            settings: EncodedCommand::new(&Command::SetQueue(SetQueue { queue: QUEUE, settings })),
            expire: EncodedCommand::new(&Command::ExpireDue),
        }
    }
}

/// One worker's claim of one task; `None` is nobody's, to ask what there is.
pub(crate) fn claim<'a>(worker: Option<(u32, ClaimNumber)>) -> Claim<'a> {
    Claim {
        queues: vec![ClaimQueue { name: QUEUE, weight: 1 }],
        types: vec![],
        weighted_seed: None,
        tasks_max: 1,
        lease_ms: LEASE_MS,
        session: worker.map(|(worker, _)| session(worker)),
        number: worker.map(|(_, number)| number),
        begun: false,
        worker: "worker",
    }
}

pub(crate) fn ack<'a>(task: TaskId, token: ClaimToken) -> Ack<'a> {
    Ack { task, token, result: None, follow_ups: Vec::new() }
}

/// As long on the wire as a random one.
fn session(worker: u32) -> SessionId {
    SessionId((1 << 127) | u128::from(worker))
}
