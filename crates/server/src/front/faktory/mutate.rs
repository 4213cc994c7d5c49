//! MUTATE: clears, kills, discards or requeues scheduled, retrying or dead jobs.

use super::{
    Shared,
    command::{PAGE_TASKS, unless_changed},
    frame::Reply,
    glob::Comparison,
    job::{AsJob, without_spaces},
    track::is_retrying,
};
use crate::{
    Error,
    broker::{DeadSelection, Found, ListAsked},
    limits,
};
use futures_util::future::try_join_all;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use std::{borrow::Cow, collections::HashSet, fmt};
use taskyard_machine::{Body, DeadAction, TaskId, TaskStateName, TaskView};
use tokio::task::yield_now;

/// The number of jobs that are changed together, so that they share syncs.
const AT_ONCE: usize = 100;
/// The steps of a comparison before other work has its turn: some milliseconds at most.
const STEPS_AT_ONCE: usize = 4_096;

/// An operation on jobs.
#[derive(Debug)]
pub(super) struct Mutation {
    operation: Operation,
    target: Target,
    filter: Filter,
}

/// A mutation as a client writes it.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow, default)]
    cmd: Cow<'a, str>,
    #[serde(borrow, default)]
    target: Cow<'a, str>,
    #[serde(default)]
    filter: Option<Filter>,
}

#[derive(Debug, Default, Deserialize)]
struct Filter {
    jids: Option<Jids>,
    regexp: Option<String>,
    jobtype: Option<String>,
}

/// The ids of jobs, up to the limit of one mutation.
#[derive(Debug, Default)]
struct Jids {
    named: HashSet<String>,
    /// Whether the client named more ids, which were not kept.
    has_more: bool,
}

impl<'de> Deserialize<'de> for Jids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Jids, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Jids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut jids: A) -> Result<Jids, A::Error> {
                let mut read = Jids::default();
                while read.named.len() < limits::FAKTORY_JIDS_MAX {
                    let Some(jid) = jids.next_element()? else { return Ok(read) };
                    read.named.insert(jid);
                }
                while jids.next_element::<IgnoredAny>()?.is_some() {
                    read.has_more = true;
                }
                Ok(read)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Kill,
    Discard,
    Requeue,
}

/// The set of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Scheduled,
    Retries,
    Dead,
}

impl Target {
    fn has(self, view: &TaskView) -> bool {
        match self {
            Target::Scheduled => view.state == TaskStateName::Scheduled && !is_retrying(view),
            Target::Retries => view.state == TaskStateName::Scheduled && is_retrying(view),
            Target::Dead => view.state == TaskStateName::Dead,
        }
    }
}

impl Filter {
    /// Drops empty fields, because some clients send all fields. Ids override the other fields.
    fn cleaned(self) -> Filter {
        let jids = self.jids.filter(|jids| !jids.named.is_empty());
        if jids.is_some() {
            return Filter { jids, ..Filter::default() };
        }
        Filter {
            jids,
            regexp: self.regexp.filter(|pattern| !pattern.is_empty() && pattern != "*"),
            jobtype: self.jobtype.filter(|jobtype| !jobtype.is_empty()),
        }
    }

    /// Whether a job fits. Yields to other work while it compares a long job.
    async fn takes(&self, found: &Found) -> bool {
        let Some(pattern) = &self.regexp else { return true };
        yield_now().await;
        let Some(body) = &found.body else { return false };
        let body = Body::decode(body).expect("a kept body is one that was encoded");
        let job = AsJob::new(&found.task, &body);
        let job = without_spaces(&job.json());
        let mut comparison = Comparison::new(pattern.as_bytes(), &job);
        loop {
            if let Some(fits) = comparison.advance(STEPS_AT_ONCE) {
                return fits;
            }
            yield_now().await;
        }
    }
}

