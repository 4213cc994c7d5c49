//! A task's side of its tally: the task reports its standing, once per change.

use crate::life::Task;
use crate::outbox::Message;
use crate::slab::Slot;
use crate::tally::Standing;
use crate::turn::Turn;
use crate::watch::Watch;

impl Task {
    /// The receiver of a message about the task's end.
    pub(crate) fn watch(&self) -> Option<Watch> {
        self.extra.as_ref()?.watch.as_deref().copied()
    }
}

impl Turn<'_> {
    /// Sends a task's new standing to its tally, if it has one.
    pub(crate) fn notify_tally(&mut self, slot: Slot, to: Standing) {
        let Some(Watch::Tally { tally, reported }) = self.task(slot).watch() else { return };
        if reported == to {
            return;
        }
        self.shard.edit(slot, |task| {
            let watch = task.extra.as_mut().and_then(|extra| extra.watch.as_deref_mut());
            *watch.expect("it is watched") = Watch::Tally { tally, reported: to };
        });
        self.owe(tally.home, &Message::TallyTask { tally, from: reported, to });
    }
}
