//! Schedules through the SDK, against the real broker: set, fire as the clock moves, read, pause,
//! trigger, backfill, remove, and refusals.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use taskyard::{
    Error, Fail, NewTask, State, Task, TaskContext, TaskState, Timestamp,
    schedule::{CatchUp, Overlap, ScheduleDetails},
    testing::{TestBroker, TestWorker},
};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    full: bool,
}

impl Task for Report {
    const NAME: &'static str = "report";
    const QUEUE: &'static str = "reports";
    type Output = String;
}

/// The runs: schedule and occurrence.
type Runs = Arc<Mutex<Vec<String>>>;

async fn report(_: Report, context: TaskContext, State(runs): State<Runs>) -> Result<String, Fail> {
    let occurrence = context.occurrence_at().ok_or("not of a schedule")?;
    let run = format!("{} {occurrence}", context.schedule().unwrap());
    runs.lock().unwrap().push(run.clone());
    Ok(run)
}

struct Yard {
    broker: TestBroker,
    runs: Runs,
    _worker: TestWorker,
}

impl Yard {
    async fn start() -> Yard {
        let broker = TestBroker::start().await.unwrap();
        let runs = Runs::default();
        let worker = broker.worker().state(Arc::clone(&runs)).task(report);
        let _worker = broker.run(worker).unwrap();
        Yard { broker, runs, _worker }
    }

    /// Lets time pass until all due runs have ended, and returns them.
    async fn runs_after(&self, time: Duration) -> Vec<String> {
        self.broker.advance(time).await.unwrap();
        self.ran().await
    }

    async fn runs_after_outage(&self, time: Duration) -> Vec<String> {
        self.broker.jump(time).await.unwrap();
        self.ran().await
    }

    async fn ran(&self) -> Vec<String> {
        self.broker.settle().await.unwrap();
        std::mem::take(&mut self.runs.lock().unwrap())
    }

    async fn schedule(&self, name: &str) -> ScheduleDetails {
        self.broker.client().schedule(name).details().await.unwrap()
    }
}

#[tokio::test]
async fn a_daily_schedule_fires_once_when_the_clock_is_moved_a_day() {
    let yard = Yard::start().await;
    let nightly = yard.broker.client().schedule("nightly");
    let rules = || nightly.cron("30 2 * * *", Report { full: true }).timezone("Europe/Berlin");
    let set = rules().await.unwrap();
    assert!(set.is_new());
    let made = set.details();
    assert_eq!((made.cron.as_deref(), made.every()), (Some("30 2 * * *"), None));
    assert_eq!(made.timezone.as_deref(), Some("Europe/Berlin"));
    assert_eq!((made.overlap, made.catch_up), (Overlap::Skip, CatchUp::Last));
    assert_eq!((made.queue.as_str(), made.task.kind.as_str()), ("reports", "report"));
    assert_eq!(made.task.payload_as::<Report>().unwrap(), Report { full: true });
    let next: Vec<String> = made.next_runs.iter().map(Timestamp::to_string).collect();
    assert_eq!(next.len(), 5);
    assert_eq!(
        (next[0].as_str(), made.next_run_at),
        ("2030-01-01T01:30:00.000Z", Some(made.next_runs[0]))
    );

    let again = rules().await.unwrap();
    assert!(!again.is_new());
    assert_eq!(again.details(), made, "the same rules change nothing");

    assert_eq!(yard.runs_after(DAY).await, ["nightly 2030-01-01T01:30:00.000Z"]);
    assert_eq!(yard.runs_after(DAY).await, ["nightly 2030-01-02T01:30:00.000Z"]);
    // As if the broker had been down for three occurrences and came back soon after the last.
    let outage = 2 * DAY + Duration::from_secs(7_200);
    assert_eq!(yard.runs_after_outage(outage).await, ["nightly 2030-01-05T01:30:00.000Z"]);
    let seen = yard.schedule("nightly").await;
    assert_eq!((seen.fired_total, seen.missed_total, seen.skipped_total), (3, 2, 0));
    let task = yard.broker.client().get(seen.last_task_id.unwrap()).await.unwrap();
    assert_eq!((task.state, task.schedule.as_deref()), (TaskState::Succeeded, Some("nightly")));
}

