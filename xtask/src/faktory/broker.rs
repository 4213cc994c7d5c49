//! A broker for foreign tests: on its own data directory and free ports, and stopped with its
//! value.

use crate::step::Step;
use anyhow::{Context, Result, bail};
use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

pub(super) struct Broker {
    process: Child,
    /// Where Faktory clients connect: HOST:PORT.
    address: String,
    /// The address for all other clients.
    url: String,
    _data: TempDir,
}

impl Broker {
    pub(super) fn start(program: &Path, more: &[&OsStr], password: Option<&str>) -> Result<Broker> {
        let data = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command.args(["serve", "--json", "--log", "warn", "--disk-reserve", "1M"]);
        command.args(["--listen", "127.0.0.1:0", "--peer", "127.0.0.1:0"]);
        command.args(["--faktory", "127.0.0.1:0"]).args(more);
        command.arg("--data").arg(data.path().join("data"));
        if let Some(password) = password {
            command.env("TASKYARD_FAKTORY_PASSWORD", password);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().context("can't start the broker")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the broker has no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let (address, url) = (String::new(), String::new());
        let mut broker = Broker { process, address, url, _data: data };
        let told: serde_json::Value = serde_json::from_str(&line).context("the broker ended")?;
        let url = told["faktory"].as_str().context("the broker has no port for Faktory")?;
        broker.address = url.rsplit('/').next().unwrap_or_default().to_string();
        broker.url = told["url"].as_str().context("the broker has no port for others")?.to_string();
        Ok(broker)
    }

    /// The number of all pushed jobs.
    pub(super) fn pushed(&self, program: &Path) -> Result<u64> {
        let mut list = Command::new(program);
        list.args(["queue", "list", "--json", "--server", &self.url]).stdin(Stdio::null());
        let listed = list.output().context("can't list the broker's queues")?;
        let mut pushed = 0;
        for line in String::from_utf8(listed.stdout)?.lines() {
            let queue: serde_json::Value = serde_json::from_str(line)?;
            pushed += queue["enqueued_total"].as_u64().context("a queue without a count")?;
        }
        Ok(pushed)
    }

    /// The value of `FAKTORY_URL` for clients.
    pub(super) fn url(&self, password: Option<&str>) -> String {
        let Broker { address, .. } = self;
        password
            .map_or(format!("tcp://{address}"), |password| format!("tcp://:{password}@{address}"))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A self-signed certificate for this machine. The crate's test accepts only signatures of P-384.
pub(super) fn make_certificate(certificate: &Path, key: &Path) -> Result<()> {
    fs::create_dir_all(certificate.parent().context("a certificate lies in a folder")?)?;
    let openssl = Step::new(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -sha384 -nodes -days 7 \
         -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1",
    );
    let openssl = openssl.arg("-out", certificate).arg("-keyout", key);
    if !openssl.succeeds_silently(Path::new(".")) {
        bail!("no certificate can be made; install openssl, or see: {}", openssl.shown());
    }
    Ok(())
}
