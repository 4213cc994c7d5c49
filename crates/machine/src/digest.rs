//! Digest: a running hash of what entries did to the state, for comparing replicas at next to no
//! cost.
//!
//! The machine mixes every change of a task, a queue, a key or a kept record into the digest. At a
//! mark, the machine also mixes in the numbers of the whole state and keeps the result. Replicas
//! with the same history have the same digest at the same mark; a replica with a different history
//! never has it again. The digest is part of the state, so that it survives reloads and travels
//! with snapshots.
//!
//! Invariant: the digest takes in nothing that differs between equal replicas: no slot but a
//! queue's number, no size of a type, no body. The list of inputs is part of the rules and changes
//! only together with them.

use crate::life::{Ending, State, Task};
use crate::task_image::encode_queue;
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{Command, Entry, EventKind, Machine, Outcome, SessionId, ShardId, TaskId};
use crate::{keys::Key, queue::Queue, slab::Slot};
use xxhash_rust::xxh3::xxh3_64;

/// See [`crate::Command::Attest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attest {
    /// The number of the mark, from 1.
    pub mark: u64,
    /// The replica that attests, by its id in the shard's group.
    pub replica: u64,
    /// The replica's digest at the mark.
    pub digest: u64,
}

/// A running hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) u64);

/// Stands in the digest for the deadline of a removed record.
const GONE: u64 = 1 << 63;

impl Digest {
    /// Mixes two numbers in: one multiplication, folded.
    pub(crate) fn mix(&mut self, left: u64, right: u64) {
        let (left, right) = (left ^ 0x9e37_79b9_7f4a_7c15, right ^ 0xd1b5_4a32_d192_ed03);
        let wide = u128::from(self.0 ^ left) * u128::from(right);
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }

    /// Mixes in a new or changed task.
    pub(crate) fn task(&mut self, task: &Task) {
        let state = match &task.state {
            State::Blocked => 1,
            State::Scheduled { .. } => 2,
            State::Ready { .. } => 3,
            State::Claimed(_) => 4,
            State::Finished { ending, .. } => match ending {
                Ending::Succeeded => 5,
                Ending::Failed => 6,
                Ending::Dead => 7,
                Ending::Cancelled => 8,
                Ending::Expired => 9,
            },
        };
        let counts = u64::from(task.losses) << 8 | u64::from(task.failures) << 16;
        let due_at = task.due_at().map_or(u64::MAX, |at| at.0);
        let body = u64::from(task.body_checksum) << 32;
        self.mix(task.id.word() ^ body, task.order);
        self.mix(state | counts | u64::from(task.attempt) << 32, due_at);
        if let State::Claimed(claim) = &task.state {
            self.mix(claim.token.0, claim.lease_expires_at.0);
        }
    }

    /// Mixes in a changed queue.
    pub(crate) fn queue(&mut self, number: Slot, queue: &Queue) {
        let Queue { paused, totals, .. } = queue;
        let counts = [totals.enqueued, totals.succeeded, totals.failed, totals.dead];
        let counts = counts.into_iter().chain([totals.lost, totals.expired, totals.cancelled]);
        let counted = counts.fold(0u64, |all, count| all.wrapping_mul(31).wrapping_add(count));
        self.mix(u64::from(number) << 1 | u64::from(*paused), counted);
    }

    /// Mixes in a changed fairness key.
    pub(crate) fn key(&mut self, Key { id, closed, .. }: &Key) {
        let place = u64::from(id.queue) << 32 | u64::from(id.tie);
        self.mix(id.hash, place << 1 | u64::from(*closed));
    }

    /// Mixes in a new record and its key.
    pub(crate) fn put(&mut self, key: impl Word, expires_at: Option<crate::Timestamp>) {
        self.mix(key.word(), expires_at.map_or(u64::MAX, |at| at.0));
    }

    /// Mixes in the removal of the record under a key.
    pub(crate) fn took(&mut self, key: impl Word) {
        self.mix(key.word(), GONE);
    }
}

/// A record's key, as one number.
pub(crate) trait Word {
    fn word(self) -> u64;
}

impl Word for u64 {
    fn word(self) -> u64 {
        self
    }
}

impl Word for u128 {
    fn word(self) -> u64 {
        self as u64 ^ ((self >> 64) as u64).rotate_left(17)
    }
}

impl Word for TaskId {
    fn word(self) -> u64 {
        self.sequence ^ u64::from(self.origin.0) << 48
    }
}

impl Word for SessionId {
    fn word(self) -> u64 {
        self.0.word()
    }
}

impl Word for ShardId {
    fn word(self) -> u64 {
        self.0.into()
    }
}

