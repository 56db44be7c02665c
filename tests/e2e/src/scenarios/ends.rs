//! The ends that sandboxes meet, and what callers are told of them.

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use seance_operator_api::condition;
use seance_operator_api::pool::reason;
use seance_proto::v1alpha1::ObservationStatus;
use serde_json::json;

use crate::agent::{Agent, catalog};
use crate::place::{POOL, Place, READY_WITHIN, SOON, TENANTS};

/// A program that goes on until its one call is answered.
const WAITS: &str = "await tools.gate({}); return 1;";

/// A pod killed under a running program: its reason, and the session takes the next program.
pub async fn a_killed_pod_is_a_typed_reason(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let session = opened_with_gate(&agent).await?;
    let _provider = agent.provide(&session, |_, _| None).await?;
    let program = agent.start(&session, WAITS).await?;
    let pod = place.pod_of(&session).await?;
    kill(place, &pod).await?;

    let seen = agent.wait(&session, program).await?;
    let refusal = seen.end.err().context("a program whose pod was killed has an observation")?;
    ensure!(refusal.code == tonic::Code::Unavailable, "{refusal:?}");
    ensure!(refusal.reason == "POD_DELETED", "{refusal:?}");
    let record = agent.program(&session, program).await?;
    ensure!(record.reason == "POD_DELETED", "the program's reason is {:?}", record.reason);

    let again = agent.run(&session, "return 2;").await?;
    ensure!(again.value()? == "2", "{again:?}");
    let other = place.pod_of(&session).await?;
    ensure!(other.uid() != pod.uid(), "the session went on in the pod that was killed");
    agent.close(&session).await?;
    place.nothing_is_leaked().await
}

/// What a program uses beyond its limit is its own error; what a pod uses beyond its limit is told of
/// the pod, with the limit.
pub async fn memory_beyond_the_pod_is_out_of_memory(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    values["pools"]["tiny"] = crate::place::pool(1);
    values["pools"]["tiny"]["engines"] = json!(["javascript"]);
    values["pools"]["tiny"]["tenants"] = json!(["nobody"]);
    values["pools"]["tiny"]["template"]["tmpSize"] = json!("1Mi");
    // A container starts in it, and the runner doesn't fit.
    let resources = json!({
        "limits": { "cpu": "1", "memory": "5Mi", "ephemeralStorage": "64Mi" },
        "requests": { "cpu": "10m" },
    });
    values["pools"]["tiny"]["template"]["resources"] = resources;
    place.install(&values).await?;
    place.warm().await?;

    let agent = place.agent(TENANTS[0]).await?;
    let session = agent.opened().await?;
    let bomb =
        agent.run(&session, "const all = []; for (;;) all.push(new Array(100000).fill(all.length));").await?;
    let program = bomb.expect(ObservationStatus::Error)?;
    let code = program.error.as_ref().map(|error| error.code.as_str());
    ensure!(code == Some("memory_limit"), "the bomb ended with {:?}", program.error);
    let next = agent.run(&session, "return 3;").await?;
    ensure!(next.value()? == "3", "{next:?}");
    agent.close(&session).await?;

    let told = |sandboxes: &[seance_operator_api::Sandbox]| {
        let of_tiny = sandboxes.iter().filter(|sandbox| sandbox.spec.pool == "tiny");
        let finished = of_tiny
            .filter_map(|sandbox| condition(&sandbox.status.as_ref()?.conditions, "Finished").cloned());
        finished.into_iter().find(|finished| finished.reason == "OutOfMemory")
    };
    let finished = place.sandboxes_until("a pod over its memory says so", READY_WITHIN, told).await?;
    ensure!(finished.message.contains("5Mi"), "the limit isn't told: {:?}", finished.message);
    Ok(())
}

/// The service is killed under running programs: none is lost, none runs twice.
pub async fn programs_outlive_the_service(place: &mut Place) -> anyhow::Result<()> {
    const N_SESSIONS: usize = 4;
    let mut values = place.values();
    values["service"]["persistence"] = json!({ "enabled": true, "size": "1Gi" });
    values["pools"][POOL]["warm"]["min"] = json!(N_SESSIONS);
    place.install(&values).await?;
    place.warm().await?;

    let agent = place.agent(TENANTS[0]).await?;
    let with_timers = |_| agent.open(|request| request.engine_options = vec!["timers".to_owned()]);
    let sessions = try_join_all((0..N_SESSIONS).map(with_timers)).await;
    let sessions = sessions.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    // Longer than the service takes to come back: its end is seen by the program's own clock.
    let source =
        "let n = 0; while (n < 150) { await new Promise((r) => setTimeout(r, 100)); n += 1; } return n;";
    let programs = try_join_all(sessions.iter().map(|session| agent.start(session, source))).await?;
    kill_the_service(place).await?;

    let agent = place.agent(TENANTS[0]).await?;
    for (session, program) in sessions.iter().zip(programs) {
        let seen = agent.wait(session, program).await?;
        ensure!(seen.value()? == "150", "the program of {session} ended as {:?}", seen.end);
    }
    for session in &sessions {
        let next = agent.run(session, "return 'next';").await?;
        ensure!(next.value()? == "\"next\"", "{next:?}");
        agent.close(session).await?;
    }
    place.nothing_is_leaked().await
}

/// A session with a tool that nobody has to answer.
pub async fn opened_with_gate(agent: &Agent) -> anyhow::Result<String> {
    let opened = agent.open(|request| request.catalog = catalog(&["gate"])).await;
    opened.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))
}

/// Kills the service, and waits until the next one is ready: the one that ends takes connections for a
/// moment yet, and tells who asks it that it is stopping.
pub async fn kill_the_service(place: &Place) -> anyhow::Result<()> {
    kill(place, &place.service_pod().await?).await?;
    place.service_pod().await.map(drop)
}

/// Ends a pod at once, without a word to what runs in it, and waits until it is gone.
pub async fn kill(place: &Place, pod: &Pod) -> anyhow::Result<()> {
    let namespace = pod.namespace().context("a pod has a namespace")?;
    let pods: kube::Api<Pod> = kube::Api::namespaced(place.setting.client.clone(), &namespace);
    pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.context("killing a pod")?;
    let uid = pod.uid();
    crate::wait::until(
        &pods,
        "the pod is gone",
        SOON,
        |pods| pods.iter().all(|pod| pod.uid() != uid).then_some(()),
        |pod| pod.name_any(),
    )
    .await
}

/// The reason of a pool that is not ready.
pub fn not_ready(pool: &seance_operator_api::SandboxPool) -> Option<(String, String)> {
    let ready = condition(&pool.status.as_ref()?.conditions, "Ready")?;
    let is_final = ready.status == "False" && ready.reason != reason::FILLING;
    is_final.then(|| (ready.reason.clone(), ready.message.clone()))
}
