//! Shapes that flows often have: a chain, a group, a chord.
//!
//! Each shape knows its result type, so that waiting for it returns a typed value.

use super::{Flow, FlowResults, IntoFlow, IntoNode, Node, Reading};
use serde::de::DeserializeOwned;
use std::{fmt, marker::PhantomData};

/// Tasks one after the other. Each task starts when the one before has succeeded, and can read its
/// result; the result of the last task is the result of the chain. A new chain is empty: add steps
/// with [`then`](Chain::then).
///
/// ```
/// use taskyard::{NewTask, flow::chain};
///
/// let invoice = chain("invoice")
///     .then(NewTask::new("fetch_order", &7))
///     .then(NewTask::new("render_pdf", &"a4"))
///     .then(NewTask::new("send_mail", &"ada@example.com"));
/// # let _ = invoice;
/// ```
pub fn chain(name: impl Into<String>) -> Chain<()> {
    Chain { flow: Flow::new(name), last: None, output: PhantomData }
}

/// Tasks that run side by side. The result is the list of their results, in the order in which they
/// were given.
///
/// ```
/// use taskyard::{NewTask, flow::group};
///
/// let pages = group("pages", (1..=3).map(|page| NewTask::new("fetch_page", &page)));
/// # let _ = pages;
/// ```
pub fn group<T: IntoNode>(
    name: impl Into<String>,
    tasks: impl IntoIterator<Item = T>,
) -> Group<T::Output> {
    let flow = Flow::new(name);
    let nodes = flow.add_numbered(tasks);
    Group { flow, nodes }
}

/// Tasks that run side by side, and a callback that runs once all of them have succeeded. The
/// callback reads their results with [`parent_results`](crate::TaskContext::parent_results); its
/// own result is the result of the chord.
///
/// ```
/// use taskyard::{NewTask, flow::chord};
///
/// let pages = (1..=3).map(|page| NewTask::new("fetch_page", &page));
/// let book = chord("book", pages, NewTask::new("bind_pages", &()));
/// # let _ = book;
/// ```
pub fn chord<T: IntoNode, C: IntoNode>(
    name: impl Into<String>,
    tasks: impl IntoIterator<Item = T>,
    callback: C,
) -> Chord<C::Output> {
    group(name, tasks).then(callback)
}

/// Tasks one after the other. Made by [`chain`].
#[must_use = "a chain does nothing until it is submitted"]
pub struct Chain<Output> {
    flow: Flow,
    last: Option<String>,
    output: PhantomData<fn() -> Output>,
}

impl<Output> Chain<Output> {
    /// Adds the next step. Its node has the name of its type, with a number if the name is taken.
    pub fn then<T: IntoNode>(self, task: T) -> Chain<T::Output> {
        let node = self.flow.add_fresh(task);
        let node = match &self.last {
            Some(last) => node.after(last.as_str()),
            None => node,
        };
        Chain { last: Some(node.name().to_owned()), flow: self.flow, output: PhantomData }
    }
}

impl<Output: DeserializeOwned> IntoFlow for Chain<Output> {
    type Output = Output;

    fn into_flow(self) -> (Flow, Reading<Output>) {
        let last = self.last.into_iter().collect();
        (self.flow, Reading::of(last, FlowResults::only))
    }
}

/// Tasks that run side by side. Made by [`group`].
#[must_use = "a group does nothing until it is submitted"]
pub struct Group<Output> {
    flow: Flow,
    nodes: Vec<Node<Output>>,
}

impl<Output> Group<Output> {
    /// Adds a task that runs once all of them have succeeded.
    pub fn then<C: IntoNode>(self, callback: C) -> Chord<C::Output> {
        let node = self.flow.add_fresh(callback).after(&self.nodes);
        Chord { callback: node.name().to_owned(), flow: self.flow, output: PhantomData }
    }
}

impl<Output: DeserializeOwned> IntoFlow for Group<Output> {
    type Output = Vec<Output>;

    fn into_flow(self) -> (Flow, Reading<Vec<Output>>) {
        let names = self.nodes.iter().map(|node| node.name().to_owned()).collect();
        (self.flow, Reading::of(names, FlowResults::all))
    }
}

/// Tasks that run side by side, and one after them. Made by [`chord`] and [`Group::then`].
#[must_use = "a chord does nothing until it is submitted"]
pub struct Chord<Output> {
    flow: Flow,
    callback: String,
    output: PhantomData<fn() -> Output>,
}

impl<Output: DeserializeOwned> IntoFlow for Chord<Output> {
    type Output = Output;

    fn into_flow(self) -> (Flow, Reading<Output>) {
        (self.flow, Reading::of(vec![self.callback], FlowResults::only))
    }
}

macro_rules! show_flow {
    ($($shape:ident),*) => {$(
        impl<Output> fmt::Debug for $shape<Output> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($shape)).field(&self.flow).finish()
            }
        }
    )*};
}
show_flow!(Chain, Group, Chord);
