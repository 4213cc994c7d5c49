//! Inputs: what the loop does with each message of its inbox.

use super::{
    Checkpoints, Course, ShardLoop, control,
    local::{LocalShard, Waiting},
    outcomes::PartialAnswers,
    spares::SoughtBody,
};
use crate::{
    Error,
    checkpoint::{Failure, Report},
    limits::TURN_LOG_BYTES_MAX,
    log::group_of,
    shard::{
        Hint, Look, ShardStatus, Sought,
        inbox::{Answer, Input, ReadFn, TicketId},
        waiters::HintAnswer,
    },
};
use bytes::Bytes;
use std::time::Instant;
use taskyard_machine::{EncodedCommand, Outcome, Rejection, ShardId, TaskId};
use taskyard_replica::Room;
use tokio::sync::{mpsc, oneshot};

impl ShardLoop {
    pub(super) fn accept(&mut self, input: Input) -> Result<(), Failure> {
        match input {
            Input::Propose { shard, command, enqueue, answer } => {
                match self.admit_command(shard, &command, enqueue) {
                    Ok(number) => self.add(number, command, Waiting::Call(answer)),
                    Err(error) => drop(answer.send(Err(error))),
                }
            }
            Input::ProposeAll { commands, enqueue, answer } => {
                self.accept_all(commands, enqueue, answer);
            }
            Input::Claim { shard, waiter } => match self.admit(shard, None) {
                Ok(number) => {
                    self.shards[number].waiters.park(waiter);
                    self.activate(number);
                }
                Err(error) => drop(waiter.answer.send(Err(error))),
            },
            Input::Probe { looks, answer } => {
                let probe = |(shard, sought): Look| (shard, self.probe(shard, &sought));
                let _ = answer.send(looks.into_iter().map(probe).collect());
            }
            Input::Hints { ticket, looks, answer } => self.accept_hints(ticket, looks, &answer),
            Input::Unpark { shards, ticket } => {
                for shard in shards {
                    if let Some(shard) = self.shards.get_mut(usize::from(shard.0)) {
                        shard.waiters.unpark(ticket);
                    }
                }
            }
            Input::Read { shard, read } => self.accept_read(shard, read),
            Input::Bodies { tasks, answer } => self.accept_bodies(&tasks, answer),
            Input::Watch { task, ticket, answer } => self.accept_watch(task, ticket, answer),
            Input::Unwatch { task, ticket } => {
                if let Some(shard) = self.shards.get_mut(usize::from(task.home.0)) {
                    shard.watchers.unwatch(task, ticket);
                }
            }
            Input::Undelivered { claims } => self.release_claims(&claims),
            Input::BodiesRead { waiter, tasks, bodies } => {
                self.bodies_read(waiter, tasks, bodies);
            }
            Input::Unread(unread) => self.accept_unread(unread),
            Input::Spared { unread, answers } => self.accept_spared(unread, answers),
            Input::Spare { task, answer } => self.accept_spare(task, answer),
            Input::Sessions { from, news } => {
                self.sessions.hear(from, news, self.reading.monotonic);
            }
            Input::Status(answer) => drop(answer.send(self.status())),
            Input::Groups(answer) => drop(answer.send(self.groups())),
            Input::Control { answer, .. } if self.is_kept_out() => {
                drop(answer.send(Err(self.kept_out_error())));
            }
            Input::Change { answer, .. } if self.is_kept_out() => {
                drop(answer.send(Err(self.kept_out_error())));
            }
            Input::Control { answer, .. } if self.stands_still() => {
                drop(answer.send(Err(ShardLoop::full_disk_error())));
            }
            Input::Change { answer, .. } if self.stands_still() => {
                drop(answer.send(Err(ShardLoop::full_disk_error())));
            }
            Input::Control { command, answer } => match &mut self.control {
                Some(control) => control.propose(command.encode(), Some(answer)),
                None => drop(answer.send(Err(control::not_leader()))),
            },
            Input::Change { group, fence, changes, answer } => {
                self.accept_change(group, fence, &changes, answer);
            }
            Input::Transfer { group, to, answer } => self.accept_transfer(group, to, answer),
            Input::PauseDelivery { backup, until, answer } => {
                self.accept_pause(backup, until, answer)
            }
            Input::HandOver { until, answer } => self.accept_hand_over(until, answer),
            Input::Raft { from, group, message } => self.accept_raft(from, group, &message),
            Input::Peer { node, is_up } => {
                if is_up {
                    self.peer_up(node);
                } else {
                    self.peer_down(node);
                }
            }
            Input::Owed { from, to, answers } => self.accept_owed(from, to, answers),
            Input::Fetched(fetched) => self.accept_fetched(fetched),
            Input::FetchFailed { shard, index } => {
                tracing::warn!(
                    "the snapshot of shard {shard} at {index} did not come; its leader offers another"
                );
            }
            Input::Quiet { until, answer } => match self.course {
                Course::Going => self.checkpoints.keep_quiet(until, answer),
                Course::Stopping { .. } | Course::Halted => {
                    drop(answer.send(Err(ShardLoop::stopping_error())));
                }
            },
            Input::Backup(order) => match self.course {
                // It begins with a checkpoint of each shard.
                _ if self.room() == Room::Full => {
                    drop(order.written.send(Err(ShardLoop::full_disk_error())));
                }
                Course::Going => match self.stopped_alone() {
                    Some(error) => drop(order.written.send(Err(error))),
                    None => self.checkpoints.backup(order),
                },
                Course::Stopping { .. } | Course::Halted => {
                    drop(order.written.send(Err(ShardLoop::stopping_error())));
                }
            },
            Input::Report(report) => self.accept_report(report)?,
            #[cfg(test)]
            Input::Job(job) => self.order(Some(job)),
            Input::Look => {}
            Input::Stop { until } => self.stop(until),
            Input::Halt => self.course = Course::Halted,
        }
        Ok(())
    }

