//! What happens to a release: upgrades with sessions open, a change of the link's CA, its end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use seance_operator_api::{LINK_CA_CONFIG_MAP, LINK_CA_KEY};
use serde_json::{Value, json};

use crate::place::{POOL, Place, READY_WITHIN, RELEASE, TENANTS};
use crate::wait;

/// A file of a ConfigMap or a Secret reaches the pods that mount it within this time.
const MOUNTED_WITHIN: Duration = Duration::from_secs(150);

/// An upgrade that replaces the service and the template of the pool while a program runs.
pub async fn sessions_outlive_an_upgrade(place: &mut Place) -> anyhow::Result<()> {
    let mut values = lasting(place);
    place.install(&values).await?;
    place.warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.open(|request| request.engine_options = vec!["timers".to_owned()]).await;
    let session = session.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    let pod = place.pod_of(&session).await?;
    place.warm().await?;
    let warm: BTreeSet<_> = wait::all(&place.theirs::<Pod>()).await?.iter().map(ResourceExt::uid).collect();
    let source =
        "let n = 0; while (n < 300) { await new Promise((r) => setTimeout(r, 100)); n += 1; } return n;";
    let program = agent.start(&session, source).await?;

    let service = place.service_pod().await?;
    values["service"]["maxSessions"] = json!(500);
    values["pools"][POOL]["template"]["tmpSize"] = json!("32Mi");
    place.upgrade(&values).await?;
    another_service_pod(place, &service).await?;
    let agent = place.agent(TENANTS[0]).await?;
    let seen = agent.wait(&session, program).await?;
    ensure!(seen.value()? == "300", "the program ended as {:?}", seen.end);
    ensure!(place.pod_of(&session).await?.uid() == pod.uid(), "the session has another pod");
    agent.close(&session).await?;
    let replaced = |pods: &[Pod]| pods.iter().all(|pod| !warm.contains(&pod.uid())).then_some(());
    let what = "warm pods of the old template are gone";
    wait::until(&place.theirs(), what, READY_WITHIN, replaced, |pod: &Pod| pod.name_any()).await?;
    place.warm().await?;
    place.nothing_is_leaked().await
}

/// A new CA: in the bundle first, then signing, then alone; a session lasts through all of it.
pub async fn authorities_overlap(place: &mut Place) -> anyhow::Result<()> {
    let mut values = lasting(place);
    place.install(&values).await?;
    place.warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.opened().await?;
    let first = bundle(place).await?;
    ensure!(n_certificates(&first) == 1, "a new release has more than one CA");

    // As it is: nothing is made anew.
    let certificate = link_certificate(place).await?;
    place.upgrade(&values).await?;
    ensure!(link_certificate(place).await? == certificate, "an upgrade made the certificate anew");

    // It mounts the CA as a runner does, and from before the change on.
    start_reader(place).await?;
    values["link"] = json!({ "tls": { "caGeneration": 2 } });
    place.upgrade(&values).await?;
    ensure!(link_certificate(place).await? == certificate, "the new CA signs before anyone trusts it");
    let both = |maps: &[ConfigMap]| {
        let map = maps.iter().find(|map| map.name_any() == LINK_CA_CONFIG_MAP)?;
        let pem = map.data.as_ref()?.get(LINK_CA_KEY)?;
        (n_certificates(pem) == 2 && pem.contains(first.trim())).then_some(())
    };
    let what = "the sandboxes trust both CAs";
    wait::until(&place.theirs(), what, MOUNTED_WITHIN, both, |map: &ConfigMap| map.name_any()).await?;
    // Sooner, and a runner that has to dial again would meet a certificate that it can't trust yet.
    reader_has_both(place).await?;

    let service = place.service_pod().await?;
    place.upgrade(&values).await?;
    ensure!(link_certificate(place).await? != certificate, "the new CA doesn't sign");
    // The next service has the new certificate, and runners dial it.
    super::ends::kill(place, &service).await?;
    let agent = place.agent(TENANTS[0]).await?;
    let seen = agent.run(&session, "return 1;").await?;
    ensure!(seen.value()? == "1", "{seen:?}");

    place.upgrade(&values).await?;
    let alone = bundle(place).await?;
    ensure!(n_certificates(&alone) == 1 && alone != first, "the old CA is still trusted");
    agent.close(&session).await?;
    place.nothing_is_leaked().await
}

