//! Ask: every question that readers put to a shard, as a value that can be sent to another node.
//!
//! One table says it all: a question's number on the wire, what it asks with, what it is answered
//! with, and how. Whoever asks uses the question itself and gets an answer of its own type, without
//! a detour over bytes; [`Query`] and [`Found`] are all of them in one type, for the way between
//! nodes. Questions take `&Machine` and change nothing.

#[cfg(test)]
mod tests;

use crate::wire::{Reader, Wire};
use crate::{
    Claim, ClaimQueue, ClaimToken, ClaimView, Claimable as Claims, DecodeError, FlowFilter,
    FlowPage, FlowView, LinkView, Machine, NewestPage, NewestSpan, QueueName, QueuePage, QueueView,
    SchedulePage, ScheduleView, SessionId, ShardId, SpreadView, TallyView, TaskFilter, TaskId,
    TaskPage, TaskSketch, TaskStateName, TaskView, Timestamp, WhyView, limits,
};

/// A question that a shard's state answers.
pub trait Ask: Into<Query> + Send + 'static {
    /// What it is answered with.
    type Answer: Send + 'static;

    /// Looks. `now` is the leader's time, which goes on between entries.
    fn ask(&self, machine: &Machine, now: Timestamp) -> Self::Answer;

    /// Its answer, out of what another node found; `None` if that answers another question.
    fn answer(found: Found) -> Option<Self::Answer>;
}

/// Any question, asked as it came from another node.
impl Ask for Query {
    type Answer = Found;

    fn ask(&self, machine: &Machine, now: Timestamp) -> Found {
        machine.ask(self, now)
    }

    fn answer(found: Found) -> Option<Found> {
        Some(found)
    }
}

