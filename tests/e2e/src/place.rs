//! A test's own place in the cluster: a release of the chart, its namespace and that of its sandboxes,
//! and its callers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use seance_operator_api::{Sandbox, SandboxPool, is_true, labels};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::agent::{Agent, Endpoint};
use crate::reach::{Forward, Reach};
use crate::run::Options;
use crate::{collect, helm, wait};

/// The release's name, which its objects' names begin with.
pub const RELEASE: &str = "seance";
/// The pool that a place has unless it says otherwise.
pub const POOL: &str = "js";
/// The tenants that a place has.
pub const TENANTS: [&str; 2] = ["team-a", "team-b"];
/// From the installation to warm sandboxes: images are on the node, programs are debug builds.
pub const READY_WITHIN: Duration = Duration::from_secs(90);
/// What follows from something without an image or a container in its way.
pub const SOON: Duration = Duration::from_secs(20);
/// Namespaces with everything in them.
const GONE_WITHIN: Duration = Duration::from_secs(90);

/// What all tests of a run share.
#[derive(Clone)]
pub struct Setting {
    /// The cluster.
    pub client: Client,
    /// Where what explains failures goes.
    pub logs: PathBuf,
    /// Commands that are clients' own checks.
    pub clients: Vec<String>,
    reach: Reach,
    charts: PathBuf,
    image_prefix: String,
    image_tag: String,
}

impl Setting {
    /// The setting of a run.
    pub fn new(client: Client, options: &Options) -> Self {
        Self {
            client,
            logs: options.logs.clone(),
            clients: options.clients.clone(),
            reach: options.reach,
            charts: options.charts.clone(),
            image_prefix: options.image_prefix.clone(),
            image_tag: options.image_tag.clone(),
        }
    }

    /// The folder of a chart.
    pub fn chart(&self, name: &str) -> String {
        self.charts.join(name).to_string_lossy().into_owned()
    }

    /// An image of ours, as values name it.
    pub fn image(&self, name: &str) -> Value {
        let repository = format!("{}seance/{name}", self.image_prefix);
        json!({ "repository": repository, "tag": self.image_tag })
    }

    /// An image of ours, as pods name it.
    pub fn image_name(&self, name: &str) -> String {
        format!("{}seance/{name}:{}", self.image_prefix, self.image_tag)
    }
}

/// A test's own place.
pub struct Place {
    /// What all tests share.
    pub setting: Setting,
    /// The namespace of the release.
    pub namespace: String,
    /// The namespace of the sandboxes.
    pub sandboxes: String,
    tokens: BTreeMap<&'static str, String>,
    is_installed: bool,
    /// The way to the service that stands, where it is not its address.
    forward: Mutex<Option<Forward>>,
}

impl Place {
    /// A place that is not made yet, under names that nobody has.
    pub fn new(setting: Setting, test: &str) -> Self {
        let id = hex::encode(rand::random::<[u8; 3]>());
        let namespace = format!("e2e-{test}-{id}");
        let token = |tenant| (tenant, format!("seance_{}", hex::encode(rand::random::<[u8; 32]>())));
        Self {
            setting,
            sandboxes: format!("{namespace}-sandboxes"),
            namespace,
            tokens: TENANTS.into_iter().map(token).collect(),
            is_installed: false,
            forward: Mutex::new(None),
        }
    }

    /// What a place is installed with: small, with one pool of two warm sandboxes.
    pub fn values(&self) -> Value {
        let tenant = |(tenant, token): (&&str, &String)| {
            let hash = hex::encode(Sha256::digest(token.as_bytes()));
            json!({ "name": tenant, "tokens": [{ "sha256": hash }] })
        };
        let tenants: Vec<Value> = self.tokens.iter().map(tenant).collect();
        json!({
            "service": {
                "image": self.setting.image("service"),
                "resources": { "requests": { "cpu": "10m", "memory": "64Mi" } },
                "persistence": { "enabled": false },
            },
            "operator": {
                "image": self.setting.image("operator"),
                "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
            },
            "runner": { "image": self.setting.image("runner") },
            "sandboxes": { "namespace": self.sandboxes },
            "tenants": tenants,
            // Taken away from the defaults.
            "pools": { "javascript": null, POOL: pool(2) },
        })
    }

