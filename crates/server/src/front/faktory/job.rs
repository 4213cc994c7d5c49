//! Job: a Faktory job as a task, and any task as a job.
//!
//! A job's `jobtype` is the task's type, and its `args` are the payload, byte for byte, so that a
//! native worker sees what a native client would send. All other fields stay in a header as they
//! came, with unknown fields and large numbers. A fetch puts them around the arguments again. A
//! task from another front gets the fields that a Faktory worker needs.

use super::fields::{Fields, levels, text};
use crate::{front::json::Plain, limits::JSON_DEPTH_MAX, moment::InWords, random::random_u128};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use taskyard_machine::{
    Backoff, Body, Enqueue, NewTask, OnConflict, RetryPolicy, TaskId, TaskView, Timestamp, Unique,
    UniqueUntil, When, limits,
};

/// The header with a job's id, and the header with all its fields except queue, type and arguments.
const JID: &str = "faktory-jid";
const KEPT: &str = "faktory-job";
/// As in Faktory, in seconds: the default reservation, the shortest, and the longest.
pub(super) const RESERVE_FOR_DEFAULT: u64 = 1_800;
const RESERVE_FOR_MIN: u64 = 60;
const RESERVE_FOR_MAX: u64 = 86_400;
/// The retries of a job that does not name them.
const RETRY_DEFAULT: i64 = 25;
const JID_BYTES_MIN: usize = 8;

/// A job as it was pushed.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) jid: Cow<'a, str>,
    queue: Cow<'a, str>,
    jobtype: Cow<'a, str>,
    args: &'a RawValue,
    at: Option<Timestamp>,
    reserve_for: u64,
    retry: i64,
    priority: Option<u8>,
    custom: Custom,
    /// All fields that are not part of the task itself, as the members of a JSON object.
    kept: String,
}

/// The options in `custom` that the broker acts on.
#[derive(Debug, Default, PartialEq)]
struct Custom {
    bid: Option<String>,
    unique_for_ms: Option<u64>,
    until_start: bool,
    expires_at: Option<Timestamp>,
}

