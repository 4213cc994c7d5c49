//! Clusters of real processes: nodes are killed, paused and cut off from each other while clients
//! work, and the answers to clients are compared with the promises.
//!
//! `nodes.rs` has the nodes; `network.rs` the network between them, with `proxy.rs` on loopback and
//! `namespaces.rs` in networks of the kernel; `load.rs` the clients; `history.rs` their calls and
//! answers; `check.rs` and `task_spec.rs` the checks of these. The other files are tests.

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
