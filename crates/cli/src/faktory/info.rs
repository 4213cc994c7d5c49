//! INFO: the counts of a server.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The jobs of a server, by its own count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Jobs that wait, by queue.
    pub queues: BTreeMap<String, u64>,
    /// Scheduled jobs.
    pub scheduled: u64,
    /// Jobs that failed and wait to run again.
    pub retries: u64,
    /// Dead jobs.
    pub dead: u64,
    /// Jobs that workers have fetched.
    pub working: u64,
    /// The server's description of itself.
    pub description: String,
    /// The id of the cluster; only Taskyard sends it.
    pub cluster: Option<String>,
}

#[derive(Deserialize)]
struct Document {
    faktory: Jobs,
    #[serde(default)]
    server: Server,
}

#[derive(Deserialize)]
struct Jobs {
    #[serde(default)]
    queues: BTreeMap<String, u64>,
    #[serde(default)]
    sets: BTreeMap<String, Value>,
    /// The counts of older servers.
    #[serde(default)]
    tasks: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Server {
    description: String,
    taskyard_cluster: Option<String>,
}

impl Info {
    pub(super) fn read(json: &[u8]) -> Result<Info, serde_json::Error> {
        let Document { faktory: Jobs { queues, sets, tasks }, server } =
            serde_json::from_slice(json)?;
        let count = |set: &str, task: &str| {
            let of_task = || tasks.get(task)?.get("size")?.as_u64();
            sets.get(set).and_then(Value::as_u64).or_else(of_task).unwrap_or(0)
        };
        Ok(Info {
            scheduled: count("scheduled", "Scheduled"),
            retries: count("retries", "Retries"),
            dead: count("dead", "Dead"),
            working: count("working", "Busy"),
            queues,
            description: server.description,
            cluster: server.taskyard_cluster,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_where_old_and_new_servers_put_them() {
        let new = r#"{"now":"x","faktory":{"queues":{"default":3,"mail":0},"tasks":{},
            "sets":{"scheduled":1,"retries":2,"dead":4,"working":5},"total_queues":2},
            "server":{"description":"Faktory","connections":1}}"#;
        let old = r#"{"faktory":{"queues":{"default":3,"mail":0},"tasks":{"Busy":{"size":5,"reaped":0},
            "Dead":{"size":4},"Retries":{"enqueued":9,"size":2},"Scheduled":{"size":1},"Workers":{}}},
            "server":{"description":"Faktory"}}"#;
        let expected = Info {
            queues: [("default".to_owned(), 3), ("mail".to_owned(), 0)].into(),
            scheduled: 1,
            retries: 2,
            dead: 4,
            working: 5,
            description: "Faktory".to_owned(),
            cluster: None,
        };
        for text in [new, old] {
            assert_eq!(Info::read(text.as_bytes()).unwrap(), expected, "{text}");
        }
        assert_eq!(Info::read(br#"{"faktory":{}}"#).unwrap(), Info::default());
        assert!(Info::read(b"{}").is_err());
    }
}
