//! Settings of a node: options win over environment variables, those over a file, and that over
//! defaults.
//!
//! All settings are checked first, so that every mistake in options and file is reported at once,
//! those of the file with their lines. The error of an unknown key suggests a similar key.

mod secret;
mod source;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use anyhow::Result;
use taskyard_server::{Config, config::FaktoryTls};

use self::{
    secret::{CLUSTER_SECRET, FAKTORY_PASSWORD},
    source::{Kind, Source},
};
use crate::{
    args::{LogFormat, ServeArgs},
    log,
    remote::usage,
    values::{self, AddressOrNone},
};

/// The default data directory.
const DATA: &str = "taskyard-data";

const KEYS: [(&str, Kind); 22] = [
    ("data", Kind::Text),
    ("listen", Kind::Text),
    ("shards", Kind::Number),
    ("payload_max", Kind::Number),
    ("memory_max", Kind::Number),
    ("disk_reserve", Kind::Number),
    ("connections_max", Kind::Number),
    ("shutdown_grace", Kind::Text),
    ("peer", Kind::Text),
    ("join", Kind::List),
    ("zone", Kind::Text),
    ("advertise", Kind::Text),
    ("advertise_clients", Kind::Text),
    ("allowed_hosts", Kind::List),
    ("cluster_secret_file", Kind::Text),
    ("replication", Kind::Number),
    ("faktory", Kind::Text),
    ("faktory_password_file", Kind::Text),
    ("faktory_tls_cert", Kind::Text),
    ("faktory_tls_key", Kind::Text),
    ("log", Kind::Text),
    ("log_format", Kind::Text),
];

/// The default address for other nodes.
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7401);
/// The default address for Faktory clients, with the port that they try by default.
const FAKTORY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7419);

/// The settings of `serve`.
pub(super) struct Settings {
    pub(super) log: Option<String>,
    pub(super) log_format: LogFormat,
    /// The configuration, or all mistakes in it.
    pub(super) config: Result<Config>,
}

impl Settings {
    /// The settings when the file can't be read.
    pub(super) fn failed(args: &ServeArgs, error: anyhow::Error) -> Settings {
        let format = args.log_format.as_deref().map(LogFormat::read);
        let log_format = format.and_then(Result::ok).unwrap_or(LogFormat::Text);
        Settings { log: None, log_format, config: Err(error) }
    }
}

/// Reads options and file. Fails only if the file can't be read at all.
pub(super) fn read(args: &ServeArgs) -> Result<Settings> {
    let mut source = Source::read(args.config.as_deref(), &KEYS)?;
    add_typed(&mut source, args);
    let log = source.parsed("log", log::checked);
    let log_format = source.parsed("log_format", LogFormat::read).unwrap_or(LogFormat::Text);
    let mut config = Config::new(path(args.data.as_ref(), &source, "data").unwrap_or(DATA.into()));
    set_limits(&mut config, &mut source);
    set_cluster(&mut config, args, &mut source);
    set_faktory(&mut config, args, &mut source);
    if let Err(mistakes) = config.validate() {
        mistakes.to_string().lines().for_each(|line| add_as_given(&mut source, line));
    }
    let mistakes = source.mistakes();
    let config = if mistakes.is_empty() { Ok(config) } else { Err(usage(mistakes.join("\n"))) };
    Ok(Settings { log, log_format, config })
}

/// Adds the options that are text. Paths may not be text, so that they are taken from the arguments
/// themselves.
fn add_typed(source: &mut Source, args: &ServeArgs) {
    let texts = [
        ("listen", &args.listen),
        ("shards", &args.shards),
        ("payload_max", &args.payload_max),
        ("memory_max", &args.memory_max),
        ("disk_reserve", &args.disk_reserve),
        ("connections_max", &args.connections_max),
        ("shutdown_grace", &args.shutdown_grace),
        ("peer", &args.peer),
        ("zone", &args.zone),
        ("advertise", &args.advertise),
        ("advertise_clients", &args.advertise_clients),
        ("replication", &args.replication),
        ("faktory", &args.faktory),
        ("log", &args.log),
        ("log_format", &args.log_format),
    ];
    for (key, text) in texts {
        source.typed(key, text.as_slice());
    }
    for (key, texts) in [("join", &args.join), ("allowed_hosts", &args.allowed_hosts)] {
        source.typed(key, texts);
    }
}

