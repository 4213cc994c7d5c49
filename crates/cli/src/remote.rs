//! The broker of a command, and the errors when no broker answers.

use std::{
    fmt,
    future::{Future, IntoFuture},
    io::IsTerminal,
    pin::pin,
    time::Duration,
};

use anyhow::Result;
use taskyard::Client;

use crate::{
    args::Common,
    log,
    output::{Colour, Output, indented, may_colour, paint, safe},
};

/// The timeout of a first answer. A reachable broker answers sooner, and a person waits no longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longer than an election takes. A cluster without a majority after this time lacks nodes, and the
/// person who asks should know.
const NO_QUORUM_TIMEOUT: Duration = Duration::from_secs(5);

/// After this long, a waiting person learns the reason.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A broker that answered, and the form of the output.
pub(crate) struct Remote {
    servers: Vec<String>,
    pub(crate) client: Client,
    pub(crate) output: Output,
}

impl Remote {
    pub(crate) async fn connect(common: &Common) -> Result<Remote> {
        let output = Output::new(common.json);
        let servers = common.server.clone();
        Ok(Remote { servers, client: connect(common).await?, output })
    }

    /// Prints an error, and goes on.
    pub(crate) fn complain(&self, error: &anyhow::Error) {
        Complaint::of(error, &self.servers).print(self.output.is_json());
    }

    /// Waits for an answer while the client retries; prints a message if that takes long.
    pub(crate) async fn patiently<F: IntoFuture>(&self, answer: F) -> F::Output {
        let servers = self.servers.join(", ");
        or_say(SILENCE_MAX, answer.into_future(), || {
            self.output.say(format_args!("no answer from {servers} yet; still trying"));
        })
        .await
    }
}

async fn or_say<F: Future>(patience: Duration, answer: F, say: impl FnOnce()) -> F::Output {
    let mut answer = pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = tokio::time::sleep(patience) => say(),
    }
    answer.await
}

/// A client whose broker has answered.
pub(crate) async fn connect(common: &Common) -> Result<Client> {
    let mut builder = Client::builder(&common.server)
        .connect_timeout(CONNECT_TIMEOUT)
        .no_quorum_timeout(NO_QUORUM_TIMEOUT);
    if let Some(token) = &common.token {
        builder = builder.token(token);
    }
    Ok(builder.connect().await?)
}

/// A command line that is well formed but makes no sense: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error of [`Usage`].
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// An error about one of several items. Adds the item's name if the broker's message lacks it.
pub(crate) fn about(error: taskyard::Error, noun: &str, id: &str) -> anyhow::Error {
    let is_named = error.to_string().contains(id);
    let error = anyhow::Error::new(error);
    if is_named { error } else { error.context(format!("{noun} {id}")) }
}

/// An error in the form for a person or for a script.
pub(crate) struct Complaint {
    pub(crate) code: String,
    pub(crate) text: String,
    pub(crate) exit_code: u8,
}

impl Complaint {
    /// Prints the error to stderr.
    pub(crate) fn print(&self, json: bool) {
        if json {
            eprintln!("{}", serde_json::json!({ "code": self.code, "detail": self.text }));
        } else if log::is_json() {
            log::json_error(&self.code, &self.text);
        } else {
            let colours = may_colour() && std::io::stderr().is_terminal();
            let text = safe(&self.text, false);
            eprintln!("{} {}", paint(colours, Colour::Red, "error:"), indented(&text, 2));
        }
    }

    /// Adds the broker and the next step to an error.
    pub(crate) fn of(error: &anyhow::Error, servers: &[String]) -> Complaint {
        if let Some(Usage(text)) = error.downcast_ref() {
            let code = "invalid_argument".to_owned();
            return Complaint { code, text: text.clone(), exit_code: 2 };
        }
        let servers = servers.join(", ");
        let text = format!("{error:#}");
        let Some(refused) = error.downcast_ref::<taskyard::Error>() else {
            return Complaint { code: "failed".to_owned(), text, exit_code: 1 };
        };
        let text = match refused.code() {
            "unavailable" if !was_answered(refused) => format!(
                "no broker answers at {servers}: start one with `taskyard serve`, or say where it \
                 is with --server or TASKYARD_URL ({text})"
            ),
            "unauthenticated" => format!("{text}; give a token with --token or TASKYARD_TOKEN"),
            "outcome_unknown" => format!("{text} (broker {servers})"),
            _ => text,
        };
        // Invalid names, ids and moments are mistakes in the command line, whether this program or
        // the broker finds them.
        let exit_code = if refused.code() == "invalid_argument" { 2 } else { 1 };
        Complaint { code: refused.code().to_owned(), text, exit_code }
    }
}

/// A broker answered that it cannot serve the call now.
fn was_answered(error: &taskyard::Error) -> bool {
    matches!(error, taskyard::Error::Unavailable { answered: true, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    fn complaint(error: &anyhow::Error) -> Complaint {
        Complaint::of(error, &["http://here:7400".to_owned()])
    }

    #[tokio::test]
    async fn a_long_wait_is_explained() {
        let (said, answer) = tokio::sync::oneshot::channel();
        // The message itself sends the answer, so that the test shows that it is printed.
        let answered = or_say(Duration::ZERO, answer, || said.send(7).unwrap()).await;
        assert_eq!(answered.unwrap(), 7);
        or_say(SILENCE_MAX, std::future::ready(()), || panic!("nothing to say")).await;
    }

    #[test]
    fn usage_exits_with_2_and_the_rest_with_1() {
        let refused = complaint(&usage("name a queue"));
        assert_eq!((refused.exit_code, refused.text.as_str()), (2, "name a queue"));
        let bad_name = taskyard::Error::Invalid("no such name".to_owned());
        assert_eq!(complaint(&bad_name.into()).exit_code, 2);
        let (code, message) = ("unimplemented".to_owned(), "no such call".to_owned());
        let older_server = taskyard::Error::Rejected { code, message };
        assert_eq!(complaint(&older_server.into()).exit_code, 1);
        let failed = complaint(&anyhow::anyhow!("no such file"));
        assert_eq!((failed.exit_code, failed.code.as_str()), (1, "failed"));
    }

    #[test]
    fn a_thing_is_named_once() {
        for (message, text) in [
            ("task 7 is already succeeded", "task 7 is already succeeded"),
            ("no majority", "task 7: no majority"),
        ] {
            let (code, message) = ("conflict".to_owned(), message.to_owned());
            let error = about(taskyard::Error::Rejected { code, message }, "task", "7");
            let complaint = complaint(&error);
            assert_eq!((complaint.text.as_str(), complaint.exit_code), (text, 1));
        }
    }

    #[test]
    fn a_silent_broker_is_named_with_what_to_do() {
        let error = taskyard::Error::Unavailable {
            code: "unavailable".to_owned(),
            message: "connection refused".to_owned(),
            answered: false,
        };
        let complaint = complaint(&Err::<(), _>(error).context("task 1").unwrap_err());
        assert_eq!(complaint.exit_code, 1);
        for part in ["http://here:7400", "taskyard serve", "--server", "connection refused"] {
            assert!(complaint.text.contains(part), "{}", complaint.text);
        }
    }

    #[test]
    fn a_broker_that_answers_is_not_said_to_be_silent() {
        let message = "node 3 did not answer".to_owned();
        let code = "unavailable".to_owned();
        let error = taskyard::Error::Unavailable { code, message, answered: true };
        let complaint = complaint(&error.into());
        assert_eq!((complaint.exit_code, &*complaint.text), (1, "node 3 did not answer"));
    }
}
