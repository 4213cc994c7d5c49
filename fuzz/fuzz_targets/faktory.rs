//! Lines and JSON of Faktory clients: `cargo +nightly fuzz run faktory`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| taskyard_server::front::read_as_faktory_client(bytes));
