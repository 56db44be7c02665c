//! Sandboxes as pods of a cluster.
//!
//! The operator makes pods; their runners dial in here and wait. A claim takes one off the list in
//! memory, without a call to the API server; what the cluster has to know is written afterwards, again
//! and again until it is seen there. Pods that had a session are never given to another.
//!
//! The API server stands behind two traits, [`Authenticator`] and [`Cluster`]; everything else is the
//! same in tests and in a cluster.

mod attend;
mod claimed;
mod claims;
mod cluster;
mod cold;
mod config;
mod controls;
mod desired;
pub mod doctor;
mod door;
mod doubts;
mod ends;
mod judge;
mod metrics;
mod peers;
mod port;
mod queue;
mod review;
mod tickets;
mod world;
mod writer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use kube::Client;
use kube::client::ClientBuilder;
use seance_core::sandbox::{
    ClaimError, ClaimRequest, Claimed, EndReason, EngineStatus, Resumed, SandboxBackend, SandboxEnd, TakeBack,
};
use seance_operator_api::is_true;
use seance_operator_api::sandbox::condition_type;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub use claims::MEMORY_RESERVE_BYTES;
pub use cluster::{Change, Cluster, ClusterError, KubeCluster};
pub use config::Config;
pub use metrics::Metrics;
pub use port::PortError;
pub use review::{Authenticator, Pod, ReviewError, TokenReviews};
pub use tickets::{KeysError, Ticket, TicketError, Tickets};

use crate::link::{Budget, LINK_LOST_AFTER, SendBudget};
use claimed::Handle;
use door::Shared;
use port::Port;
use world::{Phase, World};

/// How long the first look at the cluster may take before the service starts without one: sessions
/// that have a sandbox go on without the API server.
const LISTED_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked for runners that don't read.
const UNREAD_INTERVAL: Duration = Duration::from_secs(5);
/// The version of an engine that no runner has told yet.
const VERSION_UNKNOWN: &str = "unknown";

/// Why there is no Kubernetes backend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no cluster to be found.
    #[error("no cluster is configured")]
    Cluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The link port can't be opened.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Sandboxes as pods.
pub struct KubernetesBackend {
    world: Arc<World>,
    config: Config,
    link_addr: SocketAddr,
    metrics: Metrics,
    /// All that runs in the background; it ends with the backend.
    _tasks: JoinSet<()>,
}

impl KubernetesBackend {
    /// Finds the cluster as `kubectl` or a pod would, and starts.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let metrics = Metrics::new();
        let client = client(&metrics).await.map_err(StartError::Cluster)?;
        let cluster = Arc::new(KubeCluster::new(client.clone(), &config.namespace));
        let authenticator = Arc::new(TokenReviews::new(client, &config.namespace));
        Self::start_counted(config, cluster, authenticator, metrics).await
    }

    /// Starts with these in the place of the API server.
    pub async fn start_with(
        config: Config,
        cluster: Arc<dyn Cluster>,
        authenticator: Arc<dyn Authenticator>,
    ) -> Result<Self, StartError> {
        Self::start_counted(config, cluster, authenticator, Metrics::new()).await
    }

    async fn start_counted(
        config: Config,
        cluster: Arc<dyn Cluster>,
        authenticator: Arc<dyn Authenticator>,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        let (port, tickets) = Port::open(&config).await?;
        let link_addr = port.local_addr().map_err(|source| {
            let address = config.link_listen;
            StartError::Port(PortError::Listen { address, source })
        })?;
        let world = World::new(&config, metrics.clone());
        let shared = Arc::new(Shared {
            world: Arc::clone(&world),
            reviews: review::Reviews::new(authenticator),
            tickets,
            budget: Budget::new(config.buffer_bytes_max),
            send_budget: SendBudget::new(config.send_bytes_max),
            session_max: Duration::from_secs(config.session_seconds_max),
        });
        let mut tasks = JoinSet::new();
        let (mut changes, watching) = (cluster.changes(), Arc::clone(&world));
        tasks.spawn(async move {
            while let Some(change) = changes.next().await {
                watching.apply(change);
            }
        });
        tasks.spawn(port.serve(config.clone(), shared));
        tasks.spawn(writer::run(Arc::clone(&world), Arc::clone(&cluster)));
        tasks.spawn(attend::run(Arc::clone(&world)));
        tasks.spawn(cold::start_cold(Arc::clone(&world), cluster));
        tasks.spawn(controls::run(Arc::clone(&world)));
        tasks.spawn(look_for_unread(Arc::clone(&world)));
        let listed = world.wait_for(Instant::now() + LISTED_WITHIN, |inner| {
            (inner.is_listed && inner.are_pools_listed).then_some(())
        });
        if listed.await.is_none() {
            tracing::warn!("the cluster doesn't answer; sessions that have a sandbox go on, and others wait");
        }
        Ok(Self { world, config, link_addr, metrics, _tasks: tasks })
    }

    /// Where runners dial in.
    pub fn link_addr(&self) -> SocketAddr {
        self.link_addr
    }

    /// What it counts, to be registered where it is to be seen.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn session_max(&self) -> Duration {
        Duration::from_secs(self.config.session_seconds_max)
    }
}