fn set_limits(config: &mut Config, source: &mut Source) {
    if let Some(listen) = source.parsed("listen", |text| values::address(text, 7400)) {
        config.listen = Some(listen);
    }
    config.shards = source.parsed("shards", |text| number(text, "a number from 1 to 4096"));
    if let Some(bytes) = source.parsed("payload_max", values::size) {
        config.payload_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    if let Some(bytes) = source.parsed("memory_max", values::size) {
        config.memory_bytes_max = bytes;
    }
    if let Some(bytes) = source.parsed("disk_reserve", values::size) {
        config.disk_reserve_bytes = bytes;
    }
    let connections = |text: &str| number(text, "a number of connections");
    if let Some(connections) = source.parsed("connections_max", connections) {
        config.connections_max = connections;
    }
    if let Some(grace) = source.parsed("shutdown_grace", values::duration) {
        config.shutdown_grace = grace;
    }
}

/// Sets the options of the cluster.
fn set_cluster(config: &mut Config, args: &ServeArgs, source: &mut Source) {
    let peer = source.parsed("peer", |text| values::address(text, 7401));
    (config.peer, config.peer_may_move) = (Some(peer.unwrap_or(PEER)), peer.is_none());
    config.join = source.list("join");
    config.zone = source.text("zone").unwrap_or_default();
    config.advertise = source.text("advertise");
    config.advertise_clients = source.text("advertise_clients");
    config.allowed_hosts = source.list("allowed_hosts");
    config.replication = source.parsed("replication", |text| number(text, "1, 3 or 5"));
    config.newest_copy = args.newest_copy;
    let secret = path(args.cluster_secret_file.as_ref(), source, "cluster_secret_file");
    match CLUSTER_SECRET.read(secret.as_deref()) {
        Ok(secret) => config.cluster_secret = secret,
        Err(problem) => source.mistake("cluster_secret_file", problem),
    }
}

/// Sets the options of the port for Faktory clients.
fn set_faktory(config: &mut Config, args: &ServeArgs, source: &mut Source) {
    let faktory = source.parsed("faktory", values::address_or_none);
    let AddressOrNone(address) = faktory.unwrap_or(AddressOrNone(Some(FAKTORY)));
    (config.faktory, config.faktory_may_move) = (address, faktory.is_none());
    let password = path(args.faktory_password_file.as_ref(), source, "faktory_password_file");
    match FAKTORY_PASSWORD.read(password.as_deref()) {
        Ok(password) => config.faktory_password = password,
        Err(problem) => source.mistake("faktory_password_file", problem),
    }
    let certificate = path(args.faktory_tls_cert.as_ref(), source, "faktory_tls_cert");
    let key = path(args.faktory_tls_key.as_ref(), source, "faktory_tls_key");
    let alone = |given: &str, missing: &str| {
        format!(
            "{given} is set and {missing} is not; a certificate needs its key: set both or none"
        )
    };
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            config.faktory_tls = Some(FaktoryTls { certificate, key });
        }
        (Some(_), None) => {
            source.mistake("faktory_tls_cert", alone("faktory_tls_cert", "faktory_tls_key"));
        }
        (None, Some(_)) => {
            source.mistake("faktory_tls_key", alone("faktory_tls_key", "faktory_tls_cert"));
        }
        (None, None) => {}
    }
}

/// A path of the command line, or else of the file.
fn path(typed: Option<&PathBuf>, source: &Source, key: &'static str) -> Option<PathBuf> {
    typed.cloned().or_else(|| source.path(key))
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not {what}"))
}

