//! ACK, FAIL and BEAT: what a worker says about its jobs and about itself.

use super::{
    caller::{Caller, ClaimEnd},
    frame::Reply,
};
use crate::sessions::Activity;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use std::{borrow::Cow, fmt};
use taskyard_machine::TaskError;

/// As in Faktory: the parts of an error that are kept.
const ERRTYPE_CHARS_MAX: usize = 100;
const MESSAGE_CHARS_MAX: usize = 1_000;
const BACKTRACE_LINES_MAX: usize = 50;

#[derive(Debug, Deserialize)]
pub(super) struct Acked<'a> {
    #[serde(borrow)]
    jid: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Failed<'a> {
    #[serde(borrow)]
    jid: Cow<'a, str>,
    #[serde(borrow, default)]
    errtype: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
    #[serde(default)]
    backtrace: Option<Backtrace>,
}

/// The first lines of a backtrace; the others are not kept.
#[derive(Debug, Default)]
pub(super) struct Backtrace(Vec<String>);

impl<'de> Deserialize<'de> for Backtrace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Backtrace, D::Error> {
        struct Lines;
        impl<'de> Visitor<'de> for Lines {
            type Value = Vec<String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of lines")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut lines: A) -> Result<Vec<String>, A::Error> {
                let mut first = Vec::new();
                while first.len() < BACKTRACE_LINES_MAX {
                    let Some(line) = lines.next_element()? else { return Ok(first) };
                    first.push(line);
                }
                while lines.next_element::<IgnoredAny>()?.is_some() {}
                Ok(first)
            }
        }
        deserializer.deserialize_seq(Lines).map(Backtrace)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Beaten<'a> {
    #[serde(borrow)]
    wid: Cow<'a, str>,
    #[serde(borrow, default)]
    current_state: Option<Cow<'a, str>>,
    #[serde(default)]
    rss_kb: Option<i64>,
}

impl Caller {
    /// A job of which the worker has lost the claim is no error: another worker has it, or has
    /// finished it.
    pub(super) async fn ack(&self, json: &str) -> Reply {
        let jid = match serde_json::from_str::<Acked<'_>>(json) {
            Ok(acked) => acked.jid,
            Err(error) => return Reply::error(format!("invalid ACK {error}")),
        };
        match self.end_claim(&jid, ClaimEnd::Ack).await {
            Ok(_) => Reply::Ok,
            Err(error) => Reply::error(error.to_string()),
        }
    }

    pub(super) async fn fail(&self, json: &str) -> Reply {
        let failed: Failed<'_> = match serde_json::from_str(json) {
            Ok(failed) => failed,
            Err(error) => return Reply::error(format!("invalid FAIL {error}")),
        };
        let jid = &*failed.jid;
        let Backtrace(backtrace) = failed.backtrace.unwrap_or_default();
        let backtrace = backtrace.join("\n");
        let error = TaskError {
            error_type: first(failed.errtype.as_deref(), ERRTYPE_CHARS_MAX),
            message: first(failed.message.as_deref(), MESSAGE_CHARS_MAX),
            backtrace: &backtrace,
        };
        match self.end_claim(jid, ClaimEnd::Fail(error)).await {
            Ok(true) => Reply::Ok,
            Ok(false) => Reply::error(format!("Job not found {jid}")),
            Err(error) => Reply::error(error.to_string()),
        }
    }

    pub(super) fn beat(&self, json: &str) -> Reply {
        let beaten: Beaten<'_> = match serde_json::from_str(json) {
            Ok(beaten) => beaten,
            Err(error) => return Reply::error(format!("invalid BEAT {error}")),
        };
        let own = self.wid.as_deref() == Some(&*beaten.wid);
        let Some(asking) = self.asking.as_ref().filter(|_| own) else {
            return Reply::error(format!("unknown worker {}", beaten.wid));
        };
        let activity = match beaten.current_state.as_deref() {
            Some("quiet") => Some(Activity::Quiet),
            Some("terminate") => Some(Activity::Stopping),
            // Any other state counts as running.
            _ => None,
        };
        let rss_kb = beaten.rss_kb.and_then(|kb| u64::try_from(kb).ok());
        match asking.beat(activity, rss_kb.map(|kb| kb.saturating_mul(1_024))) {
            Activity::Running => Reply::Ok,
            Activity::Quiet => Reply::Bulk(br#"{"state":"quiet"}"#.to_vec()),
            Activity::Stopping => Reply::Bulk(br#"{"state":"terminate"}"#.to_vec()),
        }
    }
}

/// The first characters of a text; "unknown" if it is empty.
fn first(text: Option<&str>, chars_max: usize) -> &str {
    let text = text.filter(|text| !text.is_empty()).unwrap_or("unknown");
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| &text[..end])
}
