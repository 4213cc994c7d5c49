//! Identity: whether a command may be sent again after its outcome was lost.
//!
//! The sender of a command may never learn its outcome: a connection breaks, or a leader fails.
//! Only a command that the machine recognizes may be sent twice. This table lists which.

use taskyard_machine::{
    Command, DecodeError, EncodedCommand,
    wire::{Reader, Wire},
};

/// The effect of a command that is sent again after it was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The first answer again, or the same state set again: it may be repeated.
    Safe,
    /// None, because the first one ended the claim or task. It may be repeated, but a rejection may
    /// be due to its own first success, so that the outcome stays unknown.
    Fenced,
    /// It would act a second time: it must not be repeated.
    Unsafe,
}

impl Repeat {
    /// What a repetition of this command would do.
    pub(super) fn of(command: &EncodedCommand) -> Repeat {
        match decode(command) {
            Ok(command) => judge(&command),
            // The command was encoded here. One that can't be decoded must not be repeated.
            Err(_) => Repeat::Unsafe,
        }
    }
}

fn decode(command: &EncodedCommand) -> Result<Command<'_>, DecodeError> {
    Command::read(&mut Reader::new(command.as_bytes()))
}

fn judge(command: &Command<'_>) -> Repeat {
    let by = |has_identity: bool| if has_identity { Repeat::Safe } else { Repeat::Unsafe };
    match command {
        // By its request_id, which the queue remembers for its dedup window.
        Command::Enqueue(enqueue) => by(enqueue.task.request_id.is_some()),
        // By the batch's id, which is kept with the answers, or by each task's own request id.
        Command::EnqueueMany(many) => {
            let named = |item: &taskyard_machine::Enqueue<'_>| item.task.request_id.is_some();
            by(many.batch_id.is_some() || many.items.iter().all(named))
        }
        Command::EnqueueBatch(batch) => {
            let named = |task: &taskyard_machine::NewTask<'_>| task.request_id.is_some();
            by(batch.batch_id.is_some() || batch.tasks.iter().all(named))
        }
        // A part that came before is ignored; a committed batch is answered from memory.
        Command::StageBatch(_) | Command::CommitBatch(_) => Repeat::Safe,
        // A part that was removed stays removed.
        Command::Unstage(_) => Repeat::Safe,
        Command::SubmitFlow(submit) => by(submit.batch_id.is_some()),
        Command::StageFlow(_) | Command::CommitFlow(_) => Repeat::Safe,
        // By name: a task that the same node added under this name is the same task while its flow
        // is kept.
        Command::AddFlowTasks(_) => Repeat::Fenced,
        // By the batch's id; without one, a repeated task would count twice.
        Command::OpenTally(open) => by(open.batch_id.is_some()),
        Command::AddToTally(add) => by(add.batch_id.is_some()),
        // By the claim's token. The first answer is remembered for an ack while the task is kept,
        // for a failure until the next attempt, and for a release or snooze not at all.
        Command::Ack(_) | Command::Fail(_) | Command::Release(_) | Command::Snooze(_) => {
            Repeat::Fenced
        }
        // A task stays cancelled or killed while it is kept.
        Command::Cancel(_) | Command::Kill(_) | Command::CancelFlow(_) => Repeat::Fenced,
        // A deleted queue is not found, or was created again and is deleted as the caller asked.
        Command::DeleteQueue(_) => Repeat::Fenced,
        // These commands keep the claim, so that their rejection is unambiguous.
        Command::Extend(_) | Command::Renew(_) => Repeat::Safe,
        // These commands set a state; setting it twice is setting it once.
        Command::PauseQueue(_)
        | Command::ResumeQueue(_)
        | Command::SetQueue(_)
        | Command::TrimQueue(_)
        | Command::ReopenTally(_)
        | Command::CommitTally(_) => Repeat::Safe,
        // A session that has ended has no more claims to end.
        Command::EndSession(_) => Repeat::Safe,
        // Numbered by the sender's outbox, and taken once and in order.
        Command::Deliver(_) | Command::Delivered(_) => Repeat::Safe,
        // A replica may attest the same digest twice.
        Command::Attest(_) => Repeat::Safe,
        // A claim is repeated under its session's number, see `claims.rs`.
        Command::Claim(_) => Repeat::Unsafe,
        // A task that failed again in between would run once more.
        Command::Retry(_) | Command::RetryFlow(_) => Repeat::Unsafe,
        // The repetition would report the tasks as missing.
        Command::Dead(_) | Command::PurgeQueue(_) => Repeat::Unsafe,
        // Each run counts, and each set of rules is a revision.
        Command::SetSchedule(_)
        | Command::RemoveSchedule(_)
        | Command::PauseSchedule(_)
        | Command::ResumeSchedule(_)
        | Command::TriggerSchedule(_)
        | Command::BackfillSchedule(_) => Repeat::Unsafe,
        // Leaders propose these themselves, and never send them to another node.
        Command::FireSchedule(_)
        | Command::ExpireDue
        | Command::BeginTerm
        | Command::PutOff(_)
        | Command::Mark => Repeat::Unsafe,
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
    fn only_commands_that_the_machine_recognizes_may_be_sent_twice() {
        let token = ClaimToken(7);
        let (named, nameless) = (enqueue(Some("r1")), enqueue(None));
        let extend =
            Extend { task: TASK, token, lease_ms: None, progress: None, resume_state: None };
        let table = [
            (Command::Enqueue(named.clone()), Repeat::Safe),
            (Command::Enqueue(nameless.clone()), Repeat::Unsafe),
            (many(Some(1), vec![nameless.clone()]), Repeat::Safe),
            (many(None, vec![named.clone(), named.clone()]), Repeat::Safe),
            (many(None, vec![named, nameless]), Repeat::Unsafe),
            (
                Command::Ack(Ack { task: TASK, token, result: None, follow_ups: vec![] }),
                Repeat::Fenced,
            ),
            (Command::Release(Release { task: TASK, token }), Repeat::Fenced),
            (Command::Extend(extend), Repeat::Safe),
            (Command::Cancel(Cancel { task: TASK }), Repeat::Fenced),
            (Command::Kill(Kill { task: TASK }), Repeat::Fenced),
            (Command::Retry(Retry { task: TASK, body: None }), Repeat::Unsafe),
            (add_to_tally(Some(1)), Repeat::Safe),
            (add_to_tally(None), Repeat::Unsafe),
            (Command::CommitTally(CommitTally { tally: TASK }), Repeat::Safe),
            (Command::PauseQueue(QueueCommand { queue: "mail" }), Repeat::Safe),
            (Command::DeleteQueue(DeleteQueue { queue: "mail", version: 0 }), Repeat::Fenced),
            (
                Command::Deliver(Deliver {
                    from: ShardId(1),
                    sequence: 3,
                    waited_ms: 5,
                    command: b"",
                }),
                Repeat::Safe,
            ),
        ];
        for (command, expected) in table {
            assert_eq!(Repeat::of(&EncodedCommand::new(&command)), expected, "{command:?}");
        }
    }
}
