//! Random histories: after any commands in any order, the state keeps its invariants, two machines
//! stay equal, and a checkpoint plus the entries after it gives the live state.

mod flows;
mod random;
mod tallies;

use random::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use taskyard_machine::*;

const IDENTITY: Identity = Identity { incarnation: 7, shard: ShardId(1), shards: 4 };

/// Keeps the payloads that the machine stores, to check that it removes each exactly once.
#[derive(Default)]
struct Bodies(BTreeMap<TaskId, Vec<u8>>);

impl Payloads for Bodies {
    fn put(&mut self, task: TaskId, body: &[u8]) {
        Body::decode(body).expect("a body is what Body encodes");
        self.0.insert(task, body.to_vec());
    }

    fn remove(&mut self, task: TaskId) {
        assert!(self.0.remove(&task).is_some(), "the body of {task} is removed twice");
    }
}

const QUEUES: [&str; 4] = ["mail", "video", "small", "dead-off"];
const SESSIONS: [SessionId; 3] = [SessionId(1), SessionId(2), SessionId(3)];
const KEYS: [&str; 6] = ["acme", "bolt", "coil", "dune", "echo", "fern"];
const REQUESTS: [&str; 6] = ["r1", "r2", "r3", "r4", "r5", "r6"];
const TYPES: [&str; 4] = ["send", "resize", "index", "purge"];

/// Types of a claim: any, or some of them.
fn types(random: &mut Random) -> Vec<&'static str> {
    if random.chance(40) {
        return vec![];
    }
    (0..1 + random.below(3)).map(|_| random.pick(&TYPES)).collect()
}

/// A claim of one task of these queues, in order.
fn claim<'a>(queues: &[&'a str]) -> Claim<'a> {
    Claim {
        queues: queues.iter().map(|name| ClaimQueue { name, weight: 1 }).collect(),
        types: vec![],
        weighted_seed: None,
        tasks_max: 1,
        bytes_max: u32::MAX,
        lease_ms: 30_000,
        session: None,
        number: None,
        begun: false,
        worker: "ann",
    }
}

/// A unique key that other tasks want too, with any options.
fn unique(random: &mut Random) -> Unique<'static> {
    let on_conflict = random.pick(&[OnConflict::Existing, OnConflict::Replace, OnConflict::Reject]);
    let debounced = on_conflict == OnConflict::Replace && random.chance(50);
    Unique {
        key: random.pick(&["k1", "k2", "k3"]).into(),
        until: random.pick(&[None, Some(UniqueUntil::Start), Some(UniqueUntil::Done)]),
        window_ms: (!debounced && random.chance(40)).then(|| 1 + random.below(40_000)),
        on_conflict,
        debounce_ms: debounced.then(|| 1 + random.below(5_000)),
    }
}

/// Draws mostly sensible commands from the tasks and claims so far.
struct Author {
    random: Random,
    now: u64,
    known: VecDeque<TaskId>,
    flows: VecDeque<TaskId>,
    tallies: VecDeque<TaskId>,
    claims: VecDeque<(TaskId, ClaimToken)>,
    claim_sequence: u64,
    sending: u32,
    delivered: u64,
    deliveries: Vec<Box<[u8]>>,
}

