//! The stores, the watches that keep them, and whom a change concerns.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context as _;
use futures::future::try_join_all;
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use seance_operator_api::{
    LINK_CA_CONFIG_MAP, OPERATOR, RUNNER_SERVICE_ACCOUNT, Sandbox, SandboxPool, labels,
};
use tokio::task::JoinSet;

use super::{of_pod, of_pool_name};
use crate::context::{Context, Stores};
use crate::http::Health;
use crate::watch::{Concern, Concerns, watch};

/// The ends of the stores that watches write.
pub struct Writers {
    sandboxes: Writer<Sandbox>,
    pools: Writer<SandboxPool>,
    pods: Writer<Pod>,
    nodes: Option<Writer<Node>>,
    config_maps: Writer<ConfigMap>,
    service_accounts: Writer<ServiceAccount>,
    policies: Writer<NetworkPolicy>,
}

/// Empty stores.
pub fn stores(with_nodes: bool) -> (Stores, Writers) {
    let (sandboxes, sandboxes_in) = store();
    let (pools, pools_in) = store();
    let (pods, pods_in) = store();
    let (nodes, nodes_in) = with_nodes.then(store).unzip();
    let (config_maps, config_maps_in) = store();
    let (service_accounts, service_accounts_in) = store();
    let (policies, policies_in) = store();
    let stores = Stores { sandboxes, pools, pods, nodes, config_maps, service_accounts, policies };
    let writers = Writers {
        sandboxes: sandboxes_in,
        pools: pools_in,
        pods: pods_in,
        nodes: nodes_in,
        config_maps: config_maps_in,
        service_accounts: service_accounts_in,
        policies: policies_in,
    };
    (stores, writers)
}

/// Starts the watches. The future is ready when each store was filled once.
pub fn start(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    namespace: Option<&str>,
    writers: Writers,
    concerns: &Concerns,
    health: &Health,
) -> BoxFuture<'static, anyhow::Result<()>> {
    let mut starter = Starter { tasks, context, concerns, health, seen: Vec::new() };
    let stores = &context.stores;
    let made_by_us = watcher::Config::default().labels(&format!("{}={OPERATOR}", labels::MANAGED_BY));
    let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    let all = watcher::Config::default();

    starter.watch(
        "sandboxes",
        namespace,
        all.clone(),
        &stores.sandboxes,
        writers.sandboxes,
        of_sandboxes(context),
    );
    starter.watch("sandboxpools", namespace, all.clone(), &stores.pools, writers.pools, of_pools(context));
    starter.watch("pods", namespace, made_by_us.clone(), &stores.pods, writers.pods, of_pods(context));
    let config = named(LINK_CA_CONFIG_MAP);
    starter.watch(
        "configmaps",
        namespace,
        config,
        &stores.config_maps,
        writers.config_maps,
        of_namespace(context),
    );
    let config = named(RUNNER_SERVICE_ACCOUNT);
    let (store, writer) = (&stores.service_accounts, writers.service_accounts);
    starter.watch("serviceaccounts", namespace, config, store, writer, of_namespace(context));
    let (store, writer) = (&stores.policies, writers.policies);
    starter.watch("networkpolicies", namespace, made_by_us, store, writer, of_namespace(context));
    if let (Some(store), Some(writer)) = (&stores.nodes, writers.nodes) {
        let api: Api<DeserializeGuard<Node>> = Api::all(context.cluster.client());
        starter.watch_api("nodes", api, all, store, writer, of_nodes(context));
    }
    try_join_all(starter.seen).map(|seen| seen.map(drop)).boxed()
}

struct Starter<'a> {
    tasks: &'a mut JoinSet<()>,
    context: &'a Arc<Context>,
    concerns: &'a Concerns,
    health: &'a Health,
    seen: Vec<BoxFuture<'static, anyhow::Result<()>>>,
}

impl Starter<'_> {
    fn watch<K>(
        &mut self,
        what: &'static str,
        namespace: Option<&str>,
        config: watcher::Config,
        store: &Store<K>,
        writer: Writer<K>,
        concerned: impl FnMut(Option<&K>) -> Vec<Concern> + Send + 'static,
    ) where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Watched,
    {
        let client = self.context.cluster.client();
        let api: Api<DeserializeGuard<K>> = match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        self.watch_api(what, api, config, store, writer, concerned);
    }

    fn watch_api<K: Resource<DynamicType = ()> + Watched>(
        &mut self,
        what: &'static str,
        api: Api<DeserializeGuard<K>>,
        config: watcher::Config,
        store: &Store<K>,
        writer: Writer<K>,
        concerned: impl FnMut(Option<&K>) -> Vec<Concern> + Send + 'static,
    ) {
        self.health.waits_for(what);
        let (metrics, concerns) = (self.context.metrics.clone(), self.concerns.clone());
        self.tasks.spawn(watch(api, config, writer, metrics, concerns, concerned));
        let (store, health) = (store.clone(), self.health.clone());
        self.seen.push(
            async move {
                store.wait_until_ready().await.with_context(|| format!("{what} were never seen"))?;
                health.has(what);
                Ok(())
            }
            .boxed(),
        );
    }
}

