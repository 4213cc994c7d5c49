//! Checks that all protocols share: ids, priorities, moments, retry policies, rates.
//!
//! Fractions end here: inside, they are integers of thousandths, or of millionths for rates.

use crate::{Error, moment::NEARER};
use taskyard_machine::{
    Backoff, CatchUp, FlowState, Rate, RetryPolicy, Rhythm, ShardId, TaskId, TaskStateName,
    Timestamp, When, limits,
};
use taskyard_replica::NodeId;

/// The tasks on a page without a limit.
pub(super) const PAGE_TASKS_DEFAULT: u32 = 50;

pub(super) fn task_id(text: &str) -> Result<TaskId, Error> {
    text.parse().map_err(|reason| Error::Invalid(format!("id {reason}")))
}

pub(super) fn flow_id(text: &str) -> Result<TaskId, Error> {
    let words = || {
        let shown: String = text.chars().take(64).collect();
        format!("flow {shown:?} is not a flow id: expected 26 characters of 0-9 and a-v")
    };
    text.parse().map_err(|_| Error::Invalid(words()))
}

pub(super) fn node_id(text: &str) -> Result<NodeId, Error> {
    let words =
        || format!("node {text:?} is not a number from 1; `taskyard cluster status` lists them");
    text.parse().ok().filter(|node| *node > 0).ok_or_else(|| Error::Invalid(words()))
}

pub(super) fn shard_id(text: &str) -> Result<ShardId, Error> {
    let words =
        || format!("shard {text:?} is not a number from 0; `taskyard cluster status` lists them");
    text.parse().map(ShardId).map_err(|_| Error::Invalid(words()))
}

/// The number of replicas of a shard. An even number would cost a replica and survive no more
/// failures.
pub(super) fn replication(value: u32) -> Result<u8, Error> {
    let known = u8::try_from(value).ok().filter(|factor| [1, 3, 5].contains(factor));
    known.ok_or_else(|| Error::Invalid(format!("a shard has 1, 3 or 5 replicas, not {value}")))
}

pub(super) fn priority(value: u64) -> Result<u8, Error> {
    let highest = limits::PRIORITY_MAX;
    u8::try_from(value).ok().filter(|priority| *priority <= highest).ok_or_else(|| {
        let text =
            format!("priority {value} is not 0 to {highest}; 9 runs first, 5 is the default");
        Error::Invalid(text)
    })
}

pub(super) fn percent(value: u64) -> Result<u8, Error> {
    u8::try_from(value).ok().filter(|percent| *percent <= 100).ok_or_else(|| {
        let text =
            format!("progress.percent {value} is not 0 to 100; send a whole number of percent");
        Error::Invalid(text)
    })
}

pub(super) fn state(word: &str) -> Result<TaskStateName, Error> {
    TaskStateName::parse(word).ok_or_else(|| {
        let known = TaskStateName::ALL.map(TaskStateName::as_str).join(", ");
        let shown: String = word.chars().take(64).collect();
        Error::Invalid(format!("state {shown:?} is not one of {known}"))
    })
}

pub(super) fn flow_state(word: &str) -> Result<FlowState, Error> {
    FlowState::parse(word).ok_or_else(|| {
        let known = FlowState::ALL.map(FlowState::as_str).join(", ");
        let shown: String = word.chars().take(64).collect();
        Error::Invalid(format!("state {shown:?} is not one of {known}"))
    })
}

/// Checks the state in a filter of dead letters, which may only be `dead`.
pub(super) fn dead_state(word: &str) -> Result<(), Error> {
    if !word.is_empty() && state(word)? != TaskStateName::Dead {
        return Err(Error::Invalid(format!(
            "state {word} is not dead; this is about dead letters"
        )));
    }
    Ok(())
}

/// When a task may run, if the request says so.
pub(super) fn when(
    delay_ms: Option<u64>,
    run_at: Option<Timestamp>,
    names: [&str; 2],
) -> Result<Option<When>, Error> {
    match (delay_ms, run_at) {
        (Some(ms), None) if ms > limits::HORIZON_MS_MAX => {
            let text = format!("{} {ms} is more than ten years; {NEARER}", names[0]);
            Err(Error::Invalid(text))
        }
        (Some(ms), None) => Ok(Some(When::After { ms })),
        (None, Some(at)) => Ok(Some(When::At(at))),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            let [delay, moment] = names;
            Err(Error::Invalid(format!("{delay} and {moment} exclude each other; send one")))
        }
    }
}

/// When a snoozed task runs again, which the request must say.
pub(super) fn until(delay_ms: Option<u64>, run_at: Option<Timestamp>) -> Result<When, Error> {
    when(delay_ms, run_at, ["delay_ms", "run_at"])?.ok_or_else(|| {
        Error::Invalid("delay_ms and run_at are both missing; say until when".into())
    })
}

