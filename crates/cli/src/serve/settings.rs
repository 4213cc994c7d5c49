//! What a node is told: options over environment variables over a file over defaults.
//!
//! A file is checked whole: every mistake is reported at once, and an unknown key gets the one that
//! was probably meant.

mod secret;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use taskyard_server::{Config, config::FaktoryTls};
use toml::Value;

use self::secret::{CLUSTER_SECRET, FAKTORY_PASSWORD};
use crate::{
    args::ServeArgs,
    remote::usage,
    values::{self, AddressOrNone},
};

/// Where state is kept if nothing says so.
const DATA: &str = "taskyard-data";

/// The settings of a file, each as it stands there or not at all.
#[derive(Debug, Default, PartialEq)]
struct Settings {
    data: Option<String>,
    listen: Option<SocketAddr>,
    shards: Option<u16>,
    payload_max: Option<u64>,
    memory_max: Option<u64>,
    disk_reserve: Option<u64>,
    connections_max: Option<usize>,
    shutdown_grace: Option<Duration>,
    peer: Option<SocketAddr>,
    join: Vec<String>,
    zone: Option<String>,
    advertise: Option<String>,
    advertise_clients: Option<String>,
    allowed_hosts: Vec<String>,
    cluster_secret_file: Option<String>,
    replication: Option<u8>,
    faktory: Option<AddressOrNone>,
    faktory_password_file: Option<String>,
    faktory_tls_cert: Option<String>,
    faktory_tls_key: Option<String>,
}

const KEYS: [&str; 20] = [
    "data",
    "listen",
    "shards",
    "payload_max",
    "memory_max",
    "disk_reserve",
    "connections_max",
    "shutdown_grace",
    "peer",
    "join",
    "zone",
    "advertise",
    "advertise_clients",
    "allowed_hosts",
    "cluster_secret_file",
    "replication",
    "faktory",
    "faktory_password_file",
    "faktory_tls_cert",
    "faktory_tls_key",
];

/// Where other nodes connect if nothing says so.
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7401);
/// Where Faktory clients connect if nothing says so: the port that they try.
const FAKTORY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7419);

/// What the node is told in the end.
pub(super) fn config(args: &ServeArgs) -> Result<Config> {
    let mut problems = Vec::new();
    let file = match &args.config {
        Some(path) => read(path, &mut problems)?,
        None => Settings::default(),
    };
    let data =
        args.data.clone().or(file.data.clone().map(Into::into)).unwrap_or_else(|| DATA.into());
    let mut config = Config::new(data);
    if let Some(listen) = args.listen.or(file.listen) {
        config.listen = Some(listen);
    }
    config.shards = args.shards.or(file.shards);
    if let Some(bytes) = args.payload_max.or(file.payload_max) {
        config.payload_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    if let Some(bytes) = args.memory_max.or(file.memory_max) {
        config.memory_bytes_max = bytes;
    }
    if let Some(bytes) = args.disk_reserve.or(file.disk_reserve) {
        config.disk_reserve_bytes = bytes;
    }
    if let Some(connections) = args.connections_max.or(file.connections_max) {
        config.connections_max = connections;
    }
    if let Some(grace) = args.shutdown_grace.or(file.shutdown_grace) {
        config.shutdown_grace = grace;
    }
    set_cluster(&mut config, args, &file, &mut problems);
    set_faktory(&mut config, args, &file, &mut problems);
    if let Err(mistakes) = config.validate() {
        problems.push(as_typed(&mistakes.to_string(), args));
    }
    if problems.is_empty() { Ok(config) } else { Err(usage(problems.join("\n"))) }
}

/// What the node is told about its cluster.
fn set_cluster(config: &mut Config, args: &ServeArgs, file: &Settings, problems: &mut Vec<String>) {
    let chosen = args.peer.or(file.peer);
    (config.peer, config.peer_may_move) = (Some(chosen.unwrap_or(PEER)), chosen.is_none());
    config.join = if args.join.is_empty() { file.join.clone() } else { args.join.clone() };
    config.zone = args.zone.clone().or(file.zone.clone()).unwrap_or_default();
    config.advertise = args.advertise.clone().or(file.advertise.clone());
    config.advertise_clients = args.advertise_clients.clone().or(file.advertise_clients.clone());
    config.allowed_hosts = if args.allowed_hosts.is_empty() {
        file.allowed_hosts.clone()
    } else {
        args.allowed_hosts.clone()
    };
    config.replication = args.replication.or(file.replication);
    let secret_file =
        typed_or(args.cluster_secret_file.as_ref(), file.cluster_secret_file.as_ref());
    match CLUSTER_SECRET.read(secret_file.as_deref()) {
        Ok(secret) => config.cluster_secret = secret,
        Err(problem) => problems.push(problem),
    }
}

/// What the node is told about Faktory clients.
fn set_faktory(config: &mut Config, args: &ServeArgs, file: &Settings, problems: &mut Vec<String>) {
    let chosen = args.faktory.or(file.faktory);
    let AddressOrNone(address) = chosen.unwrap_or(AddressOrNone(Some(FAKTORY)));
    (config.faktory, config.faktory_may_move) = (address, chosen.is_none());
    let password =
        typed_or(args.faktory_password_file.as_ref(), file.faktory_password_file.as_ref());
    match FAKTORY_PASSWORD.read(password.as_deref()) {
        Ok(password) => config.faktory_password = password,
        Err(problem) => problems.push(problem),
    }
    let certificate = typed_or(args.faktory_tls_cert.as_ref(), file.faktory_tls_cert.as_ref());
    let key = typed_or(args.faktory_tls_key.as_ref(), file.faktory_tls_key.as_ref());
    let alone = |given: &str, missing: &str| {
        format!(
            "{given} is set and {missing} is not; a certificate needs its key: set both or none"
        )
    };
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            config.faktory_tls = Some(FaktoryTls { certificate, key });
        }
        (Some(_), None) => problems.push(alone("faktory_tls_cert", "faktory_tls_key")),
        (None, Some(_)) => problems.push(alone("faktory_tls_key", "faktory_tls_cert")),
        (None, None) => {}
    }
}

