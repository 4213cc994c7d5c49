//! The part of the crate `testcontainers` that the tests of the crate `faktory` use: a "container"
//! is a broker that lives as long as its handle. `TASKYARD` names the program.
//!
//! This file is not part of `xtask`: `cargo xtask faktory` writes it as a crate that replaces the
//! real one.

use std::{
    env, io,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

pub use core::{ContainerRequest, ReuseDirective};

/// An image of any name.
pub struct GenericImage;

impl GenericImage {
    pub fn new(_name: &str, _tag: &str) -> GenericImage {
        GenericImage
    }

    pub fn with_exposed_port(self, _port: core::ContainerPort) -> GenericImage {
        self
    }

    pub fn with_entrypoint(self, _entrypoint: &str) -> GenericImage {
        self
    }

    pub fn with_wait_for(self, _condition: core::WaitFor) -> GenericImage {
        self
    }
}

/// A broker that ends with this value.
pub struct ContainerAsync<I> {
    broker: Child,
    port: u16,
    _data: tempfile::TempDir,
    _image: I,
}

impl<I> ContainerAsync<I> {
    pub async fn ports(&self) -> io::Result<core::Ports> {
        Ok(core::Ports(self.port))
    }
}

impl<I> Drop for ContainerAsync<I> {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

pub mod core {
    use super::{Duration, GenericImage};

    #[derive(Clone, Copy)]
    pub struct ContainerPort;

    pub trait IntoContainerPort {
        fn tcp(self) -> ContainerPort;
    }

    impl IntoContainerPort for u16 {
        fn tcp(self) -> ContainerPort {
            ContainerPort
        }
    }

    pub struct WaitFor;

    impl WaitFor {
        pub fn message_on_stdout(_message: &str) -> WaitFor {
            WaitFor
        }
    }

    pub enum ReuseDirective {
        Always,
    }

    pub struct ContainerRequest<I>(pub(crate) I);

    pub trait ImageExt<I>: Sized {
        fn with_cmd<const N: usize>(self, command: [&str; N]) -> ContainerRequest<I>;
        fn with_startup_timeout(self, timeout: Duration) -> ContainerRequest<I>;
        fn with_reuse(self, reuse: ReuseDirective) -> ContainerRequest<I>;
        fn with_container_name(self, name: String) -> ContainerRequest<I>;
    }

    impl<T: Into<ContainerRequest<GenericImage>>> ImageExt<GenericImage> for T {
        fn with_cmd<const N: usize>(self, _command: [&str; N]) -> ContainerRequest<GenericImage> {
            self.into()
        }

        fn with_startup_timeout(self, _timeout: Duration) -> ContainerRequest<GenericImage> {
            self.into()
        }

        fn with_reuse(self, _reuse: ReuseDirective) -> ContainerRequest<GenericImage> {
            self.into()
        }

        fn with_container_name(self, _name: String) -> ContainerRequest<GenericImage> {
            self.into()
        }
    }

    impl From<GenericImage> for ContainerRequest<GenericImage> {
        fn from(image: GenericImage) -> Self {
            ContainerRequest(image)
        }
    }

    /// The only port that the tests ask for: the port of Faktory's protocol.
    pub struct Ports(pub(crate) u16);

    impl Ports {
        pub fn map_to_host_port_ipv4(&self, _port: u16) -> Option<u16> {
            Some(self.0)
        }
    }
}

pub mod runners {
    use super::{ContainerAsync, ContainerRequest, io};

    #[allow(async_fn_in_trait, reason = "one caller, in one test")]
    pub trait AsyncRunner<I> {
        async fn start(self) -> io::Result<ContainerAsync<I>>;
    }

    impl<I> AsyncRunner<I> for ContainerRequest<I> {
        async fn start(self) -> io::Result<ContainerAsync<I>> {
            super::start(self.0)
        }
    }
}

fn start<I>(image: I) -> io::Result<ContainerAsync<I>> {
    let program = env::var_os("TASKYARD").ok_or_else(|| io::Error::other("TASKYARD is not set"))?;
    let data = tempfile::tempdir()?;
    let mut command = Command::new(program);
    command.args(["serve", "--json", "--log", "warn", "--disk-reserve", "1M"]);
    command.args(["--listen", "127.0.0.1:0", "--peer", "127.0.0.1:0", "--faktory", "127.0.0.1:0"]);
    command.arg("--data").arg(data.path().join("data"));
    let mut broker = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let stdout = broker.stdout.take().ok_or_else(|| io::Error::other("it has no stdout"))?;
    BufReader::new(stdout).read_line(&mut line)?;
    let started: serde_json::Value = serde_json::from_str(&line)?;
    let port = started["faktory"].as_str().and_then(|url| url.rsplit(':').next()?.parse().ok());
    let port = port.ok_or_else(|| io::Error::other(line))?;
    Ok(ContainerAsync { broker, port, _data: data, _image: image })
}
