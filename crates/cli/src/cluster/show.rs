//! A cluster as text: a summary, its nodes, and the shards with problems.

use std::fmt::Write as _;

use taskyard::{ClusterDetails, ClusterNode, ReplicaDetails, ShardDetails};

use crate::{
    output::{Colour, Output, Table, plain, shorten},
    values::{grouped, show_size},
};

/// A replica that lacks more entries is reported.
const LAG_MAX: u64 = 1_000;
/// A clock that differs by more is reported.
const SKEW_MS_MAX: u64 = 2_000;

pub(super) fn status(output: Output, cluster: &ClusterDetails, all_shards: bool) -> String {
    let troubles = troubles(cluster);
    let mut text = summary(cluster);
    if troubles.is_empty() {
        let _ = writeln!(text, "{}", output.paint(Colour::Green, "everything is where it belongs"));
    }
    for trouble in &troubles {
        let _ = writeln!(text, "{}", output.paint(Colour::Yellow, trouble));
    }
    let _ = write!(text, "\n{}", nodes(cluster).render(output));
    let control = std::iter::once(("control".to_owned(), &cluster.control));
    let shards = cluster.shards.iter().map(|shard| (shard.id.to_string(), shard));
    let shown: Vec<_> = control
        .chain(shards)
        .filter(|(_, shard)| all_shards || !is_settled(cluster, shard))
        .collect();
    if !shown.is_empty() {
        let _ = write!(text, "\n{}", groups(&shown).render(output));
    }
    text
}

fn summary(cluster: &ClusterDetails) -> String {
    let count =
        |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    format!(
        "cluster {}, seen by node {}\n{}, {} of {} each\n",
        cluster.cluster_id,
        cluster.seen_by,
        count(cluster.nodes.len(), "node"),
        count(cluster.shards.len(), "shard"),
        count(wanted(cluster), "replica"),
    )
}

/// How many voters each shard should have with the present nodes: an odd number.
fn wanted(cluster: &ClusterDetails) -> usize {
    let in_use = cluster.nodes.iter().filter(|node| !node.draining).count();
    let voters = in_use.min(cluster.replication as usize);
    voters - usize::from(voters > 0 && voters.is_multiple_of(2))
}

/// All problems of the cluster, one line each.
pub(super) fn troubles(cluster: &ClusterDetails) -> Vec<String> {
    let mut lines = Vec::new();
    let shards = |holds: &dyn Fn(&ShardDetails) -> bool| -> Vec<String> {
        let found = cluster.shards.iter().filter(|shard| holds(shard));
        found.map(|shard| shard.id.to_string()).collect()
    };
    let mut say = |found: Vec<String>, is: &str, are: &str| match &found[..] {
        [] => {}
        [one] => lines.push(format!("shard {one} {is}")),
        many => {
            lines.push(format!("{} shards {are}: {}", many.len(), shorten(&many.join(" "), 60)))
        }
    };
    say(shards(&|shard| shard.leader.is_none()), "has no leader", "have no leader");
    say(shards(&|shard| !shard.moving_to.is_empty()), "moves", "move");
    let short =
        |shard: &ShardDetails| shard.moving_to.is_empty() && voters(shard) < wanted(cluster);
    say(shards(&short), "has too few replicas", "have too few replicas");
    let lag = |shard: &ShardDetails| shard.moving_to.is_empty() && shard.replicas.iter().any(lags);
    say(shards(&lag), "has a replica that lags", "have replicas that lag");
    if cluster.control.leader.is_none() {
        lines.push(
            "the control group has no leader: nodes and replicas can't be changed".to_owned(),
        );
    }
    if !cluster.control.moving_to.is_empty() {
        lines.push("the control group moves".to_owned());
    }
    for node in &cluster.nodes {
        let id = node.id;
        match node.state.as_str() {
            "up" if leads_nothing_yet(cluster, node) => {
                lines.push(format!("node {id} leads nothing yet: others will hand over to it"))
            }
            "up" => {}
            "down" if node.problem.is_empty() => lines.push(format!("node {id} does not answer")),
            "down" => lines.push(format!("node {id} does not answer: {}", node.problem)),
            "removing" => lines.push(format!(
                "node {id} was given up; it is removed once another node has its replicas"
            )),
            "draining" if node.replicas == 0 => lines.push(format!(
                "node {id} is empty; `taskyard cluster remove {id}` or `undrain {id}` is next"
            )),
            state => lines.push(format!("node {id} is {state}")),
        }
        if node.disk_low {
            lines.push(format!(
                "node {id} is low on disk: others lead, and it gets no more replicas; free some \
                 space"
            ));
        }
        if let Some(skew_ms) = node.clock_skew_ms.filter(|skew| skew.unsigned_abs() > SKEW_MS_MAX) {
            lines.push(format!(
                "the clock of node {id} is {} that of node {}",
                skew(skew_ms),
                cluster.seen_by
            ));
        }
    }
    lines
}