impl<'a> Job<'a> {
    /// Reads a job, or says what is wrong with it, in Faktory's words where it has some.
    pub(super) fn parse(json: &'a str, now: Timestamp) -> Result<Job<'a>, String> {
        let fields: Fields<'a> =
            serde_json::from_str(json).map_err(|error| format!("invalid JSON: {error}"))?;
        Job::with_jid(&fields, fields.text("jid")?.unwrap_or_default(), now)
    }

    /// Reads a job that this server will push. A job without an id gets one.
    pub(super) fn parse_callback(json: &'a str, now: Timestamp) -> Result<Job<'a>, String> {
        let fields: Fields<'a> =
            serde_json::from_str(json).map_err(|error| format!("invalid JSON: {error}"))?;
        let given = fields.text("jid")?;
        let jid = given.unwrap_or_else(|| format!("{:024x}", random_u128() >> 32).into());
        Job::with_jid(&fields, jid, now)
    }

    fn with_jid(fields: &Fields<'a>, jid: Cow<'a, str>, now: Timestamp) -> Result<Job<'a>, String> {
        if jid.len() < JID_BYTES_MIN {
            return Err("jobs must have a reasonable jid parameter".into());
        }
        let jobtype = fields.text("jobtype")?.unwrap_or_default();
        if jobtype.is_empty() {
            return Err("jobs must have a jobtype parameter".into());
        }
        let args = fields.get("args").ok_or("jobs must have an args parameter")?;
        if !args.get().starts_with('[') {
            return Err("invalid JSON: args is not an array".into());
        }
        serde_json::from_str::<Plain<'_>>(args.get())
            .map_err(|error| format!("invalid JSON: args: {error}"))?;
        // The strictest parsers could not read the whole job, though this broker does not read
        // these fields.
        let mut others = fields.iter().filter(|(_, value)| levels(value.get()) > JSON_DEPTH_MAX);
        if let Some((name, _)) = others.next() {
            let text = format!("invalid JSON: {name}: nested deeper than {JSON_DEPTH_MAX} levels");
            return Err(text);
        }
        let at = fields.text("at")?.filter(|at| !at.is_empty());
        let at = at.map(|at| moment("at", &at)).transpose()?;
        let reserve_for = match fields.number("reserve_for")?.unwrap_or(0) {
            given if given > RESERVE_FOR_MAX as i64 => {
                return Err("jobs cannot be reserved for more than one day".into());
            }
            given if given <= 0 => RESERVE_FOR_DEFAULT,
            given => (given as u64).max(RESERVE_FOR_MIN),
        };
        let retry = fields.number("retry")?.unwrap_or(RETRY_DEFAULT);
        let priority = fields.number("priority")?.and_then(|given| u8::try_from(given).ok());
        let queue = fields.text("queue")?.filter(|queue| !queue.is_empty());
        let queue = queue.unwrap_or(Cow::Borrowed("default"));
        let custom = match fields.get("custom") {
            Some(custom) => Custom::parse(custom)?,
            None => Custom::default(),
        };
        let kept = kept(fields, reserve_for, retry, now);
        let priority = priority.filter(|given| *given <= limits::PRIORITY_MAX);
        Ok(Job { jid, queue, jobtype, args, at, reserve_for, retry, priority, custom, kept })
    }

    /// The batch of the job.
    pub(super) fn bid(&self) -> Option<&str> {
        self.custom.bid.as_deref()
    }

    /// The approximate length of the job in a log entry.
    pub(super) fn bytes(&self) -> usize {
        self.args.get().len() + self.kept.len()
    }

    /// The job as a task that follows from a batch. It has no request id and no unique key, because
    /// the batch itself makes sure that there is only one.
    pub(super) fn follow_up(&self, now: Timestamp) -> Enqueue<'_> {
        let Enqueue { queue, task } = self.enqueue(now);
        Enqueue { queue, task: NewTask { request_id: None, unique: None, ..task } }
    }

    /// The job as a task.
    pub(super) fn enqueue(&self, now: Timestamp) -> Enqueue<'_> {
        let headers = vec![(JID, &*self.jid), (KEPT, self.kept.as_str())];
        let body = Body { content_type: "", headers, payload: self.args.get().as_bytes() };
        let attempts = self.retry.max(0).saturating_add(1);
        let max_attempts = u32::try_from(attempts).unwrap_or(u32::MAX).min(limits::ATTEMPTS_MAX);
        let retry =
            RetryPolicy { backoff: Backoff::Polynomial, max_attempts, jitter_thousandths: 0 };
        let lease_ms = self.reserve_for * 1_000;
        let task = NewTask {
            task_type: &self.jobtype,
            body,
            priority: self.priority,
            run_at: self.at.filter(|at| *at > now).map_or(When::Now, When::At),
            expires_at: self.custom.expires_at,
            request_id: Some(&self.jid),
            retry: Some(retry),
            unique: self.unique(now),
            lease_ms: Some(lease_ms),
            // Faktory forgets a failed job without retries; with -1 it keeps the job.
            discard_dead: self.retry == 0,
            ..NewTask::default()
        };
        Enqueue { queue: &self.queue, task }
    }

    /// The unique key, which the job has while it waits for its time and for its window from then
    /// on.
    fn unique(&self, now: Timestamp) -> Option<Box<Unique<'static>>> {
        let unique_for_ms = self.custom.unique_for_ms?;
        let delay_ms = self.at.map_or(0, |at| at.ms_since(now));
        let window_ms = unique_for_ms.saturating_add(delay_ms).clamp(1, limits::UNIQUE_MS_MAX);
        let mut hash = Sha256::new();
        hash.update(self.jobtype.as_bytes());
        hash.update([0]);
        hash.update(without_spaces(self.args.get().as_bytes()));
        let key = BASE64_STANDARD.encode(hash.finalize());
        let until = if self.custom.until_start { UniqueUntil::Start } else { UniqueUntil::Done };
        Some(Box::new(Unique {
            key: Cow::Owned(format!("faktory:{key}")),
            until: Some(until),
            window_ms: Some(window_ms),
            on_conflict: OnConflict::Reject,
            debounce_ms: None,
        }))
    }
}

