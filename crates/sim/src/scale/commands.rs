//! Commands: the requests to shards in their real encoding, and the bytes of their frames between
//! two nodes.

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
/// Version, kind of call, shard, lengths: the bytes of a call or reply besides its commands.
pub(crate) const CALL_BYTES: usize = FRAME_BYTES + 8;
/// The answer to an enqueue or ack: an id or nothing.
pub(crate) const ANSWER_BYTES: usize = CALL_BYTES + 20;
/// The bytes of a handed-out task besides its payload: id, token, queue, type, times.
pub(crate) const TASK_BYTES: usize = CALL_BYTES + 90;
/// The bytes of a session's id in the list of live ones.
pub(crate) const SESSION_BYTES: usize = 16;
/// A ping carries a clock.
pub(crate) const PING_BYTES: usize = FRAME_BYTES + 8;
/// The bytes of a client's message besides its content: an HTTP/2 frame, a gRPC prefix, field tags.
pub(crate) const CLIENT_BYTES: usize = 30;
/// A worker's beat: an empty message, or its few claims.
pub(crate) const BEAT_BYTES: usize = CLIENT_BYTES + 32;

/// The commands that never change.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) enqueue: EncodedCommand,
    pub(crate) begin_term: EncodedCommand,
    /// Finished tasks are not kept, so that the memory of a long run is bounded.
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

/// One worker's claim of one task; `None` makes a claim without a worker, to ask what is claimable.
pub(crate) fn claim<'a>(worker: Option<(u32, ClaimNumber)>) -> Claim<'a> {
    Claim {
        queues: vec![ClaimQueue { name: QUEUE, weight: 1 }],
        types: vec![],
        weighted_seed: None,
        tasks_max: 1,
        bytes_max: u32::MAX,
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

/// A session's id, as long on the wire as a random one.
fn session(worker: u32) -> SessionId {
    SessionId((1 << 127) | u128::from(worker))
}
