//! One sandbox: its processes, its link, and the proof of its end.
//!
//! A task of its own follows each sandbox from its start until the kernel says that nothing of it is left,
//! whoever waits for that. It alone ends the processes; others ask it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seance_core::ids::SandboxId;
use seance_core::sandbox::{
    Claimed, EndReason, EndUnproven, LinkEvent, LinkReceiver, SandboxEnd, SandboxHandle,
};
use tokio::process::Child;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::SandboxState;
use super::engines::Engine;
use super::launch::{Launched, MEMORY_RESERVE_BYTES};
use super::output::{self, LastLine};
use super::pool::Listed;
use crate::confine::{Cgroup, SETUP_FAILED};
use crate::link::{self, Closed, Inbox, Link, Sender};

/// How long a runner that was asked to end may take before it is killed.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(100);
/// How long a runner whose link broke may take to end by itself.
const LINK_LOST_GRACE: Duration = Duration::from_secs(1);
/// How long the bytes that a dead runner left in the link may take to be read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a keeper is asked again to kill.
const KILL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a group that still has a process in it is tried again.
const REMOVE_INTERVAL: Duration = Duration::from_millis(20);

/// A sandbox whose runner has said hello. Ended when dropped.
pub(super) struct Sandbox {
    /// The engine that it is for.
    pub(super) engine: Arc<Engine>,
    /// What its runner says it can run, with the versions.
    pub(super) engines: Vec<(String, String)>,
    shared: Arc<Shared>,
    sender: Arc<Sender>,
    inbox: Inbox,
    handle: Arc<Handle>,
}

/// What everyone knows of a sandbox.
pub(super) struct Shared {
    pub(super) id: SandboxId,
    pub(super) keeper_pid: u32,
    is_ready: AtomicBool,
    is_claimed: AtomicBool,
    /// Nobody waits for its end any more, or somebody waited in vain.
    is_forgotten: AtomicBool,
    asked: watch::Sender<Option<SandboxEnd>>,
    link_lost: watch::Sender<bool>,
    ended: watch::Sender<Option<SandboxEnd>>,
    cgroup: Option<Cgroup>,
}

/// Starts a sandbox for an engine. On failure what was started is being ended, and the message says why.
pub(super) async fn start(
    id: SandboxId,
    engine: Arc<Engine>,
    launched: Launched,
    place: OwnedSemaphorePermit,
    listed: Listed,
    tasks: &TaskTracker,
    within: Duration,
) -> Result<Sandbox, String> {
    let Launched { mut child, link, cgroup } = launched;
    let shared = Arc::new(Shared {
        id,
        keeper_pid: child.id().unwrap_or(0),
        is_ready: AtomicBool::new(false),
        is_claimed: AtomicBool::new(false),
        is_forgotten: AtomicBool::new(false),
        asked: watch::Sender::new(None),
        link_lost: watch::Sender::new(false),
        ended: watch::Sender::new(None),
        cgroup,
    });
    let entry = listed.add(Arc::clone(&shared));
    let last_line = LastLine::default();
    let outputs = tasks.spawn(outputs(id, &mut child, last_line.clone()));
    let (attached, mut attaching) = mpsc::channel(1);
    let connection = tasks.spawn(link::serve_local(link, attached));
    let sender = Arc::new(OnceLock::new());
    let keep = Keep { shared: Arc::clone(&shared), child, connection, outputs, sender: Arc::clone(&sender) };
    tasks.spawn(async move {
        let shared = Arc::clone(&keep.shared);
        let end = keep.until_gone().await;
        // Whoever is told of the end finds it off the list and its place free.
        drop(entry);
        drop(place);
        shared.ended.send_replace(Some(end));
    });
    let handle = Arc::new(Handle { shared: Arc::clone(&shared) });
    let link = hello(&shared, &mut attaching, within).await;
    let Link { engines, sender: link_sender, inbox, .. } = match link {
        Ok(link) => link,
        Err(what) => {
            shared.ask(SandboxEnd::new(EndReason::RunnerExited));
            drop(timeout(KILL_INTERVAL, shared.gone()).await);
            let said = last_line.get();
            return Err(if said.is_empty() { what } else { format!("{what}: {said}") });
        }
    };
    let link_sender = Arc::new(link_sender);
    drop(sender.set(Arc::clone(&link_sender)));
    shared.is_ready.store(true, Ordering::Relaxed);
    Ok(Sandbox { engine, engines, shared, sender: link_sender, inbox, handle })
}

async fn hello(
    shared: &Shared,
    attaching: &mut mpsc::Receiver<Result<Link, Closed>>,
    within: Duration,
) -> Result<Link, String> {
    tokio::select! {
        link = attaching.recv() => match link {
            Some(Ok(link)) => Ok(link),
            Some(Err(Closed::Broken(breach))) => Err(breach.to_string()),
            Some(Err(Closed::Lost)) | None => Err("its link closed before it said hello".to_owned()),
        },
        end = shared.gone() => Err(end.detail),
        () = tokio::time::sleep(within) => Err(format!("it did not say hello within {within:?}")),
    }
}

