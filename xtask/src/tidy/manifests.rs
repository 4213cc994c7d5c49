//! Which way the crates point, read from their Cargo.toml files.
//!
//! cli -> server -> replica -> machine, cli -> client -> proto <- server, sim -> replica, machine.

use super::{Finding, tree::Tree};
use toml::{Table, Value};

/// The dependencies that each crate may have within the workspace.
const POINTS_TO: &[(&str, &[&str])] = &[
    ("crates/machine", &[]),
    ("crates/proto", &[]),
    ("crates/replica", &["taskyard-machine"]),
    ("crates/server", &["taskyard-machine", "taskyard-replica", "taskyard-proto"]),
    ("crates/client", &["taskyard-proto"]),
    ("crates/cli", &["taskyard", "taskyard-server"]),
    ("crates/sim", &["taskyard-machine", "taskyard-replica"]),
    ("fuzz", &["taskyard-server"]),
    ("xtask", &[]),
];

/// The dependencies that the SDK may have only behind a feature, because most users compile only
/// the client.
const OPTIONAL_IN_CLIENT: &[&str] = &["taskyard-machine", "taskyard-server"];
const FEATURES_OF_CLIENT: &[&str] = &["embedded", "testing"];

/// All dependencies of the machine; this short list proves its purity.
const MACHINE_DEPENDENCIES: &[&str] = &["thiserror", "xxhash-rust"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.texts().filter(|(path, _)| path.ends_with("/Cargo.toml"));
    manifests.flat_map(|(path, text)| check_manifest(path, text)).collect()
}

fn check_manifest(path: &str, text: &str) -> Vec<Finding> {
    let folder = path.trim_end_matches("/Cargo.toml");
    let table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => return vec![Finding::new(path, 1, format!("is not TOML: {error}"))],
    };
    let Some((_, allowed)) = POINTS_TO.iter().find(|(name, _)| *name == folder) else {
        let message = "belongs to a crate that xtask's POINTS_TO does not know; say there which of \
                       our crates it may depend on";
        return vec![Finding::new(path, 1, message)];
    };
    let mut findings = Vec::new();
    for (name, settings) in dependencies(&table) {
        let at = line_of(text, name);
        let ours = name == "taskyard" || name.starts_with("taskyard-");
        if folder == "crates/machine" && !MACHINE_DEPENDENCIES.contains(&name) {
            let message = format!(
                "the machine may not depend on {name}: it stays pure, with {} alone",
                MACHINE_DEPENDENCIES.join(" and ")
            );
            findings.push(Finding::new(path, at, message));
        } else if folder == "crates/client" && OPTIONAL_IN_CLIENT.contains(&name) {
            findings.extend(check_optional(path, text, &table, name, settings));
        } else if ours && !allowed.contains(&name) {
            let message = format!("{folder} may not depend on {name}; see ARCHITECTURE.md");
            findings.push(Finding::new(path, at, message));
        }
    }
    findings
}

/// Such a dependency of the SDK is optional, and only the two features may switch it on.
fn check_optional(
    path: &str,
    text: &str,
    table: &Table,
    name: &str,
    settings: &Value,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if settings.get("optional").and_then(Value::as_bool) != Some(true) {
        let message = format!("the SDK may depend on {name} only with optional = true");
        findings.push(Finding::new(path, line_of(text, name), message));
    }
    let features = table.get("features").and_then(Value::as_table).into_iter().flatten();
    for (feature, enables) in features.filter(|(f, _)| !FEATURES_OF_CLIENT.contains(&f.as_str())) {
        let enables = enables.as_array().into_iter().flatten().filter_map(Value::as_str);
        let reaches = |item: &str| {
            let item = item.trim_start_matches("dep:");
            item.split(['/', '?']).next() == Some(name) || FEATURES_OF_CLIENT.contains(&item)
        };
        if enables.into_iter().any(reaches) {
            let message = format!(
                "feature {feature} brings {name}; only {} may",
                FEATURES_OF_CLIENT.join(" and ")
            );
            findings.push(Finding::new(path, line_of(text, feature), message));
        }
    }
    findings
}

/// Dependencies of the crate itself; those of its tests are free.
fn dependencies(table: &Table) -> Vec<(&str, &Value)> {
    let targets = table.get("target").and_then(Value::as_table).into_iter().flatten();
    let targets = targets.filter_map(|(_, target)| target.as_table());
    std::iter::once(table)
        .chain(targets)
        .filter_map(|holder| holder.get("dependencies")?.as_table())
        .flatten()
        .map(|(name, settings)| (name.as_str(), settings))
        .collect()
}

fn line_of(text: &str, key: &str) -> usize {
    let starts =
        |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.starts_with([' ', '=', '.']));
    text.lines().position(starts).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn crates_point_one_way() {
        let on = |name: &str| format!("[dependencies]\n{name} = {{ workspace = true }}\n");
        for (path, name, allowed) in [
            ("crates/server/Cargo.toml", "taskyard-machine", true),
            ("crates/server/Cargo.toml", "taskyard", false),
            ("crates/replica/Cargo.toml", "taskyard-server", false),
            ("crates/cli/Cargo.toml", "taskyard", true),
            ("crates/sim/Cargo.toml", "taskyard-server", false),
            ("crates/proto/Cargo.toml", "taskyard-machine", false),
            ("crates/server/Cargo.toml", "tokio", true),
        ] {
            assert_eq!(found(path, &on(name)).is_empty(), allowed, "{path} -> {name}");
        }
        assert_eq!(
            found("crates/server/Cargo.toml", &on("taskyard")),
            [
                "crates/server/Cargo.toml:2: crates/server may not depend on taskyard; see ARCHITECTURE.md"
            ]
        );
        let dev = "[dev-dependencies]\ntaskyard = { workspace = true }\n";
        assert!(found("crates/server/Cargo.toml", dev).is_empty());
        let target = "[target.'cfg(unix)'.dependencies]\ntaskyard = { workspace = true }\n";
        assert_eq!(found("crates/server/Cargo.toml", target).len(), 1);
        assert!(found("crates/extra/Cargo.toml", "[package]\n")[0].contains("POINTS_TO"));
    }

    #[test]
    fn the_machine_depends_on_next_to_nothing() {
        let path = "crates/machine/Cargo.toml";
        assert!(found(path, "[dependencies]\nthiserror = \"2\"\n").is_empty());
        assert!(
            found(path, "[dependencies]\nbytes = \"1\"\n")[0].contains("may not depend on bytes")
        );
    }

    #[test]
    fn the_client_knows_the_server_only_behind_its_features() {
        let path = "crates/client/Cargo.toml";
        let with = |settings: &str, features: &str| {
            format!("[dependencies]\ntaskyard-server = {settings}\n[features]\n{features}\n")
        };
        let optional = "{ workspace = true, optional = true }";
        assert!(found(path, &with(optional, "embedded = [\"dep:taskyard-server\"]")).is_empty());
        assert_eq!(found(path, &with("{ workspace = true }", "")).len(), 1);
        assert_eq!(found(path, &with(optional, "default = [\"embedded\"]")).len(), 1);
        assert_eq!(found(path, &with(optional, "tls = [\"taskyard-server/tls\"]")).len(), 1);
    }
}
