//! The log encoding of every command and of a task's body.
//!
//! A command is one tag and its fields. Tags and field orders are the format of logs on disk. A
//! changed command gets a new tag; an old tag stays readable and is never reused.

use crate::wire::{Reader, Wire, wire_struct, wire_words};
use crate::*;

/// The first byte of an encoded body.
const BODY_VERSION: u8 = 1;

impl<'a> Body<'a> {
    /// The bytes that [`Payloads`] stores under the task's id.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.payload.len() + 32);
        self.encode_into(&mut out);
        out
    }

    /// Appends the bytes of [`Body::encode`].
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(BODY_VERSION);
        self.write(out);
    }

    /// Decodes the bytes of [`Body::encode`], and borrows from them.
    pub fn decode(bytes: &'a [u8]) -> Result<Body<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            BODY_VERSION => {}
            other => return Err(reader.error(format_args!("unknown body version {other}"))),
        }
        let body = reader.read()?;
        reader.finish()?;
        Ok(body)
    }
}

/// Encodes a command as its tag and its fields.
macro_rules! wire_command {
    ($($tag:literal => $variant:ident),+ $(,)?) => {
        impl<'a> Wire<'a> for Command<'a> {
            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Command::$variant(command) => {
                        out.push($tag);
                        command.write(out);
                    })+
                    Command::ExpireDue => out.push(TAG_EXPIRE_DUE),
                    Command::BeginTerm => out.push(TAG_BEGIN_TERM),
                    Command::Mark => out.push(TAG_MARK),
                }
            }

            fn read(reader: &mut Reader<'a>) -> Result<Command<'a>, DecodeError> {
                match reader.byte()? {
                    $($tag => reader.read().map(Command::$variant),)+
                    TAG_EXPIRE_DUE => Ok(Command::ExpireDue),
                    TAG_BEGIN_TERM => Ok(Command::BeginTerm),
                    TAG_MARK => Ok(Command::Mark),
                    other => Err(reader.error(format_args!("unknown command {other}"))),
                }
            }
        }
    };
}

const TAG_EXPIRE_DUE: u8 = 21;
const TAG_BEGIN_TERM: u8 = 22;
const TAG_MARK: u8 = 34;
// Tag 31 is retired and must not be reused: a backfill without the revision of its rules.

wire_command! {
    1 => Enqueue,
    2 => EnqueueMany,
    3 => EnqueueBatch,
    4 => StageBatch,
    5 => CommitBatch,
    6 => Claim,
    7 => Ack,
    8 => Fail,
    9 => Extend,
    10 => Renew,
    11 => Release,
    12 => Snooze,
    13 => Cancel,
    14 => Retry,
    15 => Dead,
    16 => PauseQueue,
    17 => ResumeQueue,
    18 => PurgeQueue,
    19 => SetQueue,
    20 => EndSession,
    23 => Deliver,
    24 => Delivered,
    60 => PutOff,
    40 => SubmitFlow,
    41 => StageFlow,
    42 => CommitFlow,
    43 => AddFlowTasks,
    44 => CancelFlow,
    45 => RetryFlow,
    25 => SetSchedule,
    26 => FireSchedule,
    27 => RemoveSchedule,
    28 => PauseSchedule,
    29 => ResumeSchedule,
    30 => TriggerSchedule,
    32 => BackfillSchedule,
    33 => TrimQueue,
    35 => Attest,
    36 => Unstage,
    37 => Kill,
    38 => OpenTally,
    39 => AddToTally,
    46 => ReopenTally,
    47 => CommitTally,
    48 => DeleteQueue,
}

