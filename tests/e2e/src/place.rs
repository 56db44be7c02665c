//! A test's own place in the cluster: a release of the chart, its namespace and that of its sandboxes,
//! and its callers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Resource};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::agent::{Agent, Endpoint};
use crate::reach::{Forward, Reach};
use crate::setting::Setting;
use crate::{collect, helm, wait};

mod seen;

pub use seen::{has_ended, metric};

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

    /// Writes what explains a failure.
    pub async fn collect(&self, folder: &Path) {
        let namespaces = [self.namespace.as_str(), self.sandboxes.as_str()];
        if let Err(error) = collect::all(&self.setting.client, &namespaces, folder).await {
            eprintln!("what explains the failure could not all be had: {error:#}");
        }
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