impl Mutation {
    /// Reads a mutation, or says what is wrong with it.
    pub(super) fn read(json: &str) -> Result<Mutation, String> {
        let written: Written<'_> = serde_json::from_str(json).map_err(|_| "invalid format")?;
        let operation = match &*written.cmd {
            "clear" | "discard" => Operation::Discard,
            "kill" => Operation::Kill,
            "requeue" => Operation::Requeue,
            _ => return Err("unknown mutate operation".into()),
        };
        let target = match &*written.target {
            "scheduled" => Target::Scheduled,
            "retries" => Target::Retries,
            "dead" => Target::Dead,
            _ => return Err("invalid target for mutation command".into()),
        };
        let filter = match &*written.cmd {
            "clear" => Filter::default(),
            _ => written.filter.unwrap_or_default().cleaned(),
        };
        let bytes_max = limits::FAKTORY_PATTERN_BYTES_MAX;
        if filter.regexp.as_ref().is_some_and(|pattern| pattern.len() > bytes_max) {
            return Err(format!("regexp has more than {bytes_max} bytes; use jids or jobtype"));
        }
        if filter.jids.as_ref().is_some_and(|jids| jids.has_more) {
            let jids_max = limits::FAKTORY_JIDS_MAX;
            return Err(format!("jids has more than {jids_max} ids; send several mutations"));
        }
        Ok(Mutation { operation, target, filter })
    }
}

impl Shared {
    pub(super) async fn mutate(&self, json: &str) -> Result<Reply, Error> {
        let Mutation { operation, target, filter } = match Mutation::read(json) {
            Ok(mutation) => mutation,
            Err(text) => return Ok(Reply::error(text)),
        };
        // A mutation looks through many jobs and their bodies.
        let _place = self.mutations.acquire().await;
        match &filter.jids {
            Some(Jids { named, .. }) => self.change_named(operation, target, named).await?,
            None => self.change_all(operation, target, &filter).await?,
        }
        Ok(Reply::Ok)
    }

    /// Finds each job by its id, so that the cost does not depend on the number of other jobs.
    async fn change_named(
        &self,
        operation: Operation,
        target: Target,
        jids: &HashSet<String>,
    ) -> Result<(), Error> {
        let jids: Vec<&String> = jids.iter().collect();
        for some in jids.chunks(AT_ONCE) {
            let found = try_join_all(some.iter().map(|jid| self.find(jid))).await?;
            let there = found.into_iter().flatten().filter(|view| target.has(view));
            self.change(operation, target, there.map(|view| view.id).collect()).await?;
        }
        Ok(())
    }

    async fn change_all(
        &self,
        operation: Operation,
        target: Target,
        filter: &Filter,
    ) -> Result<(), Error> {
        let state = match target {
            Target::Scheduled | Target::Retries => TaskStateName::Scheduled,
            Target::Dead => TaskStateName::Dead,
        };
        let mut asked = ListAsked {
            state: Some(state),
            task_type: filter.jobtype.clone(),
            limit: PAGE_TASKS,
            with_body: filter.regexp.is_some(),
            ..ListAsked::default()
        };
        loop {
            let page = self.broker.tasks(asked.clone()).await?;
            let mut chosen: Vec<TaskId> = Vec::new();
            for found in page.tasks.iter().filter(|found| target.has(&found.task)) {
                if filter.takes(found).await {
                    chosen.push(found.task.id);
                }
            }
            self.change(operation, target, chosen).await?;
            if page.cursor.is_none() {
                return Ok(());
            }
            asked.cursor = page.cursor;
        }
    }

    async fn change(
        &self,
        operation: Operation,
        target: Target,
        tasks: Vec<TaskId>,
    ) -> Result<(), Error> {
        if target == Target::Dead {
            let action = match operation {
                // They are dead already.
                Operation::Kill => return Ok(()),
                Operation::Discard => DeadAction::Discard,
                Operation::Requeue => DeadAction::Retry,
            };
            let report = self.broker.dead(action, DeadSelection::Ids(tasks))?.end().await;
            return report.ended.unwrap_or(Ok(()));
        }
        for some in tasks.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|task| self.change_one(operation, *task))).await?;
        }
        Ok(())
    }

    async fn change_one(&self, operation: Operation, task: TaskId) -> Result<(), Error> {
        match operation {
            Operation::Kill => unless_changed(self.broker.kill(task).await),
            Operation::Discard => unless_changed(self.broker.cancel(task).await),
            Operation::Requeue => unless_changed(self.broker.retry(task, None).await),
        }
    }
}
