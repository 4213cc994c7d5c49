//! The binary `taskyard` as people run it, in one test binary. `yard` starts processes;
//! `faktory` speaks to them as a Faktory client does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench_cluster;
mod bulk;
mod cli;
mod cluster;
mod cluster_commands;
mod crash;
mod demo_cluster;
mod deploy;
mod exec;
mod failed_sync;
mod faktory;
mod faktory_clients;
mod faults;
mod flow;
mod flow_crash;
mod foreign_text;
mod import;
mod limits;
mod lists;
mod manual;
mod openapi;
mod operations_doc;
mod queue_deletion;
mod readme;
mod schedule;
mod serve;
mod spread;
mod waits;
mod work;
mod yard;