/// The rhythm of a schedule: cron in a zone, or an interval.
pub(super) fn rhythm<'a>(
    cron: Option<&'a str>,
    every_ms: Option<u64>,
    timezone: Option<&'a str>,
) -> Result<Rhythm<'a>, Error> {
    let told = match (cron, every_ms) {
        (Some(expression), None) => {
            return Ok(Rhythm::Cron { expression, timezone: timezone.unwrap_or("UTC") });
        }
        (None, Some(ms)) if timezone.is_none() => return Ok(Rhythm::Every { ms }),
        (None, Some(_)) => "timezone means nothing for every_ms; leave it out",
        (Some(_), Some(_)) => "cron and every_ms exclude each other; send one",
        (None, None) => "a schedule needs cron or every_ms; send one",
    };
    Err(Error::Invalid(told.into()))
}

/// The greatest age of an occurrence that is caught up. Without catch-up there is no window.
pub(super) fn catch_up_window(catch_up: CatchUp, window_ms: Option<u64>) -> Result<u64, Error> {
    match (catch_up, window_ms) {
        (CatchUp::None, Some(_)) => {
            let text = "catch_up_window_ms means nothing for catch_up none; leave it out";
            Err(Error::Invalid(text.into()))
        }
        (_, window_ms) => Ok(window_ms.unwrap_or(limits::CATCH_UP_WINDOW_MS_DEFAULT)),
    }
}

/// The window that answers show; `None` without catch-up.
pub(super) fn shown_window(catch_up: CatchUp, window_ms: u64) -> Option<u64> {
    (catch_up != CatchUp::None).then_some(window_ms)
}

/// The policy of a word; the default for an empty one.
pub(super) fn policy<T: Copy + Default>(
    field: &str,
    words: &[(T, &str)],
    word: &str,
) -> Result<T, Error> {
    if word.is_empty() {
        return Ok(T::default());
    }
    words.iter().find(|(_, known)| *known == word).map(|(policy, _)| *policy).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(_, known)| *known).collect();
        let shown: String = word.chars().take(64).collect();
        Error::Invalid(format!("{field} {shown:?} is not one of {}", known.join(", ")))
    })
}

/// The word of a policy.
pub(super) fn word<T: Copy + PartialEq>(words: &[(T, &'static str)], policy: T) -> &'static str {
    words.iter().find(|(known, _)| *known == policy).map_or("", |(_, word)| word)
}

pub(super) const NO_SELECTION: &str =
    "ids and filter are both missing; send one, an empty filter means all";
pub(super) const TWO_SELECTIONS: &str = "ids and filter exclude each other; send one";

/// The identity of a batch: 16 bytes, or none.
pub(super) fn batch_id(bytes: &[u8]) -> Result<Option<u128>, Error> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes: [u8; 16] = bytes.try_into().map_err(|_| {
        Error::Invalid(format!("batch_id has {} bytes, it must have 16 or none", bytes.len()))
    })?;
    Ok(Some(u128::from_be_bytes(bytes)))
}

/// How the retry delay grows, by its word on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Growth {
    #[default]
    Exponential,
    Fixed,
    Linear,
    Polynomial,
    List,
}

impl Growth {
    fn word(self) -> &'static str {
        match self {
            Growth::Exponential => "exponential",
            Growth::Fixed => "fixed",
            Growth::Linear => "linear",
            Growth::Polynomial => "polynomial",
            Growth::List => "list",
        }
    }
}

/// A retry policy as protocols carry it. A field that is `None` has the default of its growth.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RetryDraft {
    pub(super) growth: Growth,
    pub(super) max_attempts: Option<u32>,
    pub(super) delay_ms: Option<u64>,
    pub(super) factor: Option<f64>,
    pub(super) delay_max_ms: Option<u64>,
    pub(super) jitter: Option<f64>,
    pub(super) delays_ms: Vec<u64>,
}

/// The largest growth per failure, as protocols carry it.
const FACTOR_MAX: f64 = limits::RETRY_FACTOR_THOUSANDTHS_MAX as f64 / 1_000.0;

