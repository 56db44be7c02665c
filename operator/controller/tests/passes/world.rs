//! A server, the operator's memory of it, and what a watch would do between the two.

use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, store};
use kube::runtime::watcher::Event;
use seance_operator::build::link::Link;
use seance_operator::cluster::{Cluster, Error};
use seance_operator::context::{Context, LinkState, Settings, Stores};
use seance_operator::metrics::Metrics;
use seance_operator::{pool, sandbox};
use seance_operator_api::{Sandbox, SandboxPool};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::server::Server;

pub const PODS: &str = "/api/v1/namespaces/rooms/pods";
pub const SANDBOXES: &str = "/apis/seance.dev/v1alpha1/namespaces/rooms/sandboxes";
pub const POOL: &str = "/apis/seance.dev/v1alpha1/namespaces/rooms/sandboxpools/default";

/// The test's world.
pub struct World {
    pub server: Server,
    pub context: Arc<Context>,
    writers: Writers,
    _link: watch::Sender<LinkState>,
}

struct Writers {
    sandboxes: Writer<Sandbox>,
    pools: Writer<SandboxPool>,
    pods: Writer<k8s_openapi::api::core::v1::Pod>,
    config_maps: Writer<k8s_openapi::api::core::v1::ConfigMap>,
    service_accounts: Writer<k8s_openapi::api::core::v1::ServiceAccount>,
    policies: Writer<k8s_openapi::api::networking::v1::NetworkPolicy>,
}

impl World {
    /// A world with one pool, of which so many should be warm.
    pub fn new(n_warm: usize) -> Self {
        let server = Server::default();
        let (sandboxes, sandboxes_in) = store();
        let (pools, pools_in) = store();
        let (pods, pods_in) = store();
        let (config_maps, config_maps_in) = store();
        let (service_accounts, service_accounts_in) = store();
        let (policies, policies_in) = store();
        let stores = Stores { sandboxes, pools, pods, nodes: None, config_maps, service_accounts, policies };
        let link = Link::at("10.96.0.7:7443".parse().expect("an address"));
        let (sender, link) = watch::channel(LinkState { link: Ok(link), ca: Ok("a certificate".to_owned()) });
        let settings = Settings {
            canaries: Vec::new(),
            finished_retention: Duration::from_secs(600),
            warm_within: Duration::from_secs(120),
        };
        let cluster = Cluster::of(server.client());
        let context = Context::new(cluster, settings, stores, link, Metrics::new());
        let writers = Writers {
            sandboxes: sandboxes_in,
            pools: pools_in,
            pods: pods_in,
            config_maps: config_maps_in,
            service_accounts: service_accounts_in,
            policies: policies_in,
        };
        server.put(POOL, a_pool(n_warm));
        let mut world = Self { server, context: Arc::new(context), writers, _link: sender };
        world.see();
        world
    }

    /// What watches would do: the stores have what the server has.
    pub fn see(&mut self) {
        let Self { server, writers, .. } = self;
        fill(server, "sandboxes", &mut writers.sandboxes);
        fill(server, "sandboxpools", &mut writers.pools);
        fill(server, "pods", &mut writers.pods);
        fill(server, "configmaps", &mut writers.config_maps);
        fill(server, "serviceaccounts", &mut writers.service_accounts);
        fill(server, "networkpolicies", &mut writers.policies);
    }

    /// One pass over the pool.
    pub async fn pool_pass(&self) -> Result<Action, Error> {
        let pools = self.context.stores.pools.state();
        let pool = pools.first().expect("there is a pool");
        pool::reconcile::reconcile(Arc::clone(pool), Arc::clone(&self.context)).await
    }

    /// One pass over each Sandbox.
    pub async fn sandbox_passes(&self) -> Result<(), Error> {
        for sandbox in self.context.stores.sandboxes.state() {
            sandbox::reconcile::reconcile(sandbox, Arc::clone(&self.context)).await?;
        }
        Ok(())
    }

    /// Passes over everything, seen each time, until nothing is written; how it ends up.
    pub async fn settle(&mut self) {
        for _ in 0..20 {
            self.see();
            self.server.asked();
            self.pool_pass().await.expect("a pass");
            self.sandbox_passes().await.expect("passes");
            if self.server.asked().iter().all(|asked| asked.starts_with("get")) {
                return;
            }
        }
        panic!("it doesn't come to rest: {:?}", self.server.objects("sandboxes"));
    }

    /// The condition of a Sandbox as `<status> <reason>`.
    pub fn condition(&self, sandbox: &str, type_: &str) -> String {
        let all = self.server.objects("sandboxes");
        let sandbox =
            all.iter().find(|object| object["metadata"]["name"] == sandbox).expect("there is such a one");
        condition(sandbox, type_)
    }

    /// The pool's condition as `<status> <reason>`.
    pub fn pool_condition(&self, type_: &str) -> String {
        condition(&self.server.objects("sandboxpools")[0], type_)
    }

    /// Every pod's container runs from now on.
    pub fn start_pods(&self) {
        for pod in self.server.objects("pods") {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            let container = json!({
                "name": "runner", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": {} },
            });
            let status = json!({ "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [container] });
            self.server
                .change(&format!("{PODS}/{name}"), &json!({ "spec": { "nodeName": "n" }, "status": status }));
        }
    }

    /// The service says something of each Sandbox.
    pub fn say(&self, type_: &str, reason: &str) {
        for sandbox in self.server.objects("sandboxes") {
            let name = sandbox["metadata"]["name"].as_str().expect("a name");
            let condition = json!({
                "type": type_, "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            let path = format!("{SANDBOXES}/{name}");
            self.server.change(&path, &json!({ "status": { "conditions": [condition] } }));
        }
    }
}

fn condition(object: &Value, type_: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == type_);
    let text = |key: &str| found.and_then(|is| is[key].as_str()).unwrap_or("none").to_owned();
    format!("{} {}", text("status"), text("reason"))
}

fn fill<K>(server: &Server, resource: &str, writer: &mut Writer<K>)
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + DeserializeOwned + 'static,
{
    writer.apply_watcher_event(&Event::Init);
    for object in server.objects(resource) {
        writer.apply_watcher_event(&Event::InitApply(serde_json::from_value(object).expect("an object")));
    }
    writer.apply_watcher_event(&Event::InitDone);
}

fn a_pool(n_warm: usize) -> Value {
    json!({
        "apiVersion": "seance.dev/v1alpha1", "kind": "SandboxPool",
        "metadata": { "name": "default", "namespace": "rooms", "generation": 1 },
        "spec": {
            "template": {
                "image": "runner:1",
                "resources": { "limits": { "cpu": 1, "memory": "256Mi", "ephemeralStorage": "64Mi" } },
            },
            "engines": ["javascript"],
            "warm": { "min": n_warm, "max": n_warm },
        },
    })
}

/// A Sandbox of the pool, as the service makes one.
pub fn a_sandbox(name: &str) -> Value {
    json!({
        "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox",
        "metadata": { "name": name, "namespace": "rooms", "labels": { "seance.dev/origin": "cold" } },
        "spec": { "pool": "default", "desired": "Serve" },
    })
}
