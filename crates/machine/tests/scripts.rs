//! Life stories of tasks, as text: each file under `scripts/` is one story, command by command with
//! its full answer and what happened.
//! `UPDATE=1 cargo test -p taskyard-machine --test machine scripts` writes the answers anew; read
//! the difference before it is kept.
//!
//! A line starts with the time in seconds, and with `on N` if it is for another shard than 1:
//!
//! ```text
//! 0 enqueue mail send priority=9
//!   t1
//!   * enqueued t1; ready t1
//! ```

mod parse;
mod show;

use parse::Line;
use std::collections::BTreeMap;
use std::{fs, path::Path};
use taskyard_machine::*;

/// The shards of one story, each made when it is first named.
#[derive(Default)]
struct Story {
    shards: BTreeMap<u16, Machine>,
    events: Vec<Event>,
}

impl Story {
    fn shard(&mut self, shard: u16) -> &mut Machine {
        let identity = Identity { incarnation: 1, shard: ShardId(shard), shards: 8 };
        self.shards.entry(shard).or_insert_with(|| Machine::new(identity))
    }

    /// The answer to one line, as the lines that follow it.
    fn tell(&mut self, line: &Line<'_>) -> Vec<String> {
        self.events.clear();
        let mut answer = match line.words[..] {
            ["show", what] => vec![show::what(self.shard(line.shard), what)],
            ["why", what] => vec![show::why(self.shard(line.shard), what, line.now)],
            ["carry"] => self.carry(line),
            _ => {
                let answer = self.send(line.shard, line.now, &line.command());
                show::answer(&answer)
            }
        };
        if !self.events.is_empty() {
            let facts: Vec<String> = self.events.iter().map(show::event).collect();
            answer.push(format!("* {}", facts.join("; ")));
        }
        answer
    }

    fn send(
        &mut self,
        shard: u16,
        now: Timestamp,
        command: &Command<'_>,
    ) -> Result<Outcome, Rejection> {
        let mut builder = EntryBuilder::new(now);
        assert!(builder.push(&EncodedCommand::new(command)));
        let bytes = builder.finish();
        let entry = Entry::decode(&bytes).expect("it was just built");
        let mut events = Vec::new();
        let machine = self.shard(shard);
        let mut answers = machine.apply(&entry, &mut NoPayloads, &mut events);
        machine.check().unwrap_or_else(|broken| panic!("after {command:?}: {broken}"));
        self.events.extend(events);
        answers.remove(0)
    }

    /// Delivers what a shard owes the others, as their leaders do.
    fn carry(&mut self, line: &Line<'_>) -> Vec<String> {
        let mut told = Vec::new();
        for outgoing in self.shard(line.shard).outgoing(100) {
            let Outgoing { to, sequence, .. } = outgoing;
            let deliver = Command::Deliver(outgoing.deliver(ShardId(line.shard), line.now));
            let taken = self.send(to.0, line.now, &deliver);
            told.push(format!(
                "message {sequence} to shard {to}: {}",
                show::answer(&taken).join(" ")
            ));
            let delivered = Command::Delivered(Delivered { to, up_to: sequence });
            self.send(line.shard, line.now, &delivered).expect("it is never refused");
        }
        told
    }
}

/// The story with its answers written anew.
fn retell(text: &str) -> String {
    let mut story = Story::default();
    let mut told = String::new();
    for line in text.lines() {
        let answer = line.starts_with(' ');
        if !answer {
            told.push_str(line.trim_end());
            told.push('\n');
        }
        if !answer && !line.is_empty() && !line.starts_with('#') {
            for answer in story.tell(&Line::parse(line)) {
                told.push_str(&format!("  {answer}\n"));
            }
        }
    }
    told
}

#[test]
fn every_story_gets_its_written_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let files = fs::read_dir(folder).expect("the stories are here");
    let mut stories: Vec<_> = files
        .map(|file| file.expect("the folder is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    stories.sort();
    assert!(!stories.is_empty());
    for path in stories {
        let text = fs::read_to_string(&path).expect("a story is text");
        let told = retell(&text);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &told).expect("a story can be rewritten");
            continue;
        }
        for (number, (expected, found)) in text.lines().zip(told.lines()).enumerate() {
            assert_eq!(found, expected, "{}:{}", path.display(), number + 1);
        }
        assert_eq!(told.lines().count(), text.lines().count(), "{}", path.display());
    }
}
