//! What every backend must hold, for the local one with and without confinement.

mod testee;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seance_core::ids::ProgramNumber;
use seance_core::link::FromRunner;
use seance_core::sandbox::{ClaimError, ClaimRequest, EndReason, LinkEvent, SandboxBackend, SandboxEnd};
use seance_proto::link::v1alpha1::{Chunk, Hello, attach_request::Frame};
use seance_sandbox::local::{Confinement, LocalBackend, SandboxState};
use testee::runner::{Wire, output_of};
use testee::{DEADLINE, Guest, backend, config, eventually, request};

/// What the inside does when told.
async fn attempt(source: &str, wire: &mut Wire) -> String {
    let (what, argument) = source.split_once(' ').unwrap_or((source, ""));
    match what {
        "exit" => std::process::exit(argument.parse().expect("a status")),
        "leave" => {
            let mut child = Command::new(std::env::args_os().next().expect("a name"));
            let child = child.args(["sleeper", argument]).stdin(Stdio::null()).spawn();
            // Nobody waits for it: that is what the test is about.
            std::mem::forget(child.expect("it can start itself"));
            "left".to_owned()
        }
        "flood" => {
            for _ in 0..argument.parse().expect("a number") {
                let mut data = now_us().to_le_bytes().to_vec();
                data.resize(64 * 1024, 0);
                wire.numbered(output_of(1, data.into())).await;
            }
            String::new()
        }
        "misnumber" => raw(wire, 99, Some(output_of(1, "x".into()))).await,
        "unnumber" => raw(wire, 0, Some(output_of(1, "x".into()))).await,
        "unknown" => raw(wire, 0, None).await,
        "hello" => raw(wire, 0, Some(Frame::Hello(Hello::default()))).await,
        "large" => raw(wire, 1, Some(output_of(1, vec![0; 300 * 1024].into()))).await,
        "chunk" => {
            let chunk = Chunk { id: 1, total_bytes: 1 << 40, data: "x".into() };
            raw(wire, 0, Some(Frame::Chunk(chunk))).await
        }
        _ => source.to_owned(),
    }
}

async fn raw(wire: &mut Wire, number: u64, frame: Option<Frame>) -> String {
    wire.raw(number, frame).await;
    // What follows isn't to hide what was wrong before it.
    std::future::pending().await
}

/// Time that inside and outside share.
fn now_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

async fn stop(backend: &LocalBackend) {
    backend.shutdown(DEADLINE).await;
    assert_eq!((backend.sandboxes(), backend.n_leaked()), (vec![], 0));
}

fn keeper_of(backend: &LocalBackend, guest: &Guest) -> Pid {
    let listed = backend.sandboxes();
    let found = listed.iter().find(|sandbox| sandbox.id == guest.claimed.id).expect("it is listed");
    Pid::from_raw(found.keeper_pid as i32)
}

fn runner_of(keeper: Pid) -> Pid {
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    Pid::from_raw(children.trim().parse().expect("a keeper has one child"))
}

/// Whether a process with this argument exists, in whatever namespace.
fn is_running(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        cmdline.split(|byte| *byte == 0).any(|part| part == argument.as_bytes())
    })
}

async fn ended(guest: &mut Guest) -> SandboxEnd {
    loop {
        if let LinkEvent::Ended(end) = guest.event().await {
            assert_eq!(guest.event().await, LinkEvent::Ended(end.clone()), "asked again it says the same");
            return end;
        }
    }
}

async fn a_program_runs_and_the_end_is_proven(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    assert_eq!(guest.run("text").await, "text");
    let keeper = keeper_of(&backend, &guest);
    for _ in 0..2 {
        guest.claimed.handle.end(EndReason::Idle, DEADLINE).await.unwrap();
    }
    assert!(!Path::new(&format!("/proc/{keeper}")).exists());
    assert_eq!(ended(&mut guest).await, SandboxEnd::new(EndReason::Idle));
    assert_eq!(backend.n_leaked(), 0);
    stop(&backend).await;
}

