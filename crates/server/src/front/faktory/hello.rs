//! Hello: a client proves that it knows the password, and names itself.

use crate::{config::Secret, random::random_u64};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// What a client must prove.
#[derive(Clone, Debug)]
pub(super) enum Challenge {
    /// Nothing, because there is no password.
    None,
    /// The password, hashed with this salt in this many iterations.
    Password { salt: String, iterations: u32 },
}

/// What a client says about itself. Each field may be absent, empty or null.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Hello {
    pub(super) hostname: Option<String>,
    /// The worker's name; a producer has none.
    pub(super) wid: Option<String>,
    pub(super) pid: Option<i64>,
    pub(super) labels: Option<Vec<String>>,
    pwdhash: Option<String>,
    v: Option<i64>,
}

impl Challenge {
    /// Fewer iterations would make the password easy to guess; more would make clients wait.
    const ITERATIONS_MIN: u32 = 4_000;

    pub(super) fn new(password: &Secret) -> Challenge {
        if password.0.is_empty() {
            return Challenge::None;
        }
        let drawn = random_u64();
        let iterations = Challenge::ITERATIONS_MIN + (drawn % 4_096) as u32;
        Challenge::Password { salt: format!("{:x}", random_u64() >> 1), iterations }
    }

    /// The first line that the client reads.
    pub(super) fn greeting(&self) -> String {
        match self {
            Challenge::None => "+HI {\"v\":2}\r\n".to_owned(),
            Challenge::Password { salt, iterations } => {
                format!("+HI {{\"v\":2,\"i\":{iterations},\"s\":\"{salt}\"}}\r\n")
            }
        }
    }

    /// Whether the client knows the password. Clients of protocol version 1 hash once.
    pub(super) fn is_met(&self, hello: &Hello, password: &Secret) -> bool {
        let Challenge::Password { salt, iterations } = self else { return true };
        let iterations = if hello.v.unwrap_or(0) < 2 { 1 } else { *iterations };
        let expected = hashed(&password.0, salt, iterations);
        is_same(expected.as_bytes(), hello.pwdhash.as_deref().unwrap_or_default().as_bytes())
    }
}

/// The fields of a first line; `None` if it is no hello.
pub(super) fn parse(line: &[u8]) -> Option<Hello> {
    let json = line.strip_prefix(b"HELLO ").filter(|json| json.starts_with(b"{"))?;
    serde_json::from_slice(json).ok()
}

/// The proof of the password: SHA-256 over password and salt, then over the digest, in hex.
fn hashed(password: &[u8], salt: &str, iterations: u32) -> String {
    let first = Sha256::new().chain_update(password).chain_update(salt.as_bytes());
    let mut digest = first.finalize();
    for _ in 1..iterations {
        digest = Sha256::digest(digest);
    }
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compares in a time that does not depend on the bytes.
fn is_same(expected: &[u8], given: &[u8]) -> bool {
    let differences = expected.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
    expected.len() == given.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(json: &str) -> Option<Hello> {
        parse(format!("HELLO {json}").as_bytes())
    }

    #[test]
    fn absent_null_and_unknown_fields_are_accepted() {
        let bare = hello("{}").unwrap();
        assert_eq!((bare.wid, bare.hostname, bare.v), (None, None, None));
        let odd = hello(r#"{"wid":"","username":null,"labels":null,"new":[1],"pid":7}"#).unwrap();
        assert_eq!((odd.wid.as_deref(), odd.pid), (Some(""), Some(7)));
        for line in ["HELLO", "HELLO 7", "HELLO  {}", "hello {}", "HELLO {", "PUSH {}", ""] {
            assert!(parse(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn the_password_is_proved_by_its_hash() {
        let password = Secret(b"foobar".to_vec());
        let salt = "55104dc76695721d".to_owned();
        let challenge = Challenge::Password { salt: salt.clone(), iterations: 1_545 };
        // From the description of the protocol.
        let known = "6d877f8e5544b1f2598768f817413ab8a357afffa924dedae99eb91472d4ec30";
        assert_eq!(hashed(b"foobar", &salt, 1_545), known);
        let with = |hash: &str, version: i64| Hello {
            pwdhash: Some(hash.to_owned()),
            v: Some(version),
            ..Hello::default()
        };
        assert!(challenge.is_met(&with(known, 2), &password));
        assert!(!challenge.is_met(&with(known, 1), &password));
        assert!(challenge.is_met(&with(&hashed(b"foobar", &salt, 1), 1), &password));
        assert!(!challenge.is_met(&with(&hashed(b"foobar", &salt, 1), 2), &password));
        assert!(!challenge.is_met(&with("", 2), &password));
        assert!(!challenge.is_met(&Hello::default(), &password));
        assert!(Challenge::None.is_met(&Hello::default(), &Secret::default()));
    }

    #[test]
    fn a_greeting_names_salt_and_iterations_if_there_is_a_password() {
        assert_eq!(Challenge::new(&Secret::default()).greeting(), "+HI {\"v\":2}\r\n");
        let challenge = Challenge::new(&Secret(b"x".to_vec()));
        let Challenge::Password { salt, iterations } = &challenge else { panic!("{challenge:?}") };
        assert!((4_000..8_096).contains(iterations));
        let greeting = format!("+HI {{\"v\":2,\"i\":{iterations},\"s\":\"{salt}\"}}\r\n");
        assert_eq!(challenge.greeting(), greeting);
    }
}