/// The release goes with sessions open: nothing of it is left within a minute.
pub async fn uninstalling_leaves_nothing(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.opened().await?;
    let seen = agent.run(&session, "return 1;").await?;
    ensure!(seen.value()? == "1", "{seen:?}");
    let began = Instant::now();
    place.uninstall().await?;
    ensure!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
    let gone = |pods: &[Pod]| pods.is_empty().then_some(());
    wait::until(&place.ours(), "our own pods are gone", READY_WITHIN, gone, |pod: &Pod| pod.name_any()).await
}

/// Values with a volume, so that the store outlives the service's pod.
fn lasting(place: &Place) -> Value {
    let mut values = place.values();
    values["service"]["persistence"] = json!({ "enabled": true, "size": "1Gi" });
    values
}

/// Waits until another pod than this one is the service's.
async fn another_service_pod(place: &Place, old: &Pod) -> anyhow::Result<()> {
    let old = old.uid();
    let gone = |pods: &[Pod]| pods.iter().all(|pod| pod.uid() != old).then_some(());
    wait::until(&place.ours(), "the old service is gone", READY_WITHIN, gone, |pod: &Pod| pod.name_any())
        .await?;
    place.service_pod().await?;
    Ok(())
}

/// The certificates that the link's certificate may lead to, as the operator is given them.
async fn bundle(place: &Place) -> anyhow::Result<String> {
    file_of_the_link(place, "ca.crt").await
}

async fn link_certificate(place: &Place) -> anyhow::Result<String> {
    file_of_the_link(place, "tls.crt").await
}

async fn file_of_the_link(place: &Place, file: &str) -> anyhow::Result<String> {
    let secret =
        place.ours::<Secret>().get(&format!("{RELEASE}-link-tls")).await.context("reading the Secret")?;
    let bytes = secret.data.and_then(|mut data| data.remove(file)).context("the Secret lacks a file")?;
    String::from_utf8(bytes.0).context("PEM is text")
}

fn n_certificates(pem: &str) -> usize {
    pem.matches("BEGIN CERTIFICATE").count()
}

/// Starts a pod that ends when the CA that it mounts has become two.
async fn start_reader(place: &Place) -> anyhow::Result<()> {
    let script = format!("while [ $(grep -c BEGIN /ca/{LINK_CA_KEY}) -lt 2 ]; do sleep 1; done");
    let mut reader = super::isolation::pod(place, "reader", &["sh", "-c", &script]);
    reader["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "ca", "mountPath": "/ca" }]);
    reader["spec"]["volumes"] = json!([{ "name": "ca", "configMap": { "name": LINK_CA_CONFIG_MAP } }]);
    let reader: Pod = serde_json::from_value(reader)?;
    place.theirs().create(&PostParams::default(), &reader).await.context("making a pod that reads the CA")?;
    reader_is(place, "Running", READY_WITHIN).await
}

async fn reader_has_both(place: &Place) -> anyhow::Result<()> {
    reader_is(place, "Succeeded", MOUNTED_WITHIN).await?;
    place.theirs::<Pod>().delete("reader", &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

async fn reader_is(place: &Place, wanted: &str, deadline: Duration) -> anyhow::Result<()> {
    let is = |pods: &[Pod]| {
        let pod = pods.iter().find(|pod| pod.name_any() == "reader")?;
        (pod.status.as_ref()?.phase.as_deref() == Some(wanted)).then_some(())
    };
    let what = format!("the pod that reads the CA is {wanted}");
    wait::until(&place.theirs(), &what, deadline, is, |pod: &Pod| pod.name_any()).await
}
