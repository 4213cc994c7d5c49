//! A measured broker, in a process of its own.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use taskyard::Client;
use taskyard_cli::faktory::Url;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// A broker that is not up after this time is broken. The time allows a replay of millions of
/// tasks.
const START_FOR_MAX: Duration = Duration::from_secs(120);

pub(super) struct Broker {
    child: Child,
    folder: TempDir,
    url: String,
    pid: u32,
    faktory: Option<String>,
}

#[derive(Deserialize)]
struct Started {
    url: String,
    pid: u32,
    #[serde(default)]
    faktory: Option<String>,
}

impl Broker {
    pub(super) async fn start() -> Result<Broker> {
        Broker::start_in(super::folder()?, "none").await
    }

    /// Starts a broker that also serves Faktory clients, and returns their URL.
    pub(super) async fn start_with_faktory() -> Result<(Broker, Url)> {
        let mut broker = Broker::start_in(super::folder()?, "127.0.0.1:0").await?;
        let url =
            broker.faktory.take().context("the broker does not listen for Faktory clients")?;
        let url = url.parse().map_err(|problem| anyhow::anyhow!("{url}: {problem}"))?;
        Ok((broker, url))
    }

    async fn start_in(folder: TempDir, faktory: &str) -> Result<Broker> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("taskyard")
            // The password and certificate of the user's own broker must not reach this one.
            .env_remove("TASKYARD_FAKTORY_PASSWORD")
            .env_remove("TASKYARD_FAKTORY_PASSWORD_FILE")
            .env_remove("TASKYARD_FAKTORY_TLS_CERT")
            .env_remove("TASKYARD_FAKTORY_TLS_KEY")
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:0"])
            .args(["--faktory", faktory, "--log", "warn", "--data"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("the broker has no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(START_FOR_MAX, lines.next_line())
            .await
            .context("the broker to be measured is not up after two minutes")??;
        let line = line.context("the broker to be measured did not start; see above")?;
        let Started { url, pid, faktory } = serde_json::from_str(&line)?;
        Ok(Broker { child, folder, url, pid, faktory })
    }

    pub(super) async fn connect(&self) -> Result<Client> {
        Ok(Client::connect(&self.url).await?)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills the broker, starts it again and waits until its queues have `tasks` tasks again.
    pub(super) async fn restart(mut self, tasks: u64) -> Result<(Broker, Duration)> {
        self.child.kill().await?;
        let started = Instant::now();
        let broker = Broker::start_in(self.folder, "none").await?;
        let client = broker.connect().await?;
        let waiting: u64 = client.queues().await?.iter().map(|queue| queue.ready).sum();
        let took = started.elapsed();
        anyhow::ensure!(waiting >= tasks, "{tasks} tasks were acknowledged, {waiting} are left");
        Ok((broker, took))
    }

    /// Stops the broker gracefully.
    pub(super) async fn stop(mut self) -> Result<()> {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        self.child.wait().await?;
        Ok(())
    }
}