impl Author {
    fn task(&mut self) -> NewTask<'static> {
        let random = &mut self.random;
        let now = self.now;
        let run_at = match random.below(10) {
            0..=6 => When::Now,
            7 => When::After { ms: random.below(60_000) },
            8 => When::At(Timestamp(now.saturating_sub(5_000))),
            _ => When::At(Timestamp(now + random.below(20_000))),
        };
        let retry = random.chance(50).then(|| RetryPolicy {
            backoff: Backoff::Fixed { delay_ms: random.below(3) * 1_000 },
            max_attempts: 1 + random.below(3) as u32,
            jitter_thousandths: 250,
        });
        NewTask {
            task_type: if random.chance(1) { "" } else { random.pick(&TYPES) },
            body: Body { content_type: "", headers: vec![], payload: b"{}" },
            priority: random.chance(40).then(|| random.below(11) as u8),
            run_at,
            expires_at: random.chance(15).then(|| Timestamp(now + random.below(40_000))),
            request_id: random.chance(20).then(|| random.pick(&REQUESTS)),
            retry,
            timeout_ms: random.chance(10).then(|| 1 + random.below(20_000)),
            lease_ms: random.chance(10).then(|| 900 + random.below(20_000)),
            discard_dead: random.chance(10),
            retention_ms: random.chance(10).then(|| random.below(60_000)),
            tags: if random.chance(10) { vec!["x"] } else { vec![] },
            unique: random.chance(30).then(|| Box::new(unique(random))),
            fairness_key: random.chance(60).then(|| random.pick(&KEYS)),
        }
    }

    fn enqueue(&mut self) -> Enqueue<'static> {
        let queue = self.random.pick(&QUEUES);
        Enqueue { queue, task: self.task() }
    }

    fn tasks(&mut self) -> Vec<NewTask<'static>> {
        (0..1 + self.random.below(6)).map(|_| self.task()).collect()
    }

    fn held(&mut self) -> (TaskId, ClaimToken) {
        let lie = self.random.chance(5);
        let position = self.random.below(self.claims.len().max(1) as u64) as usize;
        let found = if self.random.chance(70) {
            self.claims.remove(position)
        } else {
            self.claims.get(position).copied()
        };
        let (task, token) = found.unwrap_or((self.any(), ClaimToken(1)));
        if lie { (task, ClaimToken(token.0 + 1)) } else { (task, token) }
    }

    fn any(&mut self) -> TaskId {
        let position = self.random.below(self.known.len().max(1) as u64) as usize;
        let unknown =
            TaskId { incarnation: 7, home: ShardId(1), origin: ShardId(2), sequence: 1 << 50 };
        self.known.get(position).copied().unwrap_or(unknown)
    }

    fn batch_id(&mut self) -> u128 {
        self.random.below(12).into()
    }

    fn command(&mut self) -> Command<'static> {
        match self.random.below(100) {
            0..=23 => Command::Enqueue(self.enqueue()),
            24..=26 => Command::EnqueueMany(EnqueueMany {
                batch_id: self.random.chance(50).then(|| self.batch_id()),
                items: (0..self.random.below(6)).map(|_| self.enqueue()).collect(),
            }),
            27..=28 => Command::EnqueueBatch(EnqueueBatch {
                batch_id: self.random.chance(50).then(|| self.batch_id()),
                queue: self.random.pick(&QUEUES),
                tasks: self.tasks(),
            }),
            29..=30 => Command::StageBatch(StageBatch {
                batch_id: self.batch_id(),
                queue: "mail",
                part: self.random.below(2) as u32,
                tasks: self.tasks(),
            }),
            31 if self.random.chance(20) => Command::Unstage(Unstage { batch_id: self.batch_id() }),
            31 => Command::CommitBatch(CommitBatch {
                batch_id: self.batch_id(),
                parts: 1 + self.random.below(2) as u32,
            }),
            32..=50 => self.claim(),
            51..=62 => {
                let (task, token) = self.held();
                let follow_ups = (0..self.random.below(6).saturating_sub(3))
                    .map(|_| FollowUp {
                        home: ShardId(self.random.below(3) as u16),
                        enqueue: self.enqueue(),
                    })
                    .collect();
                let result = self.random.chance(30).then_some(&b"42"[..]);
                Command::Ack(Ack { task, token, result, follow_ups })
            }
            63..=69 => {
                let (task, token) = self.held();
                Command::Fail(Fail {
                    task,
                    token,
                    error: TaskError { error_type: "io", message: "no route", backtrace: "" },
                    retry_at: self.random.chance(20).then_some(When::After { ms: 700 }),
                    retryable: self.random.chance(80),
                })
            }
            70..=72 => {
                let (task, token) = self.held();
                self.claims.push_back((task, token));
                Command::Extend(Extend {
                    task,
                    token,
                    lease_ms: self.random.chance(50).then_some(5_000),
                    progress: Some(Progress { percent: 10, message: "on it" }),
                    resume_state: self.random.chance(30).then_some(b"page 2"),
                })
            }
            73 => Command::Renew(Renew { claims: self.claims.iter().copied().take(5).collect() }),
            74..=75 => {
                let (task, token) = self.held();
                Command::Release(Release { task, token })
            }
            76 => {
                let (task, token) = self.held();
                let push_back_key = self.random.chance(60);
                Command::Snooze(Snooze {
                    task,
                    token,
                    until: When::After { ms: 2_000 },
                    push_back_key,
                })
            }
            77 if self.random.chance(40) => Command::Kill(Kill { task: self.any() }),
            77..=79 => Command::Cancel(Cancel { task: self.any() }),
            80..=81 => Command::Retry(Retry {
                task: self.any(),
                body: self.random.chance(30).then(|| Body { payload: b"new", ..Body::default() }),
            }),
            82..=83 => self.dead(),
            84 => Command::PauseQueue(QueueCommand { queue: self.random.pick(&QUEUES) }),
            85..=86 => Command::ResumeQueue(QueueCommand { queue: self.random.pick(&QUEUES) }),
            87 if self.random.chance(20) => {
                let now = Timestamp(self.now.saturating_sub(self.random.below(5_000)));
                let before = EnqueueCut { next_sequence: 1 + self.random.below(500), now };
                let after = self.random.chance(30).then(|| self.any());
                Command::PurgeQueue(PurgeQueue { queue: self.random.pick(&QUEUES), before, after })
            }
            87 => {
                Command::DeleteQueue(DeleteQueue { queue: self.random.pick(&QUEUES), version: 0 })
            }
            88 => self.set_queue(),
            89..=90 => Command::EndSession(EndSession {
                session: self.random.pick(&SESSIONS),
                reason: self.random.pick(&[SessionEnd::Goodbye, SessionEnd::Silence]),
                not_started: self.claims.iter().map(|claim| claim.0).take(2).collect(),
                keep: if self.random.chance(20) { vec![self.any()] } else { vec![] },
            }),
            91 if self.random.chance(10) => Command::BeginTerm,
            91 if self.random.chance(20) => {
                Command::PutOff(PutOff { claims_ms: self.random.below(30_000) })
            }
            91 => Command::Mark,
            92 => Command::Delivered(Delivered { to: ShardId(0), up_to: self.random.below(20) }),
            93..=94 => self.deliver(),
            95..=96 => self.flow(),
            97..=98 => self.tally(),
            _ => Command::ExpireDue,
        }
    }

    fn claim(&mut self) -> Command<'static> {
        let session = self.random.chance(60).then(|| self.random.pick(&SESSIONS));
        if self.random.chance(90) {
            (self.claim_sequence, self.sending) = (self.claim_sequence + 1, 0);
        } else {
            self.sending += 1;
        }
        let number = ClaimNumber { sequence: self.claim_sequence, sending: self.sending };
        Command::Claim(Claim {
            queues: (0..1 + self.random.below(3))
                .map(|_| ClaimQueue { name: self.random.pick(&QUEUES), weight: 3 })
                .collect(),
            types: types(&mut self.random),
            weighted_seed: self.random.chance(40).then(|| self.random.next()),
            tasks_max: 1 + self.random.below(5) as u32,
            bytes_max: u32::MAX,
            lease_ms: 1_000 + self.random.below(20_000),
            session,
            number: self.random.chance(70).then_some(number),
            begun: self.random.chance(30),
            worker: self.random.pick(&["ann", "ben"]),
        })
    }

    fn dead(&mut self) -> Command<'static> {
        let selection = if self.random.chance(50) {
            Selection::Ids((0..5).map(|_| self.any()).collect())
        } else {
            Selection::Filter {
                filter: TaskFilter {
                    queue: Some("mail"),
                    error: Some("io"),
                    ..TaskFilter::default()
                },
                after: self.random.chance(30).then(|| self.any()),
                dead_before: Some(Timestamp(self.now)),
            }
        };
        let action = self.random.pick(&[DeadAction::Retry, DeadAction::Discard]);
        Command::Dead(DeadCommand { action, selection })
    }

    fn set_queue(&mut self) -> Command<'static> {
        let queue = self.random.pick(&QUEUES);
        let settings = QueueSettings {
            max_length: (queue == "small").then_some(5),
            dedup_window_ms: self.random.chance(50).then(|| 60_000 + self.random.below(40_000)),
            retention_ms: self.random.chance(30).then(|| self.random.below(60_000)),
            retention_count: self.random.chance(60).then(|| self.random.below(20) as u32),
            dead_retention_ms: self.random.chance(30).then(|| self.random.below(60_000)),
            dead_retention_count: match queue {
                "dead-off" => Some(0),
                _ => self.random.chance(30).then(|| self.random.below(10) as u32),
            },
            retry: None,
            timeout_ms: self.random.chance(20).then_some(8_000),
            concurrency: self.random.chance(30).then(|| 1 + self.random.below(6) as u32),
            rate: self.rate(),
            per_key: self.random.chance(60).then(|| PerKey {
                concurrency: self.random.chance(60).then(|| 1 + self.random.below(3) as u32),
                rate: self.rate(),
            }),
            weights: (0..self.random.below(4))
                .map(|_| {
                    let key = self.random.pick(&["", "acme", "bolt", "coil"]);
                    (key.into(), 1 + self.random.below(4) as u32)
                })
                .collect(),
            ageing_ms: self.random.chance(20).then(|| 1 + self.random.below(5_000)),
            spread: None,
        };
        Command::SetQueue(SetQueue { queue, settings })
    }

    fn rate(&mut self) -> Option<Rate> {
        self.random.chance(40).then(|| Rate {
            per_second_millionths: self.random.pick(&[100_000, 1_000_000, 7_300_000]),
            burst: 1 + self.random.below(5) as u32,
        })
    }

    /// A message from another shard's outbox, sometimes repeated or too early.
    fn deliver(&mut self) -> Command<'static> {
        if self.deliveries.is_empty() {
            return Command::ExpireDue;
        }
        let sequence = match self.random.below(4) {
            0 => self.delivered,
            1 => self.delivered + 2,
            _ => {
                self.delivered += 1;
                self.delivered
            }
        };
        let position = sequence as usize % self.deliveries.len();
        let command = Box::leak(self.deliveries[position].clone());
        let waited_ms = self.random.below(5_000);
        Command::Deliver(Deliver { from: ShardId(2), sequence, waited_ms, command })
    }

    fn learn(&mut self, answers: &[Result<Outcome, Rejection>]) {
        for outcome in answers.iter().flatten() {
            match outcome {
                Outcome::Enqueued(made) => self.known.push_back(made.id),
                Outcome::EnqueuedBatch(made) => self.known.extend(made.iter().map(|made| made.id)),
                Outcome::FlowSubmitted { flow, tasks, .. } => {
                    self.flows.push_front(*flow);
                    self.known.extend(tasks);
                }
                Outcome::TallyOpened { tally } => self.tallies.push_front(*tally),
                Outcome::TallyAdded { ids } => self.known.extend(ids),
                Outcome::Claimed(tasks) => {
                    self.claims.extend(tasks.iter().map(|task| (task.id, task.token)));
                }
                _ => {}
            }
        }
        self.flows.truncate(10);
        self.tallies.truncate(3);
        while self.known.len() > 200 {
            self.known.pop_front();
        }
        while self.claims.len() > 40 {
            self.claims.pop_front();
        }
    }

    fn entry(&mut self) -> Vec<u8> {
        self.now += match self.random.below(10) {
            0..=5 => self.random.below(50),
            6..=8 => self.random.below(2_000),
            // Beyond retentions of minutes, or of days.
            9 if self.random.below(40) == 0 => self.random.pick(&[1_860_000, 2_700_000_000]),
            _ => self.random.below(15_000),
        };
        // Sometimes the clock is behind the state's time, which must not matter.
        let stamp = if self.random.chance(3) { self.now / 2 } else { self.now };
        let mut builder = EntryBuilder::new(Timestamp(stamp));
        for _ in 0..1 + self.random.below(4) {
            assert!(builder.push(&EncodedCommand::new(&self.command())));
        }
        builder.finish()
    }
}

