//! The parts of the `taskyard` binary that its tests use by themselves: running tasks as processes,
//! and talking to a server as a Faktory client does.

pub mod exec;
pub mod faktory;
