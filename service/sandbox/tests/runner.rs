//! The local backend with the real runner: programs and tool calls.

mod testee;

use seance_core::ids::ProgramNumber;
use seance_core::link::{FromRunner, HostEnd, HostEnded, ToRunner};
use seance_core::sandbox::SandboxBackend;
use seance_sandbox::local::{Confinement, INTERPRETED, LocalBackend};
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
    config.interpreted = INTERPRETED.to_vec();
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

async fn python_programs_run_with_the_interpreter_of_the_machine(confinement: Confinement) {
    let backend = backend(confinement).await;
    let engines = backend.engines();
    let python = engines.iter().find(|engine| engine.name == "python").expect("it is listed");
    assert!(python.version.as_ref().is_ok_and(|version| version.starts_with("CPython 3.")), "{python:?}");
    let mut guest = Guest::of(&backend, "python").await;
    assert_eq!(value(&mut guest, "x = 1\nreturn x + 1").await, "2");
    assert_eq!(value(&mut guest, "'x' in globals()").await, "false");
    let echoed = value(&mut guest, "await tools.call('echo', {'a': [1, 'ä']})").await;
    assert_eq!(echoed, r#"{"a":[1,"ä"]}"#);
    let library = "import ssl, sqlite3, lzma, ctypes, zoneinfo\nstr(zoneinfo.ZoneInfo('Europe/Berlin'))";
    assert_eq!(value(&mut guest, library).await, "\"Europe/Berlin\"");
    // Another engine's runners don't stand in the way, and the other way round.
    let mut other = Guest::new(&backend).await;
    assert_eq!(value(&mut other, "return 1 + 1").await, "2");
    drop((guest, other));
    backend.shutdown(testee::DEADLINE).await;
    assert_eq!((backend.sandboxes(), backend.n_leaked()), (vec![], 0));
}

/// Issue 5: the interpreter found on the machine, with its version.
#[tokio::test(flavor = "multi_thread")]
async fn confined_python_programs_run_with_the_interpreter_of_the_machine() {
    python_programs_run_with_the_interpreter_of_the_machine(Confinement::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfined_python_programs_run_with_the_interpreter_of_the_machine() {
    python_programs_run_with_the_interpreter_of_the_machine(Confinement::Unconfined).await;
}

/// Case 60, section 7: what is in the sandbox is the interpreter's, and nobody else's memory can be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_python_program_reaches_nothing_outside() {
    let backend = backend(Confinement::Required).await;
    let mut guest = Guest::of(&backend, "python").await;
    let source = r#"
import os, socket
def denied(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
runner = os.getppid()
attempts = [
    lambda: open(f"/proc/{runner}/environ").read(),
    lambda: open(f"/proc/{runner}/mem", "rb"),
    lambda: os.listdir(f"/proc/{runner}/fd"),
    lambda: open("/etc/passwd"),
    lambda: open("/etc/hostname"),
    lambda: os.listdir("/home"),
    lambda: os.listdir("/"),
    lambda: open("/proc/self/environ"),
    lambda: open("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    lambda: open("/work/file", "w"),
    lambda: socket.create_connection(("169.254.169.254", 80)),
    lambda: os.kill(runner, 9),
    lambda: os.kill(-1, 9),
    lambda: os.fork(),
]
[n for n, attempt in enumerate(attempts) if not denied(attempt)]
"#;
    assert_eq!(value(&mut guest, source).await, "[]");
}

/// With as many places as sessions, a warm runner of one engine makes room for a session of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_runner_makes_room_for_a_session_of_another_engine() {
    let mut config = config(Confinement::Required);
    config.runner.args = vec![REAL_RUNNER.into()];
    (config.interpreted, config.max_sandboxes) = (INTERPRETED.to_vec(), 2);
    let backend = LocalBackend::start(config).await.expect("this machine can make sandboxes");
    let mut first = Guest::of(&backend, "python").await;
    let mut second = Guest::of(&backend, "python").await;
    assert_eq!(value(&mut first, "1").await, "1");
    assert_eq!(value(&mut second, "2").await, "2");
}