impl Custom {
    fn parse(custom: &RawValue) -> Result<Custom, String> {
        let fields: Fields<'_> = serde_json::from_str(custom.get())
            .map_err(|_| "invalid JSON: custom is not an object".to_owned())?;
        let seconds = match fields.get("unique_for") {
            Some(raw) => {
                let given = raw.get().trim_matches('"');
                let seconds = given.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
                Some(seconds.ok_or_else(|| format!("unique_for {given} is no number of seconds"))?)
            }
            None => None,
        };
        let unique_for_ms = seconds.filter(|seconds| *seconds > 0.0);
        let expires_at = fields.text("expires_at")?.filter(|at| !at.is_empty());
        Ok(Custom {
            bid: fields.text("bid")?.filter(|bid| !bid.is_empty()).map(Cow::into_owned),
            unique_for_ms: unique_for_ms.map(|seconds| (seconds * 1_000.0) as u64),
            until_start: fields.text("unique_until")?.as_deref() == Some("start"),
            expires_at: expires_at.map(|at| moment("expires_at", &at)).transpose()?,
        })
    }
}

/// The members of the job that a task has no field for. Members that a Faktory server sets itself
/// are left out. Members that every client needs are added.
fn kept(fields: &Fields<'_>, reserve_for: u64, retry: i64, now: Timestamp) -> String {
    const ELSEWHERE: [&str; 8] =
        ["jid", "queue", "jobtype", "args", "reserve_for", "retry", "enqueued_at", "failure"];
    let mut kept = format!(r#""reserve_for":{reserve_for},"retry":{retry}"#);
    let own = |(name, value): &(&str, &RawValue)| {
        !ELSEWHERE.contains(name) && (*name != "created_at" || value.get() != "null")
    };
    for (name, value) in fields.iter().filter(own) {
        kept.push(',');
        kept.push_str(&text(name));
        kept.push(':');
        kept.push_str(value.get());
    }
    if fields.get("created_at").is_none() {
        kept.push_str(&format!(r#","created_at":"{}""#, InWords(now)));
    }
    kept
}

/// A moment in Faktory's notation.
pub(super) fn moment(field: &str, written: &str) -> Result<Timestamp, String> {
    let shown: String = written.chars().take(64).collect();
    let parsed: jiff::Timestamp = written
        .parse()
        .map_err(|error| format!("invalid timestamp for '{field}': {shown:?}: {error}"))?;
    // Every moment before 1970 has passed.
    Ok(Timestamp(u64::try_from(parsed.as_millisecond()).unwrap_or(0)))
}

/// JSON without white space between tokens, because clients differ there.
pub(super) fn without_spaces(json: &[u8]) -> Vec<u8> {
    let (mut in_text, mut escaped) = (false, false);
    let mut bytes = Vec::with_capacity(json.len());
    for &byte in json {
        match (in_text, byte) {
            (false, b' ' | b'\t' | b'\r' | b'\n') => continue,
            (false, b'"') => in_text = true,
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (true, b'"') => in_text = false,
            _ => {}
        }
        bytes.push(byte);
    }
    bytes
}

/// A job's last failure, for the next attempt.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Failure {
    pub(super) retry_count: u32,
    pub(super) remaining: u32,
    pub(super) failed_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_at: Option<String>,
    pub(super) message: String,
    pub(super) errtype: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) backtrace: Vec<String>,
}

/// A task as a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsJob<'a> {
    pub(super) id: TaskId,
    pub(super) queue: &'a str,
    pub(super) jobtype: &'a str,
    pub(super) enqueued_at: Timestamp,
    pub(super) body: &'a Body<'a>,
    pub(super) failure: Option<&'a Failure>,
}

