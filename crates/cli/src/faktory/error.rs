//! Errors of a server, and of the connection to it.

use std::fmt;

/// A refusal, a lost answer, or an answer that makes no sense.
#[derive(Debug)]
pub enum Error {
    /// The server refused the command.
    Refused {
        /// `ERR`, or the kind of refusal, such as `NOTUNIQUE`.
        word: String,
        /// The server's message.
        message: String,
    },
    /// The outcome is unknown: the connection failed or broke, or no answer came in time.
    Lost {
        /// Which server, without its password.
        server: String,
        /// What happened.
        problem: String,
    },
    /// The answer is not that of a Faktory server, or not of one for this client.
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
