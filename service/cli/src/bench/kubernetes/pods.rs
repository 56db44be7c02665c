//! Cold opens, each followed by a bare pod of the same image on the same node.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::wait::await_condition;
use seance_operator_api::env;
use serde_json::{Value, json};

use super::counts::Proven;
use super::objects::{list, plural};
use super::place::Place;
use super::{LABEL, World, pools};
use crate::bench::report::{Effort, Figure, millis, percentile};

/// How long a pod may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Cold opens beyond those that are wanted, for those beside which another sandbox became warm.
const SPARE: usize = 5;
/// Nothing listens there, so that a runner without a service has nobody to talk to.
const NOWHERE: &str = "https://127.0.0.1:9";

/// Cold opens beside bare pods.
pub async fn cold(world: &World, effort: Effort) -> Result<Vec<Figure>> {
    let n = effort.samples(20);
    let memory = make_pool(world).await?;
    let (mut opens, mut wholes, mut probes, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for attempt in 0.. {
        if opens.len() >= n {
            break;
        }
        ensure!(
            attempt < n + SPARE,
            "other sandboxes become warm beside each cold open: measure when less is going on"
        );
        let (node, whole, probe) = cold_open(world, memory).await?;
        if let Some(probe) = probe {
            opens.push(whole - probe);
            wholes.push(whole);
            probes.push(probe);
        }
        bare.push(bare_pod(world, &node).await?);
    }
    let floor_p50 = Some(percentile(&bare, 50.0));
    let figure = |name, samples, floor_p50, floor| Figure { name, unit: "ms", samples, floor_p50, floor };
    Ok(vec![
        figure("cold_open", opens, floor_p50, "a bare pod on the same node"),
        figure("cold_open_whole", wholes, floor_p50, "a bare pod on the same node"),
        figure("isolation_probe", probes, None, ""),
        figure("bare_pod", bare, None, ""),
    ])
}

/// Makes the pool that has nothing warm; the memory that a session of it asks for, in bytes.
async fn make_pool(world: &World) -> Result<u64> {
    let Place { pool, .. } = &world.place;
    let all = list(&world.place.pools(), "", &plural::<seance_operator_api::SandboxPool>()).await?;
    let model = all.iter().find(|other| other.name_any() == *pool).context("the pool is gone")?;
    let (cold, memory) = pools::cold(model, &all, &world.made.tenant(), &world.made.run)?;
    let name = cold.name_any();
    world.made.pool(cold).await?;
    let is_seen = |pool: Option<&seance_operator_api::SandboxPool>| {
        pool.is_some_and(|pool| {
            pool.status.as_ref().is_some_and(|status| status.observed_generation.is_some())
        })
    };
    let seen = tokio::time::timeout(READY_WITHIN, await_condition(world.place.pools(), &name, is_seen)).await;
    seen.with_context(|| format!("the operator doesn't look at the SandboxPool {name}"))??;
    Ok(memory)
}

/// The node of the sandbox that was made, the milliseconds that the open took, and those of them in
/// which isolation was proven; nothing where another sandbox's can't be told from it.
async fn cold_open(world: &World, memory: u64) -> Result<(String, f64, Option<f64>)> {
    let mut request = world.caller.session(&[]);
    request.limits.insert("memory_bytes".to_owned(), memory);
    let before = Proven::read(&world.place).await?;
    let began = Instant::now();
    let session = world.made.open_as(request).await?;
    let whole = millis(began.elapsed());
    let after = Proven::read(&world.place).await?;
    let sandbox =
        world.place.sandbox_of(&session).await?.context("no Sandbox has a session that was opened cold")?;
    ensure!(sandbox.is_cold(), "the open was warm");
    let node =
        sandbox.status.and_then(|status| status.node_name).context("a Sandbox doesn't name its node")?;
    world.caller.close(&session).await?;
    world.place.until_warm(&[session]).await?;
    let probe = (after.n - before.n == 1.0).then_some((after.seconds - before.seconds) * 1000.0);
    Ok((node, whole, probe))
}

/// The milliseconds from the request to make a bare pod until it is Ready.
async fn bare_pod(world: &World, node: &str) -> Result<f64> {
    let models = world.place.pods_of_pool().await?;
    let model = models.first().with_context(|| format!("pool {} has no pods", world.place.pool))?;
    let pod = bare(&model.data["spec"], node, &world.made.run)?;
    let name = pod.name_any();
    let began = Instant::now();
    world.made.pod(pod).await?;
    let ready =
        await_condition(world.place.pods(), &name, |pod: Option<&DynamicObject>| pod.is_some_and(is_ready));
    let Ok(ready) = tokio::time::timeout(READY_WITHIN, ready).await else {
        bail!("a bare pod is not Ready within {} s; see its events", READY_WITHIN.as_secs())
    };
    ready.context("can't watch a bare pod")?;
    let took = millis(began.elapsed());
    world.made.delete_pods().await?;
    Ok(took)
}

fn is_ready(pod: &DynamicObject) -> bool {
    let conditions = pod.data["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|is| is["type"] == "Ready" && is["status"] == "True"))
}

/// A pod of the image of another, with the same command, resources and security, on the same kind of node,
/// and nothing else: no volumes, no token, no link. Its runner finds nobody and waits.
fn bare(model: &Value, node: &str, run: &str) -> Result<DynamicObject> {
    let container = &model["containers"][0];
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    let mut bare = json!({
        "name": "runner",
        "env": [
            variable(env::LINK_ADDRESS, NOWHERE),
            variable(env::LINK_SERVER_NAME, "nobody"),
            variable(env::LINK_TOKEN_FILE, "/nothing"),
            variable(env::LINK_CA_FILE, "/nothing"),
        ],
    });
    copy(container, &mut bare, &["image", "imagePullPolicy", "command", "resources", "securityContext"]);
    let mut spec = json!({
        "containers": [bare],
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    });
    let same = [
        "securityContext",
        "runtimeClassName",
        "tolerations",
        "priorityClassName",
        "imagePullSecrets",
        "hostUsers",
    ];
    copy(model, &mut spec, &same);
    let mut selector = model["nodeSelector"].as_object().cloned().unwrap_or_default();
    selector.insert("kubernetes.io/hostname".to_owned(), json!(node));
    spec["nodeSelector"] = Value::Object(selector);
    let suffix = &uuid::Uuid::new_v4().simple().to_string()[..8];
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("bench-{suffix}"), "labels": { LABEL: run } },
        "spec": spec,
    });
    serde_json::from_value(pod).context("a bare pod is no object")
}

