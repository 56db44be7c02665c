//! How a local process is confined before it becomes a runner.
//!
//! The service starts its own binary again with [`INIT_COMMAND`]. That process, the *keeper*,
//! stays outside: it makes the namespaces, forks the first process of the new PID namespace,
//! which confines itself and executes the runner, and waits for it. When the keeper has ended,
//! the kernel has ended everything inside: that is the proof that a sandbox is gone. A SIGTERM to
//! the keeper kills the inside; the keeper's own death does too, and so does the service's.
//!
//! With root's rights everything is mounted by root and the user namespace is made last, so that
//! nothing inside has rights over the mounts; without, the user namespace comes first and gives
//! the rights that the other steps need. Both end in the same place.

mod cgroup;
mod files;
mod keeper;
mod libraries;
mod limits;
mod plan;
mod privileges;
mod probe;
mod syscalls;

use std::ffi::{CString, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{ForkResult, fork};

pub(crate) use cgroup::{Cgroup, Controllers};
pub(crate) use libraries::needed_by;
pub(crate) use plan::{Mode, Plan};
pub(crate) use probe::mode;
pub use probe::{APPARMOR_PROFILE, Missing, Probe, Program, probe};

/// The hidden command that makes the service's binary the keeper of a sandbox.
pub const INIT_COMMAND: &str = "sandbox-init";
/// Where the runner finds its end of the link.
pub const LINK_FD: i32 = 3;
/// Where the runner's binary is inside.
pub const RUNNER_PATH: &str = "/seance";
/// The keeper's exit status when the sandbox could not be made.
pub(crate) const SETUP_FAILED: u8 = 125;

/// A step of the confinement that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub(crate) struct Error {
    /// What was being done, one of the names that [`probe`] knows remedies for.
    pub(crate) step: &'static str,
    #[source]
    pub(crate) source: std::io::Error,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Names the step that failed.
pub(crate) trait At<T> {
    fn at(self, step: &'static str) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> At<T> for std::result::Result<T, E> {
    fn at(self, step: &'static str) -> Result<T> {
        self.map_err(|error| Error { step, source: error.into() })
    }
}

/// The whole life of a keeper. `args` are those after [`INIT_COMMAND`].
///
/// To be called before the process has started a thread or opened anything. Ends with the exit status of
/// the runner, 128 and the signal's number when a signal ended it, or 125 when the sandbox could
/// not be made, with the step and the cause on standard error.
pub fn init_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = Plan::from_args(args).and_then(|plan| run(&plan));
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{INIT_COMMAND}: {error}");
            ExitCode::from(SETUP_FAILED)
        }
    }
}

fn run(plan: &Plan) -> Result<u8> {
    keeper::hold_signals()?;
    keeper::die_with(plan)?;
    keeper::take_descriptors()?;
    let (alive, watched) = nix::unistd::pipe().at("pipe")?;
    if plan.mode == Mode::Unconfined {
        keeper::adopt_orphans()?;
    } else {
        separate(plan)?;
    }
    // SAFETY: this process has one thread, so the child may do anything.
    match unsafe { fork() }.at("fork")? {
        ForkResult::Parent { child } => {
            drop(watched);
            let status = keeper::wait(child, plan.mode == Mode::Unconfined);
            drop(alive);
            status
        }
        ForkResult::Child => {
            drop(alive);
            inside(plan, watched)
        }
    }
}

fn separate(plan: &Plan) -> Result<()> {
    if plan.mode == (Mode::Confined { uid: None }) {
        privileges::enter_user_namespace()?;
    }
    let flags = CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    unshare(flags).at("namespaces")
}

/// The process that becomes the runner. Comes back only with an error, or to report a check.
fn inside(plan: &Plan, watched: OwnedFd) -> Result<u8> {
    let mut in_force = vec!["rlimits"];
    if let Mode::Confined { uid } = plan.mode {
        in_force.extend(confine(plan, uid)?);
    } else {
        limits::apply_unconfined()?;
    }
    if plan.check_only {
        println!("{}", in_force.join(" "));
        return Ok(0);
    }
    keeper::release_signals()?;
    keeper::die_with_keeper(watched)?;
    let program = prepare(plan)?;
    if plan.mode != Mode::Unconfined {
        syscalls::apply()?;
    }
    program.execute()
}

fn confine(plan: &Plan, uid: Option<u32>) -> Result<Vec<&'static str>> {
    let mut in_force = vec![
        "user-namespace",
        "pid-namespace",
        "mount-namespace",
        "network-namespace",
        "ipc-namespace",
        "uts-namespace",
        "seccomp",
    ];
    for cgroup in &plan.cgroups {
        std::fs::write(cgroup.join("cgroup.procs"), "0").at("cgroup")?;
    }
    if unshare(CloneFlags::CLONE_NEWCGROUP).is_ok() {
        in_force.push("cgroup-namespace");
    }
    files::enter(plan, uid)?;
    nix::unistd::sethostname("sandbox").at("hostname")?;
    privileges::leave_keyring()?;
    if let Some(uid) = uid {
        privileges::become_nobody(uid)?;
        privileges::enter_user_namespace()?;
    }
    limits::apply(plan.scratch_bytes)?;
    privileges::drop_all()?;
    if files::restrict()? {
        in_force.push("landlock");
    }
    Ok(in_force)
}

/// A program ready to be executed, so that nothing is allocated after the filter is on.
struct Executable {
    path: CString,
    args: Vec<CString>,
}

fn prepare(plan: &Plan) -> Result<Executable> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(std::io::Error::from).at("arguments");
    let path = match plan.mode {
        Mode::Unconfined => text(plan.program.as_os_str().as_bytes())?,
        Mode::Confined { .. } => text(RUNNER_PATH.as_bytes())?,
    };
    let args = plan.args.iter().map(|arg| text(arg.as_bytes()));
    let args = std::iter::once(Ok(path.clone())).chain(args).collect::<Result<_>>()?;
    Ok(Executable { path, args })
}

impl Executable {
    /// Becomes the program, with an empty environment.
    fn execute(self) -> Result<u8> {
        let never = nix::unistd::execve::<_, CString>(&self.path, &self.args, &[]);
        never.at("runner").map(|never| match never {})
    }
}
