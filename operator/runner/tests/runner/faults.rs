//! What goes wrong with hosts, by themselves or on purpose, and how it is told.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seance_proto::codec;
use seance_proto::host::v1alpha1::{Ended, FromHost, Ready, Text, ToolCall, from_host};
use seance_proto::link::v1alpha1::{HostEnd, OutputSource, ProgramEnded};

use crate::service::{FromRunner, Options, Service, spawn};

/// I4, K9: the wall limit holds without anyone looking, also where nothing else can.
#[tokio::test]
async fn the_wall_limit_ends_a_waiting_program() {
    let mut service = Service::assigned(Options::default()).await;
    let asked = Instant::now();
    service.execute_with(1, "await tools.wait()", |execute| execute.wall_ms = 300).await;
    assert_eq!(service.ended().await.end(), HostEnd::WallLimit);
    assert!(asked.elapsed() >= Duration::from_millis(300) && asked.elapsed() < Duration::from_millis(1500));
    assert_eq!(service.value(2, "2").await, "2");
}

/// Case 49: a bomb is told, and the next program runs.
#[tokio::test]
async fn the_session_survives_a_memory_bomb() {
    let mut service = Service::assigned(Options::default()).await;
    service.execute(1, "const a=[]; for(;;) a.push(new Array(1e6).fill(1))").await;
    let ended = service.ended().await;
    assert_eq!(ended.report.unwrap().error.unwrap().code, "memory_limit");
    assert_eq!(service.value(2, "2").await, "2");
}

/// Case 46: where the interpreter does not look at its clock, the runner does.
#[tokio::test]
async fn a_turn_that_does_not_stop_is_ended_from_outside() {
    let mut service = Service::assigned(Options::default()).await;
    let source = "const digits = '9'.repeat(3e7); BigInt(digits) * BigInt(digits)";
    let limits = |execute: &mut seance_proto::link::v1alpha1::Execute| {
        let mut limits = crate::service::limits();
        (limits.turn_ms, limits.memory_bytes) = (200, 512 * 1024 * 1024);
        execute.limits = Some(limits);
    };
    service.execute_with(1, source, limits).await;
    let ended = service.ended().await;
    let code =
        ended.report.as_ref().and_then(|report| report.error.as_ref()).map(|error| error.code.as_str());
    assert!(
        ended.end() == HostEnd::TurnLimit || matches!(code, Some("turn_limit" | "exception")),
        "{ended:?}"
    );
    assert_eq!(service.value(2, "2").await, "2");
}

/// Case 57, I15: a host that dies at work is lost, naming the signal.
#[tokio::test]
async fn a_host_killed_at_work_is_lost_with_its_signal() {
    let mut service = Service::assigned(Options::default()).await;
    service.execute(1, "text('a'); await tools.wait()").await;
    while !matches!(service.next().await, FromRunner::ToolCall(_)) {}
    let running = service.running_host();
    kill(Pid::from_raw(running), Signal::SIGKILL).unwrap();
    let ended = service.ended().await;
    assert_eq!((ended.end(), ended.signal.as_str()), (HostEnd::Lost, "SIGKILL"));
    assert!(ended.report.is_none());
    assert_eq!(service.value(2, "2").await, "2");
}

/// I14: a host that dies between programs is told of, and the next program runs.
#[tokio::test]
async fn a_host_killed_between_programs_is_replaced() {
    let mut service = Service::assigned(Options::default()).await;
    let [_, mut used] = service.settled(0).await;
    assert_eq!(service.value(1, "1").await, "1");
    for program in 2..5 {
        let [_, spare] = service.settled(used).await;
        kill(Pid::from_raw(spare), Signal::SIGKILL).unwrap();
        loop {
            if let FromRunner::HostExited(exited) = service.next().await {
                assert_eq!((exited.signal.as_str(), exited.stderr_bytes), ("SIGKILL", 0));
                break;
            }
        }
        [_, used] = service.settled(spare).await;
        assert_eq!(service.value(program, "3").await, "3");
    }
}