/// Messages from the outbox of another shard to this one: the follow-ups of its acks.
fn messages_from_shard_2() -> Vec<Box<[u8]>> {
    let identity = Identity { shard: ShardId(2), ..IDENTITY };
    let mut machine = Machine::new(identity);
    let mut bytes = Vec::new();
    let mut apply = |machine: &mut Machine, command: Command<'_>| {
        let mut builder = EntryBuilder::new(Timestamp(1));
        assert!(builder.push(&EncodedCommand::new(&command)));
        bytes = builder.finish();
        let entry = Entry::decode(&bytes).expect("it was just built");
        machine
            .apply(&entry, &mut NoPayloads, &mut Vec::new())
            .remove(0)
            .expect("a sensible command")
    };
    for number in 0..400 {
        let task = NewTask { task_type: "parent", ..NewTask::default() };
        apply(&mut machine, Command::Enqueue(Enqueue { queue: "parents", task }));
        let claimed = apply(&mut machine, Command::Claim(claim(&["parents"])));
        let Outcome::Claimed(claimed) = claimed else { panic!("{claimed:?}") };
        let request_id = REQUESTS.get(number % 12).copied();
        let on_conflict = [OnConflict::Replace, OnConflict::Reject][number % 2];
        let unique = (number % 5 == 0).then_some(Box::new(Unique {
            key: ["k1", "k2", "k3"][number % 3].into(),
            until: None,
            window_ms: None,
            on_conflict,
            debounce_ms: (number % 10 == 0).then_some(2_000),
        }));
        let task = NewTask { task_type: "child", request_id, unique, ..NewTask::default() };
        let enqueue = Enqueue { queue: QUEUES[number % 4], task };
        let follow_ups = vec![FollowUp { home: IDENTITY.shard, enqueue }];
        let ack = Ack { task: claimed[0].id, token: claimed[0].token, result: None, follow_ups };
        apply(&mut machine, Command::Ack(ack));
    }
    machine.outgoing(1_000).into_iter().map(|outgoing| outgoing.command).collect()
}

