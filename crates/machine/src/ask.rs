//! Ask: the queries that a shard answers, as values that can be sent to another node.
//!
//! One table defines each query: its number on the wire, its parameters, the type of its answer,
//! and the code that answers. A caller on the same node gets the typed answer without any encoding.
//! [`Query`] and [`Found`] combine all queries and answers in one type each, to send them between
//! nodes. Queries take `&Machine` and change nothing.

#[cfg(test)]
mod tests;

use crate::wire::{Reader, Wire};
use crate::{
    Claim, ClaimQueue, ClaimToken, ClaimView, Claimable as Claims, DecodeError, FlowFilter,
    FlowPage, FlowView, LinkView, Machine, NewestPage, NewestSpan, QueueName, QueuePage, QueueView,
    SchedulePage, ScheduleView, SessionId, ShardId, SpreadView, TallyView, TaskFilter, TaskId,
    TaskPage, TaskSketch, TaskStateName, TaskView, Timestamp, WhyView, limits,
};

/// A query that a shard's state answers.
pub trait Ask: Into<Query> + Send + 'static {
    /// The type of the answer.
    type Answer: Send + 'static;

    /// Answers the query. `now` is the leader's clock, which may be later than the last entry.
    fn ask(&self, machine: &Machine, now: Timestamp) -> Self::Answer;

    /// The answer from another node; `None` if `found` answers another query.
    fn answer(found: Found) -> Option<Self::Answer>;
}

/// Answers any query, as another node has sent it.
impl Ask for Query {
    type Answer = Found;

    fn ask(&self, machine: &Machine, now: Timestamp) -> Found {
        machine.ask(self, now)
    }

    fn answer(found: Found) -> Option<Found> {
        Some(found)
    }
}

