//! A service: everything put together, started and stopped in order.
//!
//! It starts from the inside out, so that nothing is reachable before it works, and stops in the
//! reverse order: refuse new requests, end streams, drain to a deadline, cut what is left, leave the
//! sessions.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use hyper_util::rt::TokioIo;
use prometheus::Registry;
use seance_broker::providers::Providers;
use seance_core::sandbox::SandboxBackend;
use seance_core::store::{Retention, SessionStore};
use seance_core::time::Timestamp;
use seance_proto::PUBLIC_MESSAGE_BYTES_MAX;
use seance_proto::v1alpha1::{self as proto, engines_server, server_server, sessions_server, tools_server};
use seance_sessions::Sessions;
use seance_store::{MemoryStore, SqliteConfig, SqliteStore};
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Server};
use tower::layer::util::{Identity as NoLayer, Stack};

use crate::admin::{Admin, Awaited};
use crate::auth::reviews::{ApiServer, Reviews};
use crate::auth::{Access, TokensFile};
use crate::config::{Callers, Keep, ServerConfig};
use crate::listener::Connections;
use crate::metrics::{LeakedSandboxes, Metrics};
use crate::request::{INBOUND_BYTES_MAX, RequestLayer};
use crate::services::Api;
use crate::tls::{Certificate, Secured};
use crate::{auth, telemetry, tls};

/// Requests of one connection at one time. More wait in the client.
const STREAMS_MAX: u32 = 1_024;
/// All headers of one request, in bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// A connection that says nothing is asked this often whether it lives.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long the answer may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How much a client may send ahead, on one stream and on one connection, in bytes.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// What stands between the two ends of an in-process connection, in bytes.
const PIPE_BYTES: usize = 256 * 1024;
/// In-process connections that wait to be taken.
const PIPES_WAITING_MAX: usize = 64;
/// How often closed sessions and forgotten requests are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// How long idempotency keys are kept.
const REQUESTS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a drain takes at most before connections are cut.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Our services, as health checks name them.
const SERVICES: &[&str] = &[
    "seance.v1alpha1.Sessions",
    "seance.v1alpha1.Engines",
    "seance.v1alpha1.Tools",
    "seance.v1alpha1.Server",
];

