//! The nouns of a task: id, claim token, time and states.
//!
//! Ids and tokens are types, so that two integers in a row are never swapped. Both come from
//! counters in the state, never from a clock or from randomness.

use std::{fmt, str::FromStr};

/// Milliseconds since the Unix epoch, as stamped by a shard's leader.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The moment `ms` later; stops at the largest moment instead of wrapping.
    pub fn plus_ms(self, ms: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(ms))
    }

    /// The moment in UTC, to the millisecond, as RFC 3339.
    pub fn to_rfc3339(self) -> String {
        const DAY_MS: u64 = 86_400_000;
        let (year, month, day) = civil_date(self.0 / DAY_MS);
        let ms = self.0 % DAY_MS;
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        format!(
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
            ms % 1_000
        )
    }

    /// The time since `earlier`, 0 if this moment is not later.
    pub fn ms_since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar. Years begin
/// in March here, so that the leap day is the last day. The months then follow from the days by a
/// linear formula: 153 days in five months.
fn civil_date(days: u64) -> (u64, u64, u64) {
    const CENTURIES_4: u64 = 146_097;
    // Days since 0000-03-01.
    let days = days + 719_468;
    let day_of_era = days % CENTURIES_4;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = days / CENTURIES_4 * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// A shard's number, from 0. The number of shards is fixed when a data directory is made.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The permanent name of a task: opaque to clients, sortable per origin, routable without a lookup.
///
/// Shown as 26 lower-case base32 characters (`0-9a-v`, five bits each, the first with three).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The cluster's incarnation: random, renewed by a restore, so that ids are never made twice.
    pub incarnation: u32,
    /// The shard that has the task.
    pub home: ShardId,
    /// The shard whose counter made the id.
    pub origin: ShardId,
    /// The value of the counter.
    pub sequence: u64,
}

const BASE32: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
const TASK_ID_CHARS: usize = 26;

impl TaskId {
    /// The id as one number, most significant field first.
    pub fn to_u128(self) -> u128 {
        u128::from(self.incarnation) << 96
            | u128::from(self.home.0) << 80
            | u128::from(self.origin.0) << 64
            | u128::from(self.sequence)
    }

    /// The reverse of [`TaskId::to_u128`].
    pub fn from_u128(id: u128) -> TaskId {
        TaskId {
            incarnation: (id >> 96) as u32,
            home: ShardId((id >> 80) as u16),
            origin: ShardId((id >> 64) as u16),
            sequence: id as u64,
        }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.to_u128();
        let mut text = [0u8; TASK_ID_CHARS];
        for (position, slot) in text.iter_mut().enumerate() {
            let shift = 5 * (TASK_ID_CHARS - 1 - position);
            *slot = BASE32[(id >> shift) as usize & 31];
        }
        f.write_str(std::str::from_utf8(&text).expect("base32 is ASCII"))
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error of a text that is not a task id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a task id: expected 26 characters of 0-9 and a-v")]
pub struct InvalidTaskId {
    text: String,
}

impl FromStr for TaskId {
    type Err = InvalidTaskId;

    fn from_str(text: &str) -> Result<TaskId, InvalidTaskId> {
        let invalid = || InvalidTaskId { text: text.chars().take(64).collect() };
        if text.len() != TASK_ID_CHARS || text.as_bytes()[0] > b'7' {
            return Err(invalid());
        }
        let mut id = 0u128;
        for byte in text.bytes() {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'v' => byte - b'a' + 10,
                _ => return Err(invalid()),
            };
            id = id << 5 | u128::from(digit);
        }
        Ok(TaskId::from_u128(id))
    }
}

/// Proves the right to finish one attempt. A later claim of the same task always gets a higher
/// token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimToken(pub u64);

/// The name of a worker's session: random, made by the gateway, never a host or process name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u128);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The state of a flow, with the same name in code, wire, documents and dashboard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlowState {
    /// Some of its tasks have not ended.
    Running,
    /// All tasks ended, and no failure counts.
    Succeeded,
    /// All tasks ended, and a failure counts.
    Failed,
    /// The flow was cancelled before it ended.
    Cancelled,
}

