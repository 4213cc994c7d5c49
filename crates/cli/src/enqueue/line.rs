//! One line of a file of tasks: the object of an HTTP enqueue, and its `queue`.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::value::RawValue;
use taskyard::{NewTask, RetryPolicy, Timestamp, Unique};
use taskyard_server::front::check_json;

use super::with_defaults;
use crate::{args::EnqueueArgs, values};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    r#type: Option<String>,
    queue: Option<String>,
    /// Unparsed, so that a number keeps all its digits.
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    priority: Option<u8>,
    delay_ms: Option<u64>,
    run_at: Option<String>,
    expires_at: Option<String>,
    request_id: Option<String>,
    retry: Option<RetryPolicy>,
    timeout_ms: Option<u64>,
    retention_ms: Option<u64>,
    tags: Option<Vec<String>>,
    unique: Option<Unique>,
    fairness_key: Option<String>,
}

/// A task and its queue.
pub(super) struct Parsed {
    pub(super) task: NewTask,
    pub(super) queue: String,
}

/// Parses one line; `args` are the defaults for absent fields.
pub(super) fn parse(line: &str, args: &EnqueueArgs) -> Result<Parsed> {
    let line: Line<'_> = serde_json::from_str(line).context("not a task")?;
    let kind = line.r#type.clone().or_else(|| args.kind.clone());
    let kind = kind.context("it has no type: give it one, or name one for all lines")?;
    let queue = line.queue.clone().or_else(|| args.task.queue.clone());
    let queue = queue.unwrap_or_else(|| "default".to_owned());
    let task = with_defaults(NewTask::raw(kind, line.payload()?), args)?;
    Ok(Parsed { task: with_line(task, line)?, queue })
}

/// Parses a task without defaults, such as a node of a flow.
pub(crate) fn parse_task(json: &str) -> Result<NewTask> {
    let line: Line<'_> = serde_json::from_str(json)?;
    let kind = line.r#type.clone().context("it has no type: name the function that runs it")?;
    with_line(NewTask::raw(kind, line.payload()?), line)
}

impl Line<'_> {
    fn payload(&self) -> Result<Vec<u8>> {
        match (self.payload, &self.payload_base64) {
            (Some(_), Some(_)) => anyhow::bail!("it has both payload and payload_base64: keep one"),
            (None, Some(text)) => values::base64(text).map_err(anyhow::Error::msg),
            (json, None) => {
                let json = json.map_or("null", RawValue::get).as_bytes();
                check_json(json).map_err(|problem| anyhow::anyhow!("payload: {problem}"))?;
                Ok(json.to_vec())
            }
        }
    }
}

/// Adds the fields of the line.
fn with_line(mut task: NewTask, line: Line<'_>) -> Result<NewTask> {
    let named = line.r#type.as_deref() != Some("");
    anyhow::ensure!(named, "its type is empty: name the function that runs it");
    let queued = line.queue.as_deref() != Some("");
    anyhow::ensure!(queued, "its queue is empty: name one, or leave the field out");
    if let Some(priority) = line.priority.filter(|priority| *priority > 9) {
        anyhow::bail!("priority {priority} is not 0 to 9");
    }
    if let Some(content_type) = &line.content_type {
        task = task.content_type(content_type);
    }
    if let Some(queue) = &line.queue {
        task = task.queue(queue);
    }
    if let Some(priority) = line.priority {
        task = task.priority(priority);
    }
    match (line.delay_ms, &line.run_at) {
        (Some(_), Some(_)) => anyhow::bail!("it has both delay_ms and run_at: keep one"),
        (Some(delay), None) => task = task.delay(Duration::from_millis(delay)),
        (None, Some(moment)) => task = task.at(parse_moment("run_at", moment)?),
        (None, None) => {}
    }
    if let Some(moment) = &line.expires_at {
        task = task.expires_at(parse_moment("expires_at", moment)?);
    }
    if let Some(request_id) = line.request_id {
        task = task.request_id(request_id);
    }
    if let Some(policy) = line.retry {
        task = task.retry(policy);
    }
    if let Some(timeout) = line.timeout_ms {
        task = task.timeout(Duration::from_millis(timeout));
    }
    if let Some(retention) = line.retention_ms {
        task = task.retention(Duration::from_millis(retention));
    }
    if let Some(unique) = line.unique {
        task = task.unique(unique);
    }
    if let Some(key) = line.fairness_key {
        task = task.fairness_key(key);
    }
    for tag in line.tags.into_iter().flatten() {
        task = task.tag(tag);
    }
    for (name, value) in line.headers.into_iter().flatten() {
        task = task.header(name, value);
    }
    Ok(task)
}

fn parse_moment(name: &str, text: &str) -> Result<Timestamp> {
    let moment = values::moment(text).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
    Ok(Timestamp::from_millis(moment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(line: &str) -> EnqueueArgs {
        let line = format!("taskyard enqueue --file x {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Enqueue(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_wins_over_the_options() {
        let options = args("mail --queue slow");
        let parsed = parse(r#"{"queue": "fast", "payload": {"n": 1.50}}"#, &options).unwrap();
        assert_eq!(parsed.queue, "fast");
        let shown = format!("{:?}", parsed.task);
        assert!(shown.contains("1.50"), "the payload is kept to the letter: {shown}");
        assert_eq!(parse("{}", &options).unwrap().queue, "slow");
    }

    #[test]
    fn a_payload_need_not_be_json() {
        let line = r#"{"payload_base64": "/2hp", "content_type": "text/plain"}"#;
        let shown = format!("{:?}", parse(line, &args("a")).unwrap().task);
        assert!(shown.contains(r"\xffhi") && shown.contains("text/plain"), "{shown}");
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (line, part) in [
            ("", "not a task"),
            ("[]", "not a task"),
            ("{", "not a task"),
            (r#"{"payload": 1}"#, "no type"),
            (r#"{"type": "a", "prioritty": 1}"#, "prioritty"),
            (r#"{"type": "a", "priority": 300}"#, "300"),
            (r#"{"type": "a", "priority": 12}"#, "priority 12"),
            (r#"{"type": ""}"#, "empty"),
            (r#"{"type": "a", "queue": ""}"#, "queue is empty"),
            (r#"{"type": "a", "payload": "\ud800"}"#, "surrogate"),
            (r#"{"type": "a", "payload": 1e999}"#, "out of range"),
            (r#"{"type": "a", "delay_ms": -1}"#, "-1"),
            (r#"{"type": "a", "delay_ms": 1, "run_at": "2031-05-01T09:30:00Z"}"#, "both"),
            (r#"{"type": "a", "run_at": "tomorrow"}"#, "run_at"),
            (r#"{"type": "a", "run_at": "9999-12-31T23:59:59Z"}"#, "ten years"),
            (r#"{"type": "a", "payload": 1, "payload_base64": "AA=="}"#, "both"),
            (r#"{"type": "a", "payload_base64": "?"}"#, "payload_base64"),
            (r#"{"type": "a", "retry": {"policy": "sometimes"}}"#, "sometimes"),
            (r#"{"type": "a", "unique": {"until": "later"}}"#, "later"),
        ] {
            let error = parse(line, &args("")).err().expect(line);
            assert!(format!("{error:#}").contains(part), "{line}: {error:#}");
        }
    }
}