/// Why a service did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address can be reached by others, and what that needs is missing.
    #[error("{}", .0.join("; "))]
    Unsafe(Vec<String>),
    /// An address can't be had.
    #[error("can't listen on {address} ({setting}){}", taken(source))]
    Listen {
        /// The setting that says so.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The tokens file can't be used.
    #[error(transparent)]
    Tokens(#[from] auth::Error),
    /// The certificate and its key can't be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The cluster whose service accounts call can't be found.
    #[error("there is no cluster to ask about callers (kubernetes_callers)")]
    Cluster(#[source] kube::Error),
    /// The store can't be opened.
    #[error("the store can't be opened")]
    Store(#[source] seance_store::OpenError),
    /// The sessions of an earlier start can't be taken over.
    #[error("sessions can't be started")]
    Sessions(#[source] seance_sessions::Error),
    /// A metric is there twice.
    #[error("metrics can't be registered")]
    Metrics(#[source] prometheus::Error),
    /// The API's own description can't be served.
    #[error("reflection can't be set up")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// A server that has to run ended.
    #[error("the server ended")]
    Server(#[source] Box<dyn std::error::Error + Send + Sync>),
}

async fn reviews(callers: &Callers) -> Result<Reviews, Error> {
    let client = kube::Client::try_default().await.map_err(Error::Cluster)?;
    let api_server = Arc::new(ApiServer::new(client));
    Ok(Reviews::new(api_server, callers.audience.clone(), callers.tenants.clone()))
}

/// What to do about an address that another program has.
fn taken(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => ": another program listens there; stop it or set another address",
        _ => "",
    }
}

type EdgeRouter = Router<Stack<RequestLayer, NoLayer>>;

/// A service that runs. Stop it with [`Service::shutdown`]; dropping it cuts everything.
pub struct Service {
    api: Api,
    registry: Registry,
    local_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    pipes: mpsc::Sender<DuplexStream>,
    /// The gRPC servers. None may end before the service stops.
    servers: JoinSet<Result<(), Error>>,
    /// What runs beside them: the tokens file's watch, the sweep, the admin port.
    helpers: JoinSet<Result<(), Error>>,
    health: tonic_health::server::HealthReporter,
    awaited: watch::Sender<Arc<Awaited>>,
    /// Cuts all connections.
    abort: CancellationToken,
    _abort_on_drop: tokio_util::sync::DropGuard,
}

impl Service {
    /// Starts a service whose sandboxes come from `backend`. Returns when it takes requests.
    pub async fn start(config: &ServerConfig, backend: Arc<dyn SandboxBackend>) -> Result<Self, Error> {
        let ServerConfig {
            edge, admin_listen, data_dir, sandboxes, tenant_limits, keep, redact_source, ..
        } = config;
        let lacks = edge.what_a_public_address_lacks();
        if !lacks.is_empty() {
            return Err(Error::Unsafe(lacks));
        }
        // An error says that the process has a provider already, which then is the one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Addresses and files first, and nothing is answered before all are there: a service that can't
        // start leaves nothing behind.
        let tcp = bind("listen", edge.listen).await?;
        let admin_tcp = bind("admin_listen", *admin_listen).await?;
        let tls = edge.tls.clone().map(Certificate::open).transpose()?;
        let tokens = edge.tokens_file.clone().map(TokensFile::open).transpose()?;
        let reviews = match &edge.callers {
            Some(callers) => Some(Arc::new(reviews(callers).await?)),
            None => None,
        };
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).map_err(Error::Metrics)?;
        let leaked = LeakedSandboxes::new(Arc::clone(&backend)).map_err(Error::Metrics)?;
        registry.register(Box::new(leaked)).map_err(Error::Metrics)?;
        let stopping = CancellationToken::new();
        let abort = CancellationToken::new();
        let mut helpers = JoinSet::new();

        let (awaited, is_awaited) = watch::channel(Arc::new(vec!["store", "sessions", "listener"]));
        let admin_addr = admin_tcp.map(|(listener, address)| {
            let (admin, stop) = (Admin::new(registry.clone(), is_awaited), abort.clone());
            helpers.spawn(async move {
                admin.serve(listener, stop).await.map_err(|error| Error::Server(Box::new(error)))
            });
            address
        });
        let tokens = tokens.map(|(file, tokens)| {
            helpers.spawn(file.watch().map(Ok));
            tokens
        });
        let access = match (tokens, reviews) {
            (None, None) => Access::Open,
            (tokens, reviews) => Access::Bearer { tokens, reviews },
        };
        let acceptor = tls.map(|(certificate, acceptor)| {
            helpers.spawn(certificate.watch().map(Ok));
            acceptor
        });

        let store = open_store(data_dir.as_deref()).await?;
        awaited.send_replace(Arc::new(vec!["sessions", "listener"]));
        let sessions_config = seance_sessions::Config {
            max_sessions: tenant_limits.max_sessions,
            max_running: tenant_limits.max_running,
            claim_wait: sandboxes.claim_wait,
            redact_source: *redact_source,
            traceparent: Arc::new(telemetry::traceparent_of),
            ..seance_sessions::Config::default()
        };
        let sessions =
            Sessions::start(sessions_config, Arc::clone(&store), backend, Providers::default(), &registry);
        let sessions = sessions.await.map_err(Error::Sessions)?;
        helpers.spawn(sweep(store, *keep));

        let api = Api { sessions, stopping: stopping.clone(), tasks: TaskTracker::new() };
        let (health, health_service) = tonic_health::server::health_reporter();
        for service in SERVICES {
            health.set_service_status(*service, tonic_health::ServingStatus::Serving).await;
        }
        let connections = Connections::new(metrics.connections.clone(), abort.clone());
        let mut servers = JoinSet::new();
        let (pipes, taken_pipes) = mpsc::channel(PIPES_WAITING_MAX);
        let in_process = RequestLayer::new(Access::Open, metrics.clone(), stopping.clone());
        let router = router(server(), in_process, &api, health_service.clone())?;
        let incoming = connections.clone().of_channel(taken_pipes);
        servers.spawn(run(router, incoming, stopping.clone()));
        let mut local_addr = None;
        if let Some((listener, address)) = tcp {
            local_addr = Some(address);
            let layer = RequestLayer::new(access, metrics, stopping.clone());
            let router = self::router(server(), layer, &api, health_service)?;
            match acceptor {
                Some(acceptor) => {
                    let secured = move |stream| Secured::accept(&acceptor, stream);
                    servers.spawn(run(router, connections.of_tcp(listener, secured), stopping));
                }
                None => drop(servers.spawn(run(router, connections.of_tcp(listener, |tcp| tcp), stopping))),
            }
        }
        awaited.send_replace(Arc::new(Vec::new()));
        tell_started(config, local_addr, admin_addr);
        let _abort_on_drop = abort.clone().drop_guard();
        Ok(Self {
            api,
            registry,
            local_addr,
            admin_addr,
            pipes,
            servers,
            helpers,
            health,
            awaited,
            abort,
            _abort_on_drop,
        })
    }

    /// The address of the API, with the port that was given for port 0.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// The address of metrics and probes.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// The sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.api.sessions
    }

    /// The metrics of all components.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A channel to this service inside the process, as the tenant `default`. It works as over a
    /// network, and nobody else can reach it.
    pub fn channel(&self) -> Channel {
        let pipes = self.pipes.clone();
        let connect = move |_: http::Uri| {
            let pipes = pipes.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
                let gone =
                    |_| std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "the service has stopped");
                pipes.send(theirs).await.map_err(gone)?;
                Ok::<_, std::io::Error>(TokioIo::new(ours))
            }
        };
        Endpoint::from_static("http://in-process").connect_with_connector_lazy(tower::service_fn(connect))
    }

    /// Waits for something to end that must run as long as the service does.
    ///
    /// Cancel-safe.
    pub async fn failed(&mut self) -> Error {
        let ended = tokio::select! {
            Some(ended) = self.servers.join_next() => ended,
            Some(ended) = self.helpers.join_next() => ended,
            else => return Error::Server("nothing runs".into()),
        };
        match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::Server("it ended by itself".into()),
            Err(error) => Error::Server(Box::new(error)),
        }
    }

    /// Stops in order: new requests are refused, streams are told to end, what is at work may take
    /// `within`, then connections are cut and the sessions left. `abort` cuts the wait short.
    pub async fn shutdown(mut self, within: Duration, abort: impl Future<Output = ()>) {
        tracing::info!("service is stopping");
        self.awaited.send_replace(Arc::new(vec!["shutdown"]));
        for service in std::iter::once(&"").chain(SERVICES) {
            self.health.set_service_status(*service, tonic_health::ServingStatus::NotServing).await;
        }
        self.api.stopping.cancel();
        drop(self.pipes);
        tokio::select! {
            () = drained(&mut self.servers) => {}
            () = tokio::time::sleep(within) => tracing::warn!("connections are cut: the drain took too long"),
            () = abort => tracing::warn!("connections are cut"),
        }
        self.abort.cancel();
        drained(&mut self.servers).await;
        self.api.tasks.close();
        if tokio::time::timeout(within, self.api.tasks.wait()).await.is_err() {
            tracing::warn!("some programs of gone callers were not stopped in time");
        }
        self.api.sessions.shutdown(within).await;
        self.helpers.shutdown().await;
        tracing::info!("service stopped");
    }
}

