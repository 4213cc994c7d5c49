//! RetryPolicy: how long a failed task waits, and how many attempts it has.
//!
//! Fractions are thousandths, so that every replica computes the same wait.

use crate::draw::Draw;
use crate::limits::{ATTEMPTS_MAX, HORIZON_MS_MAX, RETRY_DELAYS_MAX, RETRY_FACTOR_THOUSANDTHS_MAX};
use crate::rejection::at_most;
use crate::{Rejection, TaskId};

/// The policy for the retries of a failed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How the wait grows.
    pub backoff: Backoff,
    /// The number of all attempts, the first included. 1 never retries.
    pub max_attempts: u32,
    /// A random share of each wait, up to this many thousandths, is added to it, drawn from task
    /// and attempt.
    pub jitter_thousandths: u32,
}

/// How the wait before the next attempt grows with the number of failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// `delay_ms` x `factor`^(failures - 1), up to `delay_max_ms`.
    Exponential {
        /// The first wait.
        delay_ms: u64,
        /// Growth per failure, in thousandths: 2000 doubles.
        factor_thousandths: u32,
        /// The longest wait.
        delay_max_ms: u64,
    },
    /// The same wait every time.
    Fixed {
        /// The wait.
        delay_ms: u64,
    },
    /// `delay_ms` x failures, up to `delay_max_ms`.
    Linear {
        /// The first wait, and the growth with each failure.
        delay_ms: u64,
        /// The longest wait.
        delay_max_ms: u64,
    },
    /// The formula of Sidekiq and Faktory: n^4 + 15 s + r x (n + 1) s, with n earlier failures and
    /// r from 0 to 29.
    Polynomial,
    /// The n-th failure waits the n-th delay; the last one repeats.
    List {
        /// The waits, at least one.
        delays_ms: Box<[u64]>,
    },
}

impl Default for RetryPolicy {
    /// 30 s doubling up to 1 h, up to a quarter of jitter, 25 attempts.
    fn default() -> RetryPolicy {
        RetryPolicy {
            backoff: Backoff::Exponential {
                delay_ms: 30_000,
                factor_thousandths: 2_000,
                delay_max_ms: 3_600_000,
            },
            max_attempts: 25,
            jitter_thousandths: 250,
        }
    }
}

impl RetryPolicy {
    /// The wait after the `failures`-th failure of `task` (from 1), jitter included.
    pub fn delay_after(&self, failures: u32, task: TaskId) -> u64 {
        let failures = failures.max(1);
        let mut draw = Draw::for_attempt(task, failures);
        let wait = self.backoff.wait_ms(failures, &mut draw).min(HORIZON_MS_MAX);
        let jitter_max = wait * u64::from(self.jitter_thousandths) / 1_000;
        wait.saturating_add(draw.up_to(jitter_max)).min(HORIZON_MS_MAX)
    }

    /// Checks every bound of the policy.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        if self.max_attempts == 0 {
            return Err(Rejection::invalid("max_attempts is 0; it counts the first attempt too"));
        }
        at_most("max_attempts", self.max_attempts.into(), ATTEMPTS_MAX.into())?;
        at_most("jitter in thousandths", self.jitter_thousandths.into(), 1_000)?;
        match &self.backoff {
            Backoff::Exponential { delay_ms, factor_thousandths, delay_max_ms } => {
                if *factor_thousandths < 1_000 {
                    return Err(Rejection::invalid(format!(
                        "factor is {factor_thousandths} thousandths; a wait never shrinks, give at least 1000"
                    )));
                }
                let factor_max = RETRY_FACTOR_THOUSANDTHS_MAX.into();
                at_most("factor in thousandths", (*factor_thousandths).into(), factor_max)?;
                at_most("delay_ms", *delay_ms, HORIZON_MS_MAX)?;
                at_most("delay_max_ms", *delay_max_ms, HORIZON_MS_MAX)
            }
            Backoff::Fixed { delay_ms } => at_most("delay_ms", *delay_ms, HORIZON_MS_MAX),
            Backoff::Linear { delay_ms, delay_max_ms } => {
                at_most("delay_ms", *delay_ms, HORIZON_MS_MAX)?;
                at_most("delay_max_ms", *delay_max_ms, HORIZON_MS_MAX)
            }
            Backoff::Polynomial => Ok(()),
            Backoff::List { delays_ms } => {
                if delays_ms.is_empty() {
                    return Err(Rejection::invalid("delays_ms is empty; give at least one delay"));
                }
                at_most(
                    "the number of delays_ms",
                    delays_ms.len() as u64,
                    RETRY_DELAYS_MAX as u64,
                )?;
                delays_ms.iter().try_for_each(|&ms| at_most("delays_ms", ms, HORIZON_MS_MAX))
            }
        }
    }
}

impl Backoff {
    /// The wait before jitter. Only the polynomial backoff draws.
    fn wait_ms(&self, failures: u32, draw: &mut Draw) -> u64 {
        match *self {
            Backoff::Exponential { delay_ms, factor_thousandths, delay_max_ms } => {
                exponential_ms(delay_ms, factor_thousandths, delay_max_ms, failures - 1)
            }
            Backoff::Fixed { delay_ms } => delay_ms,
            Backoff::Linear { delay_ms, delay_max_ms } => {
                delay_ms.saturating_mul(failures.into()).min(delay_max_ms)
            }
            Backoff::Polynomial => {
                let before = u64::from(failures - 1);
                let spread = draw.up_to(29).saturating_mul(before + 1);
                before.saturating_pow(4).saturating_add(15 + spread).saturating_mul(1_000)
            }
            Backoff::List { ref delays_ms } => {
                let position = (failures as usize).min(delays_ms.len());
                delays_ms.get(position.wrapping_sub(1)).copied().unwrap_or(0)
            }
        }
    }
}

