//! Watch: the receiver of a message when a task ends.
//!
//! A watched task sends its watcher's shard one message per end, in the entry of the end. `finish`
//! and `remove_task`, the two ways out of a task's life, call `Turn::notify_watcher`.

use crate::entry::DecodeError;
use crate::life::{Ending, Failure, State, prefix};
use crate::limits::{PARENT_ERROR_BYTES_MAX, PARENT_RESULT_BYTES_MAX};
use crate::outbox::Message;
use crate::slab::Slot;
use crate::tally::{Standing, Step};
use crate::turn::Turn;
use crate::wire::{Reader, Wire, wire_struct, wire_words};
use crate::{ShardId, TaskError, TaskId};

/// The receiver of a message when a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// The flow of the task; its shard follows from its id. `run` separates this end from that of
    /// an earlier run of the same node.
    Flow { flow: TaskId, node: u32, run: u32 },
    /// The schedule of the run, by its shard and its key there. It needs only the fact of the end.
    Schedule { shard: ShardId, key: u128 },
    /// The tally that counts the task, and the last standing that the task reported. The tally gets
    /// more than the end; see `tally/member.rs`.
    Tally { tally: TaskId, reported: Standing },
    /// The tally whose callback the task is. It needs only the success.
    Callback { tally: TaskId, step: Step },
}

impl Watch {
    /// The shard that receives the message.
    fn shard(self) -> ShardId {
        match self {
            Watch::Flow { flow, .. } => flow.home,
            Watch::Schedule { shard, .. } => shard,
            Watch::Tally { tally, .. } | Watch::Callback { tally, .. } => tally.home,
        }
    }
}

impl<'a> Wire<'a> for Watch {
    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Watch::Flow { flow, node, run } => {
                out.push(1);
                (flow, (node, run)).write(out);
            }
            Watch::Schedule { shard, key } => {
                out.push(2);
                (shard, key).write(out);
            }
            Watch::Tally { tally, reported } => {
                out.push(3);
                (tally, reported).write(out);
            }
            Watch::Callback { tally, step } => {
                out.push(4);
                (tally, step).write(out);
            }
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Watch, DecodeError> {
        match reader.byte()? {
            1 => {
                let (flow, (node, run)) = reader.read()?;
                Ok(Watch::Flow { flow, node, run })
            }
            2 => Ok(Watch::Schedule { shard: reader.read()?, key: reader.read()? }),
            3 => Ok(Watch::Tally { tally: reader.read()?, reported: reader.read()? }),
            4 => Ok(Watch::Callback { tally: reader.read()?, step: reader.read()? }),
            other => Err(reader.error(format_args!("unknown watch {other}"))),
        }
    }
}

/// The end of a watched task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Succeeded,
    Failed,
    Dead,
    Cancelled,
    Expired,
    /// Removed from the state before it ended: purged.
    Removed,
}

wire_words!(End {
    1 => Succeeded, 2 => Failed, 3 => Dead, 4 => Cancelled, 5 => Expired, 6 => Removed,
});

impl From<Ending> for End {
    fn from(ending: Ending) -> End {
        match ending {
            Ending::Succeeded => End::Succeeded,
            Ending::Failed => End::Failed,
            Ending::Dead => End::Dead,
            Ending::Cancelled => End::Cancelled,
            Ending::Expired => End::Expired,
        }
    }
}

/// The message to a watcher.
#[derive(Debug, PartialEq)]
pub(crate) struct TaskEnded<'a> {
    pub(crate) watch: Watch,
    pub(crate) task: TaskId,
    pub(crate) end: End,
    /// The result, unless it is over `PARENT_RESULT_BYTES_MAX`.
    pub(crate) result: Option<&'a [u8]>,
    /// Whether the result is too large; the task itself has it.
    pub(crate) result_left_out: bool,
    /// The last error of a task that did not succeed.
    pub(crate) error: Option<TaskError<'a>>,
}

