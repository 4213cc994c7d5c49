//! Broker: one method per operation: route, propose, translate.

use crate::{Config, shard::Shards};

/// Routes every operation to its shards. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker {}

impl Broker {
    /// A broker over the shards of this node.
    pub fn new(shards: Shards, config: &Config) -> Broker {
        let _ = (shards, config);
        unimplemented!("fronts")
    }
}
