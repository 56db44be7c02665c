//! What explains a failure: objects, events and logs of the namespaces of a test, as files.

use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::LogParams;
use kube::{Api, Client, Resource, ResourceExt};
use seance_operator_api::{Sandbox, SandboxPool};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wait;

/// The end of a log is what explains.
const LOG_LINES: i64 = 5_000;

/// Writes all there is. What can't be had leaves the rest alone; the first error is returned.
///
/// # Errors
/// When something could not be read or written.
pub async fn all(client: &Client, namespaces: &[&str], folder: &Path) -> anyhow::Result<()> {
    let mut result = Ok(());
    for namespace in namespaces {
        let folder = folder.join(namespace);
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let namespace = Namespaced { client, name: namespace, folder: &folder };
        result = result
            .and(namespace.objects::<Pod>("pods").await)
            .and(namespace.objects::<Event>("events").await)
            .and(namespace.objects::<Sandbox>("sandboxes").await)
            .and(namespace.objects::<SandboxPool>("sandboxpools").await)
            .and(namespace.objects::<StatefulSet>("statefulsets").await)
            .and(namespace.objects::<Deployment>("deployments").await)
            .and(namespace.objects::<Service>("services").await)
            .and(namespace.objects::<ConfigMap>("configmaps").await)
            .and(namespace.objects::<NetworkPolicy>("networkpolicies").await)
            .and(namespace.objects::<PersistentVolumeClaim>("claims").await)
            .and(namespace.logs().await);
    }
    result
}

struct Namespaced<'a> {
    client: &'a Client,
    name: &'a str,
    folder: &'a Path,
}

impl Namespaced<'_> {
    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.name)
    }

    async fn objects<K>(&self, what: &str) -> anyhow::Result<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let mut objects = wait::all(&self.api::<K>()).await.with_context(|| format!("reading {what}"))?;
        for object in &mut objects {
            object.managed_fields_mut().clear();
        }
        let text = serde_json::to_string_pretty(&objects).context("writing objects as JSON")?;
        self.write(&format!("{what}.json"), &text)
    }

    async fn logs(&self) -> anyhow::Result<()> {
        for pod in wait::all(&self.api::<Pod>()).await? {
            for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
                for previous in [false, true] {
                    let parameters = LogParams {
                        container: Some(container.name.clone()),
                        previous,
                        tail_lines: Some(LOG_LINES),
                        ..LogParams::default()
                    };
                    // A container that never started, or never restarted, has none.
                    let Ok(log) = self.api::<Pod>().logs(&pod.name_any(), &parameters).await else {
                        continue;
                    };
                    let which = if previous { "before.log" } else { "log" };
                    self.write(&format!("{}.{}.{which}", pod.name_any(), container.name), &log)?;
                }
            }
        }
        Ok(())
    }

    fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }
}