/// The table of all questions. A number is never given to another question, and a question that
/// asks with more, or is answered with more, is another one: nodes of two versions talk to each
/// other.
macro_rules! questions {
    ($(
        $(#[$doc:meta])+
        $number:literal => $name:ident {
            $($(#[$field_doc:meta])+ $field:ident: $type:ty),* $(,)?
        } -> $answer:ty, |$asked:pat_param, $machine:ident $(, $now:ident)?| $look:expr;
    )+) => {
        $(
            $(#[$doc])+
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $name {
                $($(#[$field_doc])+ pub $field: $type,)*
            }

            impl From<$name> for Query {
                fn from(asked: $name) -> Query {
                    Query::$name(asked)
                }
            }

            impl Ask for $name {
                type Answer = $answer;

                fn ask(&self, machine: &Machine, _now: Timestamp) -> $answer {
                    let ($asked, $machine) = (self, machine);
                    $(let $now = _now;)?
                    $look
                }

                fn answer(found: Found) -> Option<$answer> {
                    match found {
                        Found::$name(answer) => Some(answer),
                        _ => None,
                    }
                }
            }

            impl<'a> Wire<'a> for $name {
                fn write(&self, _out: &mut Vec<u8>) {
                    $(self.$field.write(_out);)*
                }

                fn read(_reader: &mut Reader<'a>) -> Result<$name, DecodeError> {
                    Ok($name { $($field: _reader.read()?),* })
                }
            }

            #[cfg(test)]
            impl crate::testing::drawn::Drawn for $name {
                fn drawn(_draw: &mut crate::draw::Draw) -> $name {
                    $name { $($field: crate::testing::drawn::Drawn::drawn(_draw)),* }
                }
            }
        )+

        /// Any of the questions.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Query {
            $($(#[$doc])+ $name($name),)+
        }

        /// The answer to a [`Query`], under the same name.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(
            clippy::large_enum_variant,
            reason = "it is made once per call and moved into its bytes; a box would cost more"
        )]
        pub enum Found {
            $($(#[$doc])+ $name($answer),)+
        }

        impl Machine {
            /// Answers a question that came from another node, at `now` by the leader's clock.
            pub fn ask(&self, query: &Query, now: Timestamp) -> Found {
                match query {
                    $(Query::$name(asked) => Found::$name(asked.ask(self, now)),)+
                }
            }
        }

        crate::wire::wire_enum!(Query { $($number => $name(asked)),+ });
        crate::wire::wire_enum!(Found { $($number => $name(answer)),+ });

        /// One of every question, and one answer to each.
        #[cfg(test)]
        pub(crate) fn drawn_questions(draw: &mut crate::draw::Draw) -> Vec<(Query, Found)> {
            use crate::testing::drawn::Drawn;
            vec![$((Query::$name(Drawn::drawn(draw)), Found::$name(Drawn::drawn(draw)))),+]
        }
    };
}

questions! {
    /// One task, whole.
    1 => Task {
        /// Which.
        task: TaskId,
    } -> Option<TaskView>, |asked, machine| machine.task(asked.task);

    /// Who holds a task.
    2 => Holder {
        /// Which task.
        task: TaskId,
    } -> Option<ClaimView>, |asked, machine| machine.task(asked.task)?.claim;

    /// A page of tasks, in id order; every given part must match.
    3 => Tasks {
        /// In this queue.
        queue: Option<String>,
        /// In this state.
        state: Option<TaskStateName>,
        /// Of this type.
        task_type: Option<String>,
        /// Whose last error's type is this, or whose message contains it.
        error: Option<String>,
        /// With this tag.
        tag: Option<String>,
        /// Of this flow.
        flow: Option<TaskId>,
        /// Where the page before stopped.
        after: Option<TaskId>,
        /// Tasks at most.
        limit: u32,
    } -> TaskPage, |asked, machine| machine.tasks(&asked.filter(), asked.after, asked.limit as usize);

    /// One queue.
    5 => Queue {
        /// Its name.
        queue: QueueName,
    } -> Option<QueueView>, |asked, machine, now| machine.queue_at(&asked.queue, now);

    /// A queue's own settings.
    6 => QueueSettings {
        /// Its name.
        queue: QueueName,
    } -> Option<crate::QueueSettings>, |asked, machine| machine.queue_settings(&asked.queue);

    /// What a task waits for.
    7 => Why {
        /// Which task.
        task: TaskId,
    } -> Option<WhyView>, |asked, machine, now| machine.why_view(asked.task, now);

    /// The parents that a node of a flow still waits for, and how many there are in all.
    8 => UnfinishedParents {
        /// The flow.
        flow: TaskId,
        /// The node's name.
        node: Box<str>,
        /// Names at most.
        limit: u32,
    } -> Option<(Vec<String>, u32)>, |asked, machine| {
        machine.unfinished_parents(asked.flow, &asked.node, asked.limit as usize)
    };

    /// The line between what the shard has taken and what it will take.
    9 => EnqueueCut {} -> crate::EnqueueCut, |_, machine| machine.enqueue_cut();

    /// The shard's time, by its leader's clock.
    10 => Now {} -> Timestamp, |_, machine, now| now.max(machine.now());

    /// Whether one of these queues has something to claim now.
    11 => Claimable {
        /// Their names.
        queues: Vec<String>,
        /// Of these types; empty: of any.
        types: Vec<String>,
    } -> bool, |asked, machine| {
        matches!(machine.claimable(&asked.claim(), machine.now()), Claims::Now(_))
    };

    /// One flow.
    12 => Flow {
        /// Which.
        flow: TaskId,
        /// Whether its nodes are wanted.
        with_nodes: bool,
    } -> Option<FlowView>, |asked, machine| match asked.with_nodes {
        true => machine.flow(asked.flow),
        false => machine.flow_summary(asked.flow),
    };

    /// A little of each of many tasks; `None` for those that are not kept here.
    13 => Sketches {
        /// Which.
        tasks: Vec<TaskId>,
    } -> Vec<Option<TaskSketch>>, |asked, machine| machine.sketches(&asked.tasks);

    /// A page of flows, in id order, without their nodes.
    14 => Flows {
        /// Which.
        filter: FlowFilter,
        /// Where the page before stopped.
        after: Option<TaskId>,
        /// Flows at most.
        limit: u32,
    } -> FlowPage, |asked, machine| {
        machine.flows(&asked.filter, asked.after, asked.limit as usize)
    };

    /// The task of a node of a flow.
    15 => TaskOfNode {
        /// The flow.
        flow: TaskId,
        /// The node's name.
        node: String,
    } -> Option<TaskId>, |asked, machine| machine.task_of_node(asked.flow, &asked.node);

    /// One schedule.
    17 => Schedule {
        /// Its name.
        name: String,
    } -> Option<ScheduleView>, |asked, machine| machine.schedule(&asked.name);

    /// Whether a session holds claims here.
    18 => SessionHolds {
        /// The session.
        session: SessionId,
    } -> bool, |asked, machine| machine.session_holds(asked.session);

    /// How a queue lies, as the shard knows it.
    19 => Spread {
        /// Its name.
        queue: QueueName,
    } -> Option<SpreadView>, |asked, machine| machine.spread_view(&asked.queue);

    /// The tasks that requests made which the shard remembers.
    20 => KnownRequests {
        /// Queue and request id of each.
        requests: Vec<(String, String)>,
    } -> Vec<Option<TaskId>>, |asked, machine| machine.known_requests(&asked.requests);

    /// How the queues lie that were ever spread and have their home here.
    21 => Spreads {} -> Vec<(QueueName, SpreadView)>, |_, machine| machine.spread_views();

    /// The tasks that a request id made, in whichever queues of the shard, as far as it remembers.
    22 => MadeByRequest {
        /// The request id.
        request_id: String,
    } -> Vec<TaskId>, |asked, machine| machine.made_in_any_queue(&asked.request_id);

    /// One tally.
    23 => Tally {
        /// Which.
        tally: TaskId,
    } -> Option<TallyView>, |asked, machine| machine.tally(asked.tally);

    /// How far the shard is with others, in their order: what it has sent each, and what it has
    /// taken.
    24 => Links {
        /// Which.
        shards: Vec<ShardId>,
    } -> Vec<LinkView>, |asked, machine| machine.link_views(&asked.shards);

    /// The claims that a session holds here.
    25 => ClaimsOf {
        /// The session.
        session: SessionId,
    } -> Vec<(TaskId, ClaimToken)>, |asked, machine| machine.claims_of(asked.session);

    /// A page of tasks, the newest first; every given part must match.
    30 => Newest {
        /// In this queue.
        queue: Option<String>,
        /// In this state.
        state: Option<TaskStateName>,
        /// Of this type.
        task_type: Option<String>,
        /// Whose last error's type is this, or whose message contains it.
        error: Option<String>,
        /// With this tag.
        tag: Option<String>,
        /// Of this flow.
        flow: Option<TaskId>,
        /// How much of it.
        span: NewestSpan,
    } -> NewestPage, |asked, machine| machine.newest(&asked.filter(), &asked.span);

    /// A page of queues, by name.
    31 => Queues {
        /// The name at which the page before ended.
        after: Option<QueueName>,
        /// Queues at most.
        limit: u32,
    } -> QueuePage, |asked, machine, now| {
        machine.queue_page(asked.after.as_ref(), asked.limit as usize, now)
    };

    /// A page of schedules, by name.
    32 => Schedules {
        /// The name at which the page before ended.
        after: Option<String>,
        /// Schedules at most.
        limit: u32,
    } -> SchedulePage, |asked, machine| {
        machine.schedules(asked.after.as_deref(), asked.limit as usize)
    };
}

impl Newest {
    fn filter(&self) -> TaskFilter<'_> {
        TaskFilter {
            queue: self.queue.as_deref(),
            state: self.state,
            task_type: self.task_type.as_deref(),
            error: self.error.as_deref(),
            tag: self.tag.as_deref(),
            flow: self.flow,
        }
    }
}

impl Tasks {
    fn filter(&self) -> TaskFilter<'_> {
        TaskFilter {
            queue: self.queue.as_deref(),
            state: self.state,
            task_type: self.task_type.as_deref(),
            error: self.error.as_deref(),
            tag: self.tag.as_deref(),
            flow: self.flow,
        }
    }
}

impl Claimable {
    fn claim(&self) -> Claim<'_> {
        Claim {
            queues: self.queues.iter().map(|name| ClaimQueue { name, weight: 1 }).collect(),
            types: self.types.iter().map(String::as_str).collect(),
            weighted_seed: None,
            tasks_max: 1,
            lease_ms: limits::LEASE_MS_DEFAULT,
            session: None,
            number: None,
            begun: false,
            worker: "",
        }
    }
}
