//! `taskyard queue`: shows, pauses, purges and deletes queues, and changes their settings.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use taskyard::{Error, PerKey, QueueDetails, QueueSettings, Rate, RetryGrowth, RetryPolicy};

use crate::{
    args::{PolicyName, QueueCommand, QueueSetArgs, RetryArgs, SettingName},
    confirm::confirm_removal,
    output::{self, Colour, Table, plain},
    remote::{Remote, usage},
    values::{self, millis},
};

pub(crate) async fn run(remote: &Remote, command: QueueCommand) -> Result<()> {
    match command {
        QueueCommand::List { limit, cursor } => list(remote, limit, cursor).await,
        QueueCommand::Get { queue } => get(remote, &queue).await,
        QueueCommand::Pause { queues } => pause(remote, &queues).await,
        QueueCommand::Resume { queues } => resume(remote, &queues).await,
        QueueCommand::Purge { queue, yes } => purge(remote, queue, yes).await,
        QueueCommand::Set(args) => set(remote, &args).await,
        QueueCommand::Delete { queue } => delete(remote, queue).await,
    }
}

async fn list(
    Remote { client, output, .. }: &Remote,
    limit: Option<usize>,
    cursor: Option<String>,
) -> Result<()> {
    let is_whole = cursor.is_none();
    let mut queues = client.queues();
    if let Some(cursor) = cursor {
        queues = queues.after(cursor);
    }
    // A page is never larger than what is still wanted, so that its cursor is where the list ends.
    let limit = limit.unwrap_or(usize::MAX);
    let mut found: Vec<QueueDetails> = Vec::new();
    while found.len() < limit {
        let wanted = (limit - found.len()).min(1_000);
        queues = queues.page_size(u32::try_from(wanted).unwrap_or(u32::MAX));
        match queues.page().await? {
            Some(page) => found.extend(page),
            None => break,
        }
    }
    if output.is_json() {
        for queue in &found {
            output.json_line(queue)?;
        }
    } else if found.is_empty() && is_whole {
        output.say("no queues yet: the first task creates one");
    } else if found.is_empty() {
        output.say("no more queues");
    } else {
        output.value(&(), |()| table(&found).render(*output))?;
    }
    if let Some(cursor) = queues.cursor() {
        eprintln!("there may be more: continue with --cursor {cursor}");
    }
    Ok(())
}

async fn get(Remote { client, output, .. }: &Remote, queue: &str) -> Result<()> {
    let details = client.queue(queue).details().await?;
    let settings = client.queue(queue).settings().await?;
    let both = QueueWithSettings { details: &details, settings: &settings };
    output.value(&both, |both| {
        let counts = table(std::slice::from_ref(both.details)).render(*output);
        format!("{counts}\n{}", show_settings(both.settings))
    })?;
    Ok(())
}

async fn pause(Remote { client, output, .. }: &Remote, queues: &[String]) -> Result<()> {
    for queue in queues {
        client.queue(queue).pause().await?;
        let text = format!("queue {queue} is paused: enqueues go on, claims wait");
        output.done(&Paused { queue, paused: true }, text)?;
    }
    Ok(())
}

async fn resume(Remote { client, output, .. }: &Remote, queues: &[String]) -> Result<()> {
    for queue in queues {
        client.queue(queue).resume().await?;
        output.done(&Paused { queue, paused: false }, format!("queue {queue} runs"))?;
    }
    Ok(())
}

async fn purge(Remote { client, output, .. }: &Remote, queue: String, yes: bool) -> Result<()> {
    let waiting = client.queue(&queue).details().await?;
    let waiting = waiting.ready + waiting.scheduled + waiting.blocked;
    let what = values::count(waiting, "waiting task");
    confirm_removal(yes, &format!("remove {what} of queue {queue}?"))?;
    let bar = output::progress(*output, Some(waiting), "tasks");
    let mut purge = client.queue(&queue).purge();
    let mut removed = 0;
    while let Some(progress) = purge.next().await? {
        removed = progress.changed;
        bar.set_position(removed);
    }
    bar.finish_and_clear();
    output.value(&Purged { queue, removed }, |purged| {
        let removed = values::count(purged.removed, "task");
        format!("removed {removed} of queue {}", purged.queue)
    })?;
    Ok(())
}

async fn delete(remote: &Remote, queue: String) -> Result<()> {
    check_there(remote, &queue).await?;
    remote.client.queue(&queue).delete().await?;
    let text = format!("queue {queue} is deleted, with its settings");
    remote.output.done(&Deleted { queue, deleted: true }, text)?;
    Ok(())
}

