//! The broker from outside, in one binary, because each binary links the whole broker again. Each
//! file tests one promise or one part; the files share `common` and `engine`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod bad_input_grpc;
mod claim_types;
mod claims;
mod cluster_backup;
mod cluster_faults;
mod cluster_forming;
mod cluster_routing;
mod cluster_view;
mod cluster_workers;
mod common;
mod connections;
mod data_copies;
mod dead_workers;
mod engine;
mod engine_backup;
mod engine_checkpoints;
mod engine_claims;
mod engine_crash;
mod engine_faults;
mod engine_lost_files;
mod engine_outbox;
mod engine_remote;
mod engine_restart;
mod engine_schedules;
mod engine_tallies;
mod engine_time;
mod faktory_jobs;
mod faktory_rude;
mod faktory_verbs;
mod flows;
mod graceful_stop;
mod grpc_life;
mod http_life;
mod large_commands;
mod limits;
mod limits_doc;
mod metrics_doc;
mod odd_json;
mod queue_deletion;
mod queue_pages;
mod rude_clients;
mod schedules;
mod spread;
mod unique;
mod web_pages;
mod worker_sessions;
