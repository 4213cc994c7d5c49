//! Names of nodes: a number, or one of the node's addresses, which a script knows beforehand.

use std::str::FromStr;

use anyhow::{Result, bail};
use taskyard::{Client, ClusterNode};

/// The name of a node on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeName {
    Number(u64),
    /// An address of the node, for clients or other nodes.
    Address(String),
}

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<NodeName, String> {
        match text.parse() {
            Ok(number) => Ok(NodeName::Number(number)),
            Err(_) if text.contains(':') => Ok(NodeName::Address(text.to_owned())),
            Err(_) => Err(format!(
                "{text:?} names no node: give its number, or an address like 10.0.0.3:7401"
            )),
        }
    }
}

impl NodeName {
    /// The node's number. The cluster checks whether a node with this number exists.
    pub(super) async fn number(&self, client: &Client) -> Result<u64> {
        match self {
            NodeName::Number(number) => Ok(*number),
            NodeName::Address(address) => find(address, &client.cluster().await?.nodes),
        }
    }
}

/// The only node at an address. A node that was given up has no address any more.
fn find(address: &str, nodes: &[ClusterNode]) -> Result<u64> {
    let is_meant = |node: &&ClusterNode| {
        node.state != "removing" && [&*node.address, &*node.peer_address].contains(&address)
    };
    let found: Vec<u64> = nodes.iter().filter(is_meant).map(|node| node.id).collect();
    match found[..] {
        [node] => Ok(node),
        [] => bail!("there is no node at {address}; `taskyard cluster status` shows all nodes"),
        _ => {
            let found: Vec<String> = found.iter().map(u64::to_string).collect();
            bail!("nodes {} are all at {address}; give the number of one", found.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u64, address: &str, peer_address: &str, state: &str) -> ClusterNode {
        let mut node = ClusterNode::default();
        (node.id, node.state) = (id, state.to_owned());
        (node.address, node.peer_address) = (address.to_owned(), peer_address.to_owned());
        node
    }

    #[test]
    fn a_node_has_a_number_or_an_address() {
        assert_eq!("12".parse(), Ok(NodeName::Number(12)));
        assert_eq!("yard-3:7401".parse(), Ok(NodeName::Address("yard-3:7401".to_owned())));
        for bad in ["two", "", "-1", "10.0.0.3"] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_means_the_one_node_that_is_there_now() {
        let nodes = [
            node(1, "127.0.0.1:7400", "10.0.0.1:7401", "up"),
            node(2, "127.0.0.1:7400", "10.0.0.2:7401", "removing"),
            node(3, "127.0.0.1:7400", "10.0.0.2:7401", "down"),
            node(4, "10.0.0.4:7400", "10.0.0.4:7401", "draining"),
        ];
        let find = |address| find(address, &nodes).map_err(|error| error.to_string());
        assert_eq!(find("10.0.0.1:7401"), Ok(1));
        assert_eq!(find("10.0.0.2:7401"), Ok(3));
        assert_eq!(find("10.0.0.4:7400"), Ok(4));
        let words = find("10.0.0.5:7401").unwrap_err();
        assert!(words.contains("no node at 10.0.0.5:7401"), "{words}");
        let words = find("127.0.0.1:7400").unwrap_err();
        assert!(words.contains("nodes 1, 3 are all at"), "{words}");
    }
}
