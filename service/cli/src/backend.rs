//! Where sandboxes come from: local processes of this binary, or pods of a cluster.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use seance_core::sandbox::SandboxBackend;
use seance_sandbox::kubernetes::{self, KubernetesBackend};
use seance_sandbox::local::{Config, Confinement, INTERPRETED, LocalBackend};
use seance_server::config::{Sandboxes, ServerConfig};

/// A backend, and what it counts itself.
pub struct Backend {
    /// Where sandboxes come from.
    pub sandboxes: Arc<dyn SandboxBackend>,
    /// To be registered with the service's metrics.
    pub metrics: Option<kubernetes::Metrics>,
}

/// Starts the backend that the settings ask for.
pub async fn start(config: &ServerConfig) -> Result<Backend> {
    match &config.kubernetes {
        Some(settings) => kubernetes(settings).await,
        None => Ok(Backend { sandboxes: local(&config.sandboxes, INTERPRETED).await?, metrics: None }),
    }
}

/// Starts the local backend with JavaScript and these engines, or says what this machine lacks and what to do.
pub async fn local(sandboxes: &Sandboxes, interpreted: &[&'static str]) -> Result<Arc<dyn SandboxBackend>> {
    let binary = std::env::current_exe().context("can't find this program's own file")?;
    let confinement = if sandboxes.unconfined { Confinement::Unconfined } else { Confinement::Required };
    let config = Config {
        warm: sandboxes.warm,
        max_sandboxes: sandboxes.max,
        confinement,
        interpreted: interpreted.to_vec(),
        ..Config::new(binary)
    };
    Ok(Arc::new(LocalBackend::start(config).await?))
}

/// Opens the port that runners dial, and finds the cluster as `kubectl` or a pod would.
async fn kubernetes(settings: &toml::Table) -> Result<Backend> {
    let settings: kubernetes::Config =
        settings.clone().try_into().context("the [kubernetes] settings are wrong")?;
    let backend = KubernetesBackend::start(settings).await?;
    Ok(Backend { metrics: Some(backend.metrics().clone()), sandboxes: Arc::new(backend) })
}
