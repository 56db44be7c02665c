//! Control groups, where the service may make them: memory and processes of each sandbox.
//!
//! Both versions are four files written by hand. They are used when present and reported; where
//! they are not, the runner's own limits hold.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Begins the name of every group we make; the service's process id follows.
const PREFIX: &str = "seance-";

/// Where groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Controllers {
    /// Version 1: a tree for each controller.
    V1 {
        /// The folder that memory groups are made in.
        memory: PathBuf,
        /// The folder that groups of processes are made in.
        pids: PathBuf,
    },
    /// Version 2: one tree.
    V2 {
        /// The folder that groups are made in.
        base: PathBuf,
    },
}

/// The group of one sandbox.
#[derive(Debug)]
pub(crate) struct Cgroup {
    controllers: Controllers,
    memory: PathBuf,
    /// The same as `memory` in version 2.
    pids: PathBuf,
}

impl Controllers {
    /// Looks where groups can be made and tries it; none when nowhere. Groups that a killed
    /// service left behind are removed.
    pub(crate) fn detect() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let candidates = v2_bases(&mounts, &own).into_iter().map(|base| Self::V2 { base });
        let v1 = v1_base(&mounts, &own, "memory").zip(v1_base(&mounts, &own, "pids"));
        let v1 = v1.map(|(memory, pids)| Self::V1 { memory, pids });
        candidates.chain(v1).find(|controllers| {
            controllers.sweep();
            let trial = controllers.enable().and_then(|()| controllers.create(64 << 20, 64));
            trial.and_then(|trial| trial.remove()).is_ok()
        })
    }

    /// The name under which they are reported.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::V1 { .. } => "cgroup-v1",
            Self::V2 { .. } => "cgroup-v2",
        }
    }

    /// Makes a group. What was made is removed when a later step fails.
    pub(crate) fn create(&self, memory_bytes: u64, processes: u64) -> io::Result<Cgroup> {
        // Backends of one process share the folder.
        static N_CREATED: AtomicU64 = AtomicU64::new(0);
        let n = N_CREATED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{n}", std::process::id());
        let (memory, pids) = match self {
            Self::V1 { memory, pids } => (memory.join(&name), pids.join(&name)),
            Self::V2 { base } => (base.join(&name), base.join(&name)),
        };
        let group = Cgroup { controllers: self.clone(), memory, pids };
        let made = group.make(memory_bytes, processes);
        if made.is_err() {
            drop(group.remove());
        }
        made.map(|()| group)
    }

    fn enable(&self) -> io::Result<()> {
        match self {
            Self::V1 { .. } => Ok(()),
            Self::V2 { base } => fs::write(base.join("cgroup.subtree_control"), "+memory +pids"),
        }
    }

    fn sweep(&self) {
        let bases = match self {
            Self::V1 { memory, pids } => vec![memory, pids],
            Self::V2 { base } => vec![base],
        };
        for entry in bases.into_iter().filter_map(|base| fs::read_dir(base).ok()).flatten().flatten() {
            let name = entry.file_name();
            if name.to_str().and_then(owner).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // Fails while something is in it; then it isn't left behind yet.
                drop(fs::remove_dir(entry.path()));
            }
        }
    }
}

/// The service whose group has this name; none for a group of somebody else, however alike its name.
fn owner(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    pid.parse().ok()
}

impl Cgroup {
    /// The folders that a process joins.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        if self.memory == self.pids {
            return vec![self.memory.clone()];
        }
        vec![self.memory.clone(), self.pids.clone()]
    }

    /// Sets the memory limit.
    pub(crate) fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        let (limit, swap, swap_bytes) = match self.controllers {
            Controllers::V1 { .. } => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes),
            Controllers::V2 { .. } => ("memory.max", "memory.swap.max", 0),
        };
        // In version 1 memory and swap together may never be below memory: raising goes first.
        let swapped = fs::write(self.memory.join(swap), swap_bytes.to_string());
        fs::write(self.memory.join(limit), bytes.to_string())?;
        if swapped.is_err() {
            // A kernel without swap accounting has no such file.
            drop(fs::write(self.memory.join(swap), swap_bytes.to_string()));
        }
        Ok(())
    }

    /// How often the kernel killed something here for want of memory.
    pub(crate) fn n_out_of_memory(&self) -> u64 {
        let file = match self.controllers {
            Controllers::V1 { .. } => "memory.oom_control",
            Controllers::V2 { .. } => "memory.events",
        };
        let text = fs::read_to_string(self.memory.join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
    }

    /// The most memory it ever had, in bytes, where the kernel tells.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let file = match self.controllers {
            Controllers::V1 { .. } => "memory.max_usage_in_bytes",
            Controllers::V2 { .. } => "memory.peak",
        };
        fs::read_to_string(self.memory.join(file)).ok()?.trim().parse().ok()
    }

    /// Removes it; fails while a process is in it. Removed already is removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for folder in self.folders() {
            match fs::remove_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn make(&self, memory_bytes: u64, processes: u64) -> io::Result<()> {
        for folder in self.folders() {
            fs::create_dir(folder)?;
        }
        fs::write(self.pids.join("pids.max"), processes.to_string())?;
        self.limit_memory(memory_bytes)
    }
}

/// The folder of the own group in a version 1 tree, or the tree's top where a container hides it.
fn v1_base(mounts: &str, own: &str, controller: &str) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let mount = mount_points(mounts, "cgroup").find(|(_, options)| has(options))?.0;
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        has(parts.next()?).then(|| parts.next()).flatten()
    })?;
    Some(existing(mount, path))
}

/// The folder of the own group and the tree's top: controllers can't be given to groups beside
/// the service itself, except at the top.
fn v2_bases(mounts: &str, own: &str) -> Vec<PathBuf> {
    let Some((mount, _)) = mount_points(mounts, "cgroup2").next() else { return Vec::new() };
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let mut bases = vec![existing(mount, path), PathBuf::from(mount)];
    bases.dedup();
    bases
}

fn existing(mount: &str, path: &str) -> PathBuf {
    let inside = Path::new(mount).join(path.trim_start_matches('/'));
    if inside.is_dir() { inside } else { PathBuf::from(mount) }
}

/// Where file systems of a type are mounted, with their own options.
fn mount_points<'a>(mounts: &'a str, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    mounts.lines().filter_map(move |line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let is_kind = after.next()? == kind;
        is_kind.then(|| Some((before.split(' ').nth(4)?, after.nth(1)?))).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        31 24 0:27 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
        32 24 0:28 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n";

    #[test]
    fn only_groups_of_services_have_an_owner() {
        assert_eq!(owner("seance-12-3"), Some(12));
        for other in ["seance-cluster-87bdce50b298", "seance-12", "seance-x-3", "seance-12-x", "12-3"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn mounts_are_found_by_type_and_controller() {
        let own = "4:memory:/nowhere/at/all\n0::/\n";
        assert_eq!(v1_base(MOUNTS, own, "memory"), Some(PathBuf::from("/sys/fs/cgroup/memory")));
        assert_eq!(v1_base(MOUNTS, own, "pids"), None);
        assert_eq!(v2_bases(MOUNTS, own), [PathBuf::from("/sys/fs/cgroup/unified")]);
        assert!(v2_bases("", own).is_empty());
    }
}