/// A path that was typed, or else that of the file.
fn typed_or(typed: Option<&PathBuf>, file: Option<&String>) -> Option<PathBuf> {
    typed.cloned().or_else(|| file.map(Into::into))
}

/// Says names as they were typed: a mistake about `payload_bytes_max` is one about `--payload-max`,
/// or about `payload_max` in the file.
fn as_typed(mistakes: &str, args: &ServeArgs) -> String {
    let names = [
        ("data is", "data", args.data.is_some()),
        ("shards is", "shards", args.shards.is_some()),
        ("payload_bytes_max is", "payload_max", args.payload_max.is_some()),
        ("memory_bytes_max is", "memory_max", args.memory_max.is_some()),
        ("connections_max is", "connections_max", args.connections_max.is_some()),
        ("peer is", "peer", args.peer.is_some()),
        ("join is", "join", !args.join.is_empty()),
        ("zone is", "zone", args.zone.is_some()),
        ("advertise is", "advertise", args.advertise.is_some()),
        ("advertise_clients is", "advertise_clients", args.advertise_clients.is_some()),
        ("allowed_hosts is", "allowed_hosts", !args.allowed_hosts.is_empty()),
        ("replication is", "replication", args.replication.is_some()),
        ("faktory is", "faktory", args.faktory.is_some()),
    ];
    let mut lines: Vec<String> = mistakes.lines().map(str::to_owned).collect();
    for line in &mut lines {
        let name = names.iter().find_map(|(start, key, is_option)| {
            let rest = line.strip_prefix(start)?;
            let option = format!("--{}", key.replace('_', "-"));
            Some(format!("{} is{rest}", if *is_option { option.as_str() } else { key }))
        });
        if let Some(name) = name {
            *line = name;
        }
    }
    lines.join("\n")
}

fn read(path: &Path, problems: &mut Vec<String>) -> Result<Settings> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let mut mistakes = Vec::new();
    let settings = parse(&text, &mut mistakes);
    problems.extend(mistakes.into_iter().map(|mistake| format!("{shown}: {mistake}")));
    Ok(settings)
}

