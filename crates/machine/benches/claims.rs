//! What limits and keys cost a claim, all in one run: `cargo bench -p taskyard-machine`.
//!
//! Every machine has the same number of waiting tasks, and they take turns, so that whatever disturbs
//! the run disturbs all of them alike. What is told is the median of the rounds.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the time")]
#![allow(clippy::float_arithmetic, reason = "ratios are for people")]

use std::time::{Duration, Instant};
use taskyard_machine::*;

const TASKS: usize = 1_000_000;
const ROUNDS: usize = 101;
const CLAIMS: usize = 1_000;
const IDENTITY: Identity = Identity { incarnation: 1, shard: ShardId(0), shards: 1 };

struct Case {
    name: &'static str,
    machine: Machine,
    events: Vec<Event>,
    now: u64,
    rounds: Vec<Duration>,
}

impl Case {
    fn new(name: &'static str, keys: usize, settings: QueueSettings) -> Case {
        let (machine, now) = (Machine::new(IDENTITY), 1_000_000);
        let mut case = Case { name, machine, events: Vec::new(), now, rounds: Vec::new() };
        let settings = QueueSettings { retention_count: Some(0), ..settings };
        case.apply(vec![Command::SetQueue(SetQueue { queue: "q", settings })]);
        for number in 0..TASKS {
            let key = (keys > 0).then(|| format!("customer-{}", number % keys));
            let fairness_key = key.as_deref();
            let task = NewTask { task_type: "t", fairness_key, ..NewTask::default() };
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
                weighted_seed: None,
                tasks_max: 1,
                lease_ms: 30_000,
                session: None,
                claim_sequence: None,
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

fn main() {
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
    ];
    let bytes: Vec<u64> = cases.iter().map(|case| case.machine.memory_bytes()).collect();
    for _ in 0..ROUNDS {
        for case in &mut cases {
            case.round();
        }
    }
    let plain = cases[0].median();
    for (case, bytes) in cases.iter_mut().zip(bytes) {
        let median = case.median();
        let per_task = bytes / TASKS as u64;
        println!(
            "{:<28} {median:>7.0} ns a claim, {:.2} of plain, {per_task} bytes a task",
            case.name,
            median / plain
        );
    }
}
