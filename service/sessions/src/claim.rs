//! Getting a sandbox that no session had before.
//!
//! That a sandbox is used once is the store's to keep: the commit that uses one a second time is
//! refused. A backend gives each once too, but what it knows is gone with its process, and a hostile
//! runner can pretend to be new. Its caller sees none of that: such a sandbox ends, and the claim takes
//! the next.

use std::sync::Arc;
use std::time::Duration;

use seance_core::ids::SandboxId;
use seance_core::sandbox::{
    ClaimError, ClaimRequest, Claimed, EndReason, EndUnproven, SandboxBackend, SandboxHandle,
};
use seance_core::store::SessionStore;
use tokio::time::Instant;

/// Sandboxes that one claim looks at. That one was used before is rare, that three were is a fault.
pub(crate) const CLAIM_TRIES: usize = 3;

/// Why a claim ends after all of its tries.
pub(crate) fn all_used() -> ClaimError {
    let message = format!("each of {CLAIM_TRIES} that came had served a session before");
    ClaimError::StartFailed { message }
}

/// Ends a sandbox that was used before, and waits at most `within` for its end.
pub(crate) async fn end_used(id: SandboxId, handle: &dyn SandboxHandle, within: Duration) {
    tracing::error!(sandbox = %id, "a sandbox that had a session was given again; it ends, the next is taken");
    if let Err(EndUnproven { message }) = handle.end(EndReason::ProtocolBroken, within).await {
        tracing::warn!(sandbox = %id, message, "the end of a sandbox is not proven");
    }
}

/// Claims until there is one that no session had, within the request's time.
///
/// Cancel-safe as the backend's claim is.
pub(crate) async fn claim_unused(
    backend: Arc<dyn SandboxBackend>,
    store: Arc<dyn SessionStore>,
    request: ClaimRequest,
    end_within: Duration,
) -> Result<Claimed, ClaimError> {
    let deadline = Instant::now() + request.wait;
    for _ in 0..CLAIM_TRIES {
        let wait = deadline - Instant::now();
        let claimed = backend.claim(ClaimRequest { wait, ..request.clone() }).await?;
        match store.is_used(claimed.id).await {
            Ok(true) => end_used(claimed.id, &*claimed.handle, end_within).await,
            Ok(false) => return Ok(claimed),
            Err(error) => {
                // The commit decides, as it does anyhow.
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "can't look whether a sandbox was used"
                );
                return Ok(claimed);
            }
        }
    }
    Err(all_used())
}
