//! The sandbox of a session: got, taken back after a restart, lost, ended with proof, or left.

use super::*;
use crate::claim::claim_unused;

impl Task {
    pub(super) fn take_link(&mut self, claimed: Claimed) {
        let Claimed { id, sender, receiver, handle, .. } = claimed;
        self.handles.insert(id, handle);
        self.link = Some(Link { id, sender, receiver });
    }

    pub(super) fn claimed(&mut self, claimed: Claimed) {
        let (id, version) = (claimed.id, claimed.engine_version.clone());
        self.take_link(claimed);
        self.input(|machine, ctx| machine.sandbox_claimed(ctx, id, &version));
    }

    pub(super) fn taken_back(&mut self, sandbox: SandboxId, result: TakenBack) {
        let ends = self.ends_on_arrival.take();
        match result {
            Ok((claimed, resumed)) => {
                let version = claimed.engine_version.clone();
                self.take_link(claimed);
                match ends {
                    Some((reason, within)) => {
                        self.link = None;
                        self.end_sandbox(sandbox, reason, within);
                    }
                    None => {
                        self.input(|machine, ctx| machine.taken_back(ctx, sandbox, &version, &resumed));
                    }
                }
            }
            // It has ended, which proves it.
            Err(_) if ends.is_some() => self.ended(sandbox, Ok(())),
            Err(end) => self.input(|machine, ctx| machine.sandbox_ended(ctx, sandbox, end)),
        }
    }

    pub(super) fn link_ended(&mut self, end: SandboxEnd) {
        let Some(link) = self.link.take() else { return };
        self.input(|machine, ctx| machine.sandbox_ended(ctx, link.id, end));
    }

    pub(super) fn ended(&mut self, sandbox: SandboxId, proof: Result<(), EndUnproven>) {
        let is_last = self.ending.get_mut(&sandbox).is_none_or(|n| {
            *n -= 1;
            *n == 0
        });
        match proof {
            Ok(()) => {
                self.handles.remove(&sandbox);
                self.ending.remove(&sandbox);
                self.input(|machine, ctx| machine.end_proven(ctx, sandbox));
            }
            Err(EndUnproven { message }) => {
                tracing::warn!(session = %self.shared.id, %sandbox, message, "the end of a sandbox is not proven");
                let session = self.shared.id;
                for reply in self.closing.drain(..) {
                    let _ = reply.send(Err(Error::CleanupUnproven { session, message: message.clone() }));
                }
                // One goes on for as long as it takes, however often a close is repeated.
                if is_last {
                    self.end_sandbox(sandbox, EndReason::Released, SWEEP_WAIT);
                }
            }
        }
    }

    pub(super) fn end_sandbox(&mut self, sandbox: SandboxId, reason: EndReason, within: Duration) {
        // What ends it comes with its runner; until then its end can't be proven.
        if !self.taking_back.is_empty() {
            self.ends_on_arrival = Some((reason, within));
            return;
        }
        *self.ending.entry(sandbox).or_default() += 1;
        match self.handles.get(&sandbox).cloned() {
            Some(handle) => {
                self.ends.spawn(async move { (sandbox, handle.end(reason, within).await) });
            }
            None => {
                self.ends.spawn(std::future::ready((sandbox, Ok(()))));
            }
        }
    }

    pub(super) fn claim(&mut self) {
        let record = self.machine.record();
        let request = ClaimRequest {
            tenant: record.tenant.clone(),
            engine: record.engine.clone(),
            memory_bytes: record.limits.memory_bytes,
            wait: self.inner.config.claim_wait,
            position: self.shared.queue_position.clone(),
        };
        let (backend, store) = (self.inner.backend.clone(), self.inner.store.clone());
        self.claims.spawn(claim_unused(backend, store, request, record.limits.cleanup()));
    }

    /// The service stops: a local sandbox can't outlive it, the session can. One that can is left as
    /// it is, for the next start of the service.
    pub(super) async fn leave(&mut self) {
        if self.inner.backend.outlives_service() {
            // One that is awaited is only let go of, too.
            self.taking_back.detach_all();
            return self.handles.values().for_each(|handle| handle.leave());
        }
        if let Some(sandbox) = self.machine.sandbox_id() {
            let end = SandboxEnd::new(EndReason::ServiceStopped);
            self.input(|machine, ctx| machine.sandbox_ended(ctx, sandbox, end));
            self.settle(None, Vec::new());
        }
        while let Some(ended) = self.ends.join_next().await {
            let (sandbox, proof) = joined(ended);
            if proof.is_ok() {
                self.input(|machine, ctx| machine.end_proven(ctx, sandbox));
                self.settle(None, Vec::new());
            }
        }
    }

    /// Another owner has the session. What this one still has of it ends.
    pub(super) async fn abandon(&mut self) {
        let within = self.machine.record().limits.cleanup();
        let ends = self.handles.values().map(|handle| handle.end(EndReason::ServiceStopped, within));
        for unproven in futures::future::join_all(ends).await.into_iter().filter_map(Result::err) {
            tracing::warn!(session = %self.shared.id, %unproven, "the end of a sandbox is not proven");
        }
    }
}
