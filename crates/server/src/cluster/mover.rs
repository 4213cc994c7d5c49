//! Mover: carries out the plan of the control group's leader: it looks at all nodes, asks the plan
//! for the next steps and takes them, again and again.
//!
//! It remembers only which nodes were heard and when, so that the next leader goes on from the
//! control state. Steps that fail or are lost are planned again. While nothing moves, the mover
//! looks once a second, and at once after a change.

use super::{Cluster, ClusterCall, sight::Sight};
use crate::Error;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use taskyard_replica::{ControlCommand, NodeId, Seen, Step};
use tokio::time::{sleep, timeout};

/// The pause after steps, whose results show soon.
const AFTER_STEPS: Duration = Duration::from_millis(50);
/// The pause while something moves and there is nothing to do but wait.
const WHILE_MOVING: Duration = Duration::from_millis(250);
/// The pause while everything is in place.
const AT_REST: Duration = Duration::from_secs(1);
/// A node that answered within this time is alive: longer than a lost call and its repetition.
const ALIVE_FOR: Duration = Duration::from_secs(3);
/// A node that was silent for this long is replaced, if there is another node. A shorter time would
/// copy all its data because of a restart; a longer one leaves its shards a replica short.
const GONE_AFTER: Duration = Duration::from_secs(600);
/// How long the set of nodes must be unchanged before leaders are evened out. Until then, other
/// replicas take over the groups of a stopped node, and their leaders should not move twice.
const EVEN_AFTER: Duration = Duration::from_secs(2);
/// How long a leader may take to confirm that it has proposed a change.
const STEP_WITHIN: Duration = Duration::from_secs(5);
/// The least time between two warnings about one thing.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The leader's memory of its own term.
#[derive(Debug, Default)]
struct Mover {
    /// When each node was last heard, or first expected.
    heard: BTreeMap<NodeId, Instant>,
    /// The nodes at the last look, and since when the set is unchanged.
    there: Option<(BTreeSet<NodeId>, Instant)>,
    /// Problems that were logged, and when.
    warned: BTreeMap<String, Instant>,
}

impl Cluster {
    /// Moves replicas and leaders while this node leads the control group; waits otherwise.
    pub(crate) async fn keep_moving(self) {
        let mut changes = self.routes().changes();
        let mut mover = None;
        loop {
            changes.borrow_and_update();
            if self.routes().control_leader() != Some(self.me()) || self.routes().is_stopping() {
                mover = None;
                // The sender lives as long as the shards of this handle.
                let _ = changes.changed().await;
                continue;
            }
            let pause = mover.get_or_insert_with(Mover::default).round(&self).await;
            match pause {
                AT_REST => drop(timeout(AT_REST, changes.changed()).await),
                _ => sleep(pause).await,
            }
        }
    }
}

impl Mover {
    /// Looks, and takes the next steps. Returns the pause until the next look.
    async fn round(&mut self, cluster: &Cluster) -> Duration {
        let sight = cluster.look().await;
        let seen = self.see(cluster, &sight);
        let mut done = 0_usize;
        let steps = sight.control.next_steps(&seen);
        for step in &steps {
            match take(cluster, &sight, &seen, step).await {
                Ok(()) => done += 1,
                Err(error) => self.warn(cluster, &format!("{}: {error}", describe(step))),
            }
        }
        match (done, sight.control.moving(&seen).is_empty()) {
            (1.., _) => AFTER_STEPS,
            (0, true) if steps.is_empty() => AT_REST,
            (0, _) => WHILE_MOVING,
        }
    }

    /// The facts from one look, with the living and the lost nodes.
    fn see(&mut self, cluster: &Cluster, sight: &Sight) -> Seen {
        let now = cluster.clock().monotonic();
        let known = sight.control.nodes();
        self.heard.retain(|node, _| known.contains_key(node));
        for &node in known.keys() {
            match sight.reports.contains_key(&node) {
                true => drop(self.heard.insert(node, now)),
                false => drop(self.heard.entry(node).or_insert(now)),
            }
        }
        let mut seen = sight.seen();
        let silent_for = |at: &Instant| now.saturating_duration_since(*at);
        let since = |holds: &dyn Fn(Duration) -> bool| -> BTreeSet<NodeId> {
            let nodes = self.heard.iter().filter(|(_, at)| holds(silent_for(at)));
            nodes.map(|(node, _)| *node).collect()
        };
        seen.alive = since(&|silent| silent < ALIVE_FOR);
        seen.gone = since(&|silent| silent >= GONE_AFTER);
        seen.pinned = cluster.chosen_lately().into_iter().collect();
        seen.is_in_flux = self.is_in_flux(&seen, now);
        for node in seen.gone.clone() {
            let words = format!(
                "node {node} has not answered for {} minutes; its replicas move where there is another \
                 node for them",
                GONE_AFTER.as_secs() / 60
            );
            self.warn(cluster, &words);
        }
        seen
    }

    /// Whether the set of nodes has changed lately.
    fn is_in_flux(&mut self, seen: &Seen, now: Instant) -> bool {
        let there: BTreeSet<NodeId> = seen.alive.difference(&seen.away).copied().collect();
        let (known, since) = self.there.get_or_insert_with(|| (there.clone(), now));
        if *known != there {
            (*known, *since) = (there, now);
        }
        now.saturating_duration_since(*since) < EVEN_AFTER
    }

    fn warn(&mut self, cluster: &Cluster, words: &str) {
        let now = cluster.clock().monotonic();
        self.warned.retain(|_, at| now.saturating_duration_since(*at) < WARN_EVERY);
        self.warned.entry(words.to_owned()).or_insert_with(|| {
            tracing::warn!("{words}");
            now
        });
    }
}

