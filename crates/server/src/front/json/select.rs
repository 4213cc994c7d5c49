//! JSON that selects tasks: dead letters, pages of lists, and how long to wait.

use super::{Moment, lists::list_if_any};
use crate::{
    Error,
    broker::{DeadSelection, ListOrder},
    front::edge,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// A choice of dead letters: `ids` or `filter`. An empty filter means all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct DeadBody {
    /// The ids of dead letters.
    #[serde(default, deserialize_with = "list_if_any")]
    ids: Option<Vec<String>>,
    /// All dead letters that match.
    filter: Option<DeadFilter>,
}

/// A filter; every given field must match.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct DeadFilter {
    /// The queue.
    queue: Option<String>,
    /// The type.
    #[serde(rename = "type")]
    task_type: Option<String>,
    /// The type of the last error, or a part of its message.
    error: Option<String>,
    /// A tag.
    tag: Option<String>,
    /// The flow.
    flow: Option<String>,
}

impl DeadBody {
    pub(in crate::front) fn selection(self) -> Result<DeadSelection, Error> {
        match (self.ids, self.filter) {
            (Some(ids), None) => {
                let ids = ids.iter().map(|id| edge::task_id(id));
                Ok(DeadSelection::Ids(ids.collect::<Result<_, _>>()?))
            }
            (None, Some(DeadFilter { queue, task_type, error, tag, flow })) => {
                let flow = flow.as_deref().map(edge::flow_id).transpose()?;
                Ok(DeadSelection::Filter { queue, task_type, error, tag, flow })
            }
            (None, None) => Err(Error::Invalid(edge::NO_SELECTION.into())),
            (Some(_), Some(_)) => Err(Error::Invalid(edge::TWO_SELECTIONS.into())),
        }
    }
}

/// The page of tasks that is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::front) struct ListQuery {
    /// The queue of the tasks.
    pub(in crate::front) queue: Option<String>,
    /// The state of the tasks.
    pub(in crate::front) state: Option<String>,
    /// The type of the tasks.
    #[serde(rename = "type")]
    pub(in crate::front) task_type: Option<String>,
    /// The type of the last error, or a part of its message.
    pub(in crate::front) error: Option<String>,
    /// A tag of the tasks.
    pub(in crate::front) tag: Option<String>,
    /// The flow of the tasks.
    pub(in crate::front) flow: Option<String>,
    /// The cursor of the previous page.
    pub(in crate::front) cursor: Option<String>,
    /// The most tasks on the page, up to 1000. Default 50.
    pub(in crate::front) limit: Option<u32>,
    /// The order of the list. Default `id`.
    #[param(inline)]
    pub(in crate::front) order: Option<Order>,
    /// With `order=newest`: only tasks enqueued then or later; for dead letters, tasks that died
    /// then or later.
    pub(in crate::front) since: Option<Moment>,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum Order {
    /// Shard after shard, each in id order.
    Id,
    /// The last enqueued first; for dead letters, the last that died.
    Newest,
}

impl From<Order> for ListOrder {
    fn from(order: Order) -> ListOrder {
        match order {
            Order::Id => ListOrder::Id,
            Order::Newest => ListOrder::Newest,
        }
    }
}

/// How long to wait for the end.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::front) struct WaitQuery {
    /// Up to 60,000. Default 0.
    pub(in crate::front) wait_ms: Option<u64>,
}
