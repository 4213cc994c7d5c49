//! `docs/metrics.md` lists the output of `/metrics`: the code is the source, and this test writes
//! the page.
//!
//! `UPDATE=1 cargo test -p taskyard-server --test broker metrics_doc` rewrites it.

use crate::common::{
    Broker,
    cluster::{three, transfer},
    eventually, http,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
};

const INTRODUCTION: &str = "\
# Metrics

Every node answers `GET /metrics` on its port for clients in the Prometheus text format, for itself:
scrape all of them. Counters begin at 0 when a node starts. Of queues a node shows those on shards
that it leads, so that a sum over all nodes counts each task once; a queue moves from one node to
another with its shard. What a node says of its cluster is what it sees, without asking the others:
while the network is cut, nodes see different things.

This page is written from the code by a test; change it there.

| metric | kind | labels | meaning |
|---|---|---|---|
";

const ALERTS: &str = "
## Alerts that make sense

Rules for Prometheus; the times are a beginning, to be set by what you can bear.

```yaml
# Some shard can't decide: a majority of its replicas is away. One node that sees it is cut off itself; all of them: nodes are down.
- alert: TaskyardNoLeader
  expr: max(taskyard_shards_without_leader) > 0 or max(taskyard_control_without_leader) > 0
  for: 1m
# A node is down, or the next one that fails takes shards with it.
- alert: TaskyardUnderReplicated
  expr: sum(taskyard_shards_under_replicated) > 0
  for: 10m
- alert: TaskyardPeerSilent
  expr: taskyard_peer_heard == 0
  for: 2m
# A replica does not keep up: its disk or its network is slow.
- alert: TaskyardReplicaLags
  expr: max by (node) (taskyard_replica_lag_entries) > 10000
  for: 5m
# Leaders come and go: nodes are overloaded, or the network between them is bad.
- alert: TaskyardLeadersChange
  expr: increase(taskyard_leader_changes_total[10m]) > 3 * scalar(max(taskyard_shards))
# It lets others lead; below the reserve it refuses enqueues, and close to the end it stands still.
- alert: TaskyardDiskLow
  expr: taskyard_disk_low == 1 or taskyard_disk_full == 1
- alert: TaskyardMemoryFull
  expr: taskyard_memory_full == 1
  for: 5m
# Leases and schedules follow the clock of whoever leads.
- alert: TaskyardClockSkew
  expr: abs(taskyard_peer_clock_skew_seconds) > 2
  for: 5m
# Tasks wait: too few workers, or none.
- alert: TaskyardQueueWaits
  expr: max by (queue) (taskyard_queue_oldest_ready_seconds) > 600
- alert: TaskyardDeadLetters
  expr: sum by (queue) (increase(taskyard_queue_dead_total[1h])) > 0
```

Without Prometheus, `taskyard cluster status --check` exits with 1 when the cluster is not well.
";

/// The families of metrics: kind, meaning, and the labels that were seen.
type Families = Vec<(String, (String, String, BTreeSet<String>))>;

async fn families(broker: &Broker) -> Families {
    let text = http::get(broker.address, "/metrics").await.text;
    let mut order = Vec::new();
    let mut found: BTreeMap<String, (String, String, BTreeSet<String>)> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, about)) =
            line.strip_prefix("# HELP ").and_then(|line| line.split_once(' '))
        {
            order.push(name.to_owned());
            found.entry(name.to_owned()).or_default().1 = about.to_owned();
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            found.get_mut(name).expect("HELP comes first").0 = kind.to_owned();
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let part = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = |name: &str| found.contains_key(name).then(|| name.to_owned());
            let family = known(name).or_else(|| known(part?));
            let family = family.unwrap_or_else(|| panic!("{line} has no HELP"));
            let labels = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            let labels = labels.map(|(labels, _)| labels).unwrap_or_default();
            let names = labels.split(',').filter_map(|label| label.split_once('='));
            let names = names.map(|(name, _)| name.to_owned()).filter(|name| name != "le");
            found.get_mut(&family).unwrap().2.extend(names);
        }
    }
    order.into_iter().map(|name| (name.clone(), found.remove(&name).unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_what_is_printed() {
    let nodes = three().await;
    for shard in 0..4 {
        transfer(&nodes[0], shard, 1).await;
    }
    http::post(nodes[0].address, "/v1/queues/mail/tasks", r#"{"type": "send"}"#).await.ok();
    // The first ping to a peer takes a moment.
    let families = eventually("all metrics have values", async || {
        let families = families(&nodes[0]).await;
        let skews = families.iter().find(|(name, _)| name == "taskyard_peer_clock_skew_seconds");
        skews.filter(|(_, (_, _, labels))| !labels.is_empty())?;
        Some(families)
    })
    .await;
    let mut page = INTRODUCTION.to_owned();
    for (name, (kind, about, labels)) in &families {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(page, "| `{name}` | {kind} | {} | {about} |", labels.join(", ")).unwrap();
    }
    page.push_str(ALERTS);
    for word in ALERTS.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let is_metric = word.starts_with("taskyard_");
        assert!(!is_metric || families.iter().any(|(name, _)| name == word), "an alert on {word}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/metrics.md differs from the code; \
         run UPDATE=1 cargo test -p taskyard-server --test broker metrics_doc"
    );
}

async fn value(broker: &Broker, line: &str) -> String {
    let text = http::get(broker.address, "/metrics").await.text;
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{line} is not in {text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_goes_away_is_seen_in_the_metrics_of_the_others() {
    let [one, two, three] = three().await;
    for shard in 0..4 {
        transfer(&one, shard, 1).await;
    }
    let is = async |line: &str, expected: &str| {
        eventually(&format!("{line} is {expected}"), async || {
            (value(&one, line).await == expected).then_some(())
        })
        .await;
    };
    is("taskyard_nodes", "3").await;
    is("taskyard_shards_without_leader", "0").await;
    is("taskyard_control_without_leader", "0").await;
    is("taskyard_shards_under_replicated", "0").await;
    is("taskyard_peer_connected{node=\"3\"}", "1").await;
    is("taskyard_replica_lag_entries{node=\"3\"}", "0").await;
    assert_ne!(value(&one, "taskyard_leader_changes_total").await, "0");
    drop(three);
    is("taskyard_peer_connected{node=\"3\"}", "0").await;
    is("taskyard_peer_heard{node=\"3\"}", "0").await;
    is("taskyard_shards_under_replicated", "4").await;
    let shards = one.node.shards();
    for name in
        (0..).map(|number| format!("q{number}")).filter(|name| shards.home(name).0 == 0).take(1)
    {
        let path = format!("/v1/queues/{name}/tasks");
        http::post(one.address, &path, r#"{"type": "send"}"#).await.ok();
    }
    assert_ne!(value(&one, "taskyard_replica_lag_entries{node=\"3\"}").await, "0");
    is("taskyard_replica_lag_entries{node=\"2\"}", "0").await;
    drop(two);
    is("taskyard_shards_without_leader", "4").await;
    is("taskyard_control_without_leader", "1").await;
}