wire_struct!(Body<'a> { content_type, headers, payload });
wire_struct!(NewTask<'a> {
    task_type, body, priority, run_at, expires_at, request_id, retry, timeout_ms, retention_ms, tags,
    unique, fairness_key, lease_ms, discard_dead,
});
wire_struct!(Unique<'a> { key, until, window_ms, on_conflict, debounce_ms });
wire_words!(UniqueUntil { 1 => Start, 2 => Done });
wire_words!(OnConflict { 1 => Existing, 2 => Replace, 3 => Reject });
wire_struct!(Enqueue<'a> { queue, task });
wire_struct!(EnqueueMany<'a> { batch_id, items });
wire_struct!(EnqueueBatch<'a> { batch_id, queue, tasks });
wire_struct!(StageBatch<'a> { batch_id, queue, part, tasks });
wire_struct!(CommitBatch { batch_id, parts });
wire_struct!(Unstage { batch_id });
wire_struct!(Claim<'a> {
    queues, types, weighted_seed, tasks_max, bytes_max, lease_ms, session, number, begun, worker,
});
wire_struct!(ClaimNumber { sequence, sending });
wire_struct!(ClaimQueue<'a> { name, weight });
wire_struct!(Ack<'a> { task, token, result, follow_ups });
wire_struct!(FollowUp<'a> { home, enqueue });
wire_struct!(TaskError<'a> { error_type, message, backtrace });
wire_struct!(Fail<'a> { task, token, error, retry_at, retryable });
wire_struct!(Progress<'a> { percent, message });
wire_struct!(Extend<'a> { task, token, lease_ms, progress, resume_state });
wire_struct!(Renew { claims });
wire_struct!(Release { task, token });
wire_struct!(Snooze { task, token, until, push_back_key });
wire_struct!(Cancel { task });
wire_struct!(Kill { task });
wire_struct!(Retry<'a> { task, body });
wire_words!(DeadAction { 1 => Retry, 2 => Discard });
wire_struct!(TaskFilter<'a> { queue, state, task_type, error, tag, flow });
wire_struct!(DeadCommand<'a> { action, selection });
wire_struct!(QueueCommand<'a> { queue });
wire_struct!(EnqueueCut { next_sequence, now });
wire_struct!(PurgeQueue<'a> { queue, before, after });
wire_struct!(SetQueue<'a> { queue, settings });
wire_struct!(TrimQueue<'a> { queue, version });
wire_words!(SessionEnd { 1 => Goodbye, 2 => Silence });
wire_struct!(EndSession { session, reason, not_started, keep });
wire_struct!(Deliver<'a> { from, sequence, waited_ms, command });
wire_struct!(PutOff { claims_ms });
wire_struct!(Delivered { to, up_to });
wire_struct!(Attest { mark, replica, digest });
wire_struct!(Dependency<'a> { name, on_failure });
wire_struct!(FlowNode<'a> { name, home, enqueue, depends_on, on_failure });
wire_struct!(SubmitFlow<'a> { batch_id, name, retention_ms, nodes });
wire_struct!(StageFlow<'a> { batch_id, part, nodes });
wire_struct!(CommitFlow<'a> { batch_id, parts, name, retention_ms });
wire_struct!(AddFlowTasks<'a> { flow, parent, nodes });
wire_struct!(CancelFlow { flow });
wire_struct!(RetryFlow { flow });
wire_struct!(OpenTally<'a> { batch_id, description, parent, success, complete });
wire_struct!(AddToTally<'a> { tally, batch_id, tasks });
wire_struct!(ReopenTally { tally });
wire_struct!(CommitTally { tally });
wire_struct!(RetryPolicy { backoff, max_attempts, jitter_thousandths });
wire_struct!(QueueSettings {
    max_length,
    dedup_window_ms,
    retention_ms,
    retention_count,
    dead_retention_ms,
    dead_retention_count,
    retry,
    timeout_ms,
    concurrency,
    rate,
    per_key,
    weights,
    ageing_ms,
    spread,
});
wire_struct!(PerKey { concurrency, rate });

impl<'a> Wire<'a> for When {
    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            When::Now => out.push(0),
            When::After { ms } => (1u8, ms).write(out),
            When::At(at) => (2u8, at).write(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<When, DecodeError> {
        match reader.byte()? {
            0 => Ok(When::Now),
            1 => Ok(When::After { ms: reader.read()? }),
            2 => Ok(When::At(reader.read()?)),
            other => Err(reader.error(format_args!("unknown moment {other}"))),
        }
    }
}

impl<'a> Wire<'a> for Selection<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Selection::Ids(ids) => {
                out.push(1);
                ids.write(out);
            }
            Selection::Filter { filter, after, dead_before } => {
                out.push(2);
                filter.write(out);
                after.write(out);
                dead_before.write(out);
            }
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Selection<'a>, DecodeError> {
        match reader.byte()? {
            1 => Ok(Selection::Ids(reader.read()?)),
            2 => Ok(Selection::Filter {
                filter: reader.read()?,
                after: reader.read()?,
                dead_before: reader.read()?,
            }),
            other => Err(reader.error(format_args!("unknown selection {other}"))),
        }
    }
}

impl<'a> Wire<'a> for Backoff {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Backoff::Exponential { delay_ms, factor_thousandths, delay_max_ms } => {
                (1u8, *delay_ms).write(out);
                (*factor_thousandths, *delay_max_ms).write(out);
            }
            Backoff::Fixed { delay_ms } => (2u8, *delay_ms).write(out),
            Backoff::Linear { delay_ms, delay_max_ms } => {
                out.push(3);
                (*delay_ms, *delay_max_ms).write(out);
            }
            Backoff::Polynomial => out.push(4),
            Backoff::List { delays_ms } => {
                out.push(5);
                delays_ms.write(out);
            }
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Backoff, DecodeError> {
        match reader.byte()? {
            1 => Ok(Backoff::Exponential {
                delay_ms: reader.read()?,
                factor_thousandths: reader.read()?,
                delay_max_ms: reader.read()?,
            }),
            2 => Ok(Backoff::Fixed { delay_ms: reader.read()? }),
            3 => Ok(Backoff::Linear { delay_ms: reader.read()?, delay_max_ms: reader.read()? }),
            4 => Ok(Backoff::Polynomial),
            5 => Ok(Backoff::List { delays_ms: reader.read()? }),
            other => Err(reader.error(format_args!("unknown backoff {other}"))),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::decode;

    const TASK: TaskId =
        TaskId { incarnation: 7, home: ShardId(1), origin: ShardId(2), sequence: 300 };
    const TOKEN: ClaimToken = ClaimToken(1 << 40);

    fn new_task(task_type: &str) -> NewTask<'_> {
        NewTask {
            task_type,
            body: Body {
                content_type: "text/plain",
                headers: vec![("trace", "1"), ("é", "")],
                payload: b"\x00\xff payload",
            },
            priority: Some(9),
            run_at: When::After { ms: 10_000 },
            expires_at: Some(Timestamp(1 << 41)),
            request_id: Some("order-1"),
            retry: Some(RetryPolicy {
                backoff: Backoff::List { delays_ms: [1, 200, u64::MAX].into() },
                max_attempts: 4,
                jitter_thousandths: 0,
            }),
            timeout_ms: Some(1),
            retention_ms: Some(0),
            tags: vec!["a", "b"],
            unique: Some(Box::new(Unique {
                key: "user-1".into(),
                until: Some(UniqueUntil::Start),
                window_ms: Some(60_000),
                on_conflict: OnConflict::Replace,
                debounce_ms: Some(1),
            })),
            fairness_key: Some("acme"),
            lease_ms: Some(1_000),
            discard_dead: true,
        }
    }

    fn with_backoff(backoff: Backoff) -> Command<'static> {
        let retry = RetryPolicy { backoff, ..RetryPolicy::default() };
        let task = NewTask { task_type: "t", retry: Some(retry), ..NewTask::default() };
        Command::Enqueue(Enqueue { queue: "q", task })
    }

    /// Every command, with every variant of its fields.
    pub(crate) fn every_command() -> Vec<Command<'static>> {
        let until = When::Now;
        let enqueue = || Enqueue { queue: "mail", task: new_task("send") };
        let cut = EnqueueCut { next_sequence: 7, now: Timestamp(5) };
        let queue = QueueCommand { queue: "mail" };
        let node = |on_failure| FlowNode {
            name: "b",
            home: ShardId(9),
            enqueue: enqueue(),
            depends_on: vec![Dependency { name: "a", on_failure }],
            on_failure,
        };
        let error = TaskError { error_type: "io", message: "no route", backtrace: "main" };
        let filter = TaskFilter {
            queue: Some("mail"),
            state: Some(TaskStateName::Dead),
            task_type: Some("send"),
            error: Some("io"),
            tag: Some("a"),
            flow: Some(TASK),
        };
        vec![
            Command::Enqueue(enqueue()),
            Command::Enqueue(Enqueue { queue: "q", task: NewTask::default() }),
            with_backoff(Backoff::Exponential {
                delay_ms: 5,
                factor_thousandths: 1_500,
                delay_max_ms: 100,
            }),
            with_backoff(Backoff::Fixed { delay_ms: 0 }),
            with_backoff(Backoff::Linear { delay_ms: 300, delay_max_ms: 900 }),
            with_backoff(Backoff::Polynomial),
            Command::EnqueueMany(EnqueueMany {
                batch_id: Some(u128::MAX),
                items: vec![enqueue(), enqueue()],
            }),
            Command::EnqueueBatch(EnqueueBatch {
                batch_id: None,
                queue: "mail",
                tasks: vec![new_task("a"), new_task("b")],
            }),
            Command::StageBatch(StageBatch {
                batch_id: 1,
                queue: "mail",
                part: 2,
                tasks: vec![new_task("a")],
            }),
            Command::CommitBatch(CommitBatch { batch_id: 1, parts: 3 }),
            Command::Unstage(Unstage { batch_id: u128::MAX }),
            Command::Claim(Claim {
                queues: vec![
                    ClaimQueue { name: "mail", weight: 1 },
                    ClaimQueue { name: "x", weight: 1_000 },
                ],
                types: vec!["send", "render"],
                weighted_seed: Some(u64::MAX),
                tasks_max: 10,
                bytes_max: u32::MAX,
                lease_ms: 30_000,
                session: Some(SessionId(77)),
                number: Some(ClaimNumber { sequence: 3, sending: 1 }),
                begun: true,
                worker: "host-1",
            }),
            Command::Ack(Ack {
                task: TASK,
                token: TOKEN,
                result: Some(b"42"),
                follow_ups: vec![FollowUp { home: ShardId(31), enqueue: enqueue() }],
            }),
            Command::Fail(Fail {
                task: TASK,
                token: TOKEN,
                error,
                retry_at: Some(When::At(Timestamp(99))),
                retryable: true,
            }),
            Command::Extend(Extend {
                task: TASK,
                token: TOKEN,
                lease_ms: Some(1_000),
                progress: Some(Progress { percent: 50, message: "half" }),
                resume_state: Some(b"page 2"),
            }),
            Command::Renew(Renew { claims: vec![(TASK, TOKEN), (TASK, ClaimToken(0))] }),
            Command::Release(Release { task: TASK, token: TOKEN }),
            Command::Snooze(Snooze { task: TASK, token: TOKEN, until, push_back_key: true }),
            Command::Cancel(Cancel { task: TASK }),
            Command::Kill(Kill { task: TASK }),
            Command::Retry(Retry { task: TASK, body: Some(new_task("t").body) }),
            Command::Dead(DeadCommand {
                action: DeadAction::Retry,
                selection: Selection::Ids(vec![TASK]),
            }),
            Command::Dead(DeadCommand {
                action: DeadAction::Discard,
                selection: Selection::Filter {
                    filter,
                    after: Some(TASK),
                    dead_before: Some(Timestamp(5)),
                },
            }),
            Command::PauseQueue(queue),
            Command::ResumeQueue(queue),
            Command::PurgeQueue(PurgeQueue { queue: "mail", before: cut, after: Some(TASK) }),
            Command::SetQueue(SetQueue {
                queue: "mail",
                settings: QueueSettings {
                    max_length: Some(5),
                    retry: Some(RetryPolicy::default()),
                    concurrency: Some(3),
                    rate: Some(Rate { per_second_millionths: 500_000, burst: 10 }),
                    per_key: Some(PerKey { concurrency: Some(1), rate: None }),
                    weights: [("acme".into(), 3), ("".into(), 2)].into(),
                    ageing_ms: Some(60_000),
                    spread: Some(4),
                    ..QueueSettings::default()
                },
            }),
            Command::TrimQueue(TrimQueue { queue: "mail", version: 3 }),
            Command::DeleteQueue(DeleteQueue { queue: "mail", version: 3 }),
            Command::EndSession(EndSession {
                session: SessionId(1),
                reason: SessionEnd::Silence,
                not_started: vec![TASK],
                keep: vec![],
            }),
            Command::EndSession(EndSession {
                session: SessionId(1),
                reason: SessionEnd::Goodbye,
                not_started: vec![],
                keep: vec![TASK],
            }),
            Command::ExpireDue,
            Command::BeginTerm,
            Command::PutOff(PutOff { claims_ms: 20_000 }),
            Command::Deliver(Deliver {
                from: ShardId(3),
                sequence: 9,
                waited_ms: 5,
                command: b"\x01\x02",
            }),
            Command::Delivered(Delivered { to: ShardId(3), up_to: 9 }),
            Command::Mark,
            Command::Attest(Attest { mark: 3, replica: 2, digest: u64::MAX }),
            Command::SubmitFlow(SubmitFlow {
                batch_id: Some(3),
                name: "nightly",
                retention_ms: Some(5),
                nodes: OnFailure::ALL.map(node).to_vec(),
            }),
            Command::StageFlow(StageFlow {
                batch_id: 3,
                part: 1,
                nodes: vec![node(OnFailure::Fail)],
            }),
            Command::CommitFlow(CommitFlow { batch_id: 3, parts: 2, name: "", retention_ms: None }),
            Command::AddFlowTasks(AddFlowTasks {
                flow: TASK,
                parent: "a",
                nodes: vec![node(OnFailure::Run)],
            }),
            Command::CancelFlow(CancelFlow { flow: TASK }),
            Command::RetryFlow(RetryFlow { flow: TASK }),
            Command::OpenTally(OpenTally {
                batch_id: Some(4),
                description: "import",
                parent: Some(TASK),
                success: Some(Box::new(FollowUp { home: ShardId(2), enqueue: enqueue() })),
                complete: Some(Box::new(FollowUp { home: ShardId(3), enqueue: enqueue() })),
            }),
            Command::OpenTally(OpenTally {
                batch_id: None,
                description: "",
                parent: None,
                success: None,
                complete: None,
            }),
            Command::AddToTally(AddToTally {
                tally: TASK,
                batch_id: Some(5),
                tasks: vec![FollowUp { home: ShardId(2), enqueue: enqueue() }],
            }),
            Command::ReopenTally(ReopenTally { tally: TASK }),
            Command::CommitTally(CommitTally { tally: TASK }),
            Command::SetSchedule(SetSchedule {
                name: "nightly",
                spec: ScheduleSpec {
                    rhythm: Rhythm::Cron { expression: "0 3 * * *", timezone: "Europe/Berlin" },
                    home: ShardId(3),
                    enqueue: Enqueue { queue: "mail", task: new_task("report") },
                    overlap: Overlap::CancelOther,
                    catch_up: CatchUp::All,
                    catch_up_window_ms: 3_600_000,
                    jitter_ms: 5,
                    start_at: Some(Timestamp(1)),
                    end_at: Some(Timestamp(2)),
                    remaining_runs: Some(3),
                },
                from: Timestamp(3),
                next_run_at: Timestamp(4),
            }),
            Command::FireSchedule(FireSchedule {
                name: "nightly",
                revision: 2,
                occurrences: vec![Timestamp(4), Timestamp(5)],
                left_out: 7,
                next_run_at: Some(Timestamp(6)),
            }),
            Command::RemoveSchedule(RemoveSchedule { name: "nightly" }),
            Command::PauseSchedule(PauseSchedule { name: "nightly", note: "too loud" }),
            Command::ResumeSchedule(ResumeSchedule {
                name: "nightly",
                revision: 2,
                from: Timestamp(3),
                next_run_at: None,
            }),
            Command::TriggerSchedule(TriggerSchedule { name: "nightly" }),
            Command::BackfillSchedule(BackfillSchedule {
                name: "nightly",
                revision: 2,
                occurrences: vec![Timestamp(1)],
            }),
        ]
    }

    #[test]
    fn every_command_survives_its_encoding() {
        for command in every_command() {
            let encoded = EncodedCommand::new(&command);
            assert_eq!(decode(encoded.as_bytes()), Ok(command));
        }
    }

    #[test]
    fn a_command_cut_at_any_length_is_an_error() {
        for command in every_command() {
            let encoded = EncodedCommand::new(&command);
            for length in 0..encoded.as_bytes().len() {
                let cut = &encoded.as_bytes()[..length];
                assert!(decode::<Command<'_>>(cut).is_err(), "{command:?} cut at {length}");
            }
        }
    }

    #[test]
    fn damaged_commands_never_panic() {
        for command in every_command() {
            let bytes = EncodedCommand::new(&command).as_bytes().to_vec();
            for at in 0..bytes.len() {
                for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] = value;
                    let _ = decode::<Command<'_>>(&damaged);
                }
            }
        }
    }

    #[test]
    fn a_body_survives_and_a_damaged_one_is_an_error() {
        let body = new_task("t").body;
        let bytes = body.encode();
        assert_eq!(Body::decode(&bytes), Ok(body));
        for length in 0..bytes.len() {
            assert!(Body::decode(&bytes[..length]).is_err());
        }
        assert!(Body::decode(&[9, 0, 0, 0]).is_err(), "unknown version");
    }
}