    /// The place of a shard that this node leads or is about to lead. An elected leader serves once
    /// its first entry is committed. A call that comes before waits here instead of asking for
    /// another leader; if the election fails, the caller is redirected.
    fn number_soon(&self, shard: ShardId) -> Result<usize, Error> {
        let number = usize::from(shard.0);
        let becomes_leader =
            |shard: &LocalShard| shard.leading.is_none() && shard.replica.is_becoming_leader();
        let has_room = self.queued_bytes < TURN_LOG_BYTES_MAX;
        match self.shards.get(number).is_some_and(becomes_leader) && has_room && !self.is_kept_out()
        {
            true => Ok(number),
            false => self.number(shard),
        }
    }

    /// The place of a shard that this node leads.
    fn number(&self, shard: ShardId) -> Result<usize, Error> {
        let number = usize::from(shard.0);
        if self.shards.get(number).is_some_and(|shard| shard.leading.is_some()) {
            return match self.is_kept_out() {
                true => Err(self.kept_out_error()),
                false => Ok(number),
            };
        }
        let count = self.shards.count();
        if number >= count {
            return Err(Error::NotFound(format!(
                "there is no shard {shard}; this cluster has {count}"
            )));
        }
        let group = group_of(shard);
        match self.routes.stopped(group) {
            // A lone node has no other leader to name.
            Some(words) if self.network.get().is_none() || self.routes.is_alone() => {
                Err(Error::Unavailable(words))
            }
            _ => Err(self.not_leader(group)),
        }
    }

