//! PUSH and PUSHB: clients add one job, or many, of which each gets its own answer.

use super::{
    Shared,
    batch::{name_batch, tally_of},
    caller::Caller,
    fields::Fields,
    frame::Reply,
    job::Job,
};
use crate::{Error, limits::FAKTORY_BULK_JOBS_MAX};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, fmt};
use taskyard_machine::{Enqueue, Timestamp, limits};

/// The number of jobs of a bulk push that are read and pushed together.
const PUSHED_TOGETHER: usize = 2_000;

/// The jobs of a bulk push, verbatim.
struct Items<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Items<'a>, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Vec<&'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut jobs: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = jobs.next_element()? {
                    if items.len() == FAKTORY_BULK_JOBS_MAX {
                        let text =
                            format!("more than {FAKTORY_BULK_JOBS_MAX} jobs; push them in parts");
                        return Err(A::Error::custom(text));
                    }
                    items.push(item);
                }
                Ok(items)
            }
        }
        deserializer.deserialize_seq(List).map(Items)
    }
}

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

    /// Replies with the refused jobs, by job id; all others are enqueued.
    pub(super) async fn push_bulk(&self, json: &str) -> Reply {
        let items = match serde_json::from_str::<Items<'_>>(json) {
            Ok(Items(items)) => items,
            Err(error) => return Reply::error(format!("invalid JSON: {error}")),
        };
        let mut refused: BTreeMap<String, String> = BTreeMap::new();
        for some in items.chunks(PUSHED_TOGETHER) {
            self.shared.push_some(some, &mut refused).await;
        }
        Reply::json(&refused)
    }
}

impl Shared {
    /// Pushes jobs together. Adds the refused ones to `refused`, with the reason.
    async fn push_some(&self, items: &[&RawValue], refused: &mut BTreeMap<String, String>) {
        let now = self.broker.now();
        let (mut alone, mut batches) = (Vec::new(), BTreeMap::<String, Vec<Job<'_>>>::new());
        for item in items {
            match Job::parse(item.get(), now) {
                Ok(job) => match job.bid() {
                    None => alone.push(job),
                    Some(bid) => batches.entry(bid.to_owned()).or_default().push(job),
                },
                Err(text) => drop(refused.insert(jid_in(item), text)),
            }
        }
        if !alone.is_empty() {
            let tasks = alone.iter().map(|job| Ok(job.enqueue(now))).collect();
            let answers = self.broker.enqueue_many(tasks, None).await;
            let errors = alone.iter().zip(answers).filter_map(|(job, answer)| {
                answer.err().map(|error| (job.jid.clone().into_owned(), words(&error)))
            });
            refused.extend(errors);
        }
        for (bid, jobs) in batches {
            self.push_into_batch(&bid, jobs, now, refused).await;
        }
    }

    /// A batch takes all of these jobs or none. So a refused job is removed, and the rest is sent
    /// again.
    async fn push_into_batch(
        &self,
        bid: &str,
        mut jobs: Vec<Job<'_>>,
        now: Timestamp,
        refused: &mut BTreeMap<String, String>,
    ) {
        while !jobs.is_empty() {
            let mut bytes = 0;
            let fits = jobs.iter().take(limits::TALLY_ADD_TASKS_MAX).take_while(|job| {
                let is_first = bytes == 0;
                bytes += job.bytes();
                is_first || bytes <= limits::ENTRY_BYTES_MAX
            });
            let count = fits.count();
            let tasks = jobs[..count].iter().map(|job| job.enqueue(now)).collect();
            let Err(error) = self.add_to_batch(bid, tasks).await else {
                jobs.drain(..count);
                continue;
            };
            let (wrong, error) = match error.element() {
                Some((index, error)) if index < count => (index..index + 1, error),
                _ => (0..count, error),
            };
            let told = words(&error);
            let wrong = jobs.drain(wrong).map(|job| (job.jid.into_owned(), told.clone()));
            refused.extend(wrong);
        }
    }

    async fn add_to_batch(&self, bid: &str, tasks: Vec<Enqueue<'_>>) -> Result<(), Error> {
        let added = self.broker.add_to_tally(tally_of(bid)?, tasks).await;
        added.map(drop).map_err(|error| name_batch(error, bid))
    }
}

/// The id of a job that can't be parsed.
fn jid_in(item: &RawValue) -> String {
    let fields = serde_json::from_str::<Fields<'_>>(item.get()).unwrap_or_default();
    fields.text("jid").ok().flatten().unwrap_or_default().into_owned()
}

/// The reply to a refused job.
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
