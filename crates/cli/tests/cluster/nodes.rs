//! Nodes: real brokers that form one cluster, each with its own address. A test can kill, pause,
//! stop and restart each node. A failed test prints the ends of their logs and keeps their files.

use crate::{
    cluster::{
        network::{Network, Place},
        proxy::Proxies,
    },
    yard::{Process, needs::on_disk, until},
};
use rustix::{fs::FallocateFlags, process::Signal};
use serde_json::Value;
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// The binary of the nodes. `TASKYARD_BROKER` names another build, such as a release build.
fn broker() -> String {
    let built = || env!("CARGO_BIN_EXE_taskyard").to_owned();
    std::env::var("TASKYARD_BROKER").unwrap_or_else(|_| built())
}

pub(crate) const SHARDS: usize = 4;
/// A failed test prints this many lines of each log.
const LOG_LINES_SHOWN: usize = 40;
/// The usual `--disk-reserve`.
const RESERVE: &str = "1M";

/// The smallest cluster that survives the loss of one node.
pub(crate) const NODES: usize = 3;

/// The nodes of one cluster.
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Box<dyn Network>,
    folder: Option<TempDir>,
    have_disks: bool,
}

/// One node, running or not.
pub(crate) struct Node {
    place: Place,
    folder: PathBuf,
    /// The advertised address for `--join`; the founder has none.
    join: Option<SocketAddr>,
    /// The size of the node's own disk, if the node has one.
    disk: Option<&'static str>,
    /// The node's `--disk-reserve`.
    reserve: &'static str,
    /// Further arguments of `taskyard serve`.
    more: &'static [&'static str],
    process: Option<Process>,
}

impl Nodes {
    /// Starts `count` nodes on loopback and waits until every shard of their cluster has a leader.
    pub(crate) fn form(count: usize) -> Nodes {
        Nodes::form_over(Box::new(Proxies::new()), count)
    }

    /// Forms a cluster in the given network.
    pub(crate) fn form_over(network: Box<dyn Network>, count: usize) -> Nodes {
        Nodes::form_with(network, count, &[])
    }

