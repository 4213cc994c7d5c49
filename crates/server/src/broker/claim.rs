//! Claims. A claim from queues of one shard is parked on that shard. A claim from several shards
//! leaves a hint on each. A spread queue has several shards; when its spread changes, waiting
//! claims follow. A claim may name the types of tasks that its worker can run.
//!
//! A claim over several shards first asks their leaders which of them have ready tasks. Then it
//! claims from those, one at a time (strict) or by shares drawn from the weights. If none has
//! tasks, it leaves a hint on every shard and sleeps. When the caller goes away, `Undelivered`
//! releases tasks that it did not get.

use super::{Broker, check_queue};
use crate::{
    Error,
    clock::real_now,
    random::random_u64,
    shard::{ClaimRequest, HandedTask, Hint, Look, Sought, TaskTypes},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::{collections::BTreeMap, time::Duration};
use taskyard_machine::{SessionId, ShardId, ask, limits};
use tokio::time::timeout;

/// How long a claim over several shards waits for each of them to say whether it has ready tasks. A
/// leader answers faster; a shard without a leader must not delay tasks of the others for long.
const PROBE_FOR_MAX: Duration = Duration::from_millis(250);
/// How long such a claim then waits for tasks of one shard. This is longer, because tasks of an
/// abandoned claim come back late.
const CLAIM_FOR_MAX: Duration = Duration::from_secs(1);
/// The bytes of one claim over all its shards, but for the task that each shard gives at least.
const CLAIM_BYTES: u32 = limits::CLAIM_BYTES_MAX as u32;
/// A weight is split among shards in this many parts.
const WEIGHT_PARTS: u64 = 1 << 20;
/// The pause before a shard that did not answer is asked for a hint again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The queues and types of a claim, checked.
#[derive(Clone, Debug)]
pub struct Places {
    weighted: bool,
    queues: Vec<(String, u32)>,
    types: TaskTypes,
}

impl Places {
    /// The same queues, for tasks of these types only; for all types if the list is empty.
    pub fn of_types(self, types: Vec<String>) -> Result<Places, Error> {
        let (count, count_max) = (types.len(), limits::CLAIM_TYPES_MAX);
        if count > count_max {
            let text = format!(
                "types names {count} types, at most {count_max} are allowed; split the worker, or \
                 claim without types"
            );
            return Err(Error::Invalid(text));
        }
        for name in &types {
            if name.is_empty() {
                return Err(Error::Invalid("types has an empty type; leave it out".into()));
            }
            let (bytes, bytes_max) = (name.len(), limits::TYPE_BYTES_MAX);
            if bytes > bytes_max {
                let text = format!("a type has {bytes} bytes, at most {bytes_max} are allowed");
                return Err(Error::Invalid(text));
            }
        }
        Ok(Places { types: TaskTypes::new(types), ..self })
    }

    /// The types of tasks that the claim takes.
    pub(crate) fn types(&self) -> &TaskTypes {
        &self.types
    }

    /// The names of all queues of the claim.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &str> {
        self.queues.iter().map(|(name, _)| name.as_str())
    }
}

/// Queues of one shard that are asked for together.
#[derive(Clone, Debug)]
struct Run {
    shard: ShardId,
    queues: Vec<(String, u32)>,
}

/// A claim from queues of any shards.
#[derive(Clone, Debug)]
pub struct ClaimAsked {
    /// The most tasks to claim, at least 1.
    pub tasks_max: u32,
    /// The lease of each claim.
    pub lease_ms: u64,
    /// The session that will hold the claims.
    pub session: Option<SessionId>,
    /// Whether tasks count as begun when they are handed out, because the worker does not report
    /// when it begins.
    pub begun: bool,
    /// The worker's name, for people.
    pub worker: String,
}

