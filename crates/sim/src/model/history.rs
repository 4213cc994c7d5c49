//! A random history: commands of all kinds, drawn from what the model knows, fed to the machine, to
//! one that is reloaded now and then, and to the model.

use super::{Difference, Model, State};
use crate::clock::RUN_BEGINS_AT_MS;
use crate::rng::Rng;
use crate::shard::first_difference;
use taskyard_machine::{
    Ack, Backoff, Body, Cancel, Claim, ClaimQueue, ClaimToken, Command, DeadAction, DeadCommand,
    EncodedCommand, EndSession, Enqueue, EnqueueBatch, Entry, EntryBuilder, Extend, Fail, Identity,
    Machine, NewTask, NoPayloads, QueueCommand, QueueSettings, Release, Renew, Retry, RetryPolicy,
    Selection, SessionEnd, SessionId, SetQueue, ShardId, Snooze, TaskError, TaskFilter, TaskId,
    Timestamp, When,
};

const QUEUES: [&str; 3] = ["mail", "video", "none-yet"];
const REQUESTS: [&str; 8] = ["r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8"];
const IDENTITY: Identity = Identity { incarnation: 1, shard: ShardId(0), shards: 1 };

/// Runs `commands` random commands of this seed; the first difference, in words.
pub(crate) fn check(seed: u64, commands: u64) -> Result<(), Difference> {
    let mut rng = Rng::new(seed);
    let mut machine = Machine::new(IDENTITY);
    let mut reloaded = Machine::new(IDENTITY);
    let mut model = Model { now: RUN_BEGINS_AT_MS, ..Model::default() };
    let mut handed_out = Vec::new();
    for number in 0..commands {
        model.now += pause(&mut rng);
        let command = draw(&mut rng, &model, &handed_out);
        let entry = encode(&command, model.now);
        let answer = apply(&mut machine, &entry);
        let told = |difference| format!("command {number} {command:?}: {difference}");
        if apply(&mut reloaded, &entry) != answer {
            return Err(told("the reloaded machine answered differently".into()));
        }
        let answer = answer.into_iter().next().ok_or("a command was not answered")?;
        model.follow(&command, &answer).map_err(told)?;
        compare(&model, &machine).map_err(told)?;
        if let Ok(taskyard_machine::Outcome::Claimed(tasks)) = &answer {
            handed_out.extend(tasks.iter().map(|task| (task.id, task.token)));
        }
        if rng.chance(30) {
            machine.check().map_err(told)?;
            let (left, right) = (machine.records(), reloaded.records());
            if left != right || machine.state_hash() != reloaded.state_hash() {
                return Err(told(format!("a reload differs: {}", first_difference(&left, &right))));
            }
            reloaded = Machine::load(IDENTITY, left).map_err(|error| told(error.to_string()))?;
        }
    }
    Ok(())
}

fn encode(command: &Command<'_>, now: u64) -> Vec<u8> {
    let mut builder = EntryBuilder::new(Timestamp(now));
    builder.push(&EncodedCommand::new(command));
    builder.finish()
}

fn apply(
    machine: &mut Machine,
    entry: &[u8],
) -> Vec<Result<taskyard_machine::Outcome, taskyard_machine::Rejection>> {
    let entry = Entry::decode(entry).expect("it was encoded just now");
    machine.apply(&entry, &mut NoPayloads, &mut Vec::new())
}