impl<T: Word> Word for (T, u64) {
    fn word(self) -> u64 {
        self.0.word().rotate_left(40) ^ self.1
    }
}

impl<T: Word> Word for (T, u32) {
    fn word(self) -> u64 {
        (self.0, u64::from(self.1)).word()
    }
}

/// The digests at the last marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The number of marks so far.
    count: u64,
    last: Digest,
    before: Digest,
}

wire_struct!(Marks { count, last, before });

impl Marks {
    fn add(&mut self, digest: Digest) {
        *self = Marks { count: self.count + 1, last: digest, before: self.last };
    }

    /// The digest at a mark; `None` if the mark is too long ago, or has not come yet.
    fn get(self, mark: u64) -> Option<u64> {
        match self.count.checked_sub(mark) {
            _ if mark == 0 => None,
            Some(0) => Some(self.last.0),
            Some(1) => Some(self.before.0),
            _ => None,
        }
    }
}

impl Entry<'_> {
    /// The number of entries since the last mark, this entry included. Entries that only compare
    /// digests do not count, because they need no comparison.
    pub fn unmarked_after(&self, unmarked: u64) -> u64 {
        let compares =
            |command: &Command<'_>| matches!(command, Command::Mark | Command::Attest(_));
        if self.commands.contains(&Command::Mark) {
            0
        } else if self.commands.iter().all(compares) {
            unmarked
        } else {
            unmarked + 1
        }
    }
}

impl Turn<'_> {
    /// Keeps the digest as of now, under the next mark.
    pub(crate) fn mark(&mut self) -> Outcome {
        self.shard.fold_kept();
        let digest = self.shard.whole_digest();
        let marks = &mut self.shard.counters.marks;
        marks.add(digest);
        let mark = marks.count;
        self.emit(EventKind::DigestMarked { mark, digest: digest.0 });
        Outcome::Done
    }

    /// Compares the digest of another replica with this replica's own. An attestation changes
    /// nothing: the replica's jury, which knows the voters, decides what follows from a difference.
    pub(crate) fn attest(&mut self, attest: Attest) -> Outcome {
        let own = self.shard.counters.marks.get(attest.mark);
        self.emit(EventKind::DigestAttested { attest, own });
        Outcome::Done
    }
}

impl Machine {
    /// Mixes in the parts of a new task that never change later.
    pub(crate) fn digest_new_task(&mut self, slot: Slot) {
        let task = self.tasks.get(slot);
        let body = u64::from(task.body_bytes) << 32 | u64::from(task.body_checksum);
        let place = u64::from(task.queue) << 8 | u64::from(task.priority);
        self.counters.digest.mix(body, place);
        self.counters.digest.task(task);
    }

    pub(crate) fn digest_removed_task(&mut self, task: TaskId) {
        self.counters.digest.took(task);
    }

    /// Mixes in all of a queue, because its settings have changed.
    pub(crate) fn digest_settings(&mut self, number: Slot) {
        let image = encode_queue(self.queues.get(number));
        self.counters.digest.mix(number.into(), xxh3_64(&image));
    }

    /// Mixes in the changes that an entry made to kept records.
    pub(crate) fn fold_kept(&mut self) {
        let changes = [
            self.dedup.take_changes(),
            self.resent.take_changes(),
            self.batches.take_changes(),
            self.staged.take_changes(),
            self.outbox.take_changes(),
            self.links.take_changes(),
            self.windows.take_changes(),
            self.flows.take_changes(),
            self.nodes.take_changes(),
            self.staged_flows.take_changes(),
            self.schedules.take_changes(),
            self.tallies.take_changes(),
        ];
        for (kind, changes) in (0..).zip(changes) {
            if changes != Digest::default() {
                self.counters.digest.mix(changes.0, kind);
            }
        }
    }

