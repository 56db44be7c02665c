//! What the operator makes of pools: as many as wanted, told when it can't, and nothing that isn't ours.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use seance_operator_api::{SandboxPool, labels};
use serde_json::json;

use super::ends::not_ready;
use crate::place::{POOL, Place, READY_WITHIN, RELEASE, SOON, TENANTS, metric, pool};
use crate::wait;

/// More sessions than were warm: each has a pod of its own, and the pool comes back to its size.
pub async fn a_pool_fills_up_again_and_never_overshoots(place: &mut Place) -> anyhow::Result<()> {
    const N_SESSIONS: usize = 5;
    place.install_and_warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let sessions = try_join_all((0..N_SESSIONS).map(|_| agent.opened())).await?;
    let mut pods = BTreeSet::new();
    for session in &sessions {
        let seen = agent.run(session, "return 1;").await?;
        ensure!(seen.value()? == "1", "{seen:?}");
        pods.insert(place.pod_of(session).await?.uid());
    }
    ensure!(pods.len() == N_SESSIONS, "{} pods serve {N_SESSIONS} sessions", pods.len());
    place.warm().await?;
    try_join_all(sessions.iter().map(|session| agent.close(session))).await?;
    let settled = |pool: &SandboxPool| {
        let status = pool.status.as_ref()?;
        (status.warm == 2 && status.assigned == 0 && status.starting == 0 && status.retiring == 0)
            .then_some(())
    };
    place.pool_until("the pool is back at two warm sandboxes", READY_WITHIN, settled).await?;
    // One that was made for a session which took another counts for the pool after a minute.
    let two = |pods: &[Pod]| (pods.len() == 2).then_some(());
    let within = Duration::from_secs(100);
    wait::until(&place.theirs(), "two pods are left", within, two, |pod: &Pod| pod.name_any()).await?;
    place.nothing_is_leaked().await
}

/// An image that no node has: a condition within seconds, and a refusal that names it.
pub async fn an_image_that_is_not_there_is_told(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    values["pools"][POOL]["template"]["image"] = json!("seance/no-such-image:0");
    values["pools"][POOL]["template"]["imagePullPolicy"] = json!("Never");
    place.install(&values).await?;
    let (reason, message) = place.pool_until("the pool says why", READY_WITHIN, not_ready).await?;
    ensure!(reason == "ImagePullFailed", "the pool's reason is {reason}: {message}");
    let told = |events: &[Event]| {
        events.iter().any(|is| is.reason.as_deref() == Some("ImagePullFailed")).then_some(())
    };
    let form = |event: &Event| format!("{:?} about {:?}", event.reason, event.regarding);
    wait::until(&place.theirs(), "an event tells it", READY_WITHIN, told, form).await?;
    let refused = place.agent(TENANTS[0]).await?.open(|_| ()).await;
    let refusal = refused.err().context("a session was opened without an image")?;
    ensure!(refusal.reason == "IMAGE_PULL_FAILED", "{refusal:?}");
    Ok(())
}

/// A quota for fewer pods than are wanted: told by name, and over when it is raised.
pub async fn a_quota_is_told_and_overcome(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    // The pool comes after the quota.
    values["pools"] = json!({ "javascript": null });
    place.install(&values).await?;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "few" },
        "spec": { "hard": { "pods": "2" } },
    });
    let quotas = place.theirs::<ResourceQuota>();
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await
        .context("making the quota")?;
    let counted = |quotas: &[ResourceQuota]| {
        quotas
            .iter()
            .any(|quota| quota.status.as_ref().is_some_and(|status| status.hard.is_some()))
            .then_some(())
    };
    wait::until(&quotas, "the quota counts", SOON, counted, ResourceQuota::name_any).await?;
    values["pools"] = json!({ "javascript": null, POOL: pool(4) });
    place.upgrade(&values).await?;

    let (reason, message) = place.pool_until("the pool says why", READY_WITHIN, not_ready).await?;
    ensure!(reason == "QuotaExceeded", "the pool's reason is {reason}: {message}");
    ensure!(message.contains("few"), "the quota isn't named: {message}");
    place.expect_pods(2).await?;
    let more = json!({ "spec": { "hard": { "pods": "10" } } });
    quotas.patch("few", &PatchParams::default(), &Patch::Merge(more)).await.context("raising the quota")?;
    place.warm().await
}

/// Pods that no node takes: they count, so that there are never more than wanted.
pub async fn an_impossible_selector_is_told(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    values["pools"][POOL] = pool(3);
    values["pools"][POOL]["template"]["nodeSelector"] = json!({ "seance.dev/no-such": "node" });
    place.install(&values).await?;
    let (reason, message) = place.pool_until("the pool says why", READY_WITHIN, not_ready).await?;
    ensure!(reason == "Unschedulable", "the pool's reason is {reason}: {message}");
    let three = |pods: &[Pod]| (pods.len() == 3).then_some(());
    wait::until(&place.theirs(), "three pods wait", SOON, three, |pod: &Pod| pod.name_any()).await?;
    // Room for a node that takes them comes with the template, and pods that never ran just go.
    values["pools"][POOL] = pool(3);
    place.upgrade(&values).await?;
    place.warm().await?;
    place.expect_pods(3).await
}

