//! Values of the command line: parses and prints durations, sizes, moments and pairs.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use taskyard::Timestamp;

/// Units of time, the longest first, so that a duration is shown with as few units as possible.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses `250ms`, `10s`, `5m`, `1h30m`, `2d`. A bare number is refused, because its unit would be
/// a guess.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration: write it like 250ms, 10s, 5m, 1h30m or 2d");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let ms = number.checked_mul(*unit_ms).ok_or_else(bad)?;
        total = total.checked_add(ms).ok_or_else(bad)?;
        rest = after;
    }
    if text.is_empty() { Err(bad()) } else { Ok(Duration::from_millis(total)) }
}

/// An address to listen on, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressOrNone(pub(crate) Option<SocketAddr>);

/// Parses `127.0.0.1:7419` or `none`.
pub(crate) fn address_or_none(text: &str) -> Result<AddressOrNone, String> {
    if text == "none" {
        return Ok(AddressOrNone(None));
    }
    let address = address(text, 7419).map_err(|problem| format!("{problem}; or write none"))?;
    Ok(AddressOrNone(Some(address)))
}

/// Parses an address to listen on, or a host name. The error says what to write, with `port` as the
/// example.
pub(crate) fn address(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let no_host = |port: &str| {
        format!(
            "{text:?} has no host; write 127.0.0.1:{port} for this machine alone, or 0.0.0.0:{port} \
             for every network that it is in"
        )
    };
    let no_port = |address: &dyn fmt::Display| format!("{text:?} has no port; write {address}");
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Err(no_port(&SocketAddr::new(ip, port)));
    }
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    if let Some((scheme, rest)) = text.split_once("://") {
        return Err(format!("{text:?} is a URL; write {rest} without {scheme}://"));
    }
    match text.rsplit_once(':') {
        None if is_port(text) => Err(no_host(text)),
        None if text.is_empty() => Err(no_host(&port.to_string())),
        None => Err(no_port(&format_args!("{text}:{port}"))),
        Some((_, wrong)) if !is_port(wrong) => {
            Err(format!("{wrong:?} is not a port; write a number from 0 to 65535 after the colon"))
        }
        Some(("" | "*", port)) => Err(no_host(port)),
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => {
            Err(format!("{text:?} has no brackets around the host; write [{host}]:{port}"))
        }
        Some((host, _)) => resolved(text, host),
    }
}

/// The address of a host name: the IPv4 address if there is one, as for `localhost`, because
/// clients try that address by default.
fn resolved(text: &str, host: &str) -> Result<SocketAddr, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if !host.chars().all(is_fine) {
        return Err(format!("{host:?} is not a host name; write a host name or an IP address"));
    }
    let no_address = |why: &dyn fmt::Display| {
        format!("{host:?} has no address here ({why}); write an IP address, such as 127.0.0.1")
    };
    let found: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| no_address(&error))?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| no_address(&"none is known"))
}

/// The shortest exact way to write a duration, in whole milliseconds.
pub(crate) fn show_duration(duration: Duration) -> String {
    let mut left = millis(duration);
    if left == 0 {
        return "0".to_owned();
    }
    let mut text = String::new();
    for (unit, ms) in UNITS {
        if left >= ms {
            text += &format!("{}{unit}", left / ms);
            left %= ms;
        }
    }
    text
}

/// Roughly how long: the two largest units at most, for tables.
pub(crate) fn show_roughly(duration: Duration) -> String {
    let ms = millis(duration);
    let (first, second) = match ms {
        0..1_000 => return format!("{ms}ms"),
        1_000..10_000 => return format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        10_000..60_000 => return format!("{}s", ms / 1_000),
        60_000..3_600_000 => (2, 3),
        3_600_000..86_400_000 => (1, 2),
        86_400_000.. => (0, 1),
    };
    let (long, short) = (UNITS[first], UNITS[second]);
    match ms % long.1 / short.1 {
        0 => format!("{}{}", ms / long.1, long.0),
        rest => format!("{}{}{rest}{}", ms / long.1, long.0, short.0),
    }
}

/// A number with its noun: "1 task", "2 tasks".
pub(crate) fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Prints long numbers in groups of three: 12,345.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Whole milliseconds, at most the largest number.
pub(crate) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

const SIZES: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// Parses `4096`, `64K`, `512M`, `2G`: powers of 1024; `KiB`, `MB` and so on mean the same.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size: write it like 4096, 64K, 512M or 2G");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let unit = unit.to_ascii_uppercase();
    let factor = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => 1,
        letter => SIZES.iter().find(|(name, _)| *name == letter).ok_or_else(bad)?.1,
    };
    number.checked_mul(factor).ok_or_else(bad)
}

/// A size in the largest unit that keeps a digit before the point.
pub(crate) fn show_size(bytes: u64) -> String {
    match SIZES.iter().find(|(_, factor)| bytes >= *factor) {
        None => format!("{bytes} B"),
        Some((unit, factor)) => format!("{:.1} {unit}iB", bytes as f64 / *factor as f64),
    }
}

