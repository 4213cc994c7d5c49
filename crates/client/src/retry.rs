//! RetryPolicy: how often a failed task is retried, and how long it waits between attempts.

use crate::timestamp::millis;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use taskyard_proto::v1;

/// How often a failed task is retried, and how long it waits between attempts.
///
/// The broker decides options that are not set: exponential, 30 s doubling up to 1 h, jitter up to
/// 25 %, 25 attempts.
///
/// ```
/// use std::time::Duration;
/// use taskyard::RetryPolicy;
///
/// let patient = RetryPolicy::exponential().delay(Duration::from_secs(5)).max_attempts(40);
/// let steady = RetryPolicy::fixed(Duration::from_secs(10)).max_attempts(3);
/// let once = RetryPolicy::never();
/// # let _ = (patient, steady, once);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// How the delay grows.
    pub policy: RetryGrowth,
    /// Attempts in all, the first included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The first delay, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The factor from each delay to the next (exponential).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The longest delay, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_max_ms: Option<u64>,
    /// The share of each delay that may be added to it, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// The delays one by one, in milliseconds; the last one repeats (list).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delays_ms: Vec<u64>,
}

/// How the delay between attempts grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryGrowth {
    /// Multiplied by a factor each time.
    #[default]
    Exponential,
    /// Always the same.
    Fixed,
    /// The first delay times the number of failures.
    Linear,
    /// The fourth power of the number of failures, in seconds, plus a random part.
    Polynomial,
    /// Each delay as listed.
    List,
}

impl RetryPolicy {
    fn new(policy: RetryGrowth) -> RetryPolicy {
        RetryPolicy { policy, ..RetryPolicy::default() }
    }

    /// Multiplies each delay by a factor (2 by default).
    pub fn exponential() -> RetryPolicy {
        RetryPolicy::new(RetryGrowth::Exponential)
    }

    /// The same delay each time.
    pub fn fixed(delay: Duration) -> RetryPolicy {
        RetryPolicy::new(RetryGrowth::Fixed).delay(delay)
    }

    /// `delay`, twice `delay`, three times `delay`, and so on.
    pub fn linear(delay: Duration) -> RetryPolicy {
        RetryPolicy::new(RetryGrowth::Linear).delay(delay)
    }

    /// Grows with the fourth power of the number of failures.
    pub fn polynomial() -> RetryPolicy {
        RetryPolicy::new(RetryGrowth::Polynomial)
    }

    /// Lists the delays: as many retries as there are delays, unless `max_attempts` allows more.
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> RetryPolicy {
        let delays_ms = delays.into_iter().map(millis).collect();
        RetryPolicy { delays_ms, ..RetryPolicy::new(RetryGrowth::List) }
    }

    /// One attempt; a failure makes a dead letter at once.
    pub fn never() -> RetryPolicy {
        RetryPolicy::exponential().max_attempts(1)
    }

    /// Attempts in all, the first included.
    pub fn max_attempts(mut self, attempts: u32) -> RetryPolicy {
        self.max_attempts = Some(attempts);
        self
    }

    /// The first delay.
    pub fn delay(mut self, delay: Duration) -> RetryPolicy {
        self.delay_ms = Some(millis(delay));
        self
    }

    /// Sets the longest delay.
    pub fn delay_max(mut self, delay: Duration) -> RetryPolicy {
        self.delay_max_ms = Some(millis(delay));
        self
    }

    /// Sets the factor from each delay to the next.
    pub fn factor(mut self, factor: f64) -> RetryPolicy {
        self.factor = Some(factor);
        self
    }

    /// Sets the share of each delay that may be added to it, 0 to 1.
    pub fn jitter(mut self, share: f64) -> RetryPolicy {
        self.jitter = Some(share);
        self
    }
}

impl From<RetryPolicy> for v1::RetryPolicy {
    fn from(policy: RetryPolicy) -> v1::RetryPolicy {
        use v1::retry_policy::Kind;
        let kind = match policy.policy {
            RetryGrowth::Exponential => Kind::Exponential,
            RetryGrowth::Fixed => Kind::Fixed,
            RetryGrowth::Linear => Kind::Linear,
            RetryGrowth::Polynomial => Kind::Polynomial,
            RetryGrowth::List => Kind::List,
        };
        v1::RetryPolicy {
            policy: kind.into(),
            max_attempts: policy.max_attempts,
            delay_ms: policy.delay_ms,
            factor: policy.factor,
            delay_max_ms: policy.delay_max_ms,
            jitter: policy.jitter,
            delays_ms: policy.delays_ms,
        }
    }
}

impl From<v1::RetryPolicy> for RetryPolicy {
    fn from(wire: v1::RetryPolicy) -> RetryPolicy {
        use v1::retry_policy::Kind;
        let policy = match wire.policy() {
            Kind::Exponential => RetryGrowth::Exponential,
            Kind::Fixed => RetryGrowth::Fixed,
            Kind::Linear => RetryGrowth::Linear,
            Kind::Polynomial => RetryGrowth::Polynomial,
            Kind::List => RetryGrowth::List,
        };
        RetryPolicy {
            policy,
            max_attempts: wire.max_attempts,
            delay_ms: wire.delay_ms,
            factor: wire.factor,
            delay_max_ms: wire.delay_max_ms,
            jitter: wire.jitter,
            delays_ms: wire.delays_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_are_those_of_the_http_front() {
        let policy = RetryPolicy::linear(Duration::from_secs(2)).max_attempts(4).jitter(0.5);
        let json = serde_json::to_value(&policy).unwrap();
        let expected = serde_json::json!({
            "policy": "linear", "max_attempts": 4, "delay_ms": 2000, "jitter": 0.5
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<RetryPolicy>(json).unwrap(), policy);
    }

    #[test]
    fn the_wire_carries_every_field() {
        let policy = RetryPolicy {
            policy: RetryGrowth::List,
            max_attempts: Some(3),
            delay_ms: Some(4),
            factor: Some(1.5),
            delay_max_ms: Some(5),
            jitter: Some(0.1),
            delays_ms: vec![6, 7],
        };
        assert_eq!(RetryPolicy::from(v1::RetryPolicy::from(policy.clone())), policy);
    }
}