/// What can be read of a file; what cannot is added to the problems.
fn parse(text: &str, problems: &mut Vec<String>) -> Settings {
    let mut settings = Settings::default();
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            problems.push(format!("it is no TOML: {error}"));
            return settings;
        }
    };
    for (key, value) in &table {
        let taken = match key.as_str() {
            "data" => take(&mut settings.data, value, |text| Ok(text.to_owned())),
            "listen" => take(&mut settings.listen, value, |text| {
                text.parse().map_err(|_| format!("{text:?} is no address like 127.0.0.1:7400"))
            }),
            "shards" => take(&mut settings.shards, value, |text| {
                text.parse().map_err(|_| format!("{text:?} is no number from 1 to 4096"))
            }),
            "payload_max" => take(&mut settings.payload_max, value, values::size),
            "memory_max" => take(&mut settings.memory_max, value, values::size),
            "disk_reserve" => take(&mut settings.disk_reserve, value, values::size),
            "connections_max" => take(&mut settings.connections_max, value, |text| {
                text.parse().map_err(|_| format!("{text:?} is no number of connections"))
            }),
            "shutdown_grace" => take(&mut settings.shutdown_grace, value, values::duration),
            "peer" => take(&mut settings.peer, value, |text| {
                text.parse().map_err(|_| format!("{text:?} is no address like 10.0.0.5:7401"))
            }),
            "join" => take_list(&mut settings.join, value),
            "zone" => take(&mut settings.zone, value, |text| Ok(text.to_owned())),
            "advertise" => take(&mut settings.advertise, value, |text| Ok(text.to_owned())),
            "advertise_clients" => {
                take(&mut settings.advertise_clients, value, |text| Ok(text.to_owned()))
            }
            "allowed_hosts" => take_list(&mut settings.allowed_hosts, value),
            "cluster_secret_file" => {
                take(&mut settings.cluster_secret_file, value, |text| Ok(text.to_owned()))
            }
            "replication" => take(&mut settings.replication, value, |text| {
                text.parse().map_err(|_| format!("{text:?} is not 1, 3 or 5"))
            }),
            "faktory" => take(&mut settings.faktory, value, values::address_or_none),
            "faktory_password_file" => {
                take(&mut settings.faktory_password_file, value, |text| Ok(text.to_owned()))
            }
            "faktory_tls_cert" => {
                take(&mut settings.faktory_tls_cert, value, |text| Ok(text.to_owned()))
            }
            "faktory_tls_key" => {
                take(&mut settings.faktory_tls_key, value, |text| Ok(text.to_owned()))
            }
            unknown => Err(format!("there is no such key{}", did_you_mean(unknown))),
        };
        if let Err(problem) = taken {
            problems.push(format!("{key}: {problem}"));
        }
    }
    settings
}

