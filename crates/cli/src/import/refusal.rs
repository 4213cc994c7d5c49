//! Why Taskyard refuses a job, and whether the reason concerns this job alone.

use taskyard_server::limits::FAKTORY_LINE_BYTES_MAX;

use super::job::Job;

/// A push is one line: its verb, a space and the job.
pub(super) const JOB_BYTES_MAX: usize = FAKTORY_LINE_BYTES_MAX - "PUSH \r\n".len();
/// The beginnings of answers about the job and not about the server: its moments, its form, its
/// size.
const ABOUT_THE_JOB: [&str; 4] = ["expires_at ", "invalid ", "jobs ", "payload has "];

/// A refusal of Taskyard, or one that is known before the push.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Another job holds its unique key.
    NotUnique,
    /// The job belongs to a batch, and batches are not moved.
    InBatch { batch: String, message: String },
    /// The job is longer than a line may be.
    TooLong { bytes: usize },
    /// Another reason about this job, in the server's words.
    OfTheJob { message: String },
    /// A reason that may have nothing to do with the job, in the server's words.
    OfTheServer { message: String },
}

impl Refusal {
    /// The refusal in a server's answer to a push of `job`.
    pub(super) fn of(job: &Job, word: &str, message: String) -> Refusal {
        match (word, job.batch()) {
            ("NOTUNIQUE", _) => Refusal::NotUnique,
            ("ERR", Some(batch)) => Refusal::InBatch { batch: batch.to_owned(), message },
            ("ERR", None) if ABOUT_THE_JOB.iter().any(|start| message.starts_with(start)) => {
                Refusal::OfTheJob { message }
            }
            ("ERR", None) => Refusal::OfTheServer { message },
            _ => Refusal::OfTheJob { message: format!("{word} {message}") },
        }
    }

    /// Whether the same push may succeed later, and the next job may be refused too.
    pub(super) fn is_of_the_server(&self) -> bool {
        matches!(self, Refusal::OfTheServer { .. })
    }

    pub(super) fn code(&self) -> &'static str {
        match self {
            Refusal::NotUnique => "not_unique",
            Refusal::InBatch { .. } => "batch_not_moved",
            Refusal::TooLong { .. } | Refusal::OfTheJob { .. } | Refusal::OfTheServer { .. } => {
                "refused"
            }
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Refusal::NotUnique => "another job with the same type and arguments exists".to_owned(),
            Refusal::InBatch { batch, message } => format!(
                "it belongs to batch {batch}: {message}; batches are not moved; let the old server \
                 finish this one"
            ),
            Refusal::TooLong { bytes } => format!(
                "it has {bytes} bytes, and Taskyard accepts {JOB_BYTES_MAX}; let the old server's \
                 workers run it"
            ),
            Refusal::OfTheJob { message } | Refusal::OfTheServer { message } => message.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_answer_that_names_nothing_of_the_job_is_the_servers() {
        let alone = r#"{"jid":"abcdefgh"}"#;
        let of_a_batch = r#"{"jid":"abcdefgh","custom":{"bid":"b-1"}}"#;
        for (json, word, message, is_of_the_server) in [
            (alone, "ERR", "the disk is almost full", true),
            (alone, "ERR", "queue mail holds its limit of 3 tasks; enqueue again later", true),
            (
                alone,
                "ERR",
                "expires_at 2020-01-01T00:00:00Z is not after the time it may run",
                false,
            ),
            (alone, "ERR", "invalid timestamp for 'at': \"x\"", false),
            (alone, "ERR", "jobs must have a jobtype parameter", false),
            (alone, "ERR", "payload has 9 bytes, this broker takes 8; store it elsewhere", false),
            (alone, "NOTUNIQUE", "Job not unique", false),
            (alone, "ODD", "who knows", false),
            (of_a_batch, "ERR", "no such batch", false),
        ] {
            let job = Job::read(json.as_bytes()).unwrap();
            let refusal = Refusal::of(&job, word, message.to_owned());
            assert_eq!(
                refusal.is_of_the_server(),
                is_of_the_server,
                "{word} {message}: {refusal:?}"
            );
        }
    }
}
