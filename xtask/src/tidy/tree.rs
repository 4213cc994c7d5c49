//! The files of the workspace, read once: every rule reads the same tree, and tests build small
//! ones by hand.

use super::source::Source;
use anyhow::{Context, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

/// Endings of the files whose text the rules read; others are only known to exist.
const TEXT_ENDINGS: &[&str] =
    &[".rs", ".md", ".toml", ".proto", ".txt", ".css", ".js", ".html", ".sql", ".sh", ".ci/run"];

/// Paths are relative to the root, with `/` between their parts.
#[derive(Debug, Default)]
pub(super) struct Tree {
    texts: BTreeMap<String, String>,
    sources: BTreeMap<String, Source>,
    /// All files and folders, texts included.
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads everything below `root` but build output, git's own files and data directories.
    pub(super) fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            for (at, _) in path.match_indices('/') {
                tree.paths.insert(path[..at].to_string());
            }
            tree.add(path, text.to_string());
        }
        tree
    }

    /// Every text file, by path.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Every Rust file, by path.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.sources.iter().map(|(path, source)| (path.as_str(), source))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    pub(super) fn source(&self, path: &str) -> Option<&Source> {
        self.sources.get(path)
    }

    /// Whether there is such a file or folder.
    pub(super) fn has(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    fn add(&mut self, path: &str, text: String) {
        if path.ends_with(".rs") {
            self.sources.insert(path.to_string(), Source::parse(path, &text));
        }
        self.paths.insert(path.to_string());
        self.texts.insert(path.to_string(), text);
    }

    fn read_folder(&mut self, root: &Path, folder: &str) -> Result<()> {
        let here = root.join(folder);
        let entries =
            fs::read_dir(&here).with_context(|| format!("can't read {}", here.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if matches!(path.as_str(), ".git" | "target" | "taskyard-data") {
                continue;
            }
            self.paths.insert(path.clone());
            if entry.file_type()?.is_dir() {
                self.read_folder(root, &path)?;
            } else if TEXT_ENDINGS.iter().any(|ending| path.ends_with(ending)) {
                match fs::read_to_string(entry.path()) {
                    Ok(text) => self.add(&path, text),
                    // A temporary file of another program (an editor, a test) may be gone by now.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error).with_context(|| format!("can't read {path}")),
                }
            }
        }
        Ok(())
    }
}
