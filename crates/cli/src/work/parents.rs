//! What a command is told of the tasks that its task depends on: variables, and a file for results
//! that no variable can hold.

use std::{collections::BTreeMap, io::Write, path::Path};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use rustix::fs::fchown;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use taskyard::{TaskContext, TaskState};
use taskyard_cli::exec::User;
use tempfile::NamedTempFile;

/// Larger than this goes into a file: the kernel takes variables of less than 128 KiB.
const VARIABLE_BYTES_MAX: usize = 64 << 10;

/// What to tell the command, for as long as this lives.
#[derive(Default)]
pub(super) struct Told {
    pub(super) environment: Vec<(&'static str, String)>,
    /// Removed when the command has ended.
    _file: Option<NamedTempFile>,
}

#[derive(Serialize)]
struct ParentError {
    state: TaskState,
    #[serde(flatten)]
    error: Option<taskyard::TaskError>,
}

/// Gathers what the parents left, fetching what did not travel along with the task. `user` is whom
/// the command runs as, if not as our own user; files are made in `folder`.
pub(super) async fn told(
    context: &TaskContext,
    user: Option<&User>,
    folder: &Path,
) -> Result<Told> {
    let (Some(flow), Some(node)) = (context.flow(), context.node()) else {
        return Ok(Told::default());
    };
    let mut results: BTreeMap<String, Box<RawValue>> = BTreeMap::new();
    let mut errors: BTreeMap<String, ParentError> = BTreeMap::new();
    for parent in context.parents() {
        let name = parent.name().to_owned();
        if parent.is_success() {
            let bytes = parent.raw_result().await.with_context(|| format!("parent {name}"))?;
            results.insert(name, as_json(&bytes)?);
        } else {
            let error = parent.error().cloned();
            errors.insert(name, ParentError { state: parent.state(), error });
        }
    }
    let mut told = Told::default();
    told.environment.push(("TASKYARD_FLOW", flow.id().to_string()));
    told.environment.push(("TASKYARD_NODE", node.to_owned()));
    if !errors.is_empty() {
        told.environment.push(("TASKYARD_PARENT_ERRORS", serde_json::to_string(&errors)?));
    }
    let results = serde_json::to_string(&results)?;
    if results.len() <= VARIABLE_BYTES_MAX {
        told.environment.push(("TASKYARD_PARENTS", results));
        return Ok(told);
    }
    let mut file = NamedTempFile::with_prefix_in("taskyard-parents-", folder)?;
    file.write_all(results.as_bytes())?;
    if let Some(user) = user {
        fchown(&file, Some(user.uid()), Some(user.gid()))?;
    }
    told.environment.push(("TASKYARD_PARENTS_FILE", file.path().display().to_string()));
    told._file = Some(file);
    Ok(told)
}

/// JSON as it is, other text as a JSON string, other bytes as a string of base64.
fn as_json(bytes: &[u8]) -> serde_json::Result<Box<RawValue>> {
    if bytes.is_empty() {
        return to_raw_value(&());
    }
    if let Ok(json) = serde_json::from_slice::<&RawValue>(bytes) {
        return Ok(json.to_owned());
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => to_raw_value(text),
        Err(_) => to_raw_value(&BASE64_STANDARD.encode(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_is_json_for_a_command() {
        for (bytes, json) in [
            (&b"{\"n\": 1.50}"[..], "{\"n\": 1.50}"),
            (b"", "null"),
            (b"two\nlines", "\"two\\nlines\""),
            (b"\xff\x00", "\"/wA=\""),
        ] {
            assert_eq!(as_json(bytes).unwrap().get(), json);
        }
    }
}