/// Every task and every count must be what the model says.
fn compare(model: &Model, machine: &Machine) -> Result<(), Difference> {
    for task in &model.tasks {
        let view = machine.task(task.id).ok_or_else(|| format!("{} is missing", task.id))?;
        let (run_at, claim) = match &task.state {
            State::Scheduled { run_at } => (Some(*run_at), None),
            State::Claimed(held) => {
                (None, Some((held.token, held.lease_ends_at, held.cancel_requested)))
            }
            State::Ready | State::Finished { .. } => (None, None),
        };
        let expected = (task.state_name(), task.attempt, task.losses, run_at, claim);
        let seen_claim = view
            .claim
            .as_ref()
            .map(|claim| (claim.token.0, claim.lease_expires_at.0, claim.cancel_requested));
        let seen_run_at = view.run_at.map(|at| at.0);
        let seen = (view.state, view.attempt, view.losses, seen_run_at, seen_claim);
        if expected != seen {
            return Err(format!("{} must be {expected:?}, is {seen:?}", task.id));
        }
    }
    if machine.task_count() != model.tasks.len() as u64 {
        return Err(format!(
            "{} tasks must be there, not {}",
            model.tasks.len(),
            machine.task_count()
        ));
    }
    for queue in machine.queues() {
        let name = queue.name.as_str();
        let count = |wanted: fn(&State) -> bool| {
            model.tasks.iter().filter(|task| task.queue == name && wanted(&task.state)).count()
                as u64
        };
        let expected = [
            count(|state| matches!(state, State::Ready)),
            count(|state| matches!(state, State::Scheduled { .. })),
            count(|state| matches!(state, State::Claimed(_))),
            count(|state| matches!(state, State::Finished { .. })),
        ];
        let counts = queue.counts;
        let seen = [counts.ready, counts.scheduled, counts.claimed, counts.finished + counts.dead];
        if expected != seen {
            return Err(format!("queue {name} must count {expected:?}, counts {seen:?}"));
        }
    }
    Ok(())
}

/// How long until the next command: mostly little, at times so long that everything is due.
fn pause(rng: &mut Rng) -> u64 {
    match rng.below(20) {
        0 => rng.between(1_000, 40_000),
        1..8 => 0,
        _ => rng.below(300),
    }
}

