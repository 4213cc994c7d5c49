//! Nodes: real brokers on loopback, each with an address of its own, that form one cluster and are
//! killed, paused, stopped and started again. Their logs are kept, and printed when a test fails.

use crate::{
    proxy::Links,
    yard::{Process, until},
};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

const BROKER: &str = env!("CARGO_BIN_EXE_taskyard");
const SHARDS: usize = 4;
const CLIENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7401;
/// Where the proxy before the peer port is.
const ADVERTISED_PORT: u16 = 7402;
/// Held while a test uses a subnet, so that no other takes it.
const GUARD_PORT: u16 = 7399;
/// How much of each log a failed test prints.
const LOG_LINES_SHOWN: usize = 40;
/// What nodes keep free of their disks.
const RESERVE: &str = "1M";

/// As many as a cluster needs to go on without one.
pub(crate) const NODES: usize = 3;

/// The nodes of one cluster.
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Links,
    folder: Option<TempDir>,
    _guard: Arc<TcpListener>,
}

/// One node, whether it runs or not.
pub(crate) struct Node {
    ip: IpAddr,
    folder: PathBuf,
    /// The advertised address of a node of the cluster that it joins when it is new.
    join: Option<SocketAddr>,
    alone: bool,
    /// The size of the disk that its data is on, if that is one of its own.
    disk: Option<&'static str>,
    /// What it keeps free of its disk.
    reserve: &'static str,
    process: Option<Process>,
}

impl Nodes {
    /// Starts so many nodes and waits until they are one cluster in which every shard is led.
    pub(crate) fn form(count: usize) -> Nodes {
        let (subnet, guard) = free_subnet();
        let guard = Arc::new(guard);
        let folder = tempfile::tempdir().unwrap();
        let links = Links::default();
        let mut nodes =
            Nodes { nodes: Vec::new(), links, folder: Some(folder), _guard: guard.clone() };
        for place in 0..count {
            let ip = IpAddr::V4(Ipv4Addr::new(127, subnet[0], subnet[1], place as u8 + 1));
            let folder = nodes.folder.as_ref().unwrap().path().join(format!("node-{place}"));
            fs::create_dir(&folder).unwrap();
            let join = nodes.nodes.first().map(|first| first.at(ADVERTISED_PORT));
            let alone = count == 1;
            let node =
                Node { ip, folder, join, alone, disk: None, reserve: RESERVE, process: None };
            if !alone {
                let listener = TcpListener::bind(node.at(ADVERTISED_PORT)).unwrap();
                nodes.links.serve(listener, place, node.at(PEER_PORT), guard.clone());
            }
            nodes.nodes.push(node);
            nodes.start(place);
            nodes.until_ready(place);
        }
        nodes.until_settled();
        nodes
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Where clients reach each node.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    pub(crate) fn start(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        assert!(node.process.is_none(), "node {place} runs");
        let process = Process(node.command().spawn().unwrap());
        self.links.name_process(process.0.id(), place);
        node.process = Some(process);
    }

    /// Gives a node that does not run an empty disk of its own, which is gone when the node ends; or an
    /// empty folder.
    pub(crate) fn renew(&mut self, place: usize, disk: Option<&'static str>) {
        let node = &mut self.nodes[place];
        assert!(node.process.is_none(), "node {place} runs");
        fs::remove_dir_all(node.data()).unwrap();
        fs::create_dir(node.data()).unwrap();
        node.disk = disk;
    }

    /// What a node keeps free of its disk from its next start on; `None` for what is usual here.
    pub(crate) fn set_reserve(&mut self, place: usize, reserve: Option<&'static str>) {
        self.nodes[place].reserve = reserve.unwrap_or(RESERVE);
    }

    /// Has the cluster give up a node that does not run, as soon as the others know that it is down.
    pub(crate) fn give_up(&self, asked: usize, lost: u64) {
        until(&format!("node {lost} is given up"), || {
            let mut command = Command::new(BROKER);
            command.args(["cluster", "remove", "--force", "--yes", &lost.to_string()]);
            command.env("TASKYARD_URL", self.nodes[asked].url()).stderr(Stdio::null());
            command.status().unwrap().success()
        });
    }

    /// Waits until a node has ended by itself, and returns the end of its log.
    pub(crate) fn until_failed(&mut self, place: usize) -> String {
        let mut process = self.nodes[place].process.take().unwrap();
        assert_eq!(process.code(), Some(1), "node {place} can't go on");
        self.nodes[place].log_end()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, place: usize) {
        drop(self.nodes[place].process.take());
    }

    /// SIGTERM, and waits for the end, which must be a good one.
    pub(crate) fn stop(&mut self, place: usize) {
        let mut process = self.nodes[place].process.take().unwrap();
        process.signal(Signal::TERM);
        assert_eq!(process.code(), Some(0), "node {place} was asked to stop");
    }

    pub(crate) fn pause(&self, place: usize) {
        self.nodes[place].process.as_ref().unwrap().signal(Signal::STOP);
    }

    pub(crate) fn resume(&self, place: usize) {
        self.nodes[place].process.as_ref().unwrap().signal(Signal::CONT);
    }

    /// Cuts a node off from all others, both ways.
    pub(crate) fn isolate(&self, place: usize) {
        for other in (0..self.len()).filter(|&other| other != place) {
            self.links.cut((place, other));
            self.links.cut((other, place));
        }
    }

    /// Ends all that was done to the links of a node.
    pub(crate) fn heal(&self, place: usize) {
        for other in 0..self.len() {
            self.links.heal((place, other));
            self.links.heal((other, place));
        }
    }

    /// Waits until a node serves every shard. One that has ended instead fails the test.
    pub(crate) fn until_ready(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        let address = node.at(CLIENT_PORT);
        let process = node.process.as_mut().unwrap();
        until(&format!("node {place} is ready"), || {
            let ended = process.0.try_wait().unwrap();
            assert!(ended.is_none(), "node {place} did not start: {ended:?}");
            get(address, "/readyz").is_some_and(|(status, _)| status == 200)
        });
    }

    /// Waits until every node is ready, and sees every group led and with a voter on each node.
    pub(crate) fn until_settled(&mut self) {
        for place in 0..self.len() {
            self.until_ready(place);
        }
        if self.len() > 1 {
            until("the cluster has settled", || {
                self.nodes.iter().all(|node| is_settled(&node.view(), self.len()))
            });
        }
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
            eprintln!("\n--- everything is kept in {}", folder.keep().display());
        }
    }
}

