//! What a running process uses, sampled from `/proc`.

use nix::unistd::Pid;

/// One look at a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Whether it was waiting for something, not computing.
    pub is_waiting: bool,
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
    let page = 4096;
    Some(Sample {
        is_waiting: *fields.first()? == "S",
        n_threads: fields.get(17)?.parse().ok()?,
        resident_bytes: fields.get(21)?.parse::<u64>().ok()? * page,
    })
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
        let wanted = Sample { is_waiting: false, n_threads: 5, resident_bytes: 250 * 4096 };
        assert_eq!(parse(stat), Some(wanted));
    }
}