fn draw(rng: &mut Rng, model: &Model, handed_out: &[(TaskId, ClaimToken)]) -> Command<'static> {
    let queue = *rng.pick(&QUEUES);
    let unknown = TaskId::from_u128(u128::from(rng.next()));
    let task = if model.known_ids.is_empty() || rng.chance(20) {
        unknown
    } else {
        // The newer ones are more likely to be alive.
        let newest = model.known_ids.len().saturating_sub(12);
        let from = if rng.chance(700) { newest } else { 0 };
        *rng.pick(&model.known_ids[from..])
    };
    // Mostly live claims, now and then one that is long gone.
    let live: Vec<(TaskId, ClaimToken)> = model
        .tasks
        .iter()
        .filter_map(|task| Some((task.id, ClaimToken(task.held()?.token))))
        .collect();
    let claims = if rng.chance(850) && !live.is_empty() { &live[..] } else { handed_out };
    let (held, token) = if claims.is_empty() { (task, ClaimToken(1)) } else { *rng.pick(claims) };
    let session = SessionId(u128::from(rng.below(3)));
    match rng.below(100) {
        0..22 => {
            let request_id = rng.chance(300).then(|| *rng.pick(&REQUESTS));
            let task = NewTask { request_id, ..new_task(rng, model.now) };
            Command::Enqueue(Enqueue { queue, task })
        }
        22..26 => {
            let count = rng.between(1, 4);
            let tasks = (0..count).map(|_| new_task(rng, model.now)).collect();
            Command::EnqueueBatch(EnqueueBatch { batch_id: None, queue, tasks })
        }
        26..44 => {
            let mut queues: Vec<ClaimQueue<'_>> =
                QUEUES.iter().map(|name| ClaimQueue { name, weight: 1 }).collect();
            queues.rotate_left(rng.below(3) as usize);
            Command::Claim(Claim {
                queues,
                weighted_seed: None,
                tasks_max: rng.between(1, 4) as u32,
                lease_ms: rng.between(1_000, 8_000),
                session: rng.chance(600).then_some(session),
                claim_sequence: None,
                worker: "worker",
            })
        }
        44..54 => {
            let result = rng.chance(500).then_some(&b"1"[..]);
            Command::Ack(Ack { task: held, token, result, follow_ups: vec![] })
        }
        54..62 => Command::Fail(Fail {
            task: held,
            token,
            error: TaskError { error_type: "E", message: "m", backtrace: "" },
            retry_at: rng.chance(300).then(|| When::After { ms: rng.below(500) }),
            retryable: !rng.chance(200),
        }),
        62..67 => Command::Extend(Extend {
            task: held,
            token,
            lease_ms: rng.chance(500).then(|| rng.between(1_000, 8_000)),
            progress: None,
            resume_state: rng.chance(300).then_some(&b"half"[..]),
        }),
        67..69 => Command::Renew(Renew { claims: vec![(held, token), (task, token)] }),
        69..72 => Command::Release(Release { task: held, token }),
        72..75 => {
            let until = When::After { ms: rng.below(1_000) };
            Command::Snooze(Snooze { task: held, token, until, hold_key: false })
        }
        75..79 => Command::Cancel(Cancel { task }),
        79..83 => {
            let body = rng.chance(300).then(|| Body { payload: b"edited", ..Body::default() });
            Command::Retry(Retry { task, body })
        }
        83..86 => {
            let action = if rng.chance(600) { DeadAction::Retry } else { DeadAction::Discard };
            let selection = if rng.chance(500) {
                Selection::Ids(vec![task, held])
            } else {
                let filter = TaskFilter { queue: Some(queue), ..TaskFilter::default() };
                Selection::Filter { filter, after: None, dead_before: None }
            };
            Command::Dead(DeadCommand { action, selection })
        }
        86 => Command::PauseQueue(QueueCommand { queue }),
        87..89 => Command::ResumeQueue(QueueCommand { queue }),
        89 if rng.chance(200) => Command::PurgeQueue(QueueCommand { queue }),
        89..91 => {
            let settings = QueueSettings {
                max_length: rng.chance(300).then(|| rng.between(2, 20)),
                retention_count: rng.chance(500).then(|| rng.below(6) as u32),
                retention_ms: rng.chance(300).then(|| rng.below(20_000)),
                dead_retention_count: rng.chance(400).then(|| rng.below(4) as u32),
                dead_retention_ms: rng.chance(300).then(|| rng.below(20_000)),
                ..QueueSettings::default()
            };
            Command::SetQueue(SetQueue { queue, settings })
        }
        91..94 => {
            let reason = if rng.chance(500) { SessionEnd::Goodbye } else { SessionEnd::Silence };
            let some = |rng: &mut Rng| if rng.chance(300) { vec![held, task] } else { vec![] };
            let (not_started, keep) = (some(rng), some(rng));
            Command::EndSession(EndSession { session, reason, not_started, keep })
        }
        94 if rng.chance(300) => Command::BeginTerm,
        _ => Command::ExpireDue,
    }
}

fn new_task(rng: &mut Rng, now: u64) -> NewTask<'static> {
    let backoff = if rng.chance(500) {
        Backoff::Fixed { delay_ms: rng.below(1_000) }
    } else {
        Backoff::Linear { delay_ms: 200, delay_max_ms: 1_000 }
    };
    let priorities = if rng.chance(50) { 14 } else { 10 };
    NewTask {
        task_type: "work",
        // One too high now and then: it must be refused, and with it its whole batch.
        priority: rng.chance(600).then(|| rng.below(priorities) as u8),
        run_at: match rng.below(10) {
            0..3 => When::After { ms: rng.below(3_000) },
            3 => When::At(Timestamp((now + rng.below(4_000)).saturating_sub(2_000))),
            _ => When::Now,
        },
        expires_at: rng
            .chance(150)
            .then(|| Timestamp((now + rng.below(10_000)).saturating_sub(500))),
        retry: rng.chance(800).then(|| RetryPolicy {
            backoff,
            max_attempts: rng.between(1, 4) as u32,
            jitter_thousandths: 0,
        }),
        timeout_ms: rng.chance(150).then(|| rng.between(1, 3_000)),
        retention_ms: rng.chance(150).then(|| rng.below(5_000)),
        ..NewTask::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_does_what_the_model_says() {
        for seed in 0..12 {
            check(seed, 500).unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        }
    }
}
