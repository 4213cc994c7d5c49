//! Every bound of a node: name, unit, reason. The machine's `limits.rs` has the bounds of a shard.
//!
//! A client that reaches a bound gets a named error, or its connection is closed. A test compares
//! `docs/limits.md` with this file. Sizes that no client can notice (buffers, steps) stay beside
//! their code.

taskyard_machine::limits! {
    /// Each connection may be a worker; more workers than this are a load for several nodes. This
    /// is the default. A node may lower it, and takes fewer when its process may open fewer files.
    CONNECTIONS_MAX: usize = 20_000, "connections";
    /// Clients of one port that wait until their connection is accepted. Further clients try again
    /// a second later. The system may allow fewer (`net.core.somaxconn`).
    LISTEN_BACKLOG: u32 = 4_096, "connections";
    /// Files that connections leave to the log, the checkpoints and the runtime.
    FILES_RESERVED: u64 = 512, "files";
    /// Refused connections that get an answer at a time. Further connections are closed without
    /// one.
    REFUSALS_MAX: usize = 32, "connections";
    /// How long the answer to a refused client may take.
    REFUSAL_MS_MAX: u64 = 1_000, "ms";
    /// Calls in flight on one HTTP/2 connection. The client waits before it sends the next.
    STREAMS_MAX: u32 = 2_000, "calls";
    /// Bytes of requests in flight on one HTTP/2 stream. The client waits before it sends more.
    STREAM_WINDOW_BYTES: u32 = 1 << 20, "bytes";
    /// Bytes of requests in flight on one HTTP/2 connection: the most memory that a hostile client
    /// can take here.
    CONNECTION_WINDOW_BYTES: u32 = 4 << 20, "bytes";
    /// The longest line of a Faktory client: a bulk push. A longer line gets an error, and its
    /// connection is closed.
    FAKTORY_LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The longest first line of a Faktory client, which has not proved its password yet.
    FAKTORY_HELLO_BYTES_MAX: usize = 64 << 10, "bytes";
    /// Lines over 1 MiB that are read at a time. Further lines wait on the wire.
    FAKTORY_LARGE_LINES_MAX: usize = 16, "lines";
    /// How long a Faktory client may take to say hello.
    FAKTORY_HELLO_MS_MAX: u64 = 2_000, "ms";
    /// How long the rest of a line may take after its first byte.
    FAKTORY_LINE_MS_MAX: u64 = 60_000, "ms";
    /// How long a fetch waits for a job.
    FAKTORY_FETCH_MS_MAX: u64 = 2_000, "ms";
    /// Members of one JSON object of a Faktory client. Members inside a job's arguments and
    /// `custom` do not count.
    FAKTORY_MEMBERS_MAX: usize = 256, "members";
    /// The longest pattern of a MUTATE: the broker compares it with every job.
    FAKTORY_PATTERN_BYTES_MAX: usize = 1 << 10, "bytes";
    /// Job ids that one MUTATE names: the broker looks up each.
    FAKTORY_JIDS_MAX: usize = 10_000, "ids";
    /// MUTATEs that run at a time: each may look through all jobs. Further ones wait.
    FAKTORY_MUTATIONS_MAX: usize = 4, "mutations";
    /// Jobs of one bulk push.
    FAKTORY_BULK_JOBS_MAX: usize = 250_000, "jobs";
    /// How long a line waits for room among the requests in flight. Then its connection is closed.
    FAKTORY_ROOM_MS_MAX: u64 = 10_000, "ms";
    /// Queues that the list of workers shows for a Faktory worker. Beyond that, the queue that the
    /// worker asked for first is left out.
    FAKTORY_WORKER_QUEUES_MAX: usize = 1_000, "queues";
    /// Queues that were removed over Faktory's protocol. The broker leaves them out of its answers
    /// there until a client uses them again.
    FAKTORY_REMOVED_MAX: usize = 10_000, "queues";
    /// Larger than the default of HTTP/2, because a batch of tasks is many frames long.
    FRAME_BYTES_MAX: u32 = 64 << 10, "bytes";
    /// The head of one request, over HTTP/1 and HTTP/2.
    HEADER_BYTES_MAX: u32 = 32 << 10, "bytes";
    /// How long a connection may take for its first request: a connection that sends nothing is no
    /// client.
    FIRST_REQUEST_MS_MAX: u64 = 30_000, "ms";
    /// How long the head of a request may take over HTTP/1, and the pause between two requests.
    HEAD_MS_MAX: u64 = 30_000, "ms";
    /// How long a client may take no bytes while the node has some for it.
    WRITE_MS_MAX: u64 = 30_000, "ms";
    /// How often the node pings an HTTP/2 client.
    PING_EVERY_MS: u64 = 20_000, "ms";
    /// How long the answer to that ping may take.
    PING_ANSWER_MS_MAX: u64 = 10_000, "ms";
    /// The largest body of a request, over HTTP and gRPC: the largest atomic batch, as JSON.
    BODY_BYTES_MAX: usize = 32 << 20, "bytes";
    /// Elements of all lists and maps of one JSON body, because each takes many times its length in
    /// memory. Elements inside payloads and results do not count.
    JSON_ELEMENTS_MAX: usize = 400_000, "elements";
    /// Levels of a payload, result or resume state that is JSON. The strictest common parsers read
    /// 64 levels, and an answer adds four.
    JSON_DEPTH_MAX: usize = 60, "levels";
    /// Memory that a call in flight counts for by itself. This and the node's memory bound the
    /// number of calls in flight.
    CALL_BYTES: usize = 16 << 10, "bytes";
    /// Memory that the parts of one gRPC message may take beyond their own bytes. The node counts
    /// it before it decodes the message.
    DECODED_BYTES_MAX: usize = 64 << 20, "bytes";
    /// Bytes of a body, or of a gRPC message, that must arrive in each period, unless its end does.
    BODY_PROGRESS_BYTES_MIN: usize = 64 << 10, "bytes";
    /// The length of that period.
    BODY_PROGRESS_MS_MAX: u64 = 10_000, "ms";
    /// How long a piece of an answer (64 KiB) may wait for a client that takes none of it, even if
    /// the client takes other answers. Then its connection is closed.
    ANSWER_TAKEN_MS_MAX: u64 = 60_000, "ms";
    /// How long the whole body of an HTTP request may take to arrive.
    BODY_MS_MAX: u64 = 30_000, "ms";
    /// How long a call may take until its answer begins: the longest long poll, and time to send
    /// half a request.
    ANSWER_MS_MAX: u64 = 90_000, "ms";
    /// How long a call over HTTP waits for the end of a bulk operation before it answers with the
    /// progress.
    BULK_WAIT_MS_MAX: u64 = 60_000, "ms";
    /// Bodies on one page of a list. The page ends there, so that an answer fits a message.
    PAGE_BODY_BYTES_MAX: usize = 4 << 20, "bytes";
    /// Fields of a task that one unique key is the hash of: the broker looks up each in the
    /// payload.
    UNIQUE_FIELDS_MAX: usize = 16, "fields";
    /// The path of one of these fields. Its length bounds how deep the broker looks into the
    /// payload.
    UNIQUE_FIELD_BYTES_MAX: usize = 256, "bytes";
    /// Batches of one enqueue stream in flight: enough to keep the disk busy.
    STREAM_BATCHES_MAX: usize = 16, "batches";
    /// Past occurrences that one call may run again. More take several calls.
    BACKFILL_MAX: usize = 10_000, "occurrences";
    /// Backups that run through one node at a time: each keeps a view of the disk, on other nodes
    /// too.
    BACKUPS_MAX: usize = 4, "backups";
    /// How long a backup waits for a client that reads nothing, because its view keeps files from
    /// being removed.
    BACKUP_STALL_MS_MAX: u64 = 60_000, "ms";
    /// Worker sessions of one node: each costs a stream and its claims.
    SESSIONS_MAX: usize = 100_000, "workers";
    /// How long a worker may take to say hello after it opened its stream.
    HELLO_MS_MAX: u64 = 10_000, "ms";
    /// How often a worker reports its claims.
    BEAT_EVERY_MS: u64 = 5_000, "ms";
    /// A session lapses after this long without a message from its worker.
    SILENCE_MS_MAX: u64 = 15_000, "ms";
    /// A session whose connection closed without a goodbye lapses after this long.
    SILENCE_AFTER_CUT_MS_MAX: u64 = 5_000, "ms";
    /// The session of a worker that beats without a stream (over Faktory's protocol) lapses after
    /// this long without a message.
    ASKING_SILENCE_MS_MAX: u64 = 60_000, "ms";
    /// A worker without a connection that never beat is forgotten after this long: no lease is
    /// longer.
    ASKING_UNHEARD_MS_MAX: u64 = 86_400_000, "ms";
    /// How long a worker may take to read what its stream is sent.
    WORKER_READ_MS_MAX: u64 = 10_000, "ms";
    /// Messages that wait for a worker's connection. Other tasks wait in the shards.
    MESSAGES_WAITING_MAX: usize = 4, "messages";
    /// Bodies in one of these messages, so that no client needs to take a message larger than its
    /// largest task.
    MESSAGE_TASKS_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Batches of a worker's answers in flight. Further batches wait on the wire.
    ANSWERS_UNDER_WAY_MAX: usize = 64, "batches";
    /// Orders that wait for a worker's stream. A further cancellation comes with the next renewal.
    ORDERS_WAITING_MAX: usize = 1_000, "orders";
    /// How long the list of workers shows a lost worker, so that operators can look for it. A node
    /// remembers orders to workers of other nodes as long.
    LOST_KEPT_FOR_MS: u64 = 86_400_000, "ms";
    /// Lost workers that a node lists, without the ones lost first; and orders to workers of other
    /// nodes that it remembers.
    LOST_KEPT_MAX: usize = 10_000, "workers";
    /// Claims and hints that one shard parks. Each is a worker that waits: more workers for one
    /// shard's queues are a mistake in a client's loop.
    PARKED_MAX: usize = 100_000, "claims";
    /// Different lists of types that the claims parked at one queue name. The shard looks at each
    /// list when the queue has a ready task. Workers of one program name the same list.
    PARKED_TYPE_LISTS_MAX: usize = 1_000, "lists";
    /// Calls that wait for the shards of a node. More calls mean that the disk stands still: the
    /// node refuses a further call with `unavailable`.
    INPUTS_MAX: usize = 1_000_000, "calls";
    /// Bytes that those calls add to the log. The node refuses a call beyond that too.
    INPUT_BYTES_MAX: usize = 256 << 20, "bytes";
    /// Raft messages of other nodes that wait for the shards of a node. A further large message is
    /// dropped: Raft sends it again.
    RAFT_INPUT_BYTES_MAX: usize = 64 << 20, "bytes";
    /// More shards cost memory and checkpoints, and gain nothing on one node.
    SHARDS_MAX: u16 = 4_096, "shards";
    /// Less memory has no room for the batches in flight.
    MEMORY_BYTES_MIN: u64 = 16 << 20, "bytes";
    /// One command as the log keeps it, such as an ack with its result and its follow-ups. The node
    /// refuses a larger one with `payload_too_large` before it is proposed, because the message
    /// that carries it to the other nodes must fit a frame.
    COMMAND_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Bytes for the log that one turn takes from calls, and as many from Raft messages,
    /// approximately: the turn writes and syncs them as one record.
    TURN_LOG_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Log of a shard after which the shard is checkpointed. It bounds the replay at the next
    /// start.
    CHECKPOINT_LOG_BYTES_MAX: u64 = 64 << 20, "bytes";
    /// Log of all shards of a node that is written before an old entry is removed. Each changed
    /// shard is checkpointed within this (half of it, with other replicas). For a replica that is
    /// down, an entry is kept no longer.
    LOG_KEPT_BYTES_MAX: u64 = 384 << 20, "bytes";
    /// The same bound while another replica gets a snapshot that precedes the entry, or catches up
    /// with the log, and this node's disk has room. Beyond that the other replica begins again.
    LOG_PINNED_BYTES_MAX: u64 = 4 << 30, "bytes";
    /// Free disk space below which a node takes nothing more into its log, at most; otherwise a
    /// quarter of the reserve. The node still votes, and stands still below a quarter of this.
    DISK_FLOOR_BYTES_MAX: u64 = 256 << 20, "bytes";
    /// Changed records of a shard after which the shard is checkpointed. It bounds what one
    /// checkpoint writes.
    DIRTY_RECORDS_MAX: usize = 200_000, "records";
    /// How long a change may wait for a checkpoint.
    DIRTY_FOR_MS_MAX: u64 = 60_000, "ms";
    /// How long the stop of an embedded engine may take without a grace. The next start replays
    /// checkpoints that are not done by then.
    STOP_MS_MAX: u64 = 60_000, "ms";
    /// Queues that have series of their own in the metrics, by name. More labels are a job for a
    /// database.
    METRIC_QUEUES_MAX: usize = 1_000, "queues";
    /// Bytes of a cluster's secret: an attacker who takes over a peer's address could guess a
    /// shorter one.
    CLUSTER_SECRET_BYTES_MIN: usize = 32, "bytes";
    /// The largest frame between two nodes: the largest atomic batch, or a piece of a snapshot,
    /// with room to spare.
    PEER_FRAME_BYTES_MAX: usize = 24 << 20, "bytes";
    /// The largest frame of a peer that has not proved who it is.
    PEER_HANDSHAKE_BYTES_MAX: usize = 4 << 10, "bytes";
    /// How long the handshake between two nodes may take, with connecting.
    PEER_HANDSHAKE_MS_MAX: u64 = 5_000, "ms";
    /// Connections to the peer port that have not proved who they are. The oldest is closed for a
    /// new one.
    PEER_STRANGERS_MAX: usize = 256, "connections";
    /// Peers that are connected to one node. A cluster has tens of nodes, and each costs buffers.
    PEERS_MAX: usize = 1_000, "nodes";
    /// Nodes that ask to join at a time. The next node is told to ask again.
    PEER_JOINS_MAX: usize = 16, "nodes";
    /// How long the cluster may take to answer a node that asks to join.
    PEER_JOIN_MS_MAX: u64 = 60_000, "ms";
    /// How long a node that starts waits for peers that do not answer, before it votes and
    /// acknowledges. In that time, a peer that knows newer data of the node refuses it.
    START_HEARS_MS_MAX: u64 = 1_000, "ms";
    /// How often two connected nodes ping each other, at least. A peer that was not heard is pinged
    /// every quarter of a second.
    PEER_PING_EVERY_MS: u64 = 1_000, "ms";
    /// A peer that sends or takes nothing for this long is down.
    PEER_SILENCE_MS_MAX: u64 = 5_000, "ms";
    /// A peer that was not heard for about this long does not count: it is missing in majorities,
    /// and gets no calls until it is heard again.
    PEER_QUIET_MS_MAX: u64 = 1_000, "ms";
    /// The longest pause between two attempts to reach a peer.
    PEER_REDIAL_MS_MAX: u64 = 2_000, "ms";
    /// Raft messages that wait for one peer's connection. The oldest is dropped for the next: Raft
    /// sends it again.
    PEER_RAFT_FRAMES_MAX: usize = 65_536, "messages";
    /// Bytes of Raft messages that wait for one peer's connection.
    PEER_RAFT_BYTES_MAX: usize = 32 << 20, "bytes";
    /// Bytes of news that wait for one peer's connection, mostly of live workers. The oldest is
    /// dropped for the next: the node repeats its news.
    PEER_TELL_BYTES_MAX: usize = 8 << 20, "bytes";
    /// Calls in flight to one peer, or from one. A further call is refused, and certainly not
    /// executed.
    PEER_CALLS_MAX: usize = 100_000, "calls";
    /// Calls among them that wait for an event on the peer, such as the claim of a worker that
    /// waits for tasks. Further ones are refused, which leaves room for urgent calls such as
    /// renewals.
    PEER_PARKED_CALLS_MAX: usize = 80_000, "calls";
    /// Bytes of calls that wait for one peer's connection. A further call is refused.
    PEER_CALL_BYTES_MAX: usize = 64 << 20, "bytes";
    /// Bytes of one peer's calls that run on this node. A further call is refused.
    PEER_SERVED_BYTES_MAX: usize = 256 << 20, "bytes";
    /// Bytes of answers that wait until a peer reads them. Above that the node starts none of its
    /// calls, but still takes its Raft messages.
    PEER_ANSWER_BYTES_SOFT_MAX: usize = 16 << 20, "bytes";
    /// Bytes of answers above which further answers wait for room. A peer that reads nothing at all
    /// is down (`peer_silence_ms_max`).
    PEER_ANSWER_BYTES_MAX: usize = 128 << 20, "bytes";
}
