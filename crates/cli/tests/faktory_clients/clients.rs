//! Installs foreign clients, once for all runs, below the build folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::yard::needs::{self, Need};

/// An installed client and the script that uses it.
pub(crate) struct Client {
    pub(crate) runtime: &'static str,
    pub(crate) script: PathBuf,
    /// Where its packages are, and the variable by which its runtime finds them.
    pub(crate) folder: PathBuf,
    pub(crate) path_variable: &'static str,
}

impl Client {
    /// Its packages in the pinned versions, or why they can't be had here: no runtime, no registry.
    pub(crate) fn install(name: &str, need: Need) -> Result<Client, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faktory_clients");
        match need {
            Need::Node => install_with_npm(&sources, name),
            _ => install_with_pip(&sources, name),
        }
    }
}

fn install_with_pip(sources: &Path, name: &str) -> Result<Client, String> {
    needs::python()?;
    // Some packages are compiled for one version of Python.
    let version = run(
        Command::new("python3").args(["-c", "import sys; print(sys.implementation.cache_tag)"])
    )?;
    let list = sources.join(name).with_extension("txt");
    let folder = cached(&format!("{name}-{}", version.trim()), &list, |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        // Where there is no registry, that is to be found out soon.
        pip.args(["--retries", "1", "--timeout", "10"]);
        run(pip.arg("--requirement").arg(&list).arg("--target").arg(folder)).map(drop)
    })?;
    let script = sources.join(name).with_extension("py");
    Ok(Client { runtime: "python3", script, folder, path_variable: "PYTHONPATH" })
}

fn install_with_npm(sources: &Path, name: &str) -> Result<Client, String> {
    needs::node()?;
    let lock = sources.join(name).join("package-lock.json");
    let folder = cached(name, &lock, |folder| {
        for file in ["package.json", "package-lock.json"] {
            fs::copy(lock.with_file_name(file), folder.join(file))
                .map_err(|error| error.to_string())?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]);
        npm.args(["--fetch-retries=1", "--fetch-timeout=10000"]);
        run(npm.current_dir(folder)).map(drop)
    })?;
    let script = sources.join(name).join("client.js");
    let folder = folder.join("node_modules");
    Ok(Client { runtime: "node", script, folder, path_variable: "NODE_PATH" })
}

/// A folder that `fill` has filled, now or in an earlier run with the same list of versions. It appears whole or not at
/// all, and two that fill it at once don't meet.
fn cached(
    name: &str,
    versions: &Path,
    fill: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let text = |error: std::io::Error| error.to_string();
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faktory-clients");
    fs::create_dir_all(&home).map_err(text)?;
    let wanted = fs::read(versions).map_err(text)?;
    let folder = home.join(name);
    let is_current = || fs::read(folder.join("versions")).is_ok_and(|had| had == wanted);
    if is_current() {
        return Ok(folder);
    }
    let new = tempfile::tempdir_in(&home).map_err(text)?;
    fill(new.path())?;
    fs::write(new.path().join("versions"), &wanted).map_err(text)?;
    let _ = fs::remove_dir_all(&folder);
    let renamed = fs::rename(new.keep(), &folder);
    if is_current() { Ok(folder) } else { renamed.map_err(text).map(|()| folder) }
}

/// Runs a command to its end, which must be a good one, and returns what it printed.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !ran.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&ran.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
