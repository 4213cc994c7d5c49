//! Three nodes that send to each other while their lines are cut, stalled and swallowed.

use super::{
    proxy::{Line, Proxy},
    *,
};
use std::collections::BTreeSet;

/// Impatient, so that a dead line is noticed within the test.
const IMPATIENT: Tuning = Tuning {
    patience: Patience {
        handshake: Duration::from_millis(1_000),
        ping_every: Duration::from_millis(50),
        silence: Duration::from_millis(400),
        look_every: Duration::from_millis(20),
        redial_max: Duration::from_millis(200),
    },
    ..TUNING
};

const CALLS: u64 = 1_500;
const FAULTS: u64 = 60;

/// The result of one call.
type Outcome = (String, Result<Bytes, CallError>);

/// Sends a bounded number of calls, several at once, with Raft messages between them.
async fn send_storm(network: PeerNetwork, from: NodeId, to: NodeId, draws: Draws) -> Vec<Outcome> {
    let mut calls = tokio::task::JoinSet::new();
    let mut outcomes = Vec::new();
    for number in 0..CALLS {
        network.raft(to, number, Bytes::from(number.to_string()));
        // Some are large enough to be in the middle of a write when the line is cut.
        let padding = if draws.below(50) == 0 { 300_000 } else { draws.below(500) };
        let name = format!("{from}>{to}#{number} {}", "x".repeat(padding as usize));
        let wait = Duration::from_millis(20 + draws.below(1_000));
        let call = network.call(to, Bytes::from(name.clone()), wait);
        calls.spawn(async move { (name, call.await) });
        if calls.len() >= 32 {
            outcomes.extend(calls.join_next().await.map(Result::unwrap));
        }
        // A peer that is away refuses at once: calls are spread over the time of the faults.
        tokio::time::sleep(Duration::from_micros(draws.below(4_000))).await;
    }
    outcomes.extend(calls.join_all().await);
    outcomes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_calls_were_executed_once_while_lines_are_cut() {
    let seed = 0x5eed;
    let mut nodes = Vec::new();
    for node in 1..=3 {
        nodes.push(TestNode::with(config(node).identity(), IMPATIENT, Clock::system()).await);
    }
    let pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
    let mut lines = BTreeMap::new();
    for (from, to) in pairs {
        lines.insert((from, to), Proxy::to(nodes[to].address).await);
    }
    for (index, node) in nodes.iter().enumerate() {
        let dialled = lines.iter().filter(|((from, _), _)| *from == index);
        let peers: Vec<_> =
            dialled.map(|((_, to), line)| (nodes[*to].node, line.address)).collect();
        node.dials(&peers);
    }

    let mut storms = tokio::task::JoinSet::new();
    for (number, (from, to)) in (0u64..).zip(pairs) {
        let (from, to) = (&nodes[from], nodes[to].node);
        let draws = Draws(AtomicU64::new(seed + number));
        storms.spawn(send_storm(from.network.clone(), from.node, to, draws));
    }
    let faults = async {
        let draws = Draws(AtomicU64::new(seed));
        for _ in 0..FAULTS {
            let line = lines.values().nth(draws.below(6) as usize).unwrap();
            match draws.below(6) {
                0 | 1 => line.cut(),
                2 => line.set(Line::Stalls),
                3 => line.set(Line::Swallows),
                _ => line.set(Line::Passes),
            }
            tokio::time::sleep(Duration::from_millis(draws.below(100))).await;
        }
        // Without faults, stalled lines go on or are given up, and all must heal.
        lines.values().for_each(|line| line.set(Line::Passes));
    };
    let (outcomes, ()) = tokio::join!(within("the storm", storms.join_all()), faults);

    for node in &nodes {
        for other in nodes.iter().filter(|other| other.node != node.node) {
            let healed = async {
                loop {
                    node.recorder.until_up(other.node).await;
                    match node.asks(other.node, "healed").await {
                        Ok(answer) => return answer,
                        // The last of the faults may still be noticed.
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
            };
            assert_eq!(within("healing", healed).await, format!("{}:healed", node.node));
        }
    }
    check_outcomes(&nodes, outcomes.into_iter().flatten().collect());
    check_messages(&nodes);
    for node in &nodes {
        for other in nodes.iter().filter(|other| other.node != node.node) {
            let turns = node.recorder.turns(other.node);
            assert!(turns.iter().step_by(2).all(|up| *up), "{turns:?}");
            assert!(turns.iter().skip(1).step_by(2).all(|up| !*up), "{turns:?}");
        }
        assert!(node.network.status().iter().all(|peer| peer.calls_under_way == 0));
    }
}

#[tokio::test]
async fn a_peer_behind_a_dead_line_is_down_until_the_line_is_back() {
    let mut tuning = IMPATIENT;
    tuning.patience.silence = Duration::from_millis(1_000);
    for dead in [Line::Stalls, Line::Swallows] {
        let one = TestNode::with(config(1).identity(), tuning, Clock::system()).await;
        let two = TestNode::with(config(2).identity(), tuning, Clock::system()).await;
        let line = Proxy::to(two.address).await;
        one.dials(&[(2, line.address)]);
        one.recorder.until_up(2).await;
        line.set(dead);
        // Noticed by silence alone.
        let call = tokio::spawn(one.network.call(2, Bytes::from("into the void"), WAIT));
        one.recorder.until_down(2).await;
        let lost = within("the call", call).await.unwrap();
        assert!(lost == Err(CallError::Lost) || is_not_sent(&lost), "{lost:?}");
        assert!(is_not_sent(&one.asks(2, "nobody").await));
        line.set(Line::Passes);
        line.cut();
        one.recorder.until_up(2).await;
        assert!(one.asks(2, "back").await.is_ok());
        assert_eq!(one.recorder.turns(2)[..3], [true, false, true], "{dead:?}");
        assert_eq!((two.executed("nobody"), two.executed("back")), (0, 1));
    }
}

/// An answer means executed once, "not sent" means never, and anything else at most once.
fn check_outcomes(nodes: &[TestNode], outcomes: Vec<Outcome>) {
    assert_eq!(outcomes.len() as u64, CALLS * 6);
    let mut executed: BTreeMap<Bytes, u64> = BTreeMap::new();
    for node in nodes {
        executed.extend(node.recorder.seen.lock().unwrap().executed.clone());
    }
    let mut counts = BTreeMap::<&str, u64>::new();
    for (name, outcome) in outcomes {
        let times = executed.get(name.as_bytes()).copied().unwrap_or_default();
        let call = name.split(' ').next().unwrap();
        let kind = match outcome {
            Ok(answer) => {
                assert_eq!(times, 1, "{call} was answered");
                let from = call.split('>').next().unwrap();
                assert_eq!(answer, format!("{from}:{name}"), "{call}");
                "answered"
            }
            Err(error @ (CallError::NotSent { .. } | CallError::TooManyParked { .. })) => {
                assert_eq!(times, 0, "{call}: {error}");
                "not sent"
            }
            Err(CallError::Lost) => {
                assert!(times <= 1, "{call} was lost");
                "lost"
            }
            Err(CallError::TimedOut) => {
                assert!(times <= 1, "{call} timed out");
                "timed out"
            }
        };
        *counts.entry(kind).or_default() += 1;
    }
    println!("{counts:?}");
    assert!(counts.get("answered").is_some_and(|count| *count > 0), "{counts:?}");
}

/// Messages may be lost, and never come twice.
fn check_messages(nodes: &[TestNode]) {
    for node in nodes {
        let seen = node.recorder.seen.lock().unwrap();
        assert!(!seen.raft.is_empty());
        let distinct: BTreeSet<_> =
            seen.raft.iter().map(|(from, group, _)| (from, group)).collect();
        assert_eq!(distinct.len(), seen.raft.len(), "to node {}", node.node);
        assert!(seen.raft.iter().all(|(_, group, message)| *message == group.to_string()));
    }
}
