//! What a cluster of three goes through when one of its nodes goes away: by `kill -9`, by a stop, by a
//! restart of all of them in turn, by a network that lets nothing through. Nothing that was acknowledged
//! is lost, nothing that was acked runs again, and writes go on.
//!
//! The bounds are wide: they find what is broken, not what is slow. How long it took is printed.

use crate::{
    history::{Answer, History, Made, What},
    load::{Load, QUEUES, queue},
    nodes::{NODES, Nodes},
    outage::{Outages, Writers},
    plain::Plain,
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use taskyard::{Client, Fail, TaskContext, Worker};
use tokio::sync::watch;

/// `FAILOVER_ROUNDS` asks for more, to measure: each round is one kill or stop of each node.
const ROUNDS: usize = 1;
/// Far beyond what is promised, so that a busy machine is no reason to fail.
const OUTAGE_MAX: Duration = Duration::from_secs(10);

/// How often the SDK is used by each of its users for each restart.
const USES_LEAST: u32 = 5;

/// Does something to each node in turn, under load, and measures how long writes stand still.
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
    load.finish_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_resume_after_kill_9_of_any_node_and_nothing_is_lost() {
    outages_of("kill -9", Nodes::form(NODES), Nodes::kill, Nodes::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_asked_to_stop_hands_over_first() {
    outages_of("stop", Nodes::form(NODES), Nodes::stop, Nodes::start).await;
}

/// Everything that a program does through the SDK, again and again; counts it, and returns what failed.
async fn use_sdk(
    client: Client,
    name: String,
    until: watch::Receiver<bool>,
    counted: watch::Sender<u32>,
) -> Vec<String> {
    let mut failed = Vec::new();
    while *until.borrow() {
        let count = *counted.borrow();
        let went = async {
            let task = client.task("roll", &count).queue(format!("{name}-results")).await?;
            client.get(task.id().clone()).await?;
            task.result().await?;
            let by_hand = client.task("hand", &count).queue(format!("{name}-hand")).await?;
            let queue = [format!("{name}-hand")];
            for claimed in client.claim(queue).wait(Duration::from_secs(30)).await? {
                claimed.ack(&1).await?;
            }
            client.get(by_hand.id().clone()).await.map(drop)
        };
        if let Err(error) = went.await {
            let error: taskyard::Error = error;
            failed.push(format!("{name}, round {count}: {error}"));
        }
        counted.send_modify(|count| *count += 1);
    }
    failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_request_of_the_sdk() {
    let mut nodes = Nodes::form(NODES);
    let (using, used) = watch::channel(true);
    let (working, worked) = watch::channel(true);
    let (mut users, mut counts, mut workers) = (Vec::new(), Vec::new(), Vec::new());
    let ran = Arc::new(Mutex::new(0));
    for number in 0..nodes.len() {
        let mut urls = nodes.urls();
        urls.rotate_left(number);
        let client = Client::builder(urls).build().unwrap();
        let ran = ran.clone();
        let handler = move |_: TaskContext| {
            *ran.lock().unwrap() += 1;
            std::future::ready(Ok::<_, Fail>(1))
        };
        let name = format!("user-{number}");
        let worker = Worker::builder(&client).queue(format!("{name}-results")).concurrency(4);
        let worker = worker.handler("roll", handler).build().unwrap();
        let mut stop = worked.clone();
        let stop = async move { stop.wait_for(|working| !working).await.map(drop) };
        workers.push(tokio::spawn(worker.run_until(stop)));
        let (counted, count) = watch::channel(0);
        users.push(tokio::spawn(use_sdk(client, name, used.clone(), counted)));
        counts.push(count);
    }
    for place in 0..nodes.len() {
        let before: Vec<u32> = counts.iter().map(|count| *count.borrow()).collect();
        nodes.stop(place);
        nodes.start(place);
        nodes.until_settled();
        for (count, before) in counts.iter_mut().zip(before) {
            count.wait_for(|count| *count >= before + USES_LEAST).await.unwrap();
        }
    }
    using.send_replace(false);
    let mut failed = Vec::new();
    for user in users {
        failed.extend(user.await.unwrap());
    }
    working.send_replace(false);
    for worker in workers {
        worker.await.unwrap().unwrap();
    }
    println!("{} tasks ran meanwhile", ran.lock().unwrap());
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_refuses_writes_at_once_and_the_majority_goes_on() {
    cut_off_each(&mut Nodes::form(NODES), &History::begin()).await;
}

/// Cuts each node off in turn. The others go on; it refuses, and once it is back it writes again.
pub(crate) async fn cut_off_each(nodes: &mut Nodes, history: &History) {
    for place in 0..nodes.len() {
        let mut others = nodes.urls();
        let cut_off = Lonely { node: Plain::to(&others.remove(place)), place, history };
        let writers = Writers::start(&format!("cut-{place}"), &others, history).await;
        let cut_at = Instant::now();
        nodes.network.isolate(place);
        // It takes an election until it knows; until then it does not know, and says that.
        cut_off.until_refused().await;
        let noticed = cut_at.elapsed();
        let asked = Instant::now();
        for number in 0..10 {
            let answer = cut_off.enqueue("vain", number).await;
            assert_eq!(answer, Answer::Refused("no_quorum".into()), "queue {number}");
        }
        let refused = asked.elapsed() / 10;
        let outage = Outages(writers.outage_at(cut_at).await);
        println!(
            "cut off: noticed after {noticed:.1?}, then refused in {refused:.1?}; others: {outage}"
        );
        assert!(refused < Duration::from_millis(500), "{refused:?}");
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

/// Has one node hear and not be heard, and then be heard and not hear. The others go on; it confirms nothing,
/// and once it is back it writes again.
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

/// A client that knows one node only, which is cut off.
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

    /// Writes to every queue until the node says that it can't: each shard finds out for itself.
    async fn until_refused(&self) {
        let deadline = Instant::now() + OUTAGE_MAX;
        for number in 0..10 {
            loop {
                match self.enqueue("refused", number).await {
                    Answer::Refused(code) => break assert_eq!(code, "no_quorum"),
                    _ => assert!(Instant::now() < deadline, "it goes on without the others"),
                }
            }
        }
    }
}
