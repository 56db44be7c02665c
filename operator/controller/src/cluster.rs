//! The API server as the operator uses it: each write in one place, with a deadline, and counted.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::client::ClientBuilder;
use kube::runtime::events::{Event, Recorder, Reporter};
use kube::{Api, Client, Resource, ResourceExt};
use seance_operator_api::{OPERATOR, Sandbox, SandboxPool, labels, requests};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::util::{MapRequestLayer, MapResponseLayer};

use crate::metrics::Metrics;

/// How long a request may take. Watches are not requests of this kind.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused it, or could not be reached.
    #[error("can't {doing} {object}")]
    Request {
        /// What was being done.
        doing: &'static str,
        /// To what.
        object: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// No answer came in time.
    #[error("can't {doing} {object}: no answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout {
        /// What was being done.
        doing: &'static str,
        /// To what.
        object: String,
    },
}

/// Why the API server refused a request, as far as we do something else for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is one of this name.
    AlreadyExists,
    /// There is none of this name, or not of this UID or version.
    NotFound,
    /// It changed meanwhile.
    Conflict,
    /// A quota is used up: which, and what of.
    Quota(String),
    /// It isn't allowed, or isn't valid: why.
    Refused(String),
}

impl Error {
    /// The refusal, if the API server answered with one that stays when nothing changes.
    pub fn refusal(&self) -> Option<Refusal> {
        let Error::Request { source, .. } = self else { return None };
        let kube::Error::Api(status) = &**source else { return None };
        match (status.code, status.reason.as_str()) {
            (409, "AlreadyExists") => Some(Refusal::AlreadyExists),
            (409, _) => Some(Refusal::Conflict),
            (404, _) => Some(Refusal::NotFound),
            (403, _) if status.message.contains("exceeded quota") => {
                Some(Refusal::Quota(quota(&status.message)))
            }
            (400 | 403 | 422, _) => {
                Some(Refusal::Refused(crate::sandbox::started::told("", Some(&status.message))))
            }
            _ => None,
        }
    }
}

/// The quota that a message of the API server names, without the object's name before it.
fn quota(message: &str) -> String {
    let (_, what) = message.split_once("exceeded quota: ").unwrap_or(("", message));
    format!("the namespace's quota {}", crate::sandbox::started::told("", Some(what)))
}

/// The API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    recorder: Recorder,
}

impl Cluster {
    /// A client of the cluster that the environment names: a pod's, or that of a kubeconfig.
    pub async fn connect(metrics: &Metrics) -> Result<Self, kube::Error> {
        let config = kube::Config::infer().await.map_err(kube::Error::InferConfig)?;
        let (requests, conflicts) = (metrics.requests.clone(), metrics.conflicts.clone());
        let asked = MapRequestLayer::new(move |request: http::Request<kube::client::Body>| {
            let verb = requests::verb(request.method().as_str());
            requests.with_label_values(&[verb, requests::resource(request.uri().path())]).inc();
            request
        });
        let answered = MapResponseLayer::new(move |response: http::Response<_>| {
            if response.status() == http::StatusCode::CONFLICT {
                conflicts.inc();
            }
            response
        });
        let client = ClientBuilder::try_from(config)?.with_layer(&asked).with_layer(&answered).build();
        Ok(Self::of(client))
    }

    /// A cluster behind this client.
    pub fn of(client: Client) -> Self {
        // Without an instance of its own: the pod that tells may be another each time, the series is one.
        let reporter = Reporter { controller: OPERATOR.to_owned(), instance: None };
        Self { recorder: Recorder::new(client.clone(), reporter), client }
    }

    /// The client, for watches.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Objects of a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Makes a pod. `AlreadyExists` is a refusal.
    pub async fn make_pod(&self, pod: &Pod) -> Result<Pod, Error> {
        let api = self.api::<Pod>(&namespace(pod));
        request("make pod", pod.name_any(), api.create(&parameters(), pod)).await
    }

    /// Reads a pod past any cache.
    pub async fn read_pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, Error> {
        request("read pod", name.to_owned(), self.api::<Pod>(namespace).get_opt(name)).await
    }

    /// Merges a patch into a pod of this very UID.
    pub async fn patch_pod(&self, pod: &Pod, mut patch: Value) -> Result<(), Error> {
        patch["metadata"]["uid"] = json!(pod.uid());
        let api = self.api::<Pod>(&namespace(pod));
        let name = pod.name_any();
        let parameters = PatchParams { field_manager: Some(OPERATOR.to_owned()), ..PatchParams::default() };
        request("patch pod", name.clone(), api.patch(&name, &parameters, &Patch::Merge(&patch))).await?;
        Ok(())
    }

    /// Deletes a pod of this very UID, and, where a version is named, only that version.
    pub async fn delete_pod(&self, pod: &Pod, uid: String, version: Option<String>) -> Result<(), Error> {
        let conditions = Preconditions { resource_version: version, uid: Some(uid) };
        let parameters = DeleteParams::background().preconditions(conditions);
        let name = pod.name_any();
        let api = self.api::<Pod>(&namespace(pod));
        request("delete pod", name.clone(), api.delete(&name, &parameters)).await?;
        Ok(())
    }

    /// Makes a warm Sandbox of a pool, with a name that nobody has.
    pub async fn make_sandbox(&self, sandbox: &Sandbox) -> Result<Sandbox, Error> {
        let api = self.api::<Sandbox>(&namespace(sandbox));
        request("make sandbox", sandbox.name_any(), api.create(&parameters(), sandbox)).await
    }

