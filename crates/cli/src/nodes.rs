//! The nodes of a local cluster, for a demo or a measurement: child processes of this binary, each
//! with a folder and ports that it keeps across restarts.
//!
//! Invariant: no child outlives this value, unless this process ends without unwinding, as by `kill
//! -9`.

pub(crate) mod view;

use std::{
    fs::{self, File, OpenOptions},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use taskyard::{Client, ClusterDetails};

/// Below the ports of outgoing connections, so that no connection takes the port of a node that is
/// down.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// The distance between the first ports that two processes try.
const PORTS_EACH: u32 = 64;
/// How long a node may take to answer with its view of the cluster.
const VIEW_FOR_MAX: Duration = Duration::from_secs(1);
/// How often a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a cluster may take to reach the awaited state.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a graceful stop may take: longer than a node's own limit.
const STOP_FOR_MAX: Duration = Duration::from_secs(30);
/// How many lines of a log an error shows.
const LOG_LINES_SHOWN: usize = 12;

pub(crate) struct Nodes {
    nodes: Vec<Node>,
    shards: u16,
}

struct Node {
    folder: PathBuf,
    listen: SocketAddr,
    peer: SocketAddr,
    /// A client of this node alone.
    client: Client,
    child: Option<Child>,
}

impl Nodes {
    /// Starts `count` nodes with folders inside `folder`.
    pub(crate) fn start(folder: &Path, count: usize, shards: u16) -> Result<Nodes> {
        let mut ports = free_ports(2 * count)?.into_iter();
        let mut nodes = Vec::new();
        while let (Some(listen), Some(peer)) = (ports.next(), ports.next()) {
            let folder = folder.join(format!("node{}", nodes.len() + 1));
            fs::create_dir(&folder)?;
            let client = Client::builder([format!("http://{listen}")])
                .timeout(VIEW_FOR_MAX)
                .connect_timeout(VIEW_FOR_MAX)
                .build()?;
            nodes.push(Node { folder, listen, peer, client, child: None });
        }
        let mut nodes = Nodes { nodes, shards };
        for place in 0..count {
            nodes.start_one(place)?;
        }
        Ok(nodes)
    }

    pub(crate) fn start_one(&mut self, place: usize) -> Result<()> {
        let peers: Vec<String> = self.nodes.iter().map(|node| node.peer.to_string()).collect();
        let node = &mut self.nodes[place];
        let mut command = node.command(self.shards, &peers)?;
        node.child = Some(command.spawn().context("cannot start a node")?);
        Ok(())
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, place: usize) -> Result<()> {
        if let Some(mut child) = self.nodes[place].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Asks a node to stop, waits for its end, and fails if the node failed.
    pub(crate) async fn stop(&mut self, place: usize) -> Result<()> {
        let node = &mut self.nodes[place];
        let Some(child) = &mut node.child else { return Ok(()) };
        kill_process(Pid::from_child(child), Signal::TERM)?;
        let asked_at = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            ensure!(asked_at.elapsed() < STOP_FOR_MAX, "a node does not stop: {}", node.log_end());
            tokio::time::sleep(LOOK_EVERY).await;
        };
        node.child = None;
        ensure!(status.success(), "a node failed while it stopped, {status}: {}", node.log_end());
        Ok(())
    }

    /// The process ids of the running nodes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| node.child.as_ref()).map(Child::id).collect()
    }

    /// The addresses of the nodes for clients.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.listen).collect()
    }

    /// The URLs of the nodes for clients.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.listen)).collect()
    }

    /// The index of the node with this address for clients.
    pub(crate) fn place_of(&self, address: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.listen.to_string() == address)
    }

    /// The cluster, as seen by the first running node that answers. Fails if a node has ended by
    /// itself.
    pub(crate) async fn view(&mut self) -> Result<Option<ClusterDetails>> {
        for node in &mut self.nodes {
            let Some(child) = &mut node.child else { continue };
            if let Some(status) = child.try_wait()? {
                bail!(
                    "a node has ended by itself, {status}; its log ends with\n{}",
                    node.log_end()
                );
            }
        }
        for node in self.nodes.iter().filter(|node| node.child.is_some()) {
            if let Ok(view) = node.client.cluster().await {
                return Ok(Some(view));
            }
        }
        Ok(None)
    }

    /// Waits until a view of the cluster meets the condition, and returns the view.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&ClusterDetails) -> bool,
    ) -> Result<ClusterDetails> {
        let since = Instant::now();
        loop {
            if let Some(view) = self.view().await?
                && holds(&view)
            {
                return Ok(view);
            }
            if since.elapsed() >= PATIENCE {
                bail!("{what}: not within {PATIENCE:?}; the logs end with\n{}", self.log_ends());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until all nodes form one cluster, every shard has all its voters, and each node leads
    /// its share.
    pub(crate) async fn until_formed(&mut self) -> Result<ClusterDetails> {
        let (nodes, shards) = (self.nodes.len(), usize::from(self.shards));
        self.until("the cluster forms", |found| {
            found.nodes.len() == nodes && view::formed(found) == shards && view::is_even(found)
        })
        .await
    }

    /// The ends of all logs, for an error.
    pub(crate) fn log_ends(&self) -> String {
        let end = |node: &Node| format!("{}:\n{}", node.log().display(), node.log_end());
        self.nodes.iter().map(end).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Node {
    /// `peers` are the addresses of all nodes, this node included.
    fn command(&self, shards: u16, peers: &[String]) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        // Variables for the user's own broker must not reach these nodes.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TASKYARD_") {
                command.env_remove(name);
            }
        }
        command.env_remove("RUST_LOG").env("NO_COLOR", "1");
        command.args(["serve", "--disk-reserve", "1M", "--faktory", "none"]);
        if peers.len() > 1 {
            command.arg("--join").arg(peers.join(","));
        }
        command.arg("--data").arg(self.folder.join("data"));
        command.arg("--shards").arg(shards.to_string());
        command.arg("--listen").arg(self.listen.to_string());
        command.arg("--peer").arg(self.peer.to_string());
        let log: File = OpenOptions::new().create(true).append(true).open(self.log())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

/// Free addresses on loopback. Two processes begin at different ports. One process never returns an
/// address twice, because a node that was just started may not listen yet.
fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let width = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(PORTS_EACH) % width;
    let mut free = Vec::new();
    while free.len() < count {
        let number = TRIED.fetch_add(1, Ordering::Relaxed);
        if number >= width {
            bail!("no free port between {} and {}; stop something there", PORTS.start, PORTS.end);
        }
        let port = PORTS.start + ((first + number) % width) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            free.push(address);
        }
    }
    Ok(free)
}