/// The table of all queries. A number is never reused. A query whose parameters or answer change
/// gets a new number, because nodes of two versions talk to each other.
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

        /// Any query.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Query {
            $($(#[$doc])+ $name($name),)+
        }

        /// The answer to a [`Query`], under the same name.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(
            clippy::large_enum_variant,
            reason = "a value is made once per call and encoded at once; a box would cost more"
        )]
        pub enum Found {
            $($(#[$doc])+ $name($answer),)+
        }

        impl Machine {
            /// Answers a query from another node, at `now` by the leader's clock.
            pub fn ask(&self, query: &Query, now: Timestamp) -> Found {
                match query {
                    $(Query::$name(asked) => Found::$name(asked.ask(self, now)),)+
                }
            }
        }

        crate::wire::wire_enum!(Query { $($number => $name(asked)),+ });
        crate::wire::wire_enum!(Found { $($number => $name(answer)),+ });

        /// One query of each kind, with an answer.
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
        /// The task.
        task: TaskId,
    } -> Option<TaskView>, |asked, machine| machine.task(asked.task);

    /// The holder of a task's claim.
    2 => Holder {
        /// The task.
        task: TaskId,
    } -> Option<ClaimView>, |asked, machine| machine.task(asked.task)?.claim;

    /// A page of tasks, in id order. All given filters must match.
    3 => Tasks {
        /// The queue of the tasks.
        queue: Option<String>,
        /// The state of the tasks.
        state: Option<TaskStateName>,
        /// The type of the tasks.
        task_type: Option<String>,
        /// The type of the last error, or a part of its message.
        error: Option<String>,
        /// A tag of the tasks.
        tag: Option<String>,
        /// The flow of the tasks.
        flow: Option<TaskId>,
        /// The last id of the previous page.
        after: Option<TaskId>,
        /// The most tasks to return.
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
        /// The task.
        task: TaskId,
    } -> Option<WhyView>, |asked, machine, now| machine.why_view(asked.task, now);

    /// The parents that a node of a flow still waits for, and their total number.
    8 => UnfinishedParents {
        /// The flow.
        flow: TaskId,
        /// The node's name.
        node: Box<str>,
        /// The most names to return.
        limit: u32,
    } -> Option<(Vec<String>, u32)>, |asked, machine| {
        machine.unfinished_parents(asked.flow, &asked.node, asked.limit as usize)
    };

    /// The cut between the tasks that the shard has now and those that come later.
    9 => EnqueueCut {} -> crate::EnqueueCut, |_, machine| machine.enqueue_cut();

    /// The shard's time, by its leader's clock.
    10 => Now {} -> Timestamp, |_, machine, now| now.max(machine.now());

    /// Whether one of these queues has a task to claim now.
    11 => Claimable {
        /// Their names.
        queues: Vec<String>,
        /// The wanted types; any type if empty.
        types: Vec<String>,
    } -> bool, |asked, machine| {
        matches!(machine.claimable(&asked.claim(), machine.now()), Claims::Now(_))
    };

    /// One flow.
    12 => Flow {
        /// The flow.
        flow: TaskId,
        /// Whether to return its nodes too.
        with_nodes: bool,
    } -> Option<FlowView>, |asked, machine| match asked.with_nodes {
        true => machine.flow(asked.flow),
        false => machine.flow_summary(asked.flow),
    };

    /// A short view of each of many tasks; `None` for a task that is not kept here.
    13 => Sketches {
        /// The tasks.
        tasks: Vec<TaskId>,
    } -> Vec<Option<TaskSketch>>, |asked, machine| machine.sketches(&asked.tasks);

    /// A page of flows, in id order, without their nodes.
    14 => Flows {
        /// The filter.
        filter: FlowFilter,
        /// The last id of the previous page.
        after: Option<TaskId>,
        /// The most flows to return.
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

    /// The spread of a queue, as this shard knows it.
    19 => Spread {
        /// Its name.
        queue: QueueName,
    } -> Option<SpreadView>, |asked, machine| machine.spread_view(&asked.queue);

    /// The tasks that remembered requests made.
    20 => KnownRequests {
        /// The queue and the id of each request.
        requests: Vec<(String, String)>,
    } -> Vec<Option<TaskId>>, |asked, machine| machine.known_requests(&asked.requests);

    /// The spreads of all queues that were ever spread and have their home here.
    21 => Spreads {} -> Vec<(QueueName, SpreadView)>, |_, machine| machine.spread_views();

    /// The tasks that a request id made in any queue of the shard, as far as the shard remembers.
    22 => MadeByRequest {
        /// The request id.
        request_id: String,
    } -> Vec<TaskId>, |asked, machine| machine.made_in_any_queue(&asked.request_id);

    /// One tally.
    23 => Tally {
        /// The tally.
        tally: TaskId,
    } -> Option<TallyView>, |asked, machine| machine.tally(asked.tally);

    /// The progress of messages between the shard and each of these shards, in their order.
    24 => Links {
        /// The other shards.
        shards: Vec<ShardId>,
    } -> Vec<LinkView>, |asked, machine| machine.link_views(&asked.shards);

    /// The claims that a session holds here.
    25 => ClaimsOf {
        /// The session.
        session: SessionId,
    } -> Vec<(TaskId, ClaimToken)>, |asked, machine| machine.claims_of(asked.session);

    /// A page of tasks, the newest first. All given filters must match.
    30 => Newest {
        /// The queue of the tasks.
        queue: Option<String>,
        /// The state of the tasks.
        state: Option<TaskStateName>,
        /// The type of the tasks.
        task_type: Option<String>,
        /// The type of the last error, or a part of its message.
        error: Option<String>,
        /// A tag of the tasks.
        tag: Option<String>,
        /// The flow of the tasks.
        flow: Option<TaskId>,
        /// The part of the list to return.
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

/// The tasks that a page of tasks is about.
macro_rules! filtered {
    ($($page:ident),+) => {
        $(impl $page {
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
        })+
    };
}

filtered!(Tasks, Newest);

impl Claimable {
    fn claim(&self) -> Claim<'_> {
        Claim {
            queues: self.queues.iter().map(|name| ClaimQueue { name, weight: 1 }).collect(),
            types: self.types.iter().map(String::as_str).collect(),
            weighted_seed: None,
            tasks_max: 1,
            bytes_max: u32::MAX,
            lease_ms: limits::LEASE_MS_DEFAULT,
            session: None,
            number: None,
            begun: false,
            worker: "",
        }
    }
}
