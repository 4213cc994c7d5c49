//! TRACK: the progress of a job, as its worker reported it, and its state.

use super::{
    Shared,
    fields::Fields,
    frame::{Reply, split},
    job::AsJob,
};
use crate::{Error, moment::InWords};
use serde::Serialize;
use std::borrow::Cow;
use taskyard_machine::{
    AttemptOutcome, Body, Extend, Progress, Rejection, TaskStateName, TaskView, limits,
};

/// The reply about one job.
#[derive(Serialize)]
struct Tracked<'a> {
    jid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    desc: Option<&'a str>,
    state: &'a str,
    updated_at: String,
}

impl Shared {
    pub(super) async fn track(&self, rest: &str) -> Result<Reply, Error> {
        match split(rest) {
            ("GET", jid) if !jid.is_empty() => self.tracked(jid).await,
            ("SET", json) => self.set_progress(json).await,
            _ => Ok(Reply::error("invalid TRACK; say GET with a jid, or SET with a JSON object")),
        }
    }

    /// A job that was not asked to be tracked is unknown, as if it did not exist.
    async fn tracked(&self, jid: &str) -> Result<Reply, Error> {
        let jid = jid.trim_matches('"');
        let found = self.find(jid).await?;
        let view = match found {
            Some(view) if self.is_tracked(&view).await? => view,
            _ => {
                let (state, updated_at) = ("unknown", String::new());
                let unknown = Tracked { jid, percent: None, desc: None, state, updated_at };
                return Ok(Reply::json(&unknown));
            }
        };
        let (percent, desc) = match &view.progress {
            Some((percent, message)) => (Some(*percent), Some(message.as_str())),
            None => (None, None),
        };
        let updated_at = updated_at(&view);
        Ok(Reply::json(&Tracked { jid, percent, desc, state: state(&view), updated_at }))
    }

    async fn is_tracked(&self, view: &TaskView) -> Result<bool, Error> {
        let body = match self.broker.task(view.id, true).await {
            Ok(found) => found.body,
            Err(Error::Rejected(Rejection::TaskNotFound { .. })) => None,
            Err(error) => return Err(error),
        };
        let Some(body) = body else { return Ok(false) };
        let body = Body::decode(&body).expect("a kept body is one that was encoded");
        Ok(AsJob::new(view, &body).is_tracked())
    }

    /// Sets the progress of a job, from any connection, because a job knows only its own id. A job
    /// that no longer runs stays as it ended.
    async fn set_progress(&self, json: &str) -> Result<Reply, Error> {
        let fields: Fields<'_> = match serde_json::from_str(json) {
            Ok(fields) => fields,
            Err(error) => return Ok(Reply::error(format!("invalid JSON: {error}"))),
        };
        let asked = match Asked::read(&fields) {
            Ok(asked) => asked,
            Err(text) => return Ok(Reply::error(text)),
        };
        let Some(view) = self.find(&asked.jid).await? else { return Ok(Reply::Ok) };
        let Some(claim) = &view.claim else { return Ok(Reply::Ok) };
        let now = self.broker.now();
        let until = asked.reserve_until.unwrap_or(now).max(claim.lease_expires_at);
        let lease_ms = until.ms_since(now).clamp(limits::LEASE_MS_MIN, limits::LEASE_MS_MAX);
        let extend = Extend {
            task: view.id,
            token: claim.token,
            lease_ms: Some(lease_ms),
            progress: Some(Progress { percent: asked.percent, message: &asked.desc }),
            resume_state: None,
        };
        super::command::unless_changed(self.broker.extend(extend).await)?;
        Ok(Reply::Ok)
    }
}

/// The progress of a job.
pub(super) struct Asked<'a> {
    jid: Cow<'a, str>,
    percent: u8,
    desc: Cow<'a, str>,
    /// Only lengthens the reservation.
    reserve_until: Option<taskyard_machine::Timestamp>,
}

impl<'a> Asked<'a> {
    pub(super) fn read(fields: &Fields<'a>) -> Result<Asked<'a>, String> {
        let jid = fields.text("jid")?.filter(|jid| !jid.is_empty());
        let jid = jid.ok_or("TRACK SET needs a jid")?;
        let percent = fields.number("percent")?.unwrap_or(0);
        let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
        let percent = percent.ok_or("percent must be 0 to 100")?;
        let desc = fields.text("desc")?.unwrap_or_default();
        let until = fields.text("reserve_until")?.filter(|until| !until.is_empty());
        let reserve_until = until.map(|until| super::job::moment("reserve_until", &until));
        Ok(Asked { jid, percent, desc, reserve_until: reserve_until.transpose()? })
    }
}

/// Whether a waiting task waits because its last attempt failed or was lost.
pub(super) fn is_retrying(view: &TaskView) -> bool {
    use AttemptOutcome::{Failed, Lost, TimedOut};
    let last = view.attempts.last();
    last.is_some_and(|attempt| matches!(attempt.outcome, Failed | Lost | TimedOut))
}

fn state(view: &TaskView) -> &'static str {
    match view.state {
        TaskStateName::Claimed => "working",
        TaskStateName::Succeeded => "success",
        TaskStateName::Dead => "dead",
        TaskStateName::Failed | TaskStateName::Cancelled | TaskStateName::Expired => "failed",
        TaskStateName::Scheduled if is_retrying(view) => "failed",
        TaskStateName::Blocked | TaskStateName::Scheduled | TaskStateName::Ready => "enqueued",
    }
}

/// When the job last changed.
fn updated_at(view: &TaskView) -> String {
    let claimed = view.claim.as_ref().map(|claim| claim.claimed_at);
    let attempt = view.attempts.last().map(|attempt| attempt.ended_at);
    let at = view.finished_at.or(claimed).or(attempt).unwrap_or(view.enqueued_at);
    InWords(at).to_string()
}
