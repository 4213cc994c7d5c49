//! The files under deploy/ fit the binary: every setting that they name exists, the unit and the
//! chart are well-formed, and the chart's parts fit together.

mod chart;

use crate::yard::taskyard;
use chart::render;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(path: &str) -> String {
    fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The words of a text that begin with `start`, followed by characters that fit `rest`.
fn named(text: &str, start: &str, rest: impl Fn(char) -> bool) -> BTreeSet<String> {
    let found = text.match_indices(start).filter(|(at, _)| {
        let before = text[..*at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '-' && c != '_')
    });
    let words = found.map(|(at, _)| {
        let tail: String = text[at + start.len()..].chars().take_while(|&c| rest(c)).collect();
        format!("{start}{tail}")
    });
    words.filter(|word| word.len() > start.len()).collect()
}

fn variables(text: &str) -> BTreeSet<String> {
    named(text, "TASKYARD_", |c| c.is_ascii_uppercase() || c == '_')
}

fn options(text: &str) -> BTreeSet<String> {
    named(text, "--", |c| c.is_ascii_lowercase() || c == '-')
}

#[test]
fn every_setting_that_is_named_exists() {
    let serve = taskyard(&["serve", "--help"]).stdout;
    let status = taskyard(&["cluster", "status", "--help"]).stdout;
    let (known, mut seen) = (variables(&serve), BTreeSet::new());
    for file in files(&folder()) {
        let text = fs::read_to_string(&file).unwrap();
        // This is an example of the form, not a setting.
        let text = text.replace("TASKYARD_NAME=value", "");
        let unknown: Vec<String> = variables(&text).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "{}: taskyard serve knows no {unknown:?}", file.display());
        seen.extend(variables(&text));
        for line in text.lines().filter(|line| !line.starts_with("FROM")) {
            let Some((_, typed)) = line.split_once("taskyard ") else { continue };
            let help = match typed {
                _ if typed.starts_with("serve") => &serve,
                _ if typed.starts_with("cluster status") => &status,
                _ => continue,
            };
            let unknown: Vec<String> = options(typed).difference(&options(help)).cloned().collect();
            assert!(unknown.is_empty(), "{}: {line}: no {unknown:?}", file.display());
        }
    }
    for name in ["TASKYARD_DATA", "TASKYARD_LISTEN", "TASKYARD_JOIN"] {
        assert!(seen.contains(name), "{name} among {seen:?}");
    }
}