/// A checkpoint in progress: the records so far, and the expected state.
struct Checkpoint {
    expected: Vec<(RecordKey, Box<[u8]>)>,
    entries_after: Vec<(Vec<u8>, Answers)>,
}

fn apply(machine: &mut Machine, entry: &[u8], bodies: &mut Bodies) -> (Answers, Vec<Event>) {
    let entry = Entry::decode(entry).expect("the author writes good entries");
    let mut events = Vec::new();
    let answers = machine.apply(&entry, bodies, &mut events);
    (answers, events)
}

type Answers = Vec<Result<Outcome, Rejection>>;

fn run(seed: u64, entries: usize) {
    let mut author = Author {
        random: Random(seed),
        now: 1_000_000,
        known: VecDeque::new(),
        flows: VecDeque::new(),
        tallies: VecDeque::new(),
        claims: VecDeque::new(),
        claim_sequence: 0,
        sending: 0,
        delivered: 0,
        deliveries: messages_from_shard_2(),
    };
    let (mut live, mut twin) = (Machine::new(IDENTITY), Machine::new(IDENTITY));
    let (mut bodies, mut twin_bodies) = (Bodies::default(), Bodies::default());
    let mut stored: BTreeMap<RecordKey, Box<[u8]>> = BTreeMap::new();
    let mut checkpoint: Option<Checkpoint> = None;
    let mut seen: BTreeSet<&'static str> = BTreeSet::new();

    for step in 0..entries {
        let place = format!("seed {seed}, entry {step}");
        let entry = author.entry();
        let (answers, events) = apply(&mut live, &entry, &mut bodies);
        let (twin_answers, twin_events) = apply(&mut twin, &entry, &mut twin_bodies);
        assert_eq!(answers, twin_answers, "{place}");
        assert_eq!(events, twin_events, "{place}");
        seen.extend(answers.iter().map(|answer| match answer {
            Ok(_) => "ok",
            Err(rejection) => rejection.code(),
        }));
        author.learn(&answers);
        if step % 7 == 0 {
            live.check().unwrap_or_else(|broken| panic!("{place}: {broken}"));
            let ids: Vec<TaskId> = bodies.0.keys().copied().collect();
            let kept: Vec<TaskId> = live
                .records()
                .into_iter()
                .filter_map(|(key, _)| match key {
                    RecordKey::Task(id) => Some(id),
                    RecordKey::Rest(_) => None,
                })
                .collect();
            assert_eq!(ids, kept, "{place}: bodies and tasks");
        }
        if let Some(pending) = &mut checkpoint {
            pending.entries_after.push((entry, answers));
        }
        let take_bite = checkpoint.is_some() && author.random.chance(70);
        if take_bite {
            let bite = live.frozen_bite(1 + author.random.below(20) as usize);
            let whole = bite.is_empty();
            for record in bite {
                match record.value {
                    Some(value) => drop(stored.insert(record.key, value)),
                    None => {
                        let known = stored.remove(&record.key).is_some();
                        assert!(known, "{place}: an unknown record is removed");
                    }
                }
            }
            if whole {
                let done = checkpoint.take().expect("a bite is of a checkpoint");
                finish_checkpoint(&done, &stored, &live, &place);
            }
        } else if checkpoint.is_none() && author.random.chance(5) {
            live.freeze();
            checkpoint = Some(Checkpoint { expected: live.records(), entries_after: Vec::new() });
        }
    }
    assert_eq!(live.records(), twin.records(), "seed {seed}");
    assert_eq!(live.state_hash(), twin.state_hash(), "seed {seed}");
    drain_alike(&mut live, author.now, seed);
    for code in
        ["ok", "invalid_argument", "claim_lost", "already_finished", "queue_full", "not_unique"]
    {
        assert!(seen.contains(code), "seed {seed} never met {code}: {seen:?}");
    }
}

