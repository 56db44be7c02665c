//! A cluster without an API server: objects in memory behind the traits that stand for it, and all
//! the rest as it is — TLS, sockets, the link, and runners as processes.

#![allow(dead_code, reason = "each test has its own use for it")]

pub mod client;
pub mod proxy;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use seance_core::ids::SandboxId;
use seance_core::sandbox::SandboxBackend as _;
use seance_operator_api::pool::Check;
use seance_operator_api::sandbox::{SessionRef, condition_type};
use seance_operator_api::{Sandbox, SandboxPool, condition, labels};
use seance_sandbox::kubernetes::{
    Authenticator, Change, Cluster, ClusterError, Config, KubernetesBackend, Pod, ReviewError,
};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::testee::DEADLINE;

/// The objects of one namespace.
#[derive(Default)]
pub struct Objects {
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    pools: Mutex<BTreeMap<String, SandboxPool>>,
    watchers: Mutex<Vec<mpsc::UnboundedSender<Change>>>,
    changed: watch::Sender<u64>,
    /// While it is, every request fails.
    is_away: Mutex<bool>,
    n_writes: Mutex<usize>,
    /// While it is, a write of a status waits.
    is_held: watch::Sender<bool>,
    /// The Sandboxes whose status was to be written, in the order of the requests.
    asked: Mutex<Vec<String>>,
}

impl Objects {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn tell(&self, change: Change) {
        self.watchers.lock().unwrap().retain(|watcher| watcher.send(change.clone()).is_ok());
        self.changed.send_modify(|n| *n += 1);
    }

    /// A pool that accepts what can't be had on this machine.
    pub fn add_pool(&self, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let mut pool = json!({
            "apiVersion": "seance.dev/v1alpha1",
            "kind": "SandboxPool",
            "metadata": { "name": name },
            "spec": {
                "template": {
                    "image": "runner",
                    "resources": { "limits": { "cpu": "1", "memory": "512Mi", "ephemeralStorage": "1Gi" } },
                },
                "engines": ["javascript", "typescript"],
                "warm": { "min": 1, "max": 1 },
                "coldStart": "Never",
                "acceptedChecks": ["pids-limit", "api-server"],
            },
        });
        change(&mut pool);
        let pool: SandboxPool = serde_json::from_value(pool).expect("a pool");
        self.pools.lock().unwrap().insert(name.to_owned(), pool.clone());
        self.tell(Change::Pool(Box::new(pool)));
    }

    /// A Sandbox whose pod runs.
    pub fn add_sandbox(&self, name: &str, pool: &str, pod: &str) {
        let sandbox = json!({
            "apiVersion": "seance.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": { "name": name, "generation": 1 },
            "spec": { "pool": pool },
            "status": { "podUid": pod, "podName": name },
        });
        self.put(serde_json::from_value(sandbox).expect("a Sandbox"));
    }

    fn put(&self, sandbox: Sandbox) {
        let name = sandbox.metadata.name.clone().expect("it has a name");
        self.sandboxes.lock().unwrap().insert(name, sandbox.clone());
        self.tell(Change::Sandbox(Box::new(sandbox)));
    }

    pub fn change(&self, name: &str, change: impl FnOnce(&mut Sandbox)) {
        let mut sandbox = self.get(name).expect("it is there");
        change(&mut sandbox);
        self.put(sandbox);
    }

    /// As the operator does when a pod is terminal.
    pub fn finish(&self, name: &str, reason: &str, message: &str) {
        self.say(name, condition_type::FINISHED, "True", reason, message);
    }

