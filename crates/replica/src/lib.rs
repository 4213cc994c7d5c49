//! Taskyard's replica: one group's consensus, sans-I/O.
mod replica;
pub use replica::*;
