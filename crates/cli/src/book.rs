//! Book: records which enqueues were confirmed and which tasks ran, while a cluster loses nodes.
//!
//! Each enqueue has a number, which its task carries. The cluster must keep this invariant: each
//! confirmed number is one task, and that task is executed, perhaps more than once.

use std::collections::HashMap;

use taskyard::TaskId;

#[derive(Default)]
pub(crate) struct Book {
    confirmed: HashMap<u64, TaskId>,
    executed: HashMap<u64, Executed>,
}

/// The tasks that ran with one number.
struct Executed {
    task: TaskId,
    times: u32,
    /// Another task had the same number.
    is_doubled: bool,
}

/// The sums of a book.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) confirmed: u64,
    pub(crate) executed: u64,
    /// Confirmed enqueues that were not executed so far.
    pub(crate) missing: u64,
    /// Tasks that were executed more than once.
    pub(crate) repeated: u64,
    /// Numbers with more than one task.
    pub(crate) doubled: u64,
}

impl Book {
    /// Records that the broker confirmed an enqueue as this task.
    pub(crate) fn confirm(&mut self, number: u64, task: TaskId) {
        self.confirmed.insert(number, task);
    }

    /// Records that a worker ran a task.
    pub(crate) fn execute(&mut self, number: u64, task: &TaskId) {
        let first = || Executed { task: task.clone(), times: 0, is_doubled: false };
        let executed = self.executed.entry(number).or_insert_with(first);
        executed.times += 1;
        executed.is_doubled |= executed.task != *task;
    }

    pub(crate) fn counts(&self) -> Counts {
        let missing = self.confirmed.keys().filter(|number| !self.executed.contains_key(number));
        let is_repeated = |executed: &&Executed| executed.times > 1 && !executed.is_doubled;
        let is_other = |number: &u64, executed: &Executed| {
            self.confirmed.get(number).is_some_and(|task| *task != executed.task)
        };
        let doubled = self
            .executed
            .iter()
            .filter(|(number, executed)| executed.is_doubled || is_other(number, executed));
        Counts {
            confirmed: self.confirmed.len() as u64,
            executed: self.executed.len() as u64,
            missing: missing.count() as u64,
            repeated: self.executed.values().filter(is_repeated).count() as u64,
            doubled: doubled.count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(confirmed: &[(u64, &str)], executed: &[(u64, &str)]) -> Counts {
        let mut book = Book::default();
        confirmed.iter().for_each(|&(number, task)| book.confirm(number, task.into()));
        executed.iter().for_each(|&(number, task)| book.execute(number, &task.into()));
        book.counts()
    }

    #[test]
    fn confirmed_and_not_executed_tasks_are_missing() {
        // Task d exists although its enqueue was not confirmed.
        let counts =
            book(&[(1, "a"), (2, "b"), (3, "c")], &[(1, "a"), (2, "b"), (2, "b"), (4, "d")]);
        let expected = Counts { confirmed: 3, executed: 3, missing: 1, repeated: 1, doubled: 0 };
        assert_eq!(counts, expected);
    }

    #[test]
    fn two_tasks_of_one_number_are_found_whichever_is_known() {
        assert_eq!(book(&[(1, "a")], &[(1, "a"), (1, "b")]).doubled, 1);
        assert_eq!(book(&[(1, "a")], &[(1, "b")]).doubled, 1);
        assert_eq!(book(&[], &[(1, "a"), (1, "b")]).doubled, 1);
        assert_eq!(book(&[(1, "a"), (2, "b")], &[(1, "a"), (1, "a"), (2, "b")]).doubled, 0);
    }
}
