//! Random values, drawn from a seed, of every type that travels between nodes.

use crate::draw::Draw;
use crate::wire::encode;
use crate::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A type with a random value.
pub(crate) trait Drawn: Sized {
    fn drawn(draw: &mut Draw) -> Self;
}

/// Draws each field of a struct, or a variant of an enum; the compiler reports a missing one.
macro_rules! drawn {
    (struct $name:ident { $($field:ident),+ $(,)? }) => {
        impl Drawn for $name {
            fn drawn(draw: &mut Draw) -> $name {
                $name { $($field: Drawn::drawn(draw)),+ }
            }
        }
    };
    (enum $name:ident { $(
        $variant:ident $(($($item:ident),+))? $({ $($field:ident),+ })?
    ),+ $(,)? }) => {
        impl Drawn for $name {
            fn drawn(draw: &mut Draw) -> $name {
                let makers: &[fn(&mut Draw) -> $name] = &[$(|_draw| {
                    $($(let $item = Drawn::drawn(_draw);)+)?
                    $($(let $field = Drawn::drawn(_draw);)+)?
                    $name::$variant $(($($item),+))? $({ $($field),+ })?
                }),+];
                let made = makers[draw.up_to(makers.len() as u64 - 1) as usize](draw);
                match made {
                    $($name::$variant { .. } => made),+
                }
            }
        }
    };
}

macro_rules! drawn_numbers {
    ($($type:ty),+) => {$(
        impl Drawn for $type {
            /// Draws short numbers as often as long ones.
            fn drawn(draw: &mut Draw) -> $type {
                (draw.up_to(u64::MAX) >> draw.up_to(63)) as $type
            }
        }
    )+};
}

drawn_numbers!(u8, u16, u32, u64);

impl Drawn for u128 {
    fn drawn(draw: &mut Draw) -> u128 {
        u128::from(draw.up_to(u64::MAX)) << 64 | u128::from(draw.up_to(u64::MAX))
    }
}

impl Drawn for bool {
    fn drawn(draw: &mut Draw) -> bool {
        draw.up_to(1) == 1
    }
}

impl Drawn for String {
    fn drawn(draw: &mut Draw) -> String {
        let letters = ['a', 'Z', '0', ' ', '\n', '"', '\u{0}', 'é', '→', '🦀'];
        let length = draw.up_to(12);
        (0..length).map(|_| letters[draw.up_to(letters.len() as u64 - 1) as usize]).collect()
    }
}

impl Drawn for Box<str> {
    fn drawn(draw: &mut Draw) -> Box<str> {
        String::drawn(draw).into()
    }
}

impl Drawn for Arc<str> {
    fn drawn(draw: &mut Draw) -> Arc<str> {
        String::drawn(draw).into()
    }
}

impl Drawn for QueueName {
    fn drawn(draw: &mut Draw) -> QueueName {
        QueueName::parse(&format!("queue-{}", draw.up_to(99))).unwrap()
    }
}

impl<T: Drawn> Drawn for Option<T> {
    fn drawn(draw: &mut Draw) -> Option<T> {
        bool::drawn(draw).then(|| T::drawn(draw))
    }
}

impl<T: Drawn, E: Drawn> Drawn for Result<T, E> {
    fn drawn(draw: &mut Draw) -> Result<T, E> {
        if bool::drawn(draw) { Ok(T::drawn(draw)) } else { Err(E::drawn(draw)) }
    }
}

impl<T: Drawn> Drawn for Vec<T> {
    fn drawn(draw: &mut Draw) -> Vec<T> {
        let length = draw.up_to(3);
        (0..length).map(|_| T::drawn(draw)).collect()
    }
}

impl<T: Drawn> Drawn for Box<[T]> {
    fn drawn(draw: &mut Draw) -> Box<[T]> {
        Vec::drawn(draw).into()
    }
}

impl<T: Drawn> Drawn for [T; 3] {
    fn drawn(draw: &mut Draw) -> [T; 3] {
        [T::drawn(draw), T::drawn(draw), T::drawn(draw)]
    }
}

impl<A: Drawn, B: Drawn> Drawn for (A, B) {
    fn drawn(draw: &mut Draw) -> (A, B) {
        (A::drawn(draw), B::drawn(draw))
    }
}

impl<K: Drawn + Ord, V: Drawn> Drawn for BTreeMap<K, V> {
    fn drawn(draw: &mut Draw) -> BTreeMap<K, V> {
        Vec::<(K, V)>::drawn(draw).into_iter().collect()
    }
}

impl Drawn for Timestamp {
    fn drawn(draw: &mut Draw) -> Timestamp {
        Timestamp(Drawn::drawn(draw))
    }
}

