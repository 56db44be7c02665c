//! Which pool is measured, and whether it is ready. Pure.

use anyhow::{Result, bail};
use kube::ResourceExt as _;
use seance_core::limits::TABLE;
use seance_operator_api::pool::{ColdStart, condition_type, reason};
use seance_operator_api::{Quantity, SandboxPool, condition};
use seance_sandbox::kubernetes::MEMORY_RESERVE_BYTES;

use super::LABEL;

/// The engine whose programs the bench runs.
const ENGINE: &str = "javascript";
/// DESIGN section 11: 50 opens on a pool of 60.
pub const OPENS: usize = 50;
const OPENS_OF: usize = 60;

/// The pool to measure: the one of this name, or the only one with JavaScript.
///
/// # Errors
/// When there is none, or more than one.
pub fn choose(pools: Vec<SandboxPool>, name: Option<&str>, namespace: Option<&str>) -> Result<SandboxPool> {
    let place = namespace.map_or("the cluster".to_owned(), |namespace| format!("namespace {namespace}"));
    let mut pools = pools;
    // What an earlier run could not take away is none.
    pools.retain(|pool| !pool.labels().contains_key(LABEL));
    if pools.is_empty() {
        bail!("there is no SandboxPool in {place}; the chart's value `pools` makes them (docs/chart.md)");
    }
    let there = names(&pools);
    if let Some(name) = name {
        pools.retain(|pool| pool.name_any() == name);
        if pools.is_empty() {
            bail!("there is no SandboxPool {name:?} in {place}; there are: {there}");
        }
    }
    pools.retain(|pool| pool.spec.engines.iter().any(|engine| engine == ENGINE));
    match pools.len() {
        0 => bail!(
            "the bench runs JavaScript, and none of these SandboxPools has the engine {ENGINE:?}: {there}"
        ),
        1 => Ok(pools.remove(0)),
        _ => bail!(
            "there are several SandboxPools; name one with --pool and --sandbox-namespace: {}",
            names(&pools)
        ),
    }
}

fn names(pools: &[SandboxPool]) -> String {
    let of = |pool: &SandboxPool| format!("{}/{}", pool.namespace().unwrap_or_default(), pool.name_any());
    pools.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// How a pool is.
#[derive(Debug, PartialEq, Eq)]
pub enum Readiness {
    /// So many sandboxes are warm, all that there should be.
    Ready(usize),
    /// It may become so by itself; how it is.
    NotYet(String),
    /// It won't become so by itself; why.
    Never(String),
}

/// How a pool is.
pub fn readiness(pool: &SandboxPool) -> Readiness {
    let name = pool.name_any();
    if pool.spec.warm.max == 0 {
        let text = format!("pool {name} keeps no sandbox warm: raise its warm.min and warm.max");
        return Readiness::Never(text);
    }
    let status = pool.status.clone().unwrap_or_default();
    if !pool.is_acted_on() {
        return Readiness::NotYet(format!("pool {name}: the operator has not looked at it yet"));
    }
    let Some(ready) = condition(&status.conditions, condition_type::READY) else {
        return Readiness::NotYet(format!("pool {name}: the operator has said nothing of it yet"));
    };
    if ready.status == "True" && status.warm >= status.desired && status.warm > 0 {
        return Readiness::Ready(usize::try_from(status.warm).unwrap_or(0));
    }
    let counts = format!("{} of {} warm, {} starting", status.warm, status.desired, status.starting);
    let text = format!("pool {name} isn't ready: {} ({counts}) {}", ready.reason, ready.message);
    match ready.reason.as_str() {
        reason::FILLING | reason::WARM => Readiness::NotYet(text),
        // It fails at first, until policies hold.
        reason::ISOLATION_NOT_PROVEN => Readiness::NotYet(text),
        _ => Readiness::Never(format!("{text}; see \"A pool that isn't ready\" in docs/runbook.md")),
    }
}

/// How many opens a pool with so many warm sandboxes is measured with at one time.
pub fn opens_of(n_warm: usize) -> usize {
    (n_warm * OPENS / OPENS_OF).clamp(1, OPENS)
}

/// The pool that cold opens are measured with: like `pool`, with nothing warm, for one tenant, and with
/// more memory than all of `others`, so that only a session that asks for as much is given one of it.
/// Beside it the memory that such a session asks for, in bytes.
///
/// # Errors
/// When no session may ask for so much.
pub fn cold(
    pool: &SandboxPool,
    others: &[SandboxPool],
    tenant: &str,
    run: &str,
) -> Result<(SandboxPool, u64)> {
    const MIB: u64 = 1 << 20;
    let memory = TABLE.iter().find(|limit| limit.name == "memory_bytes").expect("the limit is in the table");
    let of = |pool: &SandboxPool| pool.spec.template.resources.limits.memory.value().unwrap_or(0);
    let most = others.iter().map(of).max().unwrap_or(0).div_ceil(MIB) * MIB;
    let asked = (most + MIB).saturating_sub(MEMORY_RESERVE_BYTES).max(memory.min);
    if asked > memory.max {
        bail!(
            "a pool has {most} bytes of memory, more than a session may ask for, so that none can be made beside it \
             for cold opens; leave cold_open out with --only"
        );
    }
    let mut spec = pool.spec.clone();
    spec.tenants = vec![tenant.to_owned()];
    (spec.warm.min, spec.warm.max, spec.warm.percent_of_assigned) = (0, 0, 0);
    spec.cold_start = ColdStart::Allowed;
    let resources = &mut spec.template.resources;
    // What a node must have free stays the same.
    resources.requests.memory.get_or_insert_with(|| resources.limits.memory.clone());
    resources.limits.memory = Quantity::new(format!("{}Mi", (asked + MEMORY_RESERVE_BYTES).div_ceil(MIB)));
    let mut cold = SandboxPool::new(&format!("bench-{run}"), spec);
    cold.metadata.namespace = pool.namespace();
    cold.metadata.labels = Some([(LABEL.to_owned(), run.to_owned())].into());
    Ok((cold, asked))
}

#[cfg(test)]
mod tests;
