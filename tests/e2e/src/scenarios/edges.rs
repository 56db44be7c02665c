//! The edges of one node: more callers than sandboxes, and parts of the cluster or of ours that go away
//! while they are needed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use futures::future::{join_all, try_join, try_join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use seance_operator_api::{SandboxPool, labels};
use seance_proto::v1alpha1 as api;
use serde_json::{Value, json};

use super::ends::{kill, kill_the_service};
use crate::agent::{Agent, Refusal, catalog};
use crate::place::{POOL, Place, READY_WITHIN, TENANTS, pool};
use crate::wait;

/// Sandboxes that were made for callers who gave up count for the pool after a minute, and go.
const SETTLED_WITHIN: Duration = Duration::from_secs(150);

/// More callers than sandboxes can be had for in their time: nobody is forgotten, the tenant with fewer
/// callers doesn't wait behind all of the other's, and no more pods are made than may be on their way.
pub async fn two_hundred_opens_all_end(place: &mut Place) -> anyhow::Result<()> {
    const N_WARM: usize = 4;
    const N_OPENS: [usize; 2] = [150, 50];
    // What the pool may have beyond its size while it fills, and what may be on its way for callers.
    const N_STARTING_MAX: usize = 4;
    const N_COLD_MAX: usize = 8;
    let mut values = place.values();
    values["service"]["claimWaitSeconds"] = json!(20);
    values["service"]["coldStartsMax"] = json!(N_COLD_MAX);
    ample_processor(&mut values);
    values["pools"][POOL] = pool(4);
    values["pools"][POOL]["refill"] = json!({ "maxStarting": N_STARTING_MAX });
    place.install(&values).await?;
    place.warm().await?;
    let agents = [place.agent(TENANTS[0]).await?, place.agent(TENANTS[1]).await?];
    // A connection takes a hundred requests at one time; each of these has fifty.
    let mut callers = Vec::new();
    for (tenant, n_opens) in TENANTS.into_iter().zip(N_OPENS) {
        for _ in 0..n_opens / 50 {
            callers.extend(std::iter::repeat_n(place.agent(tenant).await?, 50));
        }
    }
    let began = Instant::now();
    let ends = join_all(callers.iter().map(|agent| agent.open(|_| ()))).await;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(60), "the last open ended after {took:?}");

    let opened = opened_and_refused(&ends)?;
    let (first, second) = ends.split_at(N_OPENS[0]);
    let n_opened = [first, second].map(|ends| ends.iter().filter(|end| end.is_ok()).count());
    println!("of {N_OPENS:?} opens at once {n_opened:?} were opened; the last ended after {took:.1?}");
    ensure!(opened.len() >= N_WARM, "only {} were opened where {N_WARM} were warm", opened.len());
    let n_pods = wait::all(&place.theirs::<Pod>()).await?.len();
    let n_most = opened.len() + N_WARM + N_STARTING_MAX + N_COLD_MAX;
    ensure!(n_pods <= n_most, "{n_pods} pods stand for {} sessions, more than {n_most}", opened.len());
    // Who came first got the warm ones. Behind them, turns are taken.
    let fair = n_opened[0].min(N_OPENS[1]).saturating_sub(N_WARM + 1);
    ensure!(n_opened[1] >= fair, "the tenants got {n_opened:?} sessions");

    let each_has_one = |pods: &[Pod]| {
        let mut n_pods: BTreeMap<&str, usize> = BTreeMap::new();
        for session in pods.iter().filter_map(|pod| pod.labels().get(labels::SESSION)) {
            *n_pods.entry(session).or_default() += 1;
        }
        opened.iter().all(|session| n_pods.get(session.as_str()) == Some(&1)).then_some(())
    };
    let what = "each session has a pod of its own";
    wait::until(&place.theirs(), what, READY_WITHIN, each_has_one, |pod: &Pod| pod.name_any()).await?;
    for (agent, ends) in agents.iter().zip([first, second]) {
        let sessions: Vec<String> = ends.iter().flatten().cloned().collect();
        close_all(agent, &sessions).await?;
    }
    settled(place, N_WARM).await?;
    place.nothing_is_leaked().await
}

/// A service that asks for no more of the processors than each of many sandboxes gets no more than one of
/// them, which the other tests don't mind.
pub fn ample_processor(values: &mut Value) {
    values["service"]["resources"]["requests"]["cpu"] = json!("500m");
}

