//! What can be reached from a sandbox, and what its pod is allowed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, LogParams, PostParams};
use kube::{Api, ResourceExt};
use seance_operator_api::{SandboxPool, condition, labels};
use serde_json::{Value, json};

use crate::place::{Place, READY_WITHIN, RELEASE, TENANTS, has_ended};
use crate::wait;

/// Policies take a moment to hold, and checks are made every few seconds.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// A pod with a sandbox's labels dials everything that it can think of; then a wider policy is added,
/// which the pool notices.
pub async fn only_the_link_can_be_reached(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let link = address(place, &format!("{RELEASE}-link"), "link").await?;
    let forbidden = [
        address(place, &format!("{RELEASE}-link"), "canary").await?,
        address(place, RELEASE, "api").await?,
        address(place, &format!("{RELEASE}-operator"), "admin").await?,
        api_server(place).await?,
    ];
    let tried =
        dialled_from_a_sandbox(place, &[std::slice::from_ref(&link), &forbidden[..]].concat()).await?;
    ensure!(tried.contains(&format!("open {link}")), "the link can't be reached: {tried:?}");
    for way in &forbidden {
        ensure!(tried.contains(&format!("closed {way}")), "{way} can be reached: {tried:?}");
    }

    let agent = place.agent(TENANTS[0]).await?;
    let wider = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "wider" },
        "spec": { "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] },
    });
    let policies = place.theirs::<NetworkPolicy>();
    policies
        .create(&PostParams::default(), &serde_json::from_value(wider)?)
        .await
        .context("the wider policy")?;
    let is_open = |pool: &SandboxPool| {
        let proven = condition(&pool.status.as_ref()?.conditions, "IsolationProven")?;
        (proven.status == "False").then(|| proven.message.clone())
    };
    place.pool_until("the pool says that a way is open", TOLD_WITHIN, is_open).await?;
    let refusal = agent.open(|_| ()).await.err().context("a session was opened although a way is open")?;
    ensure!(refusal.reason == "ISOLATION_NOT_PROVEN", "{refusal:?}");

    policies.delete("wider", &DeleteParams::default()).await.context("taking the wider policy away")?;
    place.warm().await?;
    let session = agent.opened().await?;
    agent.close(&session).await?;
    place.nothing_is_leaked().await
}

/// What the API server holds of a sandbox's pod, and what it refuses beside it.
pub async fn pods_are_restricted(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let pods = wait::all(&place.theirs::<Pod>()).await?;
    for pod in &pods {
        let spec = pod.spec.as_ref().context("a pod has a spec")?;
        ensure!(spec.automount_service_account_token == Some(false), "the API's token is mounted");
        ensure!(spec.dns_policy.as_deref() == Some("None"), "there is a resolver");
        ensure!(spec.enable_service_links == Some(false), "there are service links");
        let context = spec.security_context.as_ref().context("no security context")?;
        ensure!(context.run_as_non_root == Some(true), "it may run as root");
        for container in &spec.containers {
            let context = container.security_context.as_ref().context("no security context")?;
            ensure!(context.allow_privilege_escalation == Some(false), "privileges may escalate");
            ensure!(context.read_only_root_filesystem == Some(true), "the root can be written");
            let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
            let names: Vec<&str> = limits.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            for name in ["cpu", "ephemeral-storage", "memory"] {
                ensure!(names.contains(&name), "there is no limit of {name}: {names:?}");
            }
        }
    }
    let mut root = pod(place, "root", &["true"]);
    root["spec"]["securityContext"] = json!({ "runAsUser": 0 });
    let root: Pod = serde_json::from_value(root)?;
    let refused = place.theirs::<Pod>().create(&PostParams::default(), &root).await;
    let Err(kube::Error::Api(status)) = refused else { anyhow::bail!("a pod that runs as root was taken") };
    ensure!(status.code == 403 && status.message.contains("PodSecurity"), "{status:?}");
    Ok(())
}

/// Dials from a pod that has a sandbox's labels; `open ADDRESS` or `closed ADDRESS` of each.
async fn dialled_from_a_sandbox(place: &Place, addresses: &[String]) -> anyhow::Result<Vec<String>> {
    let dial = |address: &String| {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
        format!(
            "if nc -w 2 {host} {port} </dev/null >/dev/null 2>&1; then echo open {address}; else echo closed {address}; fi"
        )
    };
    let script = addresses.iter().map(dial).collect::<Vec<_>>().join("\n");
    let mut dialler = pod(place, "dialler", &["sh", "-c", &script]);
    dialler["metadata"]["labels"] = json!({ labels::SANDBOX: "dialler" });
    let dialler: Pod = serde_json::from_value(dialler)?;
    let pods: Api<Pod> = place.theirs();
    pods.create(&PostParams::default(), &dialler).await.context("making a pod that dials")?;
    let ended = |pods: &[Pod]| {
        let pod = pods.iter().find(|pod| pod.name_any() == "dialler")?;
        has_ended(pod).then_some(())
    };
    wait::until(&pods, "everything was dialled", READY_WITHIN, ended, |pod: &Pod| pod.name_any()).await?;
    let log = pods.logs("dialler", &LogParams::default()).await.context("reading what came of dialling")?;
    pods.delete("dialler", &DeleteParams::default().grace_period(0)).await?;
    Ok(log.lines().map(str::to_owned).collect())
}

/// A pod that passes Pod Security restricted, with a shell.
pub fn pod(place: &Place, name: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "test", "image": place.setting.image_name("test"), "imagePullPolicy": "IfNotPresent",
                "command": command,
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    })
}

/// The address of a port of one of our Services.
async fn address(place: &Place, service: &str, port: &str) -> anyhow::Result<String> {
    let service = place.ours::<Service>().get(service).await.context("reading a Service")?;
    let spec = service.spec.context("a Service has a spec")?;
    let ports = spec.ports.unwrap_or_default();
    let port = ports.iter().find(|is| is.name.as_deref() == Some(port)).context("no port of this name")?;
    Ok(format!("{}:{}", spec.cluster_ip.context("a Service without an address")?, port.port))
}

/// The API server, as pods know it.
async fn api_server(place: &Place) -> anyhow::Result<String> {
    let services: Api<Service> = Api::namespaced(place.setting.client.clone(), "default");
    let spec = services.get("kubernetes").await?.spec.context("a Service has a spec")?;
    Ok(format!("{}:443", spec.cluster_ip.context("a Service without an address")?))
}
