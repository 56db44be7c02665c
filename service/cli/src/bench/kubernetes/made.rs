//! All that the bench makes, so that all of it is taken away: sessions, pods, a pool.
//!
//! What is made carries the run as a label, and is found by that when it is taken away. A request that
//! makes something is never dropped on its way: it runs in a task of its own, which is waited for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use futures::StreamExt as _;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use seance_operator_api::{Sandbox, SandboxPool};
use seance_proto::v1alpha1 as proto;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use super::LABEL;
use super::objects::{list, plural, told};
use super::place::Place;
use crate::bench::caller::Caller;

/// How long requests that are on their way may take at the end.
const ON_THEIR_WAY: Duration = Duration::from_secs(60);
/// How long what was made may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(120);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(250);
/// Sessions that are closed at one time.
const CLOSING_MAX: usize = 16;
/// How long a session lives when the bench is killed.
const SESSION_TTL: Duration = Duration::from_secs(3600);

/// All that the bench makes.
pub struct Made {
    /// The run, which everything is labelled with.
    pub run: String,
    caller: Caller,
    pods: Api<DynamicObject>,
    pools: Api<SandboxPool>,
    sandboxes: Api<Sandbox>,
    namespace: String,
    /// The caller's tenant, as soon as it is known.
    tenant: Mutex<String>,
    making: TaskTracker,
}

impl Made {
    /// Nothing yet.
    pub fn new(run: String, caller: Caller, place: &Place) -> Self {
        Self {
            run,
            caller,
            pods: place.pods(),
            pools: place.pools(),
            sandboxes: place.sandboxes(),
            namespace: place.sandboxes.clone(),
            tenant: Mutex::default(),
            making: TaskTracker::new(),
        }
    }

    /// Keeps whose sessions are.
    pub fn set_tenant(&self, tenant: String) {
        *self.tenant.lock().unwrap_or_else(PoisonError::into_inner) = tenant;
    }

    /// Whose sessions are.
    pub fn tenant(&self) -> String {
        self.tenant.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a session.
    pub async fn open(&self, tools: &[proto::Tool]) -> Result<String> {
        self.open_as(self.caller.session(tools)).await
    }

    /// Opens this session.
    pub async fn open_as(&self, request: proto::OpenRequest) -> Result<String> {
        let request = proto::OpenRequest { session_ttl: SESSION_TTL.try_into().ok(), ..request };
        let caller = self.caller.clone();
        let opening = self.making.spawn(async move { caller.open_as(request).await });
        opening.await.context("a task that opens a session ended")?
    }

    /// Makes a pod.
    pub async fn pod(&self, pod: DynamicObject) -> Result<DynamicObject> {
        self.make(self.pods.clone(), pod, "make a pod").await
    }

    /// Makes a pool.
    pub async fn pool(&self, pool: SandboxPool) -> Result<SandboxPool> {
        self.make(self.pools.clone(), pool, "make a SandboxPool").await
    }

    async fn make<K>(&self, api: Api<K>, object: K, doing: &str) -> Result<K>
    where
        K: Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let making = self.making.spawn(async move { api.create(&PostParams::default(), &object).await });
        let made = making.await.with_context(|| format!("a task to {doing} ended"))?;
        made.map_err(|error| told(error, doing))
    }

    /// Takes the pods away and waits until they are gone.
    pub async fn delete_pods(&self) -> Result<()> {
        delete(&self.pods, &self.selector(), "pods").await
    }

    /// Takes everything away and waits until it is gone.
    ///
    /// # Errors
    /// When something stays, with how to take it away.
    pub async fn take_away(&self) -> Result<()> {
        self.making.close();
        if tokio::time::timeout(ON_THEIR_WAY, self.making.wait()).await.is_err() {
            return Err(self.left());
        }
        let (sessions, pods) = tokio::join!(self.close_sessions(), self.delete_pods());
        // Sandboxes of the pool end with their sessions, and before it.
        let pools = match self.until_unused().await {
            Ok(()) => delete(&self.pools, &self.selector(), &plural::<SandboxPool>()).await,
            Err(error) => Err(error),
        };
        sessions.and(pods).and(pools).map_err(|error| error.context(self.left()))
    }

    /// What is said when something was not taken away.
    pub fn left(&self) -> anyhow::Error {
        let Self { run, namespace, .. } = self;
        anyhow!(
            "not all that the bench made was taken away: see `kubectl -n {namespace} get pods,sandboxpools -l \
             {LABEL}={run}` and `seance sessions list --state open --label {}={run}`; the sessions end by themselves",
            super::SESSION_LABEL
        )
    }

    fn selector(&self) -> String {
        format!("{LABEL}={}", self.run)
    }

    async fn close_sessions(&self) -> Result<()> {
        let request = proto::ListRequest {
            page_size: 500,
            state: proto::SessionState::Open.into(),
            labels: self.caller.labels.clone(),
            ..Default::default()
        };
        loop {
            let listed = self.caller.client.sessions.clone().list(request.clone()).await?.into_inner();
            if listed.sessions.is_empty() {
                return Ok(());
            }
            self.close(listed.sessions.into_iter().map(|session| session.session_id)).await?;
        }
    }

    /// Closes sessions, some at a time.
    pub async fn close(&self, sessions: impl IntoIterator<Item = String>) -> Result<()> {
        let closing = sessions.into_iter().map(|session| async move { self.caller.close(&session).await });
        let mut closing = futures::stream::iter(closing).buffer_unordered(CLOSING_MAX);
        while let Some(closed) = closing.next().await {
            closed.context("can't close a session")?;
        }
        Ok(())
    }

    /// Waits until no Sandbox of our own pool is there.
    async fn until_unused(&self) -> Result<()> {
        let pools = list(&self.pools, &self.selector(), &plural::<SandboxPool>()).await?;
        let names: Vec<_> = pools.into_iter().filter_map(|pool| pool.metadata.name).collect();
        let waiting = async {
            while !names.is_empty() {
                let there = list(&self.sandboxes, "", &plural::<Sandbox>()).await?;
                if !there.iter().any(|sandbox| names.contains(&sandbox.spec.pool)) {
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        };
        tokio::time::timeout(GONE_WITHIN, waiting).await.context("sandboxes of the bench's pool stay")?
    }
}

/// Deletes what has these labels, and waits until it is gone.
async fn delete<K>(api: &Api<K>, labels: &str, what: &str) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let params = ListParams::default().labels(labels);
    let waiting = async {
        loop {
            let there = api.list(&params).await.map_err(|error| told(error, &format!("list {what}")))?.items;
            if there.is_empty() {
                return Ok(());
            }
            for object in there.into_iter().filter(|object| object.meta().deletion_timestamp.is_none()) {
                let name = object.meta().name.clone().unwrap_or_default();
                match api.delete(&name, &DeleteParams::default().grace_period(0)).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(told(error, &format!("delete {what}"))),
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let gone = tokio::time::timeout(GONE_WITHIN, waiting).await;
    gone.with_context(|| format!("{what} are not gone within {} s", GONE_WITHIN.as_secs()))?
}
