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

/// A program and its value.
type Valued = (&'static str, &'static str);

/// The engines of interpreters, how their versions begin, and programs that say what each can do here.
const INTERPRETED_PROGRAMS: [(&str, &str, &[Valued]); 2] = [
    (
        "python",
        "CPython 3.",
        &[
            ("x = 1\nreturn x + 1", "2"),
            ("'x' in globals()", "false"),
            ("await tools.call('echo', {'a': [1, 'ä']})", r#"{"a":[1,"ä"]}"#),
            (
                "import ssl, sqlite3, lzma, ctypes, zoneinfo\nstr(zoneinfo.ZoneInfo('Europe/Berlin'))",
                "\"Europe/Berlin\"",
            ),
        ],
    ),
    (
        "ruby",
        "CRuby 3.",
        &[
            ("X = 1\nreturn X + 1", "2"),
            ("defined?(X).inspect", "\"nil\""),
            ("tools.call('echo', { 'a' => [1, 'ä'] })", r#"{"a":[1,"ä"]}"#),
            (
                "require 'openssl'; require 'fiddle'; require 'psych'; require 'socket'\n\
                 ENV['TZ'] = 'Europe/Berlin'\nTime.at(0).utc_offset",
                "3600",
            ),
        ],
    ),
];

async fn programs_run_with_the_interpreters_of_the_machine(confinement: Confinement) {
    let backend = backend(confinement).await;
    let engines = backend.engines();
    for (engine, version, programs) in INTERPRETED_PROGRAMS {
        let status = engines.iter().find(|status| status.name == engine).expect("it is listed");
        assert!(status.version.as_ref().is_ok_and(|found| found.starts_with(version)), "{status:?}");
        let mut guest = Guest::of(&backend, engine).await;
        for (source, expected) in programs {
            assert_eq!(value(&mut guest, source).await, *expected, "{source}");
        }
        // Another engine's runners don't stand in the way, and the other way round.
        let mut other = Guest::new(&backend).await;
        assert_eq!(value(&mut other, "return 1 + 1").await, "2");
        drop((guest, other));
    }
    backend.shutdown(testee::DEADLINE).await;
    assert_eq!((backend.sandboxes(), backend.n_leaked()), (vec![], 0));
}

/// Issue 5: the interpreters found on the machine, with their versions.
#[tokio::test(flavor = "multi_thread")]
async fn confined_programs_run_with_the_interpreters_of_the_machine() {
    programs_run_with_the_interpreters_of_the_machine(Confinement::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfined_programs_run_with_the_interpreters_of_the_machine() {
    programs_run_with_the_interpreters_of_the_machine(Confinement::Unconfined).await;
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

/// The same in Ruby.
#[tokio::test(flavor = "multi_thread")]
async fn a_ruby_program_reaches_nothing_outside() {
    let backend = backend(Confinement::Required).await;
    let mut guest = Guest::of(&backend, "ruby").await;
    let source = r#"
require "socket"
runner = Process.ppid
attempts = [
  -> { File.read("/proc/#{runner}/environ") },
  -> { File.open("/proc/#{runner}/mem") },
  -> { Dir.children("/proc/#{runner}/fd") },
  -> { File.read("/etc/passwd") },
  -> { File.read("/etc/hostname") },
  -> { Dir.children("/home") },
  -> { Dir.children("/") },
  -> { File.read("/proc/self/environ") },
  -> { File.read("/var/run/secrets/kubernetes.io/serviceaccount/token") },
  -> { File.write("/work/file", "x") },
  -> { TCPSocket.new("169.254.169.254", 80) },
  -> { Process.kill(9, runner) },
  -> { Process.kill(9, -1) },
  -> { fork },
]
attempts.each_index.reject do |n|
  attempts[n].call
  false
rescue SystemCallError
  true
end
"#;
    assert_eq!(value(&mut guest, source).await, "[]");
}

/// With as many places as sessions, a warm runner of one engine makes room for a session of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_runner_makes_room_for_a_session_of_another_engine() {
    let mut config = config(Confinement::Required);
    config.runner.args = vec![REAL_RUNNER.into()];
    (config.interpreted, config.max_sandboxes) = (INTERPRETED.to_vec(), INTERPRETED.len() + 1);
    let backend = LocalBackend::start(config).await.expect("this machine can make sandboxes");
    let mut first = Guest::of(&backend, "python").await;
    let mut second = Guest::of(&backend, "python").await;
    let mut third = Guest::of(&backend, "python").await;
    for guest in [&mut first, &mut second, &mut third] {
        assert_eq!(value(guest, "1").await, "1");
    }
}