/// Section 7: the warm parent is only a means. When it dies, the ready host is used and another
/// parent is started for the next one.
#[tokio::test]
async fn a_warm_parent_that_is_killed_is_replaced() {
    let mut service = Service::assigned(Options::default()).await;
    let mut used = 0;
    for program in 1..4 {
        let [parent, spare] = service.settled(used).await;
        used = spare;
        kill(Pid::from_raw(parent), Signal::SIGKILL).unwrap();
        loop {
            if let FromRunner::HostExited(exited) = service.next().await {
                assert_eq!(exited.signal, "SIGKILL");
                break;
            }
        }
        assert_eq!(service.value(program, "3").await, "3");
        assert_ne!(service.processes().first(), Some(&parent));
    }
}

/// Section 7: hosts are forked from one process, and each has a randomness of its own.
#[tokio::test]
async fn programs_do_not_share_their_randomness() {
    let mut service = Service::assigned(Options::default()).await;
    let mut seen = std::collections::BTreeSet::new();
    for program in 1..6 {
        seen.insert(service.value(program, "[Math.random(), Math.random()]").await);
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
}

/// I16: a host that cannot start is told of by its status and the size of what it said.
#[test]
fn a_runner_whose_hosts_cannot_start_says_so_and_exits() {
    let script = script("#!/bin/sh\necho 'a secret' >&2\nexit 7\n");
    let (_service, link) = std::os::unix::net::UnixStream::pair().unwrap();
    let runner = spawn(&link.into(), &[script.1.into_os_string()], Stdio::piped());
    let output = runner.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("status 7") && said.contains("9 bytes") && !said.contains("secret"), "{said}");
}

/// J14, I22, L4, L8, case 58: whatever a host sends harms its own program only.
#[tokio::test]
async fn a_hostile_host_only_ends_its_own_program() {
    let call = |call: u64| {
        from_host::Frame::ToolCall(ToolCall {
            call,
            tool: "echo".to_owned(),
            arguments_json: "{}".to_owned(),
        })
    };
    let ended = || from_host::Frame::Ended(Ended { value_json: Some("1".to_owned()), ..Ended::default() });
    let ready = from_host::Frame::Ready(Ready { engine_version: "x".to_owned() });
    let flood = (1..=9).flat_map(|n| frame(call(n))).collect();
    for (what, bytes) in [
        ("a length over the limit", vec![0xff, 0xff, 0xff, 0xff]),
        ("garbage", vec![0, 0, 0, 3, 0xff, 0xff, 0xff]),
        ("an unknown kind", vec![0, 0, 0, 0]),
        ("ready twice", frame(ready)),
        ("a call number out of order", frame(call(2))),
        ("a call number used twice", [frame(call(1)), frame(call(1))].concat()),
        ("a flood of calls", flood),
        ("a second end", [frame(ended()), frame(ended())].concat()),
        ("text after the end", [frame(ended()), frame(from_host::Frame::Text(Text::default()))].concat()),
        ("a cancelled call that was not made", frame(from_host::Frame::CancelCall(Default::default()))),
    ] {
        let ended = hostile(&bytes, "cat >/dev/null").await;
        assert_eq!(ended.end(), HostEnd::Protocol, "{what}: {ended:?}");
        assert!(ended.report.is_none() && !ended.detail.is_empty(), "{what}: {ended:?}");
    }
    let truncated = hostile(&[0, 0, 0, 9, 1], "exit 3").await;
    assert_eq!((truncated.end(), truncated.exit_status), (HostEnd::Lost, 3), "{truncated:?}");
}

/// A host that says it is done and stays is ended at once; what it said counts (I21).
#[tokio::test]
async fn a_host_that_does_not_go_is_ended() {
    let bytes =
        frame(from_host::Frame::Ended(Ended { value_json: Some("1".to_owned()), ..Ended::default() }));
    let script = hostile_script(&bytes, "exec sleep 60");
    let mut service = Service::assigned(Options { host_script: Some(script.1.clone()) }).await;
    let [_, host] = service.settled(0).await;
    service.execute(1, "").await;
    let ended = service.ended().await;
    assert_eq!((ended.end(), ended.signal.as_str(), ended.exit_status), (HostEnd::Reported, "", 0));
    assert!(ended.wall_us < 5_000_000 && ended.cpu_us > 0 && ended.peak_memory_bytes > 0, "{ended:?}");
    let deadline = Instant::now() + Duration::from_secs(5);
    while service.processes().contains(&host) {
        assert!(Instant::now() < deadline, "the host is still there");
        tokio::task::yield_now().await;
    }
}

