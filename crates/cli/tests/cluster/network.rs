//! The network between the nodes of a test, and its faults. There are two kinds: proxies on
//! loopback, which can delay data (`proxy.rs`), and network namespaces, whose links go down and
//! lose packets (`namespaces.rs`).

use std::{net::SocketAddr, time::Duration};

/// The source and target nodes of a link, by their places in the list of nodes.
pub(crate) type Link = (usize, usize);

/// Where a node is.
pub(crate) struct Place {
    /// The listen address for clients, which no fault of the network affects.
    pub(crate) clients: SocketAddr,
    /// The listen address for other nodes.
    pub(crate) peers: SocketAddr,
    /// The address that other nodes dial.
    pub(crate) advertised: SocketAddr,
    /// The first words of a command that runs inside this place.
    pub(crate) enter: Vec<String>,
}

pub(crate) trait Network {
    /// Makes a place for the next node.
    fn add_node(&mut self) -> Place;

    /// Tells the network the process id of a node.
    fn started(&self, _node: usize, _process: u32) {}

    fn cut(&self, link: Link);

    /// Whether this network implements `slow_down`.
    fn can_slow_down(&self) -> bool;

    /// Delays all data on a link by this long.
    fn slow_down(&self, link: Link, delay: Duration);

    /// Ends all faults of a link.
    fn heal(&self, link: Link);

    /// Cuts a node off from all others, in both directions.
    fn isolate(&self, node: usize);

    /// Ends all faults of a node's links.
    fn rejoin(&self, node: usize);
}