/// Checks that the live machine and a machine loaded from its records hand out the remaining tasks
/// in the same order.
fn drain_alike(live: &mut Machine, mut now: u64, seed: u64) {
    let mut reloaded = Machine::load(IDENTITY, live.records()).expect("it loads");
    let mut drained = 0;
    let resume = QUEUES.map(|queue| Command::ResumeQueue(QueueCommand { queue })).to_vec();
    let entry = Entry { rules: RULES_CURRENT, now: Timestamp(now), commands: resume };
    for machine in [&mut *live, &mut reloaded] {
        machine.apply(&entry, &mut NoPayloads, &mut Vec::new());
    }
    for _ in 0..400 {
        now += 50;
        let claim = Claim {
            types: if drained % 2 == 0 { vec![] } else { vec!["resize", "index"] },
            tasks_max: 3,
            lease_ms: 1_000,
            // A lapse in a session is not a loss, so that tasks are handed out again and again.
            session: Some(SESSIONS[0]),
            ..claim(&QUEUES)
        };
        let commands = vec![Command::ExpireDue, Command::Claim(claim)];
        let entry = Entry { rules: RULES_CURRENT, now: Timestamp(now), commands };
        let answers = live.apply(&entry, &mut NoPayloads, &mut Vec::new());
        let again = reloaded.apply(&entry, &mut NoPayloads, &mut Vec::new());
        assert_eq!(answers, again, "seed {seed}: a reloaded machine goes on differently");
        for answer in &answers {
            if let Ok(Outcome::Claimed(tasks)) = answer {
                drained += tasks.len();
            }
        }
    }
    assert!(drained > 5, "seed {seed} left {drained} tasks to claim");
}

