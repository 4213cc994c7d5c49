//! Member: a task's side of its flow, on the shard of the task.
//!
//! Messages arrive in the order in which the flow sent them. Each message names the run of the task
//! that it is about, because a retry by hand may cross it on the way.

use crate::flow::ParentResult;
use crate::life::{Ending, State};
use crate::outbox::Message;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::watch::{End, TaskEnded, Watch};
use crate::wire::wire_struct;
use crate::{Cancel, Enqueue, EventKind, TaskId, When};

/// A node's task on its way to the shard of its queue.
#[derive(Debug, PartialEq)]
pub(crate) struct FlowTask<'a> {
    pub(crate) flow: TaskId,
    pub(crate) node: u32,
    pub(crate) name: &'a str,
    pub(crate) id: TaskId,
    /// Whether the task waits for parents.
    pub(crate) blocked: bool,
    pub(crate) enqueue: Enqueue<'a>,
}

/// The part of a flow's task that only flows need, beside its watch.
#[derive(Debug, PartialEq)]
pub(crate) struct Membership {
    /// The name of the task's node.
    pub(crate) name: Box<str>,
    /// Whether the task was released in this run because its parents were done.
    pub(crate) released: bool,
    /// When the task may run, once it is released.
    pub(crate) run_at: When,
    /// The results of the parents.
    pub(crate) parents: Box<[ParentResult]>,
    /// The parent whose failure ended the task.
    pub(crate) failed_parent: Option<Box<str>>,
}

