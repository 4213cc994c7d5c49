//! BATCH: jobs that are counted together, a job that follows once all have run, and one that
//! follows once all have succeeded. A batch is a tally, and the batch id contains the tally's id.

use super::{
    Shared,
    fields::Fields,
    frame::{Reply, split},
    job::Job,
};
use crate::{Error, broker::OpenTallyAsked};
use serde::Serialize;
use taskyard_machine::{CallbackState, Rejection, TallyView, TaskId, Timestamp};

/// The start of every batch id.
const BID: &str = "b-";

/// The reply to BATCH STATUS.
#[derive(Serialize)]
struct Status {
    bid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_bid: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    created_at: String,
    total: u64,
    pending: u64,
    failed: u64,
    complete_st: &'static str,
    success_st: &'static str,
}

impl Shared {
    pub(super) async fn batch(&self, rest: &str) -> Result<Reply, Error> {
        let (verb, rest) = split(rest);
        let bid = rest.trim_matches('"');
        let done = match verb {
            "NEW" => return Ok(self.open_batch(rest).await.unwrap_or_else(Reply::error)),
            "OPEN" => match tally_of(bid) {
                Ok(tally) => self.broker.reopen_tally(tally).await.map(|()| bulk(bid)),
                Err(error) => Err(error),
            },
            "COMMIT" => match tally_of(bid) {
                Ok(tally) => self.broker.commit_tally(tally).await.map(|()| Reply::Ok),
                Err(error) => Err(error),
            },
            "STATUS" => match tally_of(bid) {
                Ok(tally) => {
                    self.broker.tally(tally).await.map(|tally| Reply::json(&status(tally)))
                }
                Err(error) => Err(error),
            },
            other => {
                let shown: String = other.chars().take(64).collect();
                return Ok(Reply::error(format!("no such BATCH subcommand: {shown}")));
            }
        };
        done.map_err(|error| name_batch(error, bid))
    }

    /// Opens a batch, or says what is wrong with it.
    async fn open_batch(&self, json: &str) -> Result<Reply, String> {
        let fields: Fields<'_> =
            serde_json::from_str(json).map_err(|error| format!("invalid JSON: {error}"))?;
        let now = self.broker.now();
        let parent_bid = fields.text("parent_bid")?.filter(|bid| !bid.is_empty());
        let parent = parent_bid.as_deref().map(tally_of).transpose();
        let parent = parent.map_err(|error| error.to_string())?;
        let description = fields.text("description")?.unwrap_or_default();
        let complete = callback(&fields, "complete", now)?;
        let success = callback(&fields, "success", now)?;
        let asked = OpenTallyAsked {
            description: &description,
            parent,
            complete: complete.as_ref().map(|job| job.follow_up(now)),
            success: success.as_ref().map(|job| job.follow_up(now)),
        };
        match self.broker.open_tally(asked).await {
            Ok(tally) => Ok(bulk(&bid_of(tally))),
            Err(error) => {
                let named = name_batch(error, parent_bid.as_deref().unwrap_or_default());
                Err(named.to_string())
            }
        }
    }
}

/// The callback job of that name, if the batch has one.
pub(super) fn callback<'a>(
    fields: &Fields<'a>,
    name: &str,
    now: Timestamp,
) -> Result<Option<Job<'a>>, String> {
    let Some(json) = fields.get(name) else { return Ok(None) };
    let job = Job::parse_callback(json.get(), now);
    job.map(Some).map_err(|error| format!("{name} callback: {error}"))
}

fn status(tally: TallyView) -> Status {
    Status {
        bid: bid_of(tally.tally),
        parent_bid: tally.parent.map(bid_of),
        description: tally.description,
        created_at: end_of_ms(tally.created_at),
        total: tally.total,
        pending: tally.pending,
        failed: tally.failed,
        complete_st: word(tally.complete),
        success_st: word(tally.success),
    }
}

fn word(state: CallbackState) -> &'static str {
    match state {
        CallbackState::Waiting => "",
        CallbackState::Enqueued => "1",
        CallbackState::Succeeded => "2",
    }
}

/// The last nanosecond of a millisecond. Shards count milliseconds and clients nanoseconds, so a
/// batch must not appear to begin before the command that made it.
fn end_of_ms(at: Timestamp) -> String {
    let ms = i64::try_from(at.0).ok();
    let begin = ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let last = jiff::SignedDuration::from_nanos(999_999);
    let end = begin.and_then(|begin| begin.checked_add(last).ok());
    end.unwrap_or(jiff::Timestamp::MAX).to_string()
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

fn bid_of(tally: TaskId) -> String {
    format!("{BID}{tally}")
}

/// The tally of a batch.
pub(super) fn tally_of(bid: &str) -> Result<TaskId, Error> {
    let tally = bid.strip_prefix(BID).and_then(|tally| tally.parse().ok());
    tally.ok_or_else(|| no_such(bid))
}

/// Turns an error about a tally into one about its batch.
pub(super) fn name_batch(error: Error, bid: &str) -> Error {
    match error {
        Error::Rejected(Rejection::TallyNotFound { .. }) => no_such(bid),
        other => other,
    }
}

fn no_such(bid: &str) -> Error {
    let shown: String = bid.chars().take(64).collect();
    // With a capital, because a client looks for this text.
    Error::Invalid(format!("No such batch {shown}"))
}