async fn no_sandbox_is_given_twice(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        let guest = Guest::new(&backend).await;
        ids.push(guest.claimed.id);
        guest.claimed.handle.end(EndReason::Released, DEADLINE).await.unwrap();
    }
    let (a, b, c) = tokio::join!(Guest::new(&backend), Guest::new(&backend), Guest::new(&backend));
    ids.extend([a.claimed.id, b.claimed.id, c.claimed.id]);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 9);
    stop(&backend).await;
}

async fn a_killed_runner_is_told_by_its_signal(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    kill(runner_of(keeper_of(&backend, &guest)), Signal::SIGKILL).unwrap();
    let end = ended(&mut guest).await;
    assert_eq!(end.reason, EndReason::RunnerExited);
    assert!(end.detail.contains("SIGKILL"), "{}", end.detail);
    guest.claimed.handle.end(EndReason::Released, DEADLINE).await.unwrap();
    stop(&backend).await;
}

async fn a_runner_that_exits_is_told_by_its_status(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    guest.start("exit 7").await;
    let end = ended(&mut guest).await;
    assert_eq!(end.reason, EndReason::RunnerExited);
    assert!(end.detail.contains("status 7"), "{}", end.detail);
    stop(&backend).await;
}

async fn claims_over_the_maximum_wait_for_a_place(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut guests = Vec::new();
    for _ in 0..4 {
        guests.push(Guest::new(&backend).await);
    }
    let short = ClaimRequest { wait: Duration::from_millis(20), ..request() };
    let refused = backend.claim(short.clone()).await.unwrap_err();
    assert_eq!(refused, ClaimError::Exhausted { waited: short.wait });
    let (first, second) = (request(), request());
    let places = [first.position.clone(), second.position.clone()];
    let told = || [places[0].get(), places[1].get()];
    assert!(futures::poll!(std::pin::pin!(backend.claim(first.clone()))).is_pending());
    assert_eq!(told(), [0, 0], "one that has gone is in no line");
    let mut claims = [Box::pin(backend.claim(first)), Box::pin(backend.claim(second))];
    for claim in &mut claims {
        assert!(futures::poll!(claim).is_pending());
    }
    assert_eq!(told(), [1, 2]);
    let [first, second] = claims;
    drop(first);
    assert_eq!(told(), [0, 1]);
    let freed = guests.pop().expect("there are four");
    let end = async { freed.claimed.handle.end(EndReason::Released, DEADLINE).await };
    let (next, end) = tokio::join!(second, end);
    end.unwrap();
    assert_eq!(told(), [0, 0]);
    drop(next);
    stop(&backend).await;
}

/// Sandbox 50: a claim that nobody waits for any more leaves nothing behind.
async fn a_sandbox_that_is_dropped_ends(confinement: Confinement) {
    let backend = backend(confinement).await;
    let guest = Guest::new(&backend).await;
    let id = guest.claimed.id;
    drop(guest);
    eventually(|| backend.sandboxes().iter().all(|sandbox| sandbox.id != id)).await;
    assert_eq!(backend.n_leaked(), 0);
    drop(tokio::time::timeout(Duration::ZERO, backend.claim(request())).await);
    eventually(|| {
        backend.sandboxes().iter().filter(|sandbox| sandbox.state == SandboxState::Warm).count() == 1
    })
    .await;
    stop(&backend).await;
}

/// Sandbox 38: what a program starts in a session of its own ends with the sandbox.
async fn children_that_left_their_session_end_too(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    let name = format!("left-by-{}", guest.claimed.id);
    assert_eq!(guest.run(&format!("leave {name}")).await, "left");
    eventually(|| is_running(&name)).await;
    guest.claimed.handle.end(EndReason::Released, DEADLINE).await.unwrap();
    assert!(!is_running(&name), "the end was proven while a child was alive");
    stop(&backend).await;
}

