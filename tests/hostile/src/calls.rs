//! System calls that have no place in a sandbox, called as they are. The arguments are good enough
//! to be answered with something else than EPERM where the call is let through.

use libc::c_long;
use nix::errno::Errno;

use super::named;

pub fn attempt(what: &str) -> String {
    let pid = c_long::from(std::process::id());
    let flags = |flag: i32| [c_long::from(flag), 0, 0, 0, 0, 0];
    match what {
        "mknod" => answers(&[(
            "mknodat",
            libc::SYS_mknodat,
            [at(), path(), c_long::from(libc::S_IFCHR | 0o600), 0x103, 0, 0],
        )]),
        "sockets" => sockets(),
        "pairs" => pairs(),
        "namespaces" => answers(&[
            ("unshare_user", libc::SYS_unshare, flags(libc::CLONE_NEWUSER)),
            ("unshare_mount", libc::SYS_unshare, flags(libc::CLONE_NEWNS)),
            ("unshare_net", libc::SYS_unshare, flags(libc::CLONE_NEWNET)),
            ("clone_user", libc::SYS_clone, flags(libc::CLONE_NEWUSER | libc::SIGCHLD)),
            ("clone_pid", libc::SYS_clone, flags(libc::CLONE_NEWPID | libc::SIGCHLD)),
            ("clone3", libc::SYS_clone3, [0; 6]),
            ("setns", libc::SYS_setns, [0; 6]),
        ]),
        "mounts" => answers(&[
            ("mount", libc::SYS_mount, [path(), path(), path(), 0, 0, 0]),
            ("umount2", libc::SYS_umount2, [path(), 0, 0, 0, 0, 0]),
            ("pivot_root", libc::SYS_pivot_root, [path(), path(), 0, 0, 0, 0]),
            ("open_tree", libc::SYS_open_tree, [at(), path(), 0, 0, 0, 0]),
            ("move_mount", libc::SYS_move_mount, [0; 6]),
            ("fsopen", libc::SYS_fsopen, [path(), 0, 0, 0, 0, 0]),
            ("mount_setattr", libc::SYS_mount_setattr, [at(), path(), 0, 0, 0, 0]),
            ("open_by_handle_at", libc::SYS_open_by_handle_at, [0; 6]),
            ("quotactl", libc::SYS_quotactl, [0; 6]),
            ("fanotify_init", libc::SYS_fanotify_init, [0; 6]),
        ]),
        "trace" => answers(&[
            ("ptrace", libc::SYS_ptrace, [c_long::from(libc::PTRACE_SEIZE), pid, 0, 0, 0, 0]),
            ("process_vm_readv", libc::SYS_process_vm_readv, [pid, 0, 0, 0, 0, 0]),
            ("process_vm_writev", libc::SYS_process_vm_writev, [pid, 0, 0, 0, 0, 0]),
            ("pidfd_getfd", libc::SYS_pidfd_getfd, [0; 6]),
            ("kcmp", libc::SYS_kcmp, [pid, pid, 0, 0, 0, 0]),
            ("process_madvise", libc::SYS_process_madvise, [0; 6]),
            ("move_pages", libc::SYS_move_pages, [pid, 0, 0, 0, 0, 0]),
        ]),
        "keys" => answers(&[
            ("keyctl", libc::SYS_keyctl, [0; 6]),
            ("add_key", libc::SYS_add_key, [path(), path(), 0, 0, -3, 0]),
            ("request_key", libc::SYS_request_key, [path(), path(), 0, 0, 0, 0]),
        ]),
        "kernel" => answers(&[
            ("bpf", libc::SYS_bpf, [0; 6]),
            ("perf_event_open", libc::SYS_perf_event_open, [0; 6]),
            ("userfaultfd", libc::SYS_userfaultfd, [0; 6]),
            ("io_uring_setup", libc::SYS_io_uring_setup, [8, 0, 0, 0, 0, 0]),
            ("io_uring_enter", libc::SYS_io_uring_enter, [0; 6]),
            ("init_module", libc::SYS_init_module, [0; 6]),
            ("finit_module", libc::SYS_finit_module, [0; 6]),
            ("delete_module", libc::SYS_delete_module, [path(), 0, 0, 0, 0, 0]),
            ("kexec_load", libc::SYS_kexec_load, [0; 6]),
            ("memfd_create", libc::SYS_memfd_create, [path(), 0, 0, 0, 0, 0]),
            ("syslog", libc::SYS_syslog, [3, 0, 0, 0, 0, 0]),
            ("personality", libc::SYS_personality, [0; 6]),
        ]),
        "machine" => answers(&[
            ("clock_settime", libc::SYS_clock_settime, [0; 6]),
            ("settimeofday", libc::SYS_settimeofday, [0; 6]),
            ("adjtimex", libc::SYS_adjtimex, [0; 6]),
            ("reboot", libc::SYS_reboot, [0; 6]),
            ("swapon", libc::SYS_swapon, [path(), 0, 0, 0, 0, 0]),
            ("swapoff", libc::SYS_swapoff, [path(), 0, 0, 0, 0, 0]),
            ("sethostname", libc::SYS_sethostname, [path(), 1, 0, 0, 0, 0]),
            ("setdomainname", libc::SYS_setdomainname, [path(), 1, 0, 0, 0, 0]),
            ("acct", libc::SYS_acct, [0; 6]),
        ]),
        "identity" => answers(&[
            ("setuid", libc::SYS_setuid, [0; 6]),
            ("setgid", libc::SYS_setgid, [0; 6]),
            ("setgroups", libc::SYS_setgroups, [0; 6]),
            ("setresuid", libc::SYS_setresuid, [0; 6]),
            ("setfsuid", libc::SYS_setfsuid, [0; 6]),
            ("capset", libc::SYS_capset, [0; 6]),
        ]),
        "terminal" => answers(&[
            ("TIOCSTI", libc::SYS_ioctl, [0, libc::TIOCSTI as c_long, path(), 0, 0, 0]),
            ("TIOCLINUX", libc::SYS_ioctl, [0, libc::TIOCLINUX as c_long, path(), 0, 0, 0]),
        ]),
        "raise_limits" => raise_limits(),
        _ => panic!("no attempt is named {what}"),
    }
}

