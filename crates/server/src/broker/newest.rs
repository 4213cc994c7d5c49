//! Newest: lists over all shards that begin with the newest.
//!
//! Every task has one place in such a list, by its time and then its id, on whichever shard it is.
//! So one place is a position on every shard. A page is merged from the answers of the shards. It
//! takes a task only once no shard can have a newer one that it has not reported.

use super::{Broker, ListAsked, Page, cursor};
use crate::Error;
use futures_util::future::try_join_all;
use std::collections::VecDeque;
use taskyard_machine::{
    NewestAt, NewestSpan, ShardId, TaskStateName, TaskView, Timestamp, ask, limits,
};

/// The least that each shard reads, however many share the work of a page.
const SCAN_MIN: usize = 500;

/// Tasks that one shard has found and the page has not taken yet, the newest first.
struct Source {
    shard: ShardId,
    found: VecDeque<(Timestamp, TaskView)>,
    /// Where the shard continues; `None` if it has no more.
    next: Option<NewestAt>,
    /// The shard has read as much as one page may, or its answer was cut.
    is_tired: bool,
}

impl Source {
    fn newest(&self) -> Option<NewestAt> {
        self.found.front().map(|(at, task)| NewestAt { at: *at, task: task.id })
    }
}

impl Broker {
    /// A page of tasks of these shards, the newest first.
    pub(super) async fn newest(
        &self,
        asked: &ListAsked,
        shards: Vec<ShardId>,
    ) -> Result<Page, Error> {
        let limit = asked.limit as usize;
        let before = asked.cursor.as_deref().map(cursor::decode_newest).transpose()?;
        let scan = (limits::SCAN_TASKS_MAX / shards.len().max(1)).max(SCAN_MIN);
        // Enough if all shards have their share, and a little more.
        let mut share = (limit.div_ceil(shards.len().max(1)) + 2).min(limit);
        let span = |before, wanted: usize| NewestSpan {
            before,
            since: asked.since,
            limit: wanted as u32,
            scan: scan as u32,
        };
        let first = shards.into_iter().map(|shard| self.look(asked, shard, span(before, share)));
        let mut sources = try_join_all(first).await?;
        let mut views = Vec::new();
        let mut last = None;
        let next = loop {
            if views.len() == limit {
                let has_more =
                    sources.iter().any(|source| source.next.or(source.newest()).is_some());
                break last.filter(|_| has_more);
            }
            let used_up = sources.iter().position(|source| {
                source.found.is_empty() && source.next.is_some() && !source.is_tired
            });
            if let Some(number) = used_up {
                // A shard that has most of the list is asked for more each time.
                share = (2 * share).min(limit);
                let (shard, next) = (sources[number].shard, sources[number].next);
                let wanted = share.min(limit - views.len());
                sources[number] = self.look(asked, shard, span(next, wanted)).await?;
                continue;
            }
            // Below this, a shard may have a task that it has not reached.
            let unknown = sources.iter().filter(|source| source.found.is_empty());
            let unknown = unknown.filter_map(|source| source.next).max();
            let newest = sources.iter_mut().max_by_key(|source| source.newest());
            let Some(source) = newest.filter(|source| source.newest() > unknown) else {
                break unknown;
            };
            last = source.newest();
            views.extend(source.found.pop_front().map(|(_, task)| task));
        };
        self.newest_page(views, next, asked).await
    }

    async fn look(
        &self,
        asked: &ListAsked,
        shard: ShardId,
        span: NewestSpan,
    ) -> Result<Source, Error> {
        let question = ask::Newest {
            queue: asked.queue.clone(),
            state: asked.state,
            task_type: asked.task_type.clone(),
            error: asked.error.clone(),
            tag: asked.tag.clone(),
            flow: asked.flow,
            span,
        };
        let page = self.shards().ask(shard, question).await?;
        let is_tired = page.next.is_some() && page.tasks.len() < span.limit as usize;
        Ok(Source { shard, found: page.tasks.into(), next: page.next, is_tired })
    }

    async fn newest_page(
        &self,
        mut views: Vec<TaskView>,
        mut next: Option<NewestAt>,
        asked: &ListAsked,
    ) -> Result<Page, Error> {
        let bodies = match asked.with_body {
            true => {
                if super::inspect::cut_to_bodies(&mut views) {
                    next = views.last().map(|view| asked.newest_at(view));
                }
                self.bodies(views.iter().map(|view| view.id).collect()).await?
            }
            false => Vec::new(),
        };
        Ok(Page::new(views, bodies, next.map(cursor::encode_newest)))
    }
}

impl ListAsked {
    /// The place of a task in this list.
    fn newest_at(&self, view: &TaskView) -> NewestAt {
        let died_at = view.finished_at.filter(|_| self.state == Some(TaskStateName::Dead));
        NewestAt { at: died_at.unwrap_or(view.enqueued_at), task: view.id }
    }
}