    /// Forms a cluster whose nodes have the arguments `more`.
    pub(crate) fn form_with(
        network: Box<dyn Network>,
        count: usize,
        more: &'static [&'static str],
    ) -> Nodes {
        let mut nodes = Nodes::placed_in(network, count, more);
        nodes.join_in_turn();
        nodes
    }

    /// Forms a cluster in which each node has its own disk. A disk outlives the process of its
    /// node and ends with the namespaces of the test.
    pub(crate) fn form_on_disks(network: Box<dyn Network>, count: usize, size: &str) -> Nodes {
        let mut nodes = Nodes::placed_in(network, count, &[]);
        nodes.have_disks = true;
        for node in &nodes.nodes {
            fs::create_dir(node.data()).unwrap();
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(node.data());
            assert!(
                mount.status().unwrap().success(),
                "no disk was mounted for {}",
                node.data().display()
            );
        }
        nodes.join_in_turn();
        nodes
    }

    /// Starts the nodes in turn, the founder first, and waits until the cluster has settled.
    fn join_in_turn(&mut self) {
        for place in 0..self.len() {
            self.start(place);
            self.until_ready(place);
        }
        self.until_settled();
    }

    /// Places `count` nodes on loopback without starting them. The first node founds the cluster;
    /// the others join it.
    pub(crate) fn placed(count: usize) -> Nodes {
        Nodes::placed_in(Box::new(Proxies::new()), count, &[])
    }

    fn placed_in(network: Box<dyn Network>, count: usize, more: &'static [&'static str]) -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let mut nodes =
            Nodes { nodes: Vec::new(), network, folder: Some(folder), have_disks: false };
        for number in 0..count {
            let place = nodes.network.add_node();
            let folder = nodes.folder.as_ref().unwrap().path().join(format!("node-{number}"));
            fs::create_dir(&folder).unwrap();
            let join = nodes.nodes.first().map(|first| first.place.advertised);
            let (disk, reserve, process) = (None, RESERVE, None);
            nodes.nodes.push(Node { place, folder, join, disk, reserve, more, process });
        }
        nodes
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The URL of each node for clients.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    pub(crate) fn start(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        assert!(node.process.is_none(), "node {place} runs");
        let process = Process(node.command().spawn().unwrap());
        self.network.started(place, process.0.id());
        node.process = Some(process);
    }

    /// Empties the data folder of a stopped node. With `disk`, the node gets its own disk of this
    /// size, which ends with its process.
    pub(crate) fn renew(&mut self, place: usize, disk: Option<&'static str>) {
        let node = &mut self.nodes[place];
        assert!(node.process.is_none(), "node {place} runs");
        fs::remove_dir_all(node.data()).unwrap();
        fs::create_dir(node.data()).unwrap();
        node.disk = disk;
    }

    /// The node id of the node at `place`, by the view of the first node.
    pub(crate) fn number(&self, place: usize) -> u64 {
        let (view, address) = (self.nodes[0].view(), self.nodes[place].place.clients.to_string());
        let mut found = view["nodes"].as_array().unwrap().iter();
        found.find(|node| node["address"] == *address).unwrap()["id"].as_u64().unwrap()
    }

    /// Transfers the leadership of shard 0 to a node.
    pub(crate) fn lead(&self, place: usize) {
        let number = self.number(place);
        until(&format!("node {place} leads"), || {
            self.operate(place, &["transfer", "0", &number.to_string()]);
            self.nodes[place].view()["shards"][0]["leader"] == number
        });
    }

    /// Sets the disk reserve of a node from its next start on; `None` stands for `RESERVE`.
    pub(crate) fn set_reserve(&mut self, place: usize, reserve: Option<&'static str>) {
        self.nodes[place].reserve = reserve.unwrap_or(RESERVE);
    }

    /// Removes a stopped node by force. The cluster refuses this until it counts the node as down.
    pub(crate) fn give_up(&self, asked: usize, lost: u64) {
        until(&format!("node {lost} is removed by force"), || {
            self.operate(asked, &["remove", "--force", "--yes", &lost.to_string()])
        });
    }

    /// Drains and removes the last node, as operators do. Its process then ends by itself.
    pub(crate) fn drain_last(&mut self) {
        let place = self.len() - 1;
        let number = self.number(place).to_string();
        assert!(self.operate(0, &["drain", "--wait", &number]), "node {number} is not drained");
        assert!(self.operate(0, &["remove", "--yes", &number]), "node {number} is not removed");
        let said = self.until_failed(place);
        assert!(said.contains("was removed"), "{said}");
        self.nodes.pop();
    }

    /// Runs `taskyard cluster ...` against a node; true if the command succeeded.
    fn operate(&self, asked: usize, arguments: &[&str]) -> bool {
        let mut command = Command::new(broker());
        command.arg("cluster").args(arguments).env("TASKYARD_URL", self.nodes[asked].url());
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    /// Waits until a node ends by itself with exit code 1, and returns the end of its log.
    pub(crate) fn until_failed(&mut self, place: usize) -> String {
        let mut process = self.nodes[place].process.take().unwrap();
        assert_eq!(process.code(), Some(1), "node {place} must end with exit code 1");
        self.nodes[place].log_end()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, place: usize) {
        drop(self.nodes[place].process.take());
    }

    /// Sends SIGTERM and waits for the process, which must succeed even if it was still starting.
    pub(crate) fn stop(&mut self, place: usize) {
        let mut process = self.nodes[place].process.take().unwrap();
        process.signal(Signal::TERM);
        let status = process.status();
        assert!(status.success(), "node {place} did not stop cleanly: {status}");
    }

    /// Whether each node has its own disk, which a test can fill up.
    pub(crate) fn have_disks(&self) -> bool {
        self.have_disks
    }

    /// Fills the disk of a node to the last byte.
    pub(crate) fn fill_disk(&self, place: usize) {
        let mut filler = File::create(self.nodes[place].filler()).unwrap();
        let free = rustix::fs::statvfs(self.nodes[place].data()).unwrap();
        let most = free.f_bavail.saturating_sub(1) * free.f_frsize;
        // This may fail, because the node may take some of the last bytes first.
        let _ = rustix::fs::fallocate(&filler, FallocateFlags::empty(), 0, most);
        while filler.write_all(&[0; 1 << 12]).is_ok() {}
    }

    /// Frees the disk of a node. If the node ended because its disk was full, this restarts it.
    pub(crate) fn empty_disk(&mut self, place: usize) {
        fs::remove_file(self.nodes[place].filler()).unwrap();
        let process = self.nodes[place].process.as_mut().unwrap();
        let Some(status) = process.0.try_wait().unwrap() else { return };
        let said = self.nodes[place].log_end();
        assert!(said.contains("No space left on device"), "node {place}: {status}\n{said}");
        println!("node {place} ended because its disk was full");
        self.nodes[place].process = None;
        self.start(place);
    }

    pub(crate) fn pause(&self, place: usize) {
        self.nodes[place].process.as_ref().unwrap().signal(Signal::STOP);
    }

    pub(crate) fn resume(&self, place: usize) {
        self.nodes[place].process.as_ref().unwrap().signal(Signal::CONT);
    }

    /// Waits until a node serves every shard. The test fails if the node ends instead.
    pub(crate) fn until_ready(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        let address = node.place.clients;
        let process = node.process.as_mut().unwrap();
        until(&format!("node {place} is ready"), || {
            let ended = process.0.try_wait().unwrap();
            assert!(ended.is_none(), "node {place} did not start: {ended:?}");
            get(address, "/readyz").is_some_and(|(status, _)| status == 200)
        });
    }

    /// Waits until every node is ready and sees that each group has a leader and all its voters.
    pub(crate) fn until_settled(&mut self) {
        for place in 0..self.len() {
            self.until_ready(place);
        }
        until("the cluster has settled", || {
            self.nodes.iter().all(|node| is_settled(&node.view(), self.len()))
        });
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for node in &self.nodes {
            eprintln!("\n--- the end of {}:\n{}", node.log().display(), node.log_end());
        }
        if let Some(folder) = self.folder.take() {
            eprintln!("\n--- all files are kept in {}", folder.keep().display());
        }
    }
}

