//! MUTATE: clears, kills, discards or requeues jobs among those that are scheduled, retried or dead.

use super::{
    Shared,
    command::{PAGE_TASKS, unless_changed},
    frame::Reply,
    glob::matches,
    job::{AsJob, without_spaces},
    track::is_retrying,
};
use crate::{
    Error,
    broker::{DeadSelection, Found, ListAsked},
};
use serde::Deserialize;
use std::borrow::Cow;
use taskyard_machine::{Body, DeadAction, TaskId, TaskStateName, TaskView};

#[derive(Deserialize)]
struct Mutation<'a> {
    #[serde(borrow, default)]
    cmd: Cow<'a, str>,
    #[serde(borrow, default)]
    target: Cow<'a, str>,
    #[serde(default)]
    filter: Option<Filter>,
}

#[derive(Default, Deserialize)]
struct Filter {
    jids: Option<Vec<String>>,
    regexp: Option<String>,
    jobtype: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Kill,
    Discard,
    Requeue,
}

/// Where the jobs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Scheduled,
    Retries,
    Dead,
}

impl Target {
    fn holds(self, view: &TaskView) -> bool {
        match self {
            Target::Scheduled => view.state == TaskStateName::Scheduled && !is_retrying(view),
            Target::Retries => view.state == TaskStateName::Scheduled && is_retrying(view),
            Target::Dead => view.state == TaskStateName::Dead,
        }
    }
}

impl Filter {
    /// Without empty wishes: some clients send all of them. Ids win over the others.
    fn cleaned(self) -> Filter {
        let jids = self.jids.filter(|jids| !jids.is_empty());
        if jids.is_some() {
            return Filter { jids, ..Filter::default() };
        }
        Filter {
            jids,
            regexp: self.regexp.filter(|pattern| !pattern.is_empty() && pattern != "*"),
            jobtype: self.jobtype.filter(|jobtype| !jobtype.is_empty()),
        }
    }

    fn looks_inside(&self) -> bool {
        self.jids.is_some() || self.regexp.is_some()
    }

    fn takes(&self, found: &Found) -> bool {
        if !self.looks_inside() {
            return true;
        }
        let Some(body) = &found.body else { return false };
        let body = Body::decode(body).expect("a kept body is one that was encoded");
        let job = AsJob::new(&found.task, &body);
        let named = |jids: &Vec<String>| jids.iter().any(|jid| **jid == *job.jid());
        self.jids.as_ref().is_none_or(named)
            && self
                .regexp
                .as_ref()
                .is_none_or(|glob| matches(glob.as_bytes(), &without_spaces(&job.json())))
    }
}

impl Shared {
    pub(super) async fn mutate(&self, json: &str) -> Result<Reply, Error> {
        let Ok(mutation) = serde_json::from_str::<Mutation<'_>>(json) else {
            return Ok(Reply::error("invalid format"));
        };
        let operation = match &*mutation.cmd {
            "clear" | "discard" => Operation::Discard,
            "kill" => Operation::Kill,
            "requeue" => Operation::Requeue,
            _ => return Ok(Reply::error("unknown mutate operation")),
        };
        let target = match &*mutation.target {
            "scheduled" => Target::Scheduled,
            "retries" => Target::Retries,
            "dead" => Target::Dead,
            _ => return Ok(Reply::error("invalid target for mutation command")),
        };
        let filter = match &*mutation.cmd {
            "clear" => Filter::default(),
            _ => mutation.filter.unwrap_or_default().cleaned(),
        };
        self.change_all(operation, target, &filter).await?;
        Ok(Reply::Ok)
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
            with_body: filter.looks_inside(),
            ..ListAsked::default()
        };
        loop {
            let page = self.broker.tasks(asked.clone()).await?;
            let chosen = |found: &&Found| target.holds(&found.task) && filter.takes(found);
            let chosen: Vec<TaskId> =
                page.tasks.iter().filter(chosen).map(|found| found.task.id).collect();
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
                // So they are.
                Operation::Kill => return Ok(()),
                Operation::Discard => DeadAction::Discard,
                Operation::Requeue => DeadAction::Retry,
            };
            let report = self.broker.dead(action, DeadSelection::Ids(tasks))?.end().await;
            return report.ended.unwrap_or(Ok(()));
        }
        for task in tasks {
            match operation {
                Operation::Kill => unless_changed(self.broker.kill(task).await)?,
                Operation::Discard => unless_changed(self.broker.cancel(task).await)?,
                Operation::Requeue => unless_changed(self.broker.retry(task, None).await)?,
            }
        }
        Ok(())
    }
}
