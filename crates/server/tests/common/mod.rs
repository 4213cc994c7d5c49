//! Shared by black-box tests: a node with its own directory, and clients of both fronts.

pub(crate) mod cluster;
pub(crate) mod damage;
pub(crate) mod faktory;
pub(crate) mod http;
pub(crate) mod slow;
pub(crate) mod worker;

use std::{
    fs, io,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};
use taskyard_proto::v1::{self, taskyard_client::TaskyardClient};
use taskyard_server::{Clock, Config, Node};
use tempfile::TempDir;
use tonic::{Status, transport::Channel};

/// The start of manual clocks: 2023-11-14T22:13:20Z.
pub(crate) const START_MS: u64 = 1_700_000_000_000;
/// Longer than any test takes on a busy machine; only a failing test waits this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A node with its own directory; dropping this removes both.
pub(crate) struct Broker {
    pub(crate) node: Node,
    pub(crate) address: SocketAddr,
    pub(crate) clock: Clock,
    dir: TempDir,
}

impl Broker {
    /// Starts a node with the system's clock.
    pub(crate) async fn start() -> Broker {
        Broker::with(|_| ()).await
    }

    /// Starts a node with a clock that the test moves.
    pub(crate) async fn manual() -> Broker {
        Broker::with(|config| config.clock = Clock::manual(START_MS)).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Broker {
        Broker::on(tempfile::tempdir().unwrap(), change).await
    }

    pub(crate) async fn on(dir: TempDir, change: impl FnOnce(&mut Config)) -> Broker {
        let mut config = Config::new(dir.path());
        config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.shards = Some(4);
        config.disk_reserve_bytes = 0;
        change(&mut config);
        let clock = config.clock.clone();
        let node = Node::start(config).await.unwrap();
        let address = node.address().unwrap();
        Broker { node, address, clock, dir }
    }

    /// Stops the node. Another node can use its directory.
    pub(crate) async fn stop(self) -> TempDir {
        self.node.stop().await;
        self.dir
    }

    /// A client on a new connection.
    pub(crate) async fn grpc(&self) -> TaskyardClient<Channel> {
        let channel = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        let client = TaskyardClient::new(channel.connect().await.unwrap());
        client.max_decoding_message_size(64 << 20).max_encoding_message_size(64 << 20)
    }
}

/// The stable code of a gRPC error.
pub(crate) fn code(status: &Status) -> &str {
    status.metadata().get("taskyard-code").map_or("none", |code| code.to_str().unwrap())
}

/// A task with the defaults of most tests.
pub(crate) fn task(queue: &str, task_type: &str) -> v1::NewTask {
    v1::NewTask {
        queue: queue.into(),
        r#type: task_type.into(),
        payload: "{}".into(),
        ..Default::default()
    }
}

pub(crate) fn queues(names: &[&str]) -> Vec<v1::QueueWeight> {
    names.iter().map(|name| v1::QueueWeight { name: name.to_string(), weight: 0 }).collect()
}

/// Calls `look` until it returns a value. Fails the test if it never does.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "{what} did not happen within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Copies a folder. Threads of a dropped store may still remove files, so the copy starts anew if a
/// file vanishes meanwhile.
pub(crate) fn copy_all(from: &Path, to: &Path) {
    while let Err(error) = try_copy(from, to) {
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}: {error}", from.display());
        fs::remove_dir_all(to).unwrap();
    }
}

fn try_copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            try_copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
