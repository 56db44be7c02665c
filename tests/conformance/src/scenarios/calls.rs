//! Calls: what is recorded of them, who sees them, and that none comes late or twice.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use seance_proto::v1alpha1 as api;
use tokio_stream::StreamExt as _;

use super::{Stage, expect, expect_started, program, source, started, waiting};
use crate::case::Step;
use crate::fixtures::BOOM_SECRET;
use crate::live::Live;
use crate::provider::{Provider, Record};

const CALL_MAX: Duration = Duration::from_secs(10);
/// How soon after its dispatch a call must be shown (case 76).
const SHOWN_WITHIN: Duration = Duration::from_millis(100);

fn provider(live: &Live) -> anyhow::Result<&Provider> {
    live.provider.as_ref().context("no provider is attached")
}

/// Case 43: an unexpected failure ends the program, and its cause goes nowhere.
pub async fn boom(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let text = "try { await tools.boom() } catch (e) { text(e.message) } text('went on'); return 1";
            let seen = live.execute(&source(text)).await?;
            expect(text, &seen, |e| {
                e.code = Some("internal".to_owned());
                e.output = Some(String::new());
                e.no_value = true;
                e.lacks = vec![BOOM_SECRET.to_owned(), "db-7".to_owned()];
            })?;
            let message = program(&seen)?.error.clone().unwrap_or_default().message;
            let correlation = message.split("correlation id ").nth(1).unwrap_or_default();
            ensure!(correlation.trim().len() >= 8, "the message has no correlation id: {message:?}");
            let everything = format!("{seen:?} {:?}", live.events().await?);
            ensure!(!everything.contains("db-7"), "the cause is in the observation or the events");
            let seen = live.execute(&source("return 'usable'")).await?;
            expect("the next program", &seen, |e| e.value = Some("\"usable\"".to_owned()))?;
            let n_calls = provider(live)?.records().len();
            ensure!(n_calls == 1, "boom was called {n_calls} times");
            Ok(())
        })
        .await
}

/// D17: ids are unique, the same everywhere, and name session, program and call.
pub async fn call_ids(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let mut ids = HashSet::new();
            for number in 1..=2 {
                let seen = live.execute(&source("for (let i = 0; i < 3; i++) await tools.count()")).await?;
                expect("three calls", &seen, |e| e.n_calls = Some(3))?;
                for (index, call) in program(&seen)?.calls.iter().enumerate() {
                    let session = live.id.trim_start_matches("ses_");
                    let ends = call.call_id.ends_with(&format!("_{number}_{}", index + 1));
                    ensure!(ends && call.call_id.contains(session), "the call's id is {:?}", call.call_id);
                    ensure!(ids.insert(call.call_id.clone()), "{} is there twice", call.call_id);
                }
            }
            let recorded: HashSet<String> =
                provider(live)?.records().into_iter().map(|r| r.call_id).collect();
            ensure!(recorded == ids, "the provider got {recorded:?}, the programs made {ids:?}");
            Ok(())
        })
        .await
}

/// Case 76: a follower sees each call soon after its dispatch.
pub async fn calls_are_followed(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let request =
                api::FollowRequest { session_id: live.id.clone(), from_sequence: 0, until_now: false };
            let mut stream = live.door.sessions().follow(request).await?.into_inner();
            let following = tokio::spawn(async move {
                let mut shown: Vec<(Instant, api::Event)> = Vec::new();
                while let Some(Ok(response)) = stream.next().await {
                    let Some(api::follow_response::Message::Event(event)) = response.message else {
                        continue;
                    };
                    let is_end = matches!(event.kind, Some(api::event::Kind::ProgramEnded(_)));
                    shown.push((Instant::now(), event));
                    if is_end {
                        break;
                    }
                }
                shown
            });
            let text = "await tools.sleep({ms: 300}); await tools.echo({value: 1}); await tools.count()";
            let seen = live.execute(&source(text)).await?;
            expect(text, &seen, |e| e.n_calls = Some(3))?;
            let shown =
                tokio::time::timeout(CALL_MAX, following).await.context("Follow never showed the end")??;
            for record in provider(live)?.records() {
                check_shown(&record, &shown)?;
            }
            Ok(())
        })
        .await
}

fn check_shown(record: &Record, shown: &[(Instant, api::Event)]) -> anyhow::Result<()> {
    let dispatched = shown.iter().find(|(_, event)| match &event.kind {
        Some(api::event::Kind::Call(call)) => {
            call.call_id == record.call_id && call.state() == api::CallState::Dispatched
        }
        _ => false,
    });
    let tool = &record.tool;
    let (at, event) = dispatched.with_context(|| format!("the dispatch of {tool} was never shown"))?;
    let late = at.saturating_duration_since(record.began);
    ensure!(late <= SHOWN_WITHIN, "{tool} was shown {late:?} after it reached its provider");
    ensure!(event.program_number == 1, "{tool} was shown under program {}", event.program_number);
    Ok(())
}

