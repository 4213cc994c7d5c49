//! A Faktory server for tests: jobs in memory, the verbs that an import needs, and faults on
//! demand.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::yard::until;

/// The jobs of a server, and its faults.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) queues: BTreeMap<String, VecDeque<String>>,
    /// By job id.
    pub(crate) reserved: BTreeMap<String, String>,
    pub(crate) acked: Vec<String>,
    /// All pushed jobs, each job id once.
    pub(crate) pushed: Vec<String>,
    known: BTreeSet<String>,
    /// The sizes of sets in the answer to INFO.
    pub(crate) sets: BTreeMap<&'static str, u64>,
    pub(crate) description: &'static str,
    /// Refusals: a push that contains the first text gets the second text as its reply.
    pub(crate) refuses: Vec<(&'static str, &'static str)>,
    /// The server accepts this many pushes and closes the connection instead of answering.
    pub(crate) unanswered: usize,
    /// Paused queues: INFO counts their jobs, FETCH hands out none.
    pub(crate) paused: BTreeSet<String>,
    /// Scheduled jobs, which become due after `due_after` calls of INFO.
    pub(crate) scheduled: Vec<String>,
    pub(crate) due_after: u32,
    /// The delay of each answer to a push.
    pub(crate) push_for: Duration,
    /// While this is true, pushes get no answer.
    pub(crate) holds_pushes: bool,
    /// While this is true, INFO gets no answer.
    pub(crate) holds_info: bool,
    pub(crate) infos_held: usize,
    /// The answer to BEAT after the first fetched job.
    pub(crate) orders: Option<&'static str>,
    connections: usize,
    /// The server accepts only this many connections in all.
    pub(crate) connections_max: Option<usize>,
    /// After the first push, the server refuses this many connections.
    pub(crate) full_for: usize,
}

/// A server that runs until dropped.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Fake {
    fn start(state: State) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake =
            Fake { address: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)) };
        let served = fake.clone();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let fake = served.clone();
                // A client that disconnects ends only its own thread.
                thread::spawn(move || fake.serve(&socket.unwrap()));
            }
        });
        fake
    }

    /// A server with these jobs in these queues.
    pub(crate) fn with_jobs(jobs: impl IntoIterator<Item = (&'static str, String)>) -> Fake {
        let mut state = State { description: "Faktory", ..State::default() };
        for (queue, job) in jobs {
            state.queues.entry(queue.to_owned()).or_default().push_back(job);
        }
        Fake::start(state)
    }

    /// An empty server that calls itself Taskyard.
    pub(crate) fn target() -> Fake {
        Fake::start(State { description: "Taskyard 0.1.0", ..State::default() })
    }

    pub(crate) fn url(&self) -> String {
        format!("tcp://{}", self.address)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The numbers of acknowledged and reserved jobs.
    pub(crate) fn acked_and_reserved(&self) -> (usize, usize) {
        let state = self.state();
        (state.acked.len(), state.reserved.len())
    }

    fn serve(&self, mut socket: &TcpStream) -> Option<()> {
        if self.state().is_full() {
            socket.write_all(b"-ERR too many connections: 3\r\n").ok()?;
            return None;
        }
        socket.write_all(b"+HI {\"v\":2}\r\n").ok()?;
        let mut lines = BufReader::new(socket).lines();
        while let Some(Ok(line)) = lines.next() {
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let reply = match verb {
                "PUSH" => self.push(rest)?,
                "FETCH" => self.fetch(rest),
                "ACK" => {
                    let jid = jid(rest);
                    let mut state = self.state();
                    state.reserved.remove(&jid);
                    state.acked.push(jid);
                    "+OK\r\n".to_owned()
                }
                "INFO" => self.info(),
                "BEAT" => self.beat(),
                _ => "+OK\r\n".to_owned(),
            };
            socket.write_all(reply.as_bytes()).ok()?;
        }
        Some(())
    }

    fn beat(&self) -> String {
        let Some(orders) = self.state().orders else { return "+OK\r\n".to_owned() };
        until("a job was fetched", || self.acked_and_reserved() != (0, 0));
        bulk(orders)
    }

    fn info(&self) -> String {
        if self.state().holds_info {
            self.state().infos_held += 1;
            until("INFO may be answered", || !self.state().holds_info);
        }
        bulk(&self.state().info().to_string())
    }

    fn push(&self, job: &str) -> Option<String> {
        let push_for = self.state().push_for;
        thread::sleep(push_for);
        until("pushes may be answered", || !self.state().holds_pushes);
        let mut state = self.state();
        if let Some((_, reply)) = state.refuses.iter().find(|(text, _)| job.contains(text)) {
            return Some((*reply).to_owned());
        }
        if state.known.insert(jid(job)) {
            state.pushed.push(job.to_owned());
        }
        if state.unanswered > 0 {
            state.unanswered -= 1;
            return None;
        }
        Some("+OK\r\n".to_owned())
    }

    fn fetch(&self, queues: &str) -> String {
        let mut state = self.state();
        let State { queues: all, paused, .. } = &mut *state;
        let mut names = queues.split(' ').filter(|name| !paused.contains(*name));
        let job = names.find_map(|name| all.get_mut(name)?.pop_front());
        let Some(job) = job else {
            drop(state);
            thread::sleep(Duration::from_millis(20));
            return "$-1\r\n".to_owned();
        };
        state.reserved.insert(jid(&job), job.clone());
        bulk(&job)
    }
}

impl State {
    /// Counts a new connection. Returns whether the server refuses it.
    fn is_full(&mut self) -> bool {
        self.connections += 1;
        if !self.pushed.is_empty() && self.full_for > 0 {
            self.full_for -= 1;
            return true;
        }
        self.connections_max.is_some_and(|max| self.connections > max)
    }

    fn info(&mut self) -> Value {
        if !self.scheduled.is_empty() {
            match self.due_after {
                0 => self
                    .queues
                    .entry("later".to_owned())
                    .or_default()
                    .extend(self.scheduled.drain(..)),
                _ => self.due_after -= 1,
            }
            self.sets.insert("scheduled", self.scheduled.len() as u64);
        }
        let queues: BTreeMap<&String, usize> =
            self.queues.iter().map(|(name, jobs)| (name, jobs.len())).collect();
        json!({
            "faktory": {"queues": queues, "sets": self.sets, "tasks": {}},
            "server": {"description": self.description},
        })
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn jid(job: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Named {
        jid: String,
    }
    serde_json::from_str::<Named>(job).unwrap().jid
}
