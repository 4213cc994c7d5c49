//! Every bound of a node: name, unit, reason. Those of a shard's state are the machine's.
//!
//! Reaching one is a named answer or a closed connection, never an accident. `docs/limits.md`
//! mirrors this file, checked by a test. Sizes that nobody outside can notice (buffers, bites) stay
//! beside their code.

taskyard_machine::limits! {
    /// Each may be a worker; more than this is a load for several nodes. The default; a node may
    /// lower it, and takes fewer when it may open fewer files.
    CONNECTIONS_MAX: usize = 20_000, "connections";
    /// Clients of one port that wait for their connection to be accepted; the next ones try again a
    /// second later. The system may allow fewer (`net.core.somaxconn`).
    LISTEN_BACKLOG: u32 = 4_096, "connections";
    /// Files that connections leave to the log, the checkpoints and the runtime.
    FILES_RESERVED: u64 = 512, "files";
    /// Connections that are told at once that there are too many; others are closed without a word.
    REFUSALS_MAX: usize = 32, "connections";
    /// How long a refused client may take to be told.
    REFUSAL_MS_MAX: u64 = 1_000, "ms";
    /// Calls under way on one HTTP/2 connection; the client waits with the next.
    STREAMS_MAX: u32 = 2_000, "calls";
    /// Bytes of requests in flight on one HTTP/2 stream; the client waits with more.
    STREAM_WINDOW_BYTES: u32 = 1 << 20, "bytes";
    /// Bytes of requests in flight on one HTTP/2 connection: what a rude client can make us hold.
    CONNECTION_WINDOW_BYTES: u32 = 4 << 20, "bytes";
    /// The longest line of a Faktory client: a bulk push. Longer ones are an error, and the end of
    /// the connection.
    FAKTORY_LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The same for its first line, before anybody knows who it is.
    FAKTORY_HELLO_BYTES_MAX: usize = 64 << 10, "bytes";
    /// Lines over 1 MiB that are being read at once: the next ones wait on the wire.
    FAKTORY_LARGE_LINES_MAX: usize = 16, "lines";
    /// How long a Faktory client may take to say hello.
    FAKTORY_HELLO_MS_MAX: u64 = 2_000, "ms";
    /// How long the rest of a line may take once it has begun.
    FAKTORY_LINE_MS_MAX: u64 = 60_000, "ms";
    /// How long a fetch waits for a job.
    FAKTORY_FETCH_MS_MAX: u64 = 2_000, "ms";
    /// Members of one JSON object that a Faktory client sends; those inside of a job's arguments
    /// and `custom` are not counted.
    FAKTORY_MEMBERS_MAX: usize = 256, "members";
    /// The longest pattern of a MUTATE: it is compared with every job.
    FAKTORY_PATTERN_BYTES_MAX: usize = 1 << 10, "bytes";
    /// Job ids that one MUTATE names; each is looked up.
    FAKTORY_JIDS_MAX: usize = 10_000, "ids";
    /// MUTATEs that are carried out at once: each may look through all jobs. The next ones wait.
    FAKTORY_MUTATIONS_MAX: usize = 4, "mutations";
    /// Jobs of one bulk push.
    FAKTORY_BULK_JOBS_MAX: usize = 250_000, "jobs";
    /// How long a line waits for room among the requests in flight before its connection is closed.
    FAKTORY_ROOM_MS_MAX: u64 = 10_000, "ms";
    /// Queues that a Faktory worker is listed with. Of more, the one that it asked for first goes
    /// first.
    FAKTORY_WORKER_QUEUES_MAX: usize = 1_000, "queues";
    /// Queues that were removed over Faktory's protocol and are not listed there until they are
    /// used again.
    FAKTORY_REMOVED_MAX: usize = 10_000, "queues";
    /// Larger than the default of HTTP/2: a batch of tasks is many times that.
    FRAME_BYTES_MAX: u32 = 64 << 10, "bytes";
    /// Head of one request, over HTTP/1 and HTTP/2.
    HEADER_BYTES_MAX: u32 = 32 << 10, "bytes";
    /// How long a connection may take for its first request: one that sends nothing is no client.
    FIRST_REQUEST_MS_MAX: u64 = 30_000, "ms";
    /// How long the head of a request may take over HTTP/1, and the pause between two requests.
    HEAD_MS_MAX: u64 = 30_000, "ms";
    /// How long a client may take no bytes when there are some for it.
    WRITE_MS_MAX: u64 = 30_000, "ms";
    /// How often we look whether an HTTP/2 peer still lives.
    PING_EVERY_MS: u64 = 20_000, "ms";
    /// How long that peer may take to answer.
    PING_ANSWER_MS_MAX: u64 = 10_000, "ms";
    /// Largest body of a request, over HTTP and gRPC: an atomic batch at its limit, as JSON.
    BODY_BYTES_MAX: usize = 32 << 20, "bytes";
    /// Elements of all lists and maps of one JSON body, those inside of payloads and results not
    /// counted: each is many times larger in memory.
    JSON_ELEMENTS_MAX: usize = 400_000, "elements";
    /// Levels of a payload, result or resume state that is JSON: the strictest common parsers read
    /// 64, and an answer puts four around it.
    JSON_DEPTH_MAX: usize = 60, "levels";
    /// What a call in flight costs by itself; the number of calls at once follows from this and the
    /// node's memory.
    CALL_BYTES: usize = 16 << 10, "bytes";
    /// What the parts of one gRPC message may come to in memory, beyond their own bytes: counted
    /// before it is decoded.
    DECODED_BYTES_MAX: usize = 64 << 20, "bytes";
    /// A body, or a gRPC message, that has begun must bring so many bytes, or its end, in each
    /// period.
    BODY_PROGRESS_BYTES_MIN: usize = 64 << 10, "bytes";
    /// That period.
    BODY_PROGRESS_MS_MAX: u64 = 10_000, "ms";
    /// How long a piece of an answer (64 KiB) may wait for a client that takes none of it, whatever
    /// else the client takes; then its connection is closed.
    ANSWER_TAKEN_MS_MAX: u64 = 60_000, "ms";
    /// How long the whole body of an HTTP request may take to arrive.
    BODY_MS_MAX: u64 = 30_000, "ms";
    /// How long a call may take to begin its answer: the longest long poll, and time to send half a
    /// request.
    ANSWER_MS_MAX: u64 = 90_000, "ms";
    /// How long a call over HTTP waits for the end of a bulk operation before it says how far it
    /// is.
    BULK_WAIT_MS_MAX: u64 = 60_000, "ms";
    /// Bodies on one page of a list: with more the page is cut short, so that an answer fits a
    /// message.
    PAGE_BODY_BYTES_MAX: usize = 4 << 20, "bytes";
    /// Tasks that a claim over several shards is answered with, in bytes, or one task: the answer
    /// fits the 4 MiB that gRPC clients take without a setting. One shard gives `claim_bytes_max`.
    CLAIM_ANSWER_BYTES_MAX: usize = 3 << 20, "bytes";
    /// Fields of a task that one unique key is the hash of: each is looked up in its payload.
    UNIQUE_FIELDS_MAX: usize = 16, "fields";
    /// One of these fields: its steps bound how deep the payload is looked into.
    UNIQUE_FIELD_BYTES_MAX: usize = 256, "bytes";
    /// Batches of one enqueue stream that are under way at once: enough to keep the disk busy.
    STREAM_BATCHES_MAX: usize = 16, "batches";
    /// Past occurrences that one call may run again; more are several calls.
    BACKFILL_MAX: usize = 10_000, "occurrences";
    /// Backups at once through one node: each holds a view of the disk, on other nodes too.
    BACKUPS_MAX: usize = 4, "backups";
    /// How long a backup waits for a client that reads nothing: the view it holds keeps files from
    /// being removed.
    BACKUP_STALL_MS_MAX: u64 = 60_000, "ms";
    /// Worker sessions of one node: each costs a stream and its claims.
    SESSIONS_MAX: usize = 100_000, "workers";
    /// How long a worker may take to say hello once its stream is open.
    HELLO_MS_MAX: u64 = 10_000, "ms";
    /// How often a worker tells what it holds.
    BEAT_EVERY_MS: u64 = 5_000, "ms";
    /// A session that is not heard for this long is over.
    SILENCE_MS_MAX: u64 = 15_000, "ms";
    /// The same once its connection closed without a goodbye.
    SILENCE_AFTER_CUT_MS_MAX: u64 = 5_000, "ms";
    /// A worker that asks over connections of its own (Faktory's) and beats is over after this long
    /// without a word.
    ASKING_SILENCE_MS_MAX: u64 = 60_000, "ms";
    /// One that never beat and has no connection is forgotten after this long: no claim holds
    /// longer.
    ASKING_UNHEARD_MS_MAX: u64 = 86_400_000, "ms";
    /// How long a worker may take to read what its stream is sent.
    WORKER_READ_MS_MAX: u64 = 10_000, "ms";
    /// Messages that wait for a worker's connection; the rest waits in the shards.
    MESSAGES_WAITING_MAX: usize = 4, "messages";
    /// Bodies in one of these messages, so that no client needs a larger one than its largest task.
    MESSAGE_TASKS_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Batches of a worker's answers under way; further ones wait on the wire.
    ANSWERS_UNDER_WAY_MAX: usize = 64, "batches";
    /// Orders that wait for a worker's stream; a cancellation beyond comes with the next renewal.
    ORDERS_WAITING_MAX: usize = 1_000, "orders";
    /// Lost workers stay listed this long, so that somebody can look for them. Orders to workers of
    /// other nodes are remembered as long.
    LOST_KEPT_FOR_MS: u64 = 86_400_000, "ms";
    /// Lost workers that a node lists at most, the longest lost go first; and orders to workers of
    /// other nodes that it remembers.
    LOST_KEPT_MAX: usize = 10_000, "workers";
    /// Claims and hints that one shard parks. Each is a worker that waits: more workers than this
    /// for one shard's queues are a mistake in somebody's loop.
    PARKED_MAX: usize = 100_000, "claims";
    /// Different lists of types that the claims parked at one queue name: each list is looked at
    /// when the queue has something. Workers of one program name the same list.
    PARKED_TYPE_LISTS_MAX: usize = 1_000, "lists";
    /// Calls that wait for the shards of a node. More than this is a disk that stands still: a call
    /// beyond is refused with `unavailable`.
    INPUTS_MAX: usize = 1_000_000, "calls";
    /// What those calls add to the log. The same holds beyond.
    INPUT_BYTES_MAX: usize = 256 << 20, "bytes";
    /// Raft messages of other nodes that wait for the shards of a node. A large one beyond is
    /// dropped: Raft sends it again.
    RAFT_INPUT_BYTES_MAX: usize = 64 << 20, "bytes";
    /// More shards cost memory and checkpoints, and bring nothing on one node.
    SHARDS_MAX: u16 = 4_096, "shards";
    /// Less memory would not hold the batches in flight.
    MEMORY_BYTES_MIN: u64 = 16 << 20, "bytes";
    /// One command as the log keeps it, such as an ack with its result and its follow-ups. A larger
    /// one is refused before it is proposed, with `payload_too_large`: the message that carries it
    /// to the other nodes must fit a frame between them.
    COMMAND_BYTES_MAX: usize = 16 << 20, "bytes";
    /// What one turn takes for the log, of calls and of Raft messages each, about: it is written
    /// and synced as one record.
    TURN_LOG_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Log of a shard after which it is checkpointed: bounds the replay at the next start.
    CHECKPOINT_LOG_BYTES_MAX: u64 = 64 << 20, "bytes";
    /// Log of all shards of a node that is written before an old entry goes: each changed shard is
    /// checkpointed within this (half of it, with other replicas), and an entry is kept no longer
    /// for a replica that is down.
    LOG_KEPT_BYTES_MAX: u64 = 384 << 20, "bytes";
    /// The same while another replica is getting a snapshot that the entry follows, or is catching
    /// up with the log, and this node's disk has room. Beyond that the other replica begins anew.
    LOG_PINNED_BYTES_MAX: u64 = 4 << 30, "bytes";
    /// Free disk space below which a node takes nothing more into its log, at most; otherwise a
    /// quarter of the reserve. It goes on to vote, and stands still below a quarter of this.
    DISK_FLOOR_BYTES_MAX: u64 = 256 << 20, "bytes";
    /// Changed records of a shard after which it is checkpointed: bounds the batch that is written
    /// at once.
    DIRTY_RECORDS_MAX: usize = 200_000, "records";
    /// How long a change may wait for a checkpoint.
    DIRTY_FOR_MS_MAX: u64 = 60_000, "ms";
    /// How long an embedded engine's stop takes without a grace. Checkpoints that are not done by
    /// then are replayed.
    STOP_MS_MAX: u64 = 60_000, "ms";
    /// Queues that get series of their own in the metrics, by name. More labels than this is a
    /// database, not metrics.
    METRIC_QUEUES_MAX: usize = 1_000, "queues";
    /// Bytes of a cluster's secret: a shorter one could be guessed by somebody who takes over a
    /// peer's address.
    CLUSTER_SECRET_BYTES_MIN: usize = 32, "bytes";
    /// Largest frame between two nodes: an atomic batch at its limit, or a piece of a snapshot,
    /// with room to spare.
    PEER_FRAME_BYTES_MAX: usize = 24 << 20, "bytes";
    /// The same before a peer has proved who it is.
    PEER_HANDSHAKE_BYTES_MAX: usize = 4 << 10, "bytes";
    /// How long the handshake between two nodes may take, with connecting.
    PEER_HANDSHAKE_MS_MAX: u64 = 5_000, "ms";
    /// Connections to the peer port that have not proved who they are; the oldest goes first.
    PEER_STRANGERS_MAX: usize = 256, "connections";
    /// Peers that are connected to one node. A cluster is tens of nodes, and each costs buffers.
    PEERS_MAX: usize = 1_000, "nodes";
    /// Nodes that ask to join at once; the next is told to ask again.
    PEER_JOINS_MAX: usize = 16, "nodes";
    /// How long the cluster may take to answer a node that asks to join.
    PEER_JOIN_MS_MAX: u64 = 60_000, "ms";
    /// How long a node that starts waits for peers that do not answer, before it votes and
    /// acknowledges: whoever knows newer data of it refuses it in that time.
    START_HEARS_MS_MAX: u64 = 1_000, "ms";
    /// How often two connected nodes tell each other that they live, at least. One that is not
    /// heard otherwise is asked every quarter of a second.
    PEER_PING_EVERY_MS: u64 = 1_000, "ms";
    /// A peer that sends or takes nothing for this long is down.
    PEER_SILENCE_MS_MAX: u64 = 5_000, "ms";
    /// A peer that was not heard for about this long is not counted on: it is missing in
    /// majorities, and is sent no calls until it is heard again.
    PEER_QUIET_MS_MAX: u64 = 1_000, "ms";
    /// The longest pause between two attempts to reach a peer.
    PEER_REDIAL_MS_MAX: u64 = 2_000, "ms";
    /// Raft messages that wait for one peer's connection. The oldest is dropped for the next: Raft
    /// sends again.
    PEER_RAFT_FRAMES_MAX: usize = 65_536, "messages";
    /// Bytes of the same.
    PEER_RAFT_BYTES_MAX: usize = 32 << 20, "bytes";
    /// Bytes of what is told to one peer, above all which workers live, that wait for its
    /// connection. The oldest is dropped for the next: it is told again.
    PEER_TELL_BYTES_MAX: usize = 8 << 20, "bytes";
    /// Calls under way to one peer, or from one; more are refused and surely not executed.
    PEER_CALLS_MAX: usize = 100_000, "calls";
    /// Those of them that wait there for something to happen: each worker that waits for tasks of a
    /// shard led there is one, and more are refused. The rest is kept for what must be done soon,
    /// as renewals.
    PEER_PARKED_CALLS_MAX: usize = 80_000, "calls";
    /// Bytes of calls that wait for one peer's connection; a call beyond is refused.
    PEER_CALL_BYTES_MAX: usize = 64 << 20, "bytes";
    /// Bytes of one peer's calls that are being executed here; a call beyond is refused.
    PEER_SERVED_BYTES_MAX: usize = 256 << 20, "bytes";
    /// Bytes of answers that wait for a peer to read them, after which none of its calls are begun;
    /// its Raft messages are heard all the same.
    PEER_ANSWER_BYTES_SOFT_MAX: usize = 16 << 20, "bytes";
    /// The same, after which further answers wait for room. A peer that reads nothing at all is
    /// down, see above.
    PEER_ANSWER_BYTES_MAX: usize = 128 << 20, "bytes";
}