    /// The digest, with the numbers of the whole state mixed in.
    fn whole_digest(&self) -> Digest {
        let counters = self.counters;
        let mut digest = counters.digest;
        // A zero mixes in nothing, so that a shard that never put claims off keeps its old digest.
        let put_off = counters.put_off_ms.rotate_left(32);
        digest.mix(counters.now.0, counters.lease_floor.0 ^ put_off);
        digest.mix(counters.next_sequence, counters.next_token);
        digest.mix(counters.next_back, counters.next_front);
        digest.mix(self.task_count(), self.other_records());
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{Command, NewTask, PutOff, QueueCommand, QueueSettings, Timestamp};

    fn marked(yard: &mut Yard) -> u64 {
        yard.send(Command::Mark).unwrap();
        match yard.events().pop() {
            Some(EventKind::DigestMarked { digest, .. }) => digest,
            other => panic!("{other:?}"),
        }
    }

    /// A history with a little of everything; `differ` makes one more change.
    fn history(differ: impl FnOnce(&mut Yard)) -> Yard {
        let mut yard = Yard::new();
        let settings = QueueSettings { concurrency: Some(9), ..QueueSettings::default() };
        yard.set("mail", settings);
        for _ in 0..4 {
            yard.enqueue("mail");
        }
        let held = yard.claim("mail", 2);
        yard.ack(&held[0]).unwrap();
        let keyed = NewTask { fairness_key: Some("a"), request_id: Some("r"), ..new_task() };
        yard.enqueue_task("mail", keyed).unwrap();
        differ(&mut yard);
        yard.fail(&held[1]).unwrap();
        yard
    }

    #[test]
    fn replicas_that_did_the_same_have_the_same_digest_and_others_have_not() {
        let plain = marked(&mut history(|_| ()));
        assert_eq!(plain, marked(&mut history(|_| ())));
        let payload: &[u8] = b"x";
        let task = |payload| {
            let body = crate::Body { payload, ..crate::Body::default() };
            NewTask { body, ..new_task() }
        };
        type Differ = fn(&mut Yard);
        let others: [(&str, Differ); 10] = [
            ("a task more", |yard| _ = yard.enqueue("mail")),
            ("a queue more", |yard| yard.set("other", QueueSettings::default())),
            ("other settings", |yard| yard.set("mail", QueueSettings::default())),
            ("a pause", |yard| {
                yard.send(Command::PauseQueue(QueueCommand { queue: "mail" })).unwrap();
            }),
            ("a claim", |yard| drop(yard.claim_one("mail"))),
            ("a claim that was given back", |yard| {
                let held = yard.claim_one("mail");
                yard.release(&held).unwrap();
            }),
            ("an expiry of nothing, later", |yard| yard.wait_ms(1)),
            ("claims put off", |yard| {
                yard.send(Command::PutOff(PutOff { claims_ms: 1 })).unwrap();
            }),
            ("a term", |yard| drop(yard.send(Command::BeginTerm).unwrap())),
            ("a removed task", |yard| {
                yard.set("mail", QueueSettings { retention_count: Some(0), ..Default::default() });
                yard.expire();
            }),
        ];
        let mut digests = vec![("nothing", plain)];
        for (what, differ) in others {
            digests.push((what, marked(&mut history(differ))));
        }
        for payload in [payload, b"y"] {
            let bodied = |yard: &mut Yard| _ = yard.enqueue_task("mail", task(payload)).unwrap();
            digests.push(("a body", marked(&mut history(bodied))));
        }
        for (position, (what, digest)) in digests.iter().enumerate() {
            let same = digests[..position].iter().find(|(_, other)| other == digest);
            assert_eq!(same, None, "{what} makes no difference");
        }
    }

    #[test]
    fn a_rejection_or_an_attestation_does_not_change_the_digest() {
        let rejected = |yard: &mut Yard| {
            let unknown = TaskId::from_u128(5);
            yard.cancel(unknown).unwrap_err();
            let attest = Attest { mark: 7, replica: 1, digest: 1 };
            yard.send(Command::Attest(attest)).unwrap();
        };
        assert_eq!(marked(&mut history(rejected)), marked(&mut history(|_| ())));
    }

    #[test]
    fn the_last_two_marks_are_known_and_survive_a_reload() {
        let mut yard = history(|_| ());
        let digests: Vec<u64> = (0..3)
            .map(|_| {
                yard.enqueue("mail");
                marked(&mut yard)
            })
            .collect();
        yard.machine = Machine::load(yard.machine.identity(), yard.machine.records()).unwrap();
        let known = |yard: &mut Yard, mark| {
            let attest = Attest { mark, replica: 2, digest: 0 };
            yard.send(Command::Attest(attest)).unwrap();
            match yard.events().pop() {
                Some(EventKind::DigestAttested { attest: heard, own }) if heard == attest => own,
                other => panic!("{other:?}"),
            }
        };
        for (mark, own) in
            [(0, None), (1, None), (2, Some(digests[1])), (3, Some(digests[2])), (4, None)]
        {
            assert_eq!(known(&mut yard, mark), own, "mark {mark}");
        }
    }

    /// The inputs of the digest are part of the rules: a build with other inputs stops the nodes of
    /// this one.
    #[test]
    fn the_digest_of_a_history_is_the_same_in_every_version() {
        let mut yard = history(|_| ());
        assert_eq!(yard.now(), Timestamp(START));
        assert_eq!(format!("{:016x}", marked(&mut yard)), "3f211f3604b8bf2d");
    }
}