impl Drawn for ClaimToken {
    fn drawn(draw: &mut Draw) -> ClaimToken {
        ClaimToken(Drawn::drawn(draw))
    }
}

impl Drawn for SessionId {
    fn drawn(draw: &mut Draw) -> SessionId {
        SessionId(Drawn::drawn(draw))
    }
}

impl Drawn for ShardId {
    fn drawn(draw: &mut Draw) -> ShardId {
        ShardId(Drawn::drawn(draw))
    }
}

impl Drawn for TaskId {
    fn drawn(draw: &mut Draw) -> TaskId {
        TaskId::from_u128(Drawn::drawn(draw))
    }
}

impl Drawn for Box<Rejection> {
    /// The same depth of nesting as the machine produces.
    fn drawn(draw: &mut Draw) -> Box<Rejection> {
        loop {
            match Rejection::drawn(draw) {
                Rejection::BatchElement { .. } | Rejection::InNode { .. } => {}
                innermost => return Box::new(innermost),
            }
        }
    }
}

/// The rules of a schedule, encoded.
fn drawn_rules(draw: &mut Draw) -> Box<[u8]> {
    let (queue, task_type) = (String::drawn(draw), String::drawn(draw));
    let task = NewTask { task_type: &task_type, ..NewTask::default() };
    encode(&ScheduleSpec {
        rhythm: Rhythm::Every { ms: Drawn::drawn(draw) },
        home: ShardId(Drawn::drawn(draw)),
        enqueue: Enqueue { queue: &queue, task },
        overlap: Overlap::Allow,
        catch_up: CatchUp::Last,
        catch_up_window_ms: Drawn::drawn(draw),
        jitter_ms: Drawn::drawn(draw),
        start_at: Drawn::drawn(draw),
        end_at: Drawn::drawn(draw),
        remaining_runs: Drawn::drawn(draw),
    })
}

impl Drawn for ScheduleView {
    fn drawn(draw: &mut Draw) -> ScheduleView {
        ScheduleView {
            name: Drawn::drawn(draw),
            spec: drawn_rules(draw),
            revision: Drawn::drawn(draw),
            remaining_runs: Drawn::drawn(draw),
            paused: Drawn::drawn(draw),
            note: Drawn::drawn(draw),
            created_at: Drawn::drawn(draw),
            next_run_at: Drawn::drawn(draw),
            last_run_at: Drawn::drawn(draw),
            last_task: Drawn::drawn(draw),
            live: Drawn::drawn(draw),
            buffered: Drawn::drawn(draw),
            fired: Drawn::drawn(draw),
            skipped: Drawn::drawn(draw),
            missed: Drawn::drawn(draw),
        }
    }
}

