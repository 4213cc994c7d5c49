//! `taskyard cluster`: shows nodes and shards, drains and removes nodes, moves leaders.

mod node_name;
mod show;
mod waiting;

pub(crate) use node_name::NodeName;

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use anyhow::Result;
use serde::Serialize;
use taskyard::ClusterDetails;

use waiting::Waiting;

use crate::{
    args::{ClusterCommand, ClusterStatusArgs},
    confirm::confirm_removal,
    remote::Remote,
};

/// How often `--watch` updates the view.
const WATCH_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn run(remote: &Remote, command: ClusterCommand) -> Result<()> {
    let Remote { client, output, .. } = remote;
    match command {
        ClusterCommand::Status(args) => status(remote, args).await?,
        ClusterCommand::Drain { node, wait, timeout } => {
            let node = node.number(client).await?;
            client.drain_node(node).await?;
            if wait {
                until_empty(remote, node, timeout).await?;
                output
                    .done(&Done { node, done: "drained" }, format_args!("node {node} is empty"))?;
            } else {
                let text =
                    format_args!("node {node} is draining; cluster status shows the progress");
                output.done(&Done { node, done: "draining" }, text)?;
            }
        }
        ClusterCommand::Undrain { node } => {
            let node = node.number(client).await?;
            client.undrain_node(node).await?;
            output.done(
                &Done { node, done: "in_use" },
                format_args!("node {node} is in use again"),
            )?;
        }
        ClusterCommand::Remove { node, force, yes } => {
            let node = node.number(client).await?;
            if force {
                let question = format!("Give up node {node} and its replicas for good?");
                confirm_removal(yes, &question)?;
            }
            client.remove_node(node, force).await?;
            let (done, text) = if force {
                ("given_up", "is given up; it is removed once other nodes have its replicas")
            } else {
                (
                    "removed",
                    "is removed; its process ends by itself, and then its data directory can be \
                     deleted",
                )
            };
            output.done(&Done { node, done }, format_args!("node {node} {text}"))?;
        }
        ClusterCommand::Transfer { shard, node } => {
            let node = node.number(client).await?;
            client.transfer_shard(shard, node).await?;
            let text = format_args!("shard {shard} is handed over to node {node}");
            output.done(&Transferred { shard, node }, text)?;
        }
        ClusterCommand::Replication { factor } => {
            client.set_replication(factor).await?;
            let text = format_args!("each shard gets {factor} replicas, if there are enough nodes");
            output.done(&Replication { replication: factor }, text)?;
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Done {
    node: u64,
    done: &'static str,
}

#[derive(Serialize)]
struct Transferred {
    shard: u32,
    node: u64,
}

#[derive(Serialize)]
struct Replication {
    replication: u32,
}

async fn status(remote: &Remote, args: ClusterStatusArgs) -> Result<()> {
    let Remote { client, output, .. } = remote;
    if args.watch {
        return watch(remote, args).await;
    }
    let mut cluster = client.cluster().await?;
    let mut troubles = troubles(&cluster, args.nodes);
    if args.wait {
        let mut waiting = Waiting::new(*output, args.timeout);
        while !troubles.is_empty() {
            waiting.go_on(troubles.join("; ")).await?;
            cluster = waiting.look(remote.patiently(client.cluster())).await?;
            troubles = self::troubles(&cluster, args.nodes);
        }
    }
    output.value(&cluster, |cluster| show::status(*output, cluster, args.shards))?;
    if args.check && !troubles.is_empty() {
        anyhow::bail!("the cluster is not well: {}", troubles.join("; "));
    }
    Ok(())
}

/// Everything that is wrong with the cluster, in words, also a number of nodes other than `nodes`.
fn troubles(cluster: &ClusterDetails, nodes: Option<usize>) -> Vec<String> {
    let found = cluster.nodes.len();
    let number = nodes.filter(|nodes| *nodes != found);
    let number = number.map(|nodes| format!("there are {found} nodes, not {nodes}"));
    number.into_iter().chain(show::troubles(cluster)).collect()
}

/// Redraws the view in place on a terminal; elsewhere prints one view after the other.
async fn watch(remote: &Remote, args: ClusterStatusArgs) -> Result<()> {
    let Remote { client, output, .. } = remote;
    let draws = !output.is_json() && io::stdout().is_terminal();
    loop {
        let shown = match remote.patiently(client.cluster()).await {
            Ok(cluster) if output.is_json() => {
                output.json_line(&cluster)?;
                String::new()
            }
            Ok(cluster) => show::status(*output, &cluster, args.shards),
            Err(error) => {
                remote.complain(&error.into());
                String::new()
            }
        };
        if draws && !shown.is_empty() {
            let mut out = io::stdout().lock();
            // Each line of the last view is cleared as it is overwritten, so that the screen does
            // not flicker.
            let lines: String = shown.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            out.write_all(format!("\x1b[H{lines}\x1b[J").as_bytes())?;
            out.flush()?;
        } else if !shown.is_empty() {
            output.line(&shown)?;
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Waits until a node is drained. The answering node may not know of the drain yet, so that only a
/// view after the drain was seen counts.
async fn until_empty(remote: &Remote, node: u64, timeout: Option<Duration>) -> Result<()> {
    let mut is_known = false;
    let mut waiting = Waiting::new(remote.output, timeout);
    loop {
        let look = remote.patiently(remote.client.cluster());
        let cluster: ClusterDetails = waiting.look(look).await?;
        let found = cluster.nodes.iter().find(|found| found.id == node);
        let holds = |found: &taskyard::ClusterNode| {
            let votes = cluster.control.replicas.iter();
            let mut votes = votes.filter(|replica| replica.role == "voter");
            found.replicas > 0 || votes.any(|replica| replica.node == node)
        };
        let drains = found.is_some_and(|found| found.draining);
        match found {
            Some(found) if drains && !holds(found) => return Ok(()),
            None if is_known => return Ok(()),
            Some(_) if is_known && !drains => anyhow::bail!("node {node} is not drained any more"),
            Some(found) if drains => waiting.go_on(still_held(&cluster, found)).await?,
            Some(_) | None => {
                let seen_by = cluster.seen_by;
                waiting.go_on(format!("node {seen_by} has not heard of the drain yet")).await?;
            }
        }
        is_known |= drains;
    }
}

/// The replicas that a draining node still has, and the nodes that may delay the drain.
fn still_held(cluster: &ClusterDetails, node: &taskyard::ClusterNode) -> String {
    let held = match node.replicas {
        0 => "a vote in the control group".to_owned(),
        1 => "1 shard".to_owned(),
        shards => format!("{shards} shards"),
    };
    let down: Vec<String> = (cluster.nodes.iter().filter(|found| found.state == "down"))
        .map(|found| format!("; node {} does not answer", found.id))
        .collect();
    format!("node {} still has {held}{}", node.id, down.concat())
}
