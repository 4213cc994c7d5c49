//! A cluster of three loses a node by `kill -9`, by a stop, or by a cut network. No confirmed write
//! is lost, no acked task runs again, and writes go on.
//!
//! The time bounds suit a busy machine: they find faults, not slowness. Each test prints its times.

use crate::{
    cluster::{
        history::{Answer, History, Made, What},
        load::{Load, QUEUES, queue},
        nodes::{NODES, Nodes},
        outage::{Outages, Writers},
        plain::Plain,
    },
    yard::{taskyard, until},
};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A round kills or stops each node once. `FAILOVER_ROUNDS` sets more rounds for a measurement.
const ROUNDS: usize = 1;
/// The promised outage after a kill. Only the shortest outage of a test must keep this promise,
/// because other tests slow the machine down; `taskyard bench --kills` measures it.
const OUTAGE_PROMISED: Duration = Duration::from_secs(2);
/// The longest outage, on a machine as busy as can be. Tests bring a node back only after writes
/// have resumed, so writes that need that node never resume.
const OUTAGE_MAX: Duration = Duration::from_secs(5);
/// A node that knows that it is cut off refuses at once; an election takes five times as long.
/// The fastest of several refusals counts.
const REFUSED_WITHIN: Duration = Duration::from_millis(100);

