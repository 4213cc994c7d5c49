//! Turn: the application of one entry to the state. Commands are its methods, each in its own file.

use crate::life::Task;
use crate::limits::{EXPIRIES_PER_ENTRY_MAX, LEASE_FLOOR_MS};
use crate::outbox::Asked;
use crate::slab::Slot;
use crate::{
    ClaimToken, Command, Event, EventKind, Machine, Outcome, Payloads, PutOff, Rejection, TaskId,
    TaskRef, Timestamp,
};

pub(crate) struct Turn<'m> {
    pub(crate) shard: &'m mut Machine,
    pub(crate) payloads: &'m mut dyn Payloads,
    events: &'m mut Vec<Event>,
    /// The entry's time.
    pub(crate) now: Timestamp,
    /// A buffer in which bodies are encoded.
    pub(crate) scratch: Vec<u8>,
    /// How many more expired tasks claims may end in this entry; a longer entry would keep the
    /// shard loop busy.
    pub(crate) expiries_left: usize,
    /// The messages that this entry has for other shards.
    pub(crate) asked: Asked,
}

impl<'m> Turn<'m> {
    pub(crate) fn new(
        shard: &'m mut Machine,
        payloads: &'m mut dyn Payloads,
        events: &'m mut Vec<Event>,
    ) -> Turn<'m> {
        let now = shard.counters.now;
        let expiries_left = EXPIRIES_PER_ENTRY_MAX;
        let (scratch, asked) = (Vec::new(), Asked::default());
        Turn { shard, payloads, events, now, scratch, expiries_left, asked }
    }

    /// Applies one command, with all its consequences on this shard.
    pub(crate) fn apply(&mut self, command: &Command<'_>) -> Result<Outcome, Rejection> {
        let answer = self.decide(command);
        self.apply_own_messages();
        self.emit_opened();
        self.shard.remove_shrunk();
        answer
    }

    /// The table of contents: the method of each command.
    fn decide(&mut self, command: &Command<'_>) -> Result<Outcome, Rejection> {
        match command {
            Command::Enqueue(enqueue) => self.enqueue(enqueue),
            Command::EnqueueMany(many) => self.enqueue_many(many),
            Command::EnqueueBatch(batch) => self.enqueue_batch(batch),
            Command::StageBatch(part) => self.stage_batch(part),
            Command::CommitBatch(commit) => self.commit_batch(*commit),
            Command::Unstage(unstage) => Ok(self.unstage(*unstage)),
            Command::Claim(claim) => self.claim(claim),
            Command::Ack(ack) => self.ack(ack),
            Command::Fail(fail) => self.fail(fail),
            Command::Extend(extend) => self.extend(extend),
            Command::Renew(renew) => self.renew(renew),
            Command::Release(release) => self.release(*release),
            Command::Snooze(snooze) => self.snooze(*snooze),
            Command::Cancel(cancel) => self.cancel(*cancel),
            Command::Kill(kill) => self.kill(*kill),
            Command::Retry(retry) => self.retry(retry),
            Command::Dead(dead) => self.dead(dead),
            Command::PauseQueue(queue) => self.pause_queue(*queue),
            Command::ResumeQueue(queue) => self.resume_queue(*queue),
            Command::PurgeQueue(purge) => self.purge_queue(*purge),
            Command::SetQueue(set) => self.set_queue(set),
            Command::TrimQueue(trim) => self.trim_queue(*trim),
            Command::DeleteQueue(delete) => self.delete_queue(*delete),
            Command::EndSession(end) => self.end_session(end),
            Command::SubmitFlow(submit) => self.submit_flow(submit),
            Command::StageFlow(part) => self.stage_flow(part),
            Command::CommitFlow(commit) => self.commit_flow(*commit),
            Command::AddFlowTasks(add) => self.add_flow_tasks(add),
            Command::CancelFlow(cancel) => self.cancel_flow(*cancel),
            Command::RetryFlow(retry) => self.retry_flow(*retry),
            Command::OpenTally(open) => self.open_tally(open),
            Command::AddToTally(add) => self.add_to_tally(add),
            Command::ReopenTally(reopen) => self.reopen_tally(*reopen),
            Command::CommitTally(commit) => self.commit_tally(*commit),
            Command::SetSchedule(set) => self.set_schedule(set),
            Command::FireSchedule(fire) => self.fire_schedule(fire),
            Command::RemoveSchedule(remove) => self.remove_schedule(*remove),
            Command::PauseSchedule(pause) => self.pause_schedule(*pause),
            Command::ResumeSchedule(resume) => self.resume_schedule(*resume),
            Command::TriggerSchedule(trigger) => self.trigger_schedule(*trigger),
            Command::BackfillSchedule(backfill) => self.backfill_schedule(backfill),
            Command::ExpireDue => Ok(self.expire_due()),
            Command::BeginTerm => Ok(self.begin_term()),
            Command::PutOff(put_off) => Ok(self.put_off(*put_off)),
            Command::Deliver(deliver) => self.deliver(*deliver),
            Command::Delivered(delivered) => Ok(self.delivered(*delivered)),
            Command::Mark => Ok(self.mark()),
            Command::Attest(attest) => Ok(self.attest(*attest)),
        }
    }

    /// Gives workers time to come back, because an outage of the broker is no fault of theirs.
    fn begin_term(&mut self) -> Outcome {
        self.shard.counters.lease_floor = self.now.plus_ms(LEASE_FLOOR_MS);
        Outcome::Done
    }

    /// Postpones the end of every live claim. Each claim is updated when it is due or renewed, so
    /// that the cost of the entry does not depend on the number of claims.
    fn put_off(&mut self, PutOff { claims_ms }: PutOff) -> Outcome {
        let floor = self.now.plus_ms(claims_ms.min(LEASE_FLOOR_MS));
        let counters = &mut self.shard.counters;
        counters.put_off_ms = counters.put_off_ms.saturating_add(claims_ms);
        counters.lease_floor = counters.lease_floor.max(floor);
        Outcome::Done
    }

    pub(crate) fn task(&self, slot: Slot) -> &Task {
        self.shard.tasks.get(slot)
    }

    /// The slot of a task on this shard.
    pub(crate) fn find(&self, task: TaskId) -> Result<Slot, Rejection> {
        self.shard.ids.get(task).ok_or_else(|| {
            let identity = self.shard.identity;
            let made_here = task.incarnation == identity.incarnation
                && (task.home, task.origin) == (identity.shard, identity.shard)
                && (1..self.shard.counters.next_sequence).contains(&task.sequence);
            match made_here {
                true => Rejection::AlreadyRemoved { task },
                false => Rejection::TaskNotFound { task },
            }
        })
    }

    /// The slot of a task whose current claim has this token.
    pub(crate) fn find_held(&self, task: TaskId, token: ClaimToken) -> Result<Slot, Rejection> {
        let slot = self.find(task)?;
        let found = self.task(slot);
        let state = found.state.name();
        match found.claim() {
            Some(claim) if claim.token == token => Ok(slot),
            None if state.is_finished() => Err(Rejection::AlreadyFinished { task, state }),
            _ => Err(Rejection::ClaimLost { task }),
        }
    }

    pub(crate) fn emit(&mut self, kind: EventKind) {
        self.events.push(Event { at: self.now, kind });
    }

    /// Emits a fact about a task.
    pub(crate) fn emit_task(&mut self, slot: Slot, fact: impl FnOnce(TaskRef) -> EventKind) {
        let task = self.shard.tasks.get(slot);
        let about = TaskRef {
            id: task.id,
            queue: self.shard.queues.get(task.queue).name.clone(),
            task_type: self.shard.names.get(task.task_type).clone(),
            attempt: task.attempt,
        };
        self.emit(fact(about));
    }
}
