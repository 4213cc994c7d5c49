//! The wire contract `taskyard.v1`: the generated code of `taskyard/v1/taskyard.proto` and nothing
//! else.
#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code")]

/// Messages, client and server of `taskyard.v1`.
pub mod v1 {
    tonic::include_proto!("taskyard.v1");
}
