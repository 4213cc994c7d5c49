//! PUSH and PUSHB: jobs come in, one, or many that are answered one by one.

use super::{
    Shared,
    batch::{name_batch, tally_of},
    caller::Caller,
    fields::Fields,
    frame::Reply,
    job::Job,
};
use crate::Error;
use std::collections::BTreeMap;
use taskyard_machine::{Enqueue, Timestamp, limits};

impl Caller {
    pub(super) async fn push(&self, json: &str) -> Reply {
        let broker = &self.shared.broker;
        let now = broker.now();
        let job = match Job::parse(json, now) {
            Ok(job) => job,
            Err(text) => return Reply::error(text),
        };
        let pushed = match job.bid() {
            None => broker.enqueue(job.enqueue(now)).await.map(drop),
            Some(bid) => self.shared.add_to_batch(bid, vec![job.enqueue(now)]).await,
        };
        match pushed {
            Ok(()) => Reply::Ok,
            Err(error) => refusal(&error),
        }
    }

    /// Answers with what was refused, by job id; the others are in.
    pub(super) async fn push_bulk(&self, json: &str) -> Reply {
        let items: Vec<Fields<'_>> = match serde_json::from_str(json) {
            Ok(items) => items,
            Err(error) => return Reply::error(format!("invalid JSON: {error}")),
        };
        let now = self.shared.broker.now();
        let mut refused: BTreeMap<String, String> = BTreeMap::new();
        let mut jobs = Vec::with_capacity(items.len());
        for fields in &items {
            match Job::from_fields(fields, now) {
                Ok(job) => jobs.push(job),
                Err(text) => {
                    let jid = fields.text("jid").ok().flatten().unwrap_or_default();
                    refused.insert(jid.into_owned(), text);
                }
            }
        }
        for some in jobs.chunks(limits::BATCH_TASKS_MAX) {
            for (job, error) in self.shared.push_some(some, now).await {
                refused.insert(job, error);
            }
        }
        Reply::json(&refused)
    }
}

impl Shared {
    /// Pushes jobs together; those that were refused, and why.
    async fn push_some(&self, jobs: &[Job<'_>], now: Timestamp) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        let told = |job: &Job<'_>, error: &Error| (job.jid.clone().into_owned(), words(error));
        let alone: Vec<&Job<'_>> = jobs.iter().filter(|job| job.bid().is_none()).collect();
        if !alone.is_empty() {
            let items = alone.iter().map(|job| Ok(job.enqueue(now))).collect();
            let answers = self.broker.enqueue_many(items, None).await;
            for (job, answer) in alone.iter().zip(answers) {
                if let Err(error) = answer {
                    refused.push(told(job, &error));
                }
            }
        }
        let mut batches: BTreeMap<&str, Vec<&Job<'_>>> = BTreeMap::new();
        for job in jobs {
            if let Some(bid) = job.bid() {
                batches.entry(bid).or_default().push(job);
            }
        }
        for (bid, jobs) in batches {
            for some in jobs.chunks(limits::TALLY_ADD_TASKS_MAX) {
                let tasks = some.iter().map(|job| job.enqueue(now)).collect();
                if let Err(error) = self.add_to_batch(bid, tasks).await {
                    refused.extend(some.iter().map(|job| told(job, &error)));
                }
            }
        }
        refused
    }

    async fn add_to_batch(&self, bid: &str, tasks: Vec<Enqueue<'_>>) -> Result<(), Error> {
        let added = self.broker.add_to_tally(tally_of(bid)?, tasks).await;
        added.map(drop).map_err(|error| name_batch(error, bid))
    }
}

/// How a refused job is answered.
pub(super) fn refusal(error: &Error) -> Reply {
    match error.code() {
        "not_unique" => Reply::Error { code: "NOTUNIQUE", text: "Job not unique".into() },
        _ => Reply::error(error.to_string()),
    }
}

fn words(error: &Error) -> String {
    match error.code() {
        "not_unique" => "Job not unique".to_owned(),
        _ => error.to_string(),
    }
}