/// Whether another node is about to hand leadership to this node: it leads no group, and could lead
/// one whose leader leads several.
fn leads_nothing_yet(cluster: &ClusterDetails, node: &ClusterNode) -> bool {
    let groups = || std::iter::once(&cluster.control).chain(&cluster.shards);
    let leads = |id: u64| groups().filter(|group| group.leader == Some(id)).count();
    let could_lead = |group: &ShardDetails| {
        let mut replicas = group.replicas.iter();
        let is_ready = |replica: &ReplicaDetails| {
            replica.node == node.id && replica.role == "voter" && !lags(replica)
        };
        group.moving_to.is_empty()
            && group.leader.is_some_and(|leader| leads(leader) > 1)
            && replicas.any(is_ready)
    };
    !node.draining && !node.disk_low && leads(node.id) == 0 && groups().any(could_lead)
}

fn is_settled(cluster: &ClusterDetails, shard: &ShardDetails) -> bool {
    shard.leader.is_some()
        && shard.moving_to.is_empty()
        && voters(shard) >= wanted(cluster)
        && !shard.replicas.iter().any(lags)
}

fn voters(shard: &ShardDetails) -> usize {
    shard.replicas.iter().filter(|replica| replica.role == "voter").count()
}

fn lags(replica: &ReplicaDetails) -> bool {
    replica.role == "voter" && replica.lag.is_none_or(|lag| lag > LAG_MAX)
        || replica.installing_bytes.is_some()
}

fn skew(ms: i64) -> String {
    let far = ms.unsigned_abs();
    let words = if ms >= 0 { "ahead of" } else { "behind" };
    match far {
        0..10_000 => format!("{far} ms {words}"),
        _ => format!("{} s {words}", grouped(far / 1_000)),
    }
}

fn nodes(cluster: &ClusterDetails) -> Table {
    let columns =
        ["node", "state", "clients", "peers", "zone", "version", ">leads", ">replicas", ">clock"];
    let mut table = Table::new(&columns);
    for node in &cluster.nodes {
        table.row(vec![
            (Colour::Bold, node.id.to_string()),
            (state_colour(node), state(node)),
            plain(&node.address),
            plain(&node.peer_address),
            plain(&node.zone),
            plain(&node.version),
            plain(node.leads),
            plain(node.replicas),
            plain(node.clock_skew_ms.map_or(String::new(), |ms| format!("{ms:+} ms"))),
        ]);
    }
    table
}

fn state(node: &ClusterNode) -> String {
    let mut state = node.state.clone();
    if node.draining && node.state == "down" {
        state += ", draining";
    }
    if node.disk_low {
        state += ", low on disk";
    }
    state
}

fn state_colour(node: &ClusterNode) -> Colour {
    match node.state.as_str() {
        "up" if node.disk_low => Colour::Yellow,
        "up" => Colour::Green,
        "down" => Colour::Red,
        _ => Colour::Yellow,
    }
}

fn groups(shown: &[(String, &ShardDetails)]) -> Table {
    let mut table = Table::new(&["shard", ">leader", ">term", ">entries", "replicas", "moves to"]);
    for (name, shard) in shown {
        let leader = shard.leader.map(|node| node.to_string());
        let colour = if leader.is_some() { Colour::None } else { Colour::Red };
        let newest = shard.replicas.iter().map(|replica| replica.matched).max().unwrap_or(0);
        let replicas: Vec<String> = shard.replicas.iter().map(describe).collect();
        let target: Vec<String> = shard.moving_to.iter().map(u64::to_string).collect();
        table.row(vec![
            (Colour::Bold, name.clone()),
            (colour, leader.unwrap_or_else(|| "none".to_owned())),
            plain(shard.term),
            plain(grouped(newest)),
            plain(replicas.join(", ")),
            (Colour::Yellow, target.join(" ")),
        ]);
    }
    table
}

