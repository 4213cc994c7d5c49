//! Why a server did not do what it was asked.

use std::fmt;

/// A refusal, or no answer that counts.
#[derive(Debug)]
pub enum Error {
    /// The server understood and said no.
    Refused {
        /// `ERR`, or what kind of refusal it is, such as `NOTUNIQUE`.
        word: String,
        /// In the server's own words.
        message: String,
    },
    /// Nobody knows whether the server did it: no connection, or it broke, or nothing came in time.
    Lost {
        /// Which server, without its password.
        server: String,
        /// What happened.
        problem: String,
    },
    /// What answers there is no Faktory server, or none for this client.
    Strange {
        /// Which server, without its password.
        server: String,
        /// What it said.
        problem: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused { word, message } if word == "ERR" => f.write_str(message),
            Error::Refused { word, message } => write!(f, "{word} {message}"),
            Error::Lost { server, problem } => write!(f, "no answer from {server}: {problem}"),
            Error::Strange { server, problem } => write!(f, "{server} answers with {problem}"),
        }
    }
}

impl std::error::Error for Error {}
