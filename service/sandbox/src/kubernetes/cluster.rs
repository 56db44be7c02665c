//! What the service reads and writes in the cluster: pools and Sandboxes of one namespace.

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use seance_core::sandbox::BlockReason;
use seance_operator_api::pauses::WatchPauses;
use seance_operator_api::pool::Check;
use seance_operator_api::sandbox::SessionRef;
use seance_operator_api::{SERVICE, Sandbox, SandboxPool, SandboxSpec, labels};
use serde::de::DeserializeOwned;
use serde_json::json;

/// What changed in the cluster. After a watch had to begin anew come all objects, and then which
/// there are.
#[derive(Debug, Clone)]
pub enum Change {
    /// A pool is new or another.
    Pool(Box<SandboxPool>),
    /// A pool is gone.
    PoolGone(String),
    /// These pools are all there are.
    Pools(Vec<String>),
    /// A Sandbox is new or another.
    Sandbox(Box<Sandbox>),
    /// A Sandbox is gone.
    SandboxGone(String),
    /// These Sandboxes are all there are.
    Sandboxes(Vec<String>),
}

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no such object.
    #[error("the object is gone")]
    Gone,
    /// Something is in the way that people have to see to.
    #[error("{message}")]
    Blocked {
        /// What.
        reason: BlockReason,
        /// More.
        message: String,
    },
    /// The API server can't be reached, or can't do anything now.
    #[error("the API server is away: {0}")]
    Away(String),
    /// The API server refused.
    #[error("the API server refused it: {0}")]
    Failed(String),
}

/// The API server, as far as the service needs one.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// What there is and what changes, without end. What can't be read as ours is left out.
    fn changes(&self) -> BoxStream<'static, Change>;

    /// Makes a Sandbox because a caller waits for one, and gives its name.
    async fn create(&self, pool: &str) -> Result<String, ClusterError>;

    /// Writes the session of a Sandbox. Repeating it changes nothing.
    async fn write_session(&self, name: &str, session: &SessionRef) -> Result<(), ClusterError>;

    /// Writes our part of a Sandbox's status: all conditions and checks of ours that there are.
    async fn write_status(
        &self,
        name: &str,
        conditions: Vec<Condition>,
        checks: Vec<Check>,
    ) -> Result<(), ClusterError>;
}

/// The real one.
pub struct KubeCluster {
    pools: Api<SandboxPool>,
    sandboxes: Api<Sandbox>,
}

impl KubeCluster {
    /// For the sandboxes of a namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            pools: Api::namespaced(client.clone(), namespace),
            sandboxes: Api::namespaced(client, namespace),
        }
    }
}

#[async_trait]
impl Cluster for KubeCluster {
    fn changes(&self) -> BoxStream<'static, Change> {
        let pools =
            watched(self.pools.clone(), |pool| Change::Pool(Box::new(pool)), Change::PoolGone, Change::Pools);
        let sandboxes = watched(
            self.sandboxes.clone(),
            |sandbox| Change::Sandbox(Box::new(sandbox)),
            Change::SandboxGone,
            Change::Sandboxes,
        );
        futures::stream::select(pools, sandboxes).boxed()
    }

    async fn create(&self, pool: &str) -> Result<String, ClusterError> {
        let metadata = ObjectMeta {
            generate_name: Some(format!("{pool}-")),
            labels: Some(
                [(labels::POOL, pool), (labels::ORIGIN, labels::ORIGIN_COLD), (labels::MANAGED_BY, SERVICE)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            ..ObjectMeta::default()
        };
        let spec = SandboxSpec { pool: pool.to_owned(), desired: Default::default(), session: None };
        let sandbox = Sandbox { metadata, spec, status: None };
        let params = PostParams { field_manager: Some(SERVICE.to_owned()), ..PostParams::default() };
        Ok(self.sandboxes.create(&params, &sandbox).await.map_err(error)?.name_any())
    }

    async fn write_session(&self, name: &str, session: &SessionRef) -> Result<(), ClusterError> {
        let patch = applied(json!({ "spec": { "session": session } }));
        let params = PatchParams::apply(SERVICE).force();
        self.sandboxes.patch(name, &params, &Patch::Apply(patch)).await.map(drop).map_err(error)
    }

    async fn write_status(
        &self,
        name: &str,
        conditions: Vec<Condition>,
        checks: Vec<Check>,
    ) -> Result<(), ClusterError> {
        let mut status = json!({ "conditions": conditions });
        if !checks.is_empty() {
            status["checks"] = json!(checks);
        }
        let patch = applied(json!({ "status": status }));
        let params = PatchParams::apply(SERVICE).force();
        self.sandboxes.patch_status(name, &params, &Patch::Apply(patch)).await.map(drop).map_err(error)
    }
}

fn applied(mut patch: serde_json::Value) -> serde_json::Value {
    patch["apiVersion"] = json!(Sandbox::api_version(&()));
    patch["kind"] = json!(Sandbox::kind(&()));
    patch
}

fn error(error: kube::Error) -> ClusterError {
    match &error {
        kube::Error::Api(status) if status.code == 404 => ClusterError::Gone,
        kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota") => {
            ClusterError::Blocked { reason: BlockReason::QuotaExceeded, message: status.message.clone() }
        }
        kube::Error::Api(status) if status.code != 429 && status.code < 500 => {
            ClusterError::Failed(error.to_string())
        }
        _ => ClusterError::Away(error.to_string()),
    }
}

/// The objects of one kind: each that is new, gone, or there when the watch had to begin anew. They
/// are read one by one, so that one that can't be read stops no watch. (kube's own guard for that
/// loses all numbers where serde_json keeps them in full.)
fn watched<K>(
    api: Api<K>,
    is_there: impl Fn(K) -> Change + Send + 'static,
    is_gone: fn(String) -> Change,
    are_all: fn(Vec<String>) -> Change,
) -> impl futures::Stream<Item = Change> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let namespace = api.namespace().expect("it was made for a namespace").to_owned();
    let resource = ApiResource::erase::<K>(&());
    let objects: Api<DynamicObject> = Api::namespaced_with(api.into_client(), &namespace, &resource);
    let mut listed = Vec::new();
    watcher(objects, watcher::Config::default()).backoff(WatchPauses::default()).filter_map(move |event| {
        let change = match event {
            Ok(Event::Init) => {
                listed.clear();
                None
            }
            Ok(Event::InitApply(object)) => {
                listed.push(object.name_any());
                readable(object).map(&is_there)
            }
            Ok(Event::InitDone) => Some(are_all(std::mem::take(&mut listed))),
            Ok(Event::Apply(object)) => readable(object).map(&is_there),
            Ok(Event::Delete(object)) => Some(is_gone(object.name_any())),
            Err(error) => {
                tracing::warn!(%error, kind = %K::kind(&()), "the watch of the cluster broke and begins anew");
                None
            }
        };
        std::future::ready(change)
    })
}

fn readable<K: Resource<DynamicType = ()> + DeserializeOwned>(object: DynamicObject) -> Option<K> {
    let name = object.name_any();
    let read = object.try_parse::<K>().inspect_err(|error| {
        tracing::warn!(%error, name, kind = %K::kind(&()), "an object can't be read and is left out");
    });
    read.ok()
}
