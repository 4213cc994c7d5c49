//! The sources of a crate with its tests, copied from the registry. `testcontainers.rs` replaces
//! the crate that would start containers.

use super::cargo;
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Replaces a crate of the same name and version.
const STAND_IN: &str = include_str!("testcontainers.rs");
const STAND_IN_MANIFEST: &str = "\
[package]
name = \"testcontainers\"
version = \"0.24.0\"
edition = \"2021\"

[features]
reusable-containers = []

[dependencies]
serde_json = \"1\"
tempfile = \"3\"
";
/// Added to the crate's own manifest.
const PATCH: &str = "
[workspace]

[patch.crates-io]
testcontainers = { path = \"../testcontainers\" }
";

pub(super) struct Sources {
    manifest: PathBuf,
    target: PathBuf,
}

impl Sources {
    /// Copies the sources to `folder/NAME`. Earlier builds in `folder/target` stay.
    pub(super) fn fetch(folder: &Path, name: &str, version: &str) -> Result<Sources> {
        let wanted = folder.join("wanted");
        write(&wanted.join("lib.rs"), "")?;
        let manifest = wanted.join("Cargo.toml");
        write(
            &manifest,
            &format!(
                "[package]\nname = \"wanted\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
                 [lib]\npath = \"lib.rs\"\n[workspace]\n\
                 [dependencies]\n{name} = \"={version}\"\n"
            ),
        )?;
        let mut metadata = cargo();
        metadata.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(&manifest);
        let told = metadata.stderr(std::process::Stdio::inherit()).output()?;
        if !told.status.success() {
            bail!("cargo can't bring {name} {version}");
        }
        let told: serde_json::Value = serde_json::from_slice(&told.stdout)?;
        let packages = told["packages"].as_array().context("cargo told of no packages")?;
        let found = packages.iter().find(|package| package["name"] == name);
        let found = found.and_then(|package| package["manifest_path"].as_str());
        let source = Path::new(found.context("cargo told of other packages only")?).parent();
        let source = source.context("a manifest lies in a folder")?;

        let copy = folder.join(name);
        if copy.exists() {
            fs::remove_dir_all(&copy).context("can't remove the last copy")?;
        }
        copy_folder(source, &copy)?;
        let manifest = copy.join("Cargo.toml");
        let text = fs::read_to_string(&manifest)? + PATCH;
        write(&manifest, &text)?;
        write(&folder.join("testcontainers/Cargo.toml"), STAND_IN_MANIFEST)?;
        write(&folder.join("testcontainers/src/lib.rs"), STAND_IN)?;
        Ok(Sources { manifest, target: folder.join("target") })
    }

    /// `cargo test`, in the crate's folder, where its tests look for a certificate.
    pub(super) fn test(&self, args: &[&str]) -> Command {
        let mut test = cargo();
        test.current_dir(self.manifest.parent().unwrap_or(Path::new(".")));
        test.args(["test", "--features", "ent,rustls", "--target-dir"]);
        test.arg(&self.target).args(args).env("CARGO_PROFILE_DEV_DEBUG", "0");
        test
    }
}

/// Does not write an unchanged file, so that nothing is built again because of it.
fn write(path: &Path, text: &str) -> Result<()> {
    let told = || format!("can't write {}", path.display());
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(told)?;
    fs::write(path, text).with_context(told)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("can't read {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &to)?,
            false => fs::copy(entry.path(), to).map(drop)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_has_the_version_that_it_stands_in_for_and_is_where_the_patch_looks() {
        assert!(STAND_IN_MANIFEST.contains("version = \"0.24."));
        let patch: toml::Table = PATCH.parse().unwrap();
        let path = patch["patch"]["crates-io"]["testcontainers"]["path"].as_str();
        assert_eq!(path, Some("../testcontainers"));
    }
}