    /// Asks for a Sandbox of this very UID to go.
    pub async fn retire(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let patch = json!({ "metadata": { "uid": sandbox.uid() }, "spec": { "desired": "Retiring" } });
        let parameters = PatchParams { field_manager: Some(OPERATOR.to_owned()), ..PatchParams::default() };
        let (api, name) = (self.api::<Sandbox>(&namespace(sandbox)), sandbox.name_any());
        request("retire sandbox", name.clone(), api.patch(&name, &parameters, &Patch::Merge(&patch))).await?;
        Ok(())
    }

    /// Deletes a Sandbox of this very UID. Its pod goes with it.
    pub async fn delete_sandbox(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let conditions = Preconditions { resource_version: None, uid: sandbox.uid() };
        let parameters = DeleteParams::background().preconditions(conditions);
        let (api, name) = (self.api::<Sandbox>(&namespace(sandbox)), sandbox.name_any());
        request("delete sandbox", name.clone(), api.delete(&name, &parameters)).await?;
        Ok(())
    }

    /// Applies our part of a Sandbox's status.
    pub async fn tell_sandbox(&self, sandbox: &Sandbox, status: &Value) -> Result<(), Error> {
        self.tell(sandbox, "tell the status of sandbox", status).await
    }

    /// Applies a pool's status.
    pub async fn tell_pool(&self, pool: &SandboxPool, status: &Value) -> Result<(), Error> {
        self.tell(pool, "tell the status of pool", status).await
    }

    async fn tell<K>(&self, object: &K, doing: &'static str, status: &Value) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned,
    {
        let applied = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": object.name_any(), "uid": object.uid() },
            "status": status,
        });
        let (api, name) = (self.api::<K>(&namespace(object)), object.name_any());
        let parameters = PatchParams::apply(OPERATOR).force();
        request(doing, name.clone(), api.patch_status(&name, &parameters, &Patch::Apply(&applied))).await?;
        Ok(())
    }

    /// Publishes an event about an object. The same again within some minutes is counted, not repeated.
    pub async fn publish(&self, event: &Event, about: &ObjectReference) -> Result<(), Error> {
        let name = about.name.clone().unwrap_or_default();
        request("publish an event about", name, self.recorder.publish(event, about)).await
    }

    /// Applies an object of a pool's namespace.
    pub async fn apply<K>(&self, object: &K) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned,
        K: Clone + std::fmt::Debug,
    {
        let (api, name) = (self.api::<K>(&namespace(object)), object.name_any());
        let object_name = format!("{} {name}", K::kind(&()));
        let parameters = PatchParams::apply(OPERATOR).force();
        request("apply", object_name, api.patch(&name, &parameters, &Patch::Apply(object))).await?;
        Ok(())
    }
}

fn parameters() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(OPERATOR.to_owned()) }
}

fn namespace<K: ResourceExt>(object: &K) -> String {
    object.namespace().unwrap_or_default()
}

async fn request<T>(
    doing: &'static str,
    object: String,
    answer: impl Future<Output = kube::Result<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Request { doing, object, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout { doing, object }),
    }
}

/// A new Sandbox of a pool, not made yet; `suffix` makes its name.
pub fn warm_sandbox(pool: &SandboxPool, suffix: &str) -> Sandbox {
    let spec = seance_operator_api::SandboxSpec {
        pool: pool.name_any(),
        desired: seance_operator_api::sandbox::Desired::Serve,
        session: None,
    };
    let mut sandbox = Sandbox::new(&format!("{}-{suffix}", pool.name_any()), spec);
    sandbox.metadata.namespace = pool.namespace();
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    sandbox.metadata.labels = Some(
        [
            label(labels::POOL, &pool.name_any()),
            label(labels::ORIGIN, labels::ORIGIN_WARM),
            label(labels::MANAGED_BY, OPERATOR),
        ]
        .into(),
    );
    sandbox
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str, message: &str) -> Option<Refusal> {
        let status = kube::core::Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..kube::core::Status::default()
        };
        let source = Box::new(kube::Error::Api(Box::new(status)));
        Error::Request { doing: "make pod", object: "p".to_owned(), source }.refusal()
    }

    /// Sandbox 22: the quota by name and amount, without the names of our objects before it.
    #[test]
    fn refusals_are_told_apart() {
        let quota = "pods \"seance-1\" is forbidden: exceeded quota: three, requested: pods=1, used: pods=3";
        let named = "the namespace's quota three, requested: pods=1, used: pods=3".to_owned();
        assert_eq!(refused(403, "Forbidden", quota), Some(Refusal::Quota(named)));
        let no = Refusal::Refused("violates PodSecurity".to_owned());
        assert_eq!(refused(403, "Forbidden", "violates PodSecurity"), Some(no));
        assert_eq!(refused(409, "AlreadyExists", ""), Some(Refusal::AlreadyExists));
        assert_eq!(refused(409, "Conflict", ""), Some(Refusal::Conflict));
        assert_eq!(refused(404, "NotFound", ""), Some(Refusal::NotFound));
        assert_eq!(refused(503, "ServiceUnavailable", ""), None);
        assert_eq!(refused(429, "TooManyRequests", ""), None);
    }
}
