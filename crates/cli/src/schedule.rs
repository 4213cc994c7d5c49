//! `taskyard schedule`: sets, shows, pauses, triggers, backfills and removes schedules.

mod show;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use taskyard::{
    Error, Schedule, ScheduleDetails, TaskId, Timestamp,
    schedule::{CatchUp, Overlap, SetSchedule},
};

use crate::{
    args::{CatchUpName, OverlapName, ScheduleAddArgs, ScheduleCommand},
    confirm::confirm_removal,
    enqueue,
    remote::{Remote, usage},
    values,
};

/// The shortest interval. The broker also refuses a shorter one, but in the words of the wire.
const EVERY_MIN: Duration = Duration::from_secs(1);
/// The longest jitter. The broker also refuses a longer one.
const JITTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The most names that are compared with a mistyped name.
const NAMES_COMPARED_MAX: u32 = 1_000;

pub(crate) async fn run(remote: &Remote, command: ScheduleCommand) -> Result<()> {
    let Remote { client, output, .. } = remote;
    match command {
        ScheduleCommand::Add(args) => {
            let rules = rules(&client.schedule(&args.name), &args)?;
            let set = remote.patiently(rules).await?;
            let set = Set { created: set.is_new(), schedule: set.details() };
            output.value(&set, |set| {
                let word = if set.created { "is set" } else { "has these rules now" };
                show::summary(*output, set.schedule, word)
            })?;
        }
        ScheduleCommand::List { limit, cursor } => list(remote, limit, cursor).await?,
        ScheduleCommand::Get { name } => {
            let schedule = client.schedule(&name).details().await;
            let schedule = schedule.or_meant(remote, &name).await?;
            output.value(&schedule, |schedule| show::describe(*output, schedule))?;
        }
        ScheduleCommand::Pause { names, note } => {
            for name in names {
                let paused = client.schedule(&name).pause(&note).await;
                let paused = paused.or_meant(remote, &name).await?;
                output.done(&paused, format_args!("schedule {name} is paused: nothing fires"))?;
            }
        }
        ScheduleCommand::Resume { names } => {
            for name in names {
                let resumed = client.schedule(&name).resume().await;
                let resumed = resumed.or_meant(remote, &name).await?;
                output.value(&resumed, |resumed| show::summary(*output, resumed, "runs"))?;
            }
        }
        ScheduleCommand::Trigger { name } => {
            let run = client.schedule(&name).trigger().await.or_meant(remote, &name).await?;
            let triggered = Triggered { id: run.id() };
            output.value(&triggered, |triggered| triggered.id.to_string())?;
        }
        ScheduleCommand::Backfill { name, from, to } => {
            let schedule = client.schedule(&name);
            let (from, to) = (Timestamp::from_millis(from), Timestamp::from_millis(to));
            let enqueued = schedule.backfill(from, to).await.or_meant(remote, &name).await?;
            output.value(&Backfilled { name, enqueued }, |Backfilled { name, enqueued }| {
                format!("enqueued {} of schedule {name}", values::count(*enqueued, "run"))
            })?;
        }
        ScheduleCommand::Remove { names, yes } => remove(remote, names, yes).await?,
    }
    Ok(())
}

#[derive(Serialize)]
struct Set<'a> {
    created: bool,
    #[serde(flatten)]
    schedule: &'a ScheduleDetails,
}

#[derive(Serialize)]
struct Triggered<'a> {
    id: &'a TaskId,
}

#[derive(Serialize)]
struct Backfilled {
    name: String,
    enqueued: u64,
}

#[derive(Serialize)]
struct Removed {
    name: String,
    removed: bool,
}

