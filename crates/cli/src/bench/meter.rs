//! Meter: CPU time and memory of the brokers and the load, as counted by the kernel.

use std::{fs, time::Duration};

/// The usage of some processes.
#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu: Duration,
    memory_bytes: u64,
}

/// The usage between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// CPU time of all brokers together; `None` if they run elsewhere.
    pub(super) brokers: Option<Duration>,
    /// CPU time of this process.
    pub(super) load: Duration,
    /// How much the brokers' memory grew.
    pub(super) memory_bytes: Option<u64>,
}

/// CPU time and memory from one moment on.
pub(super) struct Meter {
    pids: Vec<u32>,
    brokers: Option<Usage>,
    load: Option<Usage>,
}

impl Meter {
    /// Measures the brokers with these process ids, and this process.
    pub(super) fn start(pids: &[u32]) -> Meter {
        let (brokers, load) = (Usage::of_all(pids), Usage::of("self"));
        Meter { pids: pids.to_vec(), brokers, load }
    }

    pub(super) fn stop(self) -> Used {
        let grown = |before: Option<Usage>, after: Option<Usage>| {
            let (before, after) = (before?, after?);
            let cpu = after.cpu.saturating_sub(before.cpu);
            Some((cpu, after.memory_bytes.saturating_sub(before.memory_bytes)))
        };
        let brokers = grown(self.brokers, Usage::of_all(&self.pids));
        let load = grown(self.load, Usage::of("self"));
        Used {
            brokers: brokers.map(|(cpu, _)| cpu),
            load: load.map_or(Duration::ZERO, |(cpu, _)| cpu),
            memory_bytes: brokers.map(|(_, memory)| memory),
        }
    }
}

impl Used {
    /// The sum of both.
    pub(super) fn and(self, other: Used) -> Used {
        Used {
            brokers: self.brokers.zip(other.brokers).map(|(one, other)| one + other),
            load: self.load + other.load,
            memory_bytes: self.memory_bytes.zip(other.memory_bytes).map(|(one, two)| one + two),
        }
    }
}

impl Usage {
    /// The usage of all these processes together; `None` if there are none, or one of them is gone.
    fn of_all(pids: &[u32]) -> Option<Usage> {
        let each = pids.iter().map(|pid| Usage::of(&pid.to_string()));
        each.reduce(|sum, one| {
            let (sum, one) = (sum?, one?);
            let memory_bytes = sum.memory_bytes + one.memory_bytes;
            Some(Usage { cpu: sum.cpu + one.cpu, memory_bytes })
        })?
    }

    /// The usage of the process with this id, or of `self`.
    fn of(pid: &str) -> Option<Usage> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        // Fields are counted from the state, which follows the name: 11 and 12 are user and system
        // ticks, 21 is the number of resident pages.
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let ticks = field(11)? + field(12)?;
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        Some(Usage {
            cpu: Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64),
            memory_bytes: field(21)? * rustix::param::page_size() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_something() {
        let usage = Usage::of("self").unwrap();
        assert!(usage.memory_bytes > 100_000, "{usage:?}");
        assert!(Usage::of("none").is_none());
    }

    #[test]
    fn several_processes_are_added_up_and_none_may_be_gone() {
        let own = std::process::id();
        let (one, two) = (Usage::of_all(&[own]).unwrap(), Usage::of_all(&[own, own]).unwrap());
        assert!(two.memory_bytes > one.memory_bytes + one.memory_bytes / 2, "{one:?} {two:?}");
        assert!(Usage::of_all(&[own, u32::MAX]).is_none());
        assert!(Usage::of_all(&[]).is_none());
    }
}
