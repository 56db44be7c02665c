//! Attempts to leave a sandbox, as a hostile runner or a host that was taken over makes them. Each gives
//! the system's answer by name, or `OK`. They are made from inside the local sandbox (`service/sandbox`)
//! and from inside a pod (`tests/e2e`), each with its own expectations.

mod bombs;
mod calls;

use std::ffi::CString;
use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill as kill_now};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, fork};

/// Makes the attempt of this name.
///
/// # Panics
/// When there is none of this name, or the sandbox lacks what every one has.
pub fn attempt(what: &str, argument: &str) -> String {
    match what {
        "read" => each(UNREADABLE, |path| answer(fs::read(path))),
        "read_one" => answer(fs::read(argument)),
        "write" => each(UNWRITABLE, |path| answer(fs::write(path, "x"))),
        "exec" => each(PROGRAMS, execute),
        "exec_written" => exec_written(),
        "devices" => each(DEVICES, |path| answer(fs::File::open(path))),
        "kernel_files" => each(KERNEL_FILES, |path| {
            answer(fs::read_dir(path).map(drop).or_else(|_| fs::read(path).map(drop)))
        }),
        "dotdot" => dotdot(),
        "list" => list(argument),
        "processes" => numbers(&list("/proc")),
        "parent" => nix::unistd::getppid().to_string(),
        "kill" => kill(argument.parse().expect("a number")),
        "environment" => environment(),
        "descriptors" => descriptors(),
        "status" => {
            fs::read_to_string("/proc/self/status").expect("it is there").replace('\t', "").replace('\n', " ")
        }
        "hostname" => nix::unistd::gethostname().expect("it has one").to_string_lossy().into_owned(),
        "interfaces" => interfaces(),
        "forks" => bombs::forks().to_string(),
        "threads" => bombs::threads().to_string(),
        "fill_bytes" => bombs::fill_bytes().to_string(),
        "fill_files" => bombs::fill_files().to_string(),
        "memory" => bombs::memory(),
        "memory_child" => bombs::memory_child(),
        "measure_child" => measure_child(),
        _ => calls::attempt(what),
    }
}

/// What a runner must be able to do to hold a host to its limits: read the measure of a child that lets
/// nobody look into it, as hosts do.
fn measure_child() -> String {
    // SAFETY: the child makes three system calls, and this process has one thread.
    match unsafe { fork() }.expect("one child is allowed") {
        ForkResult::Child => {
            // SAFETY: neither call takes memory of ours, and the last one ends the child.
            unsafe {
                libc::prctl(libc::PR_SET_DUMPABLE, 0);
                libc::raise(libc::SIGSTOP);
                libc::_exit(0);
            }
        }
        ForkResult::Parent { child } => {
            waitpid(child, Some(WaitPidFlag::WUNTRACED)).expect("it is a child");
            let measure = answer(fs::read(format!("/proc/{child}/stat")));
            kill_now(child, Signal::SIGKILL).expect("it is a child");
            measure
        }
    }
}

const UNREADABLE: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "/etc/hostname",
    "/root/.bashrc",
    "/home",
    "/var/lib",
    "/proc/1/root/etc/passwd",
    "/proc/self/root/etc/passwd",
    "/proc/self/cwd/../etc/passwd",
    "/var/run/secrets/kubernetes.io/serviceaccount/token",
    "/run",
    "/boot",
];

const UNWRITABLE: &[&str] = &[
    "/x",
    "/dev/x",
    "/seance",
    "/lib/x",
    "/usr/x",
    "/proc/x",
    "/proc/sys/kernel/core_pattern",
    "/proc/sysrq-trigger",
    "/proc/self/uid_map",
    "/sys/x",
    "/etc/passwd",
];

const PROGRAMS: &[&str] = &["/bin/sh", "/usr/bin/env", "/bin/busybox", "/usr/bin/python3", "/sbin/init"];

const DEVICES: &[&str] = &[
    "/dev/mem",
    "/dev/kmsg",
    "/dev/kvm",
    "/dev/sda",
    "/dev/vda",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/fuse",
    "/dev/shm",
    "/dev/net/tun",
    "/dev/vsock",
];

