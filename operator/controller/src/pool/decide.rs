//! How many sandboxes a pool makes and which it asks to go, from what there is.
//!
//! Guarantees, whatever there is:
//! - never more unassigned sandboxes that live than the goal and `max_starting` together;
//! - never more than `max_starting` that start;
//! - what has a session is never asked to go;
//! - no warm one is asked to go while that leaves fewer warm ones than the goal, so that old ones
//!   give way to new ones and not to nothing; but those on a node that takes no more pods go at once:
//!   it will be drained, and with it whoever gets one of them.

use seance_operator_api::pool::SandboxPoolSpec;

/// How long pools with sandboxes that end early wait at most before they make the next.
const BACKOFF_SECONDS_MAX: i64 = 300;

/// What a pool wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// At least so many warm.
    pub min: usize,
    /// At most so many warm.
    pub max: usize,
    /// So many warm for a hundred assigned.
    pub percent_of_assigned: usize,
    /// So many may start at one time, and be there beyond the goal.
    pub max_starting: usize,
    /// How old an unassigned one may be, in seconds.
    pub max_age: i64,
    /// How long one may run without getting warm, in seconds.
    pub warm_within: i64,
}

impl Wanted {
    /// What a pool's spec says. What the API server would have refused is taken as the nearest that
    /// it would not.
    pub fn of(spec: &SandboxPoolSpec, warm_within: i64) -> Self {
        let count = |number: i32| usize::try_from(number).unwrap_or(0);
        Self {
            min: count(spec.warm.min),
            max: count(spec.warm.max).max(count(spec.warm.min)),
            percent_of_assigned: count(spec.warm.percent_of_assigned),
            max_starting: count(spec.refill.max_starting).max(1),
            max_age: spec.max_warm_age_seconds.max(60),
            warm_within,
        }
    }

    /// How many should be warm.
    pub fn goal(&self, n_assigned: usize) -> usize {
        (n_assigned * self.percent_of_assigned).div_ceil(100).clamp(self.min, self.max)
    }
}

/// One sandbox of the pool. Times are seconds of Unix time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The Sandbox's UID.
    pub uid: String,
    /// When it was made.
    pub created: i64,
    /// How far it is.
    pub state: State,
    /// Made from another template than the pool has now.
    pub is_stale: bool,
    /// Warm or not yet, on a node that takes no more pods.
    pub is_leaving: bool,
}

/// How far a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not warm yet; its container runs since then, if it does.
    Starting {
        /// Since when the container runs.
        running_since: Option<i64>,
    },
    /// Made by the service for a session that waits for it: not ours to count or to end.
    Cold {
        /// When it counts as warm, should no session have taken it by then; none before it is ready.
        until: Option<i64>,
    },
    /// It waits for a session.
    Warm,
    /// It has a session.
    Assigned,
    /// Asked to go, without a session.
    Retiring,
    /// Its pod has ended; when, if it ended before it served and nobody wanted that.
    Finished {
        /// When it failed.
        failed: Option<i64>,
    },
}

/// What is to be done, and what was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// How many should be warm.
    pub goal: usize,
    /// How many to make.
    pub create: usize,
    /// Which to ask to go, by UID.
    pub retire: Vec<String>,
    /// How many start, those that were made and not seen yet included.
    pub starting: usize,
    /// How many are warm.
    pub warm: usize,
    /// How many have a session.
    pub assigned: usize,
    /// How many are on their way out without a session.
    pub retiring: usize,
    /// How many are to be replaced.
    pub stale: usize,
    /// How many ended before they served, of those that are remembered.
    pub failed: usize,
    /// When to look again, in seconds of Unix time, if nothing happens before.
    pub look_again: Option<i64>,
}