impl ClaimAsked {
    /// Checks what the machine would reject, because an empty claim never reaches the machine.
    pub fn check(&self) -> Result<(), Error> {
        let tasks_max = limits::CLAIM_TASKS_MAX;
        if self.tasks_max == 0 || self.tasks_max as usize > tasks_max {
            return Err(Error::Invalid(format!("max {} is not 1 to {tasks_max}", self.tasks_max)));
        }
        let (shortest, longest) = (limits::LEASE_MS_MIN, limits::LEASE_MS_MAX);
        if self.lease_ms < shortest || self.lease_ms > longest {
            let text = format!("lease_ms {} is not {shortest} to {longest}", self.lease_ms);
            return Err(Error::Invalid(text));
        }
        let (bytes, bytes_max) = (self.worker.len(), limits::WORKER_NAME_BYTES_MAX);
        if bytes > bytes_max {
            let text = format!("worker has {bytes} bytes, at most {bytes_max} are allowed");
            return Err(Error::Invalid(text));
        }
        Ok(())
    }
}

/// Checks how long a call may wait.
pub(crate) fn check_wait(wait_ms: u64) -> Result<Duration, Error> {
    let longest = limits::CLAIM_WAIT_MS_MAX;
    if wait_ms > longest {
        return Err(Error::Invalid(format!("wait_ms {wait_ms} is more than {longest}")));
    }
    Ok(Duration::from_millis(wait_ms))
}

impl Broker {
    /// Checks the queues of a claim. Without weights (all 0) the queues are served in their order.
    /// Otherwise tasks are drawn by weight, and a weight of 0 counts as 1.
    pub fn places(&self, queues: &[(String, u32)]) -> Result<Places, Error> {
        if queues.is_empty() {
            return Err(Error::Invalid("queues is empty; name at least one queue".into()));
        }
        let (count, count_max) = (queues.len(), limits::CLAIM_QUEUES_MAX);
        if count > count_max {
            let text = format!("queues names {count} queues, at most {count_max} are allowed");
            return Err(Error::Invalid(text));
        }
        let weighted = queues.iter().any(|(_, weight)| *weight != 0);
        for (index, (name, weight)) in queues.iter().enumerate() {
            check_queue(name)?;
            if *weight > limits::WEIGHT_MAX {
                let text =
                    format!("weight {weight} of queue {name} is not 1 to {}", limits::WEIGHT_MAX);
                return Err(Error::Invalid(text));
            }
            if queues[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(Error::Invalid(format!("queues names {name} twice")));
            }
        }
        let queues = queues.iter().map(|(name, weight)| (name.clone(), (*weight).max(1)));
        Ok(Places { weighted, queues: queues.collect(), types: TaskTypes::ANY })
    }

