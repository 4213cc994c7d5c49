//! Taskyard's server: everything that touches the world.

mod backup;
pub mod broker;
mod checkpoint;
pub mod clock;
pub mod config;
mod data_dir;
mod disk;
pub mod error;
pub mod front;
mod log;
pub mod node;
mod payloads;
mod random;
pub mod sessions;
pub mod shard;
mod shard_loop;
mod telemetry;

pub use backup::{RestoreProgress, restore};
pub use broker::Broker;
pub use clock::Clock;
pub use config::Config;
pub use error::Error;
pub use front::Front;
pub use node::Node;
