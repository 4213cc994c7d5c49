//! The SDK against a real broker, or against a server that misbehaves (`fake`), in one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod cut_connections;
mod examples;
mod fake;
mod flows;
mod gathering;
mod going_back;
mod limits;
mod restart;
mod schedules;
mod session_stream;
mod spread;
mod types;
mod worker;