    /// Whether a command may be taken now. A node without room for new tasks still takes an enqueue
    /// that repeats a known request id, because its caller may have lost the answer.
    fn admit(&mut self, shard: ShardId, enqueue: Option<&EncodedCommand>) -> Result<usize, Error> {
        let number = self.number_soon(shard)?;
        if self.course != Course::Going {
            return Err(ShardLoop::stopping_error());
        }
        if let Some(enqueue) = enqueue
            && let Err(full) = self.disk.admit().and_then(|()| self.memory.admit())
        {
            // A replica that does not lead yet may lack the newest request ids.
            self.number(shard)?;
            if self.shards[number].replica.is_handing_over() {
                // Redirects to the heir, which has more room.
                return Err(self.not_leader(group_of(shard)));
            }
            if !self.shards[number].machine().is_repetition(enqueue) {
                return Err(full);
            }
        }
        Ok(number)
    }

    /// `admit`, and room for the command in the log.
    fn admit_command(
        &mut self,
        shard: ShardId,
        command: &EncodedCommand,
        enqueue: bool,
    ) -> Result<usize, Error> {
        let number = self.admit(shard, enqueue.then_some(command))?;
        self.room_for(number, command.as_bytes().len())?;
        Ok(number)
    }

    fn add(&mut self, number: usize, command: EncodedCommand, waiting: Waiting) {
        let shard = &mut self.shards[number];
        if shard.leading.is_none() {
            shard.queued_bytes += command.as_bytes().len();
            self.queued_bytes += command.as_bytes().len();
        }
        shard.pending.push((command, waiting));
        self.activate(number);
    }

    fn accept_all(
        &mut self,
        commands: Vec<(ShardId, EncodedCommand)>,
        enqueue: bool,
        answer: oneshot::Sender<Vec<Result<Outcome, Error>>>,
    ) {
        let slot = self.partial_free.pop().unwrap_or_else(|| {
            self.partial.push(None);
            self.partial.len() - 1
        });
        self.partial[slot] = Some(PartialAnswers::new(commands.len(), answer));
        if commands.is_empty() {
            self.answer_if_whole(slot);
        }
        for (position, (shard, command)) in commands.into_iter().enumerate() {
            match self.admit_command(shard, &command, enqueue) {
                Ok(number) => self.add(number, command, Waiting::Part { slot, position }),
                Err(error) => self.answer_part(slot, position, Err(error)),
            }
        }
    }

    /// How many tasks of a shard could be claimed now and are not promised to a waiting claim.
    fn probe(&mut self, shard: ShardId, sought: &Sought) -> Result<u64, Error> {
        let number = self.number(shard)?;
        let reading = self.reading;
        let shard = &mut self.shards[number];
        let Some(now) = shard.leading.as_mut().map(|clock| clock.now(reading)) else {
            return Ok(0);
        };
        let machine = &shard.replica.machine().machine;
        let free = |queue: &String| shard.waiters.free(queue, &sought.types, machine, now);
        Ok(sought.queues.iter().map(free).sum())
    }

