//! `release`: builds the binary that is shipped, and shows its version and size.
//!
//! It tags and uploads nothing: a release is a commit whose CHANGELOG names the version. The task
//! fails if the binary is larger than its bound.

use crate::step::Step;
use anyhow::{Context, Result};
use std::{fs, path::Path};

/// The binary fits into a small image and downloads in seconds. Symbols alone are four times this.
const BINARY_BYTES_MAX: u64 = 30_000_000;

/// Builds with the lock file as it is; refuses while the CHANGELOG does not name the version.
pub(crate) fn release(root: &Path) -> Result<bool> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).context("can't read Cargo.toml")?;
    let manifest: toml::Table = manifest.parse().context("Cargo.toml is not TOML")?;
    let version = manifest["workspace"]["package"]["version"]
        .as_str()
        .context("Cargo.toml has no workspace.package.version")?;
    let changelog =
        fs::read_to_string(root.join("CHANGELOG.md")).context("can't read CHANGELOG.md")?;
    if !names_version(&changelog, version) {
        println!("release: CHANGELOG.md has no section [{version}]; name what is released first");
        return Ok(false);
    }
    let build = Step::new("cargo build --release --locked --package taskyard-cli");
    println!("==> {}", build.shown());
    if !build.run(root)? {
        return Ok(false);
    }
    // target/debug/xtask is this program; the release profile is the folder beside it.
    let profile =
        std::env::current_exe()?.parent().and_then(Path::parent).map(|t| t.join("release"));
    let binary = profile.context("xtask does not lie in a target folder")?.join("taskyard");
    let bytes = fs::metadata(&binary).with_context(|| format!("no {}", binary.display()))?.len();
    println!("taskyard {version}: {} ({:.1} MB)", binary.display(), bytes as f64 / 1e6);
    if bytes > BINARY_BYTES_MAX {
        println!(
            "release: the binary has {bytes} bytes, more than {BINARY_BYTES_MAX}; look in Cargo.toml \
             whether [profile.release] strips symbols, and at what `cargo bloat` finds"
        );
        return Ok(false);
    }
    if !Step::new("sha256sum --version").succeeds_silently(root) {
        return Ok(true);
    }
    Step::new("sha256sum taskyard").run(binary.parent().unwrap_or(root))
}

/// Whether a released (not the unreleased) section is headed by this version.
fn names_version(changelog: &str, version: &str) -> bool {
    changelog.lines().any(|line| line.starts_with(&format!("## [{version}]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_released_once_the_changelog_has_its_section() {
        assert!(names_version("# Changelog\n\n## [0.1.0] - 2026-01-02\n", "0.1.0"));
        assert!(!names_version("# Changelog\n\n## [Unreleased]\n\nWill be 0.1.0.\n", "0.1.0"));
    }
}
