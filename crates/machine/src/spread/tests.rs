//! A queue over several shards: rejected tasks, rules on their way, and shards that only empty.

use super::*;
use crate::testing::{Yard, new_task};
use crate::{Command, Deliver, PerKey, QueueCommand, Rate, SetQueue, Unique};
use std::collections::BTreeMap;

/// The number of shards that a `Yard` assumes.
const SHARDS: u16 = 4;
const QUEUE: &str = "mail";

/// All shards of a cluster, with the messages between them.
struct Cluster {
    yards: Vec<Yard>,
    /// The last delivered message of each pair of shards.
    delivered: BTreeMap<(u16, ShardId), u64>,
}

impl Cluster {
    fn new() -> Cluster {
        let yards = (0..SHARDS).map(|shard| Yard::of_shard(ShardId(shard))).collect();
        Cluster { yards, delivered: BTreeMap::new() }
    }

    /// The shard at a position of the queue, counted from its home.
    fn at(&mut self, position: u16) -> &mut Yard {
        let shard = after(home_shard(QUEUE, SHARDS), position, SHARDS);
        &mut self.yards[usize::from(shard.0)]
    }

    fn set(&mut self, settings: QueueSettings) -> Result<(), String> {
        let set = Command::SetQueue(SetQueue { queue: QUEUE, settings });
        self.at(0).send(set).map(drop).map_err(|rejection| rejection.to_string())
    }

    fn spread(&mut self, spread: u16) {
        self.set(spread_of(spread)).unwrap();
        self.carry();
    }

    /// Delivers all messages of the outboxes.
    fn carry(&mut self) {
        for from in 0..SHARDS {
            for outgoing in self.yards[usize::from(from)].machine.outgoing(100) {
                let delivered = self.delivered.entry((from, outgoing.to)).or_default();
                if outgoing.sequence > *delivered {
                    *delivered = outgoing.sequence;
                    let deliver = outgoing.deliver(ShardId(from), outgoing.stored_at);
                    let target = &mut self.yards[usize::from(outgoing.to.0)];
                    assert_eq!(target.send(Command::Deliver(deliver)), Ok(Outcome::Taken));
                }
            }
        }
    }

    fn view(&mut self, position: u16) -> Option<SpreadView> {
        self.at(position).machine.spread_view(&QueueName::parse(QUEUE).unwrap())
    }

    /// Enqueues at every position; returns the positions that accept the task.
    fn takers(&mut self, task: &NewTask<'static>) -> Vec<u16> {
        let takes = |&position: &u16| match self.at(position).enqueue_task(QUEUE, task.clone()) {
            Ok(made) => !made.duplicate,
            Err(Rejection::QueueMoved { .. }) => false,
            Err(other) => panic!("{other}"),
        };
        (0..SHARDS).filter(takes).collect()
    }
}

fn spread_of(spread: u16) -> QueueSettings {
    QueueSettings { spread: Some(spread), ..QueueSettings::default() }
}