impl<'a> AsJob<'a> {
    /// A task that was read.
    pub(super) fn new(view: &'a TaskView, body: &'a Body<'a>) -> AsJob<'a> {
        AsJob {
            id: view.id,
            queue: view.queue.as_str(),
            jobtype: &view.task_type,
            enqueued_at: view.enqueued_at,
            body,
            failure: None,
        }
    }

    /// The job id that the job was pushed with, or the task's own id.
    pub(super) fn jid(&self) -> Cow<'a, str> {
        match jid_of(self.body) {
            Some(jid) => Cow::Borrowed(jid),
            None => Cow::Owned(self.id.to_string()),
        }
    }

    /// Whether the client asked to track its progress.
    pub(super) fn is_tracked(&self) -> bool {
        let Some(kept) = header(self.body, KEPT) else { return true };
        let whole = format!("{{{kept}}}");
        let Ok(fields) = serde_json::from_str::<Fields<'_>>(&whole) else { return false };
        let Some(custom) = fields.get("custom") else { return false };
        let custom = serde_json::from_str::<Fields<'_>>(custom.get());
        custom.is_ok_and(|custom| custom.get("track").is_some())
    }

    /// The whole job.
    pub(super) fn json(&self) -> Vec<u8> {
        let mut out = String::with_capacity(self.body.payload.len() + 512);
        let enqueued_at = InWords(self.enqueued_at);
        out.push_str(r#"{"jid":"#);
        out.push_str(&text(&self.jid()));
        out.push_str(r#","queue":"#);
        out.push_str(&text(self.queue));
        out.push_str(r#","jobtype":"#);
        out.push_str(&text(self.jobtype));
        out.push_str(r#","args":"#);
        let kept = header(self.body, KEPT);
        match kept {
            Some(_) => out.push_str(&String::from_utf8_lossy(self.body.payload)),
            None => out.push_str(&self.native_args()),
        }
        match kept {
            Some(kept) => {
                out.push(',');
                out.push_str(kept);
            }
            None => out.push_str(&self.native_fields()),
        }
        if kept.is_none() {
            out.push_str(&format!(r#","created_at":"{enqueued_at}""#));
        }
        out.push_str(&format!(r#","enqueued_at":"{enqueued_at}""#));
        if let Some(failure) = self.failure {
            out.push_str(r#","failure":"#);
            let failure = serde_json::to_string(failure).expect("texts and numbers are JSON");
            out.push_str(&failure);
        }
        out.push('}');
        out.into_bytes()
    }

    fn is_json(&self) -> bool {
        matches!(self.body.content_type, "" | "application/json")
            && serde_json::from_slice::<&RawValue>(self.body.payload).is_ok()
    }

    /// A list is the arguments; any other payload is the only argument.
    fn native_args(&self) -> String {
        let payload = self.body.payload;
        if !self.is_json() {
            return format!("[{}]", text(&BASE64_STANDARD.encode(payload)));
        }
        let payload = String::from_utf8_lossy(payload);
        match payload.trim_ascii_start().starts_with('[') {
            true => payload.into_owned(),
            false => format!("[{payload}]"),
        }
    }

    fn native_fields(&self) -> String {
        let mut custom: Vec<String> = Vec::new();
        for (name, value) in &self.body.headers {
            custom.push(format!("{}:{}", text(name), text(value)));
        }
        if !self.is_json() {
            custom.push(format!(r#""content_type":{}"#, text(self.body.content_type)));
            custom.push(r#""encoding":"base64""#.to_owned());
        }
        let custom = match custom.is_empty() {
            true => String::new(),
            false => format!(r#","custom":{{{}}}"#, custom.join(",")),
        };
        format!(r#","reserve_for":{RESERVE_FOR_DEFAULT},"retry":{RETRY_DEFAULT}{custom}"#)
    }
}

/// The job id that a task was pushed with.
pub(super) fn jid_of<'a>(body: &Body<'a>) -> Option<&'a str> {
    header(body, JID)
}

fn header<'a>(body: &Body<'a>, name: &str) -> Option<&'a str> {
    body.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
