//! What a session is told, by whom it can be told, and how it tells an attempt to stop.

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

/// What handlers and the worker's owner tell the session.
#[derive(Debug)]
pub(crate) enum Report {
    /// An attempt is over. Without an answer its claim is lost anyway.
    Ended { key: ClaimKey, answer: Option<Answer> },
    /// A slot is free again.
    SlotFree,
    /// A handler says how far it is.
    Progress { key: ClaimKey, progress: v1::TaskProgress },
    /// A handler saves where it is, and waits.
    Checkpoint { key: ClaimKey, state: Vec<u8>, saved: oneshot::Sender<Result<(), Error>> },
    /// Claim nothing more.
    Quiet,
    /// Claim nothing more, finish, and leave.
    Stop,
    /// Nobody waits for this worker any more: leave now.
    Abandon,
}

/// The way to the session from anywhere.
#[derive(Clone, Debug)]
pub(crate) struct Reports(mpsc::UnboundedSender<Report>);

impl Reports {
    /// Bounded by nature: each attempt reports its end once and its checkpoints one by one.
    pub(crate) fn new() -> (Reports, mpsc::UnboundedReceiver<Report>) {
        let (reports, inbox) = mpsc::unbounded_channel();
        (Reports(reports), inbox)
    }

    /// Tells the session, if it is still there.
    pub(crate) fn send(&self, report: Report) {
        let _ = self.0.send(report);
    }
}

/// A taken slot of the worker; free again when the last clone of its `Arc` is gone.
#[derive(Debug)]
pub(crate) struct Slot(pub(crate) Reports);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.send(Report::SlotFree);
    }
}

/// Tells an attempt to stop. The first reason stays, except that a lost claim overrides all.
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