    /// Groups the queues of a claim by the shards that have them now. The first shard of a spread
    /// queue is random, so that no shard always comes last.
    fn runs(&self, places: &Places) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (name, weight) in &places.queues {
            let mut reach = self.shards().reach(name);
            if reach.len() > 1 {
                let first = random_u64() % reach.len() as u64;
                reach.rotate_left(first as usize);
            }
            for shard in reach {
                // In strict order, only neighbours may be asked together.
                let joined = match places.weighted {
                    true => runs.iter_mut().find(|run| run.shard == shard),
                    false => runs.last_mut().filter(|run| run.shard == shard),
                };
                let queue = (name.clone(), *weight);
                match joined {
                    Some(run) => run.queues.push(queue),
                    None => runs.push(Run { shard, queues: vec![queue] }),
                }
            }
        }
        runs
    }

    /// The number of shards of each queue of a claim.
    fn reaches(&self, places: &Places) -> Vec<u16> {
        let reach = |name| self.shards().spread(name).map_or(1, |spread| spread.reach);
        places.queues().map(reach).collect()
    }

    /// Completes when the spread of a claimed queue changes.
    async fn spread_changed(&self, places: &Places, reaches: &[u16]) {
        let mut changes = self.shards().routes().changes();
        while self.reaches(places) == *reaches {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Claims up to `asked.tasks_max` tasks. If none is ready, waits up to `wait` for the first.
    /// Dropping the future releases its claims.
    pub async fn claim(
        &self,
        places: &Places,
        asked: &ClaimAsked,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        asked.check()?;
        if wait.is_zero() {
            return self.claim_from_current_shards(places, asked, wait).await;
        }
        // A worker with a session is listed anyway.
        let _listening =
            asked.session.is_none().then(|| self.sessions().listeners().listen(places));
        let until = real_now() + wait;
        let mut left = wait;
        loop {
            let reaches = self.reaches(places);
            tokio::select! {
                biased;
                claimed = self.claim_from_current_shards(places, asked, left) => return claimed,
                () = self.stopping() => return Ok(Vec::new()),
                // Tasks claimed by then are released, and the next round finds them again.
                () = self.spread_changed(places, &reaches) => {}
            }
            left = until.saturating_duration_since(real_now());
        }
    }

    /// Claims from the shards that have the queues now.
    async fn claim_from_current_shards(
        &self,
        places: &Places,
        asked: &ClaimAsked,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        let runs = self.runs(places);
        match runs.as_slice() {
            [run] if wait.is_zero() => self.claim_strictly(places, run, asked).await,
            [run] => {
                let request = request(places, run, asked, asked.tasks_max, CLAIM_BYTES);
                self.shards().claim(run.shard, request, wait).await
            }
            runs => self.claim_from_several(places, runs, asked, wait).await,
        }
    }

    /// Claims from one shard without waiting. A leader must confirm that it still leads before the
    /// answer is "no tasks", because a deposed leader does not know newer tasks.
    async fn claim_strictly(
        &self,
        places: &Places,
        run: &Run,
        asked: &ClaimAsked,
    ) -> Result<Vec<HandedTask>, Error> {
        let claim = || {
            let request = request(places, run, asked, asked.tasks_max, CLAIM_BYTES);
            self.shards().claim(run.shard, request, Duration::ZERO)
        };
        let claimed = claim().await?;
        if !claimed.is_empty() {
            return Ok(claimed);
        }
        let queues = run.queues.iter().map(|(name, _)| name.clone()).collect();
        let types = places.types.names().to_vec();
        match self.shards().ask(run.shard, ask::Claimable { queues, types }).await? {
            true => claim().await,
            false => Ok(claimed),
        }
    }

    async fn claim_from_several(
        &self,
        places: &Places,
        runs: &[Run],
        asked: &ClaimAsked,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        let looks = looks(places, runs);
        // "No tasks" needs a confirmed leader only if the claim does not wait.
        let hints = match wait.is_zero() {
            true => self.shards().probe_strictly(&looks, PROBE_FOR_MAX).await,
            false => self.shards().probe(&looks, PROBE_FOR_MAX).await,
        };
        let ready = ready_shards(hints);
        let claimed = match &ready {
            Ok(ready) => self.claim_from(places, runs, asked, ready).await,
            Err(error) => Err(error.clone()),
        };
        if wait.is_zero() || claimed.as_ref().is_ok_and(|tasks| !tasks.is_empty()) {
            return claimed;
        }
        let count = looks.len();
        let mut hints = self.shards().hints(looks, wait);
        // Shards that did not answer when they were last asked.
        let mut failed: BTreeMap<ShardId, Error> = BTreeMap::new();
        let mut over = std::pin::pin!(tokio::time::sleep(wait));
        loop {
            let hint = tokio::select! {
                hint = hints.next() => hint,
                () = &mut over => None,
            };
            let (shard, claimed) = match hint {
                None | Some((_, Ok(0))) => return Ok(Vec::new()),
                Some((shard, Ok(count))) => {
                    (shard, self.claim_from(places, runs, asked, &[(shard, count)]).await)
                }
                Some((shard, Err(error))) => (shard, Err(error)),
            };
            match claimed {
                Ok(tasks) if tasks.is_empty() => {
                    // Another claim was faster.
                    failed.remove(&shard);
                    hints.again(shard);
                }
                Ok(tasks) => return Ok(tasks),
                Err(error) => {
                    failed.insert(shard, error.clone());
                    if failed.len() == count {
                        return Err(error);
                    }
                    // The other shards may have tasks, whatever this one answered.
                    hints.search(shard, ASK_AGAIN_AFTER);
                }
            }
        }
    }

    /// Claims from those shards without waiting. Skips a shard that does not answer. Fails only if
    /// a shard failed and no other had tasks.
    async fn claim_from(
        &self,
        places: &Places,
        runs: &[Run],
        asked: &ClaimAsked,
        ready: &[(ShardId, u64)],
    ) -> Result<Vec<HandedTask>, Error> {
        let count = |run: &Run| {
            let found = ready.iter().find(|(shard, _)| *shard == run.shard);
            found.map_or(0, |(_, count)| *count)
        };
        let runs: Vec<&Run> = runs.iter().filter(|run| count(run) > 0).collect();
        let mut undelivered = Undelivered { broker: self, tasks: Vec::new() };
        let mut failed = None;
        let mut take = |undelivered: &mut Undelivered<'_>, claimed| match claimed {
            Ok(tasks) => undelivered.tasks.extend::<Vec<HandedTask>>(tasks),
            Err(error) => failed = Some(error),
        };
        let mut left = asked.tasks_max;
        // Shards that are asked at once share the bytes. Each gives one task at least.
        let bytes_each = CLAIM_BYTES / runs.len().max(1) as u32;
        if places.weighted && runs.len() > 1 {
            let shares = draw(&runs, left, random_u64());
            let claims = runs.iter().zip(shares).filter(|(_, share)| *share > 0);
            let claims =
                claims.map(|(run, share)| self.claim_run(places, run, asked, share, bytes_each));
            // Each answer is taken as soon as it comes, so that nothing leaks if the caller goes
            // away.
            let mut claims: FuturesUnordered<_> = claims.collect();
            while let Some(claimed) = claims.next().await {
                take(&mut undelivered, claimed);
            }
            left = left.saturating_sub(undelivered.tasks.len() as u32);
        }
        let all = runs.iter().fold(0u64, |all, run| all.saturating_add(count(run)));
        if !places.weighted && runs.len() > 1 && all <= u64::from(left) {
            // There is room for all ready tasks, so no shard waits for the rest of another. Each
            // gives at most what it reported, though it may have more by now.
            let claims = runs
                .iter()
                .map(|run| self.claim_run(places, run, asked, count(run) as u32, bytes_each));
            let mut claims: FuturesUnordered<_> = claims.collect();
            while let Some(claimed) = claims.next().await {
                take(&mut undelivered, claimed);
            }
            left = 0;
        }
        // The next shard may fill what this one could not.
        for run in runs {
            if left == 0 || undelivered.bytes() >= limits::CLAIM_BYTES_MAX {
                break;
            }
            take(&mut undelivered, self.claim_run(places, run, asked, left, CLAIM_BYTES).await);
            left = asked.tasks_max.saturating_sub(undelivered.tasks.len() as u32);
        }
        match failed {
            Some(error) if undelivered.tasks.is_empty() => Err(error),
            _ => Ok(std::mem::take(&mut undelivered.tasks)),
        }
    }

    /// Claims from one shard without waiting. A late answer is released, because a shard without a
    /// leader must not delay tasks of the others.
    async fn claim_run(
        &self,
        places: &Places,
        run: &Run,
        asked: &ClaimAsked,
        tasks_max: u32,
        bytes_max: u32,
    ) -> Result<Vec<HandedTask>, Error> {
        let request = request(places, run, asked, tasks_max, bytes_max);
        let claim = self.shards().claim(run.shard, request, Duration::ZERO);
        let elapsed = |_| Err(Error::NoQuorum { shard: run.shard.0 });
        timeout(CLAIM_FOR_MAX, claim).await.unwrap_or_else(elapsed)
    }
}

