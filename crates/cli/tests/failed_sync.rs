//! A disk whose sync fails, with real processes: the broker stops with exit code 1 and a clear
//! message, and everything acknowledged survives.
//!
//! A library replaces the system's `fsync` and `fdatasync`, and returns EIO for files below a path
//! once another file exists. The test compiles it from C.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::yard::{Process, Ran, Yard, needs::Need, serve, until};
use taskyard::Client;

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
    const char *when = getenv("FAIL_SYNC_WHEN"), *below = getenv("FAIL_SYNC_BELOW");
    if (!when || !below || access(when, F_OK) != 0) return 0;
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    size_t prefix = strlen(below);
    return strncmp(path, below, prefix) == 0 && (path[prefix] == 0 || !getenv("FAIL_SYNC_ALONE"));
}

static int sync_or_fail(int fd, const char *call) {
    if (fails(fd)) {
        errno = EIO;
        return -1;
    }
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, call);
    return next(fd);
}

int fsync(int fd) { return sync_or_fail(fd, "fsync"); }
int fdatasync(int fd) { return sync_or_fail(fd, "fdatasync"); }
"#;

/// A library that lets the syncs of a process fail on demand.
struct FailingDisk {
    library: PathBuf,
    when: PathBuf,
}

impl FailingDisk {
    /// `None` where there is no C compiler.
    fn build(folder: &Path) -> Option<FailingDisk> {
        let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
        fs::write(&source, SHIM).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
        match compile.output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "the shim must compile: {said}");
                Some(FailingDisk { library, when: folder.join("fail-now") })
            }
            Err(error) => {
                Need::Compiler.skip(format!("there is no cc to make a failing disk: {error}"));
                None
            }
        }
    }

    /// Loads the library into `command`: syncs of paths that begin with `below` will fail.
    fn below(&self, below: &Path, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("FAIL_SYNC_WHEN", &self.when).env("FAIL_SYNC_BELOW", below);
    }

    fn fail(&self) {
        File::create(&self.when).unwrap();
    }
}

type Confirmed = Arc<Mutex<BTreeSet<String>>>;

/// Enqueues until the broker is gone.
async fn produce(url: String, confirmed: Confirmed) {
    let patience = Duration::from_secs(2);
    let client = Client::builder([url]).timeout(patience).connect_timeout(patience);
    let client = client.build().unwrap();
    while let Ok(task) = client.task("count", &1).await {
        confirmed.lock().unwrap().insert(task.id().to_string());
    }
}

/// Lets syncs below `part` of the data directory fail under load. The command `force` makes the
/// broker sync there. Returns the output of the broker.
async fn fail_under_load(part: &str, force: Option<&[&str]>) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let disk = FailingDisk::build(folder.path())?;
    // The library sees canonical paths.
    let data = folder.path().canonicalize().unwrap().join("data");
    let complaints = folder.path().join("complaints");
    let mut broker = serve(&data);
    disk.below(&data.join(part), &mut broker);
    broker.stderr(File::create(&complaints).unwrap());
    let mut yard = Yard::start_as(folder, broker);
    let confirmed = Confirmed::default();
    let producers: Vec<_> =
        (0..4).map(|_| tokio::spawn(produce(yard.url.clone(), Arc::clone(&confirmed)))).collect();
    until("there is load", || confirmed.lock().unwrap().len() >= 200);
    disk.fail();
    let forcing = force.map(|arguments| Process(yard.command(arguments).spawn().unwrap()));
    assert_eq!(yard.broker.code(), Some(1));
    drop(forcing);
    for producer in producers {
        producer.await.unwrap();
    }
    let complaints = fs::read_to_string(&complaints).unwrap();

    let yard = yard.restart();
    let found = yard.json(&["task", "list", "--limit", "1000000"]);
    let found: BTreeSet<&str> = found.iter().map(|task| task["id"].as_str().unwrap()).collect();
    let confirmed = confirmed.lock().unwrap();
    let lost: Vec<_> = confirmed.iter().filter(|id| !found.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
    Some(complaints)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_of_the_log_ends_the_broker_and_loses_nothing() {
    let Some(said) = fail_under_load("log", None).await else { return };
    let expected = "fdatasync of the log failed: Input/output error (os error 5); \
                    nothing unsynced was acknowledged; check the disk, then start again";
    assert!(said.contains(expected), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_of_a_checkpoint_ends_the_broker_and_loses_nothing() {
    // A backup takes checkpoints of all shards, which otherwise come too late for this test.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("yard.backup");
    let force = ["backup", file.to_str().unwrap()];
    let Some(said) = fail_under_load("state", Some(&force)).await else { return };
    assert!(!file.exists());
    assert!(said.contains("can't be written: Input/output error (os error 5)"), "{said}");
    assert!(said.contains("check the disk, then start again"), "{said}");
}

#[test]
fn a_backup_whose_name_may_not_be_on_disk_is_reported() {
    let yard = Yard::start();
    let Some(disk) = FailingDisk::build(yard.folder.path()) else { return };
    disk.fail();
    let saved = yard.file("saved");
    fs::create_dir(&saved).unwrap();
    let saved = saved.canonicalize().unwrap();
    let backup = |folder: &Path, failing: &Path| {
        let file = folder.join("yard.backup");
        let arguments = ["backup", "--force", file.to_str().unwrap()];
        let mut command = yard.command(&arguments);
        disk.below(failing, &mut command);
        // The folder itself, and not the file in it.
        command.env("FAIL_SYNC_ALONE", "1");
        Ran::of(command, &arguments)
    };
    let ran = backup(&saved, &saved);
    assert_ne!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stderr.contains("Input/output error"), "{}", ran.stderr);
    assert_eq!(backup(&saved, Path::new("/nowhere")).code, 0);
}
