//! Attempts to leave the sandbox, each from inside the real one and each a test (case 60, O17,
//! sandbox 21, 38).
//!
//! What is tested here is the outer wall: namespaces, mounts, the runner's system call filter,
//! limits and control groups. JavaScript can't make a system call at all, and its host has a
//! stricter filter of its own, which the runner's tests check; so the attempts are made by a
//! hostile runner, which has all that the outer wall leaves.

mod testee;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use seance_core::sandbox::{EndReason, LinkEvent, SandboxBackend};
use seance_sandbox::local::{Confinement, LocalBackend};
use testee::runner::Wire;
use testee::{DEADLINE, Guest, backend, eventually};

async fn attempt(source: &str, _wire: &mut Wire) -> String {
    let (what, argument) = source.split_once(' ').unwrap_or((source, ""));
    seance_hostile::attempt(what, argument)
}

/// Makes one attempt in a new sandbox.
async fn inside(what: &str) -> String {
    let backend = backend(Confinement::Required).await;
    let result = Guest::new(&backend).await.run(what).await;
    backend.shutdown(DEADLINE).await;
    assert_eq!(backend.sandboxes(), []);
    result
}

/// Every one of the answers, which are `name=answer`, is one of these.
fn all_denied(answers: &str, allowed: &[&str]) {
    assert!(!answers.is_empty());
    for answer in answers.split_whitespace() {
        let (_, answer_only) = answer.rsplit_once('=').expect("an answer has a name");
        assert!(allowed.contains(&answer_only), "{answer}, of {answers}");
    }
}

macro_rules! denied {
    ($($name:ident: $what:literal => $allowed:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() { all_denied(&inside($what).await, &$allowed); })*

        /// The attempts that are made again by an ordinary user's service.
        const DENIED: &[(&str, &[&str])] = &[$(($what, &$allowed)),*];
    };
}