impl Node {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.at(CLIENT_PORT))
    }

    /// What it says of the cluster; null if it does not answer.
    pub(crate) fn view(&self) -> Value {
        match get(self.at(CLIENT_PORT), "/v1/cluster") {
            Some((200, body)) => serde_json::from_str(&body).unwrap(),
            _ => Value::Null,
        }
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// The folder of its data as its process sees it: on the disk of its own, if it has one.
    pub(crate) fn data_inside(&self) -> PathBuf {
        let process = self.process.as_ref().expect("it runs").0.id();
        let data = self.data();
        Path::new(&format!("/proc/{process}/root")).join(data.strip_prefix("/").unwrap_or(&data))
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    fn command(&self) -> Command {
        let mut command = match self.disk {
            None => Command::new(BROKER),
            Some(size) => on_disk(size, &self.data()),
        };
        command.args(["serve", "--json", "--log", "info", "--disk-reserve", self.reserve]);
        command.arg("--shards");
        command.arg(SHARDS.to_string()).arg("--data").arg(self.data());
        command.arg("--listen").arg(self.at(CLIENT_PORT).to_string());
        if !self.alone {
            command.arg("--peer").arg(self.at(PEER_PORT).to_string());
            command.arg("--advertise").arg(self.at(ADVERTISED_PORT).to_string());
        }
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

/// The broker in a place of its own where `folder` is a small disk.
fn on_disk(size: &str, folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=$0 none $1 && shift && exec \"$@\"";
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, size]);
    command.arg(folder).arg(BROKER);
    command
}

/// Whether nodes can have disks of their own here.
pub(crate) fn can_mount() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let mut command = on_disk("1m", folder.path());
    command.arg("--version").stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether a view of the cluster shows all nodes up, and every group led and with a voter on each node.
fn is_settled(view: &Value, nodes: usize) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_settled = |group: &Value| {
        let replicas = list(&group["replicas"]);
        let votes = |replica: &Value| replica["role"] == "voter";
        group["leader"].is_u64()
            && group["moving_to"].is_null()
            && replicas.len() == nodes
            && replicas.iter().all(votes)
    };
    let (found, shards) = (list(&view["nodes"]), list(&view["shards"]));
    found.len() == nodes
        && found.iter().all(|node| node["state"] == "up")
        && shards.len() == SHARDS
        && shards.iter().chain([&view["control"]]).all(is_settled)
}

/// A subnet of the loopback network that no other test has, and what keeps it so. With addresses of
/// its own a node has fixed ports, which nobody else's connections take while it is down.
fn free_subnet() -> ([u8; 2], TcpListener) {
    let own = std::process::id();
    let tries = (0..u32::from(u16::MAX)).map(|number| own.wrapping_add(number) as u16);
    let mut tries = tries.map(u16::to_be_bytes).filter(|[high, low]| [*high, *low] != [0, 0]);
    let guard = |[high, low]: [u8; 2]| {
        TcpListener::bind((Ipv4Addr::new(127, high, low, 254), GUARD_PORT)).ok()
    };
    tries.find_map(|subnet| Some((subnet, guard(subnet)?))).expect("a subnet is free")
}

/// Status and body of a plain GET; `None` if there was no answer in time.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let patience = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}
