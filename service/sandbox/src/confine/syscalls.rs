//! The system calls that a runner and its hosts may make. Hosts take more away from themselves.
//!
//! An allow list: what isn't here fails with EPERM. There is no socket but a pair of its own, no
//! new namespace, no mount, no ptrace, no reading of others' memory, no keys, no kernel services.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::{Error, Result};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Every kind of new namespace that `clone` can ask for.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Puts the filter on for good.
pub(super) fn apply() -> Result<()> {
    let apply = || -> std::result::Result<(), Failure> {
        let arch: TargetArch = std::env::consts::ARCH.try_into()?;
        // `clone3` has its flags in memory, where no filter sees them. Libraries fall back to
        // `clone` when there is none.
        let without_clone3 = Rules::from([(libc::SYS_clone3, vec![])]);
        let absent = SeccompAction::Errno(libc::ENOSYS as u32);
        let absent = SeccompFilter::new(without_clone3, SeccompAction::Allow, absent, arch)?;
        let denied = SeccompAction::Errno(libc::EPERM as u32);
        let allowed = SeccompFilter::new(rules()?, denied, SeccompAction::Allow, arch)?;
        let programs: [BpfProgram; 2] = [absent.try_into()?, allowed.try_into()?];
        for program in &programs {
            seccompiler::apply_filter(program)?;
        }
        Ok(())
    };
    apply().map_err(|error| Error { step: "seccomp", source: std::io::Error::other(error) })
}

fn rules() -> std::result::Result<Rules, Failure> {
    let mut rules: Rules = ALLOWED.iter().map(|call| (*call, vec![])).collect();
    let no_namespace = condition(0, SeccompCmpOp::MaskedEq(NEW_NAMESPACES), 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespace])?]);
    let unix = condition(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?;
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![unix])?]);
    let requests = REQUESTS.iter().map(|request| condition(1, SeccompCmpOp::Eq, *request));
    let requests = requests.map(|request| Ok(SeccompRule::new(vec![request?])?));
    rules.insert(libc::SYS_ioctl, requests.collect::<std::result::Result<_, Failure>>()?);
    Ok(rules)
}

fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> std::result::Result<SeccompCondition, Failure> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Qword, op, value)?)
}

/// What may be asked of a descriptor through `ioctl`: nothing of a terminal but whether it is one.
const REQUESTS: &[u64] = &[libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::FIONCLEX, libc::TCGETS];

const ALLOWED: &[i64] = &[
    // Descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_pipe2,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4,
    // Files, of which there are few.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_umask,
    libc::SYS_fchmod,
    libc::SYS_utimensat,
    libc::SYS_flock,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads and processes of the own namespace.
    libc::SYS_futex,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_execve,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_setpgid,
    libc::SYS_getsid,
    libc::SYS_setsid,
    libc::SYS_prlimit64,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    // The time and the machine.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_setitimer,
    libc::SYS_getitimer,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Older names of the same.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pipe,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getpgrp,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getrlimit,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_setrlimit,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    // Allowed here and absent by the filter before this one.
    libc::SYS_clone3,
];
