//! Unique keys in JSON: as they are asked for, and as a task shows them.

use super::{Moment, Ms, lists::list};
use crate::front::unique::UniqueDraft;
use serde::{Deserialize, Serialize};
use taskyard_machine::{OnConflict as MachineConflict, UniqueUntil as MachineUntil, UniqueView};
use utoipa::ToSchema;

/// A key that one task of a queue holds at a time. Held until the task is done, unless `until` or
/// `window_ms` say otherwise.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct Unique {
    /// The key; or `fields`.
    key: Option<String>,
    /// The key is the hash of these: `type`, `payload`, `payload.NAME`, `headers.NAME`; or `key`.
    #[serde(default, deserialize_with = "list")]
    fields: Vec<String>,
    /// Which step of the task frees the key.
    until: Option<UniqueUntil>,
    /// For how long from the enqueue it is held: alone, whatever becomes of the task; with `until`,
    /// at most.
    window_ms: Option<Ms>,
    /// What an enqueue comes to while another task holds the key. Default `existing`, with
    /// `debounce_ms` `replace`.
    on_conflict: Option<OnConflict>,
    /// Run after this long without another enqueue of the key, with the latest payload.
    debounce_ms: Option<Ms>,
}

/// Which step of a task frees its unique key.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum UniqueUntil {
    /// Its first claim; a retry does not take it again.
    Start,
    /// Its end, whichever that is.
    Done,
}

/// What an enqueue comes to while another task holds its unique key.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum OnConflict {
    /// 200 with the holder's id and `duplicate`.
    Existing,
    /// The same, and the waiting holder takes the new payload and headers.
    Replace,
    /// 409 `not_unique`.
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
    /// Which step of the task frees it; without, the window alone does.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<&'static str>,
    /// When its window is over.
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
