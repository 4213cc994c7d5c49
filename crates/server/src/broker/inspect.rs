//! Reads: tasks, results, queues, the node. Reads of the cluster are in `cluster.rs`.
//!
//! Every read is a strong read of its shard. A list over all shards is strong per shard.

use super::{
    Broker,
    by_name::Look,
    cursor::{Cursor, decode_queue, encode_queue, page_limit},
};
use crate::{Error, limits::PAGE_BODY_BYTES_MAX, shard::all_queues};
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::{collections::BTreeMap, time::Duration};
use taskyard_machine::{
    ClaimToken, QueueName, QueueSettings, QueueView, Rejection, SessionId, ShardId, TaskId,
    TaskStateName, TaskView, Timestamp, ask, limits,
};

/// The most reads in one call for a page that find less than they asked for.
pub(super) const LOOKS_MAX: usize = limits::SCAN_TASKS_MAX / limits::LOOK_TASKS_MAX;

/// A task and, on request, its encoded body (see `taskyard_machine::Body::decode`).
#[derive(Clone, Debug)]
pub struct Found {
    /// The task.
    pub task: TaskView,
    /// Its body.
    pub body: Option<Bytes>,
}

/// The page of a list that is asked for.
#[derive(Clone, Debug, Default)]
pub struct ListAsked {
    /// In this queue.
    pub queue: Option<String>,
    /// In this state.
    pub state: Option<TaskStateName>,
    /// Of this type.
    pub task_type: Option<String>,
    /// Whose last error has this type, or a message that contains this.
    pub error: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Of this flow.
    pub flow: Option<TaskId>,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
    /// The most tasks on the page.
    pub limit: u32,
    /// The order of the list.
    pub order: ListOrder,
    /// Only tasks enqueued at this moment or later; for dead letters, tasks that died. For
    /// [`ListOrder::Newest`] alone.
    pub since: Option<Timestamp>,
    /// Whether to return their bodies.
    pub with_body: bool,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// Shard after shard, each in id order. This costs least for a walk over all tasks.
    #[default]
    Id,
    /// The last enqueued first; for dead letters, the last that died.
    Newest,
}

impl ListAsked {
    /// The question to one shard.
    fn question(&self, after: Option<TaskId>, limit: usize) -> ask::Tasks {
        ask::Tasks {
            queue: self.queue.clone(),
            state: self.state,
            task_type: self.task_type.clone(),
            error: self.error.clone(),
            tag: self.tag.clone(),
            flow: self.flow,
            after,
            limit: limit as u32,
        }
    }
}

/// One page of a list over all shards.
#[derive(Clone, Debug)]
pub struct Page {
    /// The tasks, in the order asked for.
    pub tasks: Vec<Found>,
    /// Where to continue; `None` at the end. A page may be short, even empty, and still have a
    /// cursor.
    pub cursor: Option<String>,
}

impl Page {
    /// `bodies` are in the order of the tasks, or empty.
    pub(super) fn new(
        views: Vec<TaskView>,
        bodies: Vec<Option<Bytes>>,
        cursor: Option<String>,
    ) -> Page {
        let mut bodies = bodies.into_iter();
        let found = |task| Found { task, body: bodies.next().flatten() };
        Page { tasks: views.into_iter().map(found).collect(), cursor }
    }
}

/// One page of queues.
#[derive(Clone, Debug)]
pub struct QueuePage {
    /// By name.
    pub queues: Vec<QueueView>,
    /// Where to go on; `None` is the end. A page may be short, even empty, and still go on.
    pub cursor: Option<String>,
}

/// The state and the result of a task.
#[derive(Clone, Debug)]
pub struct TaskResult {
    /// Its state.
    pub state: TaskStateName,
    /// What it returned.
    pub result: Option<Vec<u8>>,
    /// Type, message and backtrace of its last failed attempt, unless it succeeded.
    pub error: Option<[String; 3]>,
}

/// A description of this node.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// The broker's version.
    pub version: &'static str,
    /// The cluster's incarnation, as text.
    pub cluster_id: String,
    /// The number of its shards.
    pub shards: u16,
    /// Its wall time.
    pub now: Timestamp,
}

impl Broker {
    /// One task.
    pub async fn task(&self, task: TaskId, with_body: bool) -> Result<Found, Error> {
        let shard = self.shard_of_task(task)?;
        let view = self.shards().ask(shard, ask::Task { task }).await?;
        let view = view.ok_or(Rejection::TaskNotFound { task })?;
        let body = match with_body {
            true => self.shards().bodies(vec![task]).await?.pop().flatten(),
            false => None,
        };
        Ok(Found { task: view, body })
    }

