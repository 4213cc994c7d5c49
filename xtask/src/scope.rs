//! Scope: the crates of a run of the gate: the whole workspace, or one crate without its
//! dependents.

use anyhow::{Result, bail};

/// Folder and package of every crate.
const CRATES: &[(&str, &str)] = &[
    ("machine", "taskyard-machine"),
    ("replica", "taskyard-replica"),
    ("proto", "taskyard-proto"),
    ("server", "taskyard-server"),
    ("client", "taskyard"),
    ("cli", "taskyard-cli"),
    ("sim", "taskyard-sim"),
    ("xtask", "xtask"),
];

/// Crates without a library have no doc tests, and cargo fails if they are requested.
const WITHOUT_LIBRARY: &[&str] = &["taskyard-sim", "xtask"];
/// Crates whose code the simulation runs.
const SIMULATED: &[&str] = &["taskyard-machine", "taskyard-replica", "taskyard-sim"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Workspace,
    Package(&'static str),
}

impl Scope {
    /// One crate, by its folder or by the name of its package.
    pub(crate) fn of_crate(name: &str) -> Result<Scope> {
        let known = CRATES.iter().find(|(folder, package)| *folder == name || *package == name);
        let Some((_, package)) = known else {
            let folders: Vec<&str> = CRATES.iter().map(|(folder, _)| *folder).collect();
            bail!("there is no crate {name:?}; the crates are {}", folders.join(" "));
        };
        Ok(Scope::Package(package))
    }

    /// The arguments that select the crates for a cargo command. They always include all features,
    /// because equal flags in every step build dependencies once.
    pub(crate) fn selection(self) -> String {
        match self {
            Scope::Workspace => "--workspace --all-features --locked".to_owned(),
            Scope::Package(package) => format!("-p {package} --all-features --locked"),
        }
    }

    /// The arguments that select the crates for `cargo fmt`.
    pub(crate) fn formatted(self) -> String {
        match self {
            Scope::Workspace => "--all".to_owned(),
            Scope::Package(package) => format!("-p {package}"),
        }
    }

    pub(crate) fn has_library(self) -> bool {
        match self {
            Scope::Workspace => true,
            Scope::Package(package) => !WITHOUT_LIBRARY.contains(&package),
        }
    }

    pub(crate) fn is_simulated(self) -> bool {
        match self {
            Scope::Workspace => true,
            Scope::Package(package) => SIMULATED.contains(&package),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    #[test]
    fn a_crate_is_named_by_its_folder_or_its_package() {
        for name in ["client", "taskyard"] {
            assert_eq!(Scope::of_crate(name).unwrap(), Scope::Package("taskyard"));
        }
        let problem = Scope::of_crate("clint").unwrap_err().to_string();
        assert!(problem.contains("no crate \"clint\"; the crates are machine "), "{problem}");
    }

    #[test]
    fn every_crate_of_the_tree_can_be_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folders = fs::read_dir(root.join("crates")).unwrap();
        let folders = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
        let found: BTreeSet<String> = folders.chain(["xtask".to_owned()]).collect();
        let known: BTreeSet<String> =
            CRATES.iter().map(|(folder, _)| (*folder).to_owned()).collect();
        assert_eq!(found, known);
        for (folder, package) in CRATES {
            let path =
                if *folder == "xtask" { folder.to_string() } else { format!("crates/{folder}") };
            let manifest = fs::read_to_string(root.join(&path).join("Cargo.toml")).unwrap();
            assert!(manifest.contains(&format!("name = {package:?}")), "{path} is not {package}");
            let has_library = root.join(&path).join("src/lib.rs").exists();
            assert_eq!(Scope::Package(package).has_library(), has_library, "{path}");
        }
    }

    #[test]
    fn each_scope_selects_its_crates_with_all_features() {
        assert_eq!(Scope::Workspace.selection(), "--workspace --all-features --locked");
        let cli = Scope::of_crate("cli").unwrap();
        assert_eq!(cli.selection(), "-p taskyard-cli --all-features --locked");
        assert!(!cli.is_simulated() && Scope::of_crate("machine").unwrap().is_simulated());
    }
}
