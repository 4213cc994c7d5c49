//! Nodes that are not heard: what a node refuses at once, what it waits for, and which nodes it
//! asks.

use super::*;
use crate::peer::tests::proxy::{Line as Wire, Proxy};
use futures_util::FutureExt;

const FOR_EVER: Duration = Duration::from_secs(3_600);

/// The answer to an enqueue that needs no wait; `None` if it waits.
fn at_once(shards: &Shards) -> Option<Result<Enqueued, Error>> {
    enqueue(shards, "mail", Some("r")).now_or_never()
}

impl TestNode {
    /// The other node disconnects, and has been silent for long.
    async fn loses(&self, other: &TestNode) {
        other.network.stop();
        self.until(|node| !node.network.is_connected(other.number)).await;
        self.network.silence(other.number);
    }

    /// The connections to other nodes stall; messages already on them still arrive.
    async fn hears_nothing_more_of(&self, others: &[NodeId]) {
        while others.iter().any(|other| self.network.is_heard(*other)) {
            others.iter().for_each(|other| self.network.silence(*other));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_node_that_hears_too_few_refuses_without_a_wait_and_sends_nothing() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    let home = here.shards.home("mail");
    here.loses(&there).await;
    here.loses(&other).await;
    let no_quorum = Some(Err(Error::NoQuorum { shard: home.0 }));
    // As a former leader, and as a follower that still believes in one.
    for leader in [None, Some(2)] {
        here.leads(home, leader);
        assert_eq!(at_once(&here.shards), no_quorum, "the leader is {leader:?}");
        let claimed = here.shards.claim(home, request("mail", None), WAIT).now_or_never();
        assert_eq!(claimed.unwrap().unwrap_err().code(), "no_quorum");
        let asked = here.shards.ask(home, ask::Now {}).now_or_never();
        assert_eq!(asked.unwrap().unwrap_err().code(), "no_quorum");
        let command = Command::Enqueue(Enqueue { queue: "mail", task: task(None) });
        let batch = vec![(home, EncodedCommand::new(&command))];
        let many = here.shards.propose_all(batch, true).now_or_never();
        assert_eq!(many.unwrap()[0].clone().unwrap_err().code(), "no_quorum");
    }
    assert!(there.calls().is_empty() && other.calls().is_empty());
}

#[tokio::test]
async fn a_node_without_a_replica_refuses_calls_when_it_hears_no_replica() {
    let [here, there, other] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    here.loses(&there).await;
    // The other node may lead, or know the leader.
    let asked = enqueue(&here.shards, "mail", None).await;
    assert!(asked.is_ok(), "{asked:?}");
    assert_eq!((there.calls().len(), other.calls().len()), (0, 1));
    here.loses(&other).await;
    assert_eq!(at_once(&here.shards), Some(Err(Error::NoQuorum { shard: home.0 })));
}

/// With one of three nodes down, a call waits for the election.
#[tokio::test]
async fn with_a_majority_in_hearing_an_election_is_waited_for() {
    let [here, dead, other] = three(&[1, 2, 3]).await;
    let home = here.shards.home("mail");
    here.loses(&dead).await;
    for leader in [Some(2), None] {
        here.leads(home, leader);
        assert_eq!(at_once(&here.shards), None, "the leader is {leader:?}");
    }
    let shards = here.shards.clone();
    let waiting = tokio::spawn(async move { enqueue(&shards, "mail", None).await });
    tokio::task::yield_now().await;
    here.leads(home, Some(3));
    waiting.await.unwrap().unwrap();
    assert_eq!((dead.calls().len(), other.calls().len()), (0, 1));
}

/// A connection that breaks and is made again at once is no cut.
#[tokio::test]
async fn a_line_that_has_just_broken_is_waited_for() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    here.leads(here.shards.home("mail"), Some(2));
    for node in [&there, &other] {
        node.network.stop();
        here.until(|here| !here.network.is_connected(node.number)).await;
    }
    assert_eq!(at_once(&here.shards), None);
}

/// Three nodes whose connections can be stalled by a proxy, and the proxies.
async fn behind_lines() -> ([TestNode; 3], [Proxy; 2]) {
    let nodes = started().await;
    let lines = [
        Proxy::to(nodes[1].address.parse().unwrap()).await,
        Proxy::to(nodes[2].address.parse().unwrap()).await,
    ];
    let addresses = [(2, lines[0].address.to_string()), (3, lines[1].address.to_string())];
    connect(&nodes, &addresses.into(), &[1, 2, 3]).await;
    (nodes, lines)
}

#[tokio::test]
async fn a_call_under_way_ends_when_its_node_is_cut_off() {
    let ([here, there, _other], lines) = behind_lines().await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    let shards = here.shards.clone();
    let parked =
        tokio::spawn(async move { shards.claim(home, request("mail", None), FOR_EVER).await });
    there.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    lines.iter().for_each(|line| line.set(Wire::Stalls));
    here.hears_nothing_more_of(&[2, 3]).await;
    let ended = timeout(WAIT, parked).await.expect("it ends").unwrap();
    assert_eq!(ended, Err(Error::OutcomeUnknown));
    assert!(here.network.is_connected(2), "long before the connection is given up");
}

#[tokio::test]
async fn a_leader_that_is_not_heard_is_asked_when_it_is_heard_again() {
    let ([here, there, other], lines) = behind_lines().await;
    here.leads(here.shards.home("mail"), Some(2));
    // Until the leader is heard again, the other node is asked too.
    other.bend(&[Bent::Refuses(Some(2)); 100]);
    lines[0].set(Wire::Stalls);
    here.hears_nothing_more_of(&[2]).await;
    let shards = here.shards.clone();
    let waiting = tokio::spawn(async move { enqueue(&shards, "mail", None).await });
    tokio::task::yield_now().await;
    assert!(there.calls().is_empty() && !waiting.is_finished());
    lines[0].set(Wire::Passes);
    waiting.await.unwrap().unwrap();
    assert_eq!(there.calls().len(), 1);
}
