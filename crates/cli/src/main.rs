//! The one binary: `taskyard`.
//!
//! Every task of `work --exec` starts this binary again under three hidden names, so that these are
//! checked before anything else.

mod args;
mod backup;
mod bench;
mod book;
mod cluster;
mod confirm;
mod dead;
mod demo;
mod enqueue;
mod flow;
mod import;
mod log;
mod manual;
mod nodes;
mod output;
mod payload;
mod queue;
mod remote;
mod schedule;
mod serve;
mod signals;
mod stalled;
mod task;
mod values;
mod work;
mod worker;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use rustix::fs::Mode;
use taskyard_cli::exec;

use crate::{
    args::{Cli, Command, Common, FlowCommand, ImportCommand},
    output::Output,
    remote::{Complaint, Remote},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before the heap grows: huge pages would cost a growing heap pauses of tens of milliseconds.
    // The error of a kernel without this switch is ignored.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|first| first.to_str()) {
        Some(exec::SUPERVISOR) => exec::supervisor_main(),
        Some(exec::INIT) => exec::init_main(&arguments[1..]),
        Some(exec::LAUNCHER) => exec::launcher_main(&arguments[1..]),
        _ => match Cli::try_parse() {
            Ok(cli) => run(cli),
            Err(error) => refuse(&error, &arguments),
        },
    }
}

/// Prints the help, or the mistakes in the command line.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let own = || arguments.iter().take_while(|word| *word != "--");
    let asked_for_json = own().any(|word| word == "--json");
    let asked_for_json_log = own().any(|word| word == "--log-format=json")
        || own().zip(own().skip(1)).any(|(name, value)| name == "--log-format" && value == "json");
    if !error.use_stderr() || !(asked_for_json || asked_for_json_log) {
        error.exit();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = text.split("\n\nFor more information").next().unwrap_or(text).trim_end().to_owned();
    match asked_for_json {
        true => Complaint { code: "invalid_argument".to_owned(), text, exit_code: 2 }.print(true),
        false => log::json_error("invalid_argument", &text),
    }
    ExitCode::from(2)
}

fn run(cli: Cli) -> ExitCode {
    let Cli { common, command } = cli;
    let common = common.or_environment(|name| std::env::var(name).ok());
    let output = Output::new(common.json);
    if matches!(command, Command::Serve(_) | Command::Restore(_)) {
        // Files that libraries create in a data directory must be readable for its owner only.
        rustix::process::umask(Mode::from_raw_mode(0o077));
    }
    let done = match command {
        Command::Serve(args) => serve::run(&args, output),
        Command::Restore(args) => backup::restore(&args, output),
        Command::Import(ImportCommand::Faktory(args)) => import::faktory(&args, output),
        Command::Demo(args) => demo::run(&args, output),
        Command::Bench(args) => bench::run(&args, &common, output),
        Command::Completions(args) => manual::completions(&args, output),
        Command::Man(args) => manual::man(&args, output),
        Command::Work(args) => work::run(&args, &common),
        Command::Enqueue(args) => ask(&common, async |remote| enqueue::run(remote, &args).await),
        Command::Task(command) => ask(&common, async |remote| task::run(remote, command).await),
        Command::Queue(command) => ask(&common, async |remote| queue::run(remote, command).await),
        Command::Dead(command) => ask(&common, async |remote| dead::run(remote, command).await),
        Command::Flow(FlowCommand::Run(args)) => flow::read(&args.file)
            .and_then(|flow| ask(&common, async |remote| flow::submit(remote, &args, flow).await)),
        Command::Flow(FlowCommand::Operate(operation)) => {
            ask(&common, async |remote| flow::run(remote, operation).await)
        }
        Command::Schedule(command) => {
            ask(&common, async |remote| schedule::run(remote, command).await)
        }
        Command::Worker(command) => ask(&common, async |remote| worker::run(remote, command).await),
        Command::Cluster(command) => {
            ask(&common, async |remote| cluster::run(remote, command).await)
        }
        Command::Backup(args) => ask(&common, async |remote| backup::backup(remote, &args).await),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let complaint = Complaint::of(&error, &common.server);
            complaint.print(common.json);
            ExitCode::from(complaint.exit_code)
        }
    }
}

/// Runs a command that asks a broker and ends.
fn ask(common: &Common, command: impl AsyncFnOnce(&Remote) -> Result<()>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { command(&Remote::connect(common).await?).await })
}