/// The rules of the command line.
fn rules(schedule: &Schedule, args: &ScheduleAddArgs) -> Result<SetSchedule> {
    let task = enqueue::typed_task(&args.kind, args.payload.as_deref(), &args.task)?;
    let task = enqueue::with_options(task, &args.task, &args.retry)?;
    let mut rules = match (&args.cron, args.every) {
        (Some(cron), _) => schedule.cron(cron, task),
        (None, Some(every)) if every >= EVERY_MIN => schedule.every(every, task),
        (None, Some(every)) => {
            let every = values::show_duration(every);
            return Err(usage(format!(
                "--every {every} is too short: the minimum is 1s; run a loop in a worker for \
                 shorter intervals"
            )));
        }
        (None, None) => return Err(usage("the schedule has no times: give --cron or --every")),
    };
    if let Some(timezone) = &args.timezone {
        rules = rules.timezone(timezone);
    }
    if let Some(overlap) = args.overlap {
        rules = rules.overlap(match overlap {
            OverlapName::Skip => Overlap::Skip,
            OverlapName::BufferOne => Overlap::BufferOne,
            OverlapName::Allow => Overlap::Allow,
            OverlapName::CancelOther => Overlap::CancelOther,
        });
    }
    if let Some(catch_up) = args.catch_up {
        rules = rules.catch_up(match catch_up {
            CatchUpName::None => CatchUp::None,
            CatchUpName::Last => CatchUp::Last,
            CatchUpName::All => CatchUp::All,
        });
    }
    if let Some(window) = args.catch_up_window {
        rules = rules.catch_up_window(window);
    }
    if let Some(jitter) = args.jitter {
        if jitter > JITTER_MAX {
            let jitter = values::show_duration(jitter);
            return Err(usage(format!("--jitter {jitter} is too long: the maximum is 24h")));
        }
        rules = rules.jitter(jitter);
    }
    if let Some(start) = args.start {
        rules = rules.start_at(Timestamp::from_millis(start));
    }
    if let Some(end) = args.end {
        rules = rules.end_at(Timestamp::from_millis(end));
    }
    if let Some(runs) = args.runs {
        rules = rules.remaining_runs(runs);
    }
    Ok(rules)
}

async fn list(remote: &Remote, limit: usize, cursor: Option<String>) -> Result<()> {
    let mut schedules = remote.client.schedules();
    if let Some(cursor) = cursor {
        schedules = schedules.after(cursor);
    }
    // A page is never larger than the rest of the list, so that its cursor is the end of the list.
    let mut found: Vec<ScheduleDetails> = Vec::new();
    let mut ended = false;
    while found.len() < limit && !ended {
        let wanted = (limit - found.len()).min(1_000);
        schedules = schedules.page_size(u32::try_from(wanted).unwrap_or(u32::MAX));
        match schedules.page().await? {
            Some(page) => found.extend(page),
            None => ended = true,
        }
    }
    let output = remote.output;
    if output.is_json() {
        for schedule in &found {
            output.json_line(schedule)?;
        }
    } else if found.is_empty() {
        output.say("no schedules yet: set one with taskyard schedule add");
    } else {
        output.line(&show::table(&found).render(output))?;
    }
    if let Some(cursor) = schedules.cursor().filter(|_| !ended) {
        eprintln!("there may be more: continue with --cursor {cursor}");
    }
    Ok(())
}

/// All schedules must exist before the first one is removed.
async fn remove(remote: &Remote, names: Vec<String>, yes: bool) -> Result<()> {
    for name in &names {
        remote.client.schedule(name).details().await.or_meant(remote, name).await?;
    }
    let what = match names.as_slice() {
        [name] => format!("schedule {name}"),
        names => format!("{} schedules: {}", names.len(), names.join(", ")),
    };
    confirm_removal(yes, &format!("remove {what}?"))?;
    for name in names {
        remote.client.schedule(&name).remove().await?;
        let text = format!("removed schedule {name}; its tasks stay");
        remote.output.done(&Removed { name, removed: true }, text)?;
    }
    Ok(())
}

/// An answer about a schedule that may not exist.
trait OrMeant<T> {
    /// If no schedule has this name, suggests a similar name.
    async fn or_meant(self, remote: &Remote, name: &str) -> Result<T, Error>;
}

impl<T> OrMeant<T> for Result<T, Error> {
    async fn or_meant(self, remote: &Remote, name: &str) -> Result<T, Error> {
        let code = match &self {
            Err(error) if error.is_not_found() => error.code().to_owned(),
            _ => return self,
        };
        let page = remote.client.schedules().page_size(NAMES_COMPARED_MAX).page().await?;
        let known = page.unwrap_or_default();
        let advice = match values::nearest(name, known.iter().map(|known| known.name.as_str())) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "see taskyard schedule list".to_owned(),
        };
        Err(Error::Rejected { code, message: format!("schedule {name} does not exist; {advice}") })
    }
}