/// Runs a service until `shutdown`, or until something fails that must run. What is done at a second
/// `abort` during the shutdown is said at [`Service::shutdown`].
pub async fn serve(
    config: &ServerConfig,
    backend: Arc<dyn SandboxBackend>,
    shutdown: impl Future<Output = ()>,
    abort: impl Future<Output = ()>,
) -> Result<(), Error> {
    let mut service = Service::start(config, backend).await?;
    let failed = tokio::select! {
        () = shutdown => None,
        error = service.failed() => Some(error),
    };
    service.shutdown(DRAIN_TIMEOUT, abort).await;
    failed.map_or(Ok(()), Err)
}

async fn drained(servers: &mut JoinSet<Result<(), Error>>) {
    while let Some(ended) = servers.join_next().await {
        if let Ok(Err(error)) = ended {
            tracing::warn!(error = &error as &dyn std::error::Error, "a server failed while it stopped");
        }
    }
}

async fn run<I, IO>(router: EdgeRouter, incoming: I, stopping: CancellationToken) -> Result<(), Error>
where
    I: futures::Stream<Item = std::io::Result<IO>>,
    IO: tokio::io::AsyncRead
        + tokio::io::AsyncWrite
        + tonic::transport::server::Connected
        + Unpin
        + Send
        + 'static,
{
    let served = router.serve_with_incoming_shutdown(incoming, stopping.cancelled_owned()).await;
    served.map_err(|error| Error::Server(Box::new(error)))
}

fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

fn router<H>(
    server: Server,
    layer: RequestLayer,
    api: &Api,
    health: tonic_health::pb::health_server::HealthServer<H>,
) -> Result<EdgeRouter, Error>
where
    H: tonic_health::pb::health_server::Health,
{
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    macro_rules! ours {
        ($server:path) => {{
            use $server as Server;
            Server::new(api.clone())
                .max_decoding_message_size(INBOUND_BYTES_MAX)
                .max_encoding_message_size(PUBLIC_MESSAGE_BYTES_MAX)
        }};
    }
    Ok(server
        .layer(layer)
        .add_service(ours!(sessions_server::SessionsServer))
        .add_service(ours!(engines_server::EnginesServer))
        .add_service(ours!(tools_server::ToolsServer))
        .add_service(ours!(server_server::ServerServer))
        .add_service(health)
        .add_service(reflection().build_v1().map_err(Error::Reflection)?)
        .add_service(reflection().build_v1alpha().map_err(Error::Reflection)?))
}

/// Listens on an address, if one is set. Gives the port that was given for port 0.
async fn bind(
    setting: &'static str,
    address: Option<SocketAddr>,
) -> Result<Option<(TcpListener, SocketAddr)>, Error> {
    let Some(address) = address else { return Ok(None) };
    let failed = |source| Error::Listen { setting, address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok(Some((listener, bound)))
}

/// Logs what the service runs with. There are no secrets in it: files are named, not read.
fn tell_started(config: &ServerConfig, listen: Option<SocketAddr>, admin: Option<SocketAddr>) {
    let ServerConfig { edge, data_dir, sandboxes, tenant_limits, keep, redact_source, .. } = config;
    let shown = |path: Option<&Path>| path.map(|path| path.display().to_string());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = listen.map(tracing::field::display),
        admin_listen = admin.map(tracing::field::display),
        data_dir = shown(data_dir.as_deref()).unwrap_or_else(|| "memory".to_owned()),
        tokens_file = shown(edge.tokens_file.as_deref()),
        tls_cert = shown(edge.tls.as_ref().map(|tls| tls.cert.as_path())),
        kubernetes = config.kubernetes.is_some(),
        kubernetes_accounts = edge.callers.as_ref().map(|callers| callers.tenants.len()),
        warm = sandboxes.warm,
        max_sandboxes = sandboxes.max,
        claim_wait_seconds = sandboxes.claim_wait.as_secs(),
        unconfined = sandboxes.unconfined,
        max_sessions = tenant_limits.max_sessions,
        max_running = tenant_limits.max_running,
        retention_days = keep.closed_for.as_secs() / (24 * 60 * 60),
        retention_bytes = keep.closed_bytes_max,
        redact_source,
        otlp_endpoint = config.telemetry.otlp_endpoint,
        "service started"
    );
}

async fn open_store(data_dir: Option<&Path>) -> Result<Arc<dyn SessionStore>, Error> {
    let Some(folder) = data_dir else { return Ok(Arc::new(MemoryStore::new())) };
    let store = SqliteStore::open(SqliteConfig::new(folder.join("seance.db"))).await;
    Ok(Arc::new(store.map_err(Error::Store)?))
}

/// Deletes what retention says, again and again. A store that fails is tried again the next time.
async fn sweep(store: Arc<dyn SessionStore>, keep: Keep) -> Result<(), Error> {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        interval.tick().await;
        let now = std::time::SystemTime::now();
        let before =
            |age: Duration| Timestamp::from_system(now.checked_sub(age).unwrap_or(std::time::UNIX_EPOCH));
        let retention = Retention {
            closed_before: before(keep.closed_for),
            done_before: before(REQUESTS_KEPT),
            closed_bytes_max: keep.closed_bytes_max,
        };
        match store.sweep(retention).await {
            Ok(0) => {}
            Ok(n_sessions) => tracing::info!(n_sessions, "closed sessions were deleted"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store was not swept");
            }
        }
    }
}