fn outputs(id: SandboxId, child: &mut Child, last: LastLine) -> impl Future<Output = ()> + use<> {
    let stdout = child.stdout.take().expect("it is a pipe");
    let stderr = child.stderr.take().expect("it is a pipe");
    async move {
        tokio::join!(output::follow(id, stdout, last.clone()), output::follow(id, stderr, last));
    }
}

impl Sandbox {
    /// Whether it can still be given to a session.
    pub(super) fn is_alive(&self) -> bool {
        self.shared.asked.borrow().is_none()
            && self.shared.ended.borrow().is_none()
            && !*self.shared.link_lost.borrow()
    }

    /// Resolves when it can't be given to a session any more.
    pub(super) fn failed(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            shared.gone().await;
        }
    }

    /// Sets what its programs may use, besides a reserve for the runner.
    pub(super) fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        let limit = bytes.saturating_add(MEMORY_RESERVE_BYTES);
        self.shared.cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.limit_memory(limit))
    }

    /// Gives it away, once and for all.
    pub(super) fn into_claimed(self, engine_version: String) -> Claimed {
        let Self { shared, sender, inbox, handle, .. } = self;
        shared.is_claimed.store(true, Ordering::Relaxed);
        let id = shared.id;
        let receiver = Box::new(Receiver { shared, inbox });
        Claimed { id, engine_version, sender, receiver, handle }
    }
}

impl Shared {
    /// Asks for the end; the first reason stands.
    pub(super) fn ask(&self, end: SandboxEnd) {
        self.asked.send_if_modified(|asked| {
            let first = asked.is_none();
            if first {
                *asked = Some(end);
            }
            first
        });
    }

    /// Waits for the proof that nothing of it is left.
    pub(super) async fn gone(&self) -> SandboxEnd {
        known(&self.ended).await
    }

    pub(super) fn state(&self) -> SandboxState {
        if self.asked.borrow().is_some() {
            return SandboxState::Ending;
        }
        if self.is_claimed.load(Ordering::Relaxed) {
            return SandboxState::Claimed;
        }
        if self.is_ready.load(Ordering::Relaxed) { SandboxState::Warm } else { SandboxState::Starting }
    }

    pub(super) fn is_leaked(&self) -> bool {
        self.is_forgotten.load(Ordering::Relaxed)
    }
}

async fn known(value: &watch::Sender<Option<SandboxEnd>>) -> SandboxEnd {
    let mut values = value.subscribe();
    let known = values.wait_for(Option::is_some).await;
    known.expect("the sender is borrowed").clone().expect("it was waited for")
}

struct Receiver {
    shared: Arc<Shared>,
    inbox: Inbox,
}

#[async_trait]
impl LinkReceiver for Receiver {
    async fn recv(&mut self) -> LinkEvent {
        match self.inbox.next_frame().await {
            Ok(frame) => return LinkEvent::Frame(frame),
            Err(Closed::Broken(breach)) => {
                self.shared.ask(SandboxEnd { reason: EndReason::ProtocolBroken, detail: breach.to_string() });
            }
            Err(Closed::Lost) => drop(self.shared.link_lost.send_replace(true)),
        }
        LinkEvent::Ended(self.shared.gone().await)
    }
}

struct Handle {
    shared: Arc<Shared>,
}

