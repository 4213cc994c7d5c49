//! Occurrences compared with an independent source and with the documents.

use super::*;

/// All of 2024 for many zones and expressions, made by the script beside it.
const YEAR: &str = include_str!("../../tests/fixtures/schedule_year.txt");
const YEAR_BEGIN: u64 = 1_704_067_200;
const YEAR_END: u64 = 1_735_689_600;

fn cron(expression: &str, timezone: &str) -> Result<Timetable, Error> {
    Timetable::new(&Rhythm::Cron { expression, timezone }, None, None)
}

/// A moment such as 2024-03-31T01:00Z.
fn at(text: &str) -> Timestamp {
    let moment: jiff::Timestamp = text.parse().unwrap();
    Timestamp(moment.as_millisecond().try_into().unwrap())
}

/// One line of the fixture: zone, expression, occurrences in seconds.
fn line(line: &str) -> (&str, &str, Vec<u64>) {
    let mut parts = line.split('|').map(str::trim);
    let mut part = || parts.next().expect("zone | expression | first | differences");
    let (zone, expression, first) = (part(), part(), part());
    let mut occurrences: Vec<u64> = first.parse().into_iter().collect();
    for run in part().split_whitespace() {
        let (difference, count) = run.split_once('x').unwrap();
        for _ in 0..count.parse().unwrap() {
            let difference: u64 = difference.parse().unwrap();
            occurrences.push(occurrences.last().unwrap() + difference);
        }
    }
    (zone, expression, occurrences)
}

#[test]
fn a_year_in_many_zones_is_what_an_independent_source_computes() {
    let mut zones = std::collections::BTreeSet::new();
    for (zone, expression, expected) in YEAR.lines().map(line) {
        zones.insert(zone);
        let timetable = cron(expression, zone).unwrap();
        let found = timetable.after(Timestamp(YEAR_BEGIN * 1_000 - 1));
        let found: Vec<u64> =
            found.map(|at| at.0 / 1_000).take_while(|&at| at < YEAR_END).collect();
        let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert_eq!(differs, None, "{expression} in {zone}");
        assert_eq!(found.len(), expected.len(), "{expression} in {zone}");
    }
    assert!(zones.len() >= 20, "{zones:?}");
}

#[test]
fn backwards_finds_what_forwards_finds() {
    for (zone, expression, expected) in YEAR.lines().map(line) {
        let timetable = cron(expression, zone).unwrap();
        for pair in expected.windows(2) {
            let [earlier, later] = [pair[0], pair[1]].map(|at| Timestamp(at * 1_000));
            let before = Timestamp(later.0 - 1);
            assert_eq!(timetable.last_until(before), Some(earlier), "{expression} in {zone}");
            assert_eq!(timetable.last_until(later), Some(later), "{expression} in {zone}");
        }
    }
}

#[test]
fn a_time_that_the_clock_skips_fires_at_the_end_of_the_gap_and_once() {
    // At 01:00Z on that day the clock of Berlin goes from 02:00 to 03:00.
    for (expression, expected) in [
        ("30 2 * * *", ["2024-03-30T01:30Z", "2024-03-31T01:00Z", "2024-04-01T00:30Z"]),
        ("0,15,30 2 * * *", ["2024-03-30T01:30Z", "2024-03-31T01:00Z", "2024-04-01T00:00Z"]),
        ("0 3 * * *", ["2024-03-30T02:00Z", "2024-03-31T01:00Z", "2024-04-01T01:00Z"]),
        ("30 */2 31 3 *", ["2024-03-30T23:30Z", "2024-03-31T01:00Z", "2024-03-31T02:30Z"]),
        ("30 * * * *", ["2024-03-31T00:30Z", "2024-03-31T01:30Z", "2024-03-31T02:30Z"]),
    ] {
        let timetable = cron(expression, "Europe/Berlin").unwrap();
        let expected = expected.map(at);
        let found: Vec<Timestamp> = timetable.after(Timestamp(expected[0].0 - 1)).take(3).collect();
        assert_eq!(found, expected, "{expression}");
    }
}

#[test]
fn a_time_that_the_clock_repeats_fires_the_first_time_unless_every_hour_is_meant() {
    // At 01:00Z on that day the clock of Berlin goes from 03:00 back to 02:00.
    for (expression, expected) in [
        ("30 2 * * *", ["2024-10-26T00:30Z", "2024-10-27T00:30Z", "2024-10-28T01:30Z"]),
        ("0 2,3 27 10 *", ["2024-10-27T00:00Z", "2024-10-27T02:00Z", "2025-10-27T01:00Z"]),
        ("30 * * * *", ["2024-10-27T00:30Z", "2024-10-27T01:30Z", "2024-10-27T02:30Z"]),
        ("*/40 0-23 27 10 *", ["2024-10-27T00:00Z", "2024-10-27T00:40Z", "2024-10-27T01:00Z"]),
    ] {
        let timetable = cron(expression, "Europe/Berlin").unwrap();
        let expected = expected.map(at);
        let found: Vec<Timestamp> = timetable.after(Timestamp(expected[0].0 - 1)).take(3).collect();
        assert_eq!(found, expected, "{expression}");
    }
}

