//! The part of the `taskyard` binary that its tests use by itself: running tasks as processes.

pub mod exec;