/// Parses a moment in RFC 3339 into milliseconds since the Unix epoch.
pub(crate) fn moment(text: &str) -> Result<u64, String> {
    // A moment before 1970 counts as 1970, because both have passed.
    Ok(milliseconds(text)?.try_into().unwrap_or(0))
}

/// A moment, or how long ago it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    Ago(Duration),
    At(u64),
}

pub(crate) fn since(text: &str) -> Result<Since, String> {
    let bad = || {
        format!(
            "{text:?} is neither how long ago, like 10m or 2d, nor a moment like \
             2031-05-01T09:30:00Z"
        )
    };
    let ago = duration(text).ok().map(Since::Ago);
    ago.or_else(|| moment(text).ok().map(Since::At)).ok_or_else(bad)
}

impl Since {
    /// The moment, seen from `now`.
    pub(crate) fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Since::Ago(ago) => Timestamp::from_millis(now.as_millis().saturating_sub(millis(ago))),
            Since::At(at) => Timestamp::from_millis(at),
        }
    }
}

/// Like `moment`, but refuses a moment before 1970, for uses where the exact moment matters.
pub(crate) fn moment_since_1970(text: &str) -> Result<u64, String> {
    let early = |_| format!("{text} is before 1970: choose a later moment");
    milliseconds(text)?.try_into().map_err(early)
}

fn milliseconds(text: &str) -> Result<i64, String> {
    let moment: jiff::Timestamp = text.parse().map_err(|_| match is_in_9999(text) {
        true => format!("{text} is more than ten years ahead: choose a nearer moment"),
        false => format!("{text:?} is not a moment: write it like 2031-05-01T09:30:00Z"),
    })?;
    Ok(moment.as_millisecond())
}

/// Moments that the library cannot represent: the last day of the year 9999, which people write for
/// "never".
fn is_in_9999(text: &str) -> bool {
    let same_in_2001 = text.strip_prefix("9999").map(|rest| format!("2001{rest}"));
    same_in_2001.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok())
}

/// Parses a whole number from 1.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    let bad = || format!("{text:?} is not a whole number from 1");
    text.parse().ok().filter(|number| *number > 0).ok_or_else(bad)
}

/// Parses a word that is not empty. An empty word is most often a shell variable that is not set,
/// and means a missing option on the wire.
pub(crate) fn word(text: &str) -> Result<String, String> {
    match text {
        "" => Err("it is empty: is a shell variable not set? give a value, or leave it out".into()),
        text => Ok(text.to_owned()),
    }
}

/// Standard base64 with its padding.
pub(crate) fn base64(text: &str) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(text).map_err(|error| format!("payload_base64: {error}"))
}

/// Parses `name=value`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not a pair: write it like name=value")),
    }
}

/// Parses a rate such as `10/s`, `90/m`, `1000/h`, `5/d` into a number per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let bad = || format!("{text:?} is not a rate: write it like 10/s, 0.5/s, 90/m or 1000/h");
    let (number, unit) = text.split_once('/').ok_or_else(bad)?;
    let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
    let number: f64 = number.parse().map_err(|_| bad())?;
    if !number.is_finite() || number <= 0.0 {
        return Err(bad());
    }
    Ok(number * 1_000.0 / *unit_ms as f64)
}

/// Parses `key=3`; the key may be empty.
pub(crate) fn weight(text: &str) -> Result<(String, u32), String> {
    let bad = || format!("{text:?} is not a key and its weight: write it like acme=3");
    let (key, weight) = text.rsplit_once('=').ok_or_else(bad)?;
    Ok((key.to_owned(), weight.parse().map_err(|_| bad())?))
}

/// Parses `name` or `name:weight`.
pub(crate) fn weighted(text: &str) -> Result<(String, Option<u32>), String> {
    match text.rsplit_once(':') {
        None => Ok((word(text)?, None)),
        Some((name, weight)) => match weight.parse() {
            Ok(weight @ 1..) => Ok((word(name)?, Some(weight))),
            _ => Err(format!("{text:?}: the weight after the colon must be a number from 1")),
        },
    }
}

/// The most similar word, if one is similar enough.
pub(crate) fn nearest<'a>(
    typed: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A word with more than a third of its letters changed is another word.
    let letters_max = |word: &str| (typed.chars().count().max(word.chars().count()) / 3).min(3);
    let near = known.into_iter().map(|word| (distance(typed, word), word));
    near.filter(|(distance, word)| *distance <= letters_max(word)).min().map(|(_, word)| word)
}

