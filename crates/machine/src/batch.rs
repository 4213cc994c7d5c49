//! Batches: many tasks in one command, answered one by one, or accepted all or none.

use crate::enqueue::parse_queue;
use crate::limits::BATCH_TASKS_MAX;
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::unique::Verdict;
use crate::{
    EnqueueBatch, EnqueueMany, Enqueued, KeyHolder, NewTask, OnConflict, Outcome, Rejection, Unique,
};
use std::collections::{BTreeMap, BTreeSet};

impl Turn<'_> {
    /// Answers each task by itself. In a repeated batch, accepted tasks keep their answer; rejected
    /// tasks, which made nothing, are judged again.
    pub(crate) fn enqueue_many(&mut self, many: &EnqueueMany<'_>) -> Result<Outcome, Rejection> {
        let count = many.items.len();
        at_most("the number of tasks", count as u64, BATCH_TASKS_MAX as u64)?;
        let mut known = self.batch_answers(many.batch_id, count)?.unwrap_or_default();
        known.resize(count, None);
        let answers: Vec<Result<Enqueued, Rejection>> = known
            .iter()
            .zip(&many.items)
            .map(|(answer, item)| answer.map_or_else(|| self.enqueue_one(item), Ok))
            .collect();
        let made = answers.iter().map(|answer| answer.as_ref().ok().copied());
        self.remember_batch(many.batch_id, made);
        Ok(Outcome::EnqueuedMany(answers))
    }

    pub(crate) fn enqueue_batch(&mut self, batch: &EnqueueBatch<'_>) -> Result<Outcome, Rejection> {
        if let Some(answers) = self.batch_answers(batch.batch_id, batch.tasks.len())? {
            return Ok(Outcome::EnqueuedBatch(answers.into_iter().flatten().collect()));
        }
        self.enqueue_all(batch.batch_id, batch.queue, &batch.tasks)
    }

    /// Checks all tasks first, then adds all.
    pub(crate) fn enqueue_all(
        &mut self,
        batch_id: Option<u128>,
        queue: &str,
        tasks: &[NewTask<'_>],
    ) -> Result<Outcome, Rejection> {
        if tasks.is_empty() {
            return Err(Rejection::invalid("the batch has no tasks; give at least one"));
        }
        at_most("the number of tasks in the batch", tasks.len() as u64, BATCH_TASKS_MAX as u64)?;
        parse_queue(queue)?;
        for (index, task) in (0..).zip(tasks) {
            if self.known_request(queue, task.request_id).is_none() {
                self.check_place(queue, task)?;
                task.check(self.now).map_err(|rejection| in_batch(index, rejection))?;
            }
        }
        let new = self.count_new(queue, tasks)?;
        self.check_room(queue, new)?;
        let queue = self.queue_or_new(queue)?;
        let answers: Vec<Enqueued> =
            tasks.iter().map(|task| self.insert_new(queue, task)).collect();
        self.remember_batch(batch_id, answers.iter().copied().map(Some));
        Ok(Outcome::EnqueuedBatch(answers))
    }

    /// The number of tasks that a batch will add: known and repeated request ids add none. Unique
    /// keys follow the same rules inside the batch as outside of it, in the batch's order.
    fn count_new(&self, queue: &str, tasks: &[NewTask<'_>]) -> Result<u64, Rejection> {
        let mut requests = BTreeSet::new();
        let mut keys: BTreeMap<&str, u32> = BTreeMap::new();
        let mut new = 0;
        for (index, task) in (0..).zip(tasks) {
            let repeated = task.request_id.is_some_and(|id| !requests.insert(id));
            if repeated || self.known_request(queue, task.request_id).is_some() {
                continue;
            }
            let Some(unique) = &task.unique else {
                new += 1;
                continue;
            };
            if let Some(&first) = keys.get(&*unique.key) {
                let same_type = tasks[first as usize].task_type == task.task_type;
                check_repeated_key(unique, first, same_type)
                    .map_err(|rejection| in_batch(index, rejection))?;
                continue;
            }
            let verdict =
                self.judge(queue, task).map_err(|rejection| in_batch(index, rejection))?;
            if verdict == Verdict::New {
                keys.insert(&unique.key, index);
                new += 1;
            }
        }
        Ok(new)
    }
}

/// Judges a unique key that an earlier task of the same batch will have, in a waiting state.
fn check_repeated_key(unique: &Unique<'_>, first: u32, same_type: bool) -> Result<(), Rejection> {
    let hint = match unique.on_conflict {
        OnConflict::Existing => return Ok(()),
        OnConflict::Replace if same_type => return Ok(()),
        OnConflict::Replace => "it is of another type, so its payload can't be replaced",
        OnConflict::Reject => "leave one of them out",
    };
    let holder = KeyHolder::BatchElement(first);
    Err(Rejection::NotUnique { key: (&*unique.key).into(), holder, hint: hint.into() })
}

pub(crate) fn in_batch(index: u32, rejection: Rejection) -> Rejection {
    Rejection::BatchElement { index, rejection: Box::new(rejection) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BATCH_ID_KEPT_FOR_MS;
    use crate::testing::{Yard, new_task};
    use crate::{Command, Enqueue, QueueSettings, TaskId};

    fn batch<'a>(batch_id: Option<u128>, tasks: Vec<NewTask<'a>>) -> Command<'a> {
        Command::EnqueueBatch(EnqueueBatch { batch_id, queue: "mail", tasks })
    }

    fn ids(outcome: Result<Outcome, Rejection>) -> Vec<TaskId> {
        match outcome {
            Ok(Outcome::EnqueuedBatch(made)) => made.into_iter().map(|made| made.id).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_bad_task_refuses_the_batch_and_is_named() {
        let mut yard = Yard::new();
        let bad = NewTask { priority: Some(12), ..new_task() };
        let answer = yard.send(batch(None, vec![new_task(), bad, new_task()]));
        let Err(Rejection::BatchElement { index: 1, rejection }) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(rejection.code(), "invalid_argument");
        assert_eq!(yard.machine.task_count(), 0);
        assert!(yard.send(batch(None, vec![])).is_err(), "an empty batch is a mistake");
    }

    #[test]
    fn a_batch_that_does_not_fit_its_queue_is_refused_whole() {
        let mut yard = Yard::new();
        yard.set("mail", QueueSettings { max_length: Some(2), ..QueueSettings::default() });
        let answer = yard.send(batch(None, vec![new_task(); 3]));
        assert_eq!(answer.unwrap_err().code(), "queue_full");
        let same = NewTask { request_id: Some("r"), ..new_task() };
        let made = ids(yard.send(batch(None, vec![same.clone(), same, new_task()])));
        assert_eq!(made[0], made[1], "repeated request ids are one task, so two fit");
        assert_eq!(yard.counts("mail").ready, 2);
    }

    #[test]
    fn a_batch_that_is_sent_again_enqueues_nothing_twice() {
        let mut yard = Yard::new();
        let first = ids(yard.send(batch(Some(1), vec![new_task(); 3])));
        assert_eq!(ids(yard.send(batch(Some(1), vec![new_task(); 3]))), first);
        assert!(yard.send(batch(Some(1), vec![new_task(); 2])).is_err(), "another batch");
        assert_eq!(yard.counts("mail").enqueued_total, 3);
        yard.wait_ms(BATCH_ID_KEPT_FOR_MS);
        assert_ne!(ids(yard.send(batch(Some(1), vec![new_task(); 3]))), first);
    }

    #[test]
    fn many_tasks_are_answered_one_by_one_and_rejected_ones_are_judged_again() {
        let mut yard = Yard::new();
        yard.set("small", QueueSettings { max_length: Some(1), ..QueueSettings::default() });
        let send = |yard: &mut Yard| {
            let item = |queue| Enqueue { queue, task: new_task() };
            let items = vec![item("small"), item("small"), item("mail")];
            match yard.send(Command::EnqueueMany(EnqueueMany { batch_id: Some(9), items })) {
                Ok(Outcome::EnqueuedMany(answers)) => answers,
                other => panic!("{other:?}"),
            }
        };
        let first = send(&mut yard);
        assert_eq!(first[1].as_ref().unwrap_err().code(), "queue_full");
        yard.claim_one("small");
        let second = send(&mut yard);
        assert_eq!((&second[0], &second[2]), (&first[0], &first[2]));
        assert!(second[1].is_ok(), "there is room for it now");
        assert_eq!(send(&mut yard), second);
    }
}
