//! Extend and renew: a worker shows that it is alive, and how far it is.

use crate::claim::check_lease;
use crate::enqueue::at_most_bytes;
use crate::life::prefix;
use crate::limits::{PROGRESS_MESSAGE_BYTES_MAX, RESUME_STATE_BYTES_MAX};
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{EventKind, Extend, Outcome, Rejection, Renew, Renewal, Timestamp};

impl Turn<'_> {
    pub(crate) fn extend(&mut self, extend: &Extend<'_>) -> Result<Outcome, Rejection> {
        let slot = self.held(extend.task, extend.token)?;
        if let Some(lease_ms) = extend.lease_ms {
            check_lease(lease_ms)?;
        }
        if let Some(progress) = extend.progress {
            at_most("progress percent", progress.percent.into(), 100)?;
        }
        let resume_bytes = extend.resume_state.map_or(0, <[u8]>::len);
        at_most_bytes("resume_state", resume_bytes, RESUME_STATE_BYTES_MAX)?;

        let lease_expires_at = self.renew_claim(slot, extend.lease_ms);
        if let Some(state) = extend.resume_state {
            self.shard.edit(slot, |task| task.extra_mut().resume_state = Some(state.into()));
        }
        if let Some(progress) = extend.progress {
            let message = prefix(progress.message, PROGRESS_MESSAGE_BYTES_MAX);
            let kept = (progress.percent, message.into());
            self.shard.edit(slot, |task| task.extra_mut().progress = Some(kept));
            self.emit_task(slot, |task| EventKind::TaskProgressed(task, progress.percent));
        }
        let cancel_requested = self.cancel_requested(slot);
        Ok(Outcome::Extended { lease_expires_at, cancel_requested })
    }

    /// One answer per claim, so that one lost claim does not cost the others their lease.
    pub(crate) fn renew(&mut self, renew: &Renew) -> Result<Outcome, Rejection> {
        let mut renewals = Vec::with_capacity(renew.claims.len());
        for &(task, token) in &renew.claims {
            renewals.push(match self.held(task, token) {
                Ok(slot) => Renewal::Held {
                    lease_expires_at: self.renew_claim(slot, None),
                    cancel_requested: self.cancel_requested(slot),
                },
                Err(_) => Renewal::Lost,
            });
        }
        Ok(Outcome::Renewed(renewals))
    }

    /// Moves the lease's end: `lease_ms` from now, or as long as it was claimed for.
    fn renew_claim(&mut self, slot: Slot, lease_ms: Option<u64>) -> Timestamp {
        let now = self.now;
        let lease_floor = self.shard.counters.lease_floor;
        self.shard.edit_deadline(slot, |task| {
            let claim = task.claim_mut().expect("only held tasks are renewed");
            claim.engaged = true;
            claim.lease_expires_at = now.plus_ms(lease_ms.unwrap_or(claim.lease_ms));
            claim.set_end(lease_floor);
            claim.lease_expires_at
        })
    }
}
