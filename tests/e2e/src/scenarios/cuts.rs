//! Links that break and come back, and policies that nobody enforces.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use seance_operator_api::{SandboxPool, condition};
use serde_json::Value;

use crate::agent::catalog;
use crate::place::{Place, READY_WITHIN, SOON, TENANTS};
use crate::wait;

/// How often the link is cut.
const N_CUTS: usize = 3;
/// What the program writes, and the calls that it makes: enough for all cuts.
const N_LINES: u64 = 3000;
const LINES_PER_CALL: u64 = 10;
/// A runner dials again within seconds.
const BACK_WITHIN: Duration = Duration::from_secs(20);

/// A program's link is cut and comes back, several times: every byte arrives once, every call is made once.
pub async fn a_cut_link_loses_and_doubles_nothing(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let opened = agent.open(|request| {
        request.catalog = catalog(&["count"]);
        request.engine_options = vec!["timers".to_owned()];
    });
    let session = opened.await.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    let calls: Arc<Mutex<Vec<u64>>> = Arc::default();
    let heard = Arc::clone(&calls);
    let _provider = agent
        .provide(&session, move |_, arguments| {
            let n = number(arguments)?;
            heard.lock().unwrap_or_else(PoisonError::into_inner).push(n);
            Some(n.to_string())
        })
        .await?;
    let source = format!(
        "for (let n = 1; n <= {N_LINES}; n += 1) {{
           text(`line ${{n}} of a program`);
           if (n % {LINES_PER_CALL} === 0) {{
             await tools.count({{ n }});
             await new Promise((later) => setTimeout(later, 30));
           }}
         }}
         return {N_LINES};"
    );
    let running = tokio::spawn({
        let (agent, session) = (agent.clone(), session.clone());
        async move { agent.run(&session, &source).await }
    });
    let pod = place.pod_of(&session).await?;
    for _ in 0..N_CUTS {
        progress(&calls, "the program is at work").await?;
        let cut = place.setting.node()?.cut(&pod)?;
        let dialled = &cut;
        wait::until_told("the pod dials in vain", SOON, || async move {
            match dialled.n_dials() {
                Ok(0) => Err("it has not dialled".to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await?;
        drop(cut);
    }
    let seen = running.await.context("the caller's task")??;
    ensure!(seen.value()? == N_LINES.to_string(), "{:?}", seen.end);
    let expected: Vec<String> = (1..=N_LINES).map(|n| format!("line {n} of a program")).collect();
    let expected = expected.join("\n");
    if let Some(difference) = first_difference(&seen.output, &expected) {
        anyhow::bail!("the output is not what was written: {difference}");
    }
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let wanted: Vec<u64> = (1..=N_LINES / LINES_PER_CALL).map(|n| n * LINES_PER_CALL).collect();
    ensure!(calls == wanted, "the calls were not each made once: {calls:?}");
    let kept = place.pod_of(&session).await?;
    ensure!(kept.metadata.uid == pod.metadata.uid, "the session has another pod");
    agent.close(&session).await?;
    place.nothing_is_leaked().await
}

/// Nobody enforces NetworkPolicies: the pool says so, and nobody gets a session. As soon as they hold, it
/// serves.
pub async fn without_enforcement_nothing_serves(place: &mut Place) -> anyhow::Result<()> {
    let enforcer = place.setting.node()?.stop("network-policies").await?;
    let values = place.values();
    place.install(&values).await?;
    let is_open = |pool: &SandboxPool| {
        let proven = condition(&pool.status.as_ref()?.conditions, "IsolationProven")?;
        (proven.status == "False").then(|| proven.message.clone())
    };
    let message = place.pool_until("the pool says that ways are open", READY_WITHIN, is_open).await?;
    ensure!(message.contains("api-server"), "the open way isn't named: {message}");
    let agent = place.agent(TENANTS[0]).await?;
    let refusal = agent.open(|_| ()).await.err().context("a session was opened without isolation")?;
    ensure!(refusal.reason == "ISOLATION_NOT_PROVEN", "{refusal:?}");
    let served = place
        .pool_until("the pool's numbers are there", SOON, |pool| Some(pool.status.as_ref()?.warm))
        .await?;
    ensure!(served == 0, "{served} sandboxes serve without isolation");

    enforcer.start()?;
    place.warm().await?;
    let session = agent.opened().await?;
    let seen = agent.run(&session, "return 1;").await?;
    ensure!(seen.value()? == "1", "{seen:?}");
    agent.close(&session).await?;
    place.nothing_is_leaked().await
}

/// Waits until one more call was made than there were.
async fn progress(calls: &Mutex<Vec<u64>>, what: &str) -> anyhow::Result<()> {
    let n_calls = || calls.lock().unwrap_or_else(PoisonError::into_inner).len();
    let before = n_calls();
    let is_more = || {
        let now = n_calls();
        futures::future::ready(if now > before { Ok(()) } else { Err(format!("{now} calls")) })
    };
    wait::until_told(what, BACK_WITHIN, is_more).await
}

/// The number in a call's arguments.
fn number(arguments: &str) -> Option<u64> {
    serde_json::from_str::<Value>(arguments).ok()?.get("n")?.as_u64()
}

/// Where two texts part, with what is there in each.
fn first_difference(seen: &str, expected: &str) -> Option<String> {
    let at = seen.bytes().zip(expected.bytes()).position(|(a, b)| a != b);
    let at = at.or((seen.len() != expected.len()).then_some(seen.len().min(expected.len())))?;
    let near = |text: &str| {
        text.get(at.saturating_sub(20)..(at + 40).min(text.len())).unwrap_or_default().to_owned()
    };
    let (lengths, texts) = ((seen.len(), expected.len()), (near(seen), near(expected)));
    Some(format!("at byte {at} of {lengths:?}: {texts:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_part_where_they_differ() {
        assert_eq!(first_difference("same", "same"), None);
        assert!(first_difference("ab", "ac").is_some_and(|told| told.starts_with("at byte 1 ")));
        assert!(first_difference("ab", "abc").is_some_and(|told| told.starts_with("at byte 2 ")));
        assert_eq!((number("{\"n\":3}"), number("x")), (Some(3), None));
    }
}