/// Takes each node down in turn, under load, and measures how long writes stand still.
pub(crate) async fn outages_of(
    name: &str,
    mut nodes: Nodes,
    strike: fn(&mut Nodes, usize),
    mend: fn(&mut Nodes, usize),
) {
    let rounds = std::env::var("FAILOVER_ROUNDS").ok().map(|rounds| rounds.parse().unwrap());
    let load = Load::start(nodes.urls(), 1).await;
    let (mut all, mut worst) = (Outages::default(), Outages::default());
    for round in 0..rounds.unwrap_or(ROUNDS) {
        for place in 0..nodes.len() {
            let mut others = nodes.urls();
            others.remove(place);
            let writers =
                Writers::start(&format!("{name}-{round}-{place}"), &others, &load.history).await;
            let struck_at = Instant::now();
            strike(&mut nodes, place);
            let seen = Outages(writers.outage_at(struck_at).await);
            worst.0.push(seen.longest());
            all.0.extend(seen.0);
            mend(&mut nodes, place);
            nodes.until_settled();
        }
    }
    println!("{name}: by queue: {all}");
    println!("{name}: until the last queue was back: {worst}");
    assert!(worst.longest() < OUTAGE_MAX, "{worst}");
    assert!(worst.shortest() < OUTAGE_PROMISED, "{worst}");
    load.finish_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_resume_after_kill_9_of_any_node_and_nothing_is_lost() {
    outages_of("kill -9", Nodes::form(NODES), Nodes::kill, Nodes::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_asked_to_stop_hands_over_first() {
    outages_of("stop", Nodes::form(NODES), stop_and_see_it_hand_over, Nodes::start).await;
}

/// Stops a leader and checks that it handed its groups over before it ended. The time is no proof,
/// because an election can be as fast. The proof is the node's log line about the new leaders.
/// Terms prove nothing: a view may name the next term beside the last leader.
fn stop_and_see_it_hand_over(nodes: &mut Nodes, place: usize) {
    nodes.lead(place);
    let (number, other) = (nodes.number(place), (place + 1) % nodes.len());
    let shards = |view: &Value| view["shards"].as_array().cloned().unwrap_or_default();
    let before = shards(&nodes.nodes[place].view());
    let led: Vec<&Value> = before.iter().filter(|shard| shard["leader"] == number).collect();
    assert!(!led.is_empty(), "{before:?}");
    let said =
        |nodes: &Nodes| nodes.nodes[place].said("other nodes lead all groups that this node led");
    let said_before = said(nodes);
    nodes.stop(place);
    assert_eq!(said(nodes), said_before + 1, "node {place} logged no new leaders");
    until("every group of the stopped node has a leader", || {
        let now = shards(&nodes.nodes[other].view());
        led.iter().all(|was| {
            let is = now.iter().find(|shard| shard["id"] == was["id"]);
            is.is_some_and(|is| is["leader"].is_u64() && is["leader"] != number)
        })
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_refuses_writes_at_once_and_the_majority_goes_on() {
    cut_off_each(&mut Nodes::form(NODES), &History::begin()).await;
}

/// Cuts each node off in turn. The other nodes go on. The node that is cut off refuses writes, and
/// takes writes again once its links are healed.
pub(crate) async fn cut_off_each(nodes: &mut Nodes, history: &History) {
    for place in 0..nodes.len() {
        let mut others = nodes.urls();
        let cut_off = Lonely { node: Plain::to(&others.remove(place)), place, history };
        let writers = Writers::start(&format!("cut-{place}"), &others, history).await;
        let cut_at = Instant::now();
        nodes.network.isolate(place);
        // Until the node notices the cut, after an election timeout, outcomes are unknown.
        cut_off.until_refused().await;
        let noticed = cut_at.elapsed();
        let mut refused = Duration::MAX;
        for number in 0..10 {
            let asked = Instant::now();
            let answer = cut_off.enqueue("vain", number).await;
            assert_eq!(answer, Answer::Refused("no_quorum".into()), "queue {number}");
            refused = refused.min(asked.elapsed());
        }
        let outage = Outages(writers.outage_at(cut_at).await);
        println!(
            "cut off: noticed after {noticed:.1?}, then refused in {refused:.1?}; others: {outage}"
        );
        assert!(refused < REFUSED_WITHIN, "{refused:?}");
        assert!(outage.longest() < OUTAGE_MAX, "{outage}");
        nodes.network.rejoin(place);
        nodes.until_settled();
        let answer = cut_off.enqueue("healed", 0).await;
        assert!(answer.known().is_some(), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_one_way_confirms_nothing_and_the_majority_goes_on() {
    cut_off_one_way(&mut Nodes::form(NODES), &History::begin()).await;
}

/// Cuts only the data that a node sends, then only the data that it receives. The other nodes go
/// on. The node confirms nothing until its links are healed, and then takes writes again.
pub(crate) async fn cut_off_one_way(nodes: &mut Nodes, history: &History) {
    const PLACE: usize = 0;
    let mut others = nodes.urls();
    let node = Plain::to(&others.remove(PLACE));
    let link = |way, other| if way == "mute" { (PLACE, other) } else { (other, PLACE) };
    for way in ["mute", "deaf"] {
        nodes.lead(PLACE);
        let cut_off = Lonely { node: node.clone(), place: PLACE, history };
        let writers = Writers::start(&format!("others-{way}"), &others, history).await;
        let cut_at = Instant::now();
        (1..nodes.len()).for_each(|other| nodes.network.cut(link(way, other)));
        let outage = Outages(writers.outage_at(cut_at).await);
        println!("{way}: others: {outage}");
        assert!(outage.longest() < OUTAGE_MAX, "{outage}");
        for number in 0..QUEUES {
            let answer = cut_off.enqueue(way, number).await;
            assert!(matches!(answer, Answer::Refused(_) | Answer::Unknown), "{way}: {answer:?}");
        }
        nodes.network.rejoin(PLACE);
        nodes.until_settled();
        let answer = cut_off.enqueue(&format!("after-{way}"), 0).await;
        assert!(answer.known().is_some(), "{way}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_three_refuses_writes_until_another_is_back() {
    let mut nodes = Nodes::form(NODES);
    let history = History::begin();
    let last = Lonely { node: Plain::to(&nodes.nodes[0].url()), place: 0, history: &history };
    let struck_at = Instant::now();
    nodes.kill(1);
    nodes.kill(2);
    last.until_refused().await;
    println!("alone: noticed after {:.1?}", struck_at.elapsed());
    for number in 0..10 {
        let answer = last.enqueue("vain", number).await;
        assert_eq!(answer, Answer::Refused("no_quorum".into()), "queue {number}");
    }
    nodes.start(2);
    nodes.until_ready(2);
    nodes.until_ready(0);
    let answer = last.enqueue("two-again", 0).await;
    assert!(answer.known().is_some(), "{answer:?}");
    nodes.start(1);
    nodes.until_settled();
}

/// The CLI retries dead servers. Their connection errors must not hide the answer of the living
/// node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cli_with_three_servers_says_what_the_only_living_node_says() {
    let mut nodes = Nodes::form(NODES);
    let history = History::begin();
    nodes.kill(0);
    nodes.kill(2);
    let node = Plain::to(&nodes.nodes[1].url());
    Lonely { node, place: 1, history: &history }.until_refused().await;
    let servers = nodes.urls().join(",");
    for arguments in [&["enqueue", "t", "1"][..], &["queue", "list"]] {
        let arguments = [arguments, &["--json", "--server", &servers]].concat();
        let ran = taskyard(&arguments);
        let error: Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
        assert_eq!((ran.code, &error["code"]), (1, &"no_quorum".into()), "{arguments:?} {error}");
        let detail = error["detail"].as_str().unwrap();
        assert!(!detail.contains("no broker answers"), "{arguments:?}: {detail}");
    }
}

/// A paused process hears no messages. After the pause it must not conclude that the other nodes
/// are silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stood_still_takes_writes_again() {
    let mut nodes = Nodes::form(NODES);
    for place in 0..nodes.len() {
        let (other, paused) = ((place + 1) % NODES, Plain::to(&nodes.nodes[place].url()));
        let led = |view: Value| {
            let shards = view["shards"].as_array().cloned().unwrap_or_default();
            let me = view["nodes"][place]["id"].clone();
            let is_led = |shard: &Value| shard["leader"].is_u64() && shard["leader"] != me;
            !shards.is_empty() && shards.iter().all(is_led)
        };
        nodes.pause(place);
        until("others lead", || led(nodes.nodes[other].view()));
        nodes.resume(place);
        let resumed_at = Instant::now();
        let mut refused = 0;
        for number in 0..QUEUES {
            let request = format!("resumed-{place}-{number}");
            while paused.enqueue(&queue(number), &request).await.known().is_none() {
                refused += 1;
                assert!(resumed_at.elapsed() < OUTAGE_MAX, "node {place} takes no writes");
            }
        }
        let took = resumed_at.elapsed();
        println!("paused: all queues written after {took:.1?}, {refused} tries failed");
        nodes.until_settled();
    }
}

/// A client that only uses the node that is cut off.
struct Lonely<'a> {
    node: Plain,
    place: usize,
    history: &'a History,
}

impl Lonely<'_> {
    async fn enqueue(&self, name: &str, number: usize) -> Answer<Made> {
        let request = format!("{name}-{}-{number}", self.place);
        let begin = self.history.now();
        let answer = self.node.enqueue(&queue(number), &request).await;
        self.history.record(begin, What::Enqueue { request, answer: answer.clone() });
        answer
    }

    /// Writes to every queue until the node refuses. Each shard notices the cut for itself.
    async fn until_refused(&self) {
        let deadline = Instant::now() + OUTAGE_MAX;
        for number in 0..10 {
            loop {
                match self.enqueue("refused", number).await {
                    Answer::Refused(code) => break assert_eq!(code, "no_quorum"),
                    _ => assert!(Instant::now() < deadline, "the node goes on without the others"),
                }
            }
        }
    }
}