impl RetryDraft {
    /// The policy, or an error for the first invalid field.
    pub(super) fn policy(self) -> Result<RetryPolicy, Error> {
        let RetryPolicy { backoff, max_attempts, jitter_thousandths } = RetryPolicy::default();
        let Backoff::Exponential { delay_ms, factor_thousandths, delay_max_ms } = backoff else {
            unreachable!("the default policy is exponential");
        };
        self.check_fields()?;
        let delay_ms = self.delay_ms.unwrap_or(delay_ms);
        let delay_max_ms = self.delay_max_ms.unwrap_or(delay_max_ms.max(delay_ms));
        let factor_thousandths = match self.factor {
            Some(factor) => thousandths("retry.factor", factor, 1.0, FACTOR_MAX)?,
            None => factor_thousandths,
        };
        // Delays that grow get jitter by default; delays that the client listed do not.
        let jitter_thousandths = match (self.jitter, self.growth) {
            (Some(jitter), _) => thousandths("retry.jitter", jitter, 0.0, 1.0)?,
            (None, Growth::Exponential | Growth::Linear) => jitter_thousandths,
            (None, Growth::Fixed | Growth::Polynomial | Growth::List) => 0,
        };
        let backoff = match self.growth {
            Growth::Exponential => {
                Backoff::Exponential { delay_ms, factor_thousandths, delay_max_ms }
            }
            Growth::Fixed => Backoff::Fixed { delay_ms },
            Growth::Linear => Backoff::Linear { delay_ms, delay_max_ms },
            Growth::Polynomial => Backoff::Polynomial,
            Growth::List => Backoff::List { delays_ms: self.delays_ms.into() },
        };
        let max_attempts = self.max_attempts.unwrap_or(max_attempts);
        Ok(RetryPolicy { backoff, max_attempts, jitter_thousandths })
    }

    /// A field that the policy does not use is an error and not ignored.
    fn check_fields(&self) -> Result<(), Error> {
        let growth = self.growth;
        let uses = |growths: &[Growth]| growths.contains(&growth);
        let given = [
            (
                "delay_ms",
                self.delay_ms.is_some(),
                uses(&[Growth::Exponential, Growth::Fixed, Growth::Linear]),
            ),
            ("factor", self.factor.is_some(), uses(&[Growth::Exponential])),
            (
                "delay_max_ms",
                self.delay_max_ms.is_some(),
                uses(&[Growth::Exponential, Growth::Linear]),
            ),
            ("delays_ms", !self.delays_ms.is_empty(), uses(&[Growth::List])),
        ];
        if let Some((field, ..)) = given.iter().find(|(_, given, used)| *given && !used) {
            let text = format!("retry.{field} means nothing for the policy {}", growth.word());
            return Err(Error::Invalid(text));
        }
        if growth == Growth::List && self.delays_ms.is_empty() {
            return Err(Error::Invalid("retry.delays_ms is empty; list at least one delay".into()));
        }
        Ok(())
    }
}

impl From<&RetryPolicy> for RetryDraft {
    fn from(policy: &RetryPolicy) -> RetryDraft {
        let fraction = |thousandths: u32| Some(f64::from(thousandths) / 1_000.0);
        let draft = RetryDraft {
            max_attempts: Some(policy.max_attempts),
            jitter: fraction(policy.jitter_thousandths),
            ..RetryDraft::default()
        };
        match &policy.backoff {
            Backoff::Exponential { delay_ms, factor_thousandths, delay_max_ms } => RetryDraft {
                growth: Growth::Exponential,
                delay_ms: Some(*delay_ms),
                factor: fraction(*factor_thousandths),
                delay_max_ms: Some(*delay_max_ms),
                ..draft
            },
            Backoff::Fixed { delay_ms } => {
                RetryDraft { growth: Growth::Fixed, delay_ms: Some(*delay_ms), ..draft }
            }
            Backoff::Linear { delay_ms, delay_max_ms } => RetryDraft {
                growth: Growth::Linear,
                delay_ms: Some(*delay_ms),
                delay_max_ms: Some(*delay_max_ms),
                ..draft
            },
            Backoff::Polynomial => RetryDraft { growth: Growth::Polynomial, ..draft },
            Backoff::List { delays_ms } => {
                RetryDraft { growth: Growth::List, delays_ms: delays_ms.to_vec(), ..draft }
            }
        }
    }
}

/// A rate as protocols carry it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RateDraft {
    pub(super) per_second: f64,
    pub(super) burst: Option<u32>,
}

impl RateDraft {
    /// The rate, or an error for the first invalid field. The default burst is the tokens of one
    /// second, and at least one.
    pub(super) fn rate(self, what: &str) -> Result<Rate, Error> {
        let (lowest, highest) = (0.000_001, limits::RATE_MILLIONTHS_MAX as f64 / 1e6);
        let per_second = self.per_second;
        if !(lowest..=highest).contains(&per_second) {
            return Err(Error::Invalid(format!(
                "{what}.per_second {per_second} is not {lowest} to {highest}"
            )));
        }
        // The range check keeps the sign and the size.
        let per_second_millionths = (per_second * 1e6).round() as u64;
        let burst = self.burst.unwrap_or_else(|| (per_second.ceil() as u32).max(1));
        Ok(Rate { per_second_millionths, burst })
    }
}