/// What can be watched.
trait Watched: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static {}

impl<K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static> Watched for K {}

fn of_sandboxes(context: &Arc<Context>) -> impl FnMut(Option<&Sandbox>) -> Vec<Concern> + Send + use<> {
    let context = Arc::clone(context);
    let of = |sandbox: &Sandbox| {
        [
            Concern::Sandbox(ObjectRef::from_obj(sandbox)),
            of_pool_name(&sandbox.spec.pool, sandbox.namespace()),
        ]
    };
    move |sandbox| match sandbox {
        Some(sandbox) => {
            let key = ObjectRef::from_obj(sandbox);
            if context.stores.sandboxes.get(&key).is_none() {
                context.backoff.forget(&sandbox.uid().unwrap_or_default());
            }
            of(sandbox).into()
        }
        None => context.stores.sandboxes.state().iter().flat_map(|sandbox| of(sandbox)).collect(),
    }
}

fn of_pools(context: &Arc<Context>) -> impl FnMut(Option<&SandboxPool>) -> Vec<Concern> + Send + use<> {
    let context = Arc::clone(context);
    move |pool| {
        let pools = match pool {
            Some(pool) => vec![Arc::new(pool.clone())],
            None => context.stores.pools.state(),
        };
        if let Some(pool) = pool
            && context.stores.pools.get(&ObjectRef::from_obj(pool)).is_none()
        {
            let uid = pool.uid().unwrap_or_default();
            context.expectations.forget(&uid);
            context.backoff.forget(&uid);
        }
        let with_sandboxes = |pool: &Arc<SandboxPool>| {
            let sandboxes = context.sandboxes_of(pool);
            let sandboxes =
                sandboxes.iter().map(|sandbox| Concern::Sandbox(ObjectRef::from_obj(sandbox.as_ref())));
            std::iter::once(Concern::Pool(ObjectRef::from_obj(pool.as_ref())))
                .chain(sandboxes)
                .collect::<Vec<_>>()
        };
        pools.iter().flat_map(with_sandboxes).collect()
    }
}

fn of_pods(context: &Arc<Context>) -> impl FnMut(Option<&Pod>) -> Vec<Concern> + Send + use<> {
    let context = Arc::clone(context);
    move |pod| match pod {
        Some(pod) => {
            if context.stores.pods.get(&ObjectRef::from_obj(pod)).is_none() {
                context.set_gone(Arc::new(pod.clone()));
            }
            of_pod(&context, pod)
        }
        // Pods may have gone unseen: each Sandbox has to be looked at.
        None => of_sandboxes(&context)(None),
    }
}

/// What a namespace has was changed: its pools put it right.
fn of_namespace<K: ResourceExt>(
    context: &Arc<Context>,
) -> impl FnMut(Option<&K>) -> Vec<Concern> + Send + use<K> {
    let context = Arc::clone(context);
    move |object| {
        let namespace = object.map(ResourceExt::namespace);
        let pools = context.stores.pools.state();
        let of = pools
            .iter()
            .filter(|pool| namespace.as_ref().is_none_or(|namespace| pool.namespace() == *namespace));
        of.map(|pool| Concern::Pool(ObjectRef::from_obj(pool.as_ref()))).collect()
    }
}

/// A node that takes no more pods, or takes them again, concerns every pool; one that isn't heard any
/// more concerns the Sandboxes on it.
fn of_nodes(context: &Arc<Context>) -> impl FnMut(Option<&Node>) -> Vec<Concern> + Send + use<> {
    let context = Arc::clone(context);
    let mut known: HashMap<String, (bool, bool)> = HashMap::new();
    move |node| {
        let Some(node) = node else { return everything(&context) };
        let name = node.name_any();
        if context.stores.nodes.as_ref().is_some_and(|nodes| nodes.get(&ObjectRef::from_obj(node)).is_none())
        {
            known.remove(&name);
            return everything(&context);
        }
        let is = (context.is_cordoned(&name), context.is_node_lost(&name));
        // A node tells of itself all the time; only these two matter.
        if known.insert(name, is) == Some(is) { Vec::new() } else { everything(&context) }
    }
}

fn everything(context: &Arc<Context>) -> Vec<Concern> {
    let pools = context.stores.pools.state();
    let pools = pools.iter().map(|pool| Concern::Pool(ObjectRef::from_obj(pool.as_ref())));
    let sandboxes = context.stores.sandboxes.state();
    let sandboxes = sandboxes.iter().map(|sandbox| Concern::Sandbox(ObjectRef::from_obj(sandbox.as_ref())));
    pools.chain(sandboxes).collect()
}