fn at() -> c_long {
    c_long::from(libc::AT_FDCWD)
}

fn path() -> c_long {
    let path = if super::work_folder() == "/work" { c"/work/x" } else { c"/tmp/x" };
    path.as_ptr() as c_long
}

pub fn answer_of(call: c_long, a: [c_long; 6]) -> String {
    // SAFETY: pointers among the arguments are null or to a constant; a call that is let through
    // in spite of the test fails on them or changes only this hostile process.
    let result = unsafe { libc::syscall(call, a[0], a[1], a[2], a[3], a[4], a[5]) };
    if result == -1 { named(Errno::last_raw()) } else { "OK".to_owned() }
}

fn answers(calls: &[(&str, c_long, [c_long; 6])]) -> String {
    let answers =
        calls.iter().map(|(name, call, arguments)| format!("{name}={}", answer_of(*call, *arguments)));
    answers.collect::<Vec<_>>().join(" ")
}

const FAMILIES: &[(&str, i32)] = &[
    ("unix", libc::AF_UNIX),
    ("inet", libc::AF_INET),
    ("inet6", libc::AF_INET6),
    ("netlink", libc::AF_NETLINK),
    ("packet", libc::AF_PACKET),
    ("vsock", libc::AF_VSOCK),
    ("alg", libc::AF_ALG),
    ("bluetooth", libc::AF_BLUETOOTH),
    ("xdp", libc::AF_XDP),
    ("tipc", libc::AF_TIPC),
    ("can", libc::AF_CAN),
];

fn sockets() -> String {
    let kinds = [("stream", libc::SOCK_STREAM), ("datagram", libc::SOCK_DGRAM), ("raw", libc::SOCK_RAW)];
    let mut answers = Vec::new();
    for (family, number) in FAMILIES {
        for (kind, value) in kinds {
            let arguments = [c_long::from(*number), c_long::from(value), 0, 0, 0, 0];
            answers.push(format!("{family}-{kind}={}", answer_of(libc::SYS_socket, arguments)));
        }
    }
    for (name, call) in [
        ("connect", libc::SYS_connect),
        ("bind", libc::SYS_bind),
        ("listen", libc::SYS_listen),
        ("accept4", libc::SYS_accept4),
    ] {
        answers.push(format!("{name}={}", answer_of(call, [3, 0, 0, 0, 0, 0])));
    }
    answers.join(" ")
}

fn pairs() -> String {
    let mut fds = [0i32; 2];
    let pointer = fds.as_mut_ptr() as c_long;
    let pair = |family: i32| answer_of(libc::SYS_socketpair, [c_long::from(family), 1, 0, pointer, 0, 0]);
    let others = FAMILIES.iter().filter(|(_, family)| *family != libc::AF_UNIX);
    others.map(|(name, family)| format!("{name}={}", pair(*family))).collect::<Vec<_>>().join(" ")
}

fn raise_limits() -> String {
    let limits =
        [("nofile", libc::RLIMIT_NOFILE), ("core", libc::RLIMIT_CORE), ("fsize", libc::RLIMIT_FSIZE)];
    let raise = |limit| {
        let most = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: reads a struct of ours.
        let result = unsafe { libc::setrlimit(limit, &most) };
        if result == -1 { named(Errno::last_raw()) } else { "OK".to_owned() }
    };
    limits.iter().map(|(name, limit)| format!("{name}={}", raise(*limit))).collect::<Vec<_>>().join(" ")
}
