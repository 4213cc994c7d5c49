//! Clusters of real processes. Tests kill, pause and cut off nodes while clients work, and compare
//! the answers to clients with the promises.
//!
//! `nodes.rs` has the nodes and `network.rs` the network between them: `proxy.rs` on loopback, or
//! `namespaces.rs` in network namespaces. `load.rs` has the clients, `history.rs` their calls and
//! answers, `check.rs` and `task_spec.rs` the checks of the history. The other files are tests.

mod chaos;
mod check;
mod dice;
mod disks;
mod ending;
mod failover;
mod faults;
mod growing;
mod history;
mod load;
mod namespaces;
mod network;
mod nodes;
mod outage;
mod partitions;
mod plain;
mod proxy;
mod rolling;
mod snapshot;
mod task_spec;
mod workers;
