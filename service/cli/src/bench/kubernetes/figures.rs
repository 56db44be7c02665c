//! The figures of an installed chart, each with how it is measured.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::World;
use super::counts::Counts;
use super::floors::Floors;
use super::objects;
use super::pods::cold;
use super::pools::opens_of;
use crate::bench::caller::tick;
use crate::bench::report::{Effort, Figure, Group, millis};

/// What is counted while sessions are opened at a steady rate.
pub const COUNTED: &[&str] = &[
    "api_calls_per_open",
    "api_calls_per_open_service",
    "api_calls_per_open_operator",
    "api_conflicts_per_open",
];

/// All figures, in the order they are measured.
pub const FIGURES: &[Group<World, Floors>] = &[
    Group { names: &["resident_pod"], measure: |w, _, e| Box::pin(resident_pod(w, e)) },
    Group { names: &["next_program"], measure: |w, f, e| Box::pin(next_program(w, f, e)) },
    Group { names: &["tool_call", "tool_call_committed"], measure: |w, f, e| Box::pin(tool_call(w, f, e)) },
    Group {
        names: &[
            "warm_open",
            "open_to_first_output",
            "api_calls_per_open",
            "api_calls_per_open_service",
            "api_calls_per_open_operator",
            "api_conflicts_per_open",
        ],
        measure: |w, f, e| Box::pin(steady(w, f, e)),
    },
    Group { names: &["burst_open"], measure: |w, f, e| Box::pin(burst(w, f, e)) },
    Group {
        names: &["cold_open", "cold_open_whole", "isolation_probe", "bare_pod"],
        measure: |w, _, e| Box::pin(cold(w, e)),
    },
];

/// Opens come at this pace (DESIGN section 11: 50/s while a pool of 60 lasts).
const OPEN_INTERVAL: Duration = Duration::from_millis(20);
/// Small pools are filled up at most so often.
const BATCHES_MAX: usize = 10;
/// How long the kubelet may take to measure a new pod.
const MEASURED_WITHIN: Duration = Duration::from_secs(90);
/// How often it is asked.
const LOOK: Duration = Duration::from_secs(2);

async fn steady(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let n = effort.samples(200);
    let (mut opens, mut firsts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    let n_warm = world.place.until_warm(&[]).await?;
    let n_opens = opens_of(n_warm).min(n);
    for _ in 0..n.div_ceil(n_opens).min(BATCHES_MAX) {
        let before = Counts::read(&world.place).await?;
        let began = tokio::time::Instant::now();
        // Each comes when it is due, whatever became of those before it.
        let opening = (0..n_opens).map(|n| async move {
            tokio::time::sleep_until(began + OPEN_INTERVAL * u32::try_from(n).unwrap_or(u32::MAX)).await;
            opened(world).await
        });
        let mut sessions = Vec::new();
        for (session, open, first) in try_join_all(opening).await? {
            sessions.push(session);
            opens.push(open);
            firsts.push(first);
        }
        world.made.close(sessions.clone()).await?;
        world.place.until_warm(&sessions).await?;
        counts.push(Counts::read(&world.place).await?.since(before, n_opens));
    }
    let figure = |name, unit, samples, floor_p50, floor| Figure { name, unit, samples, floor_p50, floor };
    let counted =
        |name, of: fn(&Counts) -> f64| figure(name, "calls", counts.iter().map(of).collect(), None, "");
    Ok(vec![
        figure("warm_open", "ms", opens, Some(floors.grpc + floors.commit), "gRPC round trip and a commit"),
        figure(
            "open_to_first_output",
            "ms",
            firsts,
            Some(2.0 * floors.grpc + 3.0 * floors.commit + floors.context),
            "two gRPC round trips, three commits, a QuickJS context",
        ),
        counted("api_calls_per_open", |counts| counts.service + counts.operator),
        counted("api_calls_per_open_service", |counts| counts.service),
        counted("api_calls_per_open_operator", |counts| counts.operator),
        counted("api_conflicts_per_open", |counts| counts.conflicts),
    ])
}

/// Opens a session and runs a program that writes; the session, and the milliseconds to either.
async fn opened(world: &World) -> Result<(String, f64, f64)> {
    let began = Instant::now();
    let session = world.made.open(&[]).await?;
    let open = began.elapsed();
    let first = world.caller.first_output(&session, began).await?;
    Ok((session, millis(open), first))
}

async fn burst(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let mut samples = Vec::new();
    for _ in 0..effort.rounds(4) {
        let n_opens = opens_of(world.place.until_warm(&[]).await?);
        let opening = (0..n_opens).map(|_| async {
            let began = Instant::now();
            let session = world.made.open(&[]).await?;
            anyhow::Ok((session, millis(began.elapsed())))
        });
        let opened = try_join_all(opening).await?;
        let (sessions, took): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        samples.extend(took);
        world.made.close(sessions.clone()).await?;
        world.place.until_warm(&sessions).await?;
    }
    let floor_p50 = Some(floors.grpc + floors.commit);
    Ok(vec![Figure {
        name: "burst_open",
        unit: "ms",
        samples,
        floor_p50,
        floor: "gRPC round trip and a commit",
    }])
}

async fn next_program(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let session = world.made.open(&[]).await?;
    let samples = world.caller.programs(&session, effort.samples(500), Duration::ZERO).await?;
    world.caller.close(&session).await?;
    world.place.until_warm(&[session]).await?;
    let floor_p50 = Some(floors.context + 2.0 * floors.commit + floors.grpc);
    let floor = "QuickJS context, two commits, a gRPC round trip";
    Ok(vec![Figure { name: "next_program", unit: "ms", samples, floor_p50, floor }])
}

async fn tool_call(world: &World, floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, read_only, n_commits, floor) in [
        ("tool_call", true, 0.0, "two gRPC round trips"),
        ("tool_call_committed", false, 2.0, "two gRPC round trips and two commits"),
    ] {
        let session = world.made.open(&[tick(read_only)]).await?;
        let samples = world.caller.served_calls(&session, effort.samples(2_000)).await?;
        world.caller.close(&session).await?;
        world.place.until_warm(&[session]).await?;
        let floor_p50 = Some(2.0 * floors.grpc + n_commits * floors.commit);
        figures.push(Figure { name, unit: "ms", samples, floor_p50, floor });
    }
    Ok(figures)
}

