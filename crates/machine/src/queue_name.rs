//! QueueName: a name that is checked once, at the edge; inside, a name is always valid.

use crate::limits::QUEUE_NAME_BYTES_MAX;
use std::{fmt, sync::Arc};

/// A queue's name: 1 to 128 bytes of letters, digits, `-`, `_`, `.` and `:`, not of dots alone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

/// Why a text is not a queue name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQueueName {
    /// The name is empty.
    #[error("a queue name is empty; give it 1 to {QUEUE_NAME_BYTES_MAX} bytes")]
    Empty,
    /// The name is longer than the limit.
    #[error("a queue name has {bytes} bytes; at most {QUEUE_NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// The length of the name.
        bytes: usize,
    },
    /// The name has a character that would need escaping in URLs, metrics or shells.
    #[error("a queue name has the character {found:?}; use letters, digits and - _ . :")]
    BadCharacter {
        /// The first such character.
        found: char,
    },
    /// The name is `.`, `..` or more dots, which clients and proxies take for folders.
    #[error("a queue name has only dots: {dots}; give it a letter or digit")]
    OnlyDots {
        /// The name.
        dots: String,
    },
}

impl QueueName {
    /// Parses and checks a name.
    pub fn parse(raw: &str) -> Result<QueueName, InvalidQueueName> {
        QueueName::check(raw).map(|()| QueueName(raw.into()))
    }

    /// Reads back a name that was accepted before, perhaps by an earlier version.
    pub(crate) fn accepted(raw: &str) -> Result<QueueName, InvalidQueueName> {
        QueueName::check_characters(raw).map(|()| QueueName(raw.into()))
    }

    /// Checks a name without making one, for callers that only pass the text on.
    pub fn check(raw: &str) -> Result<(), InvalidQueueName> {
        QueueName::check_characters(raw)?;
        if raw.bytes().all(|byte| byte == b'.') {
            return Err(InvalidQueueName::OnlyDots { dots: raw.into() });
        }
        Ok(())
    }

    fn check_characters(raw: &str) -> Result<(), InvalidQueueName> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if raw.is_empty() {
            return Err(InvalidQueueName::Empty);
        }
        if raw.len() > QUEUE_NAME_BYTES_MAX {
            return Err(InvalidQueueName::TooLong { bytes: raw.len() });
        }
        match raw.chars().find(|&c| !allowed(c)) {
            Some(found) => Err(InvalidQueueName::BadCharacter { found }),
            None => Ok(()),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for QueueName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_the_grammar_are_refused() {
        assert!(QueueName::parse("mail.high-1_b:c").is_ok());
        assert_eq!(QueueName::parse(""), Err(InvalidQueueName::Empty));
        assert_eq!(QueueName::parse("a b"), Err(InvalidQueueName::BadCharacter { found: ' ' }));
        assert_eq!(QueueName::parse("ä"), Err(InvalidQueueName::BadCharacter { found: 'ä' }));
        assert!(QueueName::parse(".a").is_ok());
        for dots in [".", "..", "..."] {
            assert_eq!(
                QueueName::parse(dots),
                Err(InvalidQueueName::OnlyDots { dots: dots.into() })
            );
            assert!(QueueName::accepted(dots).is_ok(), "read back");
        }
        let long = "q".repeat(QUEUE_NAME_BYTES_MAX + 1);
        assert_eq!(QueueName::parse(&long), Err(InvalidQueueName::TooLong { bytes: 129 }));
    }
}
