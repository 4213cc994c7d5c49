//! Faults: the faults of nodes and their network, in an order that a seed decides.

use crate::cluster::{dice::Dice, network::Link, nodes::Nodes};
use std::{fmt, time::Duration};

/// A fault that lasts for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `kill -9`, then a restart.
    Kill { node: usize },
    /// A graceful stop, then a restart.
    Stop { node: usize },
    /// SIGSTOP, then SIGCONT.
    Pause { node: usize },
    /// SIGSTOP for longer than a session may be silent, then SIGCONT. Only in long plans.
    Freeze { node: usize },
    /// The disk of a node is full.
    Fill { node: usize },
    /// Nothing passes between a node and the others.
    Isolate { node: usize },
    /// No data passes from one node to another; the other direction works.
    Cut { link: Link },
    /// All data from one node to another is delayed.
    Slow { link: Link, delay: Duration },
}

/// A fault with its begin and end, counted from the start of the test.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
    pub(crate) fault: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Planned { begin, end, fault } = self;
        write!(f, "{:6.3} to {:6.3} s: {fault:?}", begin.as_secs_f64(), end.as_secs_f64())
    }
}

/// From this length on, plans have faults that outlast a session.
const LONG_PLAN: Duration = Duration::from_secs(120);

/// The faults that the network and the disks of a test allow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Possible {
    /// Links can be slow. Without this, the plan cuts them instead.
    pub(crate) slow_links: bool,
    /// Each node has its own disk. Without this, the plan pauses a node instead.
    pub(crate) full_disks: bool,
}

/// Plans the faults within `time`. Mostly one fault lasts at a time, so that the cluster goes on;
/// sometimes two overlap, so that it can't.
pub(crate) fn plan(seed: u64, nodes: usize, possible: Possible, time: Duration) -> Vec<Planned> {
    let mut dice = Dice::new(seed);
    let mut planned: Vec<Planned> = Vec::new();
    let mut at = dice.millis(300, 1_000);
    loop {
        let fault = match fault(&mut dice, nodes) {
            Fault::Slow { link, .. } if !possible.slow_links => Fault::Cut { link },
            Fault::Fill { node } if !possible.full_disks => Fault::Pause { node },
            Fault::Pause { node } if time >= LONG_PLAN && dice.once_in(5) => Fault::Freeze { node },
            fault => fault,
        };
        let lasts = match fault {
            Fault::Kill { .. } | Fault::Stop { .. } => dice.millis(0, 2_000),
            // Some pauses end before another node notices, some after an election.
            Fault::Pause { .. } => dice.millis(100, 3_000),
            Fault::Freeze { .. } => dice.millis(16_000, 25_000),
            Fault::Fill { .. } => dice.millis(500, 3_000),
            Fault::Isolate { .. } | Fault::Cut { .. } | Fault::Slow { .. } => {
                dice.millis(300, 4_000)
            }
        };
        let end = at + lasts;
        if end > time {
            return planned;
        }
        let meets = |other: &Planned| other.end > at && other.fault.touches(&fault);
        if !planned.iter().any(meets) {
            planned.push(Planned { begin: at, end, fault });
        }
        let healed = dice.millis(200, 1_500);
        at = if dice.once_in(5) { at + lasts / 2 } else { end + healed };
    }
}

fn fault(dice: &mut Dice, nodes: usize) -> Fault {
    let node = dice.below(nodes);
    let other = (node + 1 + dice.below(nodes - 1)) % nodes;
    match dice.below(9) {
        0 | 1 => Fault::Kill { node },
        2 => Fault::Stop { node },
        3 => Fault::Pause { node },
        4 | 5 => Fault::Isolate { node },
        6 => Fault::Cut { link: (node, other) },
        7 => Fault::Fill { node },
        _ => Fault::Slow { link: (node, other), delay: dice.millis(20, 400) },
    }
}

impl Fault {
    pub(crate) fn begin(&self, nodes: &mut Nodes) {
        match *self {
            Fault::Kill { node } => nodes.kill(node),
            Fault::Stop { node } => nodes.stop(node),
            Fault::Pause { node } | Fault::Freeze { node } => nodes.pause(node),
            Fault::Fill { node } => nodes.fill_disk(node),
            Fault::Isolate { node } => nodes.network.isolate(node),
            Fault::Cut { link } => nodes.network.cut(link),
            Fault::Slow { link, delay } => nodes.network.slow_down(link, delay),
        }
    }

    pub(crate) fn end(&self, nodes: &mut Nodes) {
        match *self {
            Fault::Kill { node } | Fault::Stop { node } => nodes.start(node),
            Fault::Pause { node } | Fault::Freeze { node } => nodes.resume(node),
            Fault::Fill { node } => nodes.empty_disk(node),
            Fault::Isolate { node } => nodes.network.rejoin(node),
            Fault::Cut { link } | Fault::Slow { link, .. } => nodes.network.heal(link),
        }
    }

    /// Whether two faults are about the same process or link, and so can't overlap.
    fn touches(&self, other: &Fault) -> bool {
        match (self.process(), other.process()) {
            (Some(one), Some(other)) => one == other,
            (None, None) => true,
            _ => false,
        }
    }

    fn process(&self) -> Option<usize> {
        match *self {
            Fault::Kill { node }
            | Fault::Stop { node }
            | Fault::Pause { node }
            | Fault::Freeze { node }
            | Fault::Fill { node } => Some(node),
            Fault::Isolate { .. } | Fault::Cut { .. } | Fault::Slow { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{
        chaos::{SECONDS, SEED},
        nodes::NODES,
    };

    /// A fault that is not in the usual plan would never be tested.
    #[test]
    fn the_usual_plan_has_every_kind_of_fault_and_two_at_once_wherever_it_runs() {
        for (slow_links, full_disks) in [(true, false), (false, true)] {
            let possible = Possible { slow_links, full_disks };
            let plan = plan(SEED, NODES, possible, Duration::from_secs(SECONDS));
            let has = |is_it: fn(&Fault) -> bool| plan.iter().any(|planned| is_it(&planned.fault));
            assert!(has(|fault| matches!(fault, Fault::Kill { .. })), "{plan:#?}");
            assert!(has(|fault| matches!(fault, Fault::Stop { .. })), "{plan:#?}");
            assert!(has(|fault| matches!(fault, Fault::Pause { .. })), "{plan:#?}");
            assert!(has(|fault| matches!(fault, Fault::Isolate { .. })), "{plan:#?}");
            assert!(has(|fault| matches!(fault, Fault::Cut { .. })), "{plan:#?}");
            assert_eq!(has(|fault| matches!(fault, Fault::Slow { .. })), slow_links);
            assert_eq!(has(|fault| matches!(fault, Fault::Fill { .. })), full_disks, "{plan:#?}");
            assert!(plan.windows(2).any(|pair| pair[1].begin < pair[0].end), "{plan:#?}");
        }
    }

    #[test]
    fn a_long_plan_freezes_nodes_for_longer_than_a_session_may_be_silent() {
        let possible = Possible { slow_links: false, full_disks: true };
        let plan = plan(SEED, NODES, possible, Duration::from_secs(600));
        let is_frozen = |planned: &&Planned| matches!(planned.fault, Fault::Freeze { .. });
        let frozen: Vec<_> = plan.iter().filter(is_frozen).collect();
        assert!(!frozen.is_empty(), "{plan:#?}");
        assert!(frozen.iter().all(|one| one.end - one.begin > Duration::from_secs(15)));
    }
}
