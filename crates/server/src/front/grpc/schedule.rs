//! Schedules in `taskyard.v1`, converted to and from the machine's types.

use super::wire;
use crate::{Broker, Error, broker::FoundSchedule, front::edge};
use taskyard_machine::{
    Body, CatchUp, Enqueue, NewTask, Overlap, Rhythm, SCHEDULE_HEADERS, ScheduleSpec, ShardId,
    Timestamp,
};
use taskyard_proto::v1;

/// The rules in a message, borrowed from it.
pub(super) fn spec<'a>(
    broker: &Broker,
    schedule: &'a v1::Schedule,
) -> Result<ScheduleSpec<'a>, Error> {
    let Some(task) = &schedule.task else {
        return Err(Error::Invalid("the schedule has no task; give it one".into()));
    };
    let given = |text: &'_ str| !text.is_empty();
    let cron = Some(schedule.cron.as_str()).filter(|text| given(text));
    let timezone = Some(schedule.timezone.as_str()).filter(|text| given(text));
    let queue = wire::queue_or_default(&task.queue);
    let catch_up = edge::policy("catch_up", &CatchUp::WORDS, &schedule.catch_up)?;
    Ok(ScheduleSpec {
        rhythm: edge::rhythm(cron, schedule.every_ms, timezone)?,
        home: ShardId(0),
        enqueue: Enqueue { queue, task: wire::new_task(broker, task)? },
        overlap: edge::policy("overlap", &Overlap::WORDS, &schedule.overlap)?,
        catch_up,
        catch_up_window_ms: edge::catch_up_window(catch_up, schedule.catch_up_window_ms)?,
        jitter_ms: schedule.jitter_ms,
        start_at: schedule.start_at.map(Timestamp),
        end_at: schedule.end_at.map(Timestamp),
        remaining_runs: schedule.remaining_runs,
    })
}

/// The reply about a schedule.
pub(super) fn reply(found: &FoundSchedule) -> v1::Schedule {
    let FoundSchedule { view, next_runs } = found;
    let spec = view.spec();
    let (cron, timezone, every_ms) = match spec.rhythm {
        Rhythm::Cron { expression, timezone } => (expression, timezone, None),
        Rhythm::Every { ms } => ("", "", Some(ms)),
    };
    v1::Schedule {
        name: view.name.clone(),
        cron: cron.to_owned(),
        every_ms,
        timezone: timezone.to_owned(),
        task: Some(task(spec.enqueue.queue, &spec.enqueue.task)),
        overlap: edge::word(&Overlap::WORDS, spec.overlap).to_owned(),
        catch_up: edge::word(&CatchUp::WORDS, spec.catch_up).to_owned(),
        catch_up_window_ms: edge::shown_window(spec.catch_up, spec.catch_up_window_ms),
        jitter_ms: spec.jitter_ms,
        start_at: spec.start_at.map(|at| at.0),
        end_at: spec.end_at.map(|at| at.0),
        remaining_runs: view.remaining_runs,
        paused: view.paused,
        note: view.note.clone(),
        created_at: view.created_at.0,
        next_run_at: view.next_run_at.map(|at| at.0),
        next_runs: next_runs.iter().map(|at| at.0).collect(),
        last_run_at: view.last_run_at.map(|at| at.0),
        last_task_id: view.last_task.map(|task| task.to_string()).unwrap_or_default(),
        live_task_ids: view.live.iter().map(ToString::to_string).collect(),
        buffered_at: view.buffered.map(|at| at.0),
        fired_total: view.fired,
        skipped_total: view.skipped,
        missed_total: view.missed,
    }
}

/// The schedule that fired the task, as its headers say.
pub(super) fn of_task<'a>(body: &Body<'a>) -> &'a str {
    let named = body.headers.iter().find(|(name, _)| *name == SCHEDULE_HEADERS[0]);
    named.map_or("", |(_, schedule)| schedule)
}

/// The task of a schedule's runs, with the fields that such a task may have.
fn task(queue: &str, task: &NewTask<'_>) -> v1::NewTask {
    v1::NewTask {
        queue: queue.to_owned(),
        r#type: task.task_type.to_owned(),
        payload: task.body.payload.to_vec().into(),
        content_type: task.body.content_type.to_owned(),
        headers: wire::owned_headers(&task.body),
        priority: task.priority.map(u32::from),
        retry: task.retry.as_ref().map(wire::retry_reply),
        timeout_ms: task.timeout_ms,
        retention_ms: task.retention_ms,
        tags: task.tags.iter().map(ToString::to_string).collect(),
        fairness_key: task.fairness_key.map(ToOwned::to_owned),
        ..v1::NewTask::default()
    }
}