/// A replica by its node, with its problems.
fn describe(replica: &ReplicaDetails) -> String {
    let mut text = replica.node.to_string();
    if replica.role != "voter" {
        let _ = write!(text, " {}", replica.role);
    }
    match (replica.installing_bytes, replica.lag) {
        (Some(bytes), _) => {
            let _ = write!(text, " receives {}", show_size(bytes));
        }
        (None, None) if replica.role != "placed" => text += " silent",
        (None, Some(lag)) if lag > 0 => {
            let _ = write!(text, " lags {}", grouped(lag));
        }
        (None, _) => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: &[(u64, &str)], shards: Vec<ShardDetails>) -> ClusterDetails {
        let mut cluster = ClusterDetails::default();
        (cluster.cluster_id, cluster.seen_by, cluster.replication) = ("c1".into(), 1, 3);
        cluster.nodes = nodes.iter().map(|(id, state)| node(*id, state)).collect();
        cluster.control = shard(0, &[1, 2, 3], Some(1));
        cluster.shards = shards;
        cluster
    }

    fn node(id: u64, state: &str) -> ClusterNode {
        let mut node = ClusterNode::default();
        (node.id, node.state) = (id, state.to_owned());
        (node.address, node.version) = (format!("10.0.0.{id}:7400"), "0.1.0".into());
        node
    }

    fn shard(id: u32, nodes: &[u64], leader: Option<u64>) -> ShardDetails {
        let mut shard = ShardDetails::default();
        (shard.id, shard.leader, shard.term) = (id, leader, 2);
        let replica = |node: &u64| {
            let mut replica = ReplicaDetails::default();
            (replica.node, replica.replica, replica.lag) = (*node, *node, Some(0));
            (replica.role, replica.matched) = ("voter".into(), 1_234);
            replica
        };
        shard.replicas = nodes.iter().map(replica).collect();
        shard
    }

    #[test]
    fn a_well_cluster_is_a_summary_and_its_nodes() {
        let nodes = [(1, "up"), (2, "up"), (3, "up")];
        let leader = |id: u32| Some(u64::from(id % 3 + 1));
        let shards = (0..32).map(|id| shard(id, &[1, 2, 3], leader(id))).collect();
        let cluster = cluster(&nodes, shards);
        assert_eq!(troubles(&cluster), [""; 0]);
        let text = status(Output::plain(), &cluster, false);
        assert!(text.contains("3 nodes, 32 shards of 3 replicas each"), "{text}");
        assert!(text.contains("everything is where it belongs"), "{text}");
        assert_eq!(text.lines().count(), 8, "{text}");
        let all = status(Output::plain(), &cluster, true);
        assert_eq!(all.lines().count(), 8 + 1 + 34, "{all}");
    }

    #[test]
    fn a_node_that_is_back_and_leads_nothing_is_waited_for() {
        let told = |leaders: &[u64], change: fn(&mut ClusterDetails)| {
            let shards = (0..).zip(leaders).map(|(id, node)| shard(id, &[1, 2, 3], Some(*node)));
            let mut cluster = cluster(&[(1, "up"), (2, "up"), (3, "up")], shards.collect());
            change(&mut cluster);
            troubles(&cluster).iter().any(|line| line.contains("node 3 leads nothing yet"))
        };
        assert!(told(&[1, 2, 2, 1], |_| ()));
        // Node 1 leads the control group too.
        assert!(told(&[1, 2], |_| ()));
        assert!(!told(&[1, 2, 3], |_| ()));
        assert!(!told(&[2], |_| ()), "no node leads more than one group");
        assert!(!told(&[2, 2], |cluster| cluster.control.leader = Some(3)));
        assert!(!told(&[1, 2, 2], |cluster| cluster.nodes[2].disk_low = true), "it gets none");
        assert!(!told(&[1, 2, 2], |cluster| {
            cluster.control.replicas.pop();
            cluster.shards.iter_mut().for_each(|shard| drop(shard.replicas.pop()));
        }));
    }

    #[test]
    fn problems_come_first_and_are_shown_alone() {
        let mut moving = shard(4, &[1, 2, 3], Some(1));
        moving.moving_to = vec![1, 2, 3];
        moving.replicas[2].role = "learner".into();
        moving.replicas[2].lag = Some(12_000);
        let mut receiving = shard(6, &[1, 2, 3], Some(1));
        receiving.replicas[1].installing_bytes = Some(3 << 20);
        let shards = vec![
            shard(0, &[1, 2, 3], Some(1)),
            moving,
            shard(5, &[1, 2, 3], None),
            receiving,
            shard(7, &[1], Some(1)),
        ];
        let mut cluster = cluster(&[(1, "up"), (2, "up"), (3, "down")], shards);
        cluster.nodes[1].clock_skew_ms = Some(-12_345);
        cluster.nodes[1].disk_low = true;
        let text = status(Output::plain(), &cluster, false);
        let joined: Vec<&str> = text.split_whitespace().collect();
        let joined = joined.join(" ");
        for line in [
            "shard 5 has no leader",
            "shard 4 moves",
            "shard 7 has too few replicas",
            "shard 6 has a replica that lags",
            "node 3 does not answer",
            "node 2 is low on disk: others lead",
            "2 up, low on disk 10.0.0.2:7400",
            "the clock of node 2 is 12 s behind that of node 1",
            "4 1 2 1,234 1, 2, 3 learner lags 12,000 1 2 3",
            "6 1 2 1,234 1, 2 receives 3.0 MiB, 3",
        ] {
            assert!(joined.contains(line), "{line} in\n{text}");
        }
        assert!(!text.lines().any(|line| line.starts_with("0 ")), "{text}");
    }
}
