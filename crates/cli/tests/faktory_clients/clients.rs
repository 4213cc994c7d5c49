//! Installs foreign clients, once for all runs, below the build folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::yard::{
    needs::{self, Need},
    packages::{self, cached, run},
};

/// An installed client and the script that uses it.
pub(crate) struct Client {
    pub(crate) runtime: &'static str,
    pub(crate) script: PathBuf,
    /// The folder of its packages, and the variable by which its runtime finds them.
    pub(crate) folder: PathBuf,
    pub(crate) path_variable: &'static str,
}

impl Client {
    /// Installs the pinned packages, or says why they can't be installed here: no runtime, or no
    /// registry.
    pub(crate) fn install(name: &str, need: Need) -> Result<Client, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faktory_clients");
        match need {
            Need::Node => install_with_npm(&sources, name),
            _ => install_with_pip(&sources, name),
        }
    }
}

fn install_with_pip(sources: &Path, name: &str) -> Result<Client, String> {
    let folder = packages::from_pypi(name, &sources.join(name).with_extension("txt"))?;
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