/// A new template: warm pods give way, a session's pod stays until the session lets go of it.
pub async fn a_new_template_replaces_warm_pods_alone(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.opened().await?;
    let kept = place.pod_of(&session).await?;
    place.warm().await?;
    let before: BTreeSet<Option<String>> = uids(place).await?;

    let mut values = place.values();
    values["pools"][POOL]["template"]["tmpSize"] = json!("32Mi");
    place.upgrade(&values).await?;
    let replaced = |pods: &[Pod]| {
        let now: BTreeSet<Option<String>> = pods.iter().map(ResourceExt::uid).collect();
        let still: Vec<_> = before.intersection(&now).collect();
        (still == [&kept.uid()] && now.len() == 3).then_some(())
    };
    let what = "new pods took the place of warm ones";
    wait::until(&place.theirs(), what, READY_WITHIN, replaced, |pod: &Pod| pod.name_any()).await?;
    place.warm().await?;
    let seen = agent.run(&session, "return 1;").await?;
    ensure!(seen.value()? == "1", "{seen:?}");
    ensure!(place.pod_of(&session).await?.uid() == kept.uid(), "the session has another pod");
    agent.close(&session).await?;
    place.nothing_is_leaked().await
}

/// A pool with nothing to do: over a minute of the lease's renewals, nothing else is written.
pub async fn an_idle_minute_writes_nothing(place: &mut Place) -> anyhow::Result<()> {
    const RENEWALS: usize = 20;
    place.install_and_warm().await?;
    let operator = place.ready_pod("operator").await?.name_any();
    let settled = |pool: &SandboxPool| (pool.status.as_ref()?.warm == 2).then(|| pool.resource_version());
    let version = place.pool_until("the pool is settled", SOON, settled).await?;
    let before = writes(&place.http(&operator, 8080, "/metrics").await?);

    // The lease is renewed every three seconds: so many renewals are a minute.
    let mut renewals = BTreeSet::new();
    let name = format!("{RELEASE}-operator");
    let renewed = |leases: &[Lease]| {
        let lease = leases.iter().find(|lease| lease.name_any() == name)?;
        renewals.insert(lease.resource_version());
        (renewals.len() > RENEWALS).then_some(())
    };
    let what = "the lease was renewed for a minute";
    wait::until(&place.ours(), what, Duration::from_secs(100), renewed, Lease::name_any).await?;

    let after = writes(&place.http(&operator, 8080, "/metrics").await?);
    ensure!(before == after, "the idle operator wrote: {before} requests before, {after} after");
    let now = place.theirs::<SandboxPool>().get(POOL).await?.resource_version();
    ensure!(now == version, "somebody wrote the idle pool");
    Ok(())
}

/// A pod that has all our labels and a name like ours stays, whatever happens to the pool.
pub async fn a_pod_with_our_labels_is_not_ours(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let model = wait::all(&place.theirs::<Pod>()).await?.into_iter().next().context("there is no pod")?;
    let mut victim = model.clone();
    victim.metadata = kube::api::ObjectMeta {
        name: Some(format!("{}-x", model.name_any())),
        labels: model.metadata.labels.clone(),
        annotations: model.metadata.annotations.clone(),
        ..kube::api::ObjectMeta::default()
    };
    victim.status = None;
    if let Some(spec) = &mut victim.spec {
        spec.node_name = None;
    }
    let pods = place.theirs::<Pod>();
    let victim = pods.create(&PostParams::default(), &victim).await.context("making the victim")?;
    let mut values = place.values();
    values["pools"][POOL]["template"]["tmpSize"] = json!("32Mi");
    place.upgrade(&values).await?;
    let replaced = |pods: &[Pod]| pods.iter().all(|pod| pod.uid() != model.uid()).then_some(());
    wait::until(&pods, "the pool was replaced", READY_WITHIN, replaced, |pod: &Pod| pod.name_any()).await?;
    place.warm().await?;
    let there = pods.get(&victim.name_any()).await.context("the victim is gone")?;
    ensure!(
        there.uid() == victim.uid() && there.metadata.deletion_timestamp.is_none(),
        "the victim was ended"
    );
    let owned = there.labels().get(labels::SESSION);
    ensure!(owned.is_none(), "the victim was given a session");
    Ok(())
}

/// The UIDs of the sandboxes' pods.
async fn uids(place: &Place) -> anyhow::Result<BTreeSet<Option<String>>> {
    Ok(wait::all(&place.theirs::<Pod>()).await?.iter().map(ResourceExt::uid).collect())
}

/// How many requests of the operator wrote something that is not its lease.
fn writes(text: &str) -> f64 {
    let is_write = |line: &&str| !line.contains("verb=\"get\"") && !line.contains("resource=\"leases\"");
    let lines: Vec<&str> = text.lines().filter(is_write).collect();
    metric(&lines.join("\n"), "seance_operator_api_requests_total").unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn reads_and_leases_are_no_writes() {
        let text = "seance_operator_api_requests_total{resource=\"leases\",verb=\"update\"} 7\n\
                    seance_operator_api_requests_total{resource=\"pods\",verb=\"get\"} 5\n\
                    seance_operator_api_requests_total{resource=\"pods\",verb=\"create\"} 2\n";
        assert!((writes(text) - 2.0).abs() < f64::EPSILON);
        assert!(not_ready(&SandboxPool::new("p", spec())).is_none());
    }

    fn spec() -> seance_operator_api::SandboxPoolSpec {
        let mut spec: Value = pool(1);
        spec["template"]["image"] = json!("i");
        serde_json::from_value(spec).expect("the values of a pool are its spec but for the image")
    }
}