/// The shards that have ready tasks for a claim now, and how many. A shard that does not answer in
/// time counts as empty, because its hint will follow. Fails if no shard answers.
fn ready_shards(hints: Vec<Hint>) -> Result<Vec<(ShardId, u64)>, Error> {
    let asked = hints.len();
    let (mut ready, mut failed) = (Vec::new(), Vec::new());
    for (shard, has_something) in hints {
        match has_something {
            Ok(0) => {}
            Ok(count) => ready.push((shard, count)),
            Err(error) => failed.push(error),
        }
    }
    match failed.pop() {
        Some(error) if failed.len() + 1 == asked => Err(error),
        _ => Ok(ready),
    }
}

/// All queues of a claim, by shard.
fn looks(places: &Places, runs: &[Run]) -> Vec<Look> {
    let mut queues: BTreeMap<ShardId, Vec<String>> = BTreeMap::new();
    for run in runs {
        let names = run.queues.iter().map(|(name, _)| name.clone());
        queues.entry(run.shard).or_default().extend(names);
    }
    let sought = |queues| Sought { queues, types: places.types.clone() };
    queues.into_iter().map(|(shard, queues)| (shard, sought(queues))).collect()
}

fn request(
    places: &Places,
    run: &Run,
    asked: &ClaimAsked,
    tasks_max: u32,
    bytes_max: u32,
) -> ClaimRequest {
    ClaimRequest {
        queues: run.queues.clone(),
        types: places.types.clone(),
        weighted: places.weighted,
        tasks_max,
        bytes_max,
        lease_ms: asked.lease_ms,
        session: asked.session,
        number: None,
        begun: asked.begun,
        worker: asked.worker.clone(),
    }
}