/// Decides. `unseen` sandboxes were made and aren't among the members yet.
pub fn decide(wanted: &Wanted, members: &[Member], unseen: usize, now: i64) -> Decision {
    let of = |matches: fn(&State) -> bool| members.iter().filter(move |member| matches(&member.state));
    let (leaving, warm): (Vec<&Member>, Vec<&Member>) =
        of(|state| matches!(state, State::Warm)).partition(|member| member.is_leaving);
    let starting: Vec<&Member> = of(|state| matches!(state, State::Starting { .. })).collect();
    let retiring = of(|state| matches!(state, State::Retiring)).count();
    let assigned = of(|state| matches!(state, State::Assigned)).count();
    let failures: Vec<i64> = members.iter().filter_map(failed).collect();
    let goal = wanted.goal(assigned);

    let is_old = |member: &&&Member| member.is_stale || now - member.created >= wanted.max_age;
    let stale_warm = warm.iter().filter(is_old).count();
    let target = goal + stale_warm.min(wanted.max_starting);

    let mut going = given_up(wanted, &starting, retiring, now);
    let surplus = (starting.len() - going.len() + warm.len() + unseen).saturating_sub(target);
    going.extend(newest_first(&starting, &going).into_iter().take(surplus));
    let n_starting = starting.len() - going.len();
    going.extend(oldest_first(&warm, is_old).into_iter().take(warm.len().saturating_sub(goal)));
    going.extend(&leaving);

    let serving = n_starting + warm.len() + unseen;
    let alive = starting.len() + warm.len() + leaving.len() + retiring + unseen;
    let room = [
        target.saturating_sub(serving),
        wanted.max_starting.saturating_sub(n_starting + unseen),
        (goal + wanted.max_starting).saturating_sub(alive),
    ];
    let paused_until = backoff_end(&failures).filter(|until| *until > now);
    let most = if failures.is_empty() { usize::MAX } else { 1 };
    let room = room.into_iter().min().unwrap_or(0).min(most);

    let ages = warm.iter().map(|member| member.created + wanted.max_age);
    let patience = starting.iter().filter_map(|member| running_until(wanted, member));
    let cold = members.iter().filter_map(cold_until);
    Decision {
        goal,
        create: if paused_until.is_some() { 0 } else { room },
        retire: going.into_iter().map(|member| member.uid.clone()).collect(),
        starting: n_starting + unseen,
        warm: warm.len() + leaving.len(),
        assigned,
        retiring,
        stale: stale_warm + leaving.len(),
        failed: failures.len(),
        look_again: ages.chain(patience).chain(cold).chain(paused_until).filter(|at| *at > now).min(),
    }
}

fn failed(member: &Member) -> Option<i64> {
    match member.state {
        State::Finished { failed } => failed,
        _ => None,
    }
}

fn running_until(wanted: &Wanted, member: &Member) -> Option<i64> {
    match member.state {
        State::Starting { running_since: Some(since) } => Some(since + wanted.warm_within),
        _ => None,
    }
}

fn cold_until(member: &Member) -> Option<i64> {
    match member.state {
        State::Cold { until } => until,
        _ => None,
    }
}

/// Those that start and won't be any use: of an old template or on a closed node, and, a few at a time,
/// those that have run for long without getting warm.
fn given_up<'a>(wanted: &Wanted, starting: &[&'a Member], retiring: usize, now: i64) -> Vec<&'a Member> {
    let (mut going, patient): (Vec<&Member>, Vec<&Member>) =
        starting.iter().copied().partition(|member| member.is_stale || member.is_leaving);
    let budget = wanted.max_starting.saturating_sub(retiring + going.len());
    let stuck = patient.into_iter().filter(|is| running_until(wanted, is).is_some_and(|until| until <= now));
    going.extend(stuck.take(budget));
    going
}

fn newest_first<'a>(starting: &[&'a Member], going: &[&Member]) -> Vec<&'a Member> {
    let mut rest: Vec<&Member> =
        starting.iter().copied().filter(|member| !going.iter().any(|gone| gone.uid == member.uid)).collect();
    rest.sort_by(|a, b| (b.created, &b.uid).cmp(&(a.created, &a.uid)));
    rest
}

/// Old ones first, and of each kind the oldest first.
fn oldest_first<'a>(warm: &[&'a Member], is_old: impl Fn(&&&Member) -> bool) -> Vec<&'a Member> {
    let mut all = warm.to_vec();
    all.sort_by(|a, b| (!is_old(&a), a.created, &a.uid).cmp(&(!is_old(&b), b.created, &b.uid)));
    all
}

/// Until when nothing is made, where sandboxes end early: twice as long with each that did.
fn backoff_end(failures: &[i64]) -> Option<i64> {
    let last = failures.iter().max()?;
    let exponent = u32::try_from(failures.len()).unwrap_or(u32::MAX).min(9);
    Some(last + 2i64.pow(exponent).min(BACKOFF_SECONDS_MAX))
}

#[cfg(test)]
mod tests;