#[test]
fn the_image_is_built_with_the_compiler_that_the_workspace_needs() {
    let workspace = include_str!("../../../../Cargo.toml").parse::<toml::Table>().unwrap();
    let needed = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    let file = read("Dockerfile");
    assert!(file.contains(&format!("FROM rust:{needed}-")), "Rust {needed}:\n{file}");
    for part in ["cargo install --locked --path crates/cli", ":nonroot", "VOLUME", "EXPOSE 7400"] {
        assert!(file.contains(part), "{part}:\n{file}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_calls_it_safe() {
    let unit = read("taskyard.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("ExecStart");
    assert_eq!(start, "/usr/local/bin/taskyard serve");
    let state = unit.lines().find_map(|line| line.strip_prefix("StateDirectory=")).unwrap();
    assert!(unit.contains(&format!("Environment=TASKYARD_DATA=/var/lib/{state}\n")), "{unit}");
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("SKIPPED: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("taskyard.service");
    let installed = unit.replace("/usr/local/bin/taskyard", env!("CARGO_BIN_EXE_taskyard"));
    fs::write(&file, installed).unwrap();
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        let ran = command.args(arguments).arg(&file).stdin(Stdio::null()).output().unwrap();
        let said = [ran.stdout, ran.stderr].concat();
        (ran.status.success(), String::from_utf8(said).unwrap())
    };
    let (is_sound, said) = analyze(&["verify", "--man=no"]);
    assert!(is_sound && !said.contains("taskyard.service:"), "{said}");
    // Of 100, where 0 is nothing left to take away. Before version 250 it looked at loaded units
    // only.
    let (is_safe, said) = analyze(&["security", "--offline=true", "--threshold=20"]);
    assert!(is_safe || said.contains("offline"), "{said}");
}

/// The documents of the chart for Kubernetes, with `changes` to values.yaml.
fn rendered(changes: &[(&str, Value)]) -> Vec<Value> {
    let mut values: Value = serde_saphyr::from_str(&read("helm/taskyard/values.yaml")).unwrap();
    for (pointer, value) in changes {
        *values.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value.clone();
    }
    let root = json!({
        "Values": values,
        "Release": { "Name": "yard", "Namespace": "work" },
    });
    let mut documents = Vec::new();
    for file in files(&folder().join("helm/taskyard/templates")) {
        let text = render(&fs::read_to_string(&file).unwrap(), &root);
        if file.extension().is_some_and(|extension| extension == "txt") {
            continue;
        }
        for document in text.split("\n---\n") {
            let is_empty = document.lines().all(|line| line.starts_with('#') || line.is_empty());
            if !is_empty {
                let parsed: Value = serde_saphyr::from_str(document)
                    .unwrap_or_else(|error| panic!("{}: {error}\n{document}", file.display()));
                documents.push(parsed);
            }
        }
    }
    documents
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

/// The variables of the broker's container.
fn environment(documents: &[Value]) -> Vec<(String, String)> {
    let set = of_kind(documents, "StatefulSet");
    let container = &set[0]["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    variables.map(|variable| (text(&variable["name"]), text(&variable["value"]))).collect()
}

fn value_of(documents: &[Value], name: &str) -> Option<String> {
    let found = environment(documents).into_iter().filter(|(found, _)| found == name);
    let [value] = found.map(|(_, value)| value).collect::<Vec<_>>().try_into().ok()?;
    Some(value)
}

#[test]
fn the_charts_parts_fit_together() {
    let documents = rendered(&[]);
    let kinds: Vec<&str> =
        documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    for document in &documents {
        assert!(document["apiVersion"].is_string(), "{document}");
        assert!(document["metadata"]["name"].as_str().unwrap().starts_with("yard"), "{document}");
    }
    let set = of_kind(&documents, "StatefulSet")[0];
    let pod = &set["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    assert_eq!(&set["spec"]["selector"]["matchLabels"], labels);
    let services = of_kind(&documents, "Service");
    let names: Vec<&Value> = services.iter().map(|service| &service["metadata"]["name"]).collect();
    assert!(names.contains(&&set["spec"]["serviceName"]), "{names:?}");
    let container = &pod["spec"]["containers"][0];
    let ports: BTreeSet<&str> = container["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["name"].as_str().unwrap())
        .collect();
    for service in services {
        assert_eq!(&service["spec"]["selector"], labels);
        for port in service["spec"]["ports"].as_array().unwrap() {
            assert!(ports.contains(port["targetPort"].as_str().unwrap()), "{port}");
        }
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(ports.contains(container[probe]["httpGet"]["port"].as_str().unwrap()), "{probe}");
    }
    let volumes: Vec<&Value> = pod["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .chain(
            set["spec"]["volumeClaimTemplates"]
                .as_array()
                .unwrap()
                .iter()
                .map(|claim| &claim["metadata"]),
        )
        .map(|volume| &volume["name"])
        .collect();
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(volumes.contains(&&mount["name"]), "{mount}");
    }
    let data = value_of(&documents, "TASKYARD_DATA").unwrap();
    assert!(data.starts_with(container["volumeMounts"][0]["mountPath"].as_str().unwrap()));
}

#[test]
fn the_nodes_of_the_chart_find_each_other_by_one_list_with_their_own_addresses() {
    let documents = rendered(&[("/replicas", json!(3))]);
    let advertised = value_of(&documents, "TASKYARD_ADVERTISE").unwrap();
    let list = value_of(&documents, "TASKYARD_JOIN").unwrap();
    let expected: Vec<String> =
        (0..3).map(|number| advertised.replace("$(POD_NAME)", &format!("yard-{number}"))).collect();
    assert_eq!(list.split(',').collect::<Vec<_>>(), expected);
    assert_eq!(expected[0], "yard-0.yard-nodes.work.svc:7401");
    let set = of_kind(&documents, "StatefulSet")[0];
    assert_eq!(set["spec"]["podManagementPolicy"], "Parallel", "all must be up to begin");
    assert_eq!(value_of(&rendered(&[("/replicas", json!(1))]), "TASKYARD_JOIN"), None);
}

#[test]
fn the_chart_takes_its_values() {
    let closed = rendered(&[]);
    assert_eq!(value_of(&closed, "TASKYARD_FAKTORY").as_deref(), Some("none"));
    assert_eq!(of_kind(&closed, "NetworkPolicy").len(), 1);
    let open = rendered(&[
        ("/faktory/enabled", json!(true)),
        ("/faktory/passwordSecret", json!("sesame")),
        ("/networkPolicy/enabled", json!(false)),
        ("/storage/className", json!("ssd")),
        ("/env", json!([{ "name": "TASKYARD_MEMORY_MAX", "value": "4G" }])),
    ]);
    assert_eq!(value_of(&open, "TASKYARD_FAKTORY").as_deref(), Some("0.0.0.0:7419"));
    assert_eq!(value_of(&open, "TASKYARD_MEMORY_MAX").as_deref(), Some("4G"));
    assert_eq!(of_kind(&open, "NetworkPolicy").len(), 0);
    let set = of_kind(&open, "StatefulSet")[0];
    assert_eq!(set["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"], "ssd");
    let password = value_of(&open, "TASKYARD_FAKTORY_PASSWORD_FILE").unwrap();
    let secrets = &set["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"];
    let paths: Vec<&str> = secrets
        .as_array()
        .unwrap()
        .iter()
        .map(|source| source["secret"]["items"][0]["path"].as_str().unwrap())
        .collect();
    let secret = value_of(&open, "TASKYARD_CLUSTER_SECRET_FILE").unwrap();
    assert_eq!(
        paths.iter().map(|path| format!("/etc/taskyard/{path}")).collect::<Vec<_>>(),
        [secret, password]
    );
}

#[test]
fn helm_finds_nothing_wrong_with_the_chart() {
    let chart = folder().join("helm/taskyard");
    let about: Value = serde_saphyr::from_str(&read("helm/taskyard/Chart.yaml")).unwrap();
    assert_eq!(about["appVersion"], env!("CARGO_PKG_VERSION"));
    let values: Value = serde_saphyr::from_str(&read("helm/taskyard/values.yaml")).unwrap();
    assert_eq!(values["image"]["tag"], env!("CARGO_PKG_VERSION"));
    for arguments in [&["lint", "--strict"][..], &["template", "yard"]] {
        let mut command = Command::new("helm");
        let Ok(ran) = command.args(arguments).arg(&chart).stdin(Stdio::null()).output() else {
            eprintln!("SKIPPED: helm is not installed");
            return;
        };
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    }
}