#[tokio::test]
async fn an_interval_fires_from_its_start_to_its_end_as_often_as_it_may() {
    let yard = Yard::start().await;
    let client = yard.broker.client();
    let start = yard.broker.now().as_millis() + 90_000;
    let set = client
        .schedule("few")
        .every(MINUTE, Report { full: false })
        .start_at(Timestamp::from_millis(start))
        .remaining_runs(2)
        .await
        .unwrap();
    assert_eq!(set.details().next_runs.len(), 2);
    assert_eq!(set.details().every(), Some(MINUTE));
    assert_eq!(yard.runs_after(MINUTE).await, [""; 0]);
    assert_eq!(yard.runs_after(MINUTE).await, ["few 2030-01-01T00:01:30.000Z"]);
    assert_eq!(yard.runs_after(MINUTE).await, ["few 2030-01-01T00:02:30.000Z"]);
    assert_eq!(yard.runs_after(DAY).await, [""; 0]);
    let ended = yard.schedule("few").await;
    assert_eq!((ended.next_run_at, ended.remaining_runs), (None, Some(0)));

    let until = Timestamp::from_millis(yard.broker.now().as_millis() + 120_000);
    let short = client.schedule("short").every(MINUTE, Report { full: false }).end_at(until);
    short.overlap(Overlap::Allow).await.unwrap();
    assert_eq!(yard.runs_after(DAY).await.len(), 2, "one per minute, as if time had passed");
    let ended = yard.schedule("short").await;
    assert_eq!((ended.fired_total, ended.missed_total, ended.next_run_at), (2, 0, None));
}

