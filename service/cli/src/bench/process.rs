//! Memory and processor time of processes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// The resident size of a process that is its own, in bytes: what is shared with other processes,
/// such as the pages of the binary, is counted in part (the kernel's proportional set size).
pub fn proportional_bytes(pid: u32) -> Result<u64> {
    field(pid, "smaps_rollup", "Pss:")
}

/// The resident size of a process, in bytes.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    field(pid, "status", "VmRSS:")
}

/// Processor time of this process so far, of all its threads.
pub fn processor_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("can't read the use of the processor")?;
    let micros = |time: TimeVal| (time.tv_sec() * 1_000_000 + time.tv_usec()).unsigned_abs();
    Ok(Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time())))
}

/// The processes below `pid`, itself not among them.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut waiting = vec![pid];
    while let Some(parent) = waiting.pop() {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default();
        let children: Vec<u32> = children.split_whitespace().filter_map(|child| child.parse().ok()).collect();
        found.extend(&children);
        waiting.extend(&children);
    }
    found
}

fn field(pid: u32, file: &str, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/{file}");
    let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{path} has no {name}"))? * 1024)
}
