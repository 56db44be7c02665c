//! The local sandboxes of this binary.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use seance_core::sandbox::SandboxBackend;
use seance_sandbox::local::{Config, Confinement, LocalBackend};
use seance_server::config::Sandboxes;

/// Starts the local backend, or says what this machine lacks and what to do.
pub async fn local(sandboxes: &Sandboxes) -> Result<Arc<dyn SandboxBackend>> {
    let binary = std::env::current_exe().context("can't find this program's own file")?;
    let confinement = if sandboxes.unconfined { Confinement::Unconfined } else { Confinement::Required };
    let config =
        Config { warm: sandboxes.warm, max_sandboxes: sandboxes.max, confinement, ..Config::new(binary) };
    Ok(Arc::new(LocalBackend::start(config).await?))
}