    /// Installs the chart with these values and makes the namespace for it.
    ///
    /// # Errors
    /// With what helm or the API server said.
    pub async fn install(&mut self, values: &Value) -> anyhow::Result<()> {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(self.namespace.clone());
        namespace.metadata.labels =
            Some([("pod-security.kubernetes.io/enforce".to_owned(), "restricted".to_owned())].into());
        let namespaces: Api<Namespace> = Api::all(self.setting.client.clone());
        namespaces.create(&PostParams::default(), &namespace).await.context("making the namespace")?;
        self.is_installed = true;
        let chart = self.setting.chart("seance");
        let command = ["install", RELEASE, &chart, "--namespace", &self.namespace];
        helm::with_values(&command, values).await?;
        Ok(())
    }

    /// Installs with the values of [`Self::values`] and waits until the pool is warm.
    ///
    /// # Errors
    /// When it doesn't come to that.
    pub async fn install_and_warm(&mut self) -> anyhow::Result<()> {
        self.install(&self.values()).await?;
        self.warm().await
    }

    /// Upgrades the release to these values.
    ///
    /// # Errors
    /// With what helm said.
    pub async fn upgrade(&self, values: &Value) -> anyhow::Result<()> {
        let chart = self.setting.chart("seance");
        let command = ["upgrade", RELEASE, &chart, "--namespace", &self.namespace];
        helm::with_values(&command, values).await?;
        Ok(())
    }

    /// Uninstalls the release; what belongs to it goes with it.
    ///
    /// # Errors
    /// With what helm said, or when the sandboxes' namespace doesn't go.
    pub async fn uninstall(&mut self) -> anyhow::Result<()> {
        self.is_installed = false;
        helm::helm(&["uninstall", RELEASE, "--namespace", &self.namespace, "--ignore-not-found"]).await?;
        let namespaces: Api<Namespace> = Api::all(self.setting.client.clone());
        wait::until_gone(&namespaces, &self.sandboxes, GONE_WITHIN).await
    }

    /// Takes away everything that the place is.
    ///
    /// # Errors
    /// When something stays.
    pub async fn remove(&mut self) -> anyhow::Result<()> {
        let uninstalled = if self.is_installed { self.uninstall().await } else { Ok(()) };
        let namespaces: Api<Namespace> = Api::all(self.setting.client.clone());
        for name in [&self.sandboxes, &self.namespace] {
            match namespaces.delete(name, &DeleteParams::background()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {}
                Err(error) => return Err(error).context("deleting a namespace"),
            }
            wait::until_gone(&namespaces, name, GONE_WITHIN).await?;
        }
        uninstalled
    }

