//! A node whose data directory was copied adds nothing to its log before it is let in, not even
//! where it leads alone.

use super::*;
use crate::limits::SILENCE_MS_MAX;
use taskyard_machine::{SessionId, TaskStateName};

/// A loop on the only node of its cluster.
struct Alone {
    inner: ShardLoop,
    shards: Shards,
    clock: Clock,
}

impl Alone {
    fn open(config: &Config, gate: Gate) -> Alone {
        let Opened { parts, .. } = open(config).unwrap();
        parts.routes.set_gate(gate);
        let (shards, clock) = (parts.handle.clone(), parts.clock.clone());
        let mut inner = ShardLoop::new(parts);
        inner.follow_control().unwrap();
        let mut this = Alone { inner, shards, clock };
        this.pass(Duration::ZERO);
        this
    }

    /// Lets time pass, and turns until there is nothing to do.
    fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        self.inner.reading = self.inner.clock.reading();
        let mut inputs = Taken::default();
        for _ in 0..10 {
            self.inner.inbox.take(&mut inputs, Some(Duration::ZERO), TURN_LOG_BYTES_MAX);
            while let Some(input) = inputs.next() {
                self.inner.accept(input).unwrap();
            }
            self.inner.look_at_gate();
            self.inner.look_at_time();
            self.inner.turn().unwrap();
            let at = At { now: self.inner.reading.monotonic, log: self.inner.log.position() };
            self.inner.step_checkpoints(at).unwrap();
        }
    }

    fn call<T>(&mut self, call: impl Future<Output = T>) -> T {
        let mut call = std::pin::pin!(call);
        assert!(call.as_mut().now_or_never().is_none());
        self.pass(Duration::ZERO);
        call.now_or_never().expect("it is answered")
    }

    fn enqueue(&mut self) -> Result<TaskId, Error> {
        let shards = self.shards.clone();
        let enqueued =
            self.call(async move { shards.local().propose(SHARD, enqueue(), true).await });
        enqueued.map(|outcome| match outcome {
            Outcome::Enqueued(Enqueued { id, .. }) => id,
            other => panic!("another outcome: {other:?}"),
        })
    }

    fn last_index(&self) -> u64 {
        self.inner.shards[0].replica.last_index()
    }

    fn state(&self, task: TaskId) -> TaskStateName {
        self.inner.shards[0].machine().task(task).unwrap().state
    }
}

#[test]
fn a_copy_appends_nothing_before_it_is_let_in_and_then_gives_workers_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    (config.shards, config.disk_reserve_bytes) = (Some(1), 0);
    config.clock = Clock::manual(1_700_000_000_000);
    let mut node = Alone::open(&config, Gate::Open);
    let task = node.enqueue().unwrap();
    let shards = node.shards.clone();
    let request = ClaimRequest { session: Some(SessionId(7)), ..claim() };
    let claimed =
        node.call(async move { shards.local().claim(SHARD, request, Duration::ZERO).await });
    assert_eq!(claimed.unwrap().len(), 1);
    let last = node.last_index();
    let Alone { inner, shards, .. } = node;
    drop(shards);
    assert!(inner.close());

    let mut node = Alone::open(&config, Gate::Copied);
    // Its election is one entry. Leases and sessions pass, and the process stands still.
    for _ in 0..3 {
        node.pass(Duration::from_millis(10 * SILENCE_MS_MAX));
        assert_eq!(node.last_index(), last + 1);
        assert_ne!(node.inner.wait(), Some(Duration::ZERO), "it would turn for nothing");
    }
    assert_eq!(node.state(task), TaskStateName::Claimed);
    let refused = node.enqueue().unwrap_err().to_string();
    assert!(refused.contains("data directory was copied"), "{refused}");
    assert_eq!(node.last_index(), last + 1);
    // Nobody waits for what it may not append.
    let until = clock::real_now() + WAIT;
    node.inner.course = Course::Stopping { until };
    while !node.inner.has_stopped() {
        assert!(clock::real_now() < until, "it does not stop");
        node.pass(Duration::ZERO);
    }
    node.inner.course = Course::Going;

    node.shards.routes().set_gate(Gate::Open);
    node.pass(Duration::ZERO);
    assert!(node.last_index() > last + 1, "its term has not begun");
    assert_eq!(node.state(task), TaskStateName::Claimed, "its worker has not been heard yet");
    node.enqueue().unwrap();
    node.pass(Duration::from_millis(SILENCE_MS_MAX - 1));
    assert_eq!(node.state(task), TaskStateName::Claimed);
    node.pass(Duration::from_millis(2));
    assert_ne!(node.state(task), TaskStateName::Claimed, "its worker is gone");
}
