//! Where things are: the pool, its namespace, the service and the operator, the pool's pods and node.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::api::DynamicObject;
use kube::{Api, Client, ResourceExt as _};
use seance_operator_api::{LINK_PORT, Sandbox, SandboxPool, env, labels};
use serde_json::Value;

use super::World;
use super::objects::{self, list};
use super::pools::{self, Readiness};
use crate::args::Bench;

/// How long a pool may take to be warm.
const WARM_WITHIN: Duration = Duration::from_secs(600);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(500);
/// How long a session may take to be written into its Sandbox.
const WRITTEN_WITHIN: Duration = Duration::from_secs(15);

/// Where things are.
pub struct Place {
    /// The cluster.
    pub client: Client,
    /// The namespace of the sandboxes.
    pub sandboxes: String,
    /// The pool's name.
    pub pool: String,
    /// The service's pods and the operator's, and the ports of their metrics.
    pub service: Vec<Metered>,
    /// The operator's.
    pub operator: Vec<Metered>,
}

/// A pod that tells metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metered {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The port of `/metrics`.
    pub port: u64,
}

impl Place {
    /// Finds everything, from what the command line names.
    ///
    /// # Errors
    /// When something isn't there, is there twice, or can't be read; with what to do.
    pub async fn find(bench: &Bench) -> Result<Self> {
        let client = Client::try_default().await.context(
            "there is no cluster: set KUBECONFIG to the file that kubectl uses, or run this in a pod with a \
             service account",
        )?;
        let named = bench.sandbox_namespace.as_deref();
        let api: Api<SandboxPool> = match named {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        let hint =
            if named.is_some() { "" } else { " of all namespaces (or name one with --sandbox-namespace)" };
        let all = list(&api, "", &format!("SandboxPools{hint}")).await?;
        let pool = pools::choose(all, bench.pool.as_deref(), named)?;
        let (sandboxes, name) = (pool.namespace().unwrap_or_default(), pool.name_any());
        let mut place = Self { client, sandboxes, pool: name, service: Vec::new(), operator: Vec::new() };
        place.until_warm(&[]).await?;
        let [service, operator] = place.parts(bench.service_namespace.as_deref()).await?;
        (place.service, place.operator) = (service, operator);
        Ok(place)
    }

    /// The pools of the namespace.
    pub fn pools(&self) -> Api<SandboxPool> {
        Api::namespaced(self.client.clone(), &self.sandboxes)
    }

    /// The Sandboxes of the namespace.
    pub fn sandboxes(&self) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), &self.sandboxes)
    }

    /// The sandboxes' pods, and those beside them.
    pub fn pods(&self) -> Api<DynamicObject> {
        objects::pods(&self.client, &self.sandboxes)
    }

    /// The pods of the pool.
    pub async fn pods_of_pool(&self) -> Result<Vec<DynamicObject>> {
        list(&self.pods(), &format!("{}={}", labels::POOL, self.pool), "pods of the sandboxes").await
    }

    /// The pool as it is now.
    pub async fn pool(&self) -> Result<SandboxPool> {
        let got = self.pools().get(&self.pool).await;
        got.map_err(|error| objects::told(error, &format!("read the SandboxPool {}", self.pool)))
    }

    /// Waits until the pool is full and none of these sessions has a sandbox any more, so that what is
    /// measured next is that alone. Says how many are warm.
    pub async fn until_warm(&self, sessions: &[String]) -> Result<usize> {
        let mut last = String::new();
        let waiting = async {
            loop {
                match pools::readiness(&self.pool().await?) {
                    Readiness::Ready(n_warm) => match self.n_held(sessions).await? {
                        0 => return Ok(n_warm),
                        n => last = format!("{n} sandboxes of closed sessions are still there"),
                    },
                    Readiness::NotYet(why) => {
                        if last.is_empty() && sessions.is_empty() {
                            eprintln!("waiting: {why}");
                        }
                        last = why;
                    }
                    Readiness::Never(why) => bail!(why),
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::time::timeout(WARM_WITHIN, waiting).await {
            Ok(found) => found,
            Err(_) => bail!(
                "{last}; that didn't change in {} s: see \"A pool that isn't ready\" in docs/runbook.md",
                WARM_WITHIN.as_secs()
            ),
        }
    }

    async fn n_held(&self, sessions: &[String]) -> Result<usize> {
        if sessions.is_empty() {
            return Ok(0);
        }
        let all = list(&self.sandboxes(), "", &objects::plural::<Sandbox>()).await?;
        let is_held = |sandbox: &&Sandbox| {
            sandbox.spec.session.as_ref().is_some_and(|session| sessions.contains(&session.id))
        };
        Ok(all.iter().filter(is_held).count())
    }

    /// The Sandbox of a session, as soon as the service has written that down.
    pub async fn sandbox_of(&self, session: &str) -> Result<Option<Sandbox>> {
        let waiting = async {
            loop {
                let all = list(&self.sandboxes(), "", &objects::plural::<Sandbox>()).await?;
                let is_its =
                    |sandbox: &Sandbox| sandbox.spec.session.as_ref().is_some_and(|of| of.id == session);
                if let Some(sandbox) = all.into_iter().find(is_its) {
                    return Ok(sandbox);
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(WRITTEN_WITHIN, waiting).await.ok().transpose()
    }

    /// The pods of the service and of the operator: runners dial a Service, whose pods are the service's,
    /// and the operator's are of the same release.
    async fn parts(&self, namespace: Option<&str>) -> Result<[Vec<Metered>; 2]> {
        let pods = self.pods_of_pool().await?;
        let link = pods.iter().find_map(|pod| link_address(&pod.data));
        let link = link.with_context(|| format!("no pod of pool {} says where runners dial", self.pool))?;
        let what = match namespace {
            Some(namespace) => format!("Services of {namespace}"),
            None => "Services of all namespaces (or name the service's with --service-namespace)".to_owned(),
        };
        let services = list(&objects::services(&self.client, namespace), "", &what).await?;
        let service = services.iter().find(|service| has_address(&service.data, &link));
        let service = service.with_context(|| {
            format!("no Service has the address {link}, which runners of {} dial", self.pool)
        })?;
        let release = service.namespace().unwrap_or_default();
        let selector = &service.data["spec"]["selector"];
        let found = [
            self.metered(&release, &selector_of(selector, "service"), "admin").await?,
            self.metered(&release, &selector_of(selector, "operator"), "http").await?,
        ];
        Ok(found)
    }

    async fn metered(&self, namespace: &str, selector: &str, port: &str) -> Result<Vec<Metered>> {
        let pods =
            list(&objects::pods(&self.client, namespace), selector, &format!("pods of {namespace}")).await?;
        let of = |pod: &DynamicObject| {
            let port = port_of(&pod.data, port)?;
            Some(Metered { namespace: namespace.to_owned(), pod: pod.name_any(), port })
        };
        let found: Vec<_> =
            pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).filter_map(of).collect();
        if found.is_empty() {
            bail!("no pod in {namespace} has the labels {selector} and the port {port:?}");
        }
        Ok(found)
    }
}

impl World {
    /// Makes sure that the service's sessions have the pool's sandboxes, and learns whose they are.
    pub async fn check_installation(&self) -> Result<()> {
        let Place { sandboxes, pool, .. } = &self.place;
        let session = self.made.open(&[]).await.context("can't open a session")?;
        let sandbox = self.place.sandbox_of(&session).await?;
        self.caller.close(&session).await?;
        let sandbox = sandbox.with_context(|| {
            format!(
                "the service opened a session, and no Sandbox in {sandboxes} has it: --address and KUBECONFIG lead to \
                 different installations"
            )
        })?;
        if sandbox.spec.pool != *pool {
            bail!(
                "sessions get their sandboxes from pool {}, not from {pool}: measure that one with --pool {0}",
                sandbox.spec.pool
            );
        }
        let tenant = sandbox.spec.session.map(|session| session.tenant).unwrap_or_default();
        self.made.set_tenant(tenant);
        self.place.until_warm(&[session]).await?;
        Ok(())
    }
}

/// The address that a pod's runner dials.
fn link_address(pod: &Value) -> Option<IpAddr> {
    let containers = pod["spec"]["containers"].as_array()?;
    let variables = containers.iter().filter_map(|container| container["env"].as_array()).flatten();
    let address =
        variables.into_iter().find(|variable| variable["name"] == env::LINK_ADDRESS)?["value"].as_str()?;
    let address: std::net::SocketAddr = address.strip_prefix("https://")?.parse().ok()?;
    Some(address.ip())
}

fn has_address(service: &Value, address: &IpAddr) -> bool {
    let spec = &service["spec"];
    let all = spec["clusterIPs"].as_array().into_iter().flatten().chain(std::iter::once(&spec["clusterIP"]));
    let has =
        all.filter_map(Value::as_str).filter_map(|text| text.parse::<IpAddr>().ok()).any(|ip| ip == *address);
    has && spec["ports"].as_array().is_some_and(|ports| ports.iter().any(|port| port["name"] == LINK_PORT))
}

/// The selector of another part of the same release.
fn selector_of(selector: &Value, component: &str) -> String {
    let labels = selector.as_object().into_iter().flatten();
    let other = |(key, value): (&String, &Value)| match key.as_str() {
        "app.kubernetes.io/component" => format!("{key}={component}"),
        _ => format!("{key}={}", value.as_str().unwrap_or_default()),
    };
    labels.map(other).collect::<Vec<_>>().join(",")
}

fn port_of(pod: &Value, name: &str) -> Option<u64> {
    let containers = pod["spec"]["containers"].as_array()?;
    let mut ports = containers.iter().filter_map(|container| container["ports"].as_array()).flatten();
    ports.find(|port| port["name"] == name)?["containerPort"].as_u64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_service_is_found_by_where_runners_dial() {
        let variable = json!({ "name": "SEANCE_LINK_ADDRESS", "value": "https://10.96.0.7:7446" });
        let pod = json!({ "spec": { "containers": [{ "env": [{ "name": "X" }, variable] }] } });
        let address = link_address(&pod).expect("the variable is there");
        let service = |ip: &str, port: &str| json!({ "spec": { "clusterIP": ip, "ports": [{ "name": port, "port": 7446 }] } });
        assert!(has_address(&service("10.96.0.7", "link"), &address));
        assert!(!has_address(&service("10.96.0.8", "link"), &address));
        assert!(!has_address(&service("10.96.0.7", "api"), &address));
        assert!(!has_address(&service("None", "link"), &address));
        assert_eq!(link_address(&json!({ "spec": {} })), None);
    }

    #[test]
    fn the_operator_is_of_the_same_release() {
        let selector = json!({
            "app.kubernetes.io/instance": "r", "app.kubernetes.io/component": "service",
        });
        let operator = "app.kubernetes.io/instance=r,app.kubernetes.io/component=operator";
        assert_eq!(selector_of(&selector, "operator"), operator);
        let ports = json!([{ "name": "api", "containerPort": 1 }, { "name": "admin", "containerPort": 2 }]);
        let pod = json!({ "spec": { "containers": [{ "ports": ports }] } });
        assert_eq!((port_of(&pod, "admin"), port_of(&pod, "http")), (Some(2), None));
    }
}
