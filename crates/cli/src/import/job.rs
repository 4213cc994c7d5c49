//! The fields of a job that the import needs. It never reads the others.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

/// The default reservation of a fetched job.
const RESERVE_FOR: Duration = Duration::from_secs(1_800);
/// The shortest reservation.
const RESERVE_FOR_MIN: Duration = Duration::from_secs(60);

/// The needed fields of a job. A field of an unexpected type counts as absent.
#[derive(Deserialize)]
pub(super) struct Job {
    #[serde(default)]
    jid: Value,
    #[serde(default)]
    queue: Value,
    #[serde(default)]
    reserve_for: Value,
    #[serde(default)]
    retry: Value,
    #[serde(default)]
    custom: Custom,
}

#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Custom {
    Object {
        #[serde(default)]
        bid: Value,
    },
    Other(serde::de::IgnoredAny),
    #[default]
    None,
}

impl Job {
    /// Parses a job.
    pub(super) fn read(json: &[u8]) -> Result<Job, String> {
        let job: Job = serde_json::from_slice(json).map_err(|error| format!("no job: {error}"))?;
        match job.jid.as_str() {
            Some(_) => Ok(job),
            None => Err("a job without an id".to_owned()),
        }
    }

    pub(super) fn jid(&self) -> &str {
        self.jid.as_str().unwrap_or_default()
    }

    pub(super) fn queue(&self) -> &str {
        self.queue.as_str().unwrap_or("default")
    }

    /// The job's batch.
    pub(super) fn batch(&self) -> Option<&str> {
        match &self.custom {
            Custom::Object { bid } => bid.as_str(),
            Custom::Other(_) | Custom::None => None,
        }
    }

    /// How long the old server keeps the job reserved if it is not acknowledged.
    pub(super) fn reserved_for(&self) -> Duration {
        match self.reserve_for.as_u64() {
            None | Some(0) => RESERVE_FOR,
            Some(seconds) => Duration::from_secs(seconds).max(RESERVE_FOR_MIN),
        }
    }

    /// Whether the old server drops the job after that time.
    pub(super) fn is_dropped_then(&self) -> bool {
        self.retry.as_i64() == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Job {
        Job::read(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    #[test]
    fn needed_fields_are_found_and_others_may_be_anything() {
        let job = read(
            r#"{"jid":"abcdefgh","queue":"mail","args":[12345678901234567890123,1e999],"reserve_for":90,
                "retry":0,"custom":{"bid":"b-1","other":[{}]},"more":null}"#,
        );
        assert_eq!((job.jid(), job.queue(), job.batch()), ("abcdefgh", "mail", Some("b-1")));
        assert_eq!((job.reserved_for().as_secs(), job.is_dropped_then()), (90, true));
    }

    #[test]
    fn absent_fields_have_the_defaults_of_the_old_server() {
        for json in [
            r#"{"jid":"abcdefgh"}"#,
            r#"{"jid":"abcdefgh","queue":null,"reserve_for":0,"retry":null,"custom":null}"#,
            r#"{"jid":"abcdefgh","reserve_for":"x","retry":-1,"custom":[1]}"#,
            r#"{"jid":"abcdefgh","custom":{"bid":7}}"#,
        ] {
            let job = read(json);
            assert_eq!((job.queue(), job.batch()), ("default", None), "{json}");
            assert_eq!(
                (job.reserved_for().as_secs(), job.is_dropped_then()),
                (1_800, false),
                "{json}"
            );
        }
        assert_eq!(read(r#"{"jid":"abcdefgh","reserve_for":5}"#).reserved_for().as_secs(), 60);
    }

    #[test]
    fn an_invalid_job_is_refused() {
        for (json, words) in
            [("{", "no job"), ("{}", "without an id"), (r#"{"jid":5}"#, "without an id")]
        {
            assert!(
                Job::read(json.as_bytes()).err().is_some_and(|error| error.contains(words)),
                "{json}"
            );
        }
    }
}
