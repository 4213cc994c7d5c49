//! A small client of Faktory's wire, for `import` and for `bench --faktory`.
//!
//! ```text
//! url.rs         where a server is          password.rs   proves that the password is known
//! connection.rs  one command at a time      reply.rs      what comes back, with bounds
//! info.rs        what a server holds        error.rs      a refusal, or no answer
//! ```
//! Jobs stay bytes here, so that they are moved unchanged.

mod connection;
mod error;
mod info;
mod password;
mod reply;
mod url;

pub use self::{
    connection::{BEAT_EVERY, Connection, Orders, Who},
    error::Error,
    info::Info,
    url::Url,
};
