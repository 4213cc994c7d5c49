//! Join: the conversation with a node that has no place in a cluster, and the decision about it.
//!
//! Invariants: one data directory gets one number, however often it asks; one address has one node;
//! only the control group's leader decides.

use super::Cluster;
use crate::{Error, data_dir::FORMAT_VERSION, limits::PEERS_MAX};
use bytes::Bytes;
use std::collections::BTreeMap;
use taskyard_machine::{
    DecodeError,
    wire::{decode_from_node, encode_for_node, wire_enum, wire_struct},
};
use taskyard_replica::{Control, ControlCommand, Node, NodeId};

/// The version of the encoding: the first byte of a question and of an answer.
const VERSION: u8 = 1;

/// How often a number is tried again after another node got it at the same moment.
const ATTEMPTS_MAX: usize = 16;

/// A question of a node without a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinCall {
    /// A request for a place.
    Join(Candidate),
    /// The question which cluster this is.
    Look,
}

/// A node that asks for a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The format of its data.
    pub(crate) format: u32,
    /// The random number of its data directory.
    pub(crate) instance: u128,
    /// Its address for peers.
    pub(crate) address: String,
    /// Its address for clients.
    pub(crate) serves: String,
    /// Its zone.
    pub(crate) zone: String,
    /// The newest rules that its build knows.
    pub(crate) rules_max: u16,
    /// The number of shards in its configuration.
    pub(crate) shards: Option<u16>,
}

/// An answer to a node without a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinAnswer {
    /// The node has a place.
    Welcome(Welcome),
    /// The node gets no place, and asking again does not help.
    Refused(String),
    /// The node cannot get a place now.
    Later(String),
    /// The asked node is in no cluster, and waits for the nodes of its list.
    Waits(Vec<String>),
    /// The asked node is in a cluster with nodes at these addresses.
    Seen(BTreeMap<NodeId, String>),
}

/// A place in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) cluster: u128,
    pub(crate) incarnation: u32,
    pub(crate) shards: u16,
    pub(crate) node: NodeId,
    /// The addresses of all nodes.
    pub(crate) peers: BTreeMap<NodeId, String>,
}

impl JoinCall {
    pub(crate) fn encode(&self) -> Bytes {
        encode_for_node(VERSION, self).into()
    }

    fn decode(bytes: &[u8]) -> Result<JoinCall, DecodeError> {
        decode_from_node(VERSION, bytes)
    }
}

impl JoinAnswer {
    pub(crate) fn encode(&self) -> Bytes {
        encode_for_node(VERSION, self).into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<JoinAnswer, DecodeError> {
        decode_from_node(VERSION, bytes)
    }
}

impl Cluster {
    /// Answers a node without a place, on any node of the cluster.
    pub(crate) async fn joined(&self, call: &[u8]) -> JoinAnswer {
        let candidate = match JoinCall::decode(call) {
            Ok(JoinCall::Join(candidate)) => candidate,
            Ok(JoinCall::Look) => return JoinAnswer::Seen(addresses(&self.routes().control())),
            Err(error) => return JoinAnswer::Refused(format!("{error}; start the same version")),
        };
        match self.ask_leader(super::ClusterCall::Join(candidate)).await {
            Ok(super::ClusterReply::Joined(answer)) => answer,
            Ok(super::ClusterReply::Failed(error)) | Err(error) => {
                JoinAnswer::Later(error.to_string())
            }
            Ok(_) => JoinAnswer::Later("the leader's answer can't be read; upgrade it".into()),
        }
    }

