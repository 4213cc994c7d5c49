//! A broker in a process of its own, for as long as it is measured.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use taskyard::Client;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// A broker that is not up by then never will be; replaying millions of tasks takes a while.
const START_FOR_MAX: Duration = Duration::from_secs(120);

pub(super) struct Broker {
    child: Child,
    folder: TempDir,
    url: String,
    pid: u32,
}

#[derive(Deserialize)]
struct Started {
    url: String,
    pid: u32,
}

impl Broker {
    pub(super) async fn start() -> Result<Broker> {
        Broker::start_in(super::folder()?).await
    }

    async fn start_in(folder: TempDir) -> Result<Broker> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("taskyard")
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:0"])
            .args(["--faktory", "none", "--log", "warn", "--data"])
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
        let Started { url, pid } = serde_json::from_str(&line)?;
        Ok(Broker { child, folder, url, pid })
    }

    pub(super) async fn connect(&self) -> Result<Client> {
        Ok(Client::connect(&self.url).await?)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills it, starts it again and waits until its queues hold `tasks` again.
    pub(super) async fn restart(mut self, tasks: u64) -> Result<(Broker, Duration)> {
        self.child.kill().await?;
        let started = Instant::now();
        let broker = Broker::start_in(self.folder).await?;
        let client = broker.connect().await?;
        let waiting: u64 = client.queues().await?.iter().map(|queue| queue.ready).sum();
        let took = started.elapsed();
        anyhow::ensure!(waiting >= tasks, "{tasks} tasks were acknowledged, {waiting} are left");
        Ok((broker, took))
    }

    /// Lets it stop gracefully.
    pub(super) async fn stop(mut self) -> Result<()> {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        self.child.wait().await?;
        Ok(())
    }
}