/// Adds a mistake that the server found, under the name that the user gave: a mistake in
/// `payload_bytes_max` is shown as one in `--payload-max`, or in `payload_max` of the file.
fn add_as_given(source: &mut Source, mistake: &str) {
    let own_names = [("payload_bytes_max", "payload_max"), ("memory_bytes_max", "memory_max")];
    let (name, rest) = mistake.split_once(' ').unwrap_or((mistake, ""));
    let key = own_names.iter().find(|(own, _)| *own == name).map_or(name, |(_, key)| key);
    let text = match KEYS.iter().any(|(known, _)| *known == key) {
        true => format!("{} {rest}", source.name(key)),
        false => mistake.to_owned(),
    };
    source.mistake(key, text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::fs;

    fn config(args: &ServeArgs) -> Result<Config> {
        read(args).unwrap().config
    }

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
    fn every_mistake_is_reported_at_once_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskyard.toml");
        let line =
            "taskyard serve --shards 9999 --listen 7400 --zone a --shutdown-grace 5 --config";
        let line = format!("{line} {}", file.display());
        let error_of = |text: &str| {
            fs::write(&file, text).unwrap();
            let error = config(&args(&line)).unwrap_err().to_string();
            error.replace(&file.display().to_string(), "FILE")
        };
        let check = |text: &str, mistakes: &[&str]| {
            let typed = [
                "--listen: \"7400\" has no host; write 127.0.0.1:7400 for this machine alone",
                "--shards is 9999; it must be 1 to 4096",
                "--shutdown-grace: \"5\" is not a duration",
            ];
            let error = error_of(text);
            let lines: Vec<&str> = error.lines().collect();
            assert_eq!(lines.len(), 3 + mistakes.len(), "{text}: {error}");
            for part in typed {
                assert!(lines[..3].iter().any(|line| line.starts_with(part)), "{part} in {error}");
            }
            for (part, line) in mistakes.iter().zip(&lines[3..]) {
                assert!(line.starts_with(part), "{part} in {error}");
            }
        };
        check(
            "listn = 1\n# nothing\npeer = \"many\"\nmemory_max = 1\npayload_max = \"1X\"\n\
             data = 5\nzone = 7\nlog = \"a=b=c\"\nlog_format = \"xml\"\njoin = [1]\n\
             connections_max = true\nreplication = 2\n",
            &[
                "FILE:1: listn: there is no such key; did you mean listen?",
                "FILE:3: peer: \"many\" has no port; write many:7401",
                "FILE:4: memory_max is 1; it must be at least",
                "FILE:5: payload_max: \"1X\" is not a size",
                "FILE:6: data: 5 is no text; put it in quotes",
                "FILE:7: zone: 7 is no text; put it in quotes",
                "FILE:8: log: \"a=b=c\" is not a valid log filter",
                "FILE:9: log_format: \"xml\" is neither text nor json",
                "FILE:10: join: its list has a value that is no text: 1",
                "FILE:11: connections_max: true is neither a whole number nor a text",
                "FILE:12: replication is 2; it must be 1, 3 or 5",
            ],
        );
        check(
            "a = \npeer = \"x\"\npeer = \"y\"\nzone = \"b\nlistne = 1\n[more]\nb = 1\n",
            &[
                "FILE:1: ",
                "FILE:2: peer: \"x\" has no port",
                "FILE:3: duplicate key",
                "FILE:4: ",
                "FILE:5: listne: there is no such key; did you mean listen?",
                "FILE:6: more: there is no such key; there are data, listen",
            ],
        );
        assert!(!folder.path().join("5").exists());
    }

    #[test]
    fn the_log_is_set_by_the_file_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskyard.toml");
        fs::write(&file, "log = \"warn\"\nlog_format = \"json\"\nshards = 0\n").unwrap();
        let line = format!("taskyard serve --config {}", file.display());
        let settings = read(&args(&line)).unwrap();
        assert_eq!((settings.log.as_deref(), settings.log_format), (Some("warn"), LogFormat::Json));
        // The format is known even if another setting is wrong, so that the mistake is logged in
        // it.
        assert!(settings.config.is_err());
        let settings = read(&args(&format!("{line} --log debug --log-format text"))).unwrap();
        assert_eq!(
            (settings.log.as_deref(), settings.log_format),
            (Some("debug"), LogFormat::Text)
        );
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
            ["did you mean join?", "that is no text", "replication is 2", "\"x\"", "--advertise is"]
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
        for part in ["or write none", "faktory_tls_cert is not; a certificate needs its key"] {
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
        assert!(error.contains(".toml:1: memory_max is 1048576"), "{error}");
    }
}