/// Case 81: 3 MB from tool to tool.
pub async fn large_payload(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let text =
                "const p = await tools.big({bytes:3000000}); await tools.echo({value:p}); return p.length";
            let seen = live.execute(&source(text)).await?;
            expect(text, &seen, |e| e.value = Some("3000000".to_owned()))?;
            let records = provider(live)?.records();
            let echo = records.iter().find(|record| record.tool == "echo").context("echo was not called")?;
            let wanted = format!(r#"{{"value":"{}"}}"#, "x".repeat(3_000_000));
            ensure!(echo.arguments == wanted, "echo got {} bytes of arguments", echo.arguments.len());
            Ok(())
        })
        .await
}

/// I12, K14: a result that comes after the cancellation is dropped.
pub async fn late_answer(mut stage: Stage) -> anyhow::Result<()> {
    stage.case.hold = vec!["pay".to_owned()];
    stage.case.answer_late = true;
    stage
        .with_session(async |live| {
            expect_started(&live.execute(&started("return await tools.pay({amount: 1})")).await?)?;
            provider(live)?.until(CALL_MAX, "a call of pay", |records| !records.is_empty()).await?;
            let seen = live.stop(&Step { stop: Some(0), ..Step::default() }).await?;
            expect("the stop", &seen, |e| {
                e.status = Some("terminated".to_owned());
                e.calls = Some(vec!["pay cancelled".to_owned()]);
            })?;
            let late = |records: &[Record]| records[0].cancelled.is_some() && records[0].ended.is_some();
            provider(live)?.until(CALL_MAX, "the late answer", late).await?;
            let seen = live.execute(&source("return await tools.count()")).await?;
            expect("the next program", &seen, |e| {
                (e.value, e.number) = (Some("1".to_owned()), Some(2));
            })?;
            let seen = live.program(&waiting(1), 1).await;
            expect("the first program", &seen, |e| {
                e.state = Some("terminated".to_owned());
                e.calls = Some(vec!["pay cancelled".to_owned()]);
                e.no_value = true;
            })
        })
        .await
}

/// D26: after a stop nothing is called.
pub async fn no_late_calls(stage: Stage) -> anyhow::Result<()> {
    stage
        .with_session(async |live| {
            let text = "for (;;) await Promise.all([1, 2, 3, 4].map((value) => tools.sleep({ms: 2, value})))";
            expect_started(&live.execute(&started(text)).await?)?;
            provider(live)?.until(CALL_MAX, "eight calls", |records| records.len() >= 8).await?;
            let seen = live.stop(&Step { stop: Some(0), ..Step::default() }).await?;
            expect("the stop", &seen, |e| e.status = Some("terminated".to_owned()))?;
            let seen =
                live.execute(&source("await tools.sleep({ms: 300}); return await tools.count()")).await?;
            expect("the next program", &seen, |e| e.value = Some("1".to_owned()))?;
            let of_first =
                provider(live)?.records().iter().filter(|record| record.program == 1).count() as u64;
            let seen = live.program(&waiting(1), 1).await;
            let dispatched = program(&seen)?.usage.as_ref().map(|usage| usage.n_calls);
            ensure!(
                dispatched == Some(of_first),
                "the provider got {of_first} calls, the record has {dispatched:?} dispatched"
            );
            let open = |call: &&api::Call| {
                matches!(call.state(), api::CallState::Queued | api::CallState::Dispatched)
            };
            let open: Vec<_> = program(&seen)?.calls.iter().filter(open).collect();
            ensure!(open.is_empty(), "calls of an ended program are open: {open:?}");
            Ok(())
        })
        .await
}

/// D25: calls after the control has returned still carry its trace.
pub async fn trace_context(stage: Stage) -> anyhow::Result<()> {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    stage
        .with_session(async |live| {
            let text = "await tools.sleep({ms: 200}); await tools.count(); return 1";
            let mut request = tonic::Request::new(live.execute_request(&started(text))?);
            let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
            request.metadata_mut().insert("traceparent", traceparent.parse()?);
            let stream = live.door.sessions().execute(request).await?.into_inner();
            expect_started(&crate::door::collect(stream, Instant::now()).await?)?;
            let seen = live.wait(&waiting(1)).await?;
            expect("the wait", &seen, |e| e.value = Some("1".to_owned()))?;
            for record in provider(live)?.records() {
                let carried = record.traceparent.split('-').nth(1).unwrap_or_default();
                ensure!(carried == TRACE, "{} came with traceparent {:?}", record.tool, record.traceparent);
            }
            Ok(())
        })
        .await
}
