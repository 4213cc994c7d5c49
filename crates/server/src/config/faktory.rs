//! The part of the configuration that is about Faktory clients, and its checks before the node
//! listens.

use super::Config;
use std::path::PathBuf;

/// PEM files for TLS with Faktory clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaktoryTls {
    /// The certificate, and the chain from it to one that clients trust.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

impl Config {
    pub(super) fn check_faktory(&self, mistakes: &mut Vec<String>) {
        if let Some(faktory) = self.faktory.filter(|faktory| faktory.port() != 0) {
            for (name, other) in [("listen", self.listen), ("peer", self.peer)] {
                if other == Some(faktory) {
                    mistakes.push(format!(
                        "faktory is {faktory}, and so is {name}; each needs a port of its own"
                    ));
                }
            }
        }
        if let Some(tls) = &self.faktory_tls {
            for (name, path) in [("certificate", &tls.certificate), ("key", &tls.key)] {
                if path.as_os_str().is_empty() {
                    mistakes.push(format!("faktory_tls has no file for its {name}; name one"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn faktory_clients_get_a_port_of_their_own() {
        for (faktory, peer, mistake) in [
            (None, None, None),
            (Some("127.0.0.1:7419"), None, None),
            (Some("127.0.0.1:0"), Some("127.0.0.1:0"), None),
            (Some("127.0.0.1:7400"), None, Some("faktory is 127.0.0.1:7400, and so is listen")),
            (Some("[::1]:1"), Some("[::1]:1"), Some("faktory is [::1]:1, and so is peer")),
        ] {
            let mut config = Config::new("data");
            config.faktory = faktory.map(|address| address.parse().unwrap());
            config.peer = peer.map(|address| address.parse().unwrap());
            let found = config.validate().err().map(|error| error.0);
            match mistake {
                None => assert_eq!(found, None, "{faktory:?}"),
                Some(mistake) => assert!(found.unwrap().contains(mistake), "{mistake}"),
            }
        }
    }

    #[test]
    fn a_password_without_an_address_is_allowed_and_never_shown() {
        let mut config = Config::new("data");
        config.faktory_password = Secret(b"sesame".to_vec());
        assert!(config.validate().is_ok());
        assert!(!format!("{config:?}").contains("115, 101"));
        config.faktory_tls = Some(FaktoryTls { certificate: "a".into(), key: PathBuf::new() });
        assert!(config.validate().unwrap_err().0.contains("no file for its key"));
    }
}
