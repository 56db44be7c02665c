//! Clients that lose replies, have deadlines, come in twos, and read what refusals say.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use seance_proto::v1alpha1 as api;
use tokio_stream::StreamExt as _;
use tonic_types::StatusExt as _;

use super::{Stage, expect, expect_started, source, started, streamed, waiting};
use crate::case::Step;
use crate::door::{self, Message};
use crate::live::Live;

const CALL_MAX: Duration = Duration::from_secs(10);

/// Case 13: the stream of a wait is cut behind its first chunk; with the same cursor all is had again.
pub async fn dropped_wait(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let mut step = started("await tools.sleep({ms: 500}); text('a'); text('ä€'); await tools.sleep({ms: 1500}); text('b')");
            step.keep_cursor = Some("start".to_owned());
            let seen = live.execute(&step).await?;
            expect_started(&seen)?;
            live.remember(&step, &seen);
            let mut step = waiting(1);
            step.cursor = Some("start".to_owned());
            cut_after_output(live, &step).await?;
            let seen = live.wait(&step).await?;
            expect("the wait after the cut", &seen, |e| {
                (e.output, e.streamed) = (Some("a\nä€\nb".to_owned()), Some("a\nä€\nb".to_owned()));
            })?;
            let seen = live.wait(&step).await?;
            expect("once more", &seen, |e| e.streamed = Some("a\nä€\nb".to_owned()))
        })
        .await
}

async fn cut_after_output(live: &mut Live, step: &Step) -> anyhow::Result<()> {
    let mut stream = live.door.sessions().wait(live.wait_request(step)?).await?.into_inner();
    loop {
        match stream.next().await.context("the stream ended before any output")?.map(Message::from)? {
            Message::Output(_) => break,
            Message::Heartbeat => {}
            other => anyhow::bail!("{other:?} came instead of output"),
        }
    }
    drop(stream);
    live.has_cut();
    Ok(())
}

/// R12: replies of execute, wait and stop are lost; asking again repeats nothing.
pub async fn lost_replies(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let mut step =
                source("text('a'); const n = await tools.count(); await tools.sleep({ms: 400}); return n");
            step.key = "execute".to_owned();
            let request = live.execute_request(&step)?;
            let mut stream = live.door.sessions().execute(request).await?.into_inner();
            let accepted = stream.next().await.context("Execute ended at once")??;
            ensure!(
                matches!(Message::from(accepted), Message::Accepted(1)),
                "Execute didn't begin with program 1"
            );
            drop(stream);
            live.has_cut();
            let seen = live.execute(&step).await?;
            expect("execute again", &seen, |e| {
                (e.value, e.number) = (Some("1".to_owned()), Some(1));
                e.streamed = Some("a".to_owned());
            })?;
            let seen = live.execute(&step).await?;
            expect("execute a third time", &seen, |e| {
                (e.value, e.number) = (Some("1".to_owned()), Some(1));
            })?;
            expect_started(&live.execute(&started("await tools.sleep({ms: 60000})")).await?)?;
            let stop = Step { stop: Some(2), key: "stop".to_owned(), ..Step::default() };
            for what in ["stop", "stop again"] {
                let seen = live.stop(&stop).await?;
                expect(what, &seen, |e| {
                    (e.status, e.number) = (Some("terminated".to_owned()), Some(2));
                })?;
            }
            let counted = live.provider.as_ref().context("no provider")?.records();
            let counted = counted.iter().filter(|record| record.tool == "count").count();
            ensure!(counted == 1, "count was called {counted} times");
            Ok(())
        })
        .await
}

/// I3: 8 MiB that nobody read for a while come whole.
pub async fn much_unread_output(stage: Stage) -> anyhow::Result<()> {
    const PIECE: usize = 64 * 1024;
    const PIECES: usize = 128;
    stage
        .with_session(async |live| {
            let text = format!(
                "await tools.sleep({{ms: 500}}); for (let i = 0; i < {PIECES}; i++) text(String(i % 10).repeat({PIECE})); await tools.count(); return 'whole'"
            );
            let mut step = started(text);
            step.keep_cursor = Some("start".to_owned());
            let seen = live.execute(&step).await?;
            expect_started(&seen)?;
            live.remember(&step, &seen);
            // The call stands behind all output; it needs no reader to be made.
            let there = |records: &[crate::provider::Record]| records.iter().any(|r| r.tool == "count");
            let provider = live.provider.as_ref().context("no provider")?;
            provider.until(Duration::from_secs(30), "the call behind the output", there).await?;
            let mut step = waiting(1);
            step.cursor = Some("start".to_owned());
            let seen = live.wait(&step).await?;
            expect("the wait", &seen, |e| e.value = Some("\"whole\"".to_owned()))?;
            let pieces: Vec<String> = (0..PIECES).map(|i| (i % 10).to_string().repeat(PIECE)).collect();
            let (got, want) = (streamed(&seen), pieces.join("\n"));
            ensure!(got == want.as_bytes(), "{} bytes were streamed, {} were written", got.len(), want.len());
            Ok(())
        })
        .await
}

