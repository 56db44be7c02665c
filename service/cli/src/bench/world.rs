//! A whole service in this process: a store on disk, real sandboxes, clients over gRPC.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use seance_core::sandbox::SandboxBackend;
use seance_sandbox::local::{Config, LocalBackend};
use seance_server::Service;
use seance_server::config::{ServerConfig, Settings};

use super::caller::Caller;
use crate::client::{Bearer, Client};

/// Sandboxes kept warm.
pub const WARM: usize = 60;
/// Sandboxes at one time.
pub const MAX_SANDBOXES: usize = 80;

/// What is measured.
pub struct World {
    /// The service.
    pub service: Service,
    /// Its sandboxes.
    pub backend: Arc<LocalBackend>,
    /// A caller of it.
    pub caller: Caller,
    /// The store's folder, on the disk that is measured.
    pub folder: PathBuf,
}

impl World {
    /// Starts everything: JavaScript, and these engines of the machine's interpreters.
    pub async fn start(interpreted: &[&'static str]) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("seance-bench-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
        let binary = std::env::current_exe().context("can't find this program's own file")?;
        let config = Config {
            warm: WARM,
            max_sandboxes: MAX_SANDBOXES,
            interpreted: interpreted.to_vec(),
            ..Config::new(binary)
        };
        let backend = Arc::new(LocalBackend::start(config).await?);
        let as_backend: Arc<dyn SandboxBackend> = backend.clone();
        let service = Service::start(&server_config(&folder)?, as_backend).await.context("can't start")?;
        let client = Client::over(service.channel(), Bearer::default());
        let caller = Caller { client, labels: HashMap::new() };
        Ok(Self { service, backend, caller, folder })
    }

    /// Stops everything and removes the store.
    pub async fn stop(self) {
        let Self { service, caller, folder, backend } = self;
        drop((caller, backend));
        service.shutdown(std::time::Duration::from_secs(5), std::future::pending()).await;
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            eprintln!("seance: can't remove {}: {error}", folder.display());
        }
    }
}

fn server_config(folder: &std::path::Path) -> Result<ServerConfig> {
    let settings = Settings {
        admin_listen: Some("off".to_owned()),
        data_dir: Some(folder.join("store")),
        ..Settings::default()
    };
    let mut config = settings.parse()?;
    // Nobody but this process calls it.
    config.edge.listen = None;
    Ok(config)
}
