//! Spans, read back from a real OpenTelemetry collector in the cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{LogParams, PostParams};
use serde_json::json;

use super::isolation;
use crate::agent::{Agent, catalog};
use crate::place::{Place, READY_WITHIN, TENANTS};
use crate::wait;

/// Spans are exported every few seconds.
const EXPORTED_WITHIN: Duration = Duration::from_secs(40);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A span, as far as chains are made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    id: String,
    parent: String,
    name: String,
}

/// From the call that a provider is told of, up to the caller's own span, each step is a span in the
/// collector; and so is the open.
pub async fn a_call_is_traced_to_its_caller(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    // The place's namespace is there before its collector.
    place.install(&values).await?;
    values["otlpEndpoint"] = json!(collector(place).await?);
    place.upgrade(&values).await?;
    place.warm().await?;

    let endpoint = place.endpoint().await?;
    let token = place.token(TENANTS[0]).context("the tenant has a token")?;
    let agent = Agent::connect_in(&endpoint, token, Some(&format!("00-{TRACE}-{CALLER}-01"))).await?;
    let opened = agent.open(|request| request.catalog = catalog(&["look"])).await;
    let session = opened.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&told);
    let _provider = agent
        .provide_calls(&session, move |call| {
            heard.lock().unwrap_or_else(PoisonError::into_inner).push(call.traceparent.clone());
            Some("7".to_owned())
        })
        .await?;
    let seen = agent.run(&session, "return await tools.look({});").await?;
    ensure!(seen.value()? == "7", "{seen:?}");
    agent.close(&session).await?;

    let told = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let [traceparent] = told.as_slice() else { anyhow::bail!("the provider was told {told:?}") };
    let parts: Vec<&str> = traceparent.split('-').collect();
    let ["00", TRACE, call, "01"] = parts.as_slice() else {
        anyhow::bail!("the provider's trace is {traceparent}")
    };
    let names = ["Sessions.Open", "Sessions.Execute", "Sessions.Close", "program", "tool_call"];
    let spans = exported(place, &names).await?;
    let chain = chain(&spans, call)?;
    ensure!(chain.first().is_some_and(|name| name == "tool_call"), "the call's span is {chain:?}");
    ensure!(chain.contains(&"program".to_owned()), "there is no program above the call: {chain:?}");
    ensure!(
        chain.last().is_some_and(|name| name == "Sessions.Execute"),
        "the request isn't above: {chain:?}"
    );
    let open =
        spans.values().find(|span| span.name == "Sessions.Open").context("there is no span of the open")?;
    ensure!(open.parent == CALLER, "the open's parent is {}", open.parent);
    place.nothing_is_leaked().await
}

/// Starts a collector that prints what it gets; the address that takes spans.
async fn collector(place: &Place) -> anyhow::Result<String> {
    let config = json!({
        "receivers": { "otlp": { "protocols": { "grpc": { "endpoint": "0.0.0.0:4317" } } } },
        "exporters": { "debug": { "verbosity": "detailed", "use_internal_logger": false } },
        "service": {
            "pipelines": { "traces": { "receivers": ["otlp"], "exporters": ["debug"] } },
            "telemetry": { "metrics": { "level": "none" } },
        },
    });
    let mut pod = isolation::pod(place, "collector", &[]);
    pod["metadata"]["labels"] = json!({ "app": "collector" });
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!(place.setting.image_name("collector"));
    container["command"] = json!(["/usr/bin/collector", "--config", format!("yaml:{config}")]);
    let pods = place.ours::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await
        .context("making the collector")?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "collector" },
        "spec": { "selector": { "app": "collector" }, "ports": [{ "port": 4317 }] },
    });
    let services = place.ours::<Service>();
    let made = services.create(&PostParams::default(), &serde_json::from_value(service)?).await;
    let address = made.context("making the collector's address")?.spec.and_then(|spec| spec.cluster_ip);
    let pods = &pods;
    wait::until_told("the collector runs", READY_WITHIN, || async move {
        let log = pods.logs("collector", &LogParams::default()).await.map_err(|error| error.to_string())?;
        if log.contains("Everything is ready") { Ok(()) } else { Err(log) }
    })
    .await?;
    Ok(format!("http://{}:4317", address.context("the collector has no address")?))
}

/// The spans of our trace, as soon as those of these names are there.
async fn exported(place: &Place, names: &[&str]) -> anyhow::Result<BTreeMap<String, Span>> {
    let pods = &place.ours::<Pod>();
    wait::until_told("the spans are in the collector", EXPORTED_WITHIN, || async move {
        let log = pods.logs("collector", &LogParams::default()).await.map_err(|error| error.to_string())?;
        let spans = spans(&log);
        let has = |name: &&&str| spans.values().any(|span| span.name == **name);
        match names.iter().find(|name| !has(name)) {
            Some(missing) => Err(format!("there is no {missing} in {spans:?}")),
            None => Ok(spans),
        }
    })
    .await
}

/// The spans of our trace in what the collector prints: blocks of `Name : value`.
fn spans(log: &str) -> BTreeMap<String, Span> {
    let mut spans = BTreeMap::new();
    for block in log.split("\nSpan #").skip(1) {
        let field = |name: &str| {
            let mut pairs = block.lines().filter_map(|line| line.split_once(':'));
            pairs
                .find(|(key, _)| key.trim() == name)
                .map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        if field("Trace ID") == TRACE {
            let span = Span { id: field("ID"), parent: field("Parent ID"), name: field("Name") };
            spans.insert(span.id.clone(), span);
        }
    }
    spans
}

/// The names of a span and of those above it, up to the caller's own.
fn chain(spans: &BTreeMap<String, Span>, id: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut id = id.to_owned();
    while id != CALLER {
        let span = spans.get(&id).with_context(|| format!("{id} is missing above {names:?} in {spans:?}"))?;
        ensure!(names.len() < spans.len(), "the spans go round: {spans:?}");
        names.push(span.name.clone());
        id.clone_from(&span.parent);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_from_what_the_collector_prints() {
        let block = |number: u8, id: &str, parent: &str, name: &str| {
            format!(
                "\nSpan #{number}\n    Trace ID       : {TRACE}\n    Parent ID      : {parent}\n    ID             \
                 : {id}\n    Name           : {name}\n    Kind           : Server\nAttributes:\n     -> a: Str(b)"
            )
        };
        let log = [
            "ResourceSpans #0".to_owned(),
            block(0, "a1", CALLER, "Sessions.Execute"),
            block(1, "a2", "a1", "program"),
        ]
        .concat();
        let spans = spans(&log);
        assert_eq!(chain(&spans, "a2").ok(), Some(vec!["program".to_owned(), "Sessions.Execute".to_owned()]));
        assert!(chain(&spans, "a3").is_err());
    }
}