/// `delay_ms` multiplied `times` times by `factor`, up to `max`. The computation keeps 20 bits
/// below the millisecond, so that a short delay with a small factor still grows.
fn exponential_ms(delay_ms: u64, factor_thousandths: u32, max: u64, times: u32) -> u64 {
    const FRACTION_BITS: u32 = 20;
    let max_scaled = u128::from(max) << FRACTION_BITS;
    let mut scaled = u128::from(delay_ms) << FRACTION_BITS;
    for _ in 0..times {
        if scaled >= max_scaled || factor_thousandths <= 1_000 {
            break;
        }
        scaled = scaled * u128::from(factor_thousandths) / 1_000;
    }
    (scaled.min(max_scaled) >> FRACTION_BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    const TASK: TaskId =
        TaskId { incarnation: 1, home: ShardId(0), origin: ShardId(0), sequence: 1 };

    fn exact(backoff: Backoff) -> RetryPolicy {
        RetryPolicy { backoff, max_attempts: 25, jitter_thousandths: 0 }
    }

    fn check_waits(backoff: Backoff, waits: &[(u32, u64)]) {
        let policy = exact(backoff);
        for &(failures, ms) in waits {
            assert_eq!(policy.delay_after(failures, TASK), ms, "after {failures} failures");
        }
    }

    #[test]
    fn exponential_waits_grow_up_to_the_cap() {
        let doubling = |delay_ms, delay_max_ms| Backoff::Exponential {
            delay_ms,
            factor_thousandths: 2_000,
            delay_max_ms,
        };
        check_waits(
            doubling(30_000, 3_600_000),
            &[
                (1, 30_000),
                (2, 60_000),
                (3, 120_000),
                (7, 1_920_000),
                (8, 3_600_000),
                (10_000, 3_600_000),
            ],
        );
        check_waits(doubling(10, 5), &[(1, 5), (2, 5)]);
        let slow = Backoff::Exponential {
            delay_ms: 1,
            factor_thousandths: 1_100,
            delay_max_ms: 1_000_000,
        };
        check_waits(slow, &[(1, 1), (9, 2), (25, 9), (26, 10)]);
    }

    #[test]
    fn fixed_linear_and_listed_waits() {
        check_waits(Backoff::Fixed { delay_ms: 7 }, &[(1, 7), (100, 7)]);
        check_waits(
            Backoff::Linear { delay_ms: 10, delay_max_ms: 35 },
            &[(1, 10), (3, 30), (4, 35), (9_999, 35)],
        );
        check_waits(Backoff::List { delays_ms: [5, 50].into() }, &[(1, 5), (2, 50), (3, 50)]);
    }

    #[test]
    fn polynomial_waits_lie_in_the_known_formula_and_stop_at_the_horizon() {
        let policy = exact(Backoff::Polynomial);
        for failures in 1..30 {
            let n = u64::from(failures - 1);
            let seconds = policy.delay_after(failures, TASK) / 1_000;
            let low = n.pow(4) + 15;
            assert!((low..=low + 29 * (n + 1)).contains(&seconds), "{failures}: {seconds}");
        }
        assert_eq!(policy.delay_after(ATTEMPTS_MAX, TASK), HORIZON_MS_MAX);
    }

    #[test]
    fn jitter_only_adds_is_bounded_and_depends_on_task_and_attempt_alone() {
        let policy = RetryPolicy {
            backoff: Backoff::Fixed { delay_ms: 1_000 },
            max_attempts: 25,
            jitter_thousandths: 250,
        };
        let mut seen = std::collections::BTreeSet::new();
        for sequence in 0..100 {
            let task = TaskId { sequence, ..TASK };
            let delay = policy.delay_after(1, task);
            assert!((1_000..=1_250).contains(&delay), "{delay}");
            assert_eq!(delay, policy.delay_after(1, task));
            seen.insert(delay);
        }
        assert!(seen.len() > 50, "jitter spreads: {}", seen.len());
    }

    #[test]
    fn policies_out_of_bounds_are_refused() {
        let bad = [
            RetryPolicy { max_attempts: 0, ..RetryPolicy::default() },
            RetryPolicy { max_attempts: ATTEMPTS_MAX + 1, ..RetryPolicy::default() },
            RetryPolicy { jitter_thousandths: 1_001, ..RetryPolicy::default() },
            exact(Backoff::List { delays_ms: [].into() }),
            exact(Backoff::List { delays_ms: vec![1; RETRY_DELAYS_MAX + 1].into() }),
            exact(Backoff::List { delays_ms: [u64::MAX].into() }),
            exact(Backoff::Fixed { delay_ms: HORIZON_MS_MAX + 1 }),
            exact(Backoff::Linear { delay_ms: 1, delay_max_ms: u64::MAX }),
            exact(Backoff::Exponential { delay_ms: 1, factor_thousandths: 999, delay_max_ms: 1 }),
            exact(Backoff::Exponential {
                delay_ms: 1,
                factor_thousandths: RETRY_FACTOR_THOUSANDTHS_MAX + 1,
                delay_max_ms: 1,
            }),
        ];
        for policy in bad {
            assert!(policy.check().is_err(), "{policy:?}");
        }
        assert_eq!(RetryPolicy::default().check(), Ok(()));
    }
}
