//! Tallies over several shards: what they count, what follows from them, and when they are forgotten.
