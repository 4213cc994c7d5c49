//! The network between the nodes of a test, and its faults. There are two kinds: proxies on
//! loopback, which can delay data (`proxy.rs`), and network namespaces, whose links go down and
//! lose packets (`namespaces.rs`).

use std::{net::SocketAddr, time::Duration};

/// The source and target nodes of a link, by their places in the list of nodes.
pub(crate) type Link = (usize, usize);

/// Where a node is.
pub(crate) struct Place {
    /// Where it listens for clients, who reach it whatever happens to its links.
    pub(crate) clients: SocketAddr,
    /// Where it listens for other nodes.
    pub(crate) peers: SocketAddr,
    /// Where other nodes dial it.
    pub(crate) advertised: SocketAddr,
    /// What a command begins with that is to run there.
    pub(crate) enter: Vec<String>,
}

pub(crate) trait Network {
    /// Makes a place for the next node.
    fn add_node(&mut self) -> Place;

    /// A node runs as this process from now on.
    fn started(&self, _node: usize, _process: u32) {}

    /// Cuts a link.
    fn cut(&self, link: Link);

    /// Whether `slow_down` can be asked for.
    fn can_slow_down(&self) -> bool;

    /// Delays all data on a link by this long.
    fn slow_down(&self, link: Link, delay: Duration);

    /// Ends all faults of a link.
    fn heal(&self, link: Link);

    /// Cuts a node off from all others, both ways.
    fn isolate(&self, node: usize);

    /// Ends all faults of a node's links.
    fn rejoin(&self, node: usize);
}