/// The weight of each run. A queue on several shards has its weight once in all, or its spread
/// would add weight.
fn weights(runs: &[&Run]) -> Vec<u64> {
    let mut shares: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, _) in runs.iter().flat_map(|run| &run.queues) {
        *shares.entry(name).or_default() += 1;
    }
    let weight =
        |(name, weight): &(String, u32)| u64::from(*weight) * WEIGHT_PARTS / shares[name.as_str()];
    runs.iter().map(|run| run.queues.iter().map(weight).sum()).collect()
}

/// Splits `credits` over the runs: each credit goes to one run, drawn by weight.
fn draw(runs: &[&Run], credits: u32, mut seed: u64) -> Vec<u32> {
    let weights = weights(runs);
    let total: u64 = weights.iter().sum();
    let mut shares = vec![0; runs.len()];
    for _ in 0..credits {
        // xorshift64* is enough for shares; the machine draws the order within a shard itself.
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        let drawn = u128::from(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut point = ((drawn * u128::from(total)) >> 64) as u64;
        for (weight, share) in weights.iter().zip(&mut shares) {
            match point.checked_sub(*weight) {
                Some(rest) => point = rest,
                None => {
                    *share += 1;
                    break;
                }
            }
        }
    }
    shares
}

/// Claimed tasks that the caller has not got yet; released when dropped.
struct Undelivered<'a> {
    broker: &'a Broker,
    tasks: Vec<HandedTask>,
}

impl Undelivered<'_> {
    fn bytes(&self) -> usize {
        self.tasks.iter().map(HandedTask::bytes).sum()
    }
}

impl Drop for Undelivered<'_> {
    fn drop(&mut self) {
        self.broker.shards().release_later(&self.tasks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_shared_by_weight_and_none_is_lost() {
        let run = |weight| Run { shard: ShardId(0), queues: vec![("q".into(), weight)] };
        let (heavy, light) = (run(3), run(1));
        let shares = draw(&[&heavy, &light], 4_000, 42);
        assert_eq!(shares.iter().sum::<u32>(), 4_000);
        assert!((2_800..3_200).contains(&shares[0]), "{shares:?}");
    }

    #[test]
    fn a_spread_queue_has_its_weight_once() {
        let on = |shard, name: &str, weight| Run {
            shard: ShardId(shard),
            queues: vec![(name.into(), weight)],
        };
        let runs = [on(0, "spread", 1), on(1, "spread", 1), on(2, "spread", 1), on(3, "plain", 1)];
        let shares = draw(&runs.each_ref(), 4_000, 42);
        assert!((1_800..2_200).contains(&shares[3]), "{shares:?}");
        assert!(shares[..3].iter().all(|share| (550..780).contains(share)), "{shares:?}");
    }
}