async fn set(Remote { client, output, .. }: &Remote, args: &QueueSetArgs) -> Result<()> {
    let queue = client.queue(&args.queue);
    let before = match queue.settings().await {
        // A queue may be set before its first task.
        Err(error) if error.is_not_found() => QueueSettings::default(),
        settings => settings?,
    };
    let settings = queue.set(change(args, before)?).await?;
    output.value(&settings, show_settings)?;
    Ok(())
}

/// Fails if a queue does not exist, and then suggests a queue with a similar name.
pub(crate) async fn check_there(remote: &Remote, name: &str) -> Result<(), Error> {
    let code = match remote.client.queue(name).details().await {
        Err(error) if error.is_not_found() => error.code().to_owned(),
        details => return details.map(drop),
    };
    let known = remote.client.queues().await?;
    let advice = match values::nearest(name, known.iter().map(|known| known.name.as_str())) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "see taskyard queue list".to_owned(),
    };
    Err(Error::Rejected { code, message: format!("queue {name} does not exist; {advice}") })
}

#[derive(Serialize)]
struct QueueWithSettings<'a> {
    #[serde(flatten)]
    details: &'a QueueDetails,
    settings: &'a QueueSettings,
}

#[derive(Serialize)]
struct Paused<'a> {
    queue: &'a str,
    paused: bool,
}

#[derive(Serialize)]
struct Deleted {
    queue: String,
    deleted: bool,
}

#[derive(Serialize)]
struct Purged {
    queue: String,
    removed: u64,
}

fn table(queues: &[QueueDetails]) -> Table {
    // The first counts are of existing tasks, then of succeeded tasks, and the last is of failed
    // attempts: one task may have several.
    let columns = [
        "queue",
        ">ready",
        ">scheduled",
        ">blocked",
        ">claimed",
        ">dead",
        ">succeeded",
        ">failed attempts",
        "oldest",
        "",
    ];
    let mut table = Table::new(&columns);
    for queue in queues {
        let dead = if queue.dead > 0 { Colour::Red } else { Colour::None };
        let oldest = match queue.ready {
            0 => String::new(),
            _ => values::show_roughly(queue.oldest_ready_age()),
        };
        let paused = if queue.paused { "paused" } else { "" };
        table.row(vec![
            (Colour::Bold, queue.name.clone()),
            plain(queue.ready),
            plain(queue.scheduled),
            plain(queue.blocked),
            plain(queue.claimed),
            (dead, queue.dead.to_string()),
            plain(queue.succeeded_total),
            plain(queue.failed_total),
            plain(oldest),
            (Colour::Yellow, paused.to_owned()),
        ]);
    }
    table
}

/// The settings after the change. Settings that were not given stay.
fn change(args: &QueueSetArgs, mut settings: QueueSettings) -> Result<QueueSettings> {
    for name in &args.unset {
        match name {
            SettingName::MaxLength => settings.max_length = None,
            SettingName::DedupWindow => settings.dedup_window_ms = None,
            SettingName::Retention => settings.retention_ms = None,
            SettingName::RetentionCount => settings.retention_count = None,
            SettingName::DeadRetention => settings.dead_retention_ms = None,
            SettingName::DeadRetentionCount => settings.dead_retention_count = None,
            SettingName::Timeout => settings.timeout_ms = None,
            SettingName::Concurrency => settings.concurrency = None,
            SettingName::Rate => settings.rate = None,
            SettingName::KeyConcurrency => per_key(&mut settings).concurrency = None,
            SettingName::KeyRate => per_key(&mut settings).rate = None,
            SettingName::Weights => settings.weights.clear(),
            SettingName::Ageing => settings.ageing_ms = None,
            SettingName::Spread => settings.spread = None,
            SettingName::Retry => settings.retry = None,
        }
    }
    let before = settings.clone();
    settings.max_length = args.max_length.or(before.max_length);
    settings.dedup_window_ms = args.dedup_window.map(millis).or(before.dedup_window_ms);
    settings.retention_ms = args.retention.map(millis).or(before.retention_ms);
    settings.retention_count = args.retention_count.or(before.retention_count);
    settings.dead_retention_ms = args.dead_retention.map(millis).or(before.dead_retention_ms);
    settings.dead_retention_count = args.dead_retention_count.or(before.dead_retention_count);
    settings.timeout_ms = args.timeout.map(millis).or(before.timeout_ms);
    settings.concurrency = args.concurrency.or(before.concurrency);
    settings.rate = rate("--burst", "--rate", args.rate, args.burst, before.rate)?;
    if args.key_concurrency.is_some() || args.key_rate.is_some() || args.key_burst.is_some() {
        let keys = per_key(&mut settings);
        keys.concurrency = args.key_concurrency.or(keys.concurrency);
        keys.rate = rate("--key-burst", "--key-rate", args.key_rate, args.key_burst, keys.rate)?;
    }
    settings.weights.extend(args.weight.iter().cloned());
    settings.ageing_ms = args.ageing.map(millis).or(before.ageing_ms);
    settings.spread = args.spread.or(before.spread);
    settings.retry = retry_policy(&args.retry, before.retry.clone())?.or(before.retry.clone());
    if args.unset.is_empty() && settings == before {
        return Err(usage(format!(
            "nothing to change: name a setting of queue {}, see taskyard queue set --help",
            args.queue
        )));
    }
    Ok(settings)
}

