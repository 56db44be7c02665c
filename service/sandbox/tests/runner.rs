//! The local backend with the real runner: programs, tool calls, and what they cost.

mod testee;

use std::time::{Duration, Instant};

use seance_core::ids::ProgramNumber;
use seance_core::link::{FromRunner, HostEnd, HostEnded, ToRunner};
use seance_core::sandbox::SandboxBackend;
use seance_sandbox::local::{Confinement, LocalBackend, SandboxState};
use testee::{Guest, REAL_RUNNER, config, request};

async fn attempt(source: &str, _wire: &mut testee::runner::Wire) -> String {
    unreachable!("the real runner runs here, not {source}")
}

pub async fn service(_: Confinement, name: &str) {
    unreachable!("no test here starts {name}")
}

async fn backend(confinement: Confinement) -> LocalBackend {
    let mut config = config(confinement);
    config.runner.args = vec![REAL_RUNNER.into()];
    LocalBackend::start(config).await.expect("this machine can make sandboxes")
}

/// Answers every call with its arguments and gives the program's end.
async fn until_ended(guest: &mut Guest, program: ProgramNumber) -> HostEnded {
    loop {
        match guest.frame().await {
            FromRunner::ProgramEnded(ended) if ended.program == program => return *ended,
            FromRunner::ToolCall { program, call, arguments, .. } => {
                guest.send(ToRunner::CallResult { program, call, result: Ok(arguments) }).await;
            }
            FromRunner::Output { .. } | FromRunner::ProgramStarted { .. } => {}
            other => panic!("unexpected frame: {other:?}"),
        }
    }
}

async fn value(guest: &mut Guest, source: &str) -> String {
    let program = guest.start(source).await;
    let ended = until_ended(guest, program).await;
    assert_eq!(ended.end, HostEnd::Reported, "{ended:?}");
    let report = ended.report.expect("it is reported");
    report.value.unwrap_or_else(|| panic!("no value: {:?}", report.error))
}

async fn programs_run_one_after_the_other(confinement: Confinement) {
    let backend = backend(confinement).await;
    assert!(backend.engines()[0].version.is_ok());
    let mut guest = Guest::new(&backend).await;
    assert_eq!(value(&mut guest, "return 1 + 1").await, "2");
    assert_eq!(value(&mut guest, "globalThis.x = 1; return typeof y").await, "\"undefined\"");
    assert_eq!(value(&mut guest, "return typeof x").await, "\"undefined\"");
    let echoed = value(&mut guest, "return await tools.call('echo', {a: [1, 'ä']})").await;
    assert_eq!(echoed, r#"{"a":[1,"ä"]}"#);
    guest.claimed.handle.end(seance_core::sandbox::EndReason::Released, testee::DEADLINE).await.unwrap();
    backend.shutdown(testee::DEADLINE).await;
    assert_eq!((backend.sandboxes(), backend.n_leaked()), (vec![], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn confined_programs_run_one_after_the_other() {
    programs_run_one_after_the_other(Confinement::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfined_programs_run_one_after_the_other() {
    programs_run_one_after_the_other(Confinement::Unconfined).await;
}

/// What a claim and a tool call cost; printed, because a shared machine can't promise a figure.
#[tokio::test(flavor = "multi_thread")]
async fn costs_are_told() {
    let backend = backend(Confinement::Required).await;
    let mut guest = Guest::new(&backend).await;
    let n = 2000;
    let source = format!("for (let i = 0; i < {n}; i++) await tools.call('echo', {{}})");
    let program = guest.start(&source).await;
    let start = Instant::now();
    until_ended(&mut guest, program).await;
    println!("tool call round trip: {:?}", start.elapsed() / n);
    let mut warm = Vec::new();
    for _ in 0..20 {
        let ready = || backend.sandboxes().iter().filter(|s| s.state == SandboxState::Warm).count();
        testee::eventually(|| ready() > 0).await;
        let start = Instant::now();
        let claimed = backend.claim(request()).await.unwrap();
        warm.push(start.elapsed());
        claimed.handle.end(seance_core::sandbox::EndReason::Released, testee::DEADLINE).await.unwrap();
    }
    warm.sort();
    println!("warm claim: {:?} median, {:?} worst", warm[warm.len() / 2], warm[warm.len() - 1]);
    backend.shutdown(testee::DEADLINE).await;
    let mut config = config(Confinement::Required);
    config.runner.args = vec![REAL_RUNNER.into()];
    config.warm = 0;
    let backend = LocalBackend::start(config).await.unwrap();
    let mut cold = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        let claimed = backend.claim(request()).await.unwrap();
        cold.push(start.elapsed());
        let end = Instant::now();
        claimed.handle.end(seance_core::sandbox::EndReason::Released, testee::DEADLINE).await.unwrap();
        println!("end: {:?}", end.elapsed());
    }
    cold.sort();
    println!("cold claim: {:?} median, {:?} worst", cold[cold.len() / 2], cold[cold.len() - 1]);
    backend.shutdown(Duration::from_secs(10)).await;
}
