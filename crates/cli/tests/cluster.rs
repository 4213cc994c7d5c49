//! Clusters of real processes: nodes are killed, paused and cut off from each other while clients
//! work, and what clients were told is compared with what is promised.
//!
//! `nodes.rs` is the machines, `network.rs` what lies between them, in `proxy.rs` on loopback and
//! in `namespaces.rs` in networks of the kernel, `load.rs` the clients, `history.rs` what they were
//! told, `check.rs` and `task_spec.rs` what that must add up to. The other files are tests.

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
