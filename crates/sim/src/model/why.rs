//! Why: the reasons that the machine names for a waiting task must be those of the model.

use super::{Difference, Model, State, Task};
use taskyard_machine::{Machine, Reason, Timestamp};

impl Model {
    /// Checks the reasons of every task.
    pub(super) fn check_why(&self, machine: &Machine) -> Result<(), Difference> {
        for task in &self.tasks {
            let reasons = machine.why(task.id, Timestamp(self.now)).unwrap_or_default();
            if !self.explains(task, &reasons) {
                return Err(format!("{} ({:?}) waits for {reasons:?}", task.id, task.state));
            }
        }
        Ok(())
    }

    fn explains(&self, task: &Task, reasons: &[Reason]) -> bool {
        let is_paused = reasons.contains(&Reason::QueuePaused);
        let pauses = self.queues[&task.queue].paused;
        match &task.state {
            State::Claimed(_) => matches!(reasons, [Reason::Running { .. }]),
            State::Finished { ending, .. } => *reasons == [Reason::Finished { state: *ending }],
            State::Scheduled { run_at } => {
                let first = reasons.first();
                is_paused == pauses
                    && matches!(first, Some(Reason::Scheduled { until, .. }) if until.0 == *run_at)
            }
            State::Ready { .. } => {
                is_paused == pauses && self.counts(task, reasons) && self.can_be_next(task, reasons)
            }
        }
    }

    /// Checks that reasons about limits of claims appear exactly while the limits hold.
    fn counts(&self, task: &Task, reasons: &[Reason]) -> bool {
        let settings = &self.queues[&task.queue].settings;
        let claimed = |key: Option<&String>| {
            let in_queue = self.tasks.iter().filter(|other| other.queue == task.queue);
            let running = in_queue.filter(|other| matches!(other.state, State::Claimed(_)));
            running.filter(|other| key.is_none() || other.key.as_ref() == key).count() as u32
        };
        let full = |limit: Option<u32>, claimed: u32| limit.filter(|limit| claimed >= *limit);
        let queue = full(settings.concurrency, claimed(None))
            .map(|limit| Reason::QueueConcurrency { claimed: claimed(None), limit });
        let of_key = task.key.as_ref().and_then(|key| {
            let claimed = claimed(Some(key));
            let limit = full(settings.per_key?.concurrency, claimed)?;
            Some(Reason::KeyConcurrency { key: key.clone(), claimed, limit })
        });
        let said = |wanted: fn(&Reason) -> bool| reasons.iter().find(|reason| wanted(reason));
        said(|reason| matches!(reason, Reason::QueueConcurrency { .. })) == queue.as_ref()
            && said(|reason| matches!(reason, Reason::KeyConcurrency { .. })) == of_key.as_ref()
    }

    /// A task that has only other tasks ahead, and no more of these, must be claimable.
    fn can_be_next(&self, task: &Task, reasons: &[Reason]) -> bool {
        let others = self.ready_others(task);
        match reasons {
            [Reason::Ahead { tasks: 0, .. }] => self.room(&task.queue, &[]) > 0,
            [.., Reason::Ahead { tasks, .. }] => *tasks <= others,
            _ => false,
        }
    }

    fn ready_others(&self, task: &Task) -> u64 {
        let others = self.tasks.iter().filter(|other| {
            other.queue == task.queue
                && other.id != task.id
                && matches!(other.state, State::Ready { .. })
        });
        others.count() as u64
    }
}
