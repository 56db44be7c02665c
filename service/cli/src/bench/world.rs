//! A whole service in this process: a store on disk, real sandboxes, clients over gRPC.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use proto::execute_response::Message;
use seance_core::sandbox::SandboxBackend;
use seance_proto::v1alpha1 as proto;
use seance_sandbox::local::{Config, LocalBackend};
use seance_server::Service;
use seance_server::config::{ServerConfig, Settings};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

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
    /// A client of it.
    pub client: Client,
    /// The store's folder, on the disk that is measured.
    pub folder: PathBuf,
}

impl World {
    /// Starts everything.
    pub async fn start() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("seance-bench-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
        let binary = std::env::current_exe().context("can't find this program's own file")?;
        let config = Config { warm: WARM, max_sandboxes: MAX_SANDBOXES, ..Config::new(binary) };
        let backend = Arc::new(LocalBackend::start(config).await?);
        let as_backend: Arc<dyn SandboxBackend> = backend.clone();
        let service = Service::start(&server_config(&folder)?, as_backend).await.context("can't start")?;
        let client = Client::over(service.channel(), Bearer::default());
        Ok(Self { service, backend, client, folder })
    }

    /// Stops everything and removes the store.
    pub async fn stop(self) {
        let Self { service, client, folder, backend } = self;
        drop((client, backend));
        service.shutdown(std::time::Duration::from_secs(5), std::future::pending()).await;
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            eprintln!("seance: can't remove {}: {error}", folder.display());
        }
    }

    /// Opens a session.
    pub async fn open(&self, tools: &[proto::Tool]) -> Result<String> {
        self.open_with(tools, HashMap::from([("max_calls".to_owned(), 100_000)]), None).await
    }

    /// Opens a session with limits and an idle time.
    pub async fn open_with(
        &self,
        tools: &[proto::Tool],
        limits: HashMap<String, u64>,
        idle: Option<std::time::Duration>,
    ) -> Result<String> {
        let catalog = proto::Catalog { tools: tools.to_vec() };
        let catalog = proto::CatalogSource { source: Some(proto::catalog_source::Source::Inline(catalog)) };
        let request = proto::OpenRequest {
            engine: "javascript".to_owned(),
            limits,
            catalog: (!tools.is_empty()).then_some(catalog),
            idle_timeout: idle.and_then(|idle| idle.try_into().ok()),
            ..Default::default()
        };
        let session = self.client.sessions.clone().open(request).await?.into_inner().session;
        Ok(session.context("no session was opened")?.session_id)
    }

    /// Closes a session.
    pub async fn close(&self, session: &str) -> Result<()> {
        let request = proto::CloseRequest { session_id: session.to_owned(), ..Default::default() };
        self.client.sessions.clone().close(request).await?;
        Ok(())
    }

    /// Runs a program to its end; gives the bytes of its output. `on_output` sees each chunk.
    pub async fn run(&self, session: &str, source: &str, mut on_output: impl FnMut(&[u8])) -> Result<()> {
        let request = proto::ExecuteRequest {
            session_id: session.to_owned(),
            source: source.as_bytes().to_vec().into(),
            ..Default::default()
        };
        let mut stream = self.client.sessions.clone().execute(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            match response.message {
                Some(Message::Output(chunk)) => on_output(&chunk.data),
                Some(Message::Observation(observation)) => {
                    return match observation.status() {
                        proto::ObservationStatus::Completed => Ok(()),
                        status => bail!("a program ended {status:?}: {:?}", observation.program),
                    };
                }
                Some(Message::Accepted(_) | Message::Heartbeat(_)) | None => {}
            }
        }
        bail!("a stream ended without an observation")
    }
}

/// Serves all tools of a session over a provider's stream, answering at once; keeps the time of each
/// call. Dropping the set ends it.
pub async fn serve_at_once(
    client: &Client,
    session: &str,
    called: Arc<Mutex<Vec<Instant>>>,
) -> Result<JoinSet<()>> {
    use proto::{serve_request, serve_response};
    let (outgoing, requests) = mpsc::channel(64);
    let attach = proto::Attach { session_id: session.to_owned(), ..Default::default() };
    let request = |message| proto::ServeRequest { message: Some(message) };
    outgoing.send(request(serve_request::Message::Attach(attach))).await?;
    let mut incoming = client.tools.clone().serve(ReceiverStream::new(requests)).await?.into_inner();
    incoming.message().await?.context("the service did not attach the tools")?;
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok(Some(response)) = incoming.message().await {
            let Some(serve_response::Message::Call(call)) = response.message else { continue };
            called.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            let outcome = Some(proto::tool_result::Outcome::ValueJson("1".to_owned()));
            let result = proto::CallResult {
                call_id: call.call.unwrap_or_default().call_id,
                result: Some(proto::ToolResult { outcome, artifacts: Vec::new() }),
            };
            if outgoing.send(request(serve_request::Message::Result(result))).await.is_err() {
                return;
            }
        }
    });
    Ok(serving)
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