fn request(request_id: &'static str) -> NewTask<'static> {
    NewTask { request_id: Some(request_id), ..new_task() }
}

#[test]
fn a_spread_and_a_limit_exclude_each_other() {
    let none = QueueSettings::default;
    let rate = Rate { per_second_millionths: 1_000_000, burst: 1 };
    for (name, limited) in [
        ("max_length", QueueSettings { max_length: Some(9), ..none() }),
        ("concurrency", QueueSettings { concurrency: Some(9), ..none() }),
        ("rate", QueueSettings { rate: Some(rate), ..none() }),
        (
            "per_key",
            QueueSettings { per_key: Some(PerKey { concurrency: Some(1), rate: None }), ..none() },
        ),
    ] {
        let mut cluster = Cluster::new();
        let both = QueueSettings { spread: Some(3), ..limited.clone() };
        let refused = cluster.set(both).unwrap_err();
        assert!(refused.starts_with(&format!("{name} and a spread of 3 exclude")), "{refused}");
        assert_eq!(cluster.set(QueueSettings { spread: Some(1), ..limited.clone() }), Ok(()));
        cluster.set(spread_of(3)).unwrap();
        let refused = cluster.set(QueueSettings { spread: Some(3), ..limited.clone() });
        assert!(refused.is_err(), "{name}");
        let refused = cluster.set(limited).unwrap_err();
        assert!(refused.contains("was spread, and 2 other shards may still"), "{refused}");
    }
}

#[test]
fn a_spread_is_from_one_to_the_number_of_shards() {
    let mut cluster = Cluster::new();
    for spread in [0, SHARDS + 1, u16::MAX] {
        let refused = cluster.set(spread_of(spread)).unwrap_err();
        assert!(refused.contains("give 1 to 4, for this cluster has 4 shards"), "{refused}");
    }
    let set = SetQueue { queue: QUEUE, settings: spread_of(2) };
    let elsewhere = cluster.at(1).send(Command::SetQueue(set)).unwrap_err();
    assert!(elsewhere.to_string().contains("lives on shard"), "{elsewhere}");
}

#[test]
fn settings_and_pause_reach_every_shard_once_and_in_order() {
    let mut cluster = Cluster::new();
    let timeout = QueueSettings { timeout_ms: Some(5_000), ..spread_of(3) };
    cluster.set(timeout.clone()).unwrap();
    let pause = Command::PauseQueue(QueueCommand { queue: QUEUE });
    cluster.at(0).send(pause).unwrap();
    cluster.carry();
    for position in 0..3 {
        let machine = &cluster.at(position).machine;
        let name = QueueName::parse(QUEUE).unwrap();
        assert_eq!(machine.queue_settings(&name), Some(timeout.clone()), "{position}");
        assert!(machine.queue(&name).unwrap().paused, "{position}");
        let view = cluster.view(position).unwrap();
        assert_eq!((view.version, view.spread, view.reach), (2, 3, 3), "{position}");
    }
    assert_eq!(cluster.view(3), None, "it is beyond the spread");
    let rules = |version, paused| QueueRules {
        queue: QUEUE,
        laid: Laid { version, reach: 3 },
        paused,
        settings: spread_of(3),
    };
    let message = Message::QueueRules(rules(1, false)).encode();
    let sequence = 1;
    let deliver = Deliver { from: ShardId(9), sequence, waited_ms: 0, command: &message };
    cluster.at(1).send(Command::Deliver(deliver)).unwrap();
    assert_eq!(cluster.view(1).unwrap().version, 2, "what is older changes nothing");
    let resume = Command::ResumeQueue(QueueCommand { queue: QUEUE });
    cluster.at(0).send(resume).unwrap();
    cluster.carry();
    let name = QueueName::parse(QUEUE).unwrap();
    assert!(!cluster.at(2).machine.queue(&name).unwrap().paused);
}

#[test]
fn a_queue_that_was_never_spread_sends_nothing_and_takes_everything() {
    let mut cluster = Cluster::new();
    cluster.set(QueueSettings { max_length: Some(9), ..QueueSettings::default() }).unwrap();
    assert!(cluster.at(0).machine.outgoing(10).is_empty());
    assert_eq!(cluster.takers(&request("r")).len(), usize::from(SHARDS));
}

#[test]
fn each_task_is_taken_by_the_shards_that_it_belongs_on() {
    let mut cluster = Cluster::new();
    cluster.spread(4);
    cluster.spread(3);
    assert_eq!(cluster.takers(&new_task()), [0, 1, 2]);
    let unique = Unique {
        key: "k".into(),
        until: None,
        window_ms: None,
        on_conflict: crate::OnConflict::Existing,
        debounce_ms: None,
    };
    let unique = NewTask { unique: Some(Box::new(unique)), ..request("u") };
    assert_eq!(cluster.takers(&unique), [0]);
    let mut positions = Vec::new();
    for request_id in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let takers = cluster.takers(&request(request_id));
        let shard = request_shard(QUEUE, request_id, 3, SHARDS);
        let position = (0..3).find(|&n| after(home_shard(QUEUE, SHARDS), n, SHARDS) == shard);
        assert_eq!(takers, [position.unwrap()], "{request_id}");
        positions.extend(takers);
    }
    positions.sort_unstable();
    positions.dedup();
    assert_eq!(positions, [0, 1, 2], "requests are spread too");
}

#[test]
fn a_shard_answers_for_requests_that_it_remembers_after_they_moved() {
    let mut cluster = Cluster::new();
    cluster.spread(1);
    let made: Vec<TaskId> = ["a", "b", "c", "d", "e", "f"]
        .map(|id| cluster.at(0).enqueue_task(QUEUE, request(id)).unwrap().id)
        .into();
    cluster.spread(4);
    for (id, known) in ["a", "b", "c", "d", "e", "f"].into_iter().zip(&made) {
        let again = cluster.at(0).enqueue_task(QUEUE, request(id)).unwrap();
        assert_eq!((again.id, again.duplicate), (*known, true));
    }
    let asked: Vec<(String, String)> =
        ["a", "z"].map(|id| (QUEUE.to_owned(), id.to_owned())).into();
    assert_eq!(cluster.at(0).machine.known_requests(&asked), [Some(made[0]), None]);
    let until = cluster.view(0).unwrap().requests_until;
    assert_eq!(until, Some(cluster.at(0).now().plus_ms(86_400_000)));
}

