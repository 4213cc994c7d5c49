//! What a cluster of three goes through when one of its nodes goes away: by `kill -9`, by a stop, by a
//! restart of all of them in turn, by a network that lets nothing through. Nothing that was acknowledged
//! is lost, nothing that was acked runs again, and writes go on.
//!
//! The bounds are wide: they find what is broken, not what is slow. How long it took is printed.

use crate::{
    history::{Answer, History},
    load::{Load, QUEUES, queue},
    nodes::{NODES, Nodes},
    outage::{Outages, Writers},
    plain::Plain,
    yard::until,
};
use serde_json::Value;
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

/// Does something to each node in turn, under load, and measures how long writes stand still.
async fn outages_of(name: &str, strike: fn(&mut Nodes, usize)) {
    let rounds = std::env::var("FAILOVER_ROUNDS").ok().map(|rounds| rounds.parse().unwrap());
    let mut nodes = Nodes::form(NODES);
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
            nodes.start(place);
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
    outages_of("kill -9", Nodes::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_asked_to_stop_hands_over_first() {
    outages_of("stop", Nodes::stop).await;
}

/// Everything that a program does through the SDK, again and again; returns what failed.
async fn use_sdk(client: Client, name: String, until: watch::Receiver<bool>) -> Vec<String> {
    let mut failed = Vec::new();
    let mut count = 0;
    while *until.borrow() {
        count += 1;
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
    }
    assert!(count > 10, "{name} did nothing");
    failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_request_of_the_sdk() {
    let mut nodes = Nodes::form(NODES);
    let (using, used) = watch::channel(true);
    let (working, worked) = watch::channel(true);
    let mut users = Vec::new();
    let mut workers = Vec::new();
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
        users.push(tokio::spawn(use_sdk(client, name, used.clone())));
    }
    for place in 0..nodes.len() {
        nodes.stop(place);
        nodes.start(place);
        nodes.until_settled();
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
    let mut nodes = Nodes::form(NODES);
    let history = History::begin();
    for place in 0..nodes.len() {
        let mut others = nodes.urls();
        let cut_off = Plain::to(&others.remove(place));
        let writers = Writers::start(&format!("cut-{place}"), &others, &history).await;
        let cut_at = Instant::now();
        nodes.isolate(place);
        // It takes an election until it knows; until then it does not know, and says that.
        until_refused(&cut_off).await;
        let noticed = cut_at.elapsed();
        let asked = Instant::now();
        for number in 0..10 {
            let answer = cut_off.enqueue(&queue(number), &format!("vain-{place}-{number}")).await;
            assert_eq!(answer, Answer::Refused("no_quorum".into()), "queue {number}");
        }
        let refused = asked.elapsed() / 10;
        let outage = Outages(writers.outage_at(cut_at).await);
        println!(
            "cut off: noticed after {noticed:.1?}, then refused in {refused:.1?}; others: {outage}"
        );
        assert!(refused < Duration::from_millis(500), "{refused:?}");
        assert!(outage.longest() < OUTAGE_MAX, "{outage}");
        nodes.heal(place);
        nodes.until_settled();
        let answer = cut_off.enqueue(&queue(0), &format!("healed-{place}")).await;
        assert!(answer.known().is_some(), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_three_refuses_writes_until_another_is_back() {
    let mut nodes = Nodes::form(NODES);
    let last = Plain::to(&nodes.nodes[0].url());
    let struck_at = Instant::now();
    nodes.kill(1);
    nodes.kill(2);
    until_refused(&last).await;
    println!("alone: noticed after {:.1?}", struck_at.elapsed());
    for number in 0..10 {
        let answer = last.enqueue(&queue(number), &format!("vain-{number}")).await;
        assert_eq!(answer, Answer::Refused("no_quorum".into()), "queue {number}");
    }
    nodes.start(2);
    nodes.until_ready(2);
    nodes.until_ready(0);
    let answer = last.enqueue(&queue(0), "two-again").await;
    assert!(answer.known().is_some(), "{answer:?}");
    nodes.start(1);
    nodes.until_settled();
}

/// A paused process has heard nobody: it must not take that for the silence of the others.
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
                assert!(resumed_at.elapsed() < OUTAGE_MAX, "it takes nothing");
            }
        }
        let took = resumed_at.elapsed();
        println!("paused: all queues written after {took:.1?}, {refused} answers were none");
        nodes.until_settled();
    }
}

/// Writes to every queue until a node says that it can't: each shard finds out for itself.
async fn until_refused(node: &Plain) {
    let deadline = Instant::now() + OUTAGE_MAX;
    for number in 0..10 {
        let queue = queue(number);
        loop {
            match node.enqueue(&queue, &format!("refused-{number}")).await {
                Answer::Refused(code) => break assert_eq!(code, "no_quorum"),
                _ => assert!(Instant::now() < deadline, "it goes on without the others"),
            }
        }
    }
}