wire_struct!(TaskEnded<'a> { watch, task, end, result, result_left_out, error });

impl Turn<'_> {
    /// Informs a task's watcher, if it has one, that the task has ended or is being removed.
    pub(crate) fn notify_watcher(&mut self, slot: Slot) {
        let task = self.shard.tasks.get(slot);
        let Some(watch) = task.watch() else { return };
        let end = match task.state {
            State::Finished { ending, .. } => End::from(ending),
            _ => End::Removed,
        };
        if let Watch::Tally { .. } = watch {
            self.notify_tally(slot, Standing::after(end));
            return;
        }
        let asks_why = matches!(watch, Watch::Flow { .. });
        let result = task.left().and_then(|left| left.result.as_deref());
        let result = result.filter(|_| asks_why && end == End::Succeeded);
        let result_left_out = result.is_some_and(|result| result.len() > PARENT_RESULT_BYTES_MAX);
        let error = task.last_error().filter(|_| asks_why && end != End::Succeeded);
        let ended = TaskEnded {
            watch,
            task: task.id,
            end,
            result: result.filter(|_| !result_left_out),
            result_left_out,
            error: error.map(error_for_watcher),
        };
        let message = Message::TaskEnded(ended).encode();
        self.owe_encoded(watch.shard(), message);
    }

    /// Informs a watcher that its task was not made, because another task took its place.
    pub(crate) fn notify_not_made(&mut self, watch: Watch, task: TaskId) {
        if let Watch::Tally { tally, reported } = watch {
            let to = Standing::NotMade;
            self.owe(tally.home, &Message::TallyTask { tally, from: reported, to });
            return;
        }
        let end = End::Removed;
        let ended =
            TaskEnded { watch, task, end, result: None, result_left_out: false, error: None };
        self.owe(watch.shard(), &Message::TaskEnded(ended));
    }

    /// Handles the message that a watched task has ended.
    pub(crate) fn take_ended(&mut self, ended: &TaskEnded<'_>) {
        match ended.watch {
            Watch::Flow { flow, node, run } => self.node_ended(flow, node, run, ended),
            Watch::Schedule { key, .. } => self.run_ended(key, ended.task),
            Watch::Callback { tally, step } => self.callback_ended(tally, step, ended.end),
            // A tally gets messages of its own.
            Watch::Tally { .. } => {}
        }
    }
}