impl Node {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.place.clients)
    }

    /// The answer of the node to `/v1/cluster`; null if there is no answer.
    pub(crate) fn view(&self) -> Value {
        match get(self.place.clients, "/v1/cluster") {
            Some((200, body)) => serde_json::from_str(&body).unwrap(),
            _ => Value::Null,
        }
    }

    /// The data folder as the process of the node sees it: on its own disk, if it has one.
    pub(crate) fn data_inside(&self) -> PathBuf {
        let process = self.process.as_ref().expect("the node runs").0.id();
        let data = self.data();
        Path::new(&format!("/proc/{process}/root")).join(data.strip_prefix("/").unwrap_or(&data))
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The file with which a test fills the disk.
    fn filler(&self) -> PathBuf {
        self.data().join("filler")
    }

    /// The peak memory of the process, by the kernel's `VmHWM`.
    pub(crate) fn memory_peak_bytes(&self) -> u64 {
        let process = self.process.as_ref().expect("the node runs").0.id();
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse().ok());
        kilobytes.map_or(0, |kilobytes: u64| kilobytes << 10)
    }

    /// How often `words` occurs in the log since the node first started.
    pub(crate) fn has_said(&self, words: &str) -> usize {
        fs::read_to_string(self.log()).unwrap_or_default().matches(words).count()
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// How often `what` occurs in the log since the node first started.
    pub(crate) fn said(&self, what: &str) -> usize {
        fs::read_to_string(self.log()).unwrap_or_default().matches(what).count()
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    fn command(&self) -> Command {
        let mut words = self.place.enter.clone();
        if let Some(size) = self.disk {
            words.extend(on_disk(size, &self.data()));
        }
        words.push(broker());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.args(["serve", "--json", "--log", "info", "--disk-reserve", self.reserve]);
        command.args(["--faktory", "none", "--shards"]);
        command.arg(SHARDS.to_string()).arg("--data").arg(self.data());
        let Place { clients, peers, advertised, .. } = self.place;
        command.args(["--listen", &clients.to_string(), "--peer", &peers.to_string()]);
        command.args(["--advertise", &advertised.to_string()]).args(self.more);
        if let Some(join) = self.join {
            command.arg("--join").arg(join.to_string());
        }
        let log = |path: &Path| -> File {
            OpenOptions::new().create(true).append(true).open(path).unwrap()
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log(&self.log()));
        command.env("NO_COLOR", "1").env_remove("RUST_LOG");
        command
    }
}

/// Whether all nodes are up and each group has a leader and all its voters.
fn is_settled(view: &Value, nodes: usize) -> bool {
    // A shard has one replica in a cluster of two: with two replicas, the loss of either would
    // stop the shard.
    let replicas_each = if nodes < NODES { 1 } else { NODES };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_settled = |group: &Value, others: usize| {
        let replicas = list(&group["replicas"]);
        let voters = replicas.iter().filter(|replica| replica["role"] == "voter").count();
        group["leader"].is_u64()
            && group["moving_to"].is_null()
            && voters == replicas_each
            && replicas.len() == voters + others
    };
    let (found, shards) = (list(&view["nodes"]), list(&view["shards"]));
    found.len() == nodes
        && found.iter().all(|node| node["state"] == "up")
        && shards.len() == SHARDS
        && shards.iter().all(|shard| is_settled(shard, 0))
        // Every node has a replica of the control group.
        && is_settled(&view["control"], nodes - replicas_each)
}

/// The status and body of a GET; `None` if no answer came in time.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let patience = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}
