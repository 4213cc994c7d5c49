//! `taskyard enqueue`: enqueues one task from the command line, or many from a file.

mod bulk;
pub(crate) mod line;

use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde::Serialize;
use taskyard::{NewTask, OnConflict, TaskId, Timestamp, Unique};

use crate::{
    args::{ConflictName, EnqueueArgs, RetryArgs, TaskArgs, UniqueArgs, UntilName},
    payload, queue,
    remote::{Remote, usage},
    task,
};

pub(crate) async fn run(remote: &Remote, args: &EnqueueArgs) -> Result<()> {
    if let Some(file) = &args.file {
        return bulk::run(remote, args, file).await;
    }
    let enqueue = remote.client.enqueue_new(new_task(args)?);
    let enqueued = remote.patiently(enqueue).await;
    let enqueued = enqueued.map_err(|error| in_doubt(error, args.request_id.is_some()))?;
    if args.wait {
        let patience = args.wait_for.unwrap_or(Duration::MAX);
        remote.output.say(format_args!("enqueued {}", enqueued.id()));
        return task::result(remote, enqueued.id(), Some(patience)).await;
    }
    let answer = Answer { id: enqueued.id(), duplicate: enqueued.is_duplicate() };
    remote.output.value(&answer, |answer| answer.id.to_string())?;
    if answer.duplicate {
        remote.output.say(match args.unique.is_given() {
            true => "this unique key or request id is known: no task was added; this is its task",
            false => "this request id is known: no task was added; this is its task",
        });
    }
    Ok(())
}

/// Adds advice to the error of an enqueue with an unknown outcome.
fn in_doubt(error: taskyard::Error, has_request_id: bool) -> anyhow::Error {
    let advice = match has_request_id {
        true => "it may have been enqueued; send it again: its request id makes it one task",
        false => {
            "it may have been enqueued; look with taskyard task list before sending it again (had it \
             a --request-id, it could be sent again without adding a second task)"
        }
    };
    let in_doubt = error.is_outcome_unknown();
    let error = anyhow::Error::new(error);
    if in_doubt { error.context(advice) } else { error }
}

#[derive(Serialize)]
struct Answer<'a> {
    id: &'a TaskId,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
}

/// The task of the command line.
fn new_task(args: &EnqueueArgs) -> Result<NewTask> {
    let kind = args.kind.as_deref().unwrap_or_default();
    let task = with_defaults(typed_task(kind, args.payload.as_deref(), &args.task)?, args)?;
    Ok(match &args.request_id {
        Some(request_id) => task.request_id(request_id),
        None => task,
    })
}

/// The type and the payload of the command line.
pub(crate) fn typed_task(kind: &str, payload: Option<&str>, args: &TaskArgs) -> Result<NewTask> {
    if kind.is_empty() {
        return Err(usage("the type is empty: name the function that runs the task"));
    }
    let payload = payload.unwrap_or("null");
    Ok(if args.raw {
        NewTask::raw(kind, payload::read(payload)?).content_type(&args.content_type)
    } else {
        NewTask::raw(kind, payload::read_json(payload)?)
    })
}

/// Adds the options of one task, or of all tasks of a file.
fn with_defaults(task: NewTask, args: &EnqueueArgs) -> Result<NewTask> {
    let mut task = with_options(task, &args.task, &args.retry)?;
    if let Some(delay) = args.delay {
        task = task.delay(delay);
    }
    if let Some(at) = args.at {
        task = task.at(Timestamp::from_millis(at));
    }
    if let Some(at) = args.expires_at {
        task = task.expires_at(Timestamp::from_millis(at));
    }
    if let Some(span) = args.expires_in {
        let now = SystemTime::now();
        task = task.expires_at(now.checked_add(span).unwrap_or(now));
    }
    if let Some(unique) = unique(&args.unique)? {
        task = task.unique(unique);
    }
    Ok(task)
}

/// Adds the options that any task can have.
pub(crate) fn with_options(
    mut task: NewTask,
    args: &TaskArgs,
    retry: &RetryArgs,
) -> Result<NewTask> {
    if let Some(queue) = &args.queue {
        task = task.queue(queue);
    }
    if let Some(priority) = args.priority {
        task = task.priority(priority);
    }
    if let Some(timeout) = args.timeout {
        task = task.timeout(timeout);
    }
    if let Some(retention) = args.retention {
        task = task.retention(retention);
    }
    if let Some(policy) = queue::retry_policy(retry, None)? {
        task = task.retry(policy);
    }
    if let Some(key) = &args.fairness_key {
        task = task.fairness_key(key);
    }
    for tag in &args.tag {
        task = task.tag(tag);
    }
    for (name, value) in &args.header {
        task = task.header(name, value);
    }
    Ok(task)
}

/// The unique key of the command line.
fn unique(args: &UniqueArgs) -> Result<Option<Unique>> {
    let mut unique = match &args.unique_key {
        Some(key) => Unique::key(key),
        None if !args.unique_by.is_empty() => Unique::by(&args.unique_by),
        None if args.is_given() => {
            return Err(usage("name a key with --unique-key, or its fields with --unique-by"));
        }
        None => return Ok(None),
    };
    match args.unique_until {
        Some(UntilName::Start) => unique = unique.until_start(),
        Some(UntilName::Done) => unique = unique.until_done(),
        None => {}
    }
    if let Some(window) = args.unique_window {
        unique = unique.window(window);
    }
    if let Some(conflict) = args.on_conflict {
        unique = unique.on_conflict(match conflict {
            ConflictName::Existing => OnConflict::Existing,
            ConflictName::Replace => OnConflict::Replace,
            ConflictName::Reject => OnConflict::Reject,
        });
    }
    if let Some(quiet) = args.debounce {
        unique = unique.debounce(quiet);
    }
    Ok(Some(unique))
}

impl UniqueArgs {
    fn is_given(&self) -> bool {
        self.unique_key.is_some()
            || !self.unique_by.is_empty()
            || self.unique_until.is_some()
            || self.unique_window.is_some()
            || self.on_conflict.is_some()
            || self.debounce.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_outcome_says_what_to_do() {
        let unknown = || taskyard::Error::OutcomeUnknown { message: "cut".to_owned() };
        let advice = format!("{:#}", in_doubt(unknown(), false));
        for part in ["may have been enqueued", "look", "--request-id", "cut"] {
            assert!(advice.contains(part), "{advice}");
        }
        assert!(format!("{:#}", in_doubt(unknown(), true)).contains("send it again"));
        let refused = taskyard::Error::Invalid("no".to_owned());
        assert_eq!(format!("{:#}", in_doubt(refused, false)), "no");
    }
}
