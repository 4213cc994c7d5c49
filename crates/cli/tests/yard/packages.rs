//! Packages of foreign registries, in pinned versions, installed once for all runs, in the build
//! folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::needs;

/// The folder with a list of packages from PyPI, or why they can't be installed here: no Python, or
/// no registry.
pub(crate) fn from_pypi(name: &str, list: &Path) -> Result<PathBuf, String> {
    needs::python()?;
    // Some packages are compiled for one version of Python.
    let version = run(
        Command::new("python3").args(["-c", "import sys; print(sys.implementation.cache_tag)"])
    )?;
    cached(&format!("{name}-{}", version.trim()), list, |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        // Without a registry, the installation must fail soon.
        pip.args(["--retries", "1", "--timeout", "10"]);
        run(pip.arg("--requirement").arg(list).arg("--target").arg(folder)).map(drop)
    })
}

/// A folder that `fill` has filled, now or in an earlier run with the same list of versions. The
/// folder appears whole or not at all, even if two processes fill it at once.
pub(crate) fn cached(
    name: &str,
    versions: &Path,
    fill: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let text = |error: std::io::Error| error.to_string();
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-packages");
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

/// Runs a command that must succeed, and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !ran.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&ran.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
