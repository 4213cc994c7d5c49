//! From a line of a story to a command.

use taskyard_machine::*;

/// Where a story's time begins: stories count in seconds from here.
pub(crate) const START: u64 = 1_700_000_000_000;

/// One line: when, on which shard, and what.
pub(crate) struct Line<'a> {
    pub(crate) now: Timestamp,
    pub(crate) shard: u16,
    pub(crate) words: Vec<&'a str>,
}

impl<'a> Line<'a> {
    pub(crate) fn parse(line: &'a str) -> Line<'a> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let now = Timestamp(START + ms(words.remove(0)));
        let mut shard = 1;
        if words[0] == "on" {
            shard = number(words[1]);
            words.drain(..2);
        }
        Line { now, shard, words }
    }

    pub(crate) fn command(&self) -> Command<'a> {
        let words = &self.words[1..];
        match self.words[0] {
            "enqueue" => {
                Command::Enqueue(Enqueue { queue: words[0], task: self.new_task(words[1]) })
            }
            "many" => Command::EnqueueMany(EnqueueMany {
                batch_id: self.option("batch").map(number),
                items: plain(words)
                    .map(|word| word.split_once(':').expect("QUEUE:TYPE"))
                    .map(|(queue, task_type)| Enqueue { queue, task: self.new_task(task_type) })
                    .collect(),
            }),
            "batch" => Command::EnqueueBatch(EnqueueBatch {
                batch_id: self.option("batch").map(number),
                queue: words[0],
                tasks: plain(&words[1..]).map(|task_type| self.new_task(task_type)).collect(),
            }),
            "stage" => Command::StageBatch(StageBatch {
                batch_id: number(self.option("batch").expect("batch=N")),
                queue: words[0],
                part: number(self.option("part").expect("part=N")),
                tasks: plain(&words[1..]).map(|task_type| self.new_task(task_type)).collect(),
            }),
            "commit" => Command::CommitBatch(CommitBatch {
                batch_id: number(words[0]),
                parts: number(words[1]),
            }),
            "claim" => self.claim(words[0]),
            "ack" => Command::Ack(Ack {
                task: self.task(words[0]),
                token: token(words[1]),
                result: self.option("result").map(str::as_bytes),
                follow_ups: self
                    .option("then")
                    .into_iter()
                    .map(|text| self.follow_up(text))
                    .collect(),
            }),
            "fail" => Command::Fail(self.fail(words)),
            "extend" => Command::Extend(Extend {
                task: self.task(words[0]),
                token: token(words[1]),
                lease_ms: self.option("lease").map(ms),
                progress: self
                    .option("progress")
                    .map(|percent| Progress { percent: number(percent), message: "" }),
                resume_state: self.option("resume").map(str::as_bytes),
            }),
            "renew" => Command::Renew(Renew {
                claims: words.chunks(2).map(|pair| (self.task(pair[0]), token(pair[1]))).collect(),
            }),
            "release" => {
                Command::Release(Release { task: self.task(words[0]), token: token(words[1]) })
            }
            "snooze" => Command::Snooze(Snooze {
                task: self.task(words[0]),
                token: token(words[1]),
                until: When::After { ms: ms(words[2]) },
                push_back_key: self.flag("push-back-key"),
            }),
            "cancel" => Command::Cancel(Cancel { task: self.task(words[0]) }),
            "kill" => Command::Kill(Kill { task: self.task(words[0]) }),
            "retry" => Command::Retry(Retry {
                task: self.task(words[0]),
                body: self
                    .option("payload")
                    .map(|text| Body { payload: text.as_bytes(), ..Body::default() }),
            }),
            "dead" => Command::Dead(self.dead(words)),
            "pause" => Command::PauseQueue(QueueCommand { queue: words[0] }),
            "resume" => Command::ResumeQueue(QueueCommand { queue: words[0] }),
            "purge" => Command::PurgeQueue(PurgeQueue {
                queue: words[0],
                before: EnqueueCut { next_sequence: u64::MAX, now: self.now },
                after: None,
            }),
            "delete" => Command::DeleteQueue(DeleteQueue {
                queue: words[0],
                version: self.option("version").map_or(0, number),
            }),
            "trim" => Command::TrimQueue(TrimQueue { queue: words[0], version: number(words[1]) }),
            "set" => Command::SetQueue(SetQueue { queue: words[0], settings: self.settings() }),
            "end-session" => Command::EndSession(EndSession {
                session: SessionId(number(words[0])),
                reason: match words[1] {
                    "goodbye" => SessionEnd::Goodbye,
                    "silence" => SessionEnd::Silence,
                    other => panic!("a session ends by goodbye or silence, not {other}"),
                },
                not_started: self.tasks("not-started"),
                keep: self.tasks("keep"),
            }),
            "flow" => Command::SubmitFlow(SubmitFlow {
                batch_id: self.option("batch").map(number),
                name: words[0],
                retention_ms: self.option("retention").map(ms),
                nodes: plain(&words[1..]).map(|word| self.node(word)).collect(),
            }),
            "add" => Command::AddFlowTasks(AddFlowTasks {
                flow: flow(words[0], self.shard),
                parent: words[1],
                nodes: plain(&words[2..]).map(|word| self.node(word)).collect(),
            }),
            "cancel-flow" => Command::CancelFlow(CancelFlow { flow: flow(words[0], self.shard) }),
            "retry-flow" => Command::RetryFlow(RetryFlow { flow: flow(words[0], self.shard) }),
            "tally" => Command::OpenTally(OpenTally {
                batch_id: self.option("batch").map(number),
                description: words[0],
                parent: self.option("below").map(|word| tally(word, self.shard)),
                complete: self.option("complete").map(|text| Box::new(self.follow_up(text))),
                success: self.option("success").map(|text| Box::new(self.follow_up(text))),
            }),
            "count" => Command::AddToTally(AddToTally {
                tally: tally(words[0], self.shard),
                batch_id: self.option("batch").map(number),
                tasks: plain(&words[1..]).map(|text| self.follow_up(text)).collect(),
            }),
            "reopen-tally" => {
                Command::ReopenTally(ReopenTally { tally: tally(words[0], self.shard) })
            }
            "commit-tally" => {
                Command::CommitTally(CommitTally { tally: tally(words[0], self.shard) })
            }
            "schedule" => self.schedule(words),
            "expire" => Command::ExpireDue,
            "begin-term" => Command::BeginTerm,
            other => panic!("unknown command {other}"),
        }
    }

    fn option(&self, key: &str) -> Option<&'a str> {
        let pairs = self.words.iter().filter_map(|word| word.split_once('='));
        pairs.filter(|(found, _)| *found == key).map(|(_, value)| value).next()
    }

    fn flag(&self, flag: &str) -> bool {
        self.words.contains(&flag)
    }

    fn new_task(&self, task_type: &'a str) -> NewTask<'a> {
        let moment = |text| Timestamp(START + ms(text));
        let run_at = match (self.option("delay"), self.option("run_at")) {
            (Some(delay), _) => When::After { ms: ms(delay) },
            (None, Some(at)) => When::At(moment(at)),
            (None, None) => When::Now,
        };
        NewTask {
            task_type,
            body: Body::default(),
            priority: self.option("priority").map(number),
            run_at,
            expires_at: self.option("expires").map(moment),
            request_id: self.option("request"),
            retry: self.option("attempts").map(|attempts| RetryPolicy {
                backoff: Backoff::Fixed { delay_ms: self.option("wait").map_or(0, ms) },
                max_attempts: number(attempts),
                jitter_thousandths: 0,
            }),
            timeout_ms: self.option("timeout").map(ms),
            lease_ms: self.option("lease").map(ms),
            discard_dead: self.flag("discard"),
            retention_ms: self.option("retention").map(ms),
            tags: self.option("tag").into_iter().collect(),
            fairness_key: self.option("key"),
            unique: self.option("unique").map(|key| Box::new(self.unique(key))),
        }
    }

    /// `unique=KEY`, with `until`, `window`, `conflict` and `debounce`.
    fn unique(&self, key: &'a str) -> Unique<'a> {
        let until = self.option("until").map(|word| match word {
            "start" => UniqueUntil::Start,
            "done" => UniqueUntil::Done,
            other => panic!("a key is held until start or done, not {other}"),
        });
        let on_conflict = self.option("conflict").map(|word| match word {
            "existing" => OnConflict::Existing,
            "replace" => OnConflict::Replace,
            "reject" => OnConflict::Reject,
            other => panic!("a conflict ends in existing, replace or reject, not {other}"),
        });
        Unique {
            key: key.into(),
            until,
            window_ms: self.option("window").map(ms),
            on_conflict: on_conflict.unwrap_or_default(),
            debounce_ms: self.option("debounce").map(ms),
        }
    }

    /// `claim a,b*3`: from a and b, b three times as often if drawn by weight; `types=send,render`.
    fn claim(&self, queues: &'a str) -> Command<'a> {
        let queues = queues.split(',').map(|queue| match queue.split_once('*') {
            Some((name, weight)) => ClaimQueue { name, weight: number(weight) },
            None => ClaimQueue { name: queue, weight: 1 },
        });
        Command::Claim(Claim {
            queues: queues.collect(),
            types: self.option("types").map_or(vec![], |types| types.split(',').collect()),
            weighted_seed: self.option("seed").map(number),
            tasks_max: self.option("max").map_or(1, number),
            bytes_max: u32::MAX,
            lease_ms: self.option("lease").map_or(30_000, ms),
            session: self.option("session").map(|session| SessionId(number(session))),
            number: self.option("number").map(|sequence| ClaimNumber {
                sequence: number(sequence),
                sending: self.option("sending").map_or(0, number),
            }),
            begun: false,
            worker: self.option("worker").unwrap_or("ann"),
        })
    }

    /// `schedule set NAME QUEUE TYPE next=N`, `schedule fire NAME 60 120 next=180`, and so on.
    fn schedule(&self, words: &[&'a str]) -> Command<'a> {
        let name = words[1];
        let moment = |text| Timestamp(START + ms(text));
        let next_run_at = self.option("next").map(moment);
        let from = self.option("from").map_or(Timestamp(0), moment);
        let revision = self.option("revision").map_or(1, number);
        let occurrences = || plain(&words[2..]).map(moment).collect();
        match words[0] {
            "set" => Command::SetSchedule(SetSchedule {
                name,
                spec: ScheduleSpec {
                    rhythm: Rhythm::Every { ms: self.option("every").map_or(60_000, ms) },
                    home: ShardId(self.option("home").map_or(self.shard, number)),
                    enqueue: Enqueue { queue: words[2], task: self.new_task(words[3]) },
                    overlap: word_of(&Overlap::WORDS, self.option("overlap")),
                    catch_up: word_of(&CatchUp::WORDS, self.option("catch_up")),
                    catch_up_window_ms: self.option("window").map_or(3_600_000, ms),
                    jitter_ms: self.option("jitter").map_or(0, ms),
                    start_at: None,
                    end_at: None,
                    remaining_runs: self.option("runs").map(number),
                },
                from,
                next_run_at: next_run_at.expect("next=N"),
            }),
            "fire" => Command::FireSchedule(FireSchedule {
                name,
                revision,
                occurrences: occurrences(),
                left_out: self.option("left_out").map_or(0, number),
                next_run_at,
            }),
            "remove" => Command::RemoveSchedule(RemoveSchedule { name }),
            "pause" => {
                let note = self.option("note").unwrap_or_default();
                Command::PauseSchedule(PauseSchedule { name, note })
            }
            "resume" => {
                Command::ResumeSchedule(ResumeSchedule { name, revision, from, next_run_at })
            }
            "trigger" => Command::TriggerSchedule(TriggerSchedule { name }),
            "backfill" => Command::BackfillSchedule(BackfillSchedule {
                name,
                revision,
                occurrences: occurrences(),
            }),
            other => panic!("unknown command schedule {other}"),
        }
    }

    /// `then=SHARD:QUEUE:TYPE`.
    fn follow_up(&self, text: &'a str) -> FollowUp<'a> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().expect("SHARD:QUEUE:TYPE");
        let home = ShardId(number(part()));
        FollowUp { home, enqueue: Enqueue { queue: part(), task: self.new_task(part()) } }
    }

    /// `NAME:SHARD:QUEUE:TYPE<a,b?,c!`: depends on a, on b whose failure is ignored, and on c,
    /// after whose failure it runs anyway.
    fn node(&self, text: &'a str) -> FlowNode<'a> {
        let (text, parents) = text.split_once('<').unwrap_or((text, ""));
        let mut parts = text.splitn(4, ':');
        let mut part = || parts.next().expect("NAME:SHARD:QUEUE:TYPE");
        let (name, home) = (part(), ShardId(number(part())));
        let enqueue = Enqueue { queue: part(), task: self.new_task(part()) };
        let parents = parents.split(',').filter(|parent| !parent.is_empty());
        let depends_on = parents.map(|parent| {
            let on_failure = match parent.chars().last() {
                Some('?') => OnFailure::Ignore,
                Some('!') => OnFailure::Run,
                _ => OnFailure::Fail,
            };
            Dependency { name: parent.trim_end_matches(['?', '!']), on_failure }
        });
        let depends_on = depends_on.collect();
        FlowNode { name, home, enqueue, depends_on, on_failure: OnFailure::Fail }
    }

    fn fail(&self, words: &[&'a str]) -> Fail<'a> {
        Fail {
            task: self.task(words[0]),
            token: token(words[1]),
            error: TaskError {
                error_type: self.option("error").unwrap_or("io"),
                message: "no route",
                backtrace: "",
            },
            retry_at: self.option("retry").map(|delay| When::After { ms: ms(delay) }),
            retryable: !self.flag("for-good"),
        }
    }

    fn dead(&self, words: &[&'a str]) -> DeadCommand<'a> {
        let action = match words[0] {
            "retry" => DeadAction::Retry,
            "discard" => DeadAction::Discard,
            other => panic!("dead letters are retried or discarded, not {other}"),
        };
        let ids: Vec<TaskId> = plain(&words[1..]).map(|word| self.task(word)).collect();
        if !ids.is_empty() {
            return DeadCommand { action, selection: Selection::Ids(ids) };
        }
        let filter = TaskFilter {
            queue: self.option("queue"),
            state: None,
            task_type: self.option("type"),
            error: self.option("error"),
            tag: self.option("tag"),
            flow: None,
        };
        let selection = Selection::Filter { filter, after: None, dead_before: None };
        DeadCommand { action, selection }
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings {
            max_length: self.option("max_length").map(number),
            dedup_window_ms: self.option("dedup_window").map(ms),
            retention_ms: self.option("retention").map(ms),
            retention_count: self.option("retention_count").map(number),
            dead_retention_ms: self.option("dead_retention").map(ms),
            dead_retention_count: self.option("dead_count").map(number),
            retry: None,
            timeout_ms: self.option("timeout").map(ms),
            concurrency: self.option("concurrency").map(number),
            rate: self.option("rate").map(rate),
            per_key: self.per_key(),
            weights: self
                .option("weights")
                .into_iter()
                .flat_map(|weights| weights.split(','))
                .map(|weight| weight.split_once('*').expect("KEY*WEIGHT"))
                .map(|(key, weight)| (key.into(), number(weight)))
                .collect(),
            ageing_ms: self.option("ageing").map(ms),
            spread: self.option("spread").map(number),
        }
    }

    fn per_key(&self) -> Option<PerKey> {
        let per_key = PerKey {
            concurrency: self.option("key_concurrency").map(number),
            rate: self.option("key_rate").map(rate),
        };
        (per_key != PerKey::default()).then_some(per_key)
    }

    fn tasks(&self, key: &str) -> Vec<TaskId> {
        let list = self.option(key).into_iter().flat_map(|list| list.split(','));
        list.map(|word| self.task(word)).collect()
    }

    /// `t3`: the third task of this shard; `t3@2`: made by shard 2 for this one.
    fn task(&self, word: &str) -> TaskId {
        task(word, self.shard)
    }
}

pub(crate) fn task(word: &str, shard: u16) -> TaskId {
    let name = word.strip_prefix('t').expect("tasks are t1, t2, ...");
    let (sequence, origin) = match name.split_once('@') {
        Some((sequence, origin)) => (number(sequence), number(origin)),
        None => (number(name), shard),
    };
    TaskId { incarnation: 1, home: ShardId(shard), origin: ShardId(origin), sequence }
}

/// `f3`: the flow of that number on this shard.
pub(crate) fn flow(word: &str, shard: u16) -> TaskId {
    let sequence = number(word.strip_prefix('f').expect("flows are f1, f2, ..."));
    TaskId { incarnation: 1, home: ShardId(shard), origin: ShardId(shard), sequence }
}

/// `y3`: the tally of that number on this shard.
pub(crate) fn tally(word: &str, shard: u16) -> TaskId {
    let sequence = number(word.strip_prefix('y').expect("tallies are y1, y2, ..."));
    TaskId { incarnation: 1, home: ShardId(shard), origin: ShardId(shard), sequence }
}

fn token(word: &str) -> ClaimToken {
    ClaimToken(number(word.strip_prefix('#').expect("tokens are #1, #2, ...")))
}

/// `2/5`: two a second, five at once.
fn rate(text: &str) -> Rate {
    let (per_second, burst) = text.split_once('/').expect("PER_SECOND/BURST");
    Rate { per_second_millionths: ms(per_second) * 1_000, burst: number(burst) }
}

fn plain<'a>(words: &[&'a str]) -> impl Iterator<Item = &'a str> {
    words.iter().copied().filter(|word| !word.contains('='))
}

/// The policy of a word; without one, the default.
fn word_of<T: Copy + Default>(words: &[(T, &str)], word: Option<&str>) -> T {
    let Some(word) = word else { return T::default() };
    words.iter().find(|(_, known)| *known == word).expect("a known policy").0
}

/// Seconds, with up to three decimals.
fn ms(text: &str) -> u64 {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    number::<u64>(seconds) * 1_000 + number::<u64>(&format!("{fraction:0<3}"))
}

fn number<N: std::str::FromStr>(text: &str) -> N {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number that fits here"))
}
