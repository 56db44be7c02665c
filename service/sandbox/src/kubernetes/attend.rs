//! Those in line: where each stands, and who waits for nothing.
//!
//! A caller waits for as long as something may yet come for it. It is told at once, by name, what is in
//! the way when, of all the pools that would do, none has a sandbox on its way that isn't blocked for
//! good, and none makes another. What is for good and what is worth some seconds is said in `ends`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use seance_core::sandbox::{BlockReason, ClaimError};
use seance_operator_api::Sandbox;
use tokio::time::Instant;

use super::cold::{OnTheirWay, is_starting};
use super::world::{Inner, Phase, World, pod_of};
use super::{ends, judge};

/// Network policies take a moment before they hold.
const CLOSED_WITHIN: Duration = Duration::from_secs(15);
/// A quota that refuses Sandboxes counts those that are on their way out.
const CREATE_REFUSED: Duration = Duration::from_secs(3);
/// Pods of a pool that end in a row before they serve, until no more are made for a while.
const EARLY_ENDS_MAX: u32 = 3;
/// That while.
const EARLY_ENDS_PAUSE: Duration = Duration::from_secs(30);

/// Sandboxes of a pool that ended before they could serve, since one last could.
#[derive(Debug)]
pub(super) struct EarlyEnds {
    n: u32,
    last: Instant,
    message: String,
}

impl EarlyEnds {
    /// Whether none is made for a while.
    pub(super) fn is_pause(&self, now: Instant) -> bool {
        self.n >= EARLY_ENDS_MAX && now < self.last + EARLY_ENDS_PAUSE
    }

    fn error(&self) -> ClaimError {
        let message = format!("pods of the pool end before they can serve: {}", self.message.trim_end());
        ClaimError::StartFailed { message }
    }
}

/// What can be expected of a pool.
#[derive(Default)]
struct Outlook {
    on_their_way: OnTheirWay,
    is_hopeful: bool,
    /// What stands in the way for good.
    block: Option<ClaimError>,
    /// When something that may yet go away counts as one that doesn't.
    until: Option<Instant>,
}

impl Outlook {
    fn add(&mut self, block: Option<(ClaimError, Instant)>, now: Instant) {
        match block {
            None => self.is_hopeful = true,
            Some((_, until)) if until > now => {
                self.is_hopeful = true;
                self.until = Some(self.until.map_or(until, |other| other.min(until)));
            }
            Some((error, _)) => {
                self.block.get_or_insert(error);
            }
        }
    }
}

/// Tells those in line where they stand, and ends what waits for nothing, for ever.
pub(super) async fn run(world: Arc<World>) {
    let mut changed = world.changed.subscribe();
    let mut again: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = changed.changed() => {}
            () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
        }
        again = world.lock().attend(Instant::now());
    }
}

impl Inner {
    /// Looks after those in line, and gives the time when that may come to something else.
    fn attend(&mut self, now: Instant) -> Option<Instant> {
        if self.queue.is_empty() {
            return None;
        }
        let outlooks = self.outlooks(now);
        let hopeless = |pools: &[String]| {
            let known = pools.iter().filter_map(|pool| outlooks.get(pool.as_str()));
            if known.clone().any(|outlook| outlook.is_hopeful) {
                return None;
            }
            known.filter_map(|outlook| outlook.block.clone()).next()
        };
        let mut over = Vec::new();
        for (place, position, pools) in self.queue.positions() {
            if let Some(waiting) = self.waiting.get(&place) {
                waiting.position.set(position);
            }
            over.extend(hopeless(pools).map(|error| (place, error)));
        }
        let again = outlooks.values().filter_map(|outlook| outlook.until).min();
        for (place, error) in over {
            self.queue.leave(place);
            if let Some(waiting) = self.waiting.remove(&place) {
                // Who has gone needs no answer.
                drop(waiting.grant.send(Err(error)));
            }
        }
        again
    }

