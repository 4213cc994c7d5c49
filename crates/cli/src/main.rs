//! The one binary: `taskyard`.
//!
//! Every task of `work --exec` starts this binary again under two hidden names, so these are looked
//! at before anything else.

use std::{ffi::OsString, process::ExitCode};

use taskyard_cli::exec;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before the heap grows: the allocator's huge pages cost a growing heap pauses of tens of
    // milliseconds. A kernel without the switch runs on as it is.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|first| first.to_str()) {
        Some(exec::SUPERVISOR) => exec::supervisor_main(),
        Some(exec::LAUNCHER) => exec::launcher_main(&arguments[1..]),
        _ => ExitCode::from(2),
    }
}