/// Checks that the checkpoint is the state at its cut, and that a replay gives the live state.
fn finish_checkpoint(
    done: &Checkpoint,
    stored: &BTreeMap<RecordKey, Box<[u8]>>,
    live: &Machine,
    place: &str,
) {
    let records: Vec<_> = stored.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert!(records == done.expected, "{place}: the checkpoint is not the state at its cut");
    // In any order.
    let mut reloaded = Machine::load(IDENTITY, records.into_iter().rev()).expect("it loads");
    assert!(reloaded.records() == done.expected, "{place}: loading changes the state");
    reloaded.check().unwrap_or_else(|broken| panic!("{place}: reloaded: {broken}"));
    for (entry, answers) in &done.entries_after {
        let entry = Entry::decode(entry).expect("it was applied before");
        let again = reloaded.apply(&entry, &mut NoPayloads, &mut Vec::new());
        assert_eq!(again, *answers, "{place}: replay after loading answers something else");
    }
    assert!(reloaded.records() == live.records(), "{place}: replay after loading diverges");
    assert_eq!(reloaded.memory_bytes(), live.memory_bytes(), "{place}");
    assert_eq!(reloaded.next_due(), live.next_due(), "{place}");
    reloaded.check().unwrap_or_else(|broken| panic!("{place}: replayed: {broken}"));
}

#[test]
fn random_histories_keep_every_invariant() {
    for seed in 0..6 {
        run(seed, 1_500);
    }
}
