//! Retry policies in JSON.

use super::{Ms, lists::list};
use crate::{
    Error,
    front::edge::{Growth, RetryDraft},
};
use serde::{Deserialize, Serialize};
use taskyard_machine::RetryPolicy;
use utoipa::ToSchema;

/// How the delay grows from failure to failure.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum RetryKind {
    /// `delay_ms` x `factor`^n, up to `delay_max_ms`.
    #[default]
    Exponential,
    /// Always `delay_ms`.
    Fixed,
    /// `delay_ms` x n, up to `delay_max_ms`.
    Linear,
    /// The formula of Sidekiq and Faktory.
    Polynomial,
    /// `delays_ms`; the last one repeats.
    List,
}

/// How failures are retried.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct Retry {
    /// Default `exponential`.
    #[serde(default)]
    policy: RetryKind,
    /// The number of attempts in all. Default 25; with 1 there is no retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    /// The first delay. Default 30,000. For exponential, fixed and linear.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<Ms>,
    /// Growth per failure. Default 2. For exponential.
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    /// The longest delay. Default one hour. For exponential and linear.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_max_ms: Option<Ms>,
    /// A random addition to each delay, up to this share of it, 0 to 1. Default 0.25 for
    /// exponential and linear, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<f64>,
    /// The delays of the policy `list`.
    #[serde(default, deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    delays_ms: Vec<Ms>,
}

impl Retry {
    pub(super) fn policy(&self) -> Result<RetryPolicy, Error> {
        let draft = RetryDraft {
            growth: match self.policy {
                RetryKind::Exponential => Growth::Exponential,
                RetryKind::Fixed => Growth::Fixed,
                RetryKind::Linear => Growth::Linear,
                RetryKind::Polynomial => Growth::Polynomial,
                RetryKind::List => Growth::List,
            },
            max_attempts: self.max_attempts,
            delay_ms: self.delay_ms.map(|ms| ms.0),
            factor: self.factor,
            delay_max_ms: self.delay_max_ms.map(|ms| ms.0),
            jitter: self.jitter,
            delays_ms: self.delays_ms.iter().map(|ms| ms.0).collect(),
        };
        draft.policy()
    }
}

impl From<&RetryPolicy> for Retry {
    fn from(policy: &RetryPolicy) -> Retry {
        let draft = RetryDraft::from(policy);
        Retry {
            policy: match draft.growth {
                Growth::Exponential => RetryKind::Exponential,
                Growth::Fixed => RetryKind::Fixed,
                Growth::Linear => RetryKind::Linear,
                Growth::Polynomial => RetryKind::Polynomial,
                Growth::List => RetryKind::List,
            },
            max_attempts: draft.max_attempts,
            delay_ms: draft.delay_ms.map(Ms),
            factor: draft.factor,
            delay_max_ms: draft.delay_max_ms.map(Ms),
            jitter: draft.jitter,
            delays_ms: draft.delays_ms.into_iter().map(Ms).collect(),
        }
    }
}
