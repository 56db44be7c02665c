//! Starts keepers, all from one thread: a keeper dies with the thread that started it, so that
//! thread must live as long as the backend.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;

use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::engines::Engine;
use super::{Config, Confinement};
use crate::confine::{
    Cgroup, Controllers, INIT_COMMAND, LINK_FD, Mode, Plan, Program, RUNNER_PATH, mode, needed_by,
};

/// Starts that wait for the thread; more wait in the callers.
const WAITING_MAX: usize = 16;
/// Memory of a sandbox beyond its programs': the runner, the next host and what is buffered.
pub(super) const MEMORY_RESERVE_BYTES: u64 = 256 << 20;
/// Processes and threads of a sandbox, a little over what its own limit says: that one tells a
/// program, this one stops what got around it.
const PROCESSES_MAX: u64 = 320;
/// Memory for programs before a session has said how much.
const MEMORY_BYTES_WARM: u64 = 128 << 20;

/// Makes processes.
pub(super) struct Launcher {
    init: Program,
    plan: Plan,
    controllers: Option<Controllers>,
    requests: mpsc::Sender<Request>,
}

/// A keeper that was started.
pub(super) struct Launched {
    pub(super) child: Child,
    pub(super) link: UnixStream,
    pub(super) cgroup: Option<Cgroup>,
}

struct Request {
    command: Command,
    reply: oneshot::Sender<io::Result<Child>>,
}

impl Launcher {
    /// Starts the thread.
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        let confined = config.confinement == Confinement::Required;
        let plan = Plan {
            parent: std::process::id(),
            mode: if confined { mode()? } else { Mode::Unconfined },
            scratch_bytes: config.scratch_bytes,
            files: if confined { needed_by(&config.runner.path)? } else { Vec::new() },
            cgroups: Vec::new(),
            check_only: false,
            program: config.runner.path.clone(),
            args: runner_args(&config.runner, confined),
        };
        let (requests, queue) = mpsc::channel(WAITING_MAX);
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("sandbox-launch".to_owned());
        // It ends when the backend drops its sender.
        thread.spawn(move || launch_all(&runtime, queue))?;
        Ok(Self {
            init: config.init.clone(),
            plan,
            controllers: if confined { Controllers::detect() } else { None },
            requests,
        })
    }

    /// Starts a keeper and with it a runner for this engine. Its outputs are pipes.
    pub(super) async fn launch(&self, engine: &Engine) -> io::Result<Launched> {
        let memory = MEMORY_BYTES_WARM + MEMORY_RESERVE_BYTES;
        let cgroup = self.controllers.as_ref().map(|c| c.create(memory, PROCESSES_MAX));
        let cgroup = cgroup.transpose()?;
        let result = self.launch_in(engine, cgroup.as_ref()).await;
        match result {
            Ok((child, link)) => Ok(Launched { child, link, cgroup }),
            Err(error) => {
                if let Some(cgroup) = &cgroup {
                    cgroup.remove()?;
                }
                Err(error)
            }
        }
    }

    async fn launch_in(&self, engine: &Engine, cgroup: Option<&Cgroup>) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let link = UnixStream::from_std(ours)?;
        let cgroups = cgroup.map(Cgroup::folders).unwrap_or_default();
        let mut plan = Plan { cgroups, ..self.plan.clone() };
        plan.args.extend(engine.args());
        if plan.mode != Mode::Unconfined {
            plan.files.extend(engine.files.iter().filter(|file| !self.plan.files.contains(file)).cloned());
        }
        let mut command = Command::new(&self.init.path);
        command.args(&self.init.args).arg(INIT_COMMAND).args(plan.to_args());
        command.env_clear().stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let (reply, child) = oneshot::channel();
        let gone = || io::Error::other("the launching thread has ended");
        self.requests.send(Request { command, reply }).await.map_err(|_| gone())?;
        Ok((child.await.map_err(|_| gone())??, link))
    }
}

fn launch_all(runtime: &Handle, mut requests: mpsc::Receiver<Request>) {
    let _in_runtime = runtime.enter();
    while let Some(Request { mut command, reply }) = requests.blocking_recv() {
        // A caller that gave up drops the child, which kills it.
        drop(reply.send(command.spawn()));
    }
}

fn runner_args(runner: &Program, confined: bool) -> Vec<std::ffi::OsString> {
    let path = if confined { RUNNER_PATH.into() } else { runner.path.clone().into_os_string() };
    let mut args = runner.args.clone();
    args.extend(["runner".into(), "--link-fd".into(), LINK_FD.to_string().into(), "--self-exe".into(), path]);
    for prefix in &runner.args {
        args.extend(["--host-prefix".into(), prefix.clone()]);
    }
    args
}