denied! {
    reads_no_file_of_the_machine: "read" => ["ENOENT", "EACCES"];
    writes_nowhere_but_its_folder: "write" => ["EROFS", "EACCES", "EPERM", "ENOENT"];
    executes_no_program_of_the_machine: "exec" => ["ENOENT", "EACCES"];
    executes_nothing_it_wrote: "exec_written" => ["EACCES", "EPERM"];
    finds_no_devices: "devices" => ["ENOENT", "EPERM", "EACCES"];
    makes_no_device: "mknod" => ["EPERM"];
    finds_no_settings_of_the_kernel: "kernel_files" => ["ENOENT"];
    leaves_its_root_by_no_descriptor: "dotdot" => ["ENOENT", "EPERM"];
    opens_no_socket_of_any_family: "sockets" => ["EPERM"];
    has_no_pair_but_unix: "pairs" => ["EPERM"];
    makes_no_namespace: "namespaces" => ["EPERM", "ENOSYS"];
    mounts_nothing: "mounts" => ["EPERM"];
    traces_nothing: "trace" => ["EPERM"];
    reads_no_keys: "keys" => ["EPERM"];
    loads_nothing_into_the_kernel: "kernel" => ["EPERM"];
    sets_no_clock_and_no_name: "machine" => ["EPERM"];
    gains_no_identity: "identity" => ["EPERM"];
    types_nothing_into_a_terminal: "terminal" => ["EPERM"];
    raises_no_limit: "raise_limits" => ["EPERM"];
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sees_only_its_own_root() {
    let listed = inside("list /").await;
    for name in listed.split_whitespace() {
        assert!(["dev", "lib", "lib64", "usr", "proc", "seance", "tmp", "work"].contains(&name), "{listed}");
    }
    assert_eq!(inside("list /dev").await, "null random urandom zero");
}

/// Another user's file, and the service's own folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_no_file_of_the_service() {
    let path = std::env::temp_dir().join(format!("seance-secret-{}", std::process::id()));
    std::fs::write(&path, "secret").unwrap();
    let result = inside(&format!("read_one {}", path.display())).await;
    std::fs::remove_file(&path).unwrap();
    assert_eq!(result, "ENOENT");
    let binary = std::env::current_exe().unwrap();
    assert_eq!(inside(&format!("read_one {}", binary.display())).await, "ENOENT");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sees_no_process_but_its_own() {
    assert_eq!(inside("processes").await, "1");
    let service = std::process::id();
    assert_eq!(inside(&format!("read_one /proc/{service}/environ")).await, "ENOENT");
    assert_eq!(inside("parent").await, "0");
}

/// Without it a runner's limits on a host's memory, threads and turns would hold nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_can_measure_its_hosts() {
    assert_eq!(inside("measure_child").await, "OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_no_process_outside() {
    assert_eq!(inside(&format!("kill {}", std::process::id())).await, "ESRCH");
    assert_eq!(inside("kill -1").await, "ESRCH");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn has_an_empty_environment() {
    assert_eq!(inside("environment").await, "0 0");
}

/// A descriptor that the service left open for its children, as a library might.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inherits_no_descriptor() {
    let mut secret = tempfile();
    secret.write_all(b"secret").unwrap();
    // SAFETY: clears the flag of a descriptor of ours.
    assert_eq!(unsafe { libc::fcntl(secret.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    let descriptors = inside("descriptors").await;
    for descriptor in descriptors.split_whitespace() {
        let (number, target) = descriptor.split_once('=').unwrap();
        let harmless = ["pipe:", "socket:", "anon_inode:", "/dev/null"].iter().any(|p| target.starts_with(p));
        assert!(harmless, "{number} is {target}");
    }
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("seance-descriptor-{}", std::process::id()));
    let file = std::fs::File::options().write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn has_no_capability_and_can_gain_none() {
    let status = inside("status").await;
    for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{field}:0000000000000000")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:1") && status.contains("Seccomp:2"), "{status}");
    assert!(status.contains("Groups: ") || status.contains("Groups:65534"), "{status}");
}

/// Root's service runs programs as a user that owns nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_not_root_outside() {
    let backend = backend(Confinement::Required).await;
    let keeper = backend.sandboxes()[0].keeper_pid;
    let runner = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", runner.trim())).unwrap();
    let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert!(uid.split_whitespace().skip(1).all(|uid| uid != "0"), "{uid}");
    backend.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn has_a_name_and_a_network_of_its_own() {
    assert_eq!(inside("hostname").await, "sandbox");
    assert_eq!(inside("interfaces").await, "lo");
}

async fn bomb(what: &str) -> (LocalBackend, Guest, u64) {
    let backend = backend(Confinement::Required).await;
    let mut guest = Guest::new(&backend).await;
    let n = guest.run(what).await.parse().expect("the bomb counts");
    (backend, guest, n)
}

/// Sandbox 38: and every one of them is dead when the end is proven.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_is_contained_and_ends() {
    let (backend, guest, n) = bomb("forks").await;
    assert!((1..=320).contains(&n), "{n} processes");
    guest.claimed.handle.end(EndReason::Released, DEADLINE).await.unwrap();
    backend.shutdown(DEADLINE).await;
    assert_eq!((backend.sandboxes(), backend.n_leaked()), (vec![], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_bomb_is_contained() {
    let (backend, _guest, n) = bomb("threads").await;
    assert!((1..=320).contains(&n), "{n} threads");
    backend.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_its_own() {
    let (backend, mut guest, n) = bomb("fill_bytes").await;
    assert!((1 << 20..=4 << 20).contains(&n), "{n} bytes");
    let n: u64 = guest.run("fill_files").await.parse().unwrap();
    assert!((1..=4096).contains(&n), "{n} files");
    backend.shutdown(DEADLINE).await;
}

/// By control group, where the service may make them; without, by the runner's own limits, which
/// are not this wall's.
fn memory_is_limited(backend: &LocalBackend) -> bool {
    backend.confinement().iter().any(|name| name.starts_with("cgroup-v"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_bomb_in_a_child_kills_the_child() {
    let backend = backend(Confinement::Required).await;
    if memory_is_limited(&backend) {
        let mut guest = Guest::new(&backend).await;
        assert_eq!(guest.run("memory_child").await, "SIGKILL");
        assert_eq!(guest.run("parent").await, "0", "the runner goes on");
    }
    backend.shutdown(DEADLINE).await;
}

/// Sandbox 21: typed, once, with the limit's name and the peak.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_bomb_in_the_runner_is_out_of_memory() {
    let backend = backend(Confinement::Required).await;
    if memory_is_limited(&backend) {
        let mut guest = Guest::new(&backend).await;
        guest.start("memory").await;
        let LinkEvent::Ended(end) = guest.event().await else { panic!("it goes on") };
        assert_eq!(end.reason, EndReason::OutOfMemory, "{end:?}");
        assert!(end.detail.contains("peak"), "{end:?}");
    }
    backend.shutdown(DEADLINE).await;
}

/// The same wall, built by a service without root's rights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_users_service_confines_as_well() {
    use std::os::unix::process::CommandExt;
    if !nix::unistd::geteuid().is_root() {
        // Then every other test here was this one.
        return;
    }
    let mut service = Command::new("/proc/self/exe");
    service.args(["service", "Required", "ordinary"]).uid(65534).gid(65534).env_clear();
    let output = service.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("all denied"), "{said}");
}

/// The service of the test above.
pub async fn service(confinement: Confinement, _name: &str) {
    let backend = backend(confinement).await;
    let mut guest = Guest::new(&backend).await;
    for (what, allowed) in DENIED {
        all_denied(&guest.run(what).await, allowed);
    }
    assert_eq!(guest.run("processes").await, "1");
    assert_eq!(guest.run("environment").await, "0 0");
    assert_eq!(guest.run("hostname").await, "sandbox");
    let n: u64 = guest.run("forks").await.parse().unwrap();
    assert!((1..=320).contains(&n), "{n} processes");
    guest.claimed.handle.end(EndReason::Released, DEADLINE).await.unwrap();
    backend.shutdown(DEADLINE).await;
    eventually(|| backend.sandboxes().is_empty()).await;
    println!("all denied");
}
