//! Secrets: read from a file or a variable, and never from the command line, which other users can
//! see.

use std::{fs, path::Path};

use taskyard_server::config::Secret;

/// The sources of one secret.
pub(super) struct Source {
    /// The setting that names the secret's file.
    setting: &'static str,
    /// The variable with the secret itself.
    variable: &'static str,
}

pub(super) const CLUSTER_SECRET: Source =
    Source { setting: "cluster_secret_file", variable: "TASKYARD_CLUSTER_SECRET" };
pub(super) const FAKTORY_PASSWORD: Source =
    Source { setting: "faktory_password_file", variable: "TASKYARD_FAKTORY_PASSWORD" };

impl Source {
    /// The secret from one source; empty if there is none.
    pub(super) fn read(&self, file: Option<&Path>) -> Result<Secret, String> {
        self.read_or(file, std::env::var(self.variable).ok().filter(|text| !text.is_empty()))
    }

    fn read_or(&self, file: Option<&Path>, text: Option<String>) -> Result<Secret, String> {
        let Source { setting, variable } = self;
        let Some(path) = file else {
            return Ok(Secret(text.unwrap_or_default().into_bytes()));
        };
        if text.is_some() {
            return Err(format!("{variable} and {setting} are both set; leave one out"));
        }
        let shown = path.display();
        let secret = fs::read(path).map_err(|error| format!("{setting} {shown}: {error}"))?;
        // Editors and `echo` end a file with a line end, which is no part of the secret.
        let is_line_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let end = secret.iter().rposition(|byte| !is_line_end(byte)).map_or(0, |at| at + 1);
        match &secret[..end] {
            [] => Err(format!("{setting} {shown} is empty; put a secret into it")),
            secret => Ok(Secret(secret.to_vec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_from_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let check = |text: &str, variable: Option<&str>| {
            fs::write(&file, text).unwrap();
            let read = FAKTORY_PASSWORD.read_or(Some(&file), variable.map(str::to_owned));
            read.map(|secret| secret.0)
        };
        assert_eq!(check("a b\r\n", None), Ok(b"a b".to_vec()));
        assert!(check("\n", None).unwrap_err().contains("is empty; put a secret into it"));
        assert!(check("a", Some("b")).unwrap_err().contains("TASKYARD_FAKTORY_PASSWORD and"));
        assert_eq!(CLUSTER_SECRET.read_or(None, Some("b".into())), Ok(Secret(b"b".to_vec())));
        let missing = CLUSTER_SECRET.read_or(Some(&folder.path().join("no")), None);
        assert!(missing.unwrap_err().contains("No such file"));
    }
}
