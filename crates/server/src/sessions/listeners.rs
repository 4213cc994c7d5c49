//! Listeners: the queues and types for which claims without a session wait. Workers with a session
//! are listed anyway.

use crate::{broker::Places, shard::TaskTypes};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use taskyard_machine::wire::wire_enum;

/// Whether a worker would take tasks of a queue and a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    /// No worker listens on the queue.
    Nobody,
    /// Workers listen on the queue, for other types.
    OtherTypes,
    /// A worker would take the task.
    Yes,
}

wire_enum!(Heard { 1 => Nobody, 2 => OtherTypes, 3 => Yes });

impl Heard {
    /// What a worker that listens for these types would do with a task.
    pub(super) fn by(types: &TaskTypes, task_type: &str) -> Heard {
        if types.has(task_type) { Heard::Yes } else { Heard::OtherTypes }
    }
}

/// The number of waiting claims without a session per queue, by types.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Mutex<HashMap<String, HashMap<TaskTypes, usize>>>);

/// A waiting claim, which listens until this is dropped.
pub(crate) struct Listening<'a> {
    listeners: &'a Listeners,
    places: &'a Places,
}

impl Listeners {
    pub(crate) fn listen<'a>(&'a self, places: &'a Places) -> Listening<'a> {
        let mut waiting = self.waiting();
        for queue in places.queues() {
            let of_queue = waiting.entry(queue.to_owned()).or_default();
            *of_queue.entry(places.types().clone()).or_default() += 1;
        }
        Listening { listeners: self, places }
    }

    pub(super) fn heard(&self, queue: &str, task_type: &str) -> Heard {
        let waiting = self.waiting();
        let lists = waiting.get(queue).into_iter().flat_map(HashMap::keys);
        lists.map(|types| Heard::by(types, task_type)).max().unwrap_or(Heard::Nobody)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, HashMap<TaskTypes, usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let (mut waiting, types) = (self.listeners.waiting(), self.places.types());
        for queue in self.places.queues() {
            let Some(of_queue) = waiting.get_mut(queue) else { continue };
            if let Some(count) = of_queue.get_mut(types) {
                *count -= 1;
                if *count == 0 {
                    of_queue.remove(types);
                }
            }
            if of_queue.is_empty() {
                waiting.remove(queue);
            }
        }
    }
}
