//! Objects of the cluster as JSON, and errors of the API server in words that say what to do.
//!
//! Only our own resources are read by type: code for all of a pod would make every `seance` larger.

use anyhow::{Context as _, Result, anyhow};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

/// Pods of a namespace.
pub fn pods(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &core("Pod", "pods"))
}

/// Services of a namespace, or of all.
pub fn services(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = core("Service", "services");
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn core(kind: &str, plural: &str) -> ApiResource {
    let (group, version) = (String::new(), "v1".to_owned());
    ApiResource {
        group,
        api_version: version.clone(),
        version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// All objects of an API with these labels.
///
/// # Errors
/// When they can't be listed, with what to do.
pub async fn list<K>(api: &Api<K>, labels: &str, what: &str) -> Result<Vec<K>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let listed = api.list(&ListParams::default().labels(labels)).await;
    Ok(listed.map_err(|error| told(error, &format!("list {what}")))?.items)
}

/// The text that a path of the API server gives.
///
/// # Errors
/// When it gives none, with what to do.
pub async fn get(client: &Client, path: &str, what: &str) -> Result<String> {
    let request = http::Request::get(path).body(Vec::new()).context("making a request")?;
    client.request_text(request).await.map_err(|error| told(error, &format!("read {what}")))
}

/// An error of the API server, with what was wanted and what to do.
pub fn told(error: kube::Error, doing: &str) -> anyhow::Error {
    let hint = match &error {
        kube::Error::Api(status) if status.code == 403 => {
            "; the user of this kubeconfig lacks the right: docs/benchmark.md lists those that the bench needs"
        }
        kube::Error::Api(status) if status.code == 404 && doing.starts_with("list SandboxPools") => {
            "; the cluster has no such resource: install the chart seance-crds"
        }
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            "; is the cluster that KUBECONFIG names up, and can it be reached from here?"
        }
        _ => "",
    };
    anyhow!(error).context(format!("can't {doing}{hint}"))
}

/// The name of a kind as `kubectl` writes it, for messages.
pub fn plural<K: Resource<DynamicType = ()>>() -> String {
    K::plural(&()).into_owned()
}
