//! The parts of the `taskyard` binary that tests use directly: the runner of commands, and the
//! client of Faktory's wire.

pub mod exec;
pub mod faktory;