wire_struct!(FlowTask<'a> { flow, node, name, id, blocked, enqueue });
wire_struct!(Membership { name, released, run_at, parents, failed_parent });

impl Membership {
    pub(crate) fn bytes(&self) -> usize {
        let parents: usize = self.parents.iter().map(ParentResult::bytes).sum();
        let failed_parent = self.failed_parent.as_ref().map_or(0, |name| name.len());
        size_of::<Membership>() + self.name.len() + parents + failed_parent
    }
}

impl Turn<'_> {
    /// Adds a node's task, whose message has waited so long. Unless it waits for parents its delay
    /// counts from the entry that asked; else from its release.
    pub(crate) fn take_flow_task(&mut self, task: &FlowTask<'_>, waited_ms: u64) {
        if self.shard.ids.get(task.id).is_some() {
            return;
        }
        let FlowTask { flow, node, name, id, blocked, ref enqueue } = *task;
        let enqueue = &enqueue.after_waiting(if blocked { 0 } else { waited_ms });
        let queue = self.queue_for_accepted(enqueue.queue).expect("its name was checked");
        let watch = Watch::Flow { flow, node, run: 0 };
        let membership = Membership {
            name: name.into(),
            released: !blocked,
            run_at: enqueue.task.run_at,
            parents: Box::default(),
            failed_parent: None,
        };
        self.insert_member(queue, id, &enqueue.task, watch, membership);
    }

    /// Releases a blocked task. A task that ended meanwhile keeps the results of its parents,
    /// because the flow counts it as released: a retry makes it ready at once.
    pub(crate) fn take_release(&mut self, task: TaskId, run: u32, parents: &[ParentResult]) {
        let Some(slot) = self.shard.ids.get(task) else { return };
        let is_blocked = matches!(self.task(slot).state, State::Blocked);
        let crossed = self.task(slot).finished_at().is_some();
        if self.run_of(slot) != Some(run) || !(is_blocked || crossed) {
            return;
        }
        let run_at = self.edit_membership(slot, |membership| {
            membership.released = true;
            membership.parents = parents.into();
            membership.run_at
        });
        if is_blocked {
            self.schedule(slot, run_at.moment(self.now));
        }
    }

    /// Ends a blocked task because a parent failed.
    pub(crate) fn take_fail_blocked(&mut self, task: TaskId, run: u32, parent: &str) {
        let Some(slot) = self.blocked_member(task, run) else { return };
        self.edit_membership(slot, |membership| membership.failed_parent = Some(parent.into()));
        self.finish(slot, Ending::Failed, EventKind::TaskFailed);
    }

    /// Cancels a task of a cancelled flow.
    pub(crate) fn take_cancel(&mut self, task: TaskId) {
        // A task that is gone or has ended needs no cancelling.
        let _ = self.cancel(Cancel { task });
    }

    /// Runs a task again because its flow is retried.
    pub(crate) fn take_revive(&mut self, task: TaskId, run: u32, flow: TaskId, node: u32) {
        let Some(slot) = self.member_to_reset(task, run, flow, node) else { return };
        self.set_run(slot, run);
        self.revive_task(slot);
    }

    /// Blocks a task again that ended before its release, so that it waits for its parents.
    pub(crate) fn take_block_again(&mut self, task: TaskId, run: u32, flow: TaskId, node: u32) {
        let Some(slot) = self.member_to_reset(task, run, flow, node) else { return };
        self.set_run(slot, run);
        self.forget_failures(slot);
        self.edit_membership(slot, |membership| {
            (membership.released, membership.failed_parent) = (false, None);
            membership.parents = Box::default();
        });
        self.transition(slot, State::Blocked, Place::Back);
        self.emit_task(slot, EventKind::TaskBlocked);
    }

    /// Handles that the flow no longer keeps its tasks. Dead letters stay as long as their queue
    /// keeps them, and tasks that were retried by hand go on without the flow.
    pub(crate) fn take_forget(&mut self, task: TaskId) {
        let Some(slot) = self.shard.ids.get(task) else { return };
        match self.task(slot).state {
            State::Finished { ending: Ending::Dead, .. }
            | State::Ready { .. }
            | State::Scheduled { .. }
            | State::Claimed(_) => self.shard.edit(slot, |task| {
                if let Some(extra) = &mut task.extra {
                    (extra.watch, extra.flow) = (None, None);
                }
            }),
            State::Finished { .. } | State::Blocked => self.remove_task(slot),
        }
    }

    /// Informs the flow that its task is retried by hand.
    pub(crate) fn tell_revived(&mut self, slot: Slot) {
        if let Some(Watch::Flow { flow, node, run }) = self.task(slot).watch() {
            let run = run + 1;
            self.set_run(slot, run);
            self.owe(flow.home, &Message::NodeRevived { flow, node, run });
        }
    }

    /// The slot of a task that is blocked in this run.
    fn blocked_member(&self, task: TaskId, run: u32) -> Option<Slot> {
        let slot = self.shard.ids.get(task)?;
        let is_blocked = matches!(self.task(slot).state, State::Blocked);
        (is_blocked && self.run_of(slot) == Some(run)).then_some(slot)
    }

    /// The slot of a task that ended in an earlier run. If the task is gone, the flow is informed.
    fn member_to_reset(&mut self, task: TaskId, run: u32, flow: TaskId, node: u32) -> Option<Slot> {
        let Some(slot) = self.shard.ids.get(task) else {
            let ended = TaskEnded {
                watch: Watch::Flow { flow, node, run },
                task,
                end: End::Removed,
                result: None,
                result_left_out: false,
                error: None,
            };
            self.owe(flow.home, &Message::TaskEnded(ended));
            return None;
        };
        let has_ended = self.task(slot).finished_at().is_some();
        (has_ended && self.run_of(slot).is_some_and(|own| own < run)).then_some(slot)
    }

    fn run_of(&self, slot: Slot) -> Option<u32> {
        match self.task(slot).extra.as_ref()?.watch.as_deref()? {
            Watch::Flow { run, .. } => Some(*run),
            Watch::Schedule { .. } | Watch::Tally { .. } | Watch::Callback { .. } => None,
        }
    }

    fn set_run(&mut self, slot: Slot, to: u32) {
        self.shard.edit(slot, |task| {
            match task.extra.as_mut().and_then(|extra| extra.watch.as_deref_mut()) {
                Some(Watch::Flow { run, .. }) => *run = to,
                other => panic!("task {} is in no flow but in {other:?}", task.id),
            }
        });
    }

    fn edit_membership<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Membership) -> R) -> R {
        self.shard.edit(slot, |task| {
            match task.extra.as_mut().and_then(|extra| extra.flow.as_deref_mut()) {
                Some(membership) => change(membership),
                None => panic!("task {} is in no flow", task.id),
            }
        })
    }
}