/// The sessions that were opened. Whoever got none was told that there is none, or why none can come.
fn opened_and_refused(ends: &[Result<String, Refusal>]) -> anyhow::Result<Vec<String>> {
    let mut opened = Vec::new();
    for end in ends {
        match end {
            Ok(session) => opened.push(session.clone()),
            Err(refusal) => {
                let is_typed = match refusal.reason.as_str() {
                    "SANDBOX_EXHAUSTED" => refusal.code == tonic::Code::ResourceExhausted,
                    // On a node this busy policies may hold later than they should.
                    "ISOLATION_NOT_PROVEN" => refusal.code == tonic::Code::Unavailable,
                    _ => false,
                };
                ensure!(is_typed, "an open ended as {refusal:?}");
            }
        }
    }
    let mut distinct = opened.clone();
    distinct.sort();
    distinct.dedup();
    ensure!(distinct.len() == opened.len(), "a session was given to two callers");
    Ok(opened)
}

/// Closes sessions. Where many end at one time, or Sandboxes can't be written yet, the proof of an end may
/// take longer than one Close waits (`CLEANUP_UNPROVEN`): it is repeated, as its remedy says.
async fn close_all(agent: &Agent, sessions: &[String]) -> anyhow::Result<()> {
    let close = |session: &String| {
        let (agent, session) = (agent.clone(), session.clone());
        async move {
            wait::until_told("the session is closed", SETTLED_WITHIN, || async {
                agent.close(&session).await.map_err(|error| format!("{error:#}"))
            })
            .await
        }
    };
    let closing: Vec<_> = sessions.iter().map(close).collect();
    futures::stream::iter(closing).buffer_unordered(8).collect::<Vec<_>>().await.into_iter().collect()
}

/// The pool has as many warm sandboxes as it wants, and no other pod is there.
async fn settled(place: &Place, n_warm: usize) -> anyhow::Result<()> {
    let is_settled = |pool: &SandboxPool| {
        let status = pool.status.as_ref()?;
        let n_others = status.assigned + status.starting + status.retiring;
        (usize::try_from(status.warm) == Ok(n_warm) && n_others == 0).then_some(())
    };
    place.pool_until("the pool is back at its size", SETTLED_WITHIN, is_settled).await?;
    let as_many = |pods: &[Pod]| (pods.len() == n_warm).then_some(());
    wait::until(&place.theirs(), "no other pod is left", SETTLED_WITHIN, as_many, |pod: &Pod| pod.name_any())
        .await
}

/// Nobody waits to the end for what can't come.
pub async fn an_impossible_selector_is_told_early(place: &mut Place) -> anyhow::Result<()> {
    let mut values = place.values();
    values["pools"][POOL]["template"]["nodeSelector"] = json!({ "seance.dev/no-such": "node" });
    place.install(&values).await?;
    place.pool_until("the pool says why", READY_WITHIN, super::ends::not_ready).await?;
    let agent = place.agent(TENANTS[0]).await?;
    let began = Instant::now();
    let refusal = agent.open(|_| ()).await.err().context("a session was opened without a node")?;
    let took = began.elapsed();
    ensure!(refusal.reason == "UNSCHEDULABLE", "{refusal:?}");
    ensure!(took < Duration::from_secs(15), "it took {took:?} of the 30 s that an open may wait");
    Ok(())
}

/// What is warm and what runs needs no API server; what was missed is made up for when it is back.
pub async fn sessions_outlive_an_outage_of_the_api(place: &mut Place) -> anyhow::Result<()> {
    const N_WARM: usize = 4;
    let mut values = place.values();
    values["pools"][POOL] = pool(4);
    place.install(&values).await?;
    place.warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let opened = agent.open(|request| {
        request.catalog = catalog(&["beat"]);
        request.engine_options = vec!["timers".to_owned()];
        request.limits = [("wall_ms".to_owned(), 900_000)].into();
    });
    let session = opened.await.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    let beats = Beats::default();
    let _provider = agent.provide(&session, beats.answer()).await?;
    place.pod_of(&session).await?;
    place.warm().await?;

    let node = place.setting.node()?;
    let api_server = node.stop("kube-apiserver").await?;
    // The program's own clock says how long the API server is away.
    let n_beats = place.setting.outage.as_secs();
    let source = format!(
        "for (let n = 1; n <= {n_beats}; n += 1) {{
           await new Promise((later) => setTimeout(later, 1000));
           await tools.beat({{ n }});
         }}
         return {n_beats};"
    );
    let program = agent.start(&session, &source).await?;
    let mut others =
        try_join_all((1..N_WARM).map(|_| agent.opened())).await.context("warm opens in an outage")?;
    for other in &others {
        let seen = agent.run(other, "return 'on';").await?;
        ensure!(seen.value()? == "\"on\"", "{seen:?}");
    }
    let end = wait_to_the_end(&agent, &session, program).await?;
    ensure!(end == n_beats.to_string(), "the program ended with {end}");
    ensure!(beats.are_each_once(n_beats), "its calls were {:?}", beats.seen());
    let again = agent.run(&session, "return 'next';").await?;
    ensure!(again.value()? == "\"next\"", "{again:?}");
    api_server.start()?;

    let client = &place.setting.client;
    wait::until_told("the API server is back", READY_WITHIN, || async move {
        let request = http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
        client.request_text(request).await.map(drop).map_err(|error| error.to_string())
    })
    .await?;
    // Which sessions have which pods was written down late, and is.
    others.push(session);
    for session in &others {
        place.pod_of(session).await?;
    }
    close_all(&agent, &others).await?;
    settled(place, N_WARM).await?;
    place.nothing_is_leaked().await
}

