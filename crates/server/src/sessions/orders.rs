//! Orders: quiet and stop, which operators ask of workers. A worker learns its order without delay,
//! and again with every beat.
//!
//! The node that has the worker's session keeps the order there. The other nodes remember it,
//! because the worker may continue on any of them before it learns the order. A worker that knows
//! its order repeats it in its next hello, so the order outlives every node. The number of
//! remembered orders is bounded, and they end with this process.

use super::{Activity, LOST_KEPT_FOR, Link, Order, Sessions};
use crate::limits::LOST_KEPT_MAX;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use taskyard_machine::{SessionId, wire::wire_enum};

/// The effect of an order on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ordered {
    /// This node does not have that worker.
    Unknown,
    /// The worker was connected a moment ago, and learns the order when it is back.
    Waits,
    /// The worker is told.
    Told,
}

wire_enum!(Ordered { 1 => Unknown, 2 => Waits, 3 => Told });

/// Orders to workers that other nodes have.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<SessionId, (Activity, Instant)>>);

impl Sessions {
    /// Asks a worker to be quiet or to stop, if this node has it.
    pub(crate) fn order(&self, id: SessionId, activity: Activity) -> Ordered {
        let Some(session) = self.session(id) else { return Ordered::Unknown };
        let mut state = session.state();
        let ordered = match &state.link {
            Link::Lost { .. } => return Ordered::Unknown,
            Link::Cut { .. } => Ordered::Waits,
            // The worker learns the order with its next beat.
            Link::Asking { .. } if state.connections > 0 => Ordered::Told,
            Link::Asking { .. } => Ordered::Waits,
            Link::Attached { orders, .. } => {
                // A full channel has orders already, and the answer to the next beat repeats this
                // one.
                let _ = orders.try_send(Order::Activity);
                let is_heard = !state.is_silent && !state.is_elsewhere;
                if is_heard { Ordered::Told } else { Ordered::Waits }
            }
        };
        state.ordered = activity;
        session.claims_stopped.notify_waiters();
        self.0.remembered.drop(id);
        ordered
    }

    /// Remembers an order to a worker that another node has, because the worker may come here.
    pub(crate) fn remember(&self, id: SessionId, activity: Activity) {
        self.0.remembered.keep(id, activity, self.0.clock.monotonic());
    }
}

impl Remembered {
    pub(super) fn of(&self, id: SessionId) -> Option<Activity> {
        self.orders().get(&id).map(|(activity, _)| *activity)
    }

    /// Forgets an order to one worker that is older than this: its name may belong to another
    /// worker by now.
    pub(super) fn forget_older(&self, id: SessionId, age_max: Duration, now: Instant) {
        let mut orders = self.orders();
        if orders.get(&id).is_some_and(|(_, at)| now.saturating_duration_since(*at) > age_max) {
            orders.remove(&id);
        }
    }

    /// Forgets orders that are too old: a worker that has not come back by then is lost.
    pub(super) fn forget(&self, now: Instant) {
        self.orders().retain(|_, (_, at)| now.saturating_duration_since(*at) <= LOST_KEPT_FOR);
    }

    fn keep(&self, id: SessionId, activity: Activity, now: Instant) {
        let mut orders = self.orders();
        if orders.len() >= LOST_KEPT_MAX && !orders.contains_key(&id) {
            let oldest = orders.iter().min_by_key(|(_, (_, at))| *at).map(|(id, _)| *id);
            oldest.and_then(|oldest| orders.remove(&oldest));
        }
        orders.insert(id, (activity, now));
    }

    fn drop(&self, id: SessionId) {
        self.orders().remove(&id);
    }

    fn orders(&self) -> MutexGuard<'_, HashMap<SessionId, (Activity, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