    fn outlooks(&self, now: Instant) -> HashMap<String, Outlook> {
        let wanted = self.pools.keys().filter(|pool| self.queue.wants(pool));
        let mut outlooks: HashMap<String, Outlook> =
            wanted.map(|pool| (pool.clone(), Outlook::default())).collect();
        for sandbox in self.sandboxes.values().filter(|sandbox| is_starting(self, sandbox)) {
            if let Some(outlook) = outlooks.get_mut(&sandbox.spec.pool) {
                outlook.on_their_way.add(sandbox);
                outlook.add(self.block(sandbox), now);
            }
        }
        for (pool, outlook) in &mut outlooks {
            let refused = self.create_errors.get(pool);
            let n_to_make = self.n_to_make(pool, outlook.on_their_way);
            match refused.map(|(error, since)| (error.clone(), *since + CREATE_REFUSED)) {
                Some(refused) => outlook.add(Some(refused), now),
                None if n_to_make > 0 => outlook.is_hopeful = true,
                None => {}
            }
            // What stands in the way was made of another template: the operator has yet to make one of this.
            outlook.is_hopeful |= self.pools.get(pool).is_some_and(|pool| !pool.is_acted_on());
            if let Some(ends) = self.early_ends.get(pool).filter(|ends| ends.is_pause(now)) {
                outlook.block.get_or_insert(ends.error());
            }
        }
        outlooks
    }

    /// What keeps a Sandbox that is on its way from serving, and until when that may go away.
    fn block(&self, sandbox: &Sandbox) -> Option<(ClaimError, Instant)> {
        if let Some((error, patience)) = ends::blocked(sandbox) {
            let name = sandbox.metadata.name.as_deref().unwrap_or_default();
            let since = self.blocked_since.get(name).map_or_else(Instant::now, |(_, since)| *since);
            return Some((error, since + patience));
        }
        let runner = pod_of(sandbox).and_then(|id| self.runners.get(&id))?;
        let since = runner.open_since?;
        let message = judge::unproven(&self.verdicts(runner));
        let reason = BlockReason::IsolationNotProven;
        Some((ClaimError::Blocked { reason, message }, since + CLOSED_WITHIN))
    }

    /// What stands in the way of all sandboxes that could be waited for, be it for good or not.
    pub(super) fn why_none(&self, pools: &[String]) -> Option<ClaimError> {
        let ours = |sandbox: &&Sandbox| pools.contains(&sandbox.spec.pool) && is_starting(self, sandbox);
        let blocked = self.sandboxes.values().filter(ours).find_map(|sandbox| self.block(sandbox));
        let refused = || pools.iter().find_map(|pool| self.create_errors.get(pool));
        let early = || pools.iter().find_map(|pool| self.early_ends.get(pool));
        blocked
            .map(|(error, _)| error)
            .or_else(|| refused().map(|(error, _)| error.clone()))
            .or_else(|| early().map(EarlyEnds::error))
    }

    /// Remembers since when a Sandbox is kept from starting by the same thing, and pods that end early.
    pub(super) fn note_start(&mut self, name: &str, old: Option<&Sandbox>) {
        let Some(sandbox) = self.sandboxes.get(name) else { return };
        let reason = ends::started_reason(sandbox).filter(|_| ends::blocked(sandbox).is_some());
        match reason.map(str::to_owned) {
            None => drop(self.blocked_since.remove(name)),
            Some(reason) => {
                let standing = self.blocked_since.get(name).filter(|(standing, _)| *standing == reason);
                if standing.is_none() {
                    self.blocked_since.insert(name.to_owned(), (reason, Instant::now()));
                }
            }
        }
        let Some(end) =
            ends::finished(sandbox).filter(|_| old.is_some_and(|old| ends::finished(old).is_none()))
        else {
            return;
        };
        let runner = pod_of(sandbox).and_then(|id| self.runners.get(&id));
        let served = sandbox.spec.session.is_some() || ends::was_ready(sandbox);
        if served || runner.is_some_and(|runner| !matches!(runner.phase, Phase::Warm { .. })) {
            return;
        }
        let message = format!("{} {}", end.reason, end.detail);
        let ends = self.early_ends.entry(sandbox.spec.pool.clone());
        let ends = ends.or_insert(EarlyEnds { n: 0, last: Instant::now(), message: String::new() });
        *ends = EarlyEnds { n: ends.n.saturating_add(1), last: Instant::now(), message };
    }
}