#[tokio::test]
async fn after_an_outage_all_fire_that_are_within_the_window() {
    let yard = Yard::start().await;
    let often = yard.broker.client().schedule("often").every(MINUTE, Report { full: true });
    let often = often.overlap(Overlap::Allow).catch_up(CatchUp::All).jitter(Duration::from_secs(5));
    often.catch_up_window(Duration::from_secs(200)).await.unwrap();
    // No worker runs these tasks: the first run delays the others.
    let idle = NewTask::new("idle", &()).queue("idle");
    let narrow = yard.broker.client().schedule("narrow").every(MINUTE, idle);
    narrow.catch_up(CatchUp::All).await.unwrap();
    yard.broker.jump(Duration::from_secs(620)).await.unwrap();
    let narrow = yard.schedule("narrow").await;
    assert_eq!((narrow.fired_total, narrow.skipped_total, narrow.missed_total), (1, 9, 0));
    assert_eq!(yard.broker.client().queue("idle").purge().await.unwrap().changed, 1);
    let mut ran = yard.ran().await;
    // Jitter delays some runs.
    ran.extend(yard.runs_after(Duration::from_secs(5)).await);
    ran.sort();
    let times: Vec<String> =
        (7..=10).map(|minute| format!("often 2030-01-01T00:{minute:02}:00.000Z")).collect();
    assert_eq!(ran, times);
    let seen = yard.schedule("often").await;
    assert_eq!(
        (seen.jitter(), seen.catch_up_window()),
        (Duration::from_secs(5), Some(Duration::from_secs(200)))
    );
    assert_eq!((seen.fired_total, seen.missed_total), (4, 6));
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_triggered_backfilled_and_removed() {
    let yard = Yard::start().await;
    let minutely = yard.broker.client().schedule("minutely");
    minutely.every(MINUTE, Report { full: true }).await.unwrap();
    let paused = minutely.pause("holidays").await.unwrap();
    assert_eq!((paused.paused, paused.note.as_str(), paused.next_run_at), (true, "holidays", None));
    assert_eq!(yard.runs_after(5 * MINUTE).await, [""; 0]);

    let triggered = minutely.trigger().await.unwrap();
    let result = triggered.result().within(MINUTE).await.unwrap();
    assert_eq!(result, "minutely 2030-01-01T00:05:00.000Z");
    yard.runs_after(Duration::ZERO).await;

    let resumed = minutely.resume().await.unwrap();
    assert!(!resumed.paused && resumed.note.is_empty() && resumed.next_run_at.is_some());
    assert_eq!(resumed.missed_total, 0, "occurrences during a pause are not missed");

    let from = yard.broker.now().as_millis() - 240_000;
    let to = yard.broker.now();
    assert_eq!(minutely.backfill(Timestamp::from_millis(from), to).await.unwrap(), 5);
    assert_eq!(yard.runs_after(Duration::ZERO).await.len(), 5);

    minutely.remove().await.unwrap();
    assert_eq!(yard.runs_after(5 * MINUTE).await, [""; 0]);
    for refused in [
        minutely.remove().await.unwrap_err(),
        minutely.details().await.unwrap_err(),
        minutely.pause("").await.unwrap_err(),
        minutely.resume().await.unwrap_err(),
        minutely.trigger().await.unwrap_err(),
        minutely.backfill(to, to).await.unwrap_err(),
    ] {
        assert!(refused.is_not_found(), "{refused:?}");
        assert_eq!(refused.to_string(), "schedule minutely does not exist; set it first");
    }
}

#[tokio::test]
async fn schedules_are_listed_page_by_page_and_shown_as_on_the_http_front() {
    let yard = Yard::start().await;
    let client = yard.broker.client();
    for name in ["c", "a", "b"] {
        let task =
            NewTask::new("probe", &json!({"n": 1})).priority(7).tag("x").header("trace", "t");
        client.schedule(name).cron("@hourly", task).await.unwrap();
    }
    let mut schedules = client.schedules().page_size(2);
    let mut names = Vec::new();
    while let Some(schedule) = schedules.next().await.unwrap() {
        names.push(schedule.name);
    }
    assert_eq!(names, ["a", "b", "c"]);
    let mut first = client.schedules().page_size(2);
    assert_eq!(first.page().await.unwrap().unwrap().len(), 2);
    let rest = client.schedules().after(first.cursor().unwrap()).page().await.unwrap().unwrap();
    assert_eq!(rest.len(), 1);

    let shown = serde_json::to_value(&rest[0]).unwrap();
    assert_eq!(
        shown,
        json!({
            "name": "c", "cron": "@hourly", "timezone": "UTC", "queue": "default",
            "task": {"type": "probe", "payload": {"n": 1}, "headers": {"trace": "t"},
                     "priority": 7, "tags": ["x"]},
            "overlap": "skip", "catch_up": "last", "catch_up_window_ms": 3_600_000, "jitter_ms": 0,
            "paused": false, "created_at": shown["created_at"],
            "next_run_at": "2030-01-01T01:00:00.000Z", "next_runs": shown["next_runs"],
            "live_task_ids": [], "fired_total": 0, "skipped_total": 0, "missed_total": 0,
        })
    );
}

#[tokio::test]
async fn invalid_rules_are_refused_and_set_nothing() {
    let yard = Yard::start().await;
    let client = yard.broker.client();
    let schedule = client.schedule("s");
    let cron = |cron: &str| schedule.cron(cron, Report { full: true });
    let past = Timestamp::from_millis(5);
    for (refused, told) in [
        (cron("0 0 30 2 *").await, "does not fire within ten years"),
        (cron("* * *").await, "it has 3 fields"),
        (cron("@daily").timezone("Europe/Berln").await, "did you mean Europe/Berlin?"),
        (cron("@daily").end_at(past).await, "no occurrence up to its end_at"),
        (cron("@daily").remaining_runs(0).await, "remaining_runs is 0"),
        (cron("@daily").overlap(Overlap::Unknown).await, "overlap \"unknown\" is not one of"),
        (
            schedule.every(MINUTE, Report { full: true }).timezone("UTC").await,
            "timezone means nothing for every_ms",
        ),
        (
            schedule.every(Duration::from_millis(5), Report { full: true }).await,
            "every_ms is 5; at least 1000 is allowed",
        ),
        (schedule.cron("@daily", NewTask::new("t", &()).delay(MINUTE)).await, "has run_at"),
        (client.schedule("no name").cron("@daily", NewTask::new("t", &())).await, "character ' '"),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, Error::Rejected { code, .. } if code == "invalid_argument"));
        assert!(refused.to_string().contains(told), "{refused}");
    }
    let no_json = std::collections::BTreeMap::from([((1, 2), 3)]);
    let refused = schedule.cron("@daily", NewTask::new("t", &no_json)).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    assert!(client.schedules().next().await.unwrap().is_none());
    let seen: Result<Value, _> = serde_json::to_value(schedule.details().await.unwrap_err().code());
    assert_eq!(seen.unwrap(), "not_found");
}

#[tokio::test]
async fn time_that_passes_over_many_occurrences_lets_each_run_end() {
    let yard = Yard::start().await;
    let hourly = yard.broker.client().schedule("hourly");
    hourly.cron("@hourly", Report { full: true }).await.unwrap();
    // No worker runs these tasks, and nothing waits for them.
    let idle = NewTask::new("idle", &()).queue("idle");
    yard.broker.client().schedule("idle").cron("0 */6 * * *", idle).await.unwrap();
    yard.broker.advance(DAY).await.unwrap();
    let idle = yard.schedule("idle").await;
    assert_eq!((idle.fired_total, idle.skipped_total), (1, 3));
    yard.broker.client().queue("idle").purge().await.unwrap();
    let times: Vec<String> = (1..24)
        .map(|hour| format!("hourly 2030-01-01T{hour:02}:00:00.000Z"))
        .chain(["hourly 2030-01-02T00:00:00.000Z".to_owned()])
        .collect();
    assert_eq!(yard.ran().await, times, "each once, none skipped");
}
