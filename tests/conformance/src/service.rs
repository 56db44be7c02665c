//! The service under test: found beside this program or built, started with a data folder of its
//! own, waited for, and ended so that no process of it is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// How long the service may take until it is ready.
const READY_MAX: Duration = Duration::from_secs(30);
/// How long it may take to end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(20);
/// How often a condition without a stream is looked at.
const POLL: Duration = Duration::from_millis(20);

/// A process that can be looked at.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    /// Its id.
    pub pid: i32,
}

impl Process {
    /// Its resident memory.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmRSS")?;
        Ok(kib * 1024)
    }

    /// Its children, theirs, and so on.
    pub fn descendants(&self) -> BTreeSet<i32> {
        let parents = parents();
        let mut found = BTreeSet::from([self.pid]);
        loop {
            let new: Vec<i32> = parents
                .iter()
                .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if new.is_empty() {
                found.remove(&self.pid);
                return found;
            }
            found.extend(new);
        }
    }

    /// Its children alone.
    pub fn children(&self) -> BTreeSet<i32> {
        parents().into_iter().filter(|(_, parent)| *parent == self.pid).map(|(pid, _)| pid).collect()
    }
}

/// Every process of the machine that is not a zombie, with its parent.
fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The command's name may hold anything; what follows its last bracket is plain.
            let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
            (rest.next()? != "Z").then_some((pid, rest.next()?.parse().ok()?))
        })
        .collect()
}

/// A service that was started for this run.
#[derive(Debug)]
pub struct Service {
    child: Child,
    /// Where it answers.
    pub address: String,
    /// Its process.
    pub process: Process,
    /// What it writes to standard error.
    pub log: PathBuf,
    folder: tempfile::TempDir,
}

/// The flags of `seance` that this suite depends on.
fn serve_command(seance: &Path, data: &Path) -> Command {
    let mut command = Command::new(seance);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "off", "--data-dir"]).arg(data);
    command.args(["--max-sandboxes", "64", "--max-sessions", "256"]);
    command
}

/// Finds `seance` beside this program. Under `cargo run` it is built first, so that what is tested
/// is what is written; that costs nothing when it is fresh.
async fn executable() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let folder = own.parent().context("this program has no folder")?;
    let beside = folder.join("seance");
    let cargo = std::env::var_os("CARGO");
    if beside.is_file() && cargo.is_none() {
        return Ok(beside);
    }
    let target = folder.parent().context("no target folder")?;
    let mut build = Command::new(cargo.unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "-p", "seance-cli", "--target-dir"]).arg(target);
    if folder.file_name().is_some_and(|profile| profile == "release") {
        build.arg("--release");
    }
    build.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    eprintln!("building seance (cargo build -p seance-cli)");
    let status = build.status().await.context("running cargo build -p seance-cli")?;
    ensure!(status.success(), "cargo build -p seance-cli failed: {status}");
    ensure!(beside.is_file(), "cargo build -p seance-cli did not make {}", beside.display());
    Ok(beside)
}

impl Service {
    /// Starts a service and waits until it is ready.
    pub async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for the service")?;
        Self::start_in(folder).await
    }

    /// Kills the service as a power cut would, and starts it again on what it has written.
    pub async fn kill_and_start(mut self) -> anyhow::Result<Self> {
        let family = self.process.descendants();
        self.child.kill().await.context("killing the service")?;
        none_left(&family).await?;
        Self::start_in(self.folder).await
    }

    async fn start_in(folder: tempfile::TempDir) -> anyhow::Result<Self> {
        let seance = executable().await?;
        let log = folder.path().join("service.log");
        let mut command = serve_command(&seance, &folder.path().join("data"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::options().create(true).append(true).open(&log)?);
        command.kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("starting {}", seance.display()))?;
        let pid = child.id().context("the service ended at once")?;
        let process = Process { pid: i32::try_from(pid)? };
        let address = tokio::time::timeout(READY_MAX, address(&mut child)).await;
        let address = address.context("the service did not say its address in time").and_then(|a| a);
        let address = address.with_context(|| log_tail(&log))?;
        wait_until_ready(&address).await.with_context(|| log_tail(&log))?;
        Ok(Self { child, address, process, log, folder })
    }

    /// Ends the service and proves that nothing of it is left.
    pub async fn end(mut self) -> anyhow::Result<()> {
        let family = self.process.descendants();
        kill(Pid::from_raw(self.process.pid), Signal::SIGTERM).context("ending the service")?;
        let Ok(status) = tokio::time::timeout(END_MAX, self.child.wait()).await else {
            self.child.kill().await.context("killing the service")?;
            bail!("the service did not end within {END_MAX:?} of SIGTERM; {}", log_tail(&self.log));
        };
        let status = status.context("waiting for the service")?;
        ensure!(status.success(), "the service ended with {status}; {}", log_tail(&self.log));
        let left = none_left(&family).await;
        self.folder.close().context("removing the service's folder")?;
        left
    }
}

async fn none_left(family: &BTreeSet<i32>) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let left: Vec<i32> =
            parents().into_iter().map(|(pid, _)| pid).filter(|p| family.contains(p)).collect();
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "processes of the service are left: {left:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// The address that the service says it listens on.
async fn address(child: &mut Child) -> anyhow::Result<String> {
    let stdout = child.stdout.take().expect("it was piped");
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some(address) = address_in(&line) {
            // What it writes later is read and dropped, so that it can't block on a full pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(address);
        }
    }
    bail!("the service ended before it said its address")
}

fn address_in(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("127.0.0.1:")?;
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!port.is_empty() && port != "0").then(|| format!("http://127.0.0.1:{port}"))
}

async fn wait_until_ready(address: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_MAX;
    loop {
        let status = health(address).await;
        if matches!(status, Ok(ServingStatus::Serving)) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the service at {address} is not ready: {status:?}");
        tokio::time::sleep(POLL).await;
    }
}

async fn health(address: &str) -> anyhow::Result<ServingStatus> {
    let endpoint = tonic::transport::Channel::from_shared(address.to_owned())?;
    let mut client = HealthClient::new(endpoint.connect().await?);
    let response = client.check(HealthCheckRequest::default()).await?;
    Ok(response.into_inner().status())
}

fn log_tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    let tail: Vec<&str> = lines.into_iter().rev().collect();
    format!("the end of its log: {}", tail.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_a_line() {
        let found = address_in("listening on 127.0.0.1:40123 (plain text)");
        assert_eq!(found.as_deref(), Some("http://127.0.0.1:40123"));
        assert_eq!(address_in("binding 127.0.0.1:0"), None);
        assert_eq!(address_in("hello"), None);
    }

    #[test]
    fn a_process_sees_its_children_and_its_memory() {
        let process = Process { pid: i32::try_from(std::process::id()).unwrap() };
        assert!(process.resident_bytes().unwrap() > 0);
        let mut child = std::process::Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(process.children().contains(&pid) && process.descendants().contains(&pid));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!process.descendants().contains(&pid));
    }
}