    pub fn say(&self, name: &str, type_: &str, status: &str, reason: &str, message: &str) {
        let said = serde_json::from_value(json!({
            "type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }));
        let said: Condition = said.expect("a condition");
        self.change(name, |sandbox| put_condition(sandbox, said));
    }

    pub fn remove(&self, name: &str) {
        self.sandboxes.lock().unwrap().remove(name);
        self.tell(Change::SandboxGone(name.to_owned()));
    }

    pub fn get(&self, name: &str) -> Option<Sandbox> {
        self.sandboxes.lock().unwrap().get(name).cloned()
    }

    pub fn names(&self) -> Vec<String> {
        self.sandboxes.lock().unwrap().keys().cloned().collect()
    }

    pub fn set_away(&self, is_away: bool) {
        *self.is_away.lock().unwrap() = is_away;
    }

    /// While writes are held they come in, and wait.
    pub fn hold(&self, is_held: bool) {
        self.is_held.send_replace(is_held);
    }

    /// The Sandboxes whose status was to be written, in the order of the requests.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    pub fn n_writes(&self) -> usize {
        *self.n_writes.lock().unwrap()
    }

    /// Waits until a condition of a Sandbox has this status and reason.
    pub async fn until(&self, name: &str, type_: &str, status: &str, reason: &str) {
        let is_so = |sandbox: &Sandbox| {
            let conditions = &sandbox.status.as_ref()?.conditions;
            let found = condition(conditions, type_)?;
            Some(found.status == status && found.reason == reason)
        };
        let wait = self.until_that(|objects| objects.get(name).as_ref().and_then(is_so) == Some(true));
        if tokio::time::timeout(DEADLINE, wait).await.is_err() {
            panic!("{type_} of {name} isn't {status} ({reason}): {:#?}", self.get(name));
        }
    }

    pub async fn until_that(&self, condition: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        while !condition(self) {
            changed.borrow_and_update();
            if condition(self) {
                return;
            }
            changed.changed().await.expect("the sender is borrowed");
        }
    }

    /// Counts a write, unless the API server is away.
    fn write(&self) -> Result<usize, ClusterError> {
        if *self.is_away.lock().unwrap() {
            return Err(ClusterError::Away("it is away".to_owned()));
        }
        let mut n_writes = self.n_writes.lock().unwrap();
        *n_writes += 1;
        Ok(*n_writes)
    }
}

fn put_condition(sandbox: &mut Sandbox, said: Condition) {
    let conditions = &mut sandbox.status.get_or_insert_default().conditions;
    conditions.retain(|standing| standing.type_ != said.type_);
    conditions.push(said);
}

#[async_trait]
impl Cluster for Objects {
    fn changes(&self) -> BoxStream<'static, Change> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let pools = self.pools.lock().unwrap().clone();
        let sandboxes = self.sandboxes.lock().unwrap().clone();
        let mut first: Vec<Change> =
            pools.values().cloned().map(|pool| Change::Pool(Box::new(pool))).collect();
        first.extend(sandboxes.values().cloned().map(|sandbox| Change::Sandbox(Box::new(sandbox))));
        first.push(Change::Pools(pools.keys().cloned().collect()));
        first.push(Change::Sandboxes(sandboxes.keys().cloned().collect()));
        self.watchers.lock().unwrap().push(sender);
        futures::stream::iter(first).chain(UnboundedReceiverStream::new(receiver)).boxed()
    }

    async fn create(&self, pool: &str) -> Result<String, ClusterError> {
        let name = format!("{pool}-cold-{}", self.write()?);
        let labels = [(labels::ORIGIN.to_owned(), labels::ORIGIN_COLD.to_owned())];
        let metadata = kube::api::ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels.into()),
            ..kube::api::ObjectMeta::default()
        };
        self.put(Sandbox {
            metadata,
            spec: seance_operator_api::SandboxSpec {
                pool: pool.to_owned(),
                desired: Default::default(),
                session: None,
            },
            status: None,
        });
        Ok(name)
    }

    async fn write_session(&self, name: &str, session: &SessionRef) -> Result<(), ClusterError> {
        self.write()?;
        let mut sandbox = self.get(name).ok_or(ClusterError::Gone)?;
        assert!(sandbox.spec.session.as_ref().is_none_or(|standing| standing == session), "it is set once");
        sandbox.spec.session = Some(session.clone());
        self.put(sandbox);
        Ok(())
    }

    async fn write_status(
        &self,
        name: &str,
        conditions: Vec<Condition>,
        checks: Vec<Check>,
    ) -> Result<(), ClusterError> {
        self.asked.lock().unwrap().push(name.to_owned());
        self.changed.send_modify(|n| *n += 1);
        self.is_held.subscribe().wait_for(|is_held| !is_held).await.expect("the sender is borrowed");
        self.write()?;
        let mut sandbox = self.get(name).ok_or(ClusterError::Gone)?;
        conditions.into_iter().for_each(|said| put_condition(&mut sandbox, said));
        sandbox.status.get_or_insert_default().checks = checks;
        self.put(sandbox);
        Ok(())
    }
}

/// Believes tokens of the form `token-of-<pod UID>`.
pub struct Tokens;

