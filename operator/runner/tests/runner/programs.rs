//! A session's life over the link.

use std::time::{Duration, Instant};

use seance_proto::link::v1alpha1::{Assign, HostEnd, Output, OutputSource, Shutdown, StopProgram};

use crate::service::{FromRunner, Options, Service, ToRunner};

/// The whole way: hello, assigned, started, ended with a value, and the next program.
#[tokio::test]
async fn programs_run_one_after_another() {
    let mut service = Service::assigned(Options::default()).await;
    assert_eq!((service.hello.version_min, service.hello.version_max), (1, 2));
    assert!(service.hello.engines.iter().any(|engine| engine.language == "typescript"));
    assert!(service.hello.confinement_parts.iter().any(|name| name == "seccomp"));
    assert!(service.hello.resume.is_none());
    service.execute(1, "1+1").await;
    let FromRunner::ProgramStarted(started) = service.next().await else { panic!() };
    assert_eq!(started.program, 1);
    let FromRunner::ProgramEnded(ended) = service.next().await else { panic!() };
    assert_eq!((ended.end(), ended.signal.as_str(), ended.exit_status), (HostEnd::Reported, "", 0));
    assert_eq!(ended.report.unwrap().value_json.as_deref(), Some("2"));
    assert!(ended.wall_us > 0 && ended.peak_memory_bytes > 1024 * 1024);
    // Case 61: nothing of one program is in the next.
    assert_eq!(service.value(2, "globalThis.x = 1; 2").await, "2");
    assert_eq!(service.value(3, "typeof x").await, "\"undefined\"");
}

#[tokio::test]
async fn tool_calls_travel_both_ways_and_results_apply_once() {
    let mut service = Service::assigned(Options::default()).await;
    service
        .execute(
            1,
            "const [a, b] = [tools.echo({n: 1}), tools.echo({n: 2})]; text(await b); text(await a); 3",
        )
        .await;
    let FromRunner::ProgramStarted(_) = service.next().await else { panic!() };
    for call in 1..=2 {
        let FromRunner::ToolCall(made) = service.next().await else { panic!() };
        assert_eq!((made.call, made.tool.as_str()), (call, "echo"));
        assert_eq!(made.arguments_json, format!("{{\"n\":{call}}}"));
    }
    // Results for other calls and programs, and repeated ones, change nothing.
    service.answer(1, 99, "0").await;
    service.answer(2, 1, "0").await;
    for _ in 0..2 {
        service.answer(1, 2, "\"second\"").await;
    }
    assert_eq!(service.next().await, text(1, "second"));
    service.answer(1, 1, "\"first\"").await;
    assert_eq!(service.next().await, text(1, "first"));
    assert_eq!(service.ended().await.report.unwrap().value_json.as_deref(), Some("3"));
}

#[tokio::test]
async fn a_stopped_program_ends_at_once_and_keeps_its_output() {
    let mut service = Service::assigned(Options::default()).await;
    service.execute(1, "text('a'); await tools.wait()").await;
    while !matches!(service.next().await, FromRunner::ToolCall(_)) {}
    let asked = Instant::now();
    service.stop(1).await;
    let ended = service.ended().await;
    assert_eq!((ended.end(), ended.signal.as_str()), (HostEnd::Stopped, "SIGKILL"));
    assert!(asked.elapsed() < Duration::from_secs(1));
    // Stopping again, and stopping what is over, change nothing.
    service.stop(1).await;
    assert_eq!(service.value(2, "2").await, "2");
    service.send(ToRunner::StopProgram(StopProgram { program: 2 })).await;
    assert_eq!(service.value(3, "3").await, "3");
}

#[tokio::test]
async fn a_runner_takes_one_session_and_one_program_at_a_time() {
    let mut service = Service::assigned(Options::default()).await;
    let assign = |id: &str| ToRunner::Assign(Assign { session_id: id.to_owned(), ..Assign::default() });
    service.send(assign("s_2")).await;
    assert_eq!(refusal(&mut service).await, ("already_assigned".to_owned(), 0));
    service.execute(1, "await tools.wait()").await;
    while !matches!(service.next().await, FromRunner::ToolCall(_)) {}
    service.execute(1, "2").await;
    service.execute(2, "2").await;
    assert_eq!(refusal(&mut service).await, ("program_active".to_owned(), 2));
    service.answer(1, 1, "null").await;
    service.ended().await;
    service.execute(1, "again").await;
    service.execute_with(2, "2", |execute| execute.catalog_digest = "unknown".to_owned()).await;
    assert_eq!(refusal(&mut service).await, ("unknown_catalog".to_owned(), 2));
    service.epoch = 5;
    assert_eq!(service.value(2, "2").await, "2");
    service.epoch = 4;
    service.stop(2).await;
    assert_eq!(refusal(&mut service).await, ("stale_epoch".to_owned(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_told_to_shut_down_exits_and_leaves_nothing() {
    let mut service = Service::assigned(Options::default()).await;
    service.execute(1, "await tools.wait()").await;
    while !matches!(service.next().await, FromRunner::ToolCall(_)) {}
    let hosts = service.processes();
    assert!(!hosts.is_empty());
    service.send(ToRunner::Shutdown(Shutdown {})).await;
    let status = tokio::task::block_in_place(|| service.child.wait()).unwrap();
    assert!(status.success(), "{status:?}");
    for host in hosts {
        assert!(!std::path::Path::new(&format!("/proc/{host}")).exists(), "host {host} lives on");
    }
}

async fn refusal(service: &mut Service) -> (String, u64) {
    loop {
        if let FromRunner::Refused(refused) = service.next().await {
            return (refused.reason, refused.program);
        }
    }
}

fn text(program: u64, text: &str) -> FromRunner {
    let data = text.to_owned().into_bytes().into();
    FromRunner::Output(Output { program, source: OutputSource::Text.into(), data })
}
