//! Lists by name over all shards.
//!
//! Names are spread evenly over the shards. So each shard is asked for its share of a page first,
//! and again only while a name of the page may still be missing there: a page costs what it shows,
//! however many names there are. A name is shown once all shards have been read up to it, because
//! several shards may have it.

use super::{Broker, inspect::LOOKS_MAX};
use crate::Error;
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use taskyard_machine::ShardId;

/// Names that one shard showed, after the one that it was asked to start at.
pub(super) struct Look<T> {
    /// By name.
    pub(super) found: Vec<(String, T)>,
    /// The name up to which the shard was read; `None`: it was read to its end.
    pub(super) next: Option<String>,
}

/// A page of names of all shards.
pub(super) struct NamePage<T> {
    /// By name: what each shard that has it showed.
    pub(super) found: Vec<(String, Vec<(ShardId, T)>)>,
    /// The name up to which all shards were read; `None`: all were read to their ends.
    pub(super) next: Option<String>,
}

/// How far a shard was read.
struct Walk {
    shard: ShardId,
    after: Option<String>,
    ended: bool,
}

impl Broker {
    /// A page of up to `limit` names after a name. `look` asks one shard for a number of names
    /// after a name.
    pub(super) async fn by_name<T, F>(
        &self,
        after: Option<String>,
        limit: usize,
        look: impl Fn(ShardId, Option<String>, u32) -> F,
    ) -> Result<NamePage<T>, Error>
    where
        F: Future<Output = Result<Look<T>, Error>>,
    {
        let shards = self.shards().count();
        let share = (2 * limit.div_ceil(shards.into())).min(limit) as u32;
        let walk = |shard| Walk { shard: ShardId(shard), after: after.clone(), ended: false };
        let mut walks: Vec<Walk> = (0..shards).map(walk).collect();
        let mut found: BTreeMap<String, Vec<(ShardId, T)>> = BTreeMap::new();
        for _ in 0..LOOKS_MAX {
            let last = found.keys().nth(limit - 1).cloned();
            let is_behind = |walk: &&mut Walk| {
                !walk.ended && last.as_ref().is_none_or(|last| walk.after.as_ref() < Some(last))
            };
            let mut behind: Vec<&mut Walk> = walks.iter_mut().filter(is_behind).collect();
            if behind.is_empty() {
                break;
            }
            let asked = behind.iter().map(|walk| look(walk.shard, walk.after.clone(), share));
            let answers = try_join_all(asked).await?;
            for (walk, answer) in behind.iter_mut().zip(answers) {
                (walk.ended, walk.after) = (answer.next.is_none(), answer.next);
                for (name, shown) in answer.found {
                    found.entry(name).or_default().push((walk.shard, shown));
                }
            }
        }
        let reached = walks.into_iter().filter(|walk| !walk.ended).filter_map(|walk| walk.after);
        Ok(page(found, limit, reached.min()))
    }
}

/// The first `limit` of these names that every shard was read up to. `reached`: how far the shard
/// was read that was read least, unless all were read to their ends.
fn page<T>(
    found: BTreeMap<String, Vec<(ShardId, T)>>,
    limit: usize,
    reached: Option<String>,
) -> NamePage<T> {
    let is_known = |name: &String| reached.as_ref().is_none_or(|reached| name <= reached);
    let known = found.keys().take_while(|name| is_known(name)).count();
    let goes_on = reached.is_some() || known > limit;
    let found: Vec<_> = found.into_iter().take(known.min(limit)).collect();
    let next = match known >= limit {
        true => found.last().map(|(name, _)| name.clone()),
        false => reached,
    };
    NamePage { found, next: next.filter(|_| goes_on) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], limit: usize, reached: Option<&str>) -> (Vec<String>, Option<String>) {
        let found = names.iter().map(|name| ((*name).to_owned(), vec![(ShardId(0), ())]));
        let NamePage { found, next } = page(found.collect(), limit, reached.map(str::to_owned));
        (found.into_iter().map(|(name, _)| name).collect(), next)
    }

    #[test]
    fn a_page_ends_where_a_shard_may_have_more() {
        let some = |name: &str| Some(name.to_owned());
        for (names, limit, reached, shown, next) in [
            (vec![], 2, None, vec![], None),
            (vec!["a", "b"], 2, None, vec!["a", "b"], None),
            (vec!["a", "b", "c"], 2, None, vec!["a", "b"], some("b")),
            (vec!["a", "b"], 2, Some("b"), vec!["a", "b"], some("b")),
            (vec!["a", "b", "c"], 2, Some("c"), vec!["a", "b"], some("b")),
            (vec!["a", "c"], 2, Some("b"), vec!["a"], some("b")),
            (vec!["c"], 2, Some("b"), vec![], some("b")),
        ] {
            let expected = (shown.into_iter().map(str::to_owned).collect(), next);
            assert_eq!(check(&names, limit, reached), expected, "{names:?} up to {reached:?}");
        }
    }
}
