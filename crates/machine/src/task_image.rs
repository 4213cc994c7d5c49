//! The images of tasks and queues for checkpoints.
//!
//! Slots, links and name numbers are no part of an image. The place of a task in its lane follows
//! from its `order`.

use crate::entry::DecodeError;
use crate::keys::{KeyId, Keys};
use crate::life::{Attempt, ClaimState, Extra, KeySlot, State, Task};
use crate::limits::{ATTEMPTS_KEPT_MAX, PRIORITY_MAX};
use crate::names::Names;
use crate::queue::{Queue, Totals};
use crate::rings::Rings;
use crate::slab::{NO_SLOT, Slot};
use crate::wire::{Reader, Wire};
use crate::{QueueName, TaskId};

/// The first byte of a task's image.
const TASK_VERSION: u8 = 1;

pub(crate) fn encode_task(task: &Task, names: &Names, keys: &Keys) -> Box<[u8]> {
    let mut out = Vec::with_capacity(96);
    out.push(TASK_VERSION);
    task.queue.write(&mut out);
    (&**names.get(task.task_type)).write(&mut out);
    task.order.write(&mut out);
    task.enqueued_at.write(&mut out);
    write_state(&task.state, names, &mut out);
    task.body_bytes.write(&mut out);
    task.body_checksum.write(&mut out);
    task.attempt.write(&mut out);
    task.failures.write(&mut out);
    out.extend([task.losses, task.priority]);
    out.push(task.attempts().count() as u8);
    for attempt in task.attempts() {
        write_attempt(attempt, &mut out);
    }
    task.extra.is_some().write(&mut out);
    if let Some(extra) = &task.extra {
        write_extra(extra, keys, &mut out);
    }
    out.into_boxed_slice()
}

pub(crate) fn read_task(
    id: TaskId,
    image: &[u8],
    names: &mut Names,
    keys: &mut Keys,
) -> Result<Task, DecodeError> {
    let reader = &mut Reader::new(image);
    match reader.byte()? {
        TASK_VERSION => {}
        other => return Err(reader.error(format_args!("unknown task version {other}"))),
    }
    let queue = reader.read()?;
    let task = Task {
        id,
        queue,
        task_type: names.intern(reader.read()?),
        previous: NO_SLOT,
        next: NO_SLOT,
        order: reader.read()?,
        enqueued_at: reader.read()?,
        state: read_state(reader, names)?,
        body_bytes: reader.read()?,
        body_checksum: reader.read()?,
        attempt: reader.read()?,
        failures: reader.read()?,
        losses: reader.read()?,
        priority: reader.read()?,
        last_attempt: read_attempts(reader)?,
        extra: read_extra(reader, queue, keys)?,
    };
    if task.priority > PRIORITY_MAX {
        return Err(reader.error(format_args!("priority {}", task.priority)));
    }
    reader.finish()?;
    Ok(task)
}

fn write_extra(extra: &Extra, keys: &Keys, out: &mut Vec<u8>) {
    let Extra { terms, left, watch, unique, key, flow } = extra;
    terms.write(out);
    left.write(out);
    watch.write(out);
    unique.write(out);
    let key = key.map(|key| keys.get(key.slot()).id);
    key.map(|id| (id.hash, id.tie)).write(out);
    flow.write(out);
}

fn read_extra(
    reader: &mut Reader<'_>,
    queue: Slot,
    keys: &mut Keys,
) -> Result<Option<Box<Extra>>, DecodeError> {
    if !reader.read::<bool>()? {
        return Ok(None);
    }
    let (terms, left) = (reader.read()?, reader.read()?);
    let (watch, unique) = (reader.read()?, reader.read()?);
    let key: Option<(u64, u32)> = reader.read()?;
    let slot = key.map(|(hash, tie)| keys.load_named(KeyId { queue, hash, tie }));
    let (key, flow) = (slot.map(KeySlot::new), reader.read()?);
    Ok(Some(Box::new(Extra { terms, left, watch, unique, key, flow })))
}