#[async_trait]
impl Authenticator for Tokens {
    async fn review(&self, token: &str) -> Result<Pod, ReviewError> {
        let uid = token.strip_prefix("token-of-").and_then(sandbox_id);
        let id = uid.ok_or_else(|| ReviewError::Refused("nobody's".to_owned()))?;
        Ok(Pod { id, name: "pod".to_owned() })
    }
}

pub fn sandbox_id(pod: &str) -> Option<SandboxId> {
    format!("sbx_{}", pod.replace('-', "")).parse().ok()
}

/// A pod's UID by its number.
pub fn uid(n: u32) -> String {
    format!("0198c0de-0000-4000-8000-{n:012x}")
}

/// Certificates and keys in files.
pub struct Files {
    pub dir: tempfile::TempDir,
}

impl Files {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("there is room for files");
        let ca_key = rcgen::KeyPair::generate().expect("a key");
        let mut ca = rcgen::CertificateParams::new(Vec::new()).expect("a certificate");
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).expect("a certificate");
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["seance-link".to_owned()]).expect("a certificate");
        let cert = params.signed_by(&key, &issuer).expect("a certificate");
        let ticket_key = base64::engine::general_purpose::STANDARD.encode([7; 32]);
        let files = [
            ("ca.crt", ca_cert.pem()),
            ("tls.crt", cert.pem()),
            ("tls.key", key.serialize_pem()),
            ("tickets", ticket_key),
        ];
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("there is room for files");
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn config(&self) -> Config {
        let listen = ([127, 0, 0, 1], 0).into();
        Config::new("boxes", listen, ["tls.crt", "tls.key", "tickets"].map(|name| self.path(name)))
    }
}

/// A backend, its cluster and its files.
pub struct World {
    pub objects: Arc<Objects>,
    pub files: Files,
    pub backend: KubernetesBackend,
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (objects, files) = (Objects::new(), Files::new());
        let mut config = files.config();
        change(&mut config);
        let backend = start(&objects, config).await;
        Self { objects, files, backend }
    }

    pub fn link(&self) -> std::net::SocketAddr {
        self.backend.link_addr()
    }

    /// Adds a pool and waits until the backend knows it.
    pub async fn add_pool(&self, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        self.objects.add_pool(name, change);
        crate::testee::eventually(|| !self.backend.engines().is_empty()).await;
    }

    /// A pod: its Sandbox, and its runner as a process that dials this address.
    pub fn pod(&self, n: u32, pool: &str, address: std::net::SocketAddr) -> Runner {
        let (name, pod) = (format!("sandbox-{n}"), uid(n));
        self.objects.add_sandbox(&name, pool, &pod);
        Runner::start(&self.files, &pod, address, "")
    }
}

pub async fn start(objects: &Arc<Objects>, config: Config) -> KubernetesBackend {
    let started = KubernetesBackend::start_with(config, objects.clone(), Arc::new(Tokens)).await;
    started.expect("the backend starts")
}

/// The real runner, as a process in the mode of pods.
pub struct Runner {
    pub child: Child,
}

impl Runner {
    pub fn start(files: &Files, pod: &str, address: std::net::SocketAddr, checks: &str) -> Self {
        let token = files.path(&format!("token-{pod}"));
        std::fs::write(&token, format!("token-of-{pod}\n")).expect("there is room for files");
        let binary = std::env::current_exe().expect("a test has a binary");
        let child = Command::new(binary)
            .args([crate::testee::REAL_RUNNER, "pod", "--host-prefix", crate::testee::REAL_RUNNER])
            .env_clear()
            .env("SEANCE_LINK_ADDRESS", format!("https://{address}"))
            .env("SEANCE_LINK_SERVER_NAME", "seance-link")
            .env("SEANCE_LINK_TOKEN_FILE", token)
            .env("SEANCE_LINK_CA_FILE", files.path("ca.crt"))
            .env("SEANCE_ISOLATION_CHECKS", checks)
            .env("SEANCE_ACCEPT_NO_PIDS_LIMIT", "true")
            .stdin(Stdio::null())
            .spawn()
            .expect("a runner starts");
        Self { child }
    }

    /// Waits until the process is gone.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        let wait = async {
            loop {
                if let Some(status) = self.child.try_wait().expect("it is our child") {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("the runner ends in time")
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
