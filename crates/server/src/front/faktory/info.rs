//! INFO: counts of waiting, running and finished jobs.

use super::{Shared, frame::Reply};
use crate::{Error, moment::InWords};
use serde::Serialize;
use std::{collections::BTreeMap, fs, sync::atomic::Ordering};
use taskyard_machine::Timestamp;

/// The server version in the reply: some clients decide by it what the server can do.
const SPOKEN_VERSION: &str = "1.10.0";

#[derive(Serialize)]
struct Info {
    now: String,
    server_utc_time: String,
    faktory: Jobs,
    server: Server,
}

#[derive(Default, Serialize)]
struct Jobs {
    queues: BTreeMap<String, u64>,
    sets: Sets,
    tasks: BTreeMap<String, u64>,
    total_failures: u64,
    total_processed: u64,
    total_enqueued: u64,
    total_queues: u64,
}

#[derive(Default, Serialize)]
struct Sets {
    scheduled: u64,
    retries: u64,
    dead: u64,
    working: u64,
}

#[derive(Serialize)]
struct Server {
    description: String,
    faktory_version: &'static str,
    uptime: u64,
    connections: usize,
    command_count: u64,
    used_memory_mb: u64,
    /// Not in Faktory: an import learns from it that two addresses are one server.
    taskyard_cluster: String,
}

impl Shared {
    pub(super) async fn info(&self) -> Result<Reply, Error> {
        let mut jobs = Jobs::default();
        for queue in self.broker.queues().await? {
            let counts = &queue.counts;
            jobs.sets.scheduled += counts.scheduled - counts.retrying;
            jobs.sets.retries += counts.retrying;
            jobs.sets.dead += counts.dead;
            jobs.sets.working += counts.claimed;
            jobs.total_failures += counts.failed_total;
            jobs.total_processed += counts.succeeded_total + counts.failed_total;
            jobs.total_enqueued += counts.ready;
            if self.is_listed(&queue) {
                jobs.queues.insert(queue.name.as_str().to_owned(), counts.ready);
            }
        }
        jobs.total_queues = jobs.queues.len() as u64;
        let now = self.broker.now();
        let up = self.broker.clock().monotonic().saturating_duration_since(self.started);
        Ok(Reply::json(&Info {
            now: InWords(now).to_string(),
            server_utc_time: time_of_day(now),
            faktory: jobs,
            server: Server {
                description: format!("Taskyard {}", env!("CARGO_PKG_VERSION")),
                faktory_version: SPOKEN_VERSION,
                uptime: up.as_secs().max(1),
                connections: self.connections.load(Ordering::Relaxed),
                command_count: self.commands.load(Ordering::Relaxed),
                used_memory_mb: used_memory_mb(),
                taskyard_cluster: self.broker.cluster_id(),
            },
        }))
    }
}

/// "HH:MM:SS UTC".
fn time_of_day(now: Timestamp) -> String {
    let seconds = now.0 / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// The memory of this process; 0 if the system does not say.
fn used_memory_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = rss.and_then(|rss| rss.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_has_two_digits_each() {
        assert_eq!(time_of_day(Timestamp(0)), "00:00:00 UTC");
        assert_eq!(time_of_day(Timestamp(1_700_000_009_999)), "22:13:29 UTC");
    }
}
