//! Report: the moved jobs, the jobs left in the old server, and advice about them.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use taskyard_cli::faktory::Info;

use super::tally::Tally;
use crate::{
    output::{Output, Table, plain},
    values::count,
};

/// The jobs left in the old server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Left {
    /// Waiting jobs of the imported queues.
    queues: BTreeMap<String, u64>,
    scheduled: u64,
    retries: u64,
    dead: u64,
    working: u64,
}

impl Left {
    /// The jobs of these queues, or of all if none is named.
    pub(super) fn of(info: &Info, named: &[String]) -> Left {
        let is_meant = |name: &String| named.is_empty() || named.contains(name);
        // Names are separated by spaces on the wire, so that a name has none.
        let can_be_said =
            |name: &str| !name.contains(|c: char| c.is_whitespace() || c.is_control());
        let queues = info
            .queues
            .iter()
            .filter(|(name, jobs)| **jobs > 0 && is_meant(name) && can_be_said(name));
        Left {
            queues: queues.map(|(name, jobs)| (name.clone(), *jobs)).collect(),
            scheduled: info.scheduled,
            retries: info.retries,
            dead: info.dead,
            working: info.working,
        }
    }

    /// The number of jobs that wait in queues.
    pub(super) fn waiting(&self) -> u64 {
        self.queues.values().sum()
    }

    /// Queues with waiting jobs.
    pub(super) fn names(&self) -> Vec<String> {
        self.queues.keys().cloned().collect()
    }

    /// Jobs that will enter a queue later.
    pub(super) fn to_come(&self) -> u64 {
        self.scheduled + self.retries
    }

    /// Advice about the jobs that are left, one line each.
    fn advice(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.to_come() > 0 {
            lines.push(format!(
                "{} scheduled and {} waiting for a retry: let the old server run and import again when they \
                 are due, or now with --follow",
                self.scheduled, self.retries
            ));
        }
        if self.working > 0 {
            lines.push(format!(
                "{} reserved by workers or by an import that was killed: let workers finish and stop them; what \
                 is not acknowledged waits for a retry after its reservation, then import again",
                self.working
            ));
        }
        if self.dead > 0 {
            lines.push(format!(
                "{} dead: to keep some, retry them on the old server's web page and import again",
                self.dead
            ));
        }
        lines
    }
}

#[derive(Serialize)]
struct Plan<'a> {
    dry_run: bool,
    would_move: u64,
    left: &'a Left,
}

/// Reports the jobs that would be moved.
pub(super) fn plan(left: &Left, output: Output) -> Result<()> {
    let plan = Plan { dry_run: true, would_move: left.waiting(), left };
    output.value(&plan, |plan| table("would move", &plan.left.queues, output))?;
    advise(Some(left), output);
    Ok(())
}

#[derive(Serialize)]
struct Report<'a> {
    moved: u64,
    queues: BTreeMap<String, u64>,
    refused: usize,
    /// The jobs that are left; absent if the old server no longer answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<&'a Left>,
}

/// Reports the moved jobs, and returns their number.
pub(super) fn say(tally: &Tally, left: Option<&Left>, output: Output) -> Result<u64> {
    let queues = tally.moved_by_queue();
    let moved = queues.values().sum();
    let report = Report { moved, queues, refused: tally.refused(), left };
    output.value(&report, |report| table("moved", &report.queues, output))?;
    advise(left, output);
    Ok(moved)
}

/// Reports named queues that the old server does not have.
pub(super) fn warn_of_unknown(info: &Info, named: &[String], output: Output) {
    let unknown = named.iter().filter(|name| !info.queues.contains_key(*name));
    let unknown: Vec<&str> = unknown.map(String::as_str).collect();
    if unknown.is_empty() {
        return;
    }
    let unknown = unknown.join(", ");
    let there = match info.queues.is_empty() {
        true => "it has none".to_owned(),
        false => {
            let names: Vec<&str> = info.queues.keys().map(String::as_str).collect();
            format!("it has {}", names.join(", "))
        }
    };
    let text = format!("the old server has no queue {unknown}; {there}");
    if output.is_json() {
        eprintln!("{}", serde_json::json!({ "code": "no_such_queue", "detail": text }));
    } else {
        eprintln!("warning: {text}");
    }
}

fn table(what: &'static str, queues: &BTreeMap<String, u64>, output: Output) -> String {
    if queues.is_empty() {
        return format!("{what} 0 jobs");
    }
    let mut table = Table::new(&["queue", ">jobs"]);
    for (name, jobs) in queues {
        table.row(vec![plain(name), plain(jobs)]);
    }
    let total = count(queues.values().sum(), "job");
    format!("{}{what} {total}", table.render(output))
}

fn advise(left: Option<&Left>, output: Output) {
    let lines = left.map(Left::advice).unwrap_or_default();
    if !lines.is_empty() {
        output.say("still in the old server:");
    }
    for line in lines {
        output.say(format_args!("  {line}"));
    }
    output.say(
        "cron entries of its configuration are not moved: set each with taskyard schedule add",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> Info {
        let queues = [("mail", 3), ("empty", 0), ("default", 4), ("two words", 5)];
        Info {
            queues: queues.map(|(name, jobs)| (name.to_owned(), jobs)).into(),
            scheduled: 1,
            dead: 2,
            ..Info::default()
        }
    }

    #[test]
    fn only_queues_that_are_meant_and_hold_jobs_count() {
        let all = Left::of(&info(), &[]);
        assert_eq!((all.names(), all.waiting()), (vec!["default".into(), "mail".into()], 7));
        let named = Left::of(&info(), &["mail".into(), "empty".into(), "none".into()]);
        assert_eq!((named.names(), named.waiting(), named.to_come()), (vec!["mail".into()], 3, 1));
    }

    #[test]
    fn advice_is_about_what_is_there() {
        let advice = Left::of(&info(), &[]).advice();
        assert_eq!(advice.len(), 2, "{advice:?}");
        assert!(advice[0].starts_with("1 scheduled and 0 waiting for a retry"), "{advice:?}");
        assert!(advice[1].starts_with("2 dead"), "{advice:?}");
        assert_eq!(Left::default().advice(), [""; 0]);
    }

    #[test]
    fn counts_are_shown_by_queue_and_together() {
        let queues = Left::of(&info(), &[]).queues;
        let text = table("moved", &queues, Output::plain());
        assert_eq!(text, "QUEUE    JOBS\ndefault     4\nmail        3\nmoved 7 jobs");
        assert_eq!(table("moved", &BTreeMap::new(), Output::plain()), "moved 0 jobs");
    }
}
