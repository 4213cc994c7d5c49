//! The cost of limits, keys and types for a claim, in one run: `cargo bench -p taskyard-machine`.
//!
//! Every machine has the same number of waiting tasks. The machines take turns, so that noise on
//! the computer affects all of them alike. The run prints the median of the rounds, compared with
//! the same queue without limits and with the plainest queue. The run fails if a limit costs more
//! than `COST_MAX` compared with the same queue without it. It also fails if claims that name
//! types, behind tasks of another type, cost more than `TYPES_COST_MAX`.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the time")]
#![allow(clippy::float_arithmetic, reason = "ratios are for people")]

use std::process::ExitCode;
use std::time::{Duration, Instant};
use taskyard_machine::*;

const TASKS: usize = 1_000_000;
const ROUNDS: usize = 101;
const CLAIMS: usize = 1_000;
/// What a claim with limits may take, of one of the same keys without.
const COST_MAX: f64 = 1.25;
/// What a claim that names types may take, of a claim of any type among the same keys. One that
/// looked at foreign tasks would take a thousand times as much.
const TYPES_COST_MAX: f64 = 3.0;
/// What typed claims take; they stand behind all tasks of the other type.
const WANTED: usize = ROUNDS * CLAIMS;
const IDENTITY: Identity = Identity { incarnation: 1, shard: ShardId(0), shards: 1 };

struct Case {
    name: &'static str,
    keys: usize,
    limited: bool,
    typed: bool,
    machine: Machine,
    events: Vec<Event>,
    now: u64,
    rounds: Vec<Duration>,
}

impl Case {
    fn new(name: &'static str, keys: usize, settings: QueueSettings) -> Case {
        Case::of(name, keys, settings, false)
    }

    /// Claims name types, and tasks of another type come first.
    fn typed(name: &'static str, keys: usize) -> Case {
        Case::of(name, keys, QueueSettings::default(), true)
    }

    fn of(name: &'static str, keys: usize, settings: QueueSettings, typed: bool) -> Case {
        let (machine, now) = (Machine::new(IDENTITY), 1_000_000);
        let limited = settings != QueueSettings::default();
        let (events, rounds) = (Vec::new(), Vec::new());
        let mut case = Case { name, keys, limited, typed, machine, events, now, rounds };
        let settings = QueueSettings { retention_count: Some(0), ..settings };
        case.apply(vec![Command::SetQueue(SetQueue { queue: "q", settings })]);
        for number in 0..TASKS + if typed { WANTED } else { 0 } {
            let key = (keys > 0).then(|| format!("customer-{}", number % keys));
            let fairness_key = key.as_deref();
            let task_type = if typed && number < TASKS { "foreign" } else { "t" };
            let task = NewTask { task_type, fairness_key, ..NewTask::default() };
            case.apply(vec![Command::Enqueue(Enqueue { queue: "q", task })]);
        }
        case
    }

    fn apply(&mut self, commands: Vec<Command<'_>>) -> Vec<Result<Outcome, Rejection>> {
        self.events.clear();
        let entry = Entry { rules: RULES_CURRENT, now: Timestamp(self.now), commands };
        self.machine.apply(&entry, &mut NoPayloads, &mut self.events)
    }

    /// Claims one by one, timed; then acks, not timed.
    fn round(&mut self) {
        self.now += 10;
        let mut held = Vec::with_capacity(CLAIMS);
        let started = Instant::now();
        for _ in 0..CLAIMS {
            held.extend(self.apply(vec![Command::Claim(Claim {
                queues: vec![ClaimQueue { name: "q", weight: 1 }],
                types: if self.typed { vec!["s", "t", "u"] } else { vec![] },
                weighted_seed: None,
                tasks_max: 1,
                bytes_max: u32::MAX,
                lease_ms: 30_000,
                session: None,
                number: None,
                begun: false,
                worker: "w",
            })]));
        }
        self.rounds.push(started.elapsed());
        for answer in held {
            let Ok(Outcome::Claimed(tasks)) = answer else { panic!("{answer:?}") };
            let [task] = &tasks[..] else { panic!("a limit was in the way: {tasks:?}") };
            let (task, token) = (task.id, task.token);
            let ack = Ack { task, token, result: None, follow_ups: vec![] };
            self.apply(vec![Command::Ack(ack)]);
        }
    }

    fn median(&mut self) -> f64 {
        self.rounds.sort();
        self.rounds[ROUNDS / 2].as_nanos() as f64 / CLAIMS as f64
    }
}

fn main() -> ExitCode {
    // Limits that count every claim and are never reached.
    let rate = Some(Rate { per_second_millionths: 1_000_000_000_000, burst: 1_000_000 });
    let concurrency = Some(1_000_000);
    let none = QueueSettings::default;
    let of_queue = || QueueSettings { concurrency, rate, ..none() };
    let of_keys = || {
        let per_key = Some(PerKey { concurrency: Some(100_000), rate });
        QueueSettings { per_key, ..none() }
    };
    let mut cases = [
        Case::new("no keys, no limits", 0, none()),
        Case::new("queue limits", 0, of_queue()),
        Case::new("100 keys", 100, none()),
        Case::new("100 keys, key limits", 100, of_keys()),
        Case::new("1,000,000 keys", 1_000_000, none()),
        Case::new("1,000,000 keys, key limits", 1_000_000, of_keys()),
        Case::typed("types, no keys", 0),
        Case::typed("types, 100 keys", 100),
        Case::typed("types, 1,000,000 keys", 1_000_000),
    ];
    let bytes: Vec<u64> = cases.iter().map(|case| case.machine.memory_bytes()).collect();
    for _ in 0..ROUNDS {
        for case in &mut cases {
            case.round();
        }
    }
    let medians: Vec<f64> = cases.iter_mut().map(Case::median).collect();
    let (mut dearest, mut dearest_typed): (f64, f64) = (0.0, 0.0);
    for ((case, median), bytes) in cases.iter().zip(&medians).zip(bytes) {
        let is_base = |other: &Case| other.keys == case.keys && !other.limited && !other.typed;
        let unlimited = cases.iter().position(is_base);
        let unlimited = medians[unlimited.expect("each number of keys has a case without limits")];
        let (cost, plain) = (median / unlimited, median / medians[0]);
        let dearest = if case.typed { &mut dearest_typed } else { &mut dearest };
        *dearest = dearest.max(cost);
        let tasks = TASKS + if case.typed { WANTED } else { 0 };
        let per_task = bytes / tasks as u64;
        println!(
            "{:<28} {median:>7.0} ns a claim, {cost:.2} of the same keys without limits, \
             {plain:.2} of plain, {per_task} bytes a task",
            case.name,
        );
    }
    if dearest > COST_MAX {
        println!(
            "a limit costs too much: {dearest:.2} of the same queue without, above {COST_MAX}"
        );
        return ExitCode::FAILURE;
    }
    if dearest_typed > TYPES_COST_MAX {
        println!(
            "types cost too much: {dearest_typed:.2} of a claim of any type, above {TYPES_COST_MAX}"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
