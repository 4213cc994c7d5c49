//! The nodes of the demo's cluster: child processes of this same binary, each with a folder and ports
//! that it keeps when it is started again.
//!
//! Invariant: no child outlives this value. What ends the demo without unwinding, such as `kill -9`, leaves
//! them running.

use std::{
    fs::{self, File, OpenOptions},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use taskyard::{Client, ClusterDetails};

/// Below what systems give to outgoing connections, so that nobody's takes the port of a node that is
/// down.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// How long a node may take to say how the cluster stands.
const VIEW_FOR_MAX: Duration = Duration::from_secs(1);
/// How much of a log an error shows.
const LOG_LINES_SHOWN: usize = 12;

pub(super) struct Nodes {
    nodes: Vec<Node>,
    shards: u16,
}

struct Node {
    folder: PathBuf,
    listen: SocketAddr,
    peer: SocketAddr,
    /// Asks this node alone.
    client: Client,
    child: Option<Child>,
}

impl Nodes {
    /// Starts so many nodes with folders inside `folder`.
    pub(super) fn start(folder: &Path, count: usize, shards: u16) -> Result<Nodes> {
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

    pub(super) fn start_one(&mut self, place: usize) -> Result<()> {
        let join: Vec<String> = self.nodes.iter().map(|node| node.peer.to_string()).collect();
        let node = &mut self.nodes[place];
        let mut command = node.command(self.shards, &join.join(","))?;
        node.child = Some(command.spawn().context("cannot start a node")?);
        Ok(())
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self, place: usize) -> Result<()> {
        if let Some(mut child) = self.nodes[place].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Where clients reach the nodes.
    pub(super) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.listen)).collect()
    }

    /// The place of the node that clients reach at `address`.
    pub(super) fn place_of(&self, address: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.listen.to_string() == address)
    }

    /// The cluster, as the first node that runs and answers sees it. A node that has ended by itself
    /// is an error.
    pub(super) async fn view(&mut self) -> Result<Option<ClusterDetails>> {
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

    /// The ends of all logs, for an error.
    pub(super) fn log_ends(&self) -> String {
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
    fn command(&self, shards: u16, join: &str) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        // What is set for the user's own broker must not reach these.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TASKYARD_") {
                command.env_remove(name);
            }
        }
        command.env_remove("RUST_LOG").env("NO_COLOR", "1");
        command.args(["serve", "--disk-reserve", "1M", "--join", join]);
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

/// Addresses on loopback that nobody listens on. Two demos at once begin at different ones.
fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    let width = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(64) % width;
    let ports = (0..width).map(|number| PORTS.start + ((first + number) % width) as u16);
    let addresses = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let free: Vec<SocketAddr> =
        addresses.filter(|address| TcpListener::bind(address).is_ok()).take(count).collect();
    if free.len() < count {
        bail!("no free port between {} and {}; stop something there", PORTS.start, PORTS.end);
    }
    Ok(free)
}
