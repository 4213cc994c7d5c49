//! URLs of Faktory servers: `tcp://:password@host:port`.

use std::{fmt, str::FromStr};

/// The default port of Faktory clients.
const PORT: u16 = 7419;
const FORM: &str = "write it like tcp://:PASSWORD@host:7419, or tcp://host:7419 without a password";

/// A server's address and password. Shown without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    password: Option<String>,
}

impl Url {
    /// The host without brackets, for the system's resolver.
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let Some(rest) = text.strip_prefix("tcp://") else {
            return Err(match text.starts_with("tcp+tls://") {
                true => "TLS is not spoken here: let a tunnel such as stunnel end it on this machine, and \
                         name the tunnel's end with tcp://"
                    .to_owned(),
                false => format!("it does not begin with tcp://; {FORM}"),
            });
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let password = match user.split_once(':') {
            Some((_, password)) => Some(decoded(password)?).filter(|password| !password.is_empty()),
            None if user.is_empty() => None,
            None => return Err(format!("the password needs a colon before it; {FORM}")),
        };
        let (host, port) = match place.rsplit_once(':') {
            // An address in brackets has colons of its own.
            Some((host, port)) if !port.contains(']') => {
                let port = port
                    .parse()
                    .map_err(|_| format!("the text after the host is not a port; {FORM}"))?;
                (host, port)
            }
            _ => (place, PORT),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = !host.is_empty() && !host.contains([':', '/', ' ', '[', ']']);
        match bare {
            Some(address) => Ok(Url { host: address.to_owned(), port, password }),
            None if is_name => Ok(Url { host: host.to_owned(), port, password }),
            None => Err(format!("the address has no valid host; {FORM}")),
        }
    }
}

/// Decodes `%40` and so on.
fn decoded(text: &str) -> Result<String, String> {
    let bad =
        || "the password has a % that is not followed by two digits; write % as %25".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|c| c.is_ascii_hexdigit()));
        bytes.push(u8::from_str_radix(digits.ok_or_else(bad)?, 16).map_err(|_| bad())?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the password is not UTF-8".to_owned())
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Url { host, port, .. } = self;
        if host.contains(':') {
            write!(f, "tcp://[{host}]:{port}")
        } else {
            write!(f, "tcp://{host}:{port}")
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_faktory_clients_read_them() {
        for (text, host, port, password) in [
            ("tcp://localhost", "localhost", 7419, None),
            ("tcp://localhost:7420/", "localhost", 7420, None),
            ("tcp://:sesame@10.0.0.1:7419", "10.0.0.1", 7419, Some("sesame")),
            ("tcp://user:sesame@faktory.example", "faktory.example", 7419, Some("sesame")),
            ("tcp://:a%40b%3Ac%25@h:1", "h", 1, Some("a@b:c%")),
            ("tcp://:p@ss:w@h:1", "h", 1, Some("p@ss:w")),
            ("tcp://:@h", "h", 7419, None),
            ("tcp://[::1]:7421", "::1", 7421, None),
            ("tcp://:x@[fe80::2]", "fe80::2", 7419, Some("x")),
        ] {
            let url: Url = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((url.host_and_port(), url.password()), ((host, port), password), "{text}");
        }
    }

    #[test]
    fn an_invalid_url_is_refused_with_its_form() {
        for (text, words) in [
            ("localhost:7419", "tcp://"),
            ("http://localhost:7420", "tcp://"),
            ("tcp+tls://localhost", "stunnel"),
            ("tcp://", "no valid host"),
            ("tcp://:7419", "no valid host"),
            ("tcp://h:many", "is not a port"),
            ("tcp://h:70000", "is not a port"),
            ("tcp://::1:7419", "no valid host"),
            ("tcp://h/path:1", "no valid host"),
            ("tcp://sesame@h", "needs a colon"),
            ("tcp://:50%@h", "%25"),
            ("tcp://:5%+1@h", "%25"),
        ] {
            let error = text.parse::<Url>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url: Url = "tcp://:sesame@h:1".parse().unwrap();
        assert_eq!(format!("{url} {url:?}"), "tcp://h:1 tcp://h:1");
        assert_eq!("tcp://[::1]".parse::<Url>().unwrap().to_string(), "tcp://[::1]:7419");
        for text in [
            "tcp://:sesame@:1",
            "tcp://:sesame@h:x",
            "tcp://:ses%ame@h",
            "tcp://:sesame",
            "tcp://h:1:sesame",
            "tcp://:sesame@[h",
        ] {
            let error = text.parse::<Url>().expect_err(text);
            assert!(!error.contains("sesame") && !error.contains("ses%"), "{error}");
        }
    }
}