/// Waits, window by window, for a program's value.
async fn wait_to_the_end(agent: &Agent, session: &str, program: u64) -> anyhow::Result<String> {
    loop {
        let seen = agent.wait(session, program).await?;
        if !matches!(&seen.end, Ok(end) if end.status() == api::ObservationStatus::StillWorking) {
            return seen.value().map(str::to_owned);
        }
    }
}

/// The calls that a provider has seen, by the number in their arguments.
#[derive(Clone, Default)]
struct Beats(Arc<Mutex<Vec<u64>>>);

impl Beats {
    fn answer(&self) -> impl Fn(&str, &str) -> Option<String> + Send + 'static {
        let beats = Arc::clone(&self.0);
        move |_, arguments| {
            let arguments: Value = serde_json::from_str(arguments).ok()?;
            beats.lock().unwrap_or_else(PoisonError::into_inner).push(arguments.get("n")?.as_u64()?);
            Some("null".to_owned())
        }
    }

    fn seen(&self) -> Vec<u64> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        seen.sort_unstable();
        seen
    }

    /// Whether 1 to `last` are there, each once.
    fn are_each_once(&self, last: u64) -> bool {
        self.seen().into_iter().eq(1..=last)
    }
}

/// The operator is killed while it makes sandboxes: the next one neither makes more than are wanted nor
/// loses any.
pub async fn a_refill_survives_its_operator(place: &mut Place) -> anyhow::Result<()> {
    const N_WARM: usize = 6;
    const N_SESSIONS: usize = 5;
    let mut values = place.values();
    values["pools"][POOL] = pool(6);
    place.install(&values).await?;
    place.warm().await?;
    let agent = place.agent(TENANTS[0]).await?;
    let operator = place.ready_pod("operator").await?;
    let sessions = try_join_all((0..N_SESSIONS).map(|_| agent.opened())).await?;
    let is_killed = AtomicBool::new(false);
    let killing = async {
        let is_midway = |pool: &SandboxPool| (pool.status.as_ref()?.starting > 0).then_some(());
        place.pool_until("a refill has begun", READY_WITHIN, is_midway).await?;
        kill(place, &operator).await?;
        place.ready_pod("operator").await?;
        is_killed.store(true, Ordering::SeqCst);
        Ok(())
    };
    let mut n_most = 0;
    let pods = place.theirs();
    let watching = wait::until(
        &pods,
        "the refill is over",
        SETTLED_WITHIN,
        |pods: &[Pod]| {
            n_most = n_most.max(pods.len());
            (is_killed.load(Ordering::SeqCst)
                && pods.iter().filter(|pod| is_ready(pod)).count() == N_WARM + N_SESSIONS)
                .then_some(())
        },
        |pod| pod.name_any(),
    );
    try_join(killing, watching).await?;
    ensure!(
        n_most == N_WARM + N_SESSIONS,
        "there were {n_most} pods for {N_SESSIONS} sessions and {N_WARM} warm"
    );
    place.warm().await?;
    place.expect_pods(N_WARM + N_SESSIONS).await?;
    close_all(&agent, &sessions).await?;
    settled(place, N_WARM).await?;
    place.nothing_is_leaked().await
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|is| is.type_ == "Ready" && is.status == "True")
}

