//! Identity: what becomes of a command that is sent again because its outcome got lost.
//!
//! Whoever sends a command to a leader may never learn what came of it: a connection breaks, a
//! leader falls. Only a command that the machine knows again may be sent twice. This is the table
//! of them.

use taskyard_machine::{
    Command, DecodeError, EncodedCommand,
    wire::{Reader, Wire},
};

/// What the second sending of a command does when the first was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The first answer once more, or the same state set once more: it may be sent again.
    Same,
    /// Nothing, for what it is about has ended, perhaps by itself. It may be sent again, but a "no"
    /// may come from its own first "yes": such an answer tells nothing.
    Fenced,
    /// Its work once more: it may not be sent again.
    Twice,
}

impl Again {
    /// What the machine makes of a command that comes twice.
    pub(super) fn of(command: &EncodedCommand) -> Again {
        match decode(command) {
            Ok(command) => judge(&command),
            // It was encoded here; if not even we can read it, nobody should have to twice.
            Err(_) => Again::Twice,
        }
    }
}

fn decode(command: &EncodedCommand) -> Result<Command<'_>, DecodeError> {
    Command::read(&mut Reader::new(command.as_bytes()))
}

fn judge(command: &Command<'_>) -> Again {
    let by = |has_identity: bool| if has_identity { Again::Same } else { Again::Twice };
    match command {
        // By its request_id, which is remembered for the queue's dedup window.
        Command::Enqueue(enqueue) => by(enqueue.task.request_id.is_some()),
        // By the batch's id, which is remembered with its answers; or by each task's own.
        Command::EnqueueMany(many) => {
            let named = |item: &taskyard_machine::Enqueue<'_>| item.task.request_id.is_some();
            by(many.batch_id.is_some() || many.items.iter().all(named))
        }
        Command::EnqueueBatch(batch) => {
            let named = |task: &taskyard_machine::NewTask<'_>| task.request_id.is_some();
            by(batch.batch_id.is_some() || batch.tasks.iter().all(named))
        }
        // A part that came before is ignored; a batch that was committed is answered from memory.
        Command::StageBatch(_) | Command::CommitBatch(_) => Again::Same,
        // What is gone is gone.
        Command::Unstage(_) => Again::Same,
        Command::SubmitFlow(submit) => by(submit.batch_id.is_some()),
        Command::StageFlow(_) | Command::CommitFlow(_) => Again::Same,
        // By their names: one that the same node added before is the same task, while its flow is
        // kept.
        Command::AddFlowTasks(_) => Again::Fenced,
        // By their batch's id. One that was added again without it would be counted twice.
        Command::OpenTally(open) => by(open.batch_id.is_some()),
        Command::AddToTally(add) => by(add.batch_id.is_some()),
        // By the claim's token. The accepted one gets its first answer while that is remembered: an
        // ack while the task is kept, a failure until the next attempt, a release or snooze not at
        // all.
        Command::Ack(_) | Command::Fail(_) | Command::Release(_) | Command::Snooze(_) => {
            Again::Fenced
        }
        // What was taken back or killed before is so still, while it is kept.
        Command::Cancel(_) | Command::Kill(_) | Command::CancelFlow(_) => Again::Fenced,
        // It is not found, or was made anew and is deleted as the caller asked.
        Command::DeleteQueue(_) => Again::Fenced,
        // They leave the claim as it is, so that their "no" is one.
        Command::Extend(_) | Command::Renew(_) => Again::Same,
        // They set a state: who sets it twice before the answer sets it once.
        Command::PauseQueue(_)
        | Command::ResumeQueue(_)
        | Command::SetQueue(_)
        | Command::TrimQueue(_)
        | Command::ReopenTally(_)
        | Command::CommitTally(_) => Again::Same,
        // A session that has ended holds nothing more to end.
        Command::EndSession(_) => Again::Same,
        // Numbered by the outbox that sends them, taken once and in order.
        Command::Deliver(_) | Command::Delivered(_) => Again::Same,
        // What a replica has said before it says again.
        Command::Attest(_) => Again::Same,
        // A claim has its session's number, and a way of its own: see `claims.rs`.
        Command::Claim(_) => Again::Twice,
        // What failed again in between would run once more.
        Command::Retry(_) | Command::RetryFlow(_) => Again::Twice,
        // What they did would be counted as not there.
        Command::Dead(_) | Command::PurgeQueue(_) => Again::Twice,
        // Each run is one more, and each set of rules a revision.
        Command::SetSchedule(_)
        | Command::RemoveSchedule(_)
        | Command::PauseSchedule(_)
        | Command::ResumeSchedule(_)
        | Command::TriggerSchedule(_)
        | Command::BackfillSchedule(_) => Again::Twice,
        // Leaders' own: never sent to another.
        Command::FireSchedule(_)
        | Command::ExpireDue
        | Command::BeginTerm
        | Command::PutOff(_)
        | Command::Mark => Again::Twice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_machine::{
        Ack, AddToTally, Cancel, ClaimToken, CommitTally, DeleteQueue, Deliver, Enqueue,
        EnqueueMany, Extend, Kill, NewTask, QueueCommand, Release, Retry, ShardId, TaskId,
    };

    const TASK: TaskId =
        TaskId { incarnation: 1, home: ShardId(0), origin: ShardId(0), sequence: 1 };

    fn enqueue(request_id: Option<&str>) -> Enqueue<'_> {
        let task = NewTask { task_type: "test", request_id, ..NewTask::default() };
        Enqueue { queue: "mail", task }
    }

    fn many<'a>(batch_id: Option<u128>, items: Vec<Enqueue<'a>>) -> Command<'a> {
        Command::EnqueueMany(EnqueueMany { batch_id, items })
    }

    fn add_to_tally(batch_id: Option<u128>) -> Command<'static> {
        Command::AddToTally(AddToTally { tally: TASK, batch_id, tasks: vec![] })
    }

    #[test]
    fn only_what_the_machine_knows_again_may_be_sent_twice() {
        let token = ClaimToken(7);
        let (named, nameless) = (enqueue(Some("r1")), enqueue(None));
        let extend =
            Extend { task: TASK, token, lease_ms: None, progress: None, resume_state: None };
        let table = [
            (Command::Enqueue(named.clone()), Again::Same),
            (Command::Enqueue(nameless.clone()), Again::Twice),
            (many(Some(1), vec![nameless.clone()]), Again::Same),
            (many(None, vec![named.clone(), named.clone()]), Again::Same),
            (many(None, vec![named, nameless]), Again::Twice),
            (
                Command::Ack(Ack { task: TASK, token, result: None, follow_ups: vec![] }),
                Again::Fenced,
            ),
            (Command::Release(Release { task: TASK, token }), Again::Fenced),
            (Command::Extend(extend), Again::Same),
            (Command::Cancel(Cancel { task: TASK }), Again::Fenced),
            (Command::Kill(Kill { task: TASK }), Again::Fenced),
            (Command::Retry(Retry { task: TASK, body: None }), Again::Twice),
            (add_to_tally(Some(1)), Again::Same),
            (add_to_tally(None), Again::Twice),
            (Command::CommitTally(CommitTally { tally: TASK }), Again::Same),
            (Command::PauseQueue(QueueCommand { queue: "mail" }), Again::Same),
            (Command::DeleteQueue(DeleteQueue { queue: "mail", version: 0 }), Again::Fenced),
            (
                Command::Deliver(Deliver {
                    from: ShardId(1),
                    sequence: 3,
                    waited_ms: 5,
                    command: b"",
                }),
                Again::Same,
            ),
        ];
        for (command, expected) in table {
            assert_eq!(Again::of(&EncodedCommand::new(&command)), expected, "{command:?}");
        }
    }
}
