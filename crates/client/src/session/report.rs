//! Reports to a session, the handles that send them, and the handle that stops an attempt.

use crate::{CancelReason, Error};
use taskyard_proto::v1::{self, answer::Answer};
use tokio::sync::{mpsc, oneshot, watch};

/// One claim of one task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimKey {
    pub(crate) id: String,
    pub(crate) token: u64,
}

impl ClaimKey {
    pub(crate) fn of(task: &v1::ClaimedTask) -> ClaimKey {
        ClaimKey { id: task.id.clone(), token: task.claim_token }
    }

    pub(super) fn to_wire(&self) -> v1::HeldClaim {
        v1::HeldClaim { id: self.id.clone(), claim_token: self.token }
    }
}

impl From<v1::HeldClaim> for ClaimKey {
    fn from(wire: v1::HeldClaim) -> ClaimKey {
        ClaimKey { id: wire.id, token: wire.claim_token }
    }
}

/// A report of a handler or of the worker's owner to the session.
#[derive(Debug)]
pub(crate) enum Report {
    /// An attempt is over. It has no answer if its claim is lost.
    Ended { key: ClaimKey, answer: Option<Answer> },
    /// A slot is free again.
    SlotFree,
    /// A handler reports its progress.
    Progress { key: ClaimKey, progress: v1::TaskProgress },
    /// A handler saves its resume state, and waits.
    Checkpoint { key: ClaimKey, state: Vec<u8>, saved: oneshot::Sender<Result<(), Error>> },
    /// The worker must claim nothing more.
    Quiet,
    /// The worker must claim nothing more, finish, and leave.
    Stop,
    /// The worker's owner is gone: the worker must leave now.
    Abandon,
}

/// The sender of reports to the session.
#[derive(Clone, Debug)]
pub(crate) struct Reports(mpsc::UnboundedSender<Report>);

impl Reports {
    /// Unbounded, because each attempt reports its end once and its checkpoints one by one.
    pub(crate) fn new() -> (Reports, mpsc::UnboundedReceiver<Report>) {
        let (reports, inbox) = mpsc::unbounded_channel();
        (Reports(reports), inbox)
    }

    /// Sends a report, if the session still exists.
    pub(crate) fn send(&self, report: Report) {
        let _ = self.0.send(report);
    }
}

/// A taken slot of the worker, which is free again when the last clone of its `Arc` is dropped.
#[derive(Debug)]
pub(crate) struct Slot(pub(crate) Reports);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.send(Report::SlotFree);
    }
}

/// Asks an attempt to stop. The first reason stays, except that a lost claim replaces any other.
#[derive(Clone, Debug)]
pub(crate) struct Stopper(watch::Sender<Option<CancelReason>>);

impl Stopper {
    pub(super) fn new() -> Stopper {
        Stopper(watch::Sender::new(None))
    }

    pub(crate) fn stop(&self, reason: CancelReason) {
        self.0.send_if_modified(|current| {
            let changes = current.is_none()
                || (reason == CancelReason::Lost && *current != Some(CancelReason::Lost));
            if changes {
                *current = Some(reason);
            }
            changes
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<CancelReason>> {
        self.0.subscribe()
    }
}
