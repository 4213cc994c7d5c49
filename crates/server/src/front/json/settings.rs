//! The settings of a queue, in requests and answers.

use super::{Ms, lists::map, retry::Retry};
use crate::{
    Error,
    front::edge::{RateDraft, spread},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taskyard_machine::{
    PerKey as MachinePerKey, QueueSettings as MachineSettings, Rate as MachineRate,
};
use utoipa::ToSchema;

/// A queue's own rules; an absent field has its default.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct QueueSettings {
    /// The most waiting tasks; no bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_length: Option<u64>,
    /// How long the queue remembers a request_id. Default 24 h.
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_window_ms: Option<Ms>,
    /// The longest time that finished tasks are kept. Default 24 h.
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<Ms>,
    /// The most finished tasks that are kept. Default 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_count: Option<u32>,
    /// How long dead letters are kept. Default 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_retention_ms: Option<Ms>,
    /// The most dead letters that are kept; no bound by default. With 0, tasks end as failed
    /// instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_retention_count: Option<u32>,
    /// The retry policy of tasks without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
    /// The timeout of tasks without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<Ms>,
    /// The most tasks that are claimed at a time; no bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    /// How often a task is claimed; no bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    /// The limits of each fairness key; tasks without a key have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_key: Option<PerKey>,
    /// The number of tasks that a key gets per turn, 1 to 1000. Default 1. The empty key means
    /// tasks without a key.
    #[serde(default, deserialize_with = "map", skip_serializing_if = "BTreeMap::is_empty")]
    weights: BTreeMap<String, u32>,
    /// Each time that this passes, a waiting task's priority grows by one. Never by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    ageing_ms: Option<Ms>,
    /// The number of shards of the queue, at most 64. Default 1. Not together with max_length,
    /// concurrency, rate or per_key.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<u32>,
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct Rate {
    /// The average, 0.000001 to 1,000,000.
    per_second: f64,
    /// The number at once after a pause. Default: the number of one second, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
}

impl Rate {
    fn rate(self, what: &str) -> Result<MachineRate, Error> {
        RateDraft { per_second: self.per_second, burst: self.burst }.rate(what)
    }
}

impl From<MachineRate> for Rate {
    fn from(rate: MachineRate) -> Rate {
        let RateDraft { per_second, burst } = RateDraft::from(rate);
        Rate { per_second, burst }
    }
}

/// The limits of each fairness key of a queue.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct PerKey {
    /// The most tasks of one key that are claimed at a time; no bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    /// How often a task of one key is claimed; no bound by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
}

impl PerKey {
    /// Limits that are all absent are no limits.
    fn per_key(self) -> Result<Option<MachinePerKey>, Error> {
        let rate = self.rate.map(|rate| rate.rate("per_key.rate")).transpose()?;
        let per_key = MachinePerKey { concurrency: self.concurrency, rate };
        Ok((per_key != MachinePerKey::default()).then_some(per_key))
    }
}

impl QueueSettings {
    pub(in crate::front) fn settings(&self) -> Result<MachineSettings, Error> {
        let ms = |ms: Option<Ms>| ms.map(|ms| ms.0);
        Ok(MachineSettings {
            max_length: self.max_length,
            dedup_window_ms: ms(self.dedup_window_ms),
            retention_ms: ms(self.retention_ms),
            retention_count: self.retention_count,
            dead_retention_ms: ms(self.dead_retention_ms),
            dead_retention_count: self.dead_retention_count,
            retry: self.retry.as_ref().map(Retry::policy).transpose()?,
            timeout_ms: ms(self.timeout_ms),
            concurrency: self.concurrency,
            rate: self.rate.map(|rate| rate.rate("rate")).transpose()?,
            per_key: self.per_key.map(PerKey::per_key).transpose()?.flatten(),
            weights: self.weights.iter().map(|(key, &n)| (key.as_str().into(), n)).collect(),
            ageing_ms: ms(self.ageing_ms),
            spread: self.spread.map(spread).transpose()?,
        })
    }
}

impl From<&MachineSettings> for QueueSettings {
    fn from(settings: &MachineSettings) -> QueueSettings {
        QueueSettings {
            max_length: settings.max_length,
            dedup_window_ms: settings.dedup_window_ms.map(Ms),
            retention_ms: settings.retention_ms.map(Ms),
            retention_count: settings.retention_count,
            dead_retention_ms: settings.dead_retention_ms.map(Ms),
            dead_retention_count: settings.dead_retention_count,
            retry: settings.retry.as_ref().map(Retry::from),
            timeout_ms: settings.timeout_ms.map(Ms),
            concurrency: settings.concurrency,
            rate: settings.rate.map(Rate::from),
            per_key: settings.per_key.map(|per_key| PerKey {
                concurrency: per_key.concurrency,
                rate: per_key.rate.map(Rate::from),
            }),
            weights: settings.weights.iter().map(|(key, &n)| (key.to_string(), n)).collect(),
            ageing_ms: settings.ageing_ms.map(Ms),
            spread: settings.spread.map(u32::from),
        }
    }
}