/// A value may be written as a text or, where it is a number, as one.
fn take<T>(
    slot: &mut Option<T>,
    value: &Value,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<(), String> {
    *slot = Some(match value {
        Value::String(text) => read(text)?,
        Value::Integer(number) => read(&number.to_string())?,
        other => {
            return Err(format!("a {} is neither a text nor a whole number", other.type_str()));
        }
    });
    Ok(())
}

/// Several may be written as a list, or as one text with commas.
fn take_list(slot: &mut Vec<String>, value: &Value) -> Result<(), String> {
    let Value::Array(values) = value else {
        let mut text = None;
        take(&mut text, value, |text| Ok(text.to_owned()))?;
        slot.extend(text.iter().flat_map(|text| text.split(',')).map(|one| one.trim().to_owned()));
        return Ok(());
    };
    for value in values {
        let Value::String(text) = value else {
            return Err(format!(
                "its list holds more than texts: a value of type {}",
                value.type_str()
            ));
        };
        slot.push(text.clone());
    }
    Ok(())
}

fn did_you_mean(unknown: &str) -> String {
    match values::nearest(unknown, KEYS) {
        Some(key) => format!("; did you mean {key}?"),
        None => format!("; there are {}", KEYS.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(line: &str) -> ServeArgs {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Serve(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_win_over_the_file_and_that_over_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskyard.toml");
        fs::write(&file, "listen = \"127.0.0.1:1\"\nshards = 4\nmemory_max = \"2G\"\n").unwrap();
        let line = format!("taskyard serve --shards 8 --config {}", file.display());
        let config = config(&args(&line)).unwrap();
        assert_eq!(config.shards, Some(8));
        assert_eq!(config.memory_bytes_max, 2 << 30);
        assert_eq!(config.listen.map(|address| address.port()), Some(1));
        assert_eq!(config.payload_bytes_max, 1 << 20, "the default");
        fs::write(&file, "connections_max = 50\n").unwrap();
        assert_eq!(self::config(&args(&line)).unwrap().connections_max, 50);
        let line = format!("{line} --connections-max 40");
        assert_eq!(self::config(&args(&line)).unwrap().connections_max, 40);
    }

    #[test]
    fn every_mistake_of_a_file_is_reported_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskyard.toml");
        let line = format!("taskyard serve --shards 9999 --config {}", file.display());
        let error_of = |text: &str| {
            fs::write(&file, text).unwrap();
            config(&args(&line)).unwrap_err().to_string()
        };
        let error = error_of("listn = 1\nlisten = \"many\"\nmemory_max = 1\npayload_max = \"1X\"");
        for part in ["did you mean listen?", "many", "memory_max is 1", "1X", "--shards is 9999"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        let error = error_of("a = ");
        assert!(error.contains("line 1") && error.contains("--shards is 9999"), "{error}");
    }

    #[test]
    fn a_cluster_is_set_by_options_and_by_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskyard.toml");
        let secret = folder.path().join("secret");
        let words = "open sesame, and let nobody else in";
        fs::write(&secret, format!("{words}\n")).unwrap();
        let text = format!(
            "peer = \"10.0.0.1:7401\"\njoin = [\"a:1\", \"b:2\"]\nzone = \"cellar\"\n\
             cluster_secret_file = {:?}\n",
            secret.display().to_string()
        );
        fs::write(&file, text).unwrap();
        let line = format!("taskyard serve --config {}", file.display());
        let found = config(&args(&line)).unwrap();
        assert_eq!(found.peer, Some("10.0.0.1:7401".parse().unwrap()));
        assert_eq!(found.join, ["a:1", "b:2"]);
        assert_eq!(
            (found.zone.as_str(), found.cluster_secret.0.as_slice()),
            ("cellar", words.as_bytes())
        );
        let typed =
            config(&args(&format!("{line} --join c:3,d:4 --join e:5 --zone attic"))).unwrap();
        assert_eq!((typed.join.join(" "), typed.zone.as_str()), ("c:3 d:4 e:5".into(), "attic"));
        let default = config(&args("taskyard serve")).unwrap();
        assert_eq!((default.peer, default.peer_may_move), (Some(PEER), true));
        assert_eq!((default.faktory, default.faktory_may_move), (Some(FAKTORY), true));
        let typed_line = "taskyard serve --peer 127.0.0.1:7401 --faktory 127.0.0.1:7419";
        let chosen = config(&args(typed_line)).unwrap();
        assert!(!chosen.peer_may_move && !chosen.faktory_may_move && !found.peer_may_move);
        fs::write(&file, "joins = 1\njoin = [1]\nreplication = 2\npeer = \"x\"\n").unwrap();
        let error =
            config(&args(&format!("{line} --advertise 0.0.0.0:1"))).unwrap_err().to_string();
        for part in
            ["did you mean join?", "more than texts", "replication is 2", "\"x\"", "--advertise is"]
        {
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn faktory_clients_are_listened_for_unless_it_says_none() {
        let folder = tempfile::tempdir().unwrap();
        let (file, password) =
            (folder.path().join("taskyard.toml"), folder.path().join("password"));
        fs::write(&password, "sesame\n").unwrap();
        let none = config(&args("taskyard serve --faktory none")).unwrap();
        assert_eq!((none.faktory, none.faktory_tls), (None, None));
        let text = format!(
            "faktory = \"10.0.0.1:7419\"\nfaktory_password_file = {:?}\n\
             faktory_tls_cert = \"cert.pem\"\nfaktory_tls_key = \"key.pem\"\n",
            password.display().to_string()
        );
        fs::write(&file, text).unwrap();
        let line = format!("taskyard serve --config {}", file.display());
        let found = config(&args(&line)).unwrap();
        assert_eq!(found.faktory, Some("10.0.0.1:7419".parse().unwrap()));
        assert_eq!(found.faktory_password.0, b"sesame");
        let tls = found.faktory_tls.unwrap();
        assert_eq!((tls.certificate, tls.key), ("cert.pem".into(), "key.pem".into()));
        let typed = config(&args(&format!("{line} --faktory none --faktory-tls-key k"))).unwrap();
        assert_eq!((typed.faktory, typed.faktory_tls.unwrap().key), (None, "k".into()));
        fs::write(&file, "faktory = \"no\"\nfaktory_tls_key = \"key.pem\"\n").unwrap();
        let error = config(&args(&line)).unwrap_err().to_string();
        for part in ["nor the word none", "faktory_tls_cert is not; a certificate needs its key"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        let line = "taskyard serve --faktory 127.0.0.1:7401";
        let error = config(&args(line)).unwrap_err().to_string();
        assert!(error.contains("--faktory is 127.0.0.1:7401, and so is peer"), "{error}");
    }

    #[test]
    fn bounds_are_reported_together() {
        let line = "taskyard serve --shards 0 --payload-max 9M --connections-max 20001";
        let error = config(&args(line)).unwrap_err();
        let error = error.to_string();
        for part in ["--shards is 0", "--payload-max is 9437184", "--connections-max is 20001"] {
            assert!(error.contains(part), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskyard.toml");
        fs::write(&file, "memory_max = \"1M\"\n").unwrap();
        let line = format!("taskyard serve --config {}", file.display());
        let error = config(&args(&line)).unwrap_err().to_string();
        assert!(error.starts_with("memory_max is 1048576"), "{error}");
    }
}