drawn!(
    enum TaskStateName {
        Blocked,
        Scheduled,
        Ready,
        Claimed,
        Succeeded,
        Failed,
        Dead,
        Cancelled,
        Expired,
    }
);
drawn!(
    enum FlowState {
        Running,
        Succeeded,
        Failed,
        Cancelled,
    }
);
drawn!(
    enum AttemptOutcome {
        Succeeded,
        Failed,
        Lost,
        Released,
        Snoozed,
        Cancelled,
        TimedOut,
    }
);
drawn!(
    enum DeathReason {
        AttemptsSpent,
        NotRetryable,
        Quarantined,
        Killed,
    }
);
drawn!(
    enum UniqueUntil {
        Start,
        Done,
    }
);
drawn!(
    enum OnFailure {
        Fail,
        Ignore,
        Run,
    }
);
drawn!(
    enum ScheduledFor {
        Delay,
        Retry,
        Loss,
        Snooze,
    }
);
drawn!(
    enum KeyHolder {
        Task(id),
        BatchElement(index),
    }
);
drawn!(struct HeldTasks { waiting, claimed, dead });
drawn!(enum Rejection {
    InvalidArgument { what },
    BatchElement { index, rejection },
    InNode { node, rejection },
    FlowNotFound { flow },
    FlowEnded { flow, state },
    TaskNotFound { task },
    AlreadyRemoved { task },
    QueueNotFound { queue },
    ScheduleNotFound { name },
    ScheduleChanged { name },
    BatchNotFound { batch },
    ClaimLost { task },
    AlreadyFinished { task, state },
    WrongState { task, state, hint },
    QueueFull { queue, limit },
    NotUnique { key, holder, hint },
    LimitExceeded { what },
    NeverRuns { expires_at },
    QueueMoved { queue },
    WrongFlowState { flow, state, hint },
    TallyNotFound { tally },
    QueueNotEmpty { queue, held },
});
drawn!(enum Outcome {
    Enqueued(enqueued),
    EnqueuedMany(answers),
    EnqueuedBatch(enqueued),
    Staged,
    Claimed(tasks),
    Acked { follow_ups },
    Failed(after),
    Extended { lease_expires_at, lease_ms, cancel_requested },
    Renewed(renewals),
    Released { state },
    Snoozed { run_at, state },
    CancelRequested { state },
    Retried,
    Bulk(progress),
    ScheduleSet { is_new, is_changed },
    ScheduleFired { fired, skipped, missed },
    Done,
    Expired { count },
    FlowSubmitted { flow, tasks, duplicate },
    FlowTasksAdded(enqueued),
    FlowState(state),
    Taken,
    Killed { state },
    TallyOpened { tally },
    TallyAdded { ids },
});
drawn!(struct Enqueued { id, duplicate });
drawn!(struct ClaimedTask {
    id, token, queue, task_type, priority, attempt, lease_expires_at, lease_ms, timeout_ms,
    enqueued_at, resume_state, fairness_key, flow, parents,
});
drawn!(struct ParentResult { name, task, state, result, omitted, error });
drawn!(enum AfterFailure { Retry { run_at }, Dead, Failed, Cancelled });
drawn!(enum Renewal { Held { lease_expires_at, lease_ms, cancel_requested }, Lost });
drawn!(struct BulkProgress { changed, skipped, next });
drawn!(struct TaskView {
    id, queue, task_type, state, priority, attempt, max_attempts, losses, enqueued_at, run_at,
    expires_at, finished_at, timeout_ms, claim, progress, resume_state, result, death, tags,
    fairness_key, flow, attempts, unique, body_bytes,
});
drawn!(struct UniqueView { key, until, expires_at, debounce_ms, held });
drawn!(struct FlowMember { flow, node, failed_parent });
drawn!(struct SpreadView { version, spread, reach, is_empty, requests_until });
drawn!(struct ClaimView {
    token, worker, session, claimed_at, lease_expires_at, cancel_requested,
});
drawn!(struct AttemptView { attempt, worker, claimed_at, ended_at, outcome, error });
drawn!(struct TaskPage { tasks, next });
drawn!(struct QueuePage { queues, next });
drawn!(struct SchedulePage { schedules, next });
drawn!(struct NewestAt { at, task });
drawn!(struct NewestSpan { before, since, limit, scan });
drawn!(struct NewestPage { tasks, next });
drawn!(struct QueueView { name, paused, counts, oldest_ready_for_ms });
drawn!(struct QueueCounts {
    blocked, scheduled, ready, claimed, dead, finished, enqueued_total, succeeded_total,
    failed_total, dead_total, lost_total, expired_total, cancelled_total, retrying,
});
drawn!(struct QueueSettings {
    max_length, dedup_window_ms, retention_ms, retention_count, dead_retention_ms,
    dead_retention_count, retry, timeout_ms, concurrency, rate, per_key, weights, ageing_ms, spread,
});
drawn!(struct RetryPolicy { backoff, max_attempts, jitter_thousandths });
drawn!(enum Backoff {
    Exponential { delay_ms, factor_thousandths, delay_max_ms },
    Fixed { delay_ms },
    Linear { delay_ms, delay_max_ms },
    Polynomial,
    List { delays_ms },
});
drawn!(struct Rate { per_second_millionths, burst });
drawn!(struct PerKey { concurrency, rate });
drawn!(struct WhyView { queue, task_type, now, reasons });
drawn!(enum Reason {
    Parents { flow, node },
    QueuePaused,
    Scheduled { until, reason },
    QueueConcurrency { claimed, limit },
    QueueRate { opens_at },
    KeyConcurrency { key, claimed, limit },
    KeyRate { key, opens_at },
    KeyHeld { key, until },
    Ahead { tasks, at_least },
    Running { worker, since },
    Finished { state },
});
drawn!(struct EnqueueCut { next_sequence, now });
drawn!(struct FlowView {
    id, name, state, cancel_requested, created_at, ended_at, nodes_total, nodes_done, nodes_failed,
    nodes, results, results_omitted,
});
drawn!(struct NodeView { name, task, state, depends_on, added_by, added_open, error });
drawn!(struct FlowFilter { name, state });
drawn!(struct FlowPage { flows, next });
drawn!(struct TaskSketch { state, queue, task_type });
drawn!(struct LinkView { sent, taken });
drawn!(
    enum CallbackState {
        Waiting,
        Enqueued,
        Succeeded,
    }
);
drawn!(struct TallyView {
    tally, parent, description, created_at, committed, total, pending, failed, complete, success,
});