/// What the kubelet says that warm pods use: the working set of the whole pod, which is what `kubectl
/// top` shows and what evictions go by.
async fn resident_pod(world: &World, _effort: Effort) -> Result<Vec<Figure>> {
    world.place.until_warm(&[]).await?;
    let asking = async {
        loop {
            let pods = world.place.pods_of_pool().await?;
            let summaries = try_join_all(nodes(&pods).into_iter().map(|node| summary(world, node))).await?;
            let found: Option<Vec<f64>> = pods.iter().map(|pod| working_set(&summaries, pod)).collect();
            if let Some(samples) = found {
                return anyhow::Ok(samples);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let samples = tokio::time::timeout(MEASURED_WITHIN, asking).await;
    let samples = samples.context("the kubelet doesn't say how much memory the pool's pods use")??;
    ensure!(!samples.is_empty(), "pool {} has no pods", world.place.pool);
    let floor = "the pod's working set, as the kubelet has it";
    Ok(vec![Figure { name: "resident_pod", unit: "bytes", samples, floor_p50: None, floor }])
}

/// The nodes of pods, each once.
fn nodes(pods: &[DynamicObject]) -> Vec<String> {
    let mut nodes: Vec<_> = pods.iter().filter_map(|pod| pod.data["spec"]["nodeName"].as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.into_iter().map(str::to_owned).collect()
}

async fn summary(world: &World, node: String) -> Result<Value> {
    let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
    let text =
        objects::get(&world.place.client, &path, &format!("the kubelet's statistics of node {node}")).await?;
    serde_json::from_str(&text).context("the kubelet's statistics are no JSON")
}

/// The working set of a pod, in bytes, where a summary has it.
fn working_set(summaries: &[Value], pod: &DynamicObject) -> Option<f64> {
    let uid = pod.uid()?;
    let pods = summaries.iter().filter_map(|summary| summary["pods"].as_array()).flatten();
    let found = pods.into_iter().find(|stats| stats["podRef"]["uid"] == uid.as_str())?;
    found["memory"]["workingSetBytes"].as_u64().filter(|bytes| *bytes > 0).map(|bytes| bytes as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, node: &str) -> DynamicObject {
        let pod = json!({ "metadata": { "name": uid, "uid": uid }, "spec": { "nodeName": node } });
        serde_json::from_value(pod).expect("an object")
    }

    #[test]
    fn a_pod_is_found_by_its_uid_among_the_statistics() {
        let stats = |uid: &str, bytes: u64| json!({ "podRef": { "uid": uid }, "memory": { "workingSetBytes": bytes } });
        let summaries =
            [json!({ "pods": [stats("a", 5), stats("b", 0)] }), json!({ "pods": [stats("c", 7)] })];
        let of = |uid| working_set(&summaries, &pod(uid, "n"));
        assert_eq!((of("a"), of("b"), of("c"), of("d")), (Some(5.0), None, Some(7.0), None));
        assert_eq!(nodes(&[pod("a", "n"), pod("b", "m"), pod("c", "n")]), ["m", "n"]);
    }
}
