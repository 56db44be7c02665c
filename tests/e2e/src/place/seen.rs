//! What is seen of a place: its pool, its sandboxes, its pods, its metrics.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use seance_operator_api::{Sandbox, SandboxPool, is_true, labels};

use super::{POOL, Place, READY_WITHIN, SOON};
use crate::wait;

impl Place {
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

    /// What a pod of ours serves over HTTP, through the API server.
    ///
    /// # Errors
    /// When it can't be had.
    pub async fn http(&self, pod: &str, port: u16, path: &str) -> anyhow::Result<String> {
        let url = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{path}", self.namespace);
        let request = http::Request::get(url).body(Vec::new()).context("making a request")?;
        Ok(self.setting.client.request_text(request).await?)
    }

    /// The pod of a session, as soon as it says whose it is.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn pod_of(&self, session: &str) -> anyhow::Result<Pod> {
        let is_its = |pod: &&Pod| {
            pod.labels().get(labels::SESSION).map(String::as_str) == Some(session)
                && pod.metadata.deletion_timestamp.is_none()
                && !has_ended(pod)
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

/// Whether a pod runs nothing any more. One that failed stays until its session has let go of it.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
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
