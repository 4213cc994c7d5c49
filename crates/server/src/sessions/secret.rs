//! Secret: resumes a session, and only its worker knows it.
//!
//! A session's id is the digest of its secret. So anybody may see the id, and any node can tell
//! which session a secret belongs to. No node stores or compares secrets: a wrong secret belongs to
//! a session that does not exist.

use crate::random::random_u64;
use sha2::{Digest, Sha256};
use std::fmt;
use taskyard_machine::SessionId;

/// The length of a secret, which can't be guessed.
pub(crate) const SECRET_BYTES: usize = 32;

/// Keeps the ids of these sessions apart from the ids of workers without a secret.
const DOMAIN: &[u8] = b"taskyard session secret ";

/// The secret of one session, drawn by the node that opens it.
#[derive(Clone)]
pub struct SessionSecret([u8; SECRET_BYTES]);

impl SessionSecret {
    /// Draws a new secret.
    pub(crate) fn draw() -> SessionSecret {
        let mut bytes = [0; SECRET_BYTES];
        bytes
            .chunks_exact_mut(8)
            .for_each(|part| part.copy_from_slice(&random_u64().to_le_bytes()));
        SessionSecret(bytes)
    }

    /// A secret from the bytes of a worker; `None` if its length is wrong.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<SessionSecret> {
        bytes.try_into().ok().map(SessionSecret)
    }

    /// The bytes of the secret. Only its worker may see them.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// The session of this secret.
    pub fn session(&self) -> SessionId {
        id_of(DOMAIN, &self.0)
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret stays out of logs.
        f.debug_struct("SessionSecret").finish_non_exhaustive()
    }
}

/// The session of a worker that has no secret but names itself. No name can be found that gives the
/// id of another session.
pub(crate) fn session_of_name(front: &str, name: &str) -> SessionId {
    id_of(format!("{front} worker ").as_bytes(), name.as_bytes())
}

fn id_of(domain: &[u8], bytes: &[u8]) -> SessionId {
    let digest = Sha256::new().chain_update(domain).chain_update(bytes).finalize();
    let (id, _) = digest.split_at(16);
    SessionId(u128::from_be_bytes(id.try_into().expect("it has 16 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_follows_from_its_secret_and_does_not_show_it() {
        let (one, other) = (SessionSecret::draw(), SessionSecret::draw());
        assert_ne!(one.to_bytes(), other.to_bytes());
        assert_ne!(one.session(), other.session());
        let again = SessionSecret::from_bytes(&one.to_bytes()).unwrap();
        assert_eq!(again.session(), one.session());
        let (id, secret) = (one.session().0.to_be_bytes(), one.to_bytes());
        assert!(!secret.windows(8).any(|part| id.windows(8).any(|shown| shown == part)));
        assert!(SessionSecret::from_bytes(&id).is_none(), "an id is no secret");
        assert_eq!(format!("{one:?}"), "SessionSecret { .. }");
    }

    /// Workers resume on nodes of another build during an upgrade.
    #[test]
    fn every_build_finds_the_same_id() {
        let secret = SessionSecret::from_bytes(&[7; SECRET_BYTES]).unwrap();
        assert_eq!(secret.session().to_string(), "b8105b1b429ad53544c5116a58b2edef");
        assert_eq!(
            session_of_name("faktory", "w1").to_string(),
            "3239bc416ef4f93749cd2f8845955b85"
        );
    }
}
