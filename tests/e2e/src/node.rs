//! The node of a cluster of tests/cluster, for what only somebody on it can do: its components stopped and
//! started, the processes of its pods, their packets.
//!
//! The tests run inside of such a cluster's namespaces, as root. On any other cluster there is no node to
//! be had, and what needs one is left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait;

/// A process that was killed is gone within that time.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// The node.
#[derive(Debug, Clone)]
pub struct Node {
    folder: PathBuf,
}

impl Node {
    /// The node of the cluster whose files are in this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Kills a component of the cluster, such as `kube-apiserver`. It is started again at the latest when
    /// what this gives is dropped, so that a test that fails leaves a whole cluster.
    ///
    /// # Errors
    /// When it does not run, or stays.
    pub async fn stop(&self, component: &str) -> anyhow::Result<Stopped> {
        let file = self.folder.join("pids").join(component);
        let pid = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let pid: i32 = pid.trim().parse().with_context(|| format!("the process of {component}"))?;
        kill(Pid::from_raw(pid), Signal::SIGKILL).with_context(|| format!("killing {component}"))?;
        let stopped = Stopped { start: self.folder.join("components").join(component), is_started: false };
        wait::until_told(&format!("{component} is gone"), GONE_WITHIN, || async move {
            if is_alive(pid) { Err("it runs".to_owned()) } else { Ok(()) }
        })
        .await?;
        Ok(stopped)
    }

    /// The first process of a pod's container, as the node numbers it.
    ///
    /// # Errors
    /// When there is none.
    pub fn runner_of(&self, pod: &Pod) -> anyhow::Result<i32> {
        let uid = pod.uid().context("a pod has a UID")?;
        let mut found = processes().filter(|pid| is_first_of(*pid, &uid));
        found.next().with_context(|| format!("no runner's process is in the pod {}", pod.name_any()))
    }

    /// Kills a process of a pod.
    ///
    /// # Errors
    /// When it is gone.
    pub fn kill(&self, pid: i32) -> anyhow::Result<()> {
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing a process of a pod")
    }

    /// Fills the node's disk with so many bytes that count as the pod's: they are beside its logs.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn write_logs(&self, pod: &Pod, n_bytes: usize) -> anyhow::Result<()> {
        let (namespace, uid) = (pod.namespace(), pod.uid());
        let folder =
            format!("{}_{}_{}", namespace.unwrap_or_default(), pod.name_any(), uid.unwrap_or_default());
        let folder = self.folder.join("log/pods").join(folder);
        ensure!(folder.is_dir(), "the pod has no logs in {}", folder.display());
        fs::write(folder.join("runner").join("9.log"), vec![b'x'; n_bytes])
            .context("writing beside a pod's logs")
    }

    /// Cuts a pod off: its connections are ended at its own side, and every packet that it sends is lost, so
    /// that the other side doesn't hear of it. Until what this gives is dropped.
    ///
    /// # Errors
    /// When a rule can't be made, or the connections not be ended.
    pub fn cut(&self, pod: &Pod) -> anyhow::Result<Cut> {
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let cut = Cut { address: address.context("a pod that runs has an address")? };
        cut.iptables("-I", ANYTHING)?;
        cut.iptables("-I", DIALS)?;
        let runner = self.runner_of(pod)?.to_string();
        let end = ["--net", "--target", &runner, "ss", "--kill", "--tcp", "state", "established"];
        said(Command::new("nsenter").args(end)).context("ending a pod's connections")?;
        Ok(cut)
    }
}

/// A component that does not run.
#[derive(Debug)]
#[must_use = "dropped, it starts again"]
pub struct Stopped {
    start: PathBuf,
    is_started: bool,
}

impl Stopped {
    /// Starts it again.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start(mut self) -> anyhow::Result<()> {
        self.started()
    }

    fn started(&mut self) -> anyhow::Result<()> {
        self.is_started = true;
        said(Command::new("setsid").arg("--fork").arg(&self.start)).map(drop)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.is_started
            && let Err(error) = self.started()
        {
            eprintln!("a component stays stopped: {error:#}");
        }
    }
}

/// A pod that can send nothing.
#[derive(Debug)]
#[must_use = "dropped, the pod's packets pass again"]
pub struct Cut {
    address: String,
}

/// What is lost: everything, and first, to be counted, the packets that begin a connection.
const ANYTHING: &[&str] = &[];
const DIALS: &[&str] = &["-p", "tcp", "--syn"];

impl Cut {
    /// How many times the pod has dialled in vain.
    ///
    /// # Errors
    /// When the rules can't be read.
    pub fn n_dials(&self) -> anyhow::Result<u64> {
        let rules = said(Command::new("iptables").args(["-w", "-t", "raw", "-nvxL", "PREROUTING"]))?;
        let ours = |line: &&str| line.split_whitespace().any(|word| word == self.address);
        let rule = rules.lines().find(ours).with_context(|| format!("the rule is gone: {rules}"))?;
        let n_packets = rule.split_whitespace().next().context("a rule has a count")?;
        n_packets.parse().with_context(|| format!("{rule:?} has no count"))
    }

    /// In the table that nobody else here writes: kube-router puts what it read a moment ago back into
    /// that of filters.
    fn iptables(&self, change: &str, what: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new("iptables");
        command
            .args(["-w", "-t", "raw", change, "PREROUTING", "-s", &self.address])
            .args(what)
            .args(["-j", "DROP"]);
        said(&mut command).map(drop)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        for what in [ANYTHING, DIALS] {
            if let Err(error) = self.iptables("-D", what) {
                eprintln!("a pod stays cut off: {error:#}");
            }
        }
    }
}

/// What a command printed, which is over in a moment.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a process runs: one that has ended and is not reaped has no program.
fn is_alive(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether this is a pod's container's first process, and not that of its pause container, which has the
/// first number of a namespace, too.
fn is_first_of(pid: i32, pod_uid: &str) -> bool {
    let read = |file: &str| fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(file));
    let (Ok(groups), Ok(status)) = (read("cgroup"), read("status")) else { return false };
    let is_first = status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"));
    groups.contains(pod_uid) && is_first && status.starts_with("Name:\tseance-runner")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_is_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is everywhere");
        let pid = i32::try_from(child.id()).expect("a process number");
        assert!(is_alive(pid) && processes().any(|found| found == pid));
        assert!(!is_first_of(pid, "no-such-pod"));
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is ours");
        child.wait().expect("it was killed");
        assert!(!is_alive(pid));
    }
}