/// Takes one step, on the node that must take it.
async fn take(cluster: &Cluster, sight: &Sight, seen: &Seen, step: &Step) -> Result<(), Error> {
    let (group, call) = match step {
        Step::Command(command) => {
            cluster.shards().control(command.clone()).await?;
            if let ControlCommand::SetTarget { .. } | ControlCommand::RemoveNode { .. } = command {
                tracing::info!("{}", describe(step));
            }
            return Ok(());
        }
        Step::Change { group, changes } => {
            let changes = changes.iter().copied().map(Into::into).collect();
            let leader = sight.leader(*group).map(|(_, status)| status);
            let fence = leader.map_or((0, 0), |status| (status.term, status.members_since));
            (*group, ClusterCall::Change { group: *group, fence, changes })
        }
        Step::Transfer { group, to } => (*group, ClusterCall::Transfer { group: *group, to: *to }),
    };
    let leader = seen.groups.get(&group).and_then(|seen| sight.control.node_of(group, seen.leader));
    let Some(leader) = leader else {
        return Err(Error::Unavailable("its leader is no longer known".into()));
    };
    cluster.ask(leader, call, STEP_WITHIN).await?.done()?;
    tracing::debug!("{}", describe(step));
    Ok(())
}

fn describe(step: &Step) -> String {
    let name = |group: &u64| super::view::name_of(*group);
    match step {
        Step::Command(ControlCommand::SetTarget { group, nodes }) => {
            let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
            format!("{} moves to nodes {}", name(group), nodes.join(", "))
        }
        Step::Command(ControlCommand::RemoveNode { id }) => format!("node {id} is removed"),
        Step::Command(command) => format!("the control group takes {command:?}"),
        Step::Change { group, changes } => {
            format!("{} changes its members: {changes:?}", name(group))
        }
        Step::Transfer { group, to } => format!("{} is to be led by replica {to}", name(group)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config,
        clock::Clock,
        cluster::{About, call::Report},
        shard::Engine,
    };
    use taskyard_replica::{Control, Node, StateMachine};

    /// A cluster in which only this node answers.
    fn nodes(count: NodeId) -> Sight {
        let mut control = Control::default();
        let found = ControlCommand::Found { cluster: 1, incarnation: 1, shards: 1, rules: 1 };
        control.apply(1, &found.encode()).unwrap();
        for id in 1..=count {
            let node = Node { rules_max: 1, ..Node::default() };
            control.apply(2, &ControlCommand::AddNode { id, node }.encode()).unwrap();
        }
        let reports = BTreeMap::from([(1, Report::default())]);
        Sight { control: control.into(), reports }
    }

    #[tokio::test]
    async fn a_node_is_gone_ten_minutes_after_it_was_expected_and_back_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(1_000);
        let mut config = Config::new(dir.path());
        (config.shards, config.disk_reserve_bytes) = (Some(1), 0);
        let engine = Engine::start(&config).unwrap();
        let cluster = Cluster::new(engine.shards(), About::default(), clock.clone());
        let (mut mover, mut sight) = (Mover::default(), nodes(2));
        let ids = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<_>>();
        let seen = mover.see(&cluster, &sight);
        assert_eq!((seen.alive, seen.gone), (ids(&[1, 2]), ids(&[])), "it may answer yet");
        clock.advance(ALIVE_FOR);
        let seen = mover.see(&cluster, &sight);
        assert_eq!((seen.alive, seen.gone), (ids(&[1]), ids(&[])));
        clock.advance(GONE_AFTER - ALIVE_FOR);
        let seen = mover.see(&cluster, &sight);
        assert_eq!((seen.alive, seen.gone), (ids(&[1]), ids(&[2])));
        sight.reports.insert(2, Default::default());
        let seen = mover.see(&cluster, &sight);
        assert_eq!((seen.alive, seen.gone), (ids(&[1, 2]), ids(&[])));
        cluster.choose(1);
        assert_eq!(mover.see(&cluster, &sight).pinned, BTreeSet::from([1]));
        clock.advance(GONE_AFTER);
        assert_eq!(mover.see(&cluster, &sight).pinned, BTreeSet::new(), "for a while only");
    }
    #[tokio::test]
    async fn a_node_that_stops_is_away_at_once_and_leaders_rest_until_the_same_are_there_for_a_while()
     {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(1_000);
        let mut config = Config::new(dir.path());
        (config.shards, config.disk_reserve_bytes) = (Some(1), 0);
        let engine = Engine::start(&config).unwrap();
        let cluster = Cluster::new(engine.shards(), About::default(), clock.clone());
        let (mut mover, mut sight) = (Mover::default(), nodes(2));
        sight.reports.insert(2, Report::default());
        assert!(mover.see(&cluster, &sight).is_in_flux, "it has just begun to look");
        clock.advance(EVEN_AFTER);
        assert!(!mover.see(&cluster, &sight).is_in_flux);
        sight.reports.insert(2, Report { leaving: true, ..Report::default() });
        let seen = mover.see(&cluster, &sight);
        // The node still answers, and would lead least.
        assert_eq!((seen.alive, seen.away), (BTreeSet::from([1, 2]), BTreeSet::from([2])));
        assert!(seen.is_in_flux);
        sight.reports.remove(&2);
        clock.advance(EVEN_AFTER);
        let seen = mover.see(&cluster, &sight);
        assert_eq!((seen.alive, seen.away), (BTreeSet::from([1, 2]), BTreeSet::from([2])));
        assert!(!seen.is_in_flux, "the same as before are there");
        sight.reports.insert(2, Report::default());
        let seen = mover.see(&cluster, &sight);
        assert_eq!((seen.away, seen.is_in_flux), (BTreeSet::new(), true));
    }
}
