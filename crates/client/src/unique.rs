//! Unique: a key that only one task of a queue has at a time.

use crate::{Timestamp, timestamp::millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use taskyard_proto::v1;

/// A key that one task of a queue has at a time.
///
/// By default the task has the key until it is done, however it ends. While a task has the key, an
/// enqueue with the same key answers with that task ([`Enqueued::is_duplicate`]), or does what
/// [`Unique::on_conflict`] sets.
///
/// ```
/// use std::time::Duration;
/// use taskyard::{OnConflict, Unique};
///
/// // One import per account at a time.
/// let import = Unique::key("account-7");
/// // One waiting task per user; while it runs, the next may be enqueued.
/// let waiting = Unique::by(["type", "payload.user.id"]).until_start();
/// // At most one mail a day, whatever becomes of it.
/// let daily = Unique::key("digest").window(Duration::from_secs(86_400));
/// // Once the edits have paused for 5 s, with the latest of them.
/// let quiet = Unique::key("page-3").debounce(Duration::from_secs(5));
/// let refused = Unique::key("invoice-9").on_conflict(OnConflict::Reject);
/// # let _ = (import, waiting, daily, quiet, refused);
/// ```
///
/// [`Enqueued::is_duplicate`]: crate::Enqueued::is_duplicate
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Unique {
    /// The key; alternatively `fields`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The fields of the task whose hash is the key; alternatively `key`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// The step of the task that frees the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UniqueUntil>,
    /// How long from the enqueue the key is taken, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    /// The answer to an enqueue while another task has the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,
    /// The task runs after this long without another enqueue of the key, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce_ms: Option<u64>,
}

/// The step of a task that frees its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UniqueUntil {
    /// The first attempt; a retry does not take the key again.
    Start,
    /// The end of the task, in any final state.
    Done,
}

/// The answer to an enqueue while another task has its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// The enqueue answers with the task that has the key, and nothing changes.
    Existing,
    /// Like `Existing`, and a task that still waits takes the new payload and headers; otherwise
    /// the enqueue is rejected.
    Replace,
    /// The enqueue is rejected with [`Error::NotUnique`](crate::Error::NotUnique).
    Reject,
}

impl Unique {
    /// Sets the key by name, in the task's queue.
    pub fn key(key: impl Into<String>) -> Unique {
        Unique { key: Some(key.into()), ..Unique::default() }
    }

    /// Sets the key to the hash of these fields of the task: `type`, `payload`, `payload.NAME` (and
    /// deeper: `payload.user.id`, `payload.items.0`), `headers.NAME`. A missing field counts as
    /// null.
    pub fn by(fields: impl IntoIterator<Item = impl Into<String>>) -> Unique {
        Unique { fields: fields.into_iter().map(Into::into).collect(), ..Unique::default() }
    }

    /// Frees the key once the task's first attempt starts.
    pub fn until_start(self) -> Unique {
        Unique { until: Some(UniqueUntil::Start), ..self }
    }

    /// Frees the key once the task has ended.
    pub fn until_done(self) -> Unique {
        Unique { until: Some(UniqueUntil::Done), ..self }
    }

    /// Takes the key for this long from the enqueue, even if the task ends before; with
    /// [`until_start`](Unique::until_start) or [`until_done`](Unique::until_done), for at most this
    /// long.
    pub fn window(self, window: Duration) -> Unique {
        Unique { window_ms: Some(millis(window)), ..self }
    }

    /// Sets the answer to an enqueue while another task has the key.
    pub fn on_conflict(self, on_conflict: OnConflict) -> Unique {
        Unique { on_conflict: Some(on_conflict), ..self }
    }

    /// Runs the task once there was no other enqueue of the key for this long, with the latest
    /// payload.
    pub fn debounce(self, quiet: Duration) -> Unique {
        Unique { debounce_ms: Some(millis(quiet)), ..self }
    }
}

impl From<Unique> for v1::Unique {
    fn from(unique: Unique) -> v1::Unique {
        use v1::unique::{OnConflict as Conflict, Until};
        let until = match unique.until {
            None => Until::Unspecified,
            Some(UniqueUntil::Start) => Until::Start,
            Some(UniqueUntil::Done) => Until::Done,
        };
        let on_conflict = match unique.on_conflict {
            None => Conflict::Unspecified,
            Some(OnConflict::Existing) => Conflict::Existing,
            Some(OnConflict::Replace) => Conflict::Replace,
            Some(OnConflict::Reject) => Conflict::Reject,
        };
        v1::Unique {
            key: unique.key,
            fields: unique.fields,
            until: until.into(),
            window_ms: unique.window_ms,
            on_conflict: on_conflict.into(),
            debounce_ms: unique.debounce_ms,
        }
    }
}

/// A task's unique key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UniqueDetails {
    /// The key, in the task's queue.
    pub key: String,
    /// The step of the task that frees the key; `None` leaves only the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UniqueUntil>,
    /// When the window is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// How long no further enqueue may come before the task runs, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce_ms: Option<u64>,
    /// Whether the task has the key now.
    pub held: bool,
}

impl From<v1::TaskUnique> for UniqueDetails {
    fn from(wire: v1::TaskUnique) -> UniqueDetails {
        UniqueDetails {
            key: wire.key,
            until: match wire.until.as_str() {
                "start" => Some(UniqueUntil::Start),
                "done" => Some(UniqueUntil::Done),
                _ => None,
            },
            expires_at: wire.expires_at.map(Timestamp::from_millis),
            debounce_ms: wire.debounce_ms,
            held: wire.held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_sent() {
        use v1::unique::{OnConflict as Conflict, Until};
        let wire = v1::Unique::from(
            Unique::by(["type", "payload.a"])
                .until_start()
                .window(Duration::from_secs(2))
                .on_conflict(OnConflict::Reject),
        );
        assert_eq!((wire.key, wire.fields), (None, vec!["type".into(), "payload.a".into()]));
        assert_eq!((wire.until, wire.window_ms), (Until::Start.into(), Some(2_000)));
        assert_eq!(wire.on_conflict, i32::from(Conflict::Reject));
        let debounced = v1::Unique::from(Unique::key("k").debounce(Duration::from_millis(5)));
        assert_eq!((debounced.key.as_deref(), debounced.debounce_ms), (Some("k"), Some(5)));
        assert_eq!(debounced.on_conflict, i32::from(Conflict::Unspecified));
    }

    #[test]
    fn it_reads_what_http_takes() {
        let text = r#"{"fields":["type"],"until":"done","window_ms":5,"on_conflict":"replace"}"#;
        let unique: Unique = serde_json::from_str(text).unwrap();
        let expected = Unique::by(["type"]).until_done().window(Duration::from_millis(5));
        assert_eq!(unique, expected.on_conflict(OnConflict::Replace));
        assert_eq!(serde_json::to_string(&unique).unwrap(), text);
        assert!(serde_json::from_str::<Unique>(r#"{"keyy":"k"}"#).is_err());
    }
}