/// The limits of keys, created if there are none.
fn per_key(settings: &mut QueueSettings) -> &mut PerKey {
    settings.per_key.get_or_insert_default()
}

/// The rate of the command line. A new rate has its own burst.
fn rate(
    burst_flag: &str,
    rate_flag: &str,
    per_second: Option<f64>,
    burst: Option<u32>,
    before: Option<Rate>,
) -> Result<Option<Rate>> {
    match (per_second, burst, before) {
        (Some(per_second), burst, _) => Ok(Some(Rate { per_second, burst })),
        (None, Some(burst), Some(before)) => Ok(Some(before.burst(burst))),
        (None, Some(_), None) => {
            Err(usage(format!("{burst_flag} belongs to a rate: give {rate_flag} too")))
        }
        (None, None, before) => Ok(before),
    }
}

/// The retry policy of the command line, applied to `before`; `None` if no option was given.
pub(crate) fn retry_policy(
    args: &RetryArgs,
    before: Option<RetryPolicy>,
) -> Result<Option<RetryPolicy>> {
    let options = [
        ("--max-attempts", args.max_attempts.is_some()),
        ("--retry-delay", args.retry_delay.is_some()),
        ("--retry-delay-max", args.retry_delay_max.is_some()),
        ("--retry-factor", args.retry_factor.is_some()),
        ("--retry-jitter", args.retry_jitter.is_some()),
        ("--retry-delays", !args.retry_delays.is_empty()),
    ];
    let option = options.iter().find(|(_, given)| *given).map(|(option, _)| option);
    if args.policy.is_none() && option.is_none() {
        return Ok(None);
    }
    if let (Some(PolicyName::Never), Some(option)) = (args.policy, option) {
        return Err(usage(format!(
            "--retry never means one attempt and contradicts {option}: leave one of them out"
        )));
    }
    let mut policy = match args.policy {
        None if !args.retry_delays.is_empty() => RetryPolicy::list([]),
        None => before.unwrap_or_else(RetryPolicy::exponential),
        Some(PolicyName::Exponential) => RetryPolicy::exponential(),
        Some(PolicyName::Fixed) => RetryPolicy::fixed(Duration::from_secs(30)),
        Some(PolicyName::Linear) => RetryPolicy::linear(Duration::from_secs(30)),
        Some(PolicyName::Polynomial) => RetryPolicy::polynomial(),
        Some(PolicyName::List) => RetryPolicy::list([]),
        Some(PolicyName::Never) => RetryPolicy::never(),
    };
    if !args.retry_delays.is_empty() {
        if policy.policy != RetryGrowth::List {
            return Err(usage("--retry-delays works only with --retry list"));
        }
        policy = RetryPolicy::list(args.retry_delays.iter().copied());
    } else if policy.policy == RetryGrowth::List && policy.delays_ms.is_empty() {
        return Err(usage("--retry list needs the waits: --retry-delays 1s,10s,1m"));
    }
    policy.max_attempts = args.max_attempts.or(policy.max_attempts);
    policy.delay_ms = args.retry_delay.map(millis).or(policy.delay_ms);
    policy.delay_max_ms = args.retry_delay_max.map(millis).or(policy.delay_max_ms);
    policy.factor = args.retry_factor.or(policy.factor);
    policy.jitter = args.retry_jitter.or(policy.jitter);
    Ok(Some(policy))
}

