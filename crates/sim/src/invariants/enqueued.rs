//! Enqueued: every accepted task of an entry, and when it may first run.

use std::collections::BTreeMap;
use taskyard_machine::{Command, FollowUp, NewTask, Outcome, Rejection, TaskId, When};

/// Every accepted task of these commands: queue, task, id, and whether it was known.
pub(super) fn enqueued<'c>(
    commands: &'c [Command<'c>],
    outcomes: &[Result<Outcome, Rejection>],
) -> Vec<(&'c str, &'c NewTask<'c>, TaskId, bool)> {
    let mut accepted = Vec::new();
    for (command, outcome) in commands.iter().zip(outcomes) {
        match (command, outcome) {
            (Command::Enqueue(enqueue), Ok(Outcome::Enqueued(answer))) => {
                accepted.push((enqueue.queue, &enqueue.task, answer.id, answer.duplicate));
            }
            (Command::EnqueueMany(many), Ok(Outcome::EnqueuedMany(answers))) => {
                for (item, answer) in many.items.iter().zip(answers) {
                    if let Ok(answer) = answer {
                        accepted.push((item.queue, &item.task, answer.id, answer.duplicate));
                    }
                }
            }
            (Command::EnqueueBatch(batch), Ok(Outcome::EnqueuedBatch(answers))) => {
                for (task, answer) in batch.tasks.iter().zip(answers) {
                    accepted.push((batch.queue, task, answer.id, answer.duplicate));
                }
            }
            _ => {}
        }
    }
    accepted
}

/// When each new task of these commands may first run.
pub(super) fn born(
    commands: &[Command<'_>],
    outcomes: &[Result<Outcome, Rejection>],
    now: u64,
) -> BTreeMap<TaskId, u64> {
    let from = |when: When| match when {
        When::Now => now,
        When::After { ms } => now + ms,
        When::At(at) => at.0,
    };
    let mut born: BTreeMap<TaskId, u64> = BTreeMap::new();
    for (_, task, id, known) in enqueued(commands, outcomes) {
        if !known {
            let quiet_ms = task.unique.as_ref().and_then(|unique| unique.debounce_ms);
            born.insert(id, from(task.run_at) + quiet_ms.unwrap_or(0));
        }
    }
    for (command, outcome) in commands.iter().zip(outcomes) {
        if let (Command::Ack(ack), Ok(Outcome::Acked { follow_ups })) = (command, outcome) {
            let planned = ack.follow_ups.iter().map(|FollowUp { enqueue, .. }| enqueue.task.run_at);
            born.extend(follow_ups.iter().copied().zip(planned.map(from)));
        }
    }
    born
}
