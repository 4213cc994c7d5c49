//! What lies between the nodes of a test, and what can be done to it. There are two kinds: proxies
//! on loopback, which hold back what they are told to (`proxy.rs`), and network namespaces, whose
//! links go down and lose packets (`namespaces.rs`).

use std::{net::SocketAddr, time::Duration};

/// From which node to which, by their places in the list of nodes.
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

    /// Lets nothing more through on a link.
    fn cut(&self, link: Link);

    /// Whether `slow_down` can be asked for.
    fn can_slow_down(&self) -> bool;

    /// Holds back everything that goes through a link for this long.
    fn slow_down(&self, link: Link, delay: Duration);

    /// Ends all that was done to a link.
    fn heal(&self, link: Link);

    /// Cuts a node off from all others, both ways.
    fn isolate(&self, node: usize);

    /// Ends all that was done to the links of a node.
    fn rejoin(&self, node: usize);
}