impl From<Rate> for RateDraft {
    fn from(rate: Rate) -> RateDraft {
        let per_second = rate.per_second_millionths as f64 / 1e6;
        RateDraft { per_second, burst: Some(rate.burst) }
    }
}

fn thousandths(field: &str, fraction: f64, lowest: f64, highest: f64) -> Result<u32, Error> {
    if !(lowest..=highest).contains(&fraction) {
        return Err(Error::Invalid(format!("{field} {fraction} is not {lowest} to {highest}")));
    }
    // The range check keeps the sign and the size.
    Ok((fraction * 1_000.0).round() as u32)
}

/// The spread as it was sent; the machine checks which spreads are allowed.
pub(super) fn spread(shards: u32) -> Result<u16, Error> {
    let spread_max = limits::SPREAD_MAX;
    u16::try_from(shards)
        .map_err(|_| Error::Invalid(format!("spread {shards} is not 1 to {spread_max}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_machine::NewTask;

    #[test]
    fn policies_survive_the_wire() {
        let list = Backoff::List { delays_ms: [1, 2].into() };
        for policy in [
            RetryPolicy::default(),
            RetryPolicy {
                backoff: Backoff::Fixed { delay_ms: 5 },
                max_attempts: 3,
                jitter_thousandths: 0,
            },
            RetryPolicy { backoff: Backoff::Polynomial, max_attempts: 1, jitter_thousandths: 7 },
            RetryPolicy { backoff: list, max_attempts: 9, jitter_thousandths: 1_000 },
        ] {
            assert_eq!(RetryDraft::from(&policy).policy().unwrap(), policy);
        }
        assert_eq!(RetryDraft::default().policy().unwrap(), RetryPolicy::default());
    }

    #[test]
    fn fractions_out_of_range_are_named() {
        let draft = RetryDraft::default;
        let largest = RetryDraft { factor: Some(100.0), ..draft() }.policy().unwrap();
        let task = NewTask { task_type: "t", retry: Some(largest), ..NewTask::default() };
        assert_eq!(task.check_shape(), Ok(()), "the machine's bound is the same");
        for (draft, text) in [
            (RetryDraft { factor: Some(f64::NAN), ..draft() }, "retry.factor NaN is not 1 to 100"),
            (RetryDraft { factor: Some(0.5), ..draft() }, "retry.factor 0.5 is not 1 to 100"),
            (RetryDraft { factor: Some(100.1), ..draft() }, "retry.factor 100.1 is not 1 to 100"),
            (RetryDraft { jitter: Some(-0.1), ..draft() }, "retry.jitter -0.1 is not 0 to 1"),
            (
                RetryDraft { jitter: Some(f64::INFINITY), ..draft() },
                "retry.jitter inf is not 0 to 1",
            ),
            (
                RetryDraft { growth: Growth::Fixed, factor: Some(2.0), ..draft() },
                "retry.factor means nothing for the policy fixed",
            ),
            (
                RetryDraft { growth: Growth::List, ..draft() },
                "retry.delays_ms is empty; list at least one delay",
            ),
        ] {
            assert_eq!(draft.policy().unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn rates_survive_the_wire_and_are_bounded() {
        let draft = |per_second, burst| RateDraft { per_second, burst };
        for (per_second, burst, millionths, tokens) in [
            (0.5, None, 500_000, 1),
            (2.5, None, 2_500_000, 3),
            (10.0, Some(50), 10_000_000, 50),
            (0.000_001, Some(1), 1, 1),
            (1_000_000.0, None, 1_000_000_000_000, 1_000_000),
        ] {
            let rate = draft(per_second, burst).rate("rate").unwrap();
            assert_eq!(rate, Rate { per_second_millionths: millionths, burst: tokens });
            assert_eq!(RateDraft::from(rate), draft(per_second, Some(tokens)));
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1_000_001.0] {
            let told = draft(bad, None).rate("per_key.rate").unwrap_err().to_string();
            assert_eq!(told, format!("per_key.rate.per_second {bad} is not 0.000001 to 1000000"));
        }
    }

    #[test]
    fn priorities_and_batch_ids_out_of_bounds_are_refused() {
        assert_eq!(priority(9).unwrap(), 9);
        let told = "priority 12 is not 0 to 9; 9 runs first, 5 is the default";
        assert_eq!(priority(12).unwrap_err().to_string(), told);
        assert_eq!(priority(260).unwrap_err().code(), "invalid_argument");
        assert_eq!(batch_id(&[]).unwrap(), None);
        assert!(batch_id(&[1; 15]).is_err());
    }
}
