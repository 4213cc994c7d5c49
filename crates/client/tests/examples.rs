//! Every example runs as it stands and ends by itself.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use taskyard_server::{Config, Node};

/// Only an example that hangs takes this long; others take seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// All files of `examples/`, so that this test runs new examples too.
fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// Runs an example that cargo built beside this test, and returns its problem, if any.
fn run(name: &str, url: &str) -> Result<(), String> {
    let built = std::env::current_exe().unwrap();
    let path = built.parent().unwrap().with_file_name("examples").join(name);
    let child = Command::new(&path)
        .env("TASKYARD_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| {
        format!("{} does not start ({error}); build it with cargo build --examples", path.display())
    })?;
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > DEADLINE {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("{name} has not ended after {DEADLINE:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = child.wait_with_output().unwrap();
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&ended.stderr))),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_runs_and_ends() {
    let names = names();
    assert!(names.len() >= 13, "{names:?}");
    // Some examples start their own broker; the others get this one.
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path());
    config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.disk_reserve_bytes = 0;
    let node = Node::start(config).await.unwrap();
    let url = format!("http://{}", node.address().unwrap());
    let ran = names.into_iter().map(|name| {
        let url = url.clone();
        tokio::task::spawn_blocking(move || run(&name, &url))
    });
    let mut problems = Vec::new();
    for example in ran.collect::<Vec<_>>() {
        problems.extend(example.await.unwrap().err());
    }
    assert!(problems.is_empty(), "{problems:#?}");
    node.stop().await;
}