#[test]
fn a_batch_with_one_task_that_belongs_elsewhere_is_refused_whole() {
    let mut cluster = Cluster::new();
    cluster.spread(4);
    cluster.spread(1);
    let tasks = vec![new_task(), new_task()];
    let batch = crate::EnqueueBatch { batch_id: None, queue: QUEUE, tasks };
    let refused = cluster.at(2).send(Command::EnqueueBatch(batch)).unwrap_err();
    assert_eq!(refused, Rejection::QueueMoved { queue: QueueName::parse(QUEUE).unwrap() });
    assert_eq!(refused.code(), "unavailable");
}

#[test]
fn shards_beyond_the_spread_are_trimmed_once_seen_empty_under_the_same_rules() {
    let mut cluster = Cluster::new();
    cluster.spread(4);
    let left = cluster.at(3).enqueue(QUEUE);
    cluster.spread(1);
    assert_eq!(cluster.view(0).unwrap().reach, 4, "it may hold tasks");
    assert!(!cluster.view(3).unwrap().is_empty && cluster.view(2).unwrap().is_empty);
    cluster.at(3).cancel(left).unwrap();
    cluster.at(3).wait_ms(86_400_000);
    assert!(cluster.view(3).unwrap().is_empty);
    let trim = |version| Command::TrimQueue(TrimQueue { queue: QUEUE, version });
    let version = cluster.view(0).unwrap().version;
    cluster.at(0).send(trim(version - 1)).unwrap();
    assert_eq!(cluster.view(0).unwrap().reach, 4, "the rules have changed since");
    cluster.at(0).send(trim(version)).unwrap();
    let view = cluster.view(0).unwrap();
    assert_eq!((view.version, view.reach), (version + 1, 1));
    let limited = QueueSettings { concurrency: Some(1), ..QueueSettings::default() };
    assert_eq!(cluster.set(limited), Ok(()));
}

fn delete(version: u64) -> Command<'static> {
    Command::DeleteQueue(crate::DeleteQueue { queue: QUEUE, version })
}

#[test]
fn a_spread_queue_is_deleted_beside_its_home_first_and_leaves_marks_there() {
    let mut cluster = Cluster::new();
    cluster.spread(3);
    let done = cluster.at(1).enqueue(QUEUE);
    cluster.at(1).cancel(done).unwrap();
    let wide = cluster.view(0).unwrap().version;
    for position in 0..3 {
        let refused = cluster.at(position).send(delete(wide)).unwrap_err();
        assert_eq!(refused.code(), "unavailable", "{position} is in the spread");
    }
    cluster.spread(1);
    let version = cluster.view(0).unwrap().version;
    let refused = cluster.at(1).send(delete(version - 1)).unwrap_err();
    assert_eq!(refused.code(), "unavailable", "the rules have changed since");
    for position in [1, 2] {
        assert_eq!(cluster.at(position).send(delete(version)), Ok(Outcome::Done));
        assert_eq!(cluster.at(position).machine.queues(), []);
    }
    assert_eq!(
        cluster.at(0).send(delete(version)).unwrap_err().code(),
        "unavailable",
        "not trimmed"
    );
    let trim = TrimQueue { queue: QUEUE, version };
    cluster.at(0).send(Command::TrimQueue(trim)).unwrap();
    assert_eq!(cluster.at(0).send(delete(version)), Ok(Outcome::Done));
    cluster.carry();
    assert!(cluster.at(1).machine.task(done).is_some(), "it is readable");
    // A gateway that still knows the old spread is refused beside the home.
    assert_eq!(cluster.takers(&new_task()), [0, 3], "position 3 never knew the queue");
    assert_eq!(cluster.at(0).machine.queues().len(), 1, "and the home made it anew");
    let waiting = cluster.at(0).claim_one(QUEUE);
    cluster.at(0).ack(&waiting).unwrap();
    // Spread once more, it has rules of a later version than ever before, and the marks yield.
    cluster.spread(3);
    assert!(cluster.view(0).unwrap().version > version + 1);
    for position in 0..3 {
        let view = cluster.view(position).unwrap();
        assert_eq!((view.spread, view.version), (3, cluster.view(0).unwrap().version));
        assert_eq!(cluster.at(position).machine.queues().len(), 1);
    }
    assert!(cluster.at(1).retry(done).is_ok());
}
