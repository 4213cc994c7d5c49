//! The wire contract `taskyard.v1`: the generated types and nothing else.