    /// Objects of the release's namespace.
    pub fn ours<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.setting.client.clone(), &self.namespace)
    }

    /// Objects of the sandboxes' namespace.
    pub fn theirs<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.setting.client.clone(), &self.sandboxes)
    }

    /// Waits until the pool has as many warm sandboxes as it wants.
    ///
    /// # Errors
    /// At the deadline, with how the pool is.
    pub async fn warm(&self) -> anyhow::Result<()> {
        self.pool_until("the pool is warm", READY_WITHIN, |pool| {
            let status = pool.status.as_ref()?;
            let is_current = status.observed_generation == pool.metadata.generation;
            (is_current && is_true(&status.conditions, "Ready")).then_some(())
        })
        .await
    }

    /// Waits for what the pool [`POOL`] has to be.
    ///
    /// # Errors
    /// At the deadline, with how the pool is.
    pub async fn pool_until<T>(
        &self,
        what: &str,
        deadline: Duration,
        mut wanted: impl FnMut(&SandboxPool) -> Option<T>,
    ) -> anyhow::Result<T> {
        let found =
            |pools: &[SandboxPool]| pools.iter().find(|pool| pool.name_any() == POOL).and_then(&mut wanted);
        wait::until(&self.theirs(), what, deadline, found, |pool| {
            format!("{} {}", pool.name_any(), serde_json::to_string(&pool.status).unwrap_or_default())
        })
        .await
    }

    /// Waits for what the sandboxes have to be.
    ///
    /// # Errors
    /// At the deadline, with how they are.
    pub async fn sandboxes_until<T>(
        &self,
        what: &str,
        deadline: Duration,
        wanted: impl FnMut(&[Sandbox]) -> Option<T>,
    ) -> anyhow::Result<T> {
        wait::until(&self.theirs(), what, deadline, wanted, |sandbox| {
            let status = serde_json::to_string(&sandbox.status).unwrap_or_default();
            format!("{} {:?} {status}", sandbox.name_any(), sandbox.spec.desired)
        })
        .await
    }

    /// The pod of the service.
    ///
    /// # Errors
    /// When there isn't one that is ready within the usual time.
    pub async fn service_pod(&self) -> anyhow::Result<Pod> {
        self.ready_pod("service").await
    }

    /// A pod of ours that is ready: `service` or `operator`.
    ///
    /// # Errors
    /// When there isn't one within the usual time.
    pub async fn ready_pod(&self, component: &str) -> anyhow::Result<Pod> {
        let what = format!("a pod of the {component} is ready");
        let is_ready = |pod: &&Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
            pod.labels().get("app.kubernetes.io/component").map(String::as_str) == Some(component)
                && pod.metadata.deletion_timestamp.is_none()
                && conditions.unwrap_or_default().iter().any(|is| is.type_ == "Ready" && is.status == "True")
        };
        let wanted = |pods: &[Pod]| pods.iter().find(is_ready).cloned();
        wait::until(&self.ours(), &what, READY_WITHIN, wanted, |pod: &Pod| {
            format!("{} {}", pod.name_any(), serde_json::to_string(&pod.status).unwrap_or_default())
        })
        .await
    }

    /// How callers reach the service.
    ///
    /// # Errors
    /// When the Service or the CA aren't there.
    pub async fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let service = self.ours::<Service>().get(RELEASE).await.context("reading the Service")?;
        let spec = service.spec.context("the Service has no spec")?;
        let address = spec.cluster_ip.context("the Service has no address")?;
        let port =
            spec.ports.as_deref().and_then(|ports| ports.first()).context("the Service has no port")?.port;
        let ca =
            self.ours::<ConfigMap>().get(&format!("{RELEASE}-api-ca")).await.context("reading the CA")?;
        let url = match self.setting.reach {
            Reach::Address => format!("https://{address}:{port}"),
            Reach::Forward => {
                // The old one led to a pod that may be gone.
                self.service_pod().await?;
                let forward = Forward::to(&self.namespace, RELEASE, port).await?;
                let url = format!("https://127.0.0.1:{}", forward.port);
                *self.forward.lock().unwrap_or_else(PoisonError::into_inner) = Some(forward);
                url
            }
        };
        Ok(Endpoint {
            url,
            server_name: format!("{RELEASE}.{}.svc", self.namespace),
            ca: ca.data.and_then(|mut data| data.remove("ca.crt")).context("the CA is empty")?,
        })
    }

    /// A caller of one of the [`TENANTS`], connected.
    ///
    /// # Errors
    /// When it can't connect.
    pub async fn agent(&self, tenant: &str) -> anyhow::Result<Agent> {
        let token = self.tokens.get(tenant).with_context(|| format!("there is no tenant {tenant}"))?;
        Agent::connect(&self.endpoint().await?, token).await
    }

    /// The token of one of the [`TENANTS`].
    pub fn token(&self, tenant: &str) -> Option<&str> {
        self.tokens.get(tenant).map(String::as_str)
    }

    /// What a pod of ours serves over HTTP, through the API server.
    ///
    /// # Errors
    /// When it can't be had.
    pub async fn http(&self, pod: &str, port: u16, path: &str) -> anyhow::Result<String> {
        let url = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{path}", self.namespace);
        let request = http::Request::get(url).body(Vec::new()).context("making a request")?;
        Ok(self.setting.client.request_text(request).await?)
    }

    /// An address for a Service that nobody has at this moment.
    ///
    /// # Errors
    /// When the cluster gives none.
    pub async fn free_address(&self) -> anyhow::Result<String> {
        let services: Api<Service> = Api::namespaced(self.setting.client.clone(), "default");
        let name = format!("{}-address", self.namespace);
        let asked = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "ports": [{ "port": 443 }] },
        });
        let asked = serde_json::from_value(asked).context("a Service")?;
        let made: Service =
            services.create(&PostParams::default(), &asked).await.context("asking for an address")?;
        services.delete(&name, &DeleteParams::default()).await.context("giving an address back")?;
        made.spec.and_then(|spec| spec.cluster_ip).context("the Service got no address")
    }

    /// The pod of a session, as soon as it says whose it is.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn pod_of(&self, session: &str) -> anyhow::Result<Pod> {
        let is_its = |pod: &&Pod| {
            pod.labels().get(labels::SESSION).map(String::as_str) == Some(session)
                && pod.metadata.deletion_timestamp.is_none()
        };
        let wanted = |pods: &[Pod]| pods.iter().find(is_its).cloned();
        wait::until(&self.theirs(), "a pod has the session's label", SOON, wanted, |pod: &Pod| {
            format!("{} {:?}", pod.name_any(), pod.labels())
        })
        .await
    }

    /// Waits until both sides say that no sandbox is leaked.
    ///
    /// # Errors
    /// At the deadline, with what they said.
    pub async fn nothing_is_leaked(&self) -> anyhow::Result<()> {
        let service = self.service_pod().await?.name_any();
        let operator = self.ready_pod("operator").await?.name_any();
        let (service, operator) = (&service, &operator);
        wait::until_told("nothing is leaked", Duration::from_secs(30), || async move {
            for (pod, port) in [(service, 7444), (operator, 8080)] {
                let text = self.http(pod, port, "/metrics").await.map_err(|error| format!("{error:#}"))?;
                match metric(&text, "seance_leaked_sandboxes") {
                    Some(0.0) => {}
                    other => return Err(format!("{pod} says {other:?}")),
                }
            }
            Ok(())
        })
        .await
    }

    /// Writes what explains a failure.
    pub async fn collect(&self, folder: &Path) {
        let namespaces = [self.namespace.as_str(), self.sandboxes.as_str()];
        if let Err(error) = collect::all(&self.setting.client, &namespaces, folder).await {
            eprintln!("what explains the failure could not all be had: {error:#}");
        }
    }

    /// Fails unless the pods of the sandboxes are as many as this.
    ///
    /// # Errors
    /// With their number, when it is another.
    pub async fn expect_pods(&self, n_pods: usize) -> anyhow::Result<()> {
        let there = wait::all(&self.theirs::<Pod>()).await?.len();
        ensure!(there == n_pods, "{there} pods of sandboxes instead of {n_pods}");
        Ok(())
    }
}

/// A pool with so many warm sandboxes, as values name it.
pub fn pool(n_warm: u32) -> Value {
    json!({
        "engines": ["javascript"],
        "warm": { "min": n_warm, "max": n_warm.max(8) },
        "template": { "resources": {
            "limits": { "cpu": "1", "memory": "192Mi", "ephemeralStorage": "64Mi" },
            "requests": { "cpu": "10m", "memory": "32Mi" },
        } },
        // The test clusters have neither a resolver nor a metadata service, so that nothing can be
        // shown of them there.
        "acceptedChecks": ["resolver", "metadata"],
    })
}

/// The sum of a metric over its labels, from the text that Prometheus reads.
pub fn metric(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.as_bytes().first()? {
            b'{' => rest.rsplit_once(' ')?.1,
            b' ' => rest.trim(),
            _ => return None,
        };
        value.parse::<f64>().ok()
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::metric;

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let text = "# HELP a b\na{side=\"x\"} 1\na{side=\"y\"} 2\nab 5\nb 0\n";
        assert_eq!(metric(text, "a"), Some(3.0));
        assert_eq!(metric(text, "b"), Some(0.0));
        assert_eq!(metric(text, "c"), None);
    }
}