#[async_trait]
impl SandboxHandle for Handle {
    async fn end(&self, reason: EndReason, within: Duration) -> Result<(), EndUnproven> {
        self.shared.ask(SandboxEnd::new(reason));
        if timeout(within, self.shared.gone()).await.is_ok() {
            return Ok(());
        }
        self.shared.is_forgotten.store(true, Ordering::Relaxed);
        let (id, pid) = (self.shared.id, self.shared.keeper_pid);
        Err(EndUnproven {
            message: format!("{id} (process {pid}) was killed {within:?} ago and still exists"),
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Ended already or asked for before, this changes nothing.
        self.shared.ask(SandboxEnd::new(EndReason::Released));
        self.shared.is_forgotten.store(true, Ordering::Relaxed);
    }
}

/// The task that follows a sandbox.
struct Keep {
    shared: Arc<Shared>,
    child: Child,
    connection: JoinHandle<()>,
    outputs: JoinHandle<()>,
    sender: Arc<OnceLock<Arc<Sender>>>,
}

impl Keep {
    async fn until_gone(mut self) -> SandboxEnd {
        let end = self.until_ended().await;
        // What the runner sent before it ended is still in the socket and comes first; nothing goes to it.
        self.connection.abort();
        finish(self.outputs).await;
        remove(self.shared.id, self.shared.cgroup.as_ref()).await;
        tracing::debug!(sandbox = %self.shared.id, reason = %end.reason, detail = end.detail, "sandbox ended");
        end
    }

    /// Waits until it ends by itself, somebody asks, or the link breaks; then sees to its end.
    async fn until_ended(&mut self) -> SandboxEnd {
        let mut link_lost = self.shared.link_lost.subscribe();
        let asked = tokio::select! {
            biased;
            status = self.child.wait() => return self.ended_by_itself(status),
            end = known(&self.shared.asked) => Some(end),
            _ = &mut self.connection => None,
            _ = link_lost.wait_for(|lost| *lost) => None,
        };
        let Some(end) = asked else { return self.end_without_link().await };
        if let Some(sender) = self.sender.get() {
            sender.shut_down();
            if let Ok(status) = timeout(SHUTDOWN_GRACE, self.child.wait()).await {
                return self.not_worse_than(end, status);
            }
        }
        let status = self.kill().await;
        self.not_worse_than(end, status)
    }

    async fn end_without_link(&mut self) -> SandboxEnd {
        tokio::select! {
            biased;
            status = self.child.wait() => return self.ended_by_itself(status),
            end = known(&self.shared.asked) => {
                let status = self.kill().await;
                return self.not_worse_than(end, status);
            }
            () = tokio::time::sleep(LINK_LOST_GRACE) => {}
        }
        let status = self.kill().await;
        self.out_of_memory(&status).unwrap_or_else(|| SandboxEnd::new(EndReason::LinkLost))
    }

    /// Asks the keeper to kill until it has. A keeper that doesn't end can't be proven to have,
    /// and keeps its place.
    async fn kill(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(pid) = self.child.id() {
                // The child isn't reaped before `wait` returns, so the number is its own.
                let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
            }
            if let Ok(status) = timeout(KILL_INTERVAL, self.child.wait()).await {
                return status;
            }
        }
    }

    fn ended_by_itself(&self, status: io::Result<ExitStatus>) -> SandboxEnd {
        let detail = describe(&status);
        self.out_of_memory(&status).unwrap_or(SandboxEnd { reason: EndReason::RunnerExited, detail })
    }

    /// The end that was asked for, unless memory had run out before.
    fn not_worse_than(&self, asked: SandboxEnd, status: io::Result<ExitStatus>) -> SandboxEnd {
        match asked.reason {
            EndReason::RunnerExited => SandboxEnd { detail: describe(&status), ..asked },
            _ => asked,
        }
    }

    fn out_of_memory(&self, status: &io::Result<ExitStatus>) -> Option<SandboxEnd> {
        let cgroup = self.shared.cgroup.as_ref()?;
        let killed = status.as_ref().is_ok_and(|status| signal_of(status) == Some(libc::SIGKILL));
        if !killed || cgroup.n_out_of_memory() == 0 {
            return None;
        }
        let peak =
            cgroup.peak_bytes().map_or_else(String::new, |bytes| format!("; its peak was {bytes} bytes"));
        let detail = format!("the sandbox reached its memory limit{peak}");
        Some(SandboxEnd { reason: EndReason::OutOfMemory, detail })
    }
}

/// Waits for a task that ends by itself once its process is gone, but not for ever.
async fn finish(mut task: JoinHandle<()>) {
    if !task.is_finished() && timeout(DRAIN_TIMEOUT, &mut task).await.is_err() {
        task.abort();
    }
}

async fn remove(id: SandboxId, cgroup: Option<&Cgroup>) {
    let Some(cgroup) = cgroup else { return };
    // The kernel takes a moment after the last process; what is in the way is in nobody's way.
    let removed = timeout(DRAIN_TIMEOUT, async {
        while cgroup.remove().is_err() {
            tokio::time::sleep(REMOVE_INTERVAL).await;
        }
    });
    if removed.await.is_err() {
        tracing::warn!(sandbox = %id, "the control group of an ended sandbox can't be removed");
    }
}

/// The signal that ended the runner, as the keeper tells it, or the keeper itself.
fn signal_of(status: &ExitStatus) -> Option<i32> {
    status.signal().or_else(|| status.code().filter(|code| *code > 128).map(|code| code - 128))
}

fn describe(status: &io::Result<ExitStatus>) -> String {
    let status = match status {
        Ok(status) => status,
        Err(error) => return format!("it can't be told how the runner ended: {error}"),
    };
    if let Some(signal) = signal_of(status) {
        let name = Signal::try_from(signal).map_or("an unknown signal", Signal::as_str);
        return format!("the runner was ended by {name}");
    }
    match status.code() {
        Some(code) if code == i32::from(SETUP_FAILED) => "the sandbox could not be made".to_owned(),
        code => format!("the runner exited with status {}", code.unwrap_or_default()),
    }
}
