//! The beginning of a session: a sandbox, and the one commit that makes the session and uses it.

use seance_core::machine::Action;
use seance_core::sandbox::{ClaimRequest, Claimed, EndReason, QueuePosition};
use seance_core::store;
use tokio::time::Instant;

use super::*;
use crate::claim::{CLAIM_TRIES, all_used, end_used};
use crate::once::OnceGuard;

/// A session that is in the store.
pub(super) struct Created {
    pub(super) record: SessionRecord,
    pub(super) machine: Machine,
    pub(super) claimed: Claimed,
    /// What waited for the commit.
    pub(super) committed: Vec<Action>,
}

impl Sessions {
    /// Claims a sandbox and creates the session with it. A sandbox that the store says was used before
    /// ends, and the next is taken; nothing of it is seen.
    pub(super) async fn created(&self, record: SessionRecord, once: &OnceGuard) -> Result<Created, Error> {
        let deadline = Instant::now() + self.inner.config.claim_wait;
        let cleanup = record.limits.cleanup();
        for _ in 0..CLAIM_TRIES {
            let claim = ClaimRequest {
                tenant: record.tenant.clone(),
                engine: record.engine.clone(),
                memory_bytes: record.limits.memory_bytes,
                wait: deadline - Instant::now(),
                position: QueuePosition::default(),
            };
            let claimed = self.inner.backend.claim(claim).await?;
            let mut random = || self.inner.config.environment.random();
            let mut ctx = Context { now: self.inner.now(), random: &mut random };
            let mut machine = Machine::open(record.clone(), claimed.id, &claimed.engine_version, &mut ctx);
            let step = machine.take_step();
            let opened = machine.record().clone();
            let first = Append {
                events: step.events,
                uses_sandbox: step.uses_sandbox,
                done: once.done(opened.id.to_string()),
                ..Append::empty(opened.tenant.clone(), opened.id, opened.epoch)
            };
            match self.inner.store.create(opened.clone(), first).await {
                Ok(()) => {
                    return Ok(Created { record: opened, machine, claimed, committed: step.committed });
                }
                Err(store::Error::SandboxUsed { .. }) => {
                    end_used(claimed.id, &*claimed.handle, cleanup).await;
                }
                Err(error) => {
                    let unproven = claimed.handle.end(EndReason::Released, cleanup).await;
                    drop(unproven);
                    return Err(error.into());
                }
            }
        }
        Err(all_used().into())
    }
}