/// The number of letters to add, drop, change or swap with a neighbour to turn one word into the
/// other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // For each prefix of `from`: its distance from each prefix of `to`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let before = &rows[i - 1];
            let change = before[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = change.min(before[j] + 1).min(row[j - 1] + 1);
            let is_swap = i > 1
                && j > 1
                && (from[i - 2], from[i - 1]) == (to[j - 1], to[j - 2])
                && from[i - 1] != to[j - 1];
            if is_swap {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_name_and_is_else_refused_with_what_to_write() {
        for (text, found) in [
            ("127.0.0.1:7400", "127.0.0.1:7400"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:7400", "127.0.0.1:7400"),
            ("LOCALHOST:0", "127.0.0.1:0"),
        ] {
            assert_eq!(address(text, 1), Ok(found.parse().unwrap()), "{text}");
        }
        for (text, part) in [
            ("7401", "has no host; write 127.0.0.1:7401 for this machine alone, or 0.0.0.0:7401"),
            (":7401", "write 127.0.0.1:7401"),
            ("*:7401", "write 127.0.0.1:7401"),
            ("", "write 127.0.0.1:7400"),
            ("localhost", "has no port; write localhost:7400"),
            ("10.0.0.5", "write 10.0.0.5:7400"),
            ("::1", "has no port; write [::1]:7400"),
            ("1:2:3:4:5:6:7:8:7400", "write [1:2:3:4:5:6:7:8]:7400"),
            ("http://127.0.0.1:7400", "write 127.0.0.1:7400 without http://"),
            ("localhost:70000", "\"70000\" is not a port"),
            ("localhost:", "\"\" is not a port"),
            ("a b:7400", "\"a b\" is not a host name"),
            // Longer than a name can be, so that no name server is asked.
            (&format!("{}:7400", "x".repeat(64)), "has no address here"),
        ] {
            let problem = address(text, 7400).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
        assert_eq!(address_or_none("none"), Ok(AddressOrNone(None)));
        assert!(address_or_none("no").unwrap_err().ends_with("write no:7419; or write none"));
    }

    #[test]
    fn durations_are_read_and_shown() {
        for (text, ms) in [
            ("0", 0),
            ("250ms", 250),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("1s500ms", 1_500),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
            assert_eq!(show_duration(Duration::from_millis(ms)), text);
        }
        for text in ["", "10", "s", "-5s", "1.5h", "10 s", "5x", "99999999999999999999s", "1h30"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rough_durations_have_two_units_at_most() {
        for (ms, text) in [
            (7, "7ms"),
            (1_500, "1.5s"),
            (59_999, "59s"),
            (60_000, "1m"),
            (90_500, "1m30s"),
            (3_660_000, "1h1m"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(show_roughly(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 2].map(|n| count(n, "task")), ["0 tasks", "1 task", "2 tasks"]);
    }

    #[test]
    fn long_numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 65_536), ("512MiB", 512 << 20), ("2gb", 2 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "12X", "-1", "1.5G", "99999999999T"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!(show_size(100), "100 B");
        assert_eq!(show_size(1_536), "1.5 KiB");
        assert_eq!(show_size(3 << 30), "3.0 GiB");
    }

    #[test]
    fn moments_are_utc_milliseconds() {
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Ok(1_500));
        assert_eq!(moment("1970-01-01T02:00:00+02:00"), Ok(0));
        assert_eq!(moment("1950-01-01T00:00:00Z"), Ok(0), "as past as 1970");
        assert_eq!(moment_since_1970("1970-01-01T00:00:00Z"), Ok(0));
        let told = moment_since_1970("1969-12-31T23:59:59.999Z").unwrap_err();
        assert_eq!(told, "1969-12-31T23:59:59.999Z is before 1970: choose a later moment");
        assert_eq!(moment_since_1970("soon"), moment("soon"));
        for text in ["", "tomorrow", "2031-05-01", "2031-05-01T09:30:00"] {
            assert!(moment(text).unwrap_err().contains("is not a moment"), "{text}");
        }
        let never = moment("9999-12-31T23:59:59Z").unwrap_err();
        assert!(never.contains("more than ten years ahead"), "{never}");
    }

    #[test]
    fn distance_counts_letters() {
        for (from, to, letters) in
            [("", "abc", 3), ("listn", "listen", 1), ("data", "data", 0), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(from, to), letters, "{from} {to}");
        }
    }

    #[test]
    fn the_word_that_was_meant_is_near() {
        let known = ["fetch", "publish", "resize"];
        assert_eq!(nearest("fetsh", known), Some("fetch"));
        assert_eq!(nearest("pubish", known), Some("publish"));
        // Two swapped letters are one change.
        assert_eq!(nearest("mial", ["mall2", "mail", "calls"]), Some("mail"));
        assert_eq!(nearest("download", known), None);
        // A word of three letters with three changes is another word.
        assert_eq!(nearest("abc", ["xyz", "a", "ab"]), Some("ab"));
        assert_eq!(nearest("b", ["a"]), None);
        assert_eq!(nearest("abcd", ["abxy"]), None);
    }

    #[test]
    fn pairs_and_weights_are_split() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(pair("a").is_err() && pair("=b").is_err());
        assert_eq!(weighted("mail"), Ok(("mail".into(), None)));
        assert_eq!(weighted("mail:3"), Ok(("mail".into(), Some(3))));
        assert!(weighted("mail:0").is_err() && weighted("mail:x").is_err());
        assert!(weighted("").is_err() && weighted(":3").is_err());
    }
}