/// The type and the beginning of the message, enough for a reader to see the cause.
fn error_for_watcher(error: &Failure) -> TaskError<'_> {
    let error_type = prefix(&error.error_type, PARENT_ERROR_BYTES_MAX);
    let message = prefix(&error.message, PARENT_ERROR_BYTES_MAX - error_type.len());
    TaskError { error_type, message, backtrace: "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{LOSSES_MAX, RESULT_BYTES_MAX, TIMEOUT_GRACE_MS};
    use crate::outbox::messages;
    use crate::testing::{SHARD, START, Yard, fail, new_task, tried};
    use crate::*;

    const OTHER: ShardId = ShardId(2);
    const FLOW: TaskId = TaskId { incarnation: 7, home: OTHER, origin: OTHER, sequence: 9 };
    const WATCH: Watch = Watch::Flow { flow: FLOW, node: 3, run: 0 };

    /// A watched task in queue `mail`, enqueued by another shard.
    fn watched(yard: &mut Yard, task: NewTask<'_>) -> TaskId {
        let id = TaskId { incarnation: 7, home: SHARD, origin: OTHER, sequence: 1 };
        let enqueue = Enqueue { queue: "mail", task };
        let message = Message::Enqueue { id, enqueue, watch: Some(WATCH) }.encode();
        let deliver = Deliver { from: OTHER, sequence: 1, waited_ms: 0, command: &message };
        assert_eq!(yard.send(Command::Deliver(deliver)), Ok(Outcome::Taken));
        id
    }

    /// The messages to the watcher, in order: end, result, error.
    fn reports(yard: &Yard) -> Vec<(End, Option<Vec<u8>>, Option<String>)> {
        let owed = yard.machine.outgoing(10);
        let mut all = Vec::new();
        for outgoing in &owed {
            assert_eq!(outgoing.to, OTHER);
            for message in messages(&outgoing.command).unwrap() {
                let ended = match message {
                    Message::TaskEnded(ended) => ended,
                    Message::NodeRevived { flow: FLOW, node: 3, run: 1 } => continue,
                    other => panic!("{other:?}"),
                };
                let Watch::Flow { flow, node, .. } = ended.watch else { panic!("{ended:?}") };
                assert_eq!((flow, node, ended.task.sequence), (FLOW, 3, 1));
                let error =
                    ended.error.map(|error| format!("{}: {}", error.error_type, error.message));
                all.push((ended.end, ended.result.map(<[u8]>::to_vec), error));
            }
        }
        all
    }

    /// Acts on a watched task, and compares the reported end.
    fn check(task: NewTask<'_>, act: impl FnOnce(&mut Yard, TaskId), end: End) {
        let mut yard = Yard::new();
        let id = watched(&mut yard, task);
        assert_eq!(reports(&yard), [], "it has not ended");
        act(&mut yard, id);
        let ends: Vec<End> = reports(&yard).into_iter().map(|(end, ..)| end).collect();
        assert_eq!(ends, [end]);
    }

    #[test]
    fn a_task_replaced_by_another_is_reported_as_removed() {
        let key = Unique {
            key: "k".into(),
            until: None,
            window_ms: None,
            on_conflict: OnConflict::Existing,
            debounce_ms: None,
        };
        let known = NewTask { request_id: Some("r"), ..new_task() };
        for task in [known, NewTask { unique: Some(Box::new(key)), ..new_task() }] {
            let mut yard = Yard::new();
            yard.enqueue_task("mail", task.clone()).unwrap();
            let id = watched(&mut yard, task);
            assert!(yard.machine.task(id).is_none());
            assert_eq!(reports(&yard), [(End::Removed, None, None)]);
        }
    }

    fn later() -> NewTask<'static> {
        NewTask { run_at: When::After { ms: 60_000 }, ..new_task() }
    }

    fn expiring(task: NewTask<'_>) -> NewTask<'_> {
        NewTask { expires_at: Some(Timestamp(START + 90_000)), ..task }
    }

    fn purge(yard: &mut Yard) {
        yard.send(testing::purge("mail")).unwrap();
    }

    #[test]
    fn an_ack_is_reported_with_its_result() {
        let mut yard = Yard::new();
        watched(&mut yard, new_task());
        let held = yard.claim_one("mail");
        let (task, token) = (held.id, held.token);
        let ack = || Ack { task, token, result: Some(b"42"), follow_ups: vec![] };
        yard.send(Command::Ack(ack())).unwrap();
        yard.send(Command::Ack(ack())).unwrap();
        assert_eq!(reports(&yard), [(End::Succeeded, Some(b"42".to_vec()), None)], "once");
    }

    #[test]
    fn a_large_result_stays_with_the_task() {
        let mut yard = Yard::new();
        watched(&mut yard, new_task());
        let held = yard.claim_one("mail");
        let result = vec![b'x'; RESULT_BYTES_MAX];
        let (task, token) = (held.id, held.token);
        let ack = Ack { task, token, result: Some(&result), follow_ups: vec![] };
        yard.send(Command::Ack(ack)).unwrap();
        assert_eq!(reports(&yard), [(End::Succeeded, None, None)]);
        let owed = yard.machine.outgoing(1);
        let reports = messages(&owed[0].command).unwrap();
        assert!(matches!(reports[0], Message::TaskEnded(TaskEnded { result_left_out: true, .. })));
    }

    #[test]
    fn a_death_is_reported_with_its_error_and_a_retry_is_not() {
        let mut yard = Yard::new();
        watched(&mut yard, tried(2));
        let held = yard.claim_one("mail");
        yard.fail(&held).unwrap();
        assert_eq!(reports(&yard), []);
        let held = yard.claim_one("mail");
        yard.fail(&held).unwrap();
        assert_eq!(reports(&yard), [(End::Dead, None, Some("io: no route".into()))]);
    }

    #[test]
    fn a_failure_for_good_is_reported_as_death_or_as_failure_without_dead_letters() {
        let for_good = |yard: &mut Yard, _| {
            let held = yard.claim_one("mail");
            yard.fail_with(Fail { retryable: false, ..fail(&held) }).unwrap();
        };
        check(new_task(), for_good, End::Dead);
        let no_dead = |yard: &mut Yard, id| {
            let settings = QueueSettings { dead_retention_count: Some(0), ..Default::default() };
            yard.set("mail", settings);
            for_good(yard, id);
        };
        check(new_task(), no_dead, End::Failed);
    }

    #[test]
    fn a_timeout_and_a_quarantine_are_reported_as_deaths() {
        let timed = NewTask { timeout_ms: Some(1_000), ..tried(1) };
        let run_out = |yard: &mut Yard, _| {
            yard.claim_one("mail");
            yard.wait_ms(1_000 + TIMEOUT_GRACE_MS);
        };
        check(timed, run_out, End::Dead);
        let lose = |yard: &mut Yard, _| {
            for _ in 0..LOSSES_MAX {
                let held = yard.claim_one("mail");
                yard.extend(&held).unwrap();
                yard.wait_ms(30_000);
                yard.wait_ms(10_000);
            }
        };
        check(new_task(), lose, End::Dead);
    }

    #[test]
    fn every_cancellation_is_reported() {
        let cancel = |yard: &mut Yard, id| drop(yard.cancel(id).unwrap());
        check(new_task(), cancel, End::Cancelled);
        check(later(), cancel, End::Cancelled);
        let yields: [fn(&mut Yard, &ClaimedTask); 5] = [
            |yard, held| drop(yard.release(held).unwrap()),
            |yard, held| {
                yard.fail(held).unwrap();
            },
            |yard, _| yard.wait_ms(30_000),
            |yard, held| {
                let (task, token) = (held.id, held.token);
                yard.send(Command::Snooze(Snooze {
                    task,
                    token,
                    until: When::Now,
                    push_back_key: false,
                }))
                .unwrap();
            },
            |yard, _| {
                yard.send(Command::EndSession(EndSession {
                    session: SessionId(1),
                    reason: SessionEnd::Silence,
                    not_started: vec![],
                    keep: vec![],
                }))
                .unwrap();
            },
        ];
        for give_up in yields {
            let act = |yard: &mut Yard, id| {
                let claim = Claim { session: Some(SessionId(1)), ..testing::claim("mail") };
                let held = yard.claim_with(claim).remove(0);
                yard.cancel(id).unwrap();
                give_up(yard, &held);
            };
            check(new_task(), act, End::Cancelled);
        }
    }

    #[test]
    fn every_expiry_is_reported() {
        check(expiring(new_task()), |yard, _| yard.wait_ms(90_000), End::Expired);
        let run_at = When::After { ms: 80_000 };
        let late = expiring(NewTask { run_at, ..new_task() });
        check(late, |yard, _| yard.wait_ms(90_000), End::Expired);
        let found_by_a_claim = |yard: &mut Yard, _| {
            yard.pass_ms(90_000);
            assert!(yard.claim("mail", 1).is_empty());
        };
        check(expiring(new_task()), found_by_a_claim, End::Expired);
    }

    #[test]
    fn a_purge_is_reported_and_a_discarded_death_is_not_reported_again() {
        check(new_task(), |yard, _| purge(yard), End::Removed);
        check(later(), |yard, _| purge(yard), End::Removed);
        let discard = |yard: &mut Yard, id| {
            let held = yard.claim_one("mail");
            yard.fail(&held).unwrap();
            let (action, selection) = (DeadAction::Discard, Selection::Ids(vec![id]));
            yard.send(Command::Dead(DeadCommand { action, selection })).unwrap();
            assert!(yard.machine.task(id).is_none());
        };
        check(tried(1), discard, End::Dead);
    }

    #[test]
    fn retention_that_keeps_nothing_tells_the_end_once() {
        let act = |yard: &mut Yard, _| {
            let settings = QueueSettings { retention_count: Some(0), ..QueueSettings::default() };
            yard.set("mail", settings);
            let held = yard.claim_one("mail");
            yard.ack(&held).unwrap();
        };
        check(new_task(), act, End::Succeeded);
    }

    #[test]
    fn a_task_that_runs_again_by_hand_tells_its_next_end_too() {
        let mut yard = Yard::new();
        let id = watched(&mut yard, tried(1));
        let held = yard.claim_one("mail");
        yard.fail(&held).unwrap();
        yard.retry(id).unwrap();
        let held = yard.claim_one("mail");
        yard.ack(&held).unwrap();
        let ends: Vec<End> = reports(&yard).into_iter().map(|(end, ..)| end).collect();
        assert_eq!(ends, [End::Dead, End::Succeeded]);
    }

    #[test]
    fn a_watch_survives_a_checkpoint() {
        let mut yard = Yard::new();
        watched(&mut yard, new_task());
        let records = yard.machine.records();
        let loaded = Machine::load(yard.machine.identity(), records.clone()).unwrap();
        assert!(loaded.records() == records);
        assert_eq!(loaded.memory_bytes(), yard.machine.memory_bytes());
        yard.machine = loaded;
        let held = yard.claim_one("mail");
        yard.ack(&held).unwrap();
        assert_eq!(reports(&yard), [(End::Succeeded, None, None)]);
    }
}
