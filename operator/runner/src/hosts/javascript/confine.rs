//! What a JavaScript host takes from itself before it reads anything.
//!
//! Everything here is depth: the boundary is the pod or the namespaces around it. A step the
//! kernel lacks (Landlock) is skipped; a step that every supported kernel has must work, or the
//! host does not start.

use std::collections::BTreeMap;
use std::io;

use nix::sys::resource::{Resource, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Descriptors a host may have: its three streams, its socket, and a little air.
const OPEN_FILES_MAX: u64 = 16;

/// What could not be taken away.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A resource limit was refused.
    #[error("setting a resource limit")]
    Limit(#[source] nix::Error),
    /// A process attribute was refused.
    #[error("setting a process attribute")]
    Attribute(#[source] io::Error),
    /// The system call filter was refused.
    #[error("installing the system call filter")]
    Seccomp(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What the warm parent takes from itself and so from every host: being traced, and gaining
/// privileges.
pub fn make_untraceable() -> Result<(), Error> {
    set_attribute(libc::PR_SET_DUMPABLE, 0)?;
    set_attribute(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Confines a host for good.
pub fn confine() -> Result<(), Error> {
    for (resource, limit) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_NOFILE, OPEN_FILES_MAX),
        (Resource::RLIMIT_MEMLOCK, 0),
    ] {
        setrlimit(resource, limit, limit).map_err(Error::Limit)?;
    }
    deny_files();
    let program = filter().map_err(Error::Seccomp)?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| Error::Seccomp(error.into()))
}

/// Sets the limits that only the program's own limits can tell. Lowering is always allowed.
pub fn confine_program(address_space_bytes: u64, cpu_seconds: u64) -> Result<(), Error> {
    if address_space_bytes > 0 {
        setrlimit(Resource::RLIMIT_AS, address_space_bytes, address_space_bytes).map_err(Error::Limit)?;
    }
    if cpu_seconds > 0 {
        setrlimit(Resource::RLIMIT_CPU, cpu_seconds, cpu_seconds + 1).map_err(Error::Limit)?;
    }
    Ok(())
}

fn set_attribute(attribute: i32, value: libc::c_ulong) -> Result<(), Error> {
    // SAFETY: both attributes take one integer and touch no memory of ours.
    match unsafe { libc::prctl(attribute, value, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(Error::Attribute(io::Error::last_os_error())),
    }
}

/// Denies every access to files where the kernel has Landlock. The filter below denies opening
/// them too, so a kernel without it loses one of two locks.
fn deny_files() {
    use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr};
    let denied = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|ruleset| ruleset.create())
        .and_then(|ruleset| ruleset.restrict_self());
    drop(denied);
}

/// Allows what an interpreter that only computes and talks over open descriptors needs. Everything
/// else fails with EPERM.
fn filter() -> Result<BpfProgram, Box<dyn std::error::Error + Send + Sync>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, vec![])).collect();
    // Limits may be read and lowered, of this process only.
    let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![own])?]);
    // A signal may be sent to this process only, which is how it aborts.
    let pid = u64::from(std::process::id());
    let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, pid)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    // Memory may be mapped, never made executable.
    let not_executable = |argument| {
        SeccompCondition::new(
            argument,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64),
            0,
        )
    };
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![SeccompRule::new(vec![not_executable(2)?])?]);
    }
    let allow = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(allow.try_into()?)
}

/// What is allowed whatever its arguments are.
pub(in crate::hosts) const ALLOWED: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_close,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
