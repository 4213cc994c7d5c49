//! Random numbers of this node: session ids, batch ids, seeds of weighted draws. Never in a
//! machine.

/// 64 random bits from the system.
pub(crate) fn random_u64() -> u64 {
    getrandom::u64().expect("the system's source of randomness answers")
}

/// 128 random bits from the system.
pub(crate) fn random_u128() -> u128 {
    u128::from(random_u64()) << 64 | u128::from(random_u64())
}
