//! What a running process uses, sampled from `/proc`.

use std::time::Duration;

use nix::unistd::Pid;

/// One look at a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Whether it was waiting for something, not computing.
    pub is_waiting: bool,
    /// Processor time so far, to a hundredth of a second.
    pub cpu: Duration,
    pub n_threads: u64,
    pub resident_bytes: u64,
}

/// Looks at a process; nothing when it is gone.
pub fn sample(pid: Pid) -> Option<Sample> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The children of this process, which has one thread.
pub fn children() -> Vec<Pid> {
    let own = std::process::id();
    let list = std::fs::read_to_string(format!("/proc/self/task/{own}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}

/// The fields after the name, which is in brackets and may hold anything.
fn parse(stat: &str) -> Option<Sample> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)?;
    Some(Sample {
        is_waiting: *fields.first()? == "S",
        cpu: Duration::from_millis(ticks * 1000 / ticks_per_second()),
        n_threads: number(17)?,
        resident_bytes: number(21)? * page_bytes(),
    })
}

fn ticks_per_second() -> u64 {
    configured(nix::unistd::SysconfVar::CLK_TCK, 100)
}

fn page_bytes() -> u64 {
    configured(nix::unistd::SysconfVar::PAGE_SIZE, 4096)
}

fn configured(name: nix::unistd::SysconfVar, otherwise: u64) -> u64 {
    let value = nix::unistd::sysconf(name).ok().flatten();
    value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_sampled() {
        let sample = sample(Pid::this()).unwrap();
        assert!(sample.resident_bytes > 100 * 1024 && sample.n_threads >= 1);
    }

    #[test]
    fn a_name_with_brackets_does_not_confuse() {
        let stat = "7 (a) S (b) R 1 7 7 0 -1 4194304 1 0 0 0 2 3 0 0 20 0 5 0 99 1000 250 1844";
        let wanted = Sample {
            is_waiting: false,
            cpu: Duration::from_millis(5000 / ticks_per_second()),
            n_threads: 5,
            resident_bytes: 250 * page_bytes(),
        };
        assert_eq!(parse(stat), Some(wanted));
    }
}
