//! What every pass over an object uses: the cluster, what is known of it, and what is remembered
//! between passes.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use seance_operator_api::pool::Canary;
use seance_operator_api::{Sandbox, SandboxPool};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::build::link::Link;
use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::pool::expect::Expectations;

/// So many pods that are gone are remembered, to tell how they ended.
const GONE_MAX: usize = 512;

/// What doesn't change while the operator runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The forbidden ways out that runners try, beside that of the link's own Service.
    pub canaries: Vec<Canary>,
    /// How long a finished Sandbox is kept for the service to read.
    pub finished_retention: Duration,
    /// How long a pod may run without getting warm.
    pub warm_within: Duration,
}

/// What is known of the cluster, kept by watches.
#[derive(Clone)]
pub struct Stores {
    /// Sandboxes.
    pub sandboxes: Store<Sandbox>,
    /// Pools.
    pub pools: Store<SandboxPool>,
    /// Pods that the operator made.
    pub pods: Store<Pod>,
    /// Nodes, where they may be watched.
    pub nodes: Option<Store<Node>>,
    /// The link's CA in each namespace.
    pub config_maps: Store<ConfigMap>,
    /// The runners' service account in each namespace.
    pub service_accounts: Store<ServiceAccount>,
    /// The network policies that the operator made.
    pub policies: Store<NetworkPolicy>,
}

/// The link, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// The link, or why it isn't known.
    pub link: Result<Link, String>,
    /// Its CA in PEM, or why it isn't known.
    pub ca: Result<String, String>,
}

/// What every pass uses.
pub struct Context {
    /// The API server.
    pub cluster: Cluster,
    /// What doesn't change.
    pub settings: Settings,
    /// What is known.
    pub stores: Stores,
    /// The link.
    pub link: watch::Receiver<LinkState>,
    /// Failures by object.
    pub backoff: Backoff,
    /// What pools have written and not seen.
    pub expectations: Expectations,
    /// What is counted.
    pub metrics: Metrics,
    prepared: Mutex<HashSet<String>>,
    gone: Mutex<VecDeque<Arc<Pod>>>,
}

impl Context {
    /// A context that remembers nothing yet.
    pub fn new(
        cluster: Cluster,
        settings: Settings,
        stores: Stores,
        link: watch::Receiver<LinkState>,
        metrics: Metrics,
    ) -> Self {
        Self {
            cluster,
            settings,
            stores,
            link,
            backoff: Backoff::default(),
            expectations: Expectations::default(),
            metrics,
            prepared: Mutex::default(),
            gone: Mutex::default(),
        }
    }

    /// The pool of a Sandbox, unless it is on its way out.
    pub fn pool_of(&self, sandbox: &Sandbox) -> Option<Arc<SandboxPool>> {
        let key = ObjectRef::new(&sandbox.spec.pool).within(&sandbox.namespace().unwrap_or_default());
        self.stores.pools.get(&key).filter(|pool| pool.metadata.deletion_timestamp.is_none())
    }

    /// The pod of a Sandbox as it is known: of the name that comes from its UID, and owned by it.
    pub fn pod_of(&self, sandbox: &Sandbox) -> Option<Arc<Pod>> {
        let uid = sandbox.uid()?;
        let name = crate::build::pod::name(&uid);
        let key = ObjectRef::new(&name).within(&sandbox.namespace().unwrap_or_default());
        self.stores.pods.get(&key).filter(|pod| is_owned(pod.as_ref(), &uid))
    }

    /// The Sandboxes of a pool.
    pub fn sandboxes_of(&self, pool: &SandboxPool) -> Vec<Arc<Sandbox>> {
        let (namespace, name) = (pool.namespace(), pool.name_any());
        self.stores
            .sandboxes
            .state_filter(|sandbox| sandbox.spec.pool == name && sandbox.namespace() == namespace)
    }

    /// Whether a node takes no more pods.
    pub fn is_cordoned(&self, node: &str) -> bool {
        let node = self.stores.nodes.as_ref().and_then(|nodes| nodes.get(&ObjectRef::new(node)));
        node.and_then(|node| node.spec.as_ref()?.unschedulable).unwrap_or(false)
    }

    /// Whether a node is gone, or its kubelet hasn't been heard for a while.
    pub fn is_node_lost(&self, node: &str) -> bool {
        let Some(nodes) = &self.stores.nodes else { return false };
        let Some(node) = nodes.get(&ObjectRef::new(node)) else { return true };
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        conditions.unwrap_or_default().iter().any(|is| is.type_ == "Ready" && is.status == "Unknown")
    }

    /// The namespace has its policies: pods may be made in it.
    pub fn set_prepared(&self, namespace: &str, is_prepared: bool) {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if is_prepared {
            prepared.insert(namespace.to_owned());
        } else {
            prepared.remove(namespace);
        }
    }

    /// Whether the namespace has its policies.
    pub fn is_prepared(&self, namespace: &str) -> bool {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }

    /// A pod is gone; this was last seen of it.
    pub fn set_gone(&self, pod: Arc<Pod>) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if gone.len() == GONE_MAX {
            gone.pop_front();
        }
        gone.push_back(pod);
    }

    /// What was last seen of a pod that is gone, if that is remembered.
    pub fn last_seen(&self, pod_uid: &str) -> Option<Arc<Pod>> {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.iter().rev().find(|pod| pod.uid().as_deref() == Some(pod_uid)).cloned()
    }
}

/// Whether the object's controller is the one of this UID. Names and labels prove nothing.
pub fn is_owned<K: ResourceExt>(object: &K, owner_uid: &str) -> bool {
    let owners = object.owner_references();
    owners.iter().any(|owner| owner.controller == Some(true) && owner.uid == owner_uid)
}

/// The Sandbox that controls a pod, as its owner reference names it.
pub fn owner(pod: &Pod) -> Option<ObjectRef<Sandbox>> {
    let owner = controller(pod)?;
    Some(ObjectRef::new(&owner.name).within(&pod.namespace().unwrap_or_default()))
}

/// The UID of the Sandbox that controls a pod.
pub fn owner_uid(pod: &Pod) -> Option<String> {
    controller(pod).map(|owner| owner.uid.clone())
}

fn controller(pod: &Pod) -> Option<&OwnerReference> {
    let (api_version, kind) = (Sandbox::api_version(&()), Sandbox::kind(&()));
    let is_ours = |owner: &&OwnerReference| {
        owner.controller == Some(true) && owner.api_version == api_version && owner.kind == kind
    };
    pod.owner_references().iter().find(is_ours)
}