fn copy(from: &Value, to: &mut Value, members: &[&str]) {
    for member in members.iter().filter(|member| !from[**member].is_null()) {
        to[*member] = from[*member].clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_is_like_its_model_but_for_what_is_ours() {
        let model = json!({
            "containers": [{
                "name": "runner", "image": "i", "command": ["/usr/bin/seance-runner", "pod"],
                "env": [{ "name": "SEANCE_LINK_ADDRESS", "value": "https://10.0.0.1:7446" }],
                "resources": { "limits": { "cpu": "1" } },
                "securityContext": { "readOnlyRootFilesystem": true },
                "volumeMounts": [{ "name": "link", "mountPath": "/x" }],
            }],
            "volumes": [{ "name": "link" }],
            "nodeSelector": { "kind": "small" },
            "securityContext": { "runAsNonRoot": true },
            "runtimeClassName": "gvisor",
            "serviceAccountName": "seance-runner",
            "nodeName": "other",
        });
        let pod = bare(&model, "node-1", "run").expect("a pod");
        assert_eq!(pod.labels().get(LABEL).map(String::as_str), Some("run"));
        let spec = &pod.data["spec"];
        assert_eq!(spec["nodeSelector"], json!({ "kind": "small", "kubernetes.io/hostname": "node-1" }));
        assert_eq!(spec["runtimeClassName"], "gvisor");
        for member in ["volumes", "serviceAccountName", "nodeName"] {
            assert!(spec[member].is_null(), "{member}");
        }
        let container = &spec["containers"][0];
        for member in ["image", "command", "resources", "securityContext"] {
            assert_eq!(container[member], model["containers"][0][member], "{member}");
        }
        assert!(container["volumeMounts"].is_null());
        assert_eq!(container["env"][0]["value"], NOWHERE);
        assert!(!is_ready(&pod));
    }
}