const KERNEL_FILES: &[&str] = &[
    "/sys",
    "/sys/fs/cgroup",
    "/proc/sys",
    "/proc/kcore",
    "/proc/kallsyms",
    "/proc/meminfo",
    "/proc/cmdline",
    "/proc/interrupts",
    "/proc/keys",
    "/proc/modules",
];

/// Where programs may write: the local sandbox has a folder of its own for it, a pod this one.
fn work_folder() -> &'static str {
    if fs::exists("/work").unwrap_or(false) { "/work" } else { "/tmp" }
}

/// `name=answer` for each.
fn each(names: &[&str], attempt: impl Fn(&str) -> String) -> String {
    names.iter().map(|name| format!("{name}={}", attempt(name))).collect::<Vec<_>>().join(" ")
}

fn answer<T>(result: io::Result<T>) -> String {
    match result {
        Ok(_) => "OK".to_owned(),
        Err(error) => named(error.raw_os_error().unwrap_or(0)),
    }
}

/// The answer of a system call.
fn named(errno: i32) -> String {
    format!("{:?}", Errno::from_raw(errno))
}

fn execute(path: &str) -> String {
    let path = CString::new(path).expect("no zero byte");
    // Comes back only when it is denied.
    match nix::unistd::execv(&path, &[&path]) {
        Ok(never) => match never {},
        Err(error) => named(error as i32),
    }
}

/// Its own binary copied to the folder it can write to, executed or mapped to be executed.
fn exec_written() -> String {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let path = format!("{}/x", work_folder());
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o700)
        .open(&path)
        .expect("it can write");
    let mut head = vec![0; 4096];
    io::Read::read_exact(&mut fs::File::open("/proc/self/exe").expect("it is there"), &mut head)
        .expect("it is long enough");
    io::Write::write_all(&mut file, &head).expect("there is room");
    // SAFETY: maps a file of ours where the kernel likes; nothing refers to it.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    let mapped = if mapped == libc::MAP_FAILED { named(Errno::last_raw()) } else { "OK".to_owned() };
    drop(file);
    format!("execve={} mmap={mapped}", execute(&path))
}

/// Upwards from descriptors of the root and of the work folder.
fn dotdot() -> String {
    let try_from = |folder: &str| {
        use std::os::fd::AsRawFd;
        let root = fs::File::open(folder).expect("it may be opened");
        let up = c"../../../../../etc/passwd";
        // SAFETY: both arguments live through the call.
        let fd = unsafe { libc::openat(root.as_raw_fd(), up.as_ptr(), libc::O_RDONLY) };
        if fd >= 0 { "OK".to_owned() } else { named(Errno::last_raw()) }
    };
    format!(
        "{} chroot={}",
        each(&["/", work_folder(), "/proc"], try_from),
        calls::answer_of(libc::SYS_chroot, [0; 6])
    )
}

fn list(folder: &str) -> String {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("it may be listed")
        .map(|entry| entry.expect("it may be listed").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.join(" ")
}

fn numbers(names: &str) -> String {
    let numbers: Vec<_> = names.split(' ').filter(|name| name.parse::<u32>().is_ok()).collect();
    numbers.join(" ")
}

fn kill(pid: i32) -> String {
    match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL) {
        Ok(()) => "OK".to_owned(),
        Err(error) => named(error as i32),
    }
}

/// Variables it has, and bytes of the environment it was started with.
fn environment() -> String {
    let bytes = fs::read("/proc/1/environ").expect("its own").len();
    format!("{} {bytes}", std::env::vars_os().count())
}

fn descriptors() -> String {
    let target = |number: u32| {
        Some(format!("{number}={}", fs::read_link(format!("/proc/self/fd/{number}")).ok()?.display()))
    };
    (0..=1024).filter_map(target).collect::<Vec<_>>().join(" ")
}

fn interfaces() -> String {
    let table = fs::read_to_string("/proc/self/net/dev").expect("its own network");
    let names: Vec<_> =
        table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    names.join(" ")
}