    /// Gives a node a place, or returns the one that it has. Only the control group's leader can.
    pub(super) async fn take_in(&self, candidate: Candidate) -> Result<JoinAnswer, Error> {
        let refused = |words: String| Ok(JoinAnswer::Refused(words));
        for _ in 0..ATTEMPTS_MAX {
            let control = self.routes().control();
            if let Err(words) = check(&control, &candidate) {
                return refused(words);
            }
            if let Some(answer) = self.check_reachable(&control) {
                return Ok(answer);
            }
            let known = |node: &&Node| node.instance == candidate.instance;
            let known = control.nodes().iter().find(|(_, node)| known(node)).map(|(id, _)| *id);
            let node = candidate.node();
            let (id, command) = match known {
                Some(id) => (id, ControlCommand::SetNode { id, node }),
                None => {
                    let id = control.node_next();
                    (id, ControlCommand::AddNode { id, node })
                }
            };
            match self.shards().control(command).await {
                Ok(()) => {
                    let (address, zone) = (&candidate.address, &candidate.zone);
                    match known {
                        None => tracing::info!(node = id, address, zone, "a node joined"),
                        Some(_) => tracing::info!(node = id, address, "a node asked to join again"),
                    }
                    return Ok(JoinAnswer::Welcome(self.welcome(id)));
                }
                // Another node got the number, or an earlier request of this node did: look again.
                Err(Error::Refused(_) | Error::Invalid(_))
                    if check(&self.routes().control(), &candidate).is_ok() => {}
                Err(Error::Refused(words) | Error::Invalid(words)) => return refused(words),
                Err(error) => return Err(error),
            }
        }
        Ok(JoinAnswer::Later("too many nodes ask to join; ask again".into()))
    }

    /// Checks that a new node could reach every node. A node that has just started announces its
    /// address soon; this node knows whether it has one to announce.
    fn check_reachable(&self, control: &Control) -> Option<JoinAnswer> {
        let silent =
            |(id, node): &(&NodeId, &Node)| node.address.is_empty() && !control.has_given_up(**id);
        let (&id, _) = control.nodes().iter().find(silent)?;
        if id == self.me() && self.about().address.is_empty() {
            return Some(JoinAnswer::Refused(format!(
                "node {id} of this cluster does not say where others reach it; start it again with \
                 --advertise HOST:PORT, or with --peer and an address of its machine"
            )));
        }
        Some(JoinAnswer::Later(format!("node {id} has not told yet where it is")))
    }

    fn welcome(&self, node: NodeId) -> Welcome {
        let control = self.routes().control();
        let (cluster, incarnation) = control.cluster().unwrap_or_default();
        let (shards, peers) = (control.shards(), addresses(&control));
        Welcome { cluster, incarnation, shards, node, peers }
    }
}

/// The addresses of a cluster's nodes that others can dial.
pub(super) fn addresses(control: &Control) -> BTreeMap<NodeId, String> {
    let known = control.nodes().iter().filter(|(_, node)| !node.address.is_empty());
    known.map(|(id, node)| (*id, node.address.clone())).collect()
}

impl Candidate {
    fn node(&self) -> Node {
        Node {
            instance: self.instance,
            address: self.address.clone(),
            serves: self.serves.clone(),
            zone: self.zone.clone(),
            rules_max: self.rules_max,
        }
    }
}

/// Checks that a node could get a place; the error says why it never will.
fn check(control: &Control, candidate: &Candidate) -> Result<(), String> {
    if candidate.format != FORMAT_VERSION {
        let (theirs, ours) = (candidate.format, FORMAT_VERSION);
        return Err(format!(
            "this node writes data of format {theirs}, the cluster of format {ours}; start the same \
             version on all nodes"
        ));
    }
    if candidate.instance == 0 {
        return Err("a node that joins must say which one it is".into());
    }
    if candidate.rules_max < control.rules() {
        return Err(format!(
            "this node knows rules up to {}, the cluster runs on {}; upgrade it",
            candidate.rules_max,
            control.rules()
        ));
    }
    if let Some(shards) = candidate.shards.filter(|shards| *shards != control.shards()) {
        return Err(format!(
            "this cluster has {} shards, not {shards}: the number is fixed; leave it out",
            control.shards()
        ));
    }
    if candidate.address.is_empty() {
        return Err("a node that joins must say where others reach it; use --advertise".into());
    }
    let same_place =
        |node: &Node| node.address == candidate.address && node.instance != candidate.instance;
    if let Some((id, _)) = control.nodes().iter().find(|(_, node)| same_place(node)) {
        return Err(format!(
            "node {id} is at {} already; remove it first with `taskyard cluster remove {id}` (with \
             --force if its data is lost), or give this one another address",
            candidate.address
        ));
    }
    let is_known = control.nodes().values().any(|node| node.instance == candidate.instance);
    if control.nodes().len() >= PEERS_MAX && !is_known {
        return Err(format!("the cluster has {PEERS_MAX} nodes, which is the limit"));
    }
    Ok(())
}

wire_enum!(JoinCall {
    1 => Join(candidate),
    2 => Look,
});
wire_enum!(JoinAnswer {
    1 => Welcome(welcome),
    2 => Refused(words),
    3 => Later(words),
    4 => Waits(list),
    5 => Seen(peers),
});
wire_struct!(Candidate { format, instance, address, serves, zone, rules_max, shards });
wire_struct!(Welcome { cluster, incarnation, shards, node, peers });

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_replica::StateMachine;

