//! Arguments of the commands that show and change a cluster.

use crate::{cluster::NodeName, values};
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show nodes, leaders, lagging replicas and moving shards.
    #[command(after_help = "Examples:
  taskyard cluster status
  taskyard cluster status --watch       redrawn every second, until Ctrl-C
  taskyard cluster status --wait        returns when everything is where it belongs
  taskyard cluster status --check       exit code 1 if something is not, for scripts and monitoring
  taskyard cluster status --shards      every shard, not only those that are not well")]
    Status(ClusterStatusArgs),
    /// Empty a node: its replicas and leaders move to others.
    #[command(after_help = "Examples:
  taskyard cluster drain 2 --wait && taskyard cluster remove 2
A node that is drained still answers clients, and can be used again with undrain.")]
    Drain {
        /// Its number, or one of its addresses, as cluster status prints them.
        #[arg(value_name = "NODE")]
        node: NodeName,
        /// Return when the node is empty.
        #[arg(long)]
        wait: bool,
        /// With --wait: give up after this long, with exit code 1 [default: 10m].
        #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, requires = "wait")]
        timeout: Option<Duration>,
    },
    /// Use a drained node again.
    Undrain {
        /// Its number, or one of its addresses, as cluster status prints them.
        #[arg(value_name = "NODE")]
        node: NodeName,
    },
    /// Remove an empty node, or with --force one that is lost.
    #[command(after_help = "Examples:
  taskyard cluster drain 2 --wait && taskyard cluster remove 2
  taskyard cluster remove 10.0.0.3:7401 --force --yes     its disk is lost
With --force the node must be down. What it held is copied from the other replicas as soon as there is
another node for it, and then it goes by itself; its address is free at once.")]
    Remove {
        /// Its number, or one of its addresses, as cluster status prints them.
        #[arg(value_name = "NODE")]
        node: NodeName,
        /// Remove a node that is lost for good. Its replicas are placed on other nodes.
        #[arg(long)]
        force: bool,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
    /// Move the leader of a shard to another node.
    #[command(after_help = "Example:
  taskyard cluster transfer 7 2
The leader stays there for ten minutes at least; then leaders are spread evenly again.")]
    Transfer {
        /// The shard's number, from 0.
        #[arg(value_name = "SHARD")]
        shard: u32,
        /// The node's number, or one of its addresses.
        #[arg(value_name = "NODE")]
        node: NodeName,
    },
    /// Set the number of replicas of each shard: 1, 3 or 5.
    #[command(after_help = "Example:
  taskyard cluster replication 5
With fewer nodes there are fewer replicas, always an odd number; more are made when nodes join.")]
    Replication {
        /// 1, 3 or 5.
        #[arg(value_name = "N")]
        factor: u32,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ClusterStatusArgs {
    /// Update the view every second.
    #[arg(long, conflicts_with = "wait")]
    pub(crate) watch: bool,
    /// Return when all nodes are up and all replicas and leaders are where they belong.
    #[arg(long)]
    pub(crate) wait: bool,
    /// With --wait: give up after this long, with exit code 1 [default: 10m].
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, requires = "wait")]
    pub(crate) timeout: Option<Duration>,
    /// Exit with 1 if a shard has no leader or too few replicas, a node is down, or a replica or
    /// leader is not where it belongs.
    #[arg(long, conflicts_with_all = ["watch", "wait"])]
    pub(crate) check: bool,
    /// With --wait: also wait until the cluster has this many nodes.
    #[arg(long, value_name = "N", requires = "wait")]
    pub(crate) nodes: Option<usize>,
    /// Show every shard.
    #[arg(long, short = 'v', visible_alias = "verbose")]
    pub(crate) shards: bool,
}
