//! The proof that a client knows the password: SHA-256 over password and salt, then over itself.

use sha2::{Digest, Sha256};

/// Servers ask for some thousands. A server that asks for far more would only keep this process
/// busy.
const ITERATIONS_MAX: u32 = 1_000_000;

/// Lower-case hex of the hash, applied `iterations` times in total.
pub(super) fn hash(password: &str, salt: &str, iterations: u32) -> Result<String, String> {
    if !(1..=ITERATIONS_MAX).contains(&iterations) {
        return Err(format!(
            "it asks for a password hashed {iterations} times; servers ask for 1 to \
             {ITERATIONS_MAX}"
        ));
    }
    let mut digest = Sha256::new().chain_update(password).chain_update(salt).finalize();
    for _ in 1..iterations {
        digest = Sha256::digest(digest);
    }
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_applied_as_often_as_asked() {
        // By hashlib of Python.
        for (password, salt, iterations, expected) in [
            (
                "password",
                "salt",
                1,
                "7a37b85c8918eac19a9089c0fa5a2ab4dce3f90528dcdeec108b23ddf3607b99",
            ),
            (
                "password",
                "salt",
                2,
                "a6b9d96cc74d52749372886896349c07e2137fe8788b496d76f6d56e49a9bd52",
            ),
            (
                "sesame",
                "1f2e3d4c",
                4_000,
                "074f3dd7c2cfcfaf06996e24cefaac9c2862856d04a2d96459330362a5e90fd7",
            ),
        ] {
            assert_eq!(hash(password, salt, iterations).unwrap(), expected, "{iterations}");
        }
    }

    #[test]
    fn a_number_that_no_server_means_is_refused() {
        for iterations in [0, ITERATIONS_MAX + 1, u32::MAX] {
            assert!(hash("a", "b", iterations).unwrap_err().contains("hashed"), "{iterations}");
        }
    }
}
