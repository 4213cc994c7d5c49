//! Unique keys in JSON, in requests and in answers.

use super::{Moment, Ms, lists::list};
use crate::front::unique::UniqueDraft;
use serde::{Deserialize, Serialize};
use taskyard_machine::{OnConflict as MachineConflict, UniqueUntil as MachineUntil, UniqueView};
use utoipa::ToSchema;

/// A key that one task of a queue holds at a time. The task holds it until it is done, unless
/// `until` or `window_ms` say otherwise.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct Unique {
    /// The key; or `fields`.
    key: Option<String>,
    /// The key is the hash of these: `type`, `payload`, `payload.NAME`, `headers.NAME`; or `key`.
    #[serde(default, deserialize_with = "list")]
    fields: Vec<String>,
    /// The step of the task that frees the key.
    until: Option<UniqueUntil>,
    /// How long the key is held, from the enqueue on: without `until`, exactly this long, whatever
    /// happens to the task; with `until`, at most.
    window_ms: Option<Ms>,
    /// What happens to an enqueue while another task holds the key. Default `existing`; with
    /// `debounce_ms`, `replace`.
    on_conflict: Option<OnConflict>,
    /// Runs the task after this long without another enqueue of the key, with the latest payload.
    debounce_ms: Option<Ms>,
}

/// The step of a task that frees its unique key.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum UniqueUntil {
    /// Its first claim; a retry does not take the key again.
    Start,
    /// Its end, in any state.
    Done,
}

/// What happens to an enqueue while another task holds its unique key.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum OnConflict {
    /// The answer is 200 with the holder's id and `duplicate`.
    Existing,
    /// The same answer, and the waiting holder takes the new payload and headers.
    Replace,
    /// The answer is 409 `not_unique`.
    Reject,
}

impl Unique {
    pub(super) fn draft(&self) -> UniqueDraft<'_> {
        UniqueDraft {
            key: self.key.as_deref(),
            fields: &self.fields,
            until: self.until.map(|until| match until {
                UniqueUntil::Start => MachineUntil::Start,
                UniqueUntil::Done => MachineUntil::Done,
            }),
            window_ms: self.window_ms.map(|ms| ms.0),
            on_conflict: self.on_conflict.map(|on_conflict| match on_conflict {
                OnConflict::Existing => MachineConflict::Existing,
                OnConflict::Replace => MachineConflict::Replace,
                OnConflict::Reject => MachineConflict::Reject,
            }),
            debounce_ms: self.debounce_ms.map(|ms| ms.0),
        }
    }
}

/// A task's unique key.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct TaskUnique<'a> {
    /// The key, in the task's queue.
    key: &'a str,
    /// The step of the task that frees the key. If absent, only the window does.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<&'static str>,
    /// When the window ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    debounce_ms: Option<u64>,
    /// Whether this task holds the key now.
    held: bool,
}

impl<'a> TaskUnique<'a> {
    pub(super) fn new(unique: &'a UniqueView) -> TaskUnique<'a> {
        TaskUnique {
            key: &unique.key,
            until: unique.until.map(|until| until.as_str()),
            expires_at: unique.expires_at.map(Moment),
            debounce_ms: unique.debounce_ms,
            held: unique.held,
        }
    }
}