/// A pool of 60, and the service killed under 50 programs, each in the middle of its work.
pub async fn fifty_programs_outlive_the_service(place: &mut Place) -> anyhow::Result<()> {
    const N_SESSIONS: u64 = 50;
    const N_WARM: usize = 60;
    let mut values = place.values();
    values["service"]["persistence"] = json!({ "enabled": true, "size": "1Gi" });
    ample_processor(&mut values);
    values["pools"][POOL] = pool(60);
    values["pools"][POOL]["refill"] = json!({ "maxStarting": 16 });
    let began = Instant::now();
    place.install(&values).await?;
    let full = |pool: &SandboxPool| (usize::try_from(pool.status.as_ref()?.warm) == Ok(N_WARM)).then_some(());
    place.pool_until("60 sandboxes are warm", Duration::from_secs(240), full).await?;
    println!("a pool of {N_WARM} was warm {:.0?} after its installation", began.elapsed());

    let agent = place.agent(TENANTS[0]).await?;
    let open = |request: &mut api::OpenRequest| {
        request.catalog = catalog(&["begin", "end"]);
        request.engine_options = vec!["timers".to_owned()];
        request.limits = [("wall_ms".to_owned(), 300_000)].into();
    };
    let began = Instant::now();
    let sessions = try_join_all((0..N_SESSIONS).map(|_| agent.open(open))).await;
    let sessions = sessions.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))?;
    println!("{N_SESSIONS} opens at once took {:.2?}", began.elapsed());
    let (begins, ends) = (Beats::default(), Beats::default());
    let before = try_join_all(sessions.iter().map(|session| agent.provide(session, begins.answer()))).await?;
    let programs = (1..=N_SESSIONS).zip(&sessions).map(|(n, session)| {
        // Longer than the service is away.
        let source = format!(
            "await tools.begin({{ n: {n} }});
             for (let k = 1; k <= 400; k += 1) {{ text(String(k)); await new Promise((later) => setTimeout(later, 100)); }}
             await tools.end({{ n: {n} }});
             return {n};"
        );
        let agent = agent.clone();
        async move { agent.start(session, &source).await }
    });
    let programs = try_join_all(programs).await?;
    let begun = &begins;
    wait::until_told("every program has begun", READY_WITHIN, || async move {
        if begun.are_each_once(N_SESSIONS) { Ok(()) } else { Err(format!("{:?} have begun", begun.seen())) }
    })
    .await?;
    drop(before);
    kill_the_service(place).await?;

    let agent = place.agent(TENANTS[0]).await?;
    let _after = try_join_all(sessions.iter().map(|session| agent.provide(session, ends.answer()))).await?;
    let waiting =
        sessions.iter().zip(&programs).map(|(session, program)| outlived(&agent, session, *program));
    let values = try_join_all(waiting).await?;
    let wanted: Vec<String> = (1..=N_SESSIONS).map(|n| n.to_string()).collect();
    ensure!(values == wanted, "the programs' values are {values:?}");
    ensure!(ends.are_each_once(N_SESSIONS), "the calls at the ends were {:?}", ends.seen());
    ensure!(begins.are_each_once(N_SESSIONS), "programs began again: {:?}", begins.seen());
    close_all(&agent, &sessions).await?;
    place.nothing_is_leaked().await
}

/// The value of a program, whose whole output is there once.
async fn outlived(agent: &Agent, session: &str, program: u64) -> anyhow::Result<String> {
    let value = wait_to_the_end(agent, session, program).await?;
    let record = agent.program(session, program).await?;
    ensure!(record.number == program, "the record of program {program} is of {}", record.number);
    let next = agent.run(session, "return 'next';").await?;
    ensure!(next.value()? == "\"next\"", "{next:?}");
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_once_each() {
        let beats = Beats::default();
        let answer = beats.answer();
        assert!(beats.are_each_once(0));
        assert_eq!(answer("beat", "{\"n\":2}").as_deref(), Some("null"));
        assert_eq!(answer("beat", "{}"), None);
        answer("beat", "{\"n\":1}");
        assert!(beats.are_each_once(2));
        answer("beat", "{\"n\":1}");
        assert!(!beats.are_each_once(2));
    }

    #[test]
    fn an_open_that_ends_without_a_reason_of_ours_is_no_end() {
        let refusal =
            |code, reason: &str| Refusal { code, reason: reason.to_owned(), message: String::new() };
        let ends = [Ok("a".to_owned()), Err(refusal(tonic::Code::ResourceExhausted, "SANDBOX_EXHAUSTED"))];
        assert_eq!(opened_and_refused(&ends).ok(), Some(vec!["a".to_owned()]));
        assert!(opened_and_refused(&[Err(refusal(tonic::Code::Unknown, ""))]).is_err());
        assert!(opened_and_refused(&[Ok("a".to_owned()), Ok("a".to_owned())]).is_err());
    }
}