fn show_settings(settings: &QueueSettings) -> String {
    let number = |n: Option<u64>| n.map_or_else(|| "default".to_owned(), |n| n.to_string());
    let span = |ms: Option<u64>| match ms {
        Some(ms) => values::show_duration(Duration::from_millis(ms)),
        None => "default".to_owned(),
    };
    let none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
    let keys = settings.per_key.unwrap_or_default();
    let weights: Vec<String> =
        settings.weights.iter().map(|(key, weight)| format!("{key}={weight}")).collect();
    let retry = match &settings.retry {
        Some(policy) => serde_json::to_string(policy).unwrap_or_default(),
        None => "default".to_owned(),
    };
    [
        ("max-length", number(settings.max_length)),
        ("dedup-window", span(settings.dedup_window_ms)),
        ("retention", span(settings.retention_ms)),
        ("retention-count", number(settings.retention_count.map(u64::from))),
        ("dead-retention", span(settings.dead_retention_ms)),
        ("dead-retention-count", number(settings.dead_retention_count.map(u64::from))),
        ("timeout", span(settings.timeout_ms)),
        ("concurrency", none(settings.concurrency.map(|n| n.to_string()))),
        ("rate", none(settings.rate.map(show_rate))),
        ("key-concurrency", none(keys.concurrency.map(|n| n.to_string()))),
        ("key-rate", none(keys.rate.map(show_rate))),
        ("weights", none((!weights.is_empty()).then(|| weights.join(", ")))),
        ("ageing", settings.ageing_ms.map_or_else(|| "none".to_owned(), |ms| span(Some(ms)))),
        ("spread", number(settings.spread.map(u64::from))),
        ("retry", retry),
    ]
    .map(|(name, value)| format!("{name:<20}  {value}\n"))
    .concat()
}

fn show_rate(rate: Rate) -> String {
    let burst = rate.burst.map(|burst| format!(", {burst} at once")).unwrap_or_default();
    format!("{}/s{burst}", rate.per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn set(line: &str) -> QueueSetArgs {
        let line = format!("taskyard queue set mail {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Queue(QueueCommand::Set(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_is_given_changes() {
        let before = QueueSettings {
            max_length: Some(5),
            timeout_ms: Some(1_000),
            ..QueueSettings::default()
        };
        let after = change(&set("--retention 1h --unset max-length"), before.clone()).unwrap();
        assert_eq!(after.max_length, None);
        assert_eq!(after.timeout_ms, Some(1_000));
        assert_eq!(after.retention_ms, Some(3_600_000));
        assert!(change(&set(""), before).is_err(), "nothing to change");
    }

    #[test]
    fn limits_change_one_by_one() {
        let none = QueueSettings::default;
        let line = "--rate 90/m --burst 5 --key-concurrency 2 --weight acme=3 --weight =2";
        let after = change(&set(line), none()).unwrap();
        assert_eq!(after.rate, Some(Rate::per_second(1.5).burst(5)));
        assert_eq!(after.per_key, Some(PerKey { concurrency: Some(2), rate: None }));
        assert_eq!(after.weights, [("acme".to_owned(), 3), (String::new(), 2)].into());
        let line = "--burst 9 --key-rate 1/s --unset key-concurrency --unset weights --ageing 1m";
        let after = change(&set(line), after).unwrap();
        assert_eq!(after.rate, Some(Rate::per_second(1.5).burst(9)));
        let keys = PerKey { concurrency: None, rate: Some(Rate::per_second(1.0)) };
        assert_eq!((after.per_key, after.ageing_ms), (Some(keys), Some(60_000)));
        assert!(after.weights.is_empty());
        let alone = change(&set("--burst 9"), none()).unwrap_err();
        assert!(alone.to_string().contains("give --rate too"), "{alone}");
    }

    #[test]
    fn a_retry_policy_is_built_on_the_one_before() {
        let fixed = RetryPolicy::fixed(Duration::from_secs(9)).max_attempts(3);
        let before = QueueSettings { retry: Some(fixed.clone()), ..QueueSettings::default() };
        let after = change(&set("--max-attempts 7"), before.clone()).unwrap();
        assert_eq!(after.retry, Some(fixed.max_attempts(7)));
        let after = change(&set("--retry-delays 1s,2s"), before.clone()).unwrap();
        assert_eq!(after.retry.unwrap().delays_ms, [1_000, 2_000]);
        for wrong in [
            "--retry list",
            "--retry fixed --retry-delays 1s",
            "--retry never --max-attempts 5",
            "--retry never --retry-delay 1s",
            "--retry never --retry-delays 1s",
        ] {
            assert!(change(&set(wrong), before.clone()).is_err(), "{wrong}");
        }
        let after = change(&set("--retry never"), before).unwrap();
        assert_eq!(after.retry, Some(RetryPolicy::never()));
    }
}
