//! Parents: the variables that tell a command about the parents of its task, and a file for results
//! that are too large for a variable.

use std::{collections::BTreeMap, io::Write, path::Path};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use rustix::fs::fchown;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use taskyard::{TaskContext, TaskState};
use taskyard_cli::exec::User;
use tempfile::NamedTempFile;

/// Larger results go into a file, because the kernel refuses variables of 128 KiB or more.
const VARIABLE_BYTES_MAX: usize = 64 << 10;

/// The variables about parents. Their file exists as long as this value.
#[derive(Default)]
pub(super) struct ParentVariables {
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

/// Gathers the results of the parents, and fetches those that are too large to travel with the
/// task. `user` is the user of the command, if it is another one; files are
/// made in `folder`.
pub(super) async fn variables(
    context: &TaskContext,
    user: Option<&User>,
    folder: &Path,
) -> Result<ParentVariables> {
    let (Some(flow), Some(node)) = (context.flow(), context.node()) else {
        return Ok(ParentVariables::default());
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
    let mut variables = ParentVariables::default();
    variables.environment.push(("TASKYARD_FLOW", flow.id().to_string()));
    variables.environment.push(("TASKYARD_NODE", node.to_owned()));
    if !errors.is_empty() {
        variables.environment.push(("TASKYARD_PARENT_ERRORS", serde_json::to_string(&errors)?));
    }
    let results = serde_json::to_string(&results)?;
    if results.len() <= VARIABLE_BYTES_MAX {
        variables.environment.push(("TASKYARD_PARENTS", results));
        return Ok(variables);
    }
    let mut file = NamedTempFile::with_prefix_in("taskyard-parents-", folder)?;
    file.write_all(results.as_bytes())?;
    if let Some(user) = user {
        fchown(&file, Some(user.uid()), Some(user.gid()))?;
    }
    variables.environment.push(("TASKYARD_PARENTS_FILE", file.path().display().to_string()));
    variables._file = Some(file);
    Ok(variables)
}

/// JSON stays unchanged, other text becomes a JSON string, and other bytes a string of base64.
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
