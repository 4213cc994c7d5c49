//! Taskyard's server: everything that touches the world.

pub mod broker;
pub mod clock;
pub mod config;
pub mod error;
pub mod node;
pub mod shard;

pub use clock::Clock;
pub use config::Config;
pub use error::Error;
pub use node::Node;
