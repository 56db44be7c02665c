//! Bombs, each with an end of its own in case nothing else ends it.

use std::fs;
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

const MOST: u64 = 2000;

/// Children that sleep in sessions of their own.
pub fn forks() -> u64 {
    for n in 0..MOST {
        // SAFETY: the child only sleeps and exits, and this process has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                let _ = nix::unistd::setsid();
                std::thread::sleep(Duration::from_secs(60));
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(0) };
            }
            Ok(ForkResult::Parent { .. }) => {}
            Err(_) => return n,
        }
    }
    MOST
}

/// Threads that sleep.
pub fn threads() -> u64 {
    for n in 0..MOST {
        let sleep = || std::thread::sleep(Duration::from_secs(60));
        let thread = std::thread::Builder::new().stack_size(16 * 1024).spawn(sleep);
        if thread.is_err() {
            return n;
        }
    }
    MOST
}

/// Bytes that fit into the work folder.
pub fn fill_bytes() -> u64 {
    let block = [7; 64 * 1024];
    let mut n = 0;
    for file in 0..1024 {
        let Ok(mut file) = fs::File::create(format!("/tmp/block{file}")) else { break };
        match std::io::Write::write(&mut file, &block) {
            Ok(written) => n += written as u64,
            Err(_) => break,
        }
    }
    for file in 0..1024 {
        drop(fs::remove_file(format!("/tmp/block{file}")));
    }
    n
}

/// Files that fit into the work folder.
pub fn fill_files() -> u64 {
    for n in 0..100_000 {
        if fs::File::create(format!("{}/file{n}", super::work_folder())).is_err() {
            return n;
        }
    }
    100_000
}

/// Takes memory until something ends it.
pub fn memory() -> String {
    let mut taken = Vec::new();
    for n in 0..2048u32 {
        taken.push(vec![n as u8 | 1; 1 << 20]);
    }
    format!("{} MiB", std::hint::black_box(taken).len())
}

/// The same in a child.
pub fn memory_child() -> String {
    // SAFETY: this process has one thread, so the child may allocate.
    match unsafe { fork() }.expect("one child is allowed") {
        ForkResult::Child => {
            memory();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        ForkResult::Parent { child } => match waitpid(child, None).expect("it is a child") {
            WaitStatus::Signaled(_, signal, _) => signal.as_str().to_owned(),
            other => format!("{other:?}"),
        },
    }
}