/// I7, N10: a deadline of the call's own ends the observation half a second before, and nothing else.
pub async fn client_deadline(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let step = source("await tools.sleep({ms: 2500}); return 'went on'");
            let mut request = tonic::Request::new(live.execute_request(&step)?);
            request.set_timeout(Duration::from_secs(2));
            let sent = Instant::now();
            let stream = live.door.sessions().execute(request).await?.into_inner();
            let seen = door::collect(stream, sent).await?;
            expect("the observation before the deadline", &seen, |e| {
                e.status = Some("still_working".to_owned());
                e.within_ms = Some(2000);
            })?;
            let seen = live.wait(&waiting(0)).await?;
            expect("the wait", &seen, |e| {
                (e.value, e.number, e.cancelled) = (Some("\"went on\"".to_owned()), Some(1), Some(vec![]));
            })
        })
        .await
}

/// R14: two clients, one session.
pub async fn two_clients(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let other = live.door.another().await?;
            let step = Step {
                begin: Some("await tools.sleep({ms: 2000}); return 'first'".to_owned()),
                ..Step::default()
            };
            let seen = live.begin(&step).await?;
            ensure!(seen.refused.is_none(), "begin: {:?}", seen.refused);
            let there = |records: &[crate::provider::Record]| !records.is_empty();
            live.provider.as_ref().context("no provider")?.until(CALL_MAX, "a call", there).await?;
            let request = live.execute_request(&source("return 'second'"))?;
            let refused = door::answered(other.sessions().execute(request).await, |_, _| {});
            let reason = refused.refused.map(|refusal| refusal.reason).unwrap_or_default();
            ensure!(
                reason == "PROGRAM_ACTIVE" || reason == "CONTROL_ACTIVE",
                "the second client's execute was answered with {reason:?}"
            );
            let stop = api::StopRequest { session_id: live.id.clone(), ..api::StopRequest::default() };
            let refused = door::answered(other.sessions().stop(stop).await, |_, _| {});
            expect("the second client's stop", &refused, |e| e.refused = Some("CONTROL_ACTIVE".to_owned()))?;
            let read = api::GetProgramRequest { session_id: live.id.clone(), program_number: 1 };
            let read =
                other.sessions().get_program(read).await?.into_inner().program.context("no program")?;
            ensure!(read.state() == api::ProgramState::Running, "the second client reads {:?}", read.state());
            let seen = live.join().await?;
            expect("the first client's program", &seen, |e| e.value = Some("\"first\"".to_owned()))?;
            let request = live.execute_request(&source("return 'second'"))?;
            let stream = other.sessions().execute(request).await?.into_inner();
            let seen = door::collect(stream, Instant::now()).await?;
            expect("the second client's program", &seen, |e| {
                (e.value, e.number) = (Some("\"second\"".to_owned()), Some(2));
            })
        })
        .await
}

/// N12: refusals of several kinds have one form.
pub async fn refusals_have_one_form(stage: Stage) -> anyhow::Result<()> {
    let mut sessions = stage.target.door.sessions();
    let nobody = "ses_00000000000000000000000000000000".to_owned();
    let statuses = [
        sessions.open(api::OpenRequest { engine: "nope".to_owned(), ..Default::default() }).await.err(),
        sessions
            .open(api::OpenRequest {
                engine: "javascript".to_owned(),
                limits: [("nope".to_owned(), 1)].into(),
                ..Default::default()
            })
            .await
            .err(),
        sessions.get(api::GetRequest { session_id: nobody.clone() }).await.err(),
        sessions.close(api::CloseRequest { session_id: nobody.clone(), ..Default::default() }).await.err(),
        sessions.wait(api::WaitRequest { session_id: nobody, ..Default::default() }).await.err(),
    ];
    let mut domains = std::collections::BTreeSet::new();
    for (index, status) in statuses.into_iter().enumerate() {
        let status = status.with_context(|| format!("request {index} was not refused"))?;
        let info = status.get_details_error_info().with_context(|| format!("{status} has no ErrorInfo"))?;
        let refusal = door::refusal(&status);
        let is_name = !info.reason.is_empty()
            && info.reason.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        ensure!(is_name, "the reason {:?} is no name", info.reason);
        ensure!(refusal.trailer == info.reason, "trailer {:?}, reason {:?}", refusal.trailer, info.reason);
        ensure!(refusal.message.contains(&info.reason), "{:?} doesn't name {}", refusal.message, info.reason);
        domains.insert(info.domain);
    }
    ensure!(domains.len() == 1 && !domains.contains(""), "the domains are {domains:?}");
    Ok(())
}

/// O1: the service says what confines programs.
pub async fn confinement_is_told(stage: Stage) -> anyhow::Result<()> {
    let info = stage.target.door.server().get_info(api::GetInfoRequest {}).await?.into_inner();
    ensure!(info.backend == stage.target.backend, "the backend is {:?}", info.backend);
    ensure!(!info.confinement_parts.is_empty(), "no confinement is named");
    ensure!(info.confinement_parts.iter().all(|name| !name.is_empty()), "confinement without a name");
    Ok(())
}
