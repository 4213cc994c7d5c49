//! A task's side of its tally: it tells where it stands, once per change.

use crate::life::Task;
use crate::outbox::Message;
use crate::slab::Slot;
use crate::tally::Standing;
use crate::turn::Turn;
use crate::watch::Watch;

impl Task {
    /// Who is told of its end.
    pub(crate) fn watch(&self) -> Option<Watch> {
        self.extra.as_ref()?.watch.as_deref().copied()
    }
}

impl Turn<'_> {
    /// Tells a task's tally, if it has one, where the task stands now.
    pub(crate) fn tell_tally(&mut self, slot: Slot, to: Standing) {
        let Some(Watch::Tally { tally, told }) = self.task(slot).watch() else { return };
        if told == to {
            return;
        }
        self.shard.edit(slot, |task| {
            let watch = task.extra.as_mut().and_then(|extra| extra.watch.as_deref_mut());
            *watch.expect("it is watched") = Watch::Tally { tally, told: to };
        });
        self.owe(tally.home, &Message::TallyTask { tally, from: told, to });
    }
}