#[test]
fn invalid_expressions_are_refused_with_the_reason() {
    for (expression, told) in [
        ("", "it has 0 fields; give 5 (minute hour day month weekday) or 6 (second first)"),
        ("* * * *", "it has 4 fields"),
        ("0 0 1 1 * 2030 *", "it has 7 fields"),
        ("@reboot", "unknown macro; there are @yearly, @annually, @monthly"),
        ("61 * * * *", "minute \"61\": number out of bounds; give 0 to 59"),
        ("61 0 * * * *", "second \"61\": number out of bounds; give 0 to 59"),
        ("0 25 * * *", "hour \"25\": number out of bounds; give 0 to 23"),
        ("0 0 32 * *", "day \"32\": number out of bounds; give 1 to 31"),
        ("0 0 * 13 *", "month \"13\": number out of bounds; give 1 to 12 or JAN to DEC"),
        ("0 0 * * 9", "weekday \"9\": number out of bounds; give 0 to 7 or SUN to SAT"),
        ("0 0 * * FUNDAY", "weekday \"FUNDAY\": it contains illegal character"),
        ("5-1 * * * *", "minute \"5-1\": range out of bounds"),
        ("*/0 * * * *", "minute \"*/0\": step cannot be zero"),
        ("a b c d e", "minute \"a\": it contains illegal character"),
    ] {
        let error = cron(expression, "UTC").unwrap_err();
        let text = error.to_string();
        assert_eq!(error.code(), "invalid_argument");
        let head = format!("cron {expression:?}: ");
        assert!(text.starts_with(&head) && text.contains(told), "{expression}: {text}");
        assert!(!text.contains("Cron") && !text.ends_with('.'), "{text}");
    }
}

#[test]
fn an_expression_that_never_fires_is_refused_by_name() {
    let now = at("2026-01-01T00:00Z");
    for expression in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 * 31 2 *"] {
        let error = cron(expression, "Europe/Berlin").unwrap().first_after(now).unwrap_err();
        let told = format!("cron {expression:?} does not fire within ten years");
        assert!(error.to_string().starts_with(&told), "{error}");
    }
    let leap_day = cron("0 0 29 2 *", "UTC").unwrap();
    assert_eq!(leap_day.first_after(now).unwrap(), at("2028-02-29T00:00Z"));
    let before_a_long_wait = at("2096-03-01T00:00Z");
    assert_eq!(leap_day.first_after(before_a_long_wait).unwrap(), at("2104-02-29T00:00Z"));
}

#[test]
fn names_macros_and_the_extensions_of_the_library_are_understood() {
    let now = at("2026-01-01T00:00:30Z");
    for (expression, next) in [
        ("@hourly", "2026-01-01T01:00Z"),
        ("@Daily", "2026-01-02T00:00Z"),
        ("@midnight", "2026-01-02T00:00Z"),
        ("@weekly", "2026-01-04T00:00Z"),
        ("@monthly", "2026-02-01T00:00Z"),
        ("@yearly", "2027-01-01T00:00Z"),
        ("0 9 * feb mon", "2026-02-02T09:00Z"),
        ("0 9 * * 7", "2026-01-04T09:00Z"),
        ("*/10 * * * * *", "2026-01-01T00:00:40Z"),
        ("0 0 L * *", "2026-01-31T00:00Z"),
        ("0 0 * * FRI#2", "2026-01-09T00:00Z"),
        ("0 0 * * 5L", "2026-01-30T00:00Z"),
        ("0 0 17W * *", "2026-01-16T00:00Z"),
    ] {
        let timetable = cron(expression, "UTC").unwrap();
        assert_eq!(timetable.next_after(now), Some(at(next)), "{expression}");
    }
}

#[test]
fn an_interval_counts_from_its_start_or_from_1970() {
    let every = |ms, start_at| Timetable::new(&Rhythm::Every { ms }, start_at, None).unwrap();
    let half_minute = every(30_000, None);
    assert_eq!(
        half_minute.next_after(at("2026-01-01T00:00:29.5Z")),
        Some(at("2026-01-01T00:00:30Z"))
    );
    assert_eq!(
        half_minute.next_after(at("2026-01-01T00:00:30Z")),
        Some(at("2026-01-01T00:01:00Z"))
    );
    assert_eq!(
        half_minute.last_until(at("2026-01-01T00:00:59Z")),
        Some(at("2026-01-01T00:00:30Z"))
    );
    let start = at("2026-01-01T00:00:07Z");
    let from_start = every(60_000, Some(start));
    assert_eq!(from_start.next_after(Timestamp(0)), Some(start));
    assert_eq!(from_start.next_after(start), Some(Timestamp(start.0 + 60_000)));
    assert_eq!(from_start.last_until(Timestamp(start.0 - 1)), None);
    assert_eq!(every(u64::MAX, None).next_after(Timestamp(u64::MAX)), None);
    let error = every(limits::HORIZON_MS_MAX + 2, None).first_after(Timestamp(1)).unwrap_err();
    assert!(error.to_string().contains("more than ten years"), "{error}");
}

#[test]
fn nothing_fires_outside_of_start_and_end() {
    let daily = Rhythm::Cron { expression: "0 12 * * *", timezone: "UTC" };
    let (start, end) = (at("2026-01-02T12:00Z"), at("2026-01-04T11:59Z"));
    let timetable = Timetable::new(&daily, Some(start), Some(end)).unwrap();
    let found: Vec<Timestamp> = timetable.after(Timestamp(0)).collect();
    assert_eq!(found, [start, at("2026-01-03T12:00Z")]);
    assert_eq!(timetable.last_until(at("2030-01-01T00:00Z")), Some(at("2026-01-03T12:00Z")));
    assert_eq!(timetable.last_until(at("2026-01-02T11:00Z")), None);
    let error = timetable.first_after(at("2026-01-03T12:00Z")).unwrap_err().to_string();
    assert!(error.contains("no occurrence up to its end_at 2026-01-04T11:59:00.000Z"), "{error}");
}
