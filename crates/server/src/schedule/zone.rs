//! Time zones by their IANA name, from data that is compiled in.

use crate::Error;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::sync::LazyLock;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The zone of a name. The error for an unknown name proposes the most similar one.
pub(super) fn find(name: &str) -> Result<TimeZone, Error> {
    ZONES.get(name).map_err(|_| {
        let shown: String = name.chars().take(64).collect();
        let advice = match most_similar(name) {
            Some(most_similar) => format!("did you mean {most_similar}?"),
            None => "give an IANA name such as Europe/Berlin or UTC".into(),
        };
        Error::Invalid(format!("timezone {shown:?} is not known; {advice}"))
    })
}

/// The most similar known name: with the same city, or with a few letters changed.
fn most_similar(name: &str) -> Option<String> {
    let wanted = folded(name);
    if wanted.is_empty() || wanted.len() > 64 {
        return None;
    }
    let city = |zone: &str| zone.rsplit('/').next().map(folded).unwrap_or_default();
    let wanted_city = city(name);
    let known = || ZONES.available().map(|zone| zone.as_str().to_owned());
    if let Some(zone) = known().find(|zone| city(zone) == wanted_city) {
        return Some(zone);
    }
    let distances = known().map(|zone| (distance(&wanted, &folded(&zone)), zone));
    let (distance, zone) = distances.min()?;
    (distance <= 3).then_some(zone)
}

/// Removes case, and characters that people write in different ways.
fn folded(name: &str) -> String {
    let letters = name.chars().filter(|c| !" _-".contains(*c));
    letters.flat_map(char::to_lowercase).collect()
}

/// How many letters must be added, removed or changed to turn one word into the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_zone_is_refused_with_the_most_similar_one() {
        for (name, told) in [
            ("Europe/Berln", "did you mean Europe/Berlin?"),
            ("berlin", "did you mean Europe/Berlin?"),
            ("America/New York", "did you mean America/New_York?"),
            ("Asia/Berlin", "did you mean Europe/Berlin?"),
            ("+02:00", "give an IANA name such as Europe/Berlin or UTC"),
            ("", "give an IANA name such as Europe/Berlin or UTC"),
            ("../../etc/passwd", "give an IANA name such as Europe/Berlin or UTC"),
        ] {
            let error = find(name).unwrap_err().to_string();
            assert!(error.ends_with(&format!("is not known; {told}")), "{name}: {error}");
        }
        assert!(find("Europe/Berlin").is_ok() && find("utc").is_ok());
    }
}
