//! Resource limits of the runner and all its children.

use nix::sys::resource::{Resource, setrlimit};

use super::{At, Result};

/// Descriptors of one process.
const OPEN_FILES_MAX: u64 = 256;
/// Processes and threads of the sandbox, where they are counted for its user namespace alone.
pub(super) const PROCESSES_MAX: u64 = 256;

/// The limits of a confined runner.
pub(super) fn apply(scratch_bytes: u64) -> Result<()> {
    for (resource, limit) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NOFILE, OPEN_FILES_MAX),
        (Resource::RLIMIT_FSIZE, scratch_bytes),
        (Resource::RLIMIT_MEMLOCK, 0),
        (Resource::RLIMIT_MSGQUEUE, 0),
        (Resource::RLIMIT_NICE, 0),
        (Resource::RLIMIT_RTPRIO, 0),
    ] {
        setrlimit(resource, limit, limit).at("rlimits")?;
    }
    if processes_are_counted_here() {
        setrlimit(Resource::RLIMIT_NPROC, PROCESSES_MAX, PROCESSES_MAX).at("rlimits")?;
    }
    Ok(())
}

/// What an unconfined runner has: no core dumps, which would hold a program's data.
pub(super) fn apply_unconfined() -> Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0).at("rlimits")
}

/// Since Linux 5.14 a user namespace counts its own processes; before, the limit would count all
/// of the user's on the machine.
fn processes_are_counted_here() -> bool {
    nix::sys::utsname::uname().is_ok_and(|name| {
        let release = name.release().to_string_lossy();
        let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        (parts.next(), parts.next()) >= (Some(5), Some(14))
    })
}
