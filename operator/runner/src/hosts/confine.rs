//! The system calls that the host of an interpreted language keeps: those of a JavaScript host, and what
//! interpreters, their standard libraries and threads need.
//!
//! Files can be opened for reading: which are there is the sandbox's to say. Code is mapped from files
//! alone, which nobody here can write.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::hosts::javascript::confine::ALLOWED as COMPUTING;

/// Stands in the filters where a host puts its own number; no process has it.
pub const OWN_PID: u32 = 0x5ea2_ce01;

/// The filters could not be made.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The filters of a host, each an array of the kernel's `struct sock_filter`, in the order in which they
/// are put on. What isn't allowed fails with EPERM; `more` is.
pub fn filters(more: &[i64]) -> Result<Vec<Vec<u8>>, Error> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    // `clone3` has its flags in memory, where no filter sees them. Libraries fall back to `clone` when
    // there is none.
    let without_clone3 = Rules::from([(libc::SYS_clone3, vec![])]);
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    let absent = SeccompFilter::new(without_clone3, SeccompAction::Allow, absent, arch)?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let allowed = SeccompFilter::new(rules(more)?, denied, SeccompAction::Allow, arch)?;
    let programs: [BpfProgram; 2] = [absent.try_into()?, allowed.try_into()?];
    Ok(programs.iter().map(bytes).collect())
}

fn bytes(program: &BpfProgram) -> Vec<u8> {
    let instruction = |each: &seccompiler::sock_filter| {
        [&each.code.to_ne_bytes()[..], &[each.jt, each.jf], &each.k.to_ne_bytes()].concat()
    };
    program.iter().flat_map(instruction).collect()
}

fn rules(more: &[i64]) -> Result<Rules, Error> {
    let calls = COMPUTING.iter().chain(ALLOWED).chain(more);
    let mut rules: Rules = calls.map(|call| (*call, vec![])).collect();
    let mut when = |call: i64, conditions: Vec<SeccompCondition>| -> Result<(), Error> {
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok(())
    };
    // Limits may be read and lowered, of this process only.
    when(libc::SYS_prlimit64, vec![is(0, 0)?])?;
    // A signal may be sent to this process only.
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        when(call, vec![is(0, OWN_PID.into())?])?;
    }
    // Code is mapped from files, and nothing that can be written becomes code.
    let (exec, write) = (libc::PROT_EXEC as u64, libc::PROT_WRITE as u64);
    when(libc::SYS_mmap, vec![has_none(2, exec)?])?;
    when(libc::SYS_mmap, vec![has_none(2, write)?, has_none(3, libc::MAP_ANONYMOUS as u64)?])?;
    when(libc::SYS_mprotect, vec![has_none(2, exec)?])?;
    // Threads, and no processes.
    let thread = libc::CLONE_THREAD as u64;
    when(libc::SYS_clone, vec![masked(0, thread, thread)?])?;
    when(libc::SYS_openat, vec![has_none(2, WRITING)?])?;
    when(libc::SYS_socketpair, vec![is(0, libc::AF_UNIX as u64)?])?;
    for command in DESCRIPTOR_COMMANDS {
        when(libc::SYS_fcntl, vec![is(1, *command as u64)?])?;
    }
    for request in [libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::FIONCLEX, libc::TCGETS] {
        when(libc::SYS_ioctl, vec![is(1, request)?])?;
    }
    Ok(rules)
}

/// Every way to open a file other than for reading what is there.
const WRITING: u64 =
    (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u64 | TEMPORARY;
/// `O_TMPFILE` without the `O_DIRECTORY` in it, which is for reading too.
const TEMPORARY: u64 = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;

/// None of these makes a descriptor send signals.
const DESCRIPTOR_COMMANDS: &[i32] =
    &[libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];

fn is(argument: u8, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)?)
}

fn has_none(argument: u8, bits: u64) -> Result<SeccompCondition, Error> {
    masked(argument, bits, 0)
}

const ALLOWED: &[i64] = &[
    // Files that are there, and descriptors.
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_pselect6,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_shutdown,
    // Threads.
    libc::SYS_clone3,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_membarrier,
    // This process, the time and the machine.
    libc::SYS_setitimer,
    libc::SYS_getitimer,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_times,
    libc::SYS_clock_getres,
    libc::SYS_nanosleep,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];