    fn accept_hints(
        &mut self,
        ticket: TicketId,
        looks: Vec<Look>,
        answer: &mpsc::UnboundedSender<Hint>,
    ) {
        for (shard, sought) in looks {
            let answer = HintAnswer::new(shard, answer.clone());
            match self.admit(shard, None) {
                Ok(number) => {
                    self.shards[number].waiters.park_hint(ticket, sought, answer);
                    self.activate(number);
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        }
    }

    fn accept_read(&mut self, shard: ShardId, read: ReadFn) {
        match self.number_soon(shard) {
            Ok(number) => {
                self.shards[number].reads.push(read);
                self.activate(number);
            }
            Err(error) => read(Err(error)),
        }
    }

    fn accept_bodies(&mut self, tasks: &[TaskId], answer: Answer<Vec<Option<Bytes>>>) {
        let led = tasks.iter().try_for_each(|task| self.number(task.home).map(drop));
        if let Err(error) = led {
            return drop(answer.send(Err(error)));
        }
        let in_memory = |task: &TaskId| {
            let shard = self.shards.get(usize::from(task.home.0))?;
            shard.state().bodies.get(*task)
        };
        let found: Vec<Option<Bytes>> = tasks.iter().map(in_memory).collect();
        let missing: Vec<TaskId> = tasks
            .iter()
            .zip(&found)
            .filter(|(_, body)| body.is_none())
            .map(|(id, _)| *id)
            .collect();
        if missing.is_empty() {
            let _ = answer.send(Ok(found));
            return;
        }
        let is_one = tasks.len() == 1;
        let fill = move |read: Vec<SoughtBody>| {
            // A page of several tasks shows the readable ones.
            let words = match read.first() {
                Some(SoughtBody::Lost(what)) => {
                    Some(format!("the payload of the task {what}; check the disk"))
                }
                Some(SoughtBody::Unanswered(what)) => Some(format!(
                    "the payload of the task {what}; another replica that may have the payload \
                     does not answer; ask again later, and check the disk"
                )),
                Some(SoughtBody::Found(_) | SoughtBody::Gone) | None => None,
            };
            if let Some(words) = words.filter(|_| is_one) {
                return drop(answer.send(Err(Error::Unavailable(words))));
            }
            let found_elsewhere = |body| match body {
                SoughtBody::Found(body) => Some(body),
                SoughtBody::Gone | SoughtBody::Lost(_) | SoughtBody::Unanswered(_) => None,
            };
            let mut read = read.into_iter().map(found_elsewhere);
            let mut next = || read.next().flatten();
            let filled = found.into_iter().map(|body| body.or_else(&mut next));
            let _ = answer.send(Ok(filled.collect()));
        };
        self.read_bodies(missing, fill);
    }

    fn accept_watch(&mut self, task: TaskId, ticket: TicketId, answer: Answer<bool>) {
        let number = match self.number(task.home) {
            Ok(number) => number,
            Err(error) => return drop(answer.send(Err(error))),
        };
        let shard = &mut self.shards[number];
        let machine = shard.machine();
        let ended = machine.task(task).map(|task| task.state.is_finished());
        let flow_ended = || machine.flow_summary(task).map(|flow| flow.ended_at.is_some());
        match ended.or_else(flow_ended) {
            Some(true) => drop(answer.send(Ok(true))),
            None => drop(answer.send(Err(Rejection::TaskNotFound { task }.into()))),
            Some(false) if self.course != Course::Going => drop(answer.send(Ok(false))),
            Some(false) => shard.watchers.watch(task, ticket, answer),
        }
    }

    fn accept_report(&mut self, report: Report) -> Result<(), Failure> {
        match report {
            Report::Failed(failure) => return Err(failure),
            Report::Written(shard, cut) => {
                let number = usize::from(shard.0);
                let Some(shard) = self.shards.get_mut(number) else {
                    self.written_of_stopped(shard);
                    return self.remove_stopped();
                };
                self.checkpoints.written(shard, &cut);
                let job = shard.order_switch();
                self.order(job);
                self.telemetry.note_checkpoint();
                self.activate(number);
                self.is_untidy = true;
            }
            Report::Switched(shard, id, is_switched) => {
                self.accept_switched(shard, id, is_switched);
            }
            Report::Removed(shard) => self.accept_removed(shard),
            Report::Holding(groups) => {
                let log = self.log.position();
                for shard in self.shards.iter_mut() {
                    if groups.contains(&shard.group) {
                        self.checkpoints.shorten_log(shard, log, &self.snapshots);
                    }
                }
            }
        }
        Ok(())
    }

    fn status(&self) -> Vec<ShardStatus> {
        let status = self.shards.iter().map(|shard| ShardStatus {
            shard: shard.id,
            term: shard.replica.term(),
            serves: shard.leading.is_some(),
            persisted: shard.replica.last_index(),
            applied: shard.replica.applied(),
        });
        status.collect()
    }

    /// Ends parked claims and watches, and asks for last checkpoints. Commands in the log are still
    /// answered.
    fn stop(&mut self, until: Instant) {
        self.course = Course::Stopping { until };
        self.checkpoints.end_quiet();
        for shard in self.shards.iter_mut() {
            shard.waiters.end(None);
            shard.watchers.end(None);
            Checkpoints::want(shard);
        }
    }
}
