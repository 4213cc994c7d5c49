//! README.md is right: this runs its blocks in order, and builds its Rust program with the
//! dependencies beside it.

use crate::yard::{
    Ran,
    pasted::{Place, Shell, blocks},
    until,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const DOCUMENT: &str = include_str!("../../../README.md");
/// The kind of the block that starts the broker for later blocks.
const BROKER: &str = "sh broker";
const RUN: &str = "sh test";
const MANIFEST: &str = "toml";
const PROGRAM: &str = "rust,no_run";
/// The kinds of blocks that are not run: commands that install, output, and a client in another
/// language.
const SHOWN: [&str; 3] = ["sh", "text", "python"];

/// The README's source of the SDK; the test replaces it with the SDK in this tree.
const SOURCE: &str = "git = \"https://github.com/taskyard/taskyard\"";

/// The blocks of one kind, in order.
fn texts(kind: &str) -> Vec<String> {
    let blocks = blocks(DOCUMENT).into_iter().filter(|block| block.kind == kind);
    blocks.map(|block| block.text).collect()
}

/// The only block of a kind.
fn text(kind: &str) -> String {
    let [text] = texts(kind).try_into().unwrap_or_else(|all: Vec<_>| {
        panic!("the README has {} blocks of {kind:?}, and not one", all.len())
    });
    text
}

/// Starts the broker of the README, and waits until it answers.
fn broker(place: &Place) -> Shell {
    let host = place.host();
    let addresses = format!(
        "export TASKYARD_LISTEN={host}:7400 TASKYARD_PEER={host}:7401 TASKYARD_FAKTORY=none\n"
    );
    let mut shell = place.paste("broker", &(addresses + &text(BROKER)));
    until("the README's broker answers", || {
        assert!(shell.ended().is_none(), "the broker ended:\n{}", shell.printed());
        let url = format!("http://{host}:7400");
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        command.args(["queue", "list", "--server", &url]).stdin(Stdio::null());
        Ran::of(command, &["queue", "list"]).code == 0
    });
    shell
}

#[test]
fn every_block_is_of_a_kind_that_is_pasted_or_only_shown() {
    for block in blocks(DOCUMENT) {
        let pasted = [BROKER, RUN, MANIFEST, PROGRAM].contains(&block.kind);
        let is_known = pasted || SHOWN.contains(&block.kind);
        assert!(is_known, "{}: a block of {:?}", block.section, block.kind);
    }
}

#[test]
fn the_shell_block_and_then_the_curl_block_work_as_pasted() {
    let place = Place::new();
    let _broker = broker(&place);
    let commands = texts(RUN);
    assert_eq!(commands.len(), 2, "one block for the shell, one for curl");
    let printed = place.paste("pasted", &commands.concat()).succeed("the README's blocks");
    let lines: Vec<&str> = printed.lines().filter(|line| !line.starts_with('+')).collect();
    let printed = lines.join("\n");
    assert!(lines.contains(&r#"{"NAME": "ADA"}"#), "{printed}");
    let task = lines.iter().find(|line| line.contains("\"state\"")).expect("the task at its end");
    for part in [r#""queue":"letters""#, r#""state":"succeeded""#] {
        assert!(task.contains(part), "{part} in {printed}");
    }
}

#[test]
fn the_rust_block_builds_with_its_dependencies_and_runs() {
    let place = Place::new();
    let _broker = broker(&place);
    let program = build(&place);
    let mut greeter = place.paste("greeter", &format!("exec {}", program.display()));
    until("the README's program runs its task", || {
        assert!(greeter.ended().is_none(), "the program ended:\n{}", greeter.printed());
        greeter.printed().lines().any(|line| line == "hello Ada")
    });
    greeter.interrupt();
    greeter.succeed("the README's program, after Ctrl-C");
}

/// Builds the README's program against the crates of this tree, in the target folder of the tests.
/// The first build takes 40 s of processor time, later builds almost none.
fn build(place: &Place) -> PathBuf {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let manifest = text(MANIFEST);
    assert!(manifest.contains(SOURCE), "the README names {SOURCE}:\n{manifest}");
    let sdk = format!("path = {:?}", tree.join("crates/client").display().to_string());
    let manifest = manifest.replace(SOURCE, &sdk);
    // The same folder in every run, so that only the first one builds the SDK.
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    fs::create_dir_all(project.join("src")).unwrap();
    // As `cargo new` writes it; the last table keeps the project out of this workspace.
    let head = "[package]\nname = \"greeter\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";
    fs::write(project.join("Cargo.toml"), format!("{head}{manifest}\n[workspace]\n")).unwrap();
    fs::copy(tree.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let program = text(PROGRAM).replace("127.0.0.1", &place.host());
    fs::write(project.join("src/main.rs"), program).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--offline", "--target-dir"])
        .arg(project.join("target"))
        // Without debug information the build takes half as long.
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .current_dir(&project)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    project.join("target/debug/greeter")
}