/// Looks for runners that don't read, for ever.
async fn look_for_unread(world: Arc<World>) {
    let mut look = tokio::time::interval(UNREAD_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let links: Vec<_> = world.lock().runners.values().map(|runner| Arc::clone(&runner.link)).collect();
        links.iter().for_each(|link| link.look_for_unread(Instant::now()));
    }
}

/// A client of the cluster that the environment names, whose requests are counted.
async fn client(metrics: &Metrics) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let builder = ClientBuilder::try_from(kube::Config::infer().await?)?;
    Ok(builder.with_layer(&metrics.requests_layer()).with_layer(&metrics.conflicts_layer()).build())
}

#[async_trait]
impl SandboxBackend for KubernetesBackend {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn confinement(&self) -> Vec<String> {
        vec!["pod".to_owned()]
    }

    fn engines(&self) -> Vec<EngineStatus> {
        let inner = self.world.lock();
        let names = inner.pools.values().flat_map(|pool| &pool.spec.engines);
        let names: std::collections::BTreeSet<_> = names.collect();
        let version = |name: &str| {
            let known = inner.versions.iter().find(|((_, engine), _)| engine == name);
            known.map_or(VERSION_UNKNOWN, |(_, version)| version.as_str()).to_owned()
        };
        names
            .into_iter()
            .map(|name| EngineStatus { name: name.clone(), version: Ok(version(name)) })
            .collect()
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, ClaimError> {
        let (id, reader) = claims::claim(&self.world, &self.config, &request).await?;
        let claimed = claimed::claimed(&self.world, id, &request.engine, self.session_max(), reader);
        claimed.ok_or_else(|| ClaimError::StartFailed { message: "the runner was lost".to_owned() })
    }

    async fn take_back(&self, request: TakeBack) -> Result<(Claimed, Resumed), SandboxEnd> {
        let id = request.sandbox;
        let link = claimed::expect_back(&self.world, &request, self.session_max())?;
        // Whatever becomes of this call, somebody ends the sandbox: this does until a session has it.
        let handle = Handle::new(Arc::clone(&self.world), id);
        match timeout(LINK_LOST_AFTER, link.until_connected()).await {
            Ok(Ok(())) => {}
            Ok(Err(end)) => return Err(end),
            Err(_) => {
                link.end(SandboxEnd::new(EndReason::LinkLost));
                return Err(SandboxEnd::new(EndReason::LinkLost));
            }
        }
        let resumed = link.resumed();
        let reader = claimed::no_reader(&link);
        let claimed = claimed::claimed(&self.world, id, &request.engine, self.session_max(), reader);
        let Some(claimed) = claimed else {
            return Err(link.ended().unwrap_or(SandboxEnd::new(EndReason::LinkLost)));
        };
        handle.hand_over();
        Ok((claimed, resumed))
    }

    fn outlives_service(&self) -> bool {
        true
    }

    fn n_leaked(&self) -> usize {
        let inner = self.world.lock();
        let n_unproven = inner.runners.values().filter(|runner| runner.is_unproven).count();
        let is_orphan = |sandbox: &&seance_operator_api::Sandbox| {
            let conditions = sandbox.conditions();
            let is = |type_| is_true(conditions, type_);
            let has_runner = world::pod_of(sandbox).is_some_and(|id| inner.runners.contains_key(&id));
            sandbox.spec.session.is_some()
                && !is(condition_type::RELEASED)
                && !is(condition_type::FINISHED)
                && !has_runner
        };
        let n_orphans = inner.sandboxes.values().filter(is_orphan).count();
        n_unproven + if inner.has_settled() { n_orphans } else { 0 }
    }

    /// Runners stay connected for as long as they can, and dial in again at the next start.
    async fn shutdown(&self, _within: Duration) {
        self.world.change(|inner| {
            inner.is_stopping = true;
            inner.waiting.clear();
            for runner in inner.runners.values() {
                if matches!(runner.phase, Phase::Warm { .. }) {
                    runner.link.hang_up();
                }
            }
        });
    }
}