/// A session that doesn't receive holds its runner back, and nothing is lost.
async fn a_flood_is_held_back(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    let n = 400;
    let program = guest.start(&format!("flood {n}")).await;
    // Wait until the runner is stuck: it uses no processor any more.
    let runner = runner_of(keeper_of(&backend, &guest));
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{runner}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().split(' ').nth(12).unwrap().parse::<u64>().unwrap()
    };
    let mut before = u64::MAX;
    while std::mem::replace(&mut before, ticks()) != before {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let began = now_us();
    let (mut seen, mut last) = (0, 0);
    loop {
        match guest.frame().await {
            FromRunner::Output { data, .. } if data.len() > 8 => {
                seen += 1;
                last = u64::from_le_bytes(data[..8].try_into().unwrap());
            }
            FromRunner::ProgramEnded(ended) if ended.program == program => break,
            _ => {}
        }
    }
    assert_eq!(seen, n);
    assert!(last > began, "the last of {n} frames was made before anyone received");
    stop(&backend).await;
}

async fn a_runner_that_breaks_the_protocol_ends(confinement: Confinement) {
    let backend = backend(confinement).await;
    for what in ["misnumber", "unnumber", "unknown", "hello", "large", "chunk"] {
        let mut guest = Guest::new(&backend).await;
        assert_eq!(guest.start(what).await, ProgramNumber(1));
        let end = ended(&mut guest).await;
        assert_eq!(end.reason, EndReason::ProtocolBroken, "{what}: {end:?}");
        assert!(!end.detail.is_empty(), "{what}");
    }
    stop(&backend).await;
}

async fn after_shutdown_nothing_is_left_and_claims_are_refused(confinement: Confinement) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    let keepers: Vec<_> = backend.sandboxes().iter().map(|sandbox| sandbox.keeper_pid).collect();
    stop(&backend).await;
    assert_eq!(ended(&mut guest).await.reason, EndReason::ServiceStopped);
    for keeper in keepers {
        assert!(!Path::new(&format!("/proc/{keeper}")).exists());
    }
    assert_eq!(backend.claim(request()).await.unwrap_err(), ClaimError::Stopping);
}

async fn what_cannot_be_had_is_refused_at_once(confinement: Confinement) {
    let backend = backend(confinement).await;
    for bad in [
        ClaimRequest { engine: "cobol".to_owned(), ..request() },
        ClaimRequest { memory_bytes: 1 << 50, ..request() },
    ] {
        let error = backend.claim(bad).await.unwrap_err();
        assert!(matches!(error, ClaimError::Unavailable { .. }), "{error}");
    }
    stop(&backend).await;
}

/// A service killed outright takes its sandboxes with it.
async fn sandboxes_die_with_the_service(confinement: Confinement) {
    let name = format!("service-{}-{confinement:?}", std::process::id());
    let mut service = Command::new(std::env::current_exe().unwrap());
    service.args(["service", &format!("{confinement:?}"), &name]);
    let mut service = service.stdout(Stdio::piped()).spawn().unwrap();
    eventually(|| is_running(&format!("child-of-{name}"))).await;
    service.kill().unwrap();
    service.wait().unwrap();
    eventually(|| !is_running(&format!("child-of-{name}"))).await;
}

/// The life of the service that the test above kills.
pub async fn service(confinement: Confinement, name: &str) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    guest.run(&format!("leave child-of-{name}")).await;
    std::future::pending().await
}

#[tokio::test]
async fn a_runner_that_does_not_start_refuses_the_backend_with_its_words() {
    let mut config = config(Confinement::Required);
    config.runner.args = vec!["no-such-command".into()];
    let error = LocalBackend::start(config).await.err().expect("a test harness is no runner");
    assert!(error.to_string().contains("did not start"), "{error}");
}

macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod confined {
            use super::Confinement;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(Confinement::Required).await; })*
        }
        mod unconfined {
            use super::Confinement;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(Confinement::Unconfined).await; })*
        }
    };
}

conformance! {
    a_program_runs_and_the_end_is_proven,
    no_sandbox_is_given_twice,
    a_killed_runner_is_told_by_its_signal,
    a_runner_that_exits_is_told_by_its_status,
    claims_over_the_maximum_wait_for_a_place,
    a_sandbox_that_is_dropped_ends,
    children_that_left_their_session_end_too,
    a_flood_is_held_back,
    a_runner_that_breaks_the_protocol_ends,
    after_shutdown_nothing_is_left_and_claims_are_refused,
    what_cannot_be_had_is_refused_at_once,
    sandboxes_die_with_the_service,
}