/// Case 58, sandbox 37: stray output is output, whole and before the end; what a host leaves behind
/// is killed.
#[tokio::test]
async fn stray_output_is_output_and_nothing_is_left_behind() {
    let script = hostile_script(
        &[],
        "(sleep 60; echo late) & setsid sleep 61 & printf 'out\\000\\377'; printf err >&2; exit 5",
    );
    let mut service = Service::assigned(Options { host_script: Some(script.1.clone()) }).await;
    service.execute(1, "").await;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let ended = loop {
        match service.next().await {
            FromRunner::Output(output) if output.source() == OutputSource::Stdout => out.extend(output.data),
            FromRunner::Output(output) if output.source() == OutputSource::Stderr => err.extend(output.data),
            FromRunner::ProgramEnded(ended) => break ended,
            _ => {}
        }
    };
    assert_eq!((out.as_slice(), err.as_slice()), (&b"out\0\xff"[..], &b"err"[..]));
    assert_eq!((ended.end(), ended.exit_status), (HostEnd::Lost, 5));
    let deadline = Instant::now() + Duration::from_secs(5);
    // The warm parent and the next host stay.
    while service.processes().len() > 2 {
        assert!(Instant::now() < deadline, "left behind: {:?}", service.processes());
        tokio::task::yield_now().await;
    }
}

/// O24: output over the limit ends the program with what came before.
#[tokio::test]
async fn stray_output_counts_against_the_output_limit() {
    let script = hostile_script(&[], "while :; do echo 0123456789; done");
    let mut service = Service::assigned(Options { host_script: Some(script.1.clone()) }).await;
    service.execute_with(1, "", |execute| execute.limits.as_mut().unwrap().output_bytes = 100_000).await;
    assert_eq!(service.ended().await.end(), HostEnd::OutputLimit);
}

/// Section 7, O17: a host has its streams, its socket and nothing else, and is confined before it
/// is ready.
#[tokio::test]
async fn hosts_are_confined_and_have_nothing_to_reach() {
    let service = Service::assigned(Options::default()).await;
    let [_, host] = service.settled(0).await;
    let mut open: Vec<i32> = std::fs::read_dir(format!("/proc/{host}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    open.sort_unstable();
    assert_eq!(open, [0, 1, 2, 3]);
    assert!(std::fs::read(format!("/proc/{host}/environ")).unwrap().is_empty());
    let status = std::fs::read_to_string(format!("/proc/{host}/status")).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} not in {status}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{host}/limits")).unwrap();
    let limit = |name: &str| limits.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(limit("Max open files").contains(" 16 ") && limit("Max file size").contains(" 0 "));
    let session = |pid: i32| nix::unistd::getsid(Some(Pid::from_raw(pid))).unwrap();
    assert_eq!(session(host).as_raw(), host);
}

/// Runs one program with a host that is ready, sends these bytes when it gets its program, and
/// then does as the shell says.
async fn hostile(bytes: &[u8], then: &str) -> ProgramEnded {
    let script = hostile_script(bytes, then);
    let mut service = Service::assigned(Options { host_script: Some(script.1.clone()) }).await;
    service.execute(1, "").await;
    loop {
        match service.next().await {
            FromRunner::ProgramEnded(ended) => return ended,
            FromRunner::Refused(refused) => panic!("{refused:?}"),
            _ => {}
        }
    }
}

fn hostile_script(bytes: &[u8], then: &str) -> (tempfile::TempDir, PathBuf) {
    let ready = frame(from_host::Frame::Ready(Ready { engine_version: "hostile".to_owned() }));
    let octal = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\{byte:03o}")).collect::<String>();
    let (ready, bytes) = (octal(&ready), octal(bytes));
    // Reading one byte waits for the program; the rest of it stays unread.
    script(&format!(
        "#!/bin/sh\nprintf '{ready}' >&3\nhead -c 1 <&3 >/dev/null\nprintf '{bytes}' >&3\n{then}\n"
    ))
}

fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(file);
    (folder, path)
}

fn frame(frame: from_host::Frame) -> Vec<u8> {
    codec::encode(&FromHost { frame: Some(frame) }).unwrap().to_vec()
}
