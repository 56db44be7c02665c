//! The local backend with the real runner: programs and tool calls.

mod testee;

use seance_core::ids::ProgramNumber;
use seance_core::link::{FromRunner, HostEnd, HostEnded, ToRunner};
use seance_core::sandbox::SandboxBackend;
use seance_sandbox::local::{Confinement, LocalBackend};
use testee::{Guest, REAL_RUNNER, config};

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
