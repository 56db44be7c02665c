//! Looks whether the ways out of the sandbox are closed: dials what must not be reached, and tries
//! how many tasks there can be.
//!
//! What came of it is told, never judged: the service knows which targets listen and what the pool
//! accepts. In a pod that is hostile nothing told from here is worth anything; it is worth
//! something before the first program runs, which is when it decides.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use seance_proto::link::v1alpha1::{IsolationCheck, IsolationOutcome, IsolationReport};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::config::Isolation as Config;

/// How long a target may take to answer.
const TRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Until the next look, while a way is open: policies take a moment to hold.
const INTERVAL_OPEN: Duration = Duration::from_secs(1);
/// Until the next look otherwise.
const INTERVAL: Duration = Duration::from_secs(5);
/// The control groups of a process, and where they are mounted.
const GROUPS: &str = "/proc/self/cgroup";
const MOUNT: &str = "/sys/fs/cgroup";
/// A limit on tasks is one when no more of them can be there. More is room for harm, not for a
/// session; and to try more would cost the pod's memory: a waiting thread takes some 25 KiB.
const TASKS_MAX: usize = 1_024;
/// The stack of a thread that only waits; the least that is allowed everywhere.
const WAITING_STACK_BYTES: usize = 16 << 10;
/// The check of the limit on processes.
const PIDS_LIMIT: &str = "pids-limit";
/// The check whose target is also asked by datagram.
const RESOLVER: &str = "resolver";
/// A query for the root's name servers: the shortest that every resolver answers.
const QUERY: [u8; 17] = [0x5e, 0xa2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// Looks again and again.
pub struct Isolation {
    config: Config,
    has_pids_limit: bool,
    next: Instant,
    round: Option<Pin<Box<dyn Future<Output = Vec<IsolationCheck>> + Send>>>,
}

impl Isolation {
    /// Looks for the limit on processes at once, and for the rest in [`Self::report`].
    ///
    /// For some milliseconds there may be no task left to have: nothing else may start one now.
    pub fn new(config: Config) -> Self {
        let has_pids_limit = has_pids_limit(Path::new(GROUPS), Path::new(MOUNT)) || is_limited(TASKS_MAX);
        Self { config, has_pids_limit, next: Instant::now(), round: None }
    }

    /// Whether a session may be taken as far as the limit on processes goes.
    pub fn may_serve(&self) -> bool {
        self.has_pids_limit || self.config.accepts_no_pids_limit
    }

    /// The next report, when it is due. Losing this future loses nothing.
    pub async fn report(&mut self) -> IsolationReport {
        if self.round.is_none() {
            tokio::time::sleep_until(self.next).await;
            let tries = self.config.targets.clone().into_iter().map(|(name, address)| check(name, address));
            self.round = Some(Box::pin(futures::future::join_all(tries)));
        }
        let round = self.round.as_mut().expect("set above");
        let mut checks = round.await;
        self.round = None;
        let is_open = checks.iter().any(|check| check.outcome == IsolationOutcome::Open as i32);
        self.next = Instant::now() + if is_open { INTERVAL_OPEN } else { INTERVAL };
        let pids = if self.has_pids_limit { IsolationOutcome::Limited } else { IsolationOutcome::Open };
        let (name, address) = (PIDS_LIMIT.to_owned(), String::new());
        checks.push(IsolationCheck { name, address, outcome: pids.into() });
        let memory_peak_bytes = memory_peak_bytes(Path::new(GROUPS), Path::new(MOUNT));
        IsolationReport { checks, memory_peak_bytes }
    }
}

async fn check(name: String, address: SocketAddr) -> IsolationCheck {
    let mut outcome = dial(address).await;
    if name == RESOLVER && outcome != IsolationOutcome::Open && asks(address).await {
        outcome = IsolationOutcome::Open;
    }
    IsolationCheck { name, address: address.to_string(), outcome: outcome.into() }
}

async fn dial(address: SocketAddr) -> IsolationOutcome {
    match timeout(TRY_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => IsolationOutcome::Open,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => IsolationOutcome::Refused,
        // Unreachable, prohibited, or nothing at all.
        Ok(Err(_)) | Err(_) => IsolationOutcome::Silent,
    }
}

/// Whether a resolver answers a datagram.
async fn asks(address: SocketAddr) -> bool {
    let any: SocketAddr = if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let asked = async {
        let socket = UdpSocket::bind(any).await?;
        socket.connect(address).await?;
        socket.send(&QUERY).await?;
        socket.recv(&mut [0; 512]).await
    };
    matches!(timeout(TRY_TIMEOUT, asked).await, Ok(Ok(_)))
}

/// Whether a control group that can be seen from here has a finite limit on its processes. The own
/// one is looked at and those above it, of version 1 and 2.
fn has_pids_limit(groups: &Path, mount: &Path) -> bool {
    own_groups(groups, mount, "pids").iter().any(|group| number(&group.join("pids.max")).is_some())
}

/// Whether the system refuses to have `tasks_max` more tasks here at once. Where the limit is set on
/// a group that can't be seen, as the kubelet does it with a pod, trying is the only way to know.
fn is_limited(tasks_max: usize) -> bool {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        (0..tasks_max).any(|_| {
            let waiting = thread::Builder::new().stack_size(WAITING_STACK_BYTES);
            waiting.spawn_scoped(scope, || drop(gate.lock())).is_err()
        })
    })
}