    #[test]
    fn a_node_that_does_not_fit_is_told_why() {
        let mut control = Control::default();
        let node = Node { instance: 1, address: "a:1".into(), rules_max: 9, ..Node::default() };
        for command in [
            ControlCommand::Found { cluster: 1, incarnation: 1, shards: 32, rules: 3 },
            ControlCommand::AddNode { id: 1, node },
        ] {
            control.apply(1, &command.encode()).unwrap();
        }
        let fits = Candidate {
            format: FORMAT_VERSION,
            instance: 2,
            address: "b:1".into(),
            rules_max: 3,
            ..Candidate::default()
        };
        type Change = fn(&mut Candidate);
        let with = |change: Change| {
            let mut candidate = fits.clone();
            change(&mut candidate);
            check(&control, &candidate)
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|node| node.rules_max = 4), Ok(()), "a newer one");
        assert_eq!(with(|node| node.shards = Some(32)), Ok(()));
        assert_eq!(with(|node| (node.instance, node.address) = (1, "a:1".into())), Ok(()), "again");
        let changes: [(Change, &str); 8] = [
            (
                |node| node.format -= 1,
                "this node writes data of format 7, the cluster of format 8;",
            ),
            (
                |node| node.format += 1,
                "this node writes data of format 9, the cluster of format 8;",
            ),
            (
                |node| node.rules_max = 2,
                "this node knows rules up to 2, the cluster runs on 3; upgrade",
            ),
            (
                |node| node.shards = Some(16),
                "this cluster has 32 shards, not 16: the number is fixed;",
            ),
            (|node| node.shards = Some(0), "this cluster has 32 shards, not 0"),
            (|node| node.address.clear(), "a node that joins must say where others reach it;"),
            (|node| node.address = "a:1".into(), "node 1 is at a:1 already; remove it first with"),
            (|node| node.instance = 0, "a node that joins must say which one it is"),
        ];
        for (change, words) in changes {
            let refused = with(change).unwrap_err();
            assert!(refused.starts_with(words), "{refused}");
        }
    }

    #[test]
    fn a_cluster_has_a_limit_of_nodes() {
        let mut control = Control::default();
        let found = ControlCommand::Found { cluster: 1, incarnation: 1, shards: 1, rules: 1 };
        control.apply(1, &found.encode()).unwrap();
        for id in 1..=PEERS_MAX as u64 {
            let node = Node { instance: id.into(), rules_max: 1, ..Node::default() };
            control.apply(1, &ControlCommand::AddNode { id, node }.encode()).unwrap();
        }
        let candidate = Candidate {
            format: FORMAT_VERSION,
            instance: u128::MAX,
            address: "b:1".into(),
            rules_max: 1,
            ..Candidate::default()
        };
        let refused = check(&control, &candidate).unwrap_err();
        assert!(refused.contains("nodes, which is the limit"), "{refused}");
        // A node that has already joined does not count again.
        let again = Candidate { instance: 1, ..candidate };
        assert_eq!(check(&control, &again), Ok(()));
    }
}