    /// The tasks that a request id made, in all queues, as long as shards remember it.
    pub async fn find_by_request(&self, request_id: &str) -> Result<Vec<TaskId>, Error> {
        let ask = |shard| {
            let question = ask::MadeByRequest { request_id: request_id.to_owned() };
            self.shards().ask(ShardId(shard), question)
        };
        let found = try_join_all((0..self.shards().count()).map(ask)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The claims that a session holds, on all shards.
    pub(crate) async fn claims_of(
        &self,
        session: SessionId,
    ) -> Result<Vec<(TaskId, ClaimToken)>, Error> {
        let ask = |shard| self.shards().ask(ShardId(shard), ask::ClaimsOf { session });
        let found = try_join_all((0..self.shards().count()).map(ask)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The encoded bodies of tasks; `None` for a body that is not kept.
    pub(crate) async fn bodies(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<Bytes>>, Error> {
        self.shards().bodies(tasks).await
    }

    /// A page of tasks.
    pub async fn tasks(&self, asked: ListAsked) -> Result<Page, Error> {
        let limit = page_limit(asked.limit)?;
        let shards = self.shards().count();
        let mut looked_at: Vec<ShardId> = match &asked.queue {
            Some(queue) => self.reach_of_queue(queue)?,
            None => (0..shards).map(ShardId).collect(),
        };
        match (asked.order, asked.since) {
            (ListOrder::Newest, _) => return self.newest(&asked, looked_at).await,
            (ListOrder::Id, None) => {}
            (ListOrder::Id, Some(_)) => {
                let text =
                    "since is for a list that begins with the newest; ask for that order too";
                return Err(Error::Invalid(text.into()));
            }
        }
        let at = match &asked.cursor {
            Some(text) => Cursor::decode(text, shards)?,
            None => Cursor::default(),
        };
        looked_at.sort_unstable();
        let from = |shard: ShardId| looked_at.iter().copied().find(|other| *other >= shard);
        let (mut views, mut looks) = (Vec::new(), 0);
        let mut next = match looked_at.contains(&at.shard) {
            true => Some(at),
            false => from(at.shard).map(|shard| Cursor { shard, after: None }),
        };
        while let Some(at) = next {
            let wanted = limit - views.len();
            let page = self.shards().ask(at.shard, asked.question(at.after, wanted)).await?;
            let found = page.tasks.len();
            views.extend(page.tasks);
            next = match page.next {
                Some(after) => Some(Cursor { shard: at.shard, after: Some(after) }),
                None => from(ShardId(at.shard.0 + 1)).map(|shard| Cursor { shard, after: None }),
            };
            // A short page with a next position is one of several reads, because the shard does
            // other work in between.
            looks += usize::from(page.next.is_some() && found < wanted);
            if views.len() >= limit || looks == LOOKS_MAX {
                break;
            }
        }
        self.page(views, next, asked.with_body).await
    }

    async fn page(
        &self,
        mut views: Vec<TaskView>,
        mut next: Option<Cursor>,
        with_body: bool,
    ) -> Result<Page, Error> {
        let mut bodies = Vec::new();
        if with_body {
            if cut_to_bodies(&mut views) {
                let last = views.last().map(|view| view.id);
                next = last.map(|id| Cursor { shard: id.home, after: Some(id) });
            }
            bodies = self.shards().bodies(views.iter().map(|view| view.id).collect()).await?;
        }
        Ok(Page::new(views, bodies, next.map(Cursor::encode)))
    }

    /// The result of a task; waits up to `wait` for its end.
    pub async fn result(&self, task: TaskId, wait: Duration) -> Result<TaskResult, Error> {
        if !wait.is_zero() {
            self.shard_of_task(task)?;
            tokio::select! {
                finished = self.shards().finished(task, wait) => finished.map(drop)?,
                () = self.stopping() => {}
            }
        }
        let view = self.task(task, false).await?.task;
        let failed_parent = view.flow.and_then(|flow| flow.failed_parent);
        let error = match (view.state, failed_parent) {
            (TaskStateName::Succeeded, _) => None,
            (_, Some(parent)) => {
                Some(["parent_failed".into(), format!("parent {parent} failed"), String::new()])
            }
            _ => view.attempts.into_iter().rev().find_map(|attempt| attempt.error),
        };
        Ok(TaskResult { state: view.state, result: view.result, error })
    }

    /// A page of queues, by name, from the cursor of the page before on.
    pub async fn queue_page(&self, cursor: Option<String>, limit: u32) -> Result<QueuePage, Error> {
        let after = cursor.as_deref().map(decode_queue).transpose()?;
        let limit = page_limit(limit)?;
        let look = |shard, after: Option<String>, limit| async move {
            let after = after.as_deref().map(queue_name);
            let page = self.shards().ask(shard, ask::Queues { after, limit }).await?;
            let named = |view: QueueView| (view.name.as_str().to_owned(), view);
            let next = page.next.map(|name| name.as_str().to_owned());
            Ok(Look { found: page.queues.into_iter().map(named).collect(), next })
        };
        let page = self.by_name(after, limit, look).await?;
        let cursor = page.next.map(|name| encode_queue(&name));
        let merged =
            |(name, views): (String, Vec<(ShardId, QueueView)>)| self.merge_reached(&name, views);
        Ok(QueuePage { queues: page.found.into_iter().filter_map(merged).collect(), cursor })
    }

    /// All queues, by name. Each shard is read look after look, and does other things between.
    pub async fn queues(&self) -> Result<Vec<QueueView>, Error> {
        let shards = (0..self.shards().count()).map(ShardId);
        let read = |shard| async move {
            let found = all_queues(|question| self.shards().ask(shard, question)).await?;
            Ok::<_, Error>(found.into_iter().map(move |view| (shard, view)))
        };
        let mut queues: BTreeMap<QueueName, Vec<(ShardId, QueueView)>> = BTreeMap::new();
        for (shard, view) in try_join_all(shards.map(read)).await?.into_iter().flatten() {
            queues.entry(view.name.clone()).or_default().push((shard, view));
        }
        let merged = |(name, views): (QueueName, Vec<(ShardId, QueueView)>)| {
            self.merge_reached(name.as_str(), views)
        };
        Ok(queues.into_iter().filter_map(merged).collect())
    }

    /// A queue out of what the shards that it lies on know of it. Others may still know of it from
    /// before its spread changed.
    fn merge_reached(&self, name: &str, views: Vec<(ShardId, QueueView)>) -> Option<QueueView> {
        let reach = self.shards().reach(name);
        merge(views.into_iter().filter(|(shard, _)| reach.contains(shard)), reach[0])
    }

    /// One queue.
    pub async fn queue(&self, queue: &str) -> Result<QueueView, Error> {
        let reach = self.reach_of_queue(queue)?;
        let read = |&shard: &ShardId| async move {
            let view = self.shards().ask(shard, ask::Queue { queue: queue_name(queue) }).await?;
            Ok::<_, Error>(view.map(|view| (shard, view)))
        };
        let views = try_join_all(reach.iter().map(read)).await?;
        merge(views.into_iter().flatten(), reach[0])
            .ok_or_else(|| Rejection::QueueNotFound { queue: queue_name(queue) }.into())
    }

    /// A queue's own settings.
    pub async fn queue_settings(&self, queue: &str) -> Result<QueueSettings, Error> {
        let (shard, name) = (self.shard_of_queue(queue)?, queue_name(queue));
        let settings = self.shards().ask(shard, ask::QueueSettings { queue: name }).await?;
        settings.ok_or_else(|| Rejection::QueueNotFound { queue: queue_name(queue) }.into())
    }

    /// A description of this node.
    pub async fn info(&self) -> Result<NodeInfo, Error> {
        Ok(NodeInfo {
            version: env!("CARGO_PKG_VERSION"),
            cluster_id: self.cluster_id(),
            shards: self.shards().count(),
            now: self.now(),
        })
    }

    pub(crate) fn cluster_id(&self) -> String {
        format!("{:032x}", self.shards().cluster())
    }
}

/// Cuts a page to the bodies that fit. Returns whether it was longer.
pub(super) fn cut_to_bodies(views: &mut Vec<TaskView>) -> bool {
    let mut bytes = 0;
    let fits = |view: &TaskView| {
        bytes += view.body_bytes as usize;
        bytes <= PAGE_BODY_BYTES_MAX
    };
    let kept = views.iter().map(fits).take_while(|fits| *fits).count().max(1);
    let is_longer = kept < views.len();
    views.truncate(kept);
    is_longer
}

/// One queue from the views of its shards: counts are sums, and its home says whether it is paused.
fn merge(views: impl Iterator<Item = (ShardId, QueueView)>, home: ShardId) -> Option<QueueView> {
    let mut merged: Option<QueueView> = None;
    for (shard, view) in views {
        merged = Some(match merged {
            None => view,
            Some(sum) if shard == home => view.with(&sum),
            Some(sum) => sum.with(&view),
        });
    }
    merged
}

/// A name whose grammar was checked before.
pub(super) fn queue_name(checked: &str) -> QueueName {
    QueueName::parse(checked).expect("the grammar was checked when it was routed")
}