fn write_state(state: &State, names: &Names, out: &mut Vec<u8>) {
    match state {
        State::Scheduled { run_at } => (1u8, *run_at).write(out),
        State::Ready { since } => (2u8, *since).write(out),
        State::Claimed(claim) => {
            out.push(3);
            claim.token.write(out);
            (&**names.get(claim.worker)).write(out);
            claim.session.write(out);
            claim.sequence.write(out);
            claim.claimed_at.write(out);
            claim.lease_ms.write(out);
            claim.lease_expires_at.write(out);
            claim.timeout_at.write(out);
            claim.ends_at.write(out);
            claim.put_off_ms.write(out);
            claim.ready_since.write(out);
            claim.engaged.write(out);
            claim.cancel_requested.write(out);
        }
        State::Finished { ending, at } => {
            out.push(4);
            ending.write(out);
            at.write(out);
        }
        State::Blocked => out.push(5),
    }
}

fn read_state(reader: &mut Reader<'_>, names: &mut Names) -> Result<State, DecodeError> {
    match reader.byte()? {
        1 => Ok(State::Scheduled { run_at: reader.read()? }),
        2 => Ok(State::Ready { since: reader.read()? }),
        3 => Ok(State::Claimed(Box::new(ClaimState {
            token: reader.read()?,
            worker: names.intern(reader.read()?),
            session: reader.read()?,
            sequence: reader.read()?,
            claimed_at: reader.read()?,
            lease_ms: reader.read()?,
            lease_expires_at: reader.read()?,
            timeout_at: reader.read()?,
            ends_at: reader.read()?,
            put_off_ms: reader.read()?,
            ready_since: reader.read()?,
            engaged: reader.read()?,
            cancel_requested: reader.read()?,
        }))),
        5 => Ok(State::Blocked),
        4 => Ok(State::Finished { ending: reader.read()?, at: reader.read()? }),
        other => Err(reader.error(format_args!("unknown state {other}"))),
    }
}

fn write_attempt(attempt: &Attempt, out: &mut Vec<u8>) {
    attempt.attempt.write(out);
    attempt.outcome.write(out);
    attempt.token.write(out);
    (&*attempt.worker).write(out);
    attempt.claimed_at.write(out);
    attempt.ended_at.write(out);
    attempt.retry_at.write(out);
    attempt.error.is_some().write(out);
    if let Some(error) = &attempt.error {
        error.write(out);
    }
}

fn read_attempts(reader: &mut Reader<'_>) -> Result<Option<Box<Attempt>>, DecodeError> {
    let count = usize::from(reader.byte()?);
    if count > ATTEMPTS_KEPT_MAX {
        return Err(reader.error(format_args!("{count} attempts")));
    }
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        attempts.push(Attempt {
            attempt: reader.read()?,
            outcome: reader.read()?,
            token: reader.read()?,
            worker: reader.read::<&str>()?.into(),
            claimed_at: reader.read()?,
            ended_at: reader.read()?,
            retry_at: reader.read()?,
            error: reader.read()?,
            previous: None,
        });
    }
    // The image has the newest attempt first, so that the last one read is the innermost.
    let chain = attempts
        .into_iter()
        .rev()
        .fold(None, |previous, attempt| Some(Box::new(Attempt { previous, ..attempt })));
    Ok(chain)
}

pub(crate) fn encode_queue(queue: &Queue) -> Box<[u8]> {
    let mut out = Vec::new();
    queue.name.as_str().write(&mut out);
    queue.paused.write(&mut out);
    queue.settings.write(&mut out);
    queue.totals.write(&mut out);
    queue.bucket.write(&mut out);
    queue.pushed_back_until.write(&mut out);
    queue.sweep.write(&mut out);
    queue.rings.is_some().write(&mut out);
    if let Some(rings) = &queue.rings {
        rings.write(&mut out);
    }
    queue.laid.write(&mut out);
    // The digest takes in the image, so that the image of a queue that is not deleted stays.
    if queue.deleted {
        true.write(&mut out);
    }
    out.into_boxed_slice()
}

pub(crate) fn read_queue(image: &[u8]) -> Result<Queue, DecodeError> {
    let reader = &mut Reader::new(image);
    let name = QueueName::accepted(reader.read()?).map_err(|error| reader.error(error))?;
    let mut queue = Queue::new(name);
    queue.paused = reader.read()?;
    queue.settings = reader.read()?;
    queue.totals = reader.read::<Totals>()?;
    queue.bucket = reader.read()?;
    queue.pushed_back_until = reader.read()?;
    queue.sweep = reader.read()?;
    if reader.read::<bool>()? {
        queue.rings = Some(Box::new(Rings::read(reader)?));
    }
    queue.laid = reader.read()?;
    if !reader.is_empty() {
        queue.deleted = reader.read()?;
    }
    reader.finish()?;
    Ok(queue)
}
