//! Which tasks a request is about: dead letters, pages of lists, and how long to wait.

use super::{Moment, lists::list_if_any};
use crate::{
    Error,
    broker::{DeadSelection, ListOrder},
    front::edge,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// Which dead letters: `ids` or `filter`; an empty filter means all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct DeadBody {
    /// These.
    #[serde(default, deserialize_with = "list_if_any")]
    ids: Option<Vec<String>>,
    /// All that match.
    filter: Option<DeadFilter>,
}

/// Every given part must match.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct DeadFilter {
    /// In this queue.
    queue: Option<String>,
    /// Of this type.
    #[serde(rename = "type")]
    task_type: Option<String>,
    /// Whose last error's type is this, or whose message contains it.
    error: Option<String>,
    /// With this tag.
    tag: Option<String>,
    /// Of this flow.
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

/// Which page of which list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::front) struct ListQuery {
    /// In this queue.
    pub(in crate::front) queue: Option<String>,
    /// In this state.
    pub(in crate::front) state: Option<String>,
    /// Of this type.
    #[serde(rename = "type")]
    pub(in crate::front) task_type: Option<String>,
    /// Whose last error's type is this, or whose message contains it.
    pub(in crate::front) error: Option<String>,
    /// With this tag.
    pub(in crate::front) tag: Option<String>,
    /// Of this flow.
    pub(in crate::front) flow: Option<String>,
    /// The cursor of the previous page.
    pub(in crate::front) cursor: Option<String>,
    /// Tasks at most, up to 1000. Default 50.
    pub(in crate::front) limit: Option<u32>,
    /// What the list begins with. Default `id`.
    #[param(inline)]
    pub(in crate::front) order: Option<Order>,
    /// With `order=newest`: what was enqueued then or later; of dead letters, what died then or
    /// later.
    pub(in crate::front) since: Option<Moment>,
}

/// What a list begins with.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum Order {
    /// Shard after shard, each in id order.
    Id,
    /// What was enqueued last; of dead letters, what died last.
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
