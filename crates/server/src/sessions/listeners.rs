//! Listeners: which queues claims without a session wait on. Whoever has one is known to listen anyway.

use crate::broker::Places;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How many claims without a session wait on each queue.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Mutex<HashMap<String, usize>>);

/// A claim that waits; it listens until this is dropped.
pub(crate) struct Listening<'a> {
    listeners: &'a Listeners,
    places: &'a Places,
}

impl Listeners {
    pub(crate) fn listen<'a>(&'a self, places: &'a Places) -> Listening<'a> {
        let mut waiting = self.waiting();
        for queue in places.queues() {
            *waiting.entry(queue.to_owned()).or_default() += 1;
        }
        Listening { listeners: self, places }
    }

    pub(super) fn has(&self, queue: &str) -> bool {
        self.waiting().contains_key(queue)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut waiting = self.listeners.waiting();
        for queue in self.places.queues() {
            if let Some(count) = waiting.get_mut(queue) {
                *count -= 1;
                if *count == 0 {
                    waiting.remove(queue);
                }
            }
        }
    }
}