impl FlowState {
    /// Every state.
    pub const ALL: [FlowState; 4] =
        [FlowState::Running, FlowState::Succeeded, FlowState::Failed, FlowState::Cancelled];

    /// The name of the state, the same on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            FlowState::Running => "running",
            FlowState::Succeeded => "succeeded",
            FlowState::Failed => "failed",
            FlowState::Cancelled => "cancelled",
        }
    }

    /// The reverse of [`FlowState::as_str`].
    pub fn parse(word: &str) -> Option<FlowState> {
        FlowState::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for FlowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a task, with the same name in code, wire, documents and dashboard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TaskStateName {
    /// Waits for its parents in a flow.
    Blocked,
    /// Waits for a moment: a delay or a retry.
    Scheduled,
    /// May be claimed now.
    Ready,
    /// A worker holds the task.
    Claimed,
    /// Ended with success.
    Succeeded,
    /// Ended without success and without a dead letter.
    Failed,
    /// Attempts spent, not retryable, quarantined or killed; kept as a dead letter.
    Dead,
    /// Cancelled before it ended.
    Cancelled,
    /// Not claimed before its `expires_at`.
    Expired,
}

impl TaskStateName {
    /// Every state, in the order of a task's life.
    pub const ALL: [TaskStateName; 9] = [
        TaskStateName::Blocked,
        TaskStateName::Scheduled,
        TaskStateName::Ready,
        TaskStateName::Claimed,
        TaskStateName::Succeeded,
        TaskStateName::Failed,
        TaskStateName::Dead,
        TaskStateName::Cancelled,
        TaskStateName::Expired,
    ];

    /// The name of the state, the same on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskStateName::Blocked => "blocked",
            TaskStateName::Scheduled => "scheduled",
            TaskStateName::Ready => "ready",
            TaskStateName::Claimed => "claimed",
            TaskStateName::Succeeded => "succeeded",
            TaskStateName::Failed => "failed",
            TaskStateName::Dead => "dead",
            TaskStateName::Cancelled => "cancelled",
            TaskStateName::Expired => "expired",
        }
    }

    /// The reverse of [`TaskStateName::as_str`].
    pub fn parse(word: &str) -> Option<TaskStateName> {
        TaskStateName::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether the task has ended. A dead letter has, although an operator can retry it.
    pub fn is_finished(self) -> bool {
        match self {
            TaskStateName::Blocked
            | TaskStateName::Scheduled
            | TaskStateName::Ready
            | TaskStateName::Claimed => false,
            TaskStateName::Succeeded
            | TaskStateName::Failed
            | TaskStateName::Dead
            | TaskStateName::Cancelled
            | TaskStateName::Expired => true,
        }
    }
}

impl fmt::Display for TaskStateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_ids_survive_text_and_sort_like_numbers() {
        let id = |home, sequence| TaskId {
            incarnation: 0xdead_beef,
            home: ShardId(home),
            origin: ShardId(3),
            sequence,
        };
        for task in [id(0, 0), id(31, 1), id(7, u64::MAX)] {
            let text = task.to_string();
            assert_eq!(text.len(), 26);
            assert_eq!(text.parse::<TaskId>(), Ok(task), "{text}");
        }
        assert!(id(1, 9).to_string() < id(1, 10).to_string());
    }

    #[test]
    fn malformed_task_ids_are_refused() {
        for text in ["", "abc", "zzzzzzzzzzzzzzzzzzzzzzzzzz", "8000000000000000000000000é"] {
            assert!(text.parse::<TaskId>().is_err(), "{text}");
        }
        assert!("80000000000000000000000000".parse::<TaskId>().is_err(), "over 128 bits");
    }

    #[test]
    fn moments_are_shown_as_calendar_dates() {
        for (ms, told) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_000, "2024-02-29T23:59:59.000Z"),
            (1_735_689_600_000, "2025-01-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp(ms).to_rfc3339(), told);
        }
    }
}
