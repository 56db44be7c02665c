//! The keeper's part: who dies with whom, which descriptors go in, and waiting for the end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};

use super::{At, LINK_FD, Mode, Plan, Result};

fn signals() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGCHLD])
}

/// Holds back the signals that [`wait`] takes one by one.
pub(super) fn hold_signals() -> Result<()> {
    signals().thread_block().at("signals")
}

/// Undoes [`hold_signals`] for the runner.
pub(super) fn release_signals() -> Result<()> {
    signals().thread_unblock().at("signals")
}

/// Dies with the service. Unconfined, the keeper is asked instead, because it must end what the
/// runner started; nothing else would.
pub(super) fn die_with(plan: &Plan) -> Result<()> {
    let signal = if plan.mode == Mode::Unconfined { Signal::SIGTERM } else { Signal::SIGKILL };
    prctl::set_pdeathsig(signal).at("parent")?;
    // The service may have died before the line above.
    let parent = getppid().as_raw();
    if u32::try_from(parent) != Ok(plan.parent) {
        return Err(io::Error::other("the service is gone")).at("parent");
    }
    Ok(())
}

/// Dies with the keeper. Comes after the last change of credentials, which would undo it.
pub(super) fn die_with_keeper(watched: OwnedFd) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).at("parent")?;
    // The keeper may have died before: then the other end of the pipe is closed.
    let mut fds = [PollFd::new(watched.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO).at("parent")? > 0 {
        return Err(io::Error::other("the keeper is gone")).at("parent");
    }
    Ok(())
}

/// Moves the link from standard input to [`LINK_FD`], puts nothing in its place, and closes all
/// that was inherited besides the two outputs.
pub(super) fn take_descriptors() -> Result<()> {
    nix::unistd::setsid().at("session")?;
    // SAFETY: nothing in this process owns a descriptor at or above LINK_FD yet: it has just
    // started, and what is there was inherited.
    let result = unsafe {
        if libc::dup2(0, LINK_FD) < 0 {
            -1
        } else {
            libc::syscall(libc::SYS_close_range, LINK_FD + 1, u32::MAX, 0)
        }
    };
    Errno::result(result).at("descriptors")?;
    let null = std::fs::File::open("/dev/null").at("descriptors")?;
    nix::unistd::dup2_stdin(&null).at("descriptors")
}

/// Makes what the runner leaves behind the keeper's children.
pub(super) fn adopt_orphans() -> Result<()> {
    prctl::set_child_subreaper(true).at("subreaper")
}

/// Waits for the inside to end; kills it when asked by SIGTERM.
pub(super) fn wait(child: Pid, orphans: bool) -> Result<u8> {
    // The link belongs to the inside: held here too, its end would never be seen.
    nix::unistd::close(LINK_FD).at("descriptors")?;
    loop {
        let signal = signals().wait().at("wait")?;
        if signal == Signal::SIGTERM {
            // Fails only when it has ended, which SIGCHLD tells.
            let _ = kill(child, Signal::SIGKILL);
        }
        if let Some(status) = ended(child)? {
            if orphans {
                end_orphans()?;
            }
            return Ok(status);
        }
    }
}

fn ended(child: Pid) -> Result<Option<u8>> {
    Ok(match waitpid(child, Some(WaitPidFlag::WNOHANG)).at("wait")? {
        WaitStatus::Exited(_, status) => Some(u8::try_from(status).unwrap_or(u8::MAX)),
        WaitStatus::Signaled(_, signal, _) => Some(128 + signal as u8),
        _ => None,
    })
}

/// Kills and reaps until nothing is left. A process that forks meanwhile leaves its children to
/// the keeper, so each round meets them.
fn end_orphans() -> Result<()> {
    loop {
        for pid in children()? {
            let _ = kill(pid, Signal::SIGKILL);
        }
        match waitpid(None, None) {
            Ok(_) => {}
            Err(Errno::ECHILD) => return Ok(()),
            Err(error) => return Err(error).at("wait"),
        }
    }
}

fn children() -> Result<Vec<Pid>> {
    let path = format!("/proc/self/task/{}/children", nix::unistd::gettid());
    let text = std::fs::read_to_string(path).at("children")?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect())
}