/// The most memory that the own control group has used; 0 where it can't be told.
fn memory_peak_bytes(groups: &Path, mount: &Path) -> u64 {
    let files = ["memory.peak", "memory.max_usage_in_bytes"];
    let own = own_groups(groups, mount, "memory");
    own.iter()
        .flat_map(|group| files.map(|file| group.join(file)))
        .find_map(|file| number(&file))
        .unwrap_or(0)
}

/// The own control group of a controller and those above it that can be seen, the own first.
fn own_groups(groups: &Path, mount: &Path, controller: &str) -> Vec<PathBuf> {
    let Ok(groups) = std::fs::read_to_string(groups) else { return Vec::new() };
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let root = match controllers {
            "" => mount.to_owned(),
            controllers if controllers.split(',').any(|name| name == controller) => mount.join(controller),
            _ => return None,
        };
        // In a namespace of its own, the group is what is mounted.
        let own = root.join(path.trim_start_matches('/'));
        let seen = own.ancestors().take_while(|group| group.starts_with(&root));
        Some(seen.map(Path::to_owned).collect::<Vec<_>>())
    };
    groups.lines().filter_map(of_line).flatten().collect()
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_open_target_is_told_from_a_refused_one() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        assert_eq!(dial(open).await, IsolationOutcome::Open);
        drop(listener);
        assert_eq!(dial(open).await, IsolationOutcome::Refused);
    }

    /// A resolver that takes only datagrams is as open as one that takes connections.
    #[tokio::test]
    async fn a_resolver_is_asked_by_datagram_too() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let answer = async {
            let (_, from) = socket.recv_from(&mut [0; 64]).await.unwrap();
            socket.send_to(b"x", from).await.unwrap();
        };
        let (checked, ()) = tokio::join!(check(RESOLVER.to_owned(), address), answer);
        assert_eq!(checked.outcome, IsolationOutcome::Open as i32);
    }

    #[test]
    fn without_a_limit_as_many_tasks_as_are_tried_are_to_be_had() {
        assert!(!is_limited(64));
    }

    #[test]
    fn a_limit_above_the_own_group_counts() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("pod/container");
        std::fs::create_dir_all(&group).unwrap();
        let groups = dir.path().join("groups");
        std::fs::write(&groups, "0::/pod/container\n").unwrap();
        std::fs::write(group.join("pids.max"), "max\n").unwrap();
        assert!(!has_pids_limit(&groups, dir.path()));
        std::fs::write(dir.path().join("pod/pids.max"), "1024\n").unwrap();
        assert!(has_pids_limit(&groups, dir.path()));
        std::fs::write(group.join("memory.peak"), "4096\n").unwrap();
        assert_eq!(memory_peak_bytes(&groups, dir.path()), 4096);
        std::fs::write(&groups, "3:cpu,cpuacct:/pod\n").unwrap();
        assert_eq!(memory_peak_bytes(&groups, dir.path()), 0);
        assert!(!has_pids_limit(&groups, dir.path()));
    }
}
