//! Every bound of a shard: name, unit, reason.
//!
//! Reaching a bound gives a named answer (`Rejection`), never an accident. `docs/limits.md` mirrors
//! this file, and a test compares the two.

/// One row of the table below, for `docs/limits.md` and its test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The constant's name, in lower case.
    pub name: &'static str,
    /// The bound.
    pub value: u64,
    /// The unit of `value`.
    pub unit: &'static str,
    /// Why the bound exists, and why it has this value.
    pub reason: &'static str,
}

/// Makes a constant of each line, and `ALL`, the table of them, for every crate that has limits.
#[macro_export]
macro_rules! limits {
    ($($(#[doc = $reason:literal])+ $name:ident: $type:ty = $value:expr, $unit:literal;)+) => {
        $($(#[doc = $reason])+ pub const $name: $type = $value;)+
        /// All limits, in the order of this file.
        pub const ALL: &[$crate::limits::Limit] = &[$($crate::limits::Limit {
            name: stringify!($name),
            value: $name as u64,
            unit: $unit,
            reason: concat!($($reason),+),
        }),+];
    };
}

limits! {
    /// Every log entry and metric label repeats the name, so that it must stay short.
    QUEUE_NAME_BYTES_MAX: usize = 128, "bytes";
    /// A type is a function's name, not a document.
    TYPE_BYTES_MAX: usize = 256, "bytes";
    /// Long enough for a URL or a hash with a prefix; only its 128-bit hash is kept.
    REQUEST_ID_BYTES_MAX: usize = 256, "bytes";
    /// As long as a request id; the task keeps it in full.
    UNIQUE_KEY_BYTES_MAX: usize = 256, "bytes";
    /// The longest window of a unique key, and the longest debounce: 30 days. A window that
    /// outlives its task takes memory until it is over.
    UNIQUE_MS_MAX: u64 = 2_592_000_000, "ms";
    /// Larger inputs belong in a file store, with a reference in the task. The default; a node may
    /// lower or raise it.
    PAYLOAD_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The most that a node's own payload limit may be raised to: one task must fit one log entry.
    PAYLOAD_BYTES_CEILING: usize = 8 << 20, "bytes";
    /// Headers are routing and tracing data, not a second payload.
    HEADERS_BYTES_MAX: usize = 16 << 10, "bytes";
    /// More headers than this is a payload in disguise.
    HEADERS_MAX: usize = 64, "headers";
    /// Tags are for searching; each is compared on every filtered list.
    TAGS_MAX: usize = 16, "tags";
    /// A tag is a word.
    TAG_BYTES_MAX: usize = 128, "bytes";
    /// A media type such as application/json.
    CONTENT_TYPE_BYTES_MAX: usize = 128, "bytes";
    /// Enough for a host, a pid and a label.
    WORKER_NAME_BYTES_MAX: usize = 256, "bytes";
    /// One atomic batch is staged in memory until it is committed.
    BATCH_TASKS_MAX: usize = 10_000, "tasks";
    /// One atomic batch is staged in memory until it is committed.
    BATCH_BYTES_MAX: usize = 16 << 20, "bytes";
    /// A staged batch that is never committed is dropped after this.
    BATCH_STAGED_FOR_MS: u64 = 60_000, "ms";
    /// Batches staged at once on one shard: each may take the memory of a whole batch.
    BATCHES_STAGED_MAX: usize = 64, "batches";
    /// How long the ids of a wire batch are kept, so that its repetition gets the same answer.
    BATCH_ID_KEPT_FOR_MS: u64 = 600_000, "ms";
    /// Ids of wire batches kept at once on one shard, within the memory budget. Past this the
    /// oldest is forgotten early: more than 1,600 batches a second for ten minutes.
    BATCH_IDS_MAX: usize = 1_000_000, "batches";
    /// One worker never has more free slots than this.
    CLAIM_TASKS_MAX: usize = 1_000, "tasks";
    /// A claim ends with the task that reaches this sum of payloads, resume states and results of
    /// parents. The other tasks wait for the next claim.
    CLAIM_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Queues in one claim: every claim looks at each of them.
    CLAIM_QUEUES_MAX: usize = 64, "queues";
    /// Types in one claim: each travels with the claim, and is looked up in each of its queues.
    CLAIM_TYPES_MAX: usize = 256, "types";
    /// A fairness key is a customer's name, not a document; it is kept once however many tasks have
    /// it.
    FAIRNESS_KEY_BYTES_MAX: usize = 256, "bytes";
    /// Keys with a weight of their own in one queue: every change writes all settings of the queue.
    WEIGHTS_MAX: usize = 1_000, "keys";
    /// A million a second is more than one shard hands out.
    RATE_MILLIONTHS_MAX: u64 = 1_000_000_000_000, "millionths per second";
    /// More than a shard hands out in some seconds is no limit.
    RATE_BURST_MAX: u32 = 1_000_000, "tasks";
    /// An empty bucket is full after this at most, and its key is remembered until then. 31 days.
    RATE_REFILL_MS_MAX: u64 = 2_678_400_000, "ms";
    /// A bucket that gets a token is looked at this often at most, unless it would overflow
    /// meanwhile.
    BUCKET_GRID_MS: u64 = 10, "ms";
    /// A handler may push a key back for this long at most, so that a mistake does not stop the key
    /// for good.
    PUSH_BACK_MS_MAX: u64 = 86_400_000, "ms";
    /// The answer to "why is it waiting" counts this many tasks and keys ahead, then says "at
    /// least".
    AHEAD_MAX: usize = 10_000, "tasks";
    /// Weights are shares; more digits than this say nothing more.
    WEIGHT_MAX: u32 = 1_000, "shares";
    /// Priorities run from 0 to this, 9 first.
    PRIORITY_MAX: u8 = 9, "priority";
    /// A shorter lease would lapse on an ordinary pause of a healthy worker.
    LEASE_MS_MIN: u64 = 1_000, "ms";
    /// A longer one is a mistake: extend it instead.
    LEASE_MS_MAX: u64 = 86_400_000, "ms";
    /// The lease of a claim that names none.
    LEASE_MS_DEFAULT: u64 = 30_000, "ms";
    /// The longest long poll; proxies cut longer ones.
    CLAIM_WAIT_MS_MAX: u64 = 60_000, "ms";
    /// Delays, retries and expiries reach this far into the future: ten years.
    HORIZON_MS_MAX: u64 = 315_576_000_000, "ms";
    /// A result is an answer, not a file.
    RESULT_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Enough for a message and a backtrace; longer ones are cut.
    ERROR_BYTES_MAX: usize = 16 << 10, "bytes";
    /// A progress message is one line; longer ones are cut.
    PROGRESS_MESSAGE_BYTES_MAX: usize = 1 << 10, "bytes";
    /// The progress of a task's own work, written to the log with each extend.
    RESUME_STATE_BYTES_MAX: usize = 64 << 10, "bytes";
    /// Attempts kept in detail on a task; older ones are only counted.
    ATTEMPTS_KEPT_MAX: usize = 10, "attempts";
    /// More attempts than this is a loop, not a retry.
    ATTEMPTS_MAX: u32 = 10_000, "attempts";
    /// A wait that grows faster than a hundredfold is a list of delays.
    RETRY_FACTOR_THOUSANDTHS_MAX: u32 = 100_000, "thousandths";
    /// Entries in an explicit list of retry delays.
    RETRY_DELAYS_MAX: usize = 100, "delays";
    /// Follow-up tasks that one ack may carry.
    FOLLOW_UPS_MAX: usize = 1_000, "tasks";
    /// Nodes of one flow, those included that its tasks add while they run.
    FLOW_NODES_MAX: usize = 10_000, "nodes";
    /// Dependencies of one flow: each costs a little when a task ends.
    FLOW_EDGES_MAX: usize = 100_000, "dependencies";
    /// The name of a flow or of one of its nodes.
    FLOW_NAME_BYTES_MAX: usize = 128, "bytes";
    /// One flow is staged in memory until it is committed.
    FLOW_BYTES_MAX: usize = 16 << 20, "bytes";
    /// Flows staged at once on one shard: each may take the memory of a whole flow.
    FLOWS_STAGED_MAX: usize = 16, "flows";
    /// Tasks that a running task adds to its flow with one call.
    FLOW_ADD_NODES_MAX: usize = 1_000, "nodes";
    /// How long an ended flow and its tasks are kept, unless the flow says otherwise.
    FLOW_RETENTION_MS_DEFAULT: u64 = 86_400_000, "ms";
    /// Nodes of ended flows kept on one shard; past this the oldest ended flow is removed early.
    FLOW_NODES_KEPT_MAX: usize = 200_000, "nodes";
    /// Results shown together with their flow; clients fetch the others task by task.
    FLOW_RESULT_BYTES_MAX: usize = 8 << 20, "bytes";
    /// Results and errors of parents that travel with one task; the rest is fetched task by task.
    PARENTS_BYTES_MAX: usize = 4 << 20, "bytes";
    /// A result up to this travels to the tasks that depend on its task; workers fetch a larger one
    /// from its task.
    PARENT_RESULT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The part of a failed task's error that its dependents receive.
    PARENT_ERROR_BYTES_MAX: usize = 4 << 10, "bytes";
    /// The description of a tally is a sentence or two.
    TALLY_DESCRIPTION_BYTES_MAX: usize = 1 << 10, "bytes";
    /// Each task that follows from a tally stays in memory, whole, until it is enqueued.
    TALLY_CALLBACK_BYTES_MAX: usize = 64 << 10, "bytes";
    /// Tasks that are added to a tally with one call.
    TALLY_ADD_TASKS_MAX: usize = 1_000, "tasks";
    /// Tallies below one tally, including ended ones that are still kept.
    TALLY_CHILDREN_MAX: usize = 100_000, "tallies";
    /// Tallies above one tally: the end of a task may be reported to all of them.
    TALLY_DEPTH_MAX: u32 = 16, "tallies";
    /// How long an uncommitted tally is kept after its last task was added.
    TALLY_OPEN_FOR_MS: u64 = 1_800_000, "ms";
    /// How long a tally is kept after all its tasks have succeeded.
    TALLY_SUCCEEDED_FOR_MS: u64 = 86_400_000, "ms";
    /// How long a committed tally is kept after its last news: 30 days.
    TALLY_KEPT_FOR_MS: u64 = 2_592_000_000, "ms";
    /// Lost claims after which a task is quarantined among the dead letters.
    LOSSES_MAX: u32 = 3, "losses";
    /// Changes of one expiry entry; a longer entry would keep the shard loop busy.
    EXPIRIES_PER_ENTRY_MAX: usize = 1_000, "tasks";
    /// Tasks that one entry of a bulk operation (purge, retry, discard, end of a session) changes.
    BULK_PER_ENTRY_MAX: usize = 1_000, "tasks";
    /// What one call for a page, or one entry of a bulk operation, looks at before it hands back a
    /// cursor.
    SCAN_TASKS_MAX: usize = 20_000, "tasks";
    /// What a list looks at in one go: the loop is not held longer than this.
    LOOK_TASKS_MAX: usize = 2_000, "tasks";
    /// What a list copies of results, states, errors and schedules in one go, about: the loop is
    /// not held longer than this.
    LOOK_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Tasks on one page of a list.
    PAGE_TASKS_MAX: usize = 1_000, "tasks";
    /// How long a request_id is remembered, unless its queue says otherwise.
    DEDUP_WINDOW_MS_DEFAULT: u64 = 86_400_000, "ms";
    /// The shortest dedup window of a queue: a producer that lost an answer needs time to ask
    /// again.
    DEDUP_WINDOW_MS_MIN: u64 = 60_000, "ms";
    /// The longest dedup window of a queue: 30 days.
    DEDUP_WINDOW_MS_MAX: u64 = 2_592_000_000, "ms";
    /// Finished tasks kept per queue, unless the task or its queue says otherwise.
    RETENTION_COUNT_DEFAULT: u32 = 10_000, "tasks";
    /// How long finished tasks are kept at most.
    RETENTION_MS_DEFAULT: u64 = 86_400_000, "ms";
    /// How long dead letters are kept: 30 days.
    DEAD_RETENTION_MS_DEFAULT: u64 = 2_592_000_000, "ms";
    /// No lease lapses this soon after a change of leader, because an outage of the broker is no
    /// fault of its workers.
    LEASE_FLOOR_MS: u64 = 15_000, "ms";
    /// After its timeout, an attempt's own worker has this long to end it before the broker does.
    TIMEOUT_GRACE_MS: u64 = 5_000, "ms";
    /// How long a repeated claim is remembered, so that a late earlier sending gets nothing.
    CLAIM_RESENT_KEPT_FOR_MS: u64 = 60_000, "ms";
    /// Schedules of one shard: each takes memory, and every list looks at it.
    SCHEDULES_PER_SHARD_MAX: usize = 10_000, "schedules";
    /// Rules and task of one schedule: they stay in memory, and every run repeats the task.
    SCHEDULE_BYTES_MAX: usize = 64 << 10, "bytes";
    /// A cron expression is one line.
    CRON_BYTES_MAX: usize = 256, "bytes";
    /// The longest IANA name has 32 bytes.
    TIMEZONE_BYTES_MAX: usize = 64, "bytes";
    /// A note on a paused schedule is a sentence.
    SCHEDULE_NOTE_BYTES_MAX: usize = 1 << 10, "bytes";
    /// A task that runs more often than this belongs in a worker's loop, not in a schedule.
    SCHEDULE_EVERY_MS_MIN: u64 = 1_000, "ms";
    /// Jitter spreads runs over a while; a spread over more than a day would be another schedule.
    SCHEDULE_JITTER_MS_MAX: u64 = 86_400_000, "ms";
    /// How late an occurrence may still run, unless the schedule says otherwise: one hour.
    CATCH_UP_WINDOW_MS_DEFAULT: u64 = 3_600_000, "ms";
    /// An occurrence no later than this counts as on time under every catch-up rule, because a
    /// restart takes less.
    SCHEDULE_LATE_MS_MAX: u64 = 10_000, "ms";
    /// Occurrences that one entry decides; a longer entry would keep the shard loop busy.
    OCCURRENCES_PER_ENTRY_MAX: usize = 1_000, "occurrences";
    /// Live runs of one schedule that checks for overlap; a further trigger is rejected.
    SCHEDULE_LIVE_RUNS_MAX: usize = 1_000, "runs";
    /// Each text by which a node is known: its addresses and its zone. Every node keeps those of
    /// all.
    NODE_TEXT_BYTES_MAX: usize = 512, "bytes";
    /// Shards that one queue is spread over: each claim looks at all of them.
    SPREAD_MAX: u16 = 64, "shards";
    /// Queues that are spread at once: every node keeps a list of them.
    SPREAD_QUEUES_MAX: usize = 1_000, "queues";
    /// Queues of one shard: each takes counters, and every list has a place for it.
    QUEUES_PER_SHARD_MAX: usize = 10_000, "queues";
    /// One log entry packs commands up to this; a larger command travels alone.
    ENTRY_BYTES_MAX: usize = 256 << 10, "bytes";
}

/// Waits before a lost task may be claimed again, by the number of earlier losses. The last loss
/// quarantines the task instead.
pub const LOSS_DELAYS_MS: [u64; LOSSES_MAX as usize - 1] = [0, 10_000];
