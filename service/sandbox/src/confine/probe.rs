//! Whether this machine can confine programs, tried without starting a runner, and what to do
//! where it can't (O2, O3).

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Controllers, INIT_COMMAND, Mode, Plan, needed_by};

/// A program and the arguments that come before ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The binary.
    pub path: PathBuf,
    /// Its first arguments.
    pub args: Vec<OsString>,
}

impl Program {
    /// A binary without arguments of its own.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), args: Vec::new() }
    }
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The confinement that would be in force, by name; what is missing is not listed.
    pub capabilities: Vec<String>,
    /// Why programs can't be confined here, when they can't.
    pub missing: Option<Missing>,
}

impl Probe {
    /// Whether programs can be confined here.
    pub fn available(&self) -> bool {
        self.missing.is_none()
    }
}

/// Something that the confinement requires and this machine doesn't give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("programs can't be confined here: {reason}. To do: {remedy}")]
pub struct Missing {
    /// The step that failed and the system's answer.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

/// The AppArmor profile that lets the service make user namespaces.
pub const APPARMOR_PROFILE: &str = include_str!("../../apparmor/seance");

/// Confines a process in every required way and lets it end. `init` is the service's own binary,
/// `runner` the one that would be run. Takes some milliseconds and blocks.
pub fn probe(init: &Program, runner: &Program) -> Probe {
    let found = mode().and_then(|mode| {
        let plan = Plan {
            parent: std::process::id(),
            mode,
            scratch_bytes: 1 << 20,
            files: needed_by(&runner.path)?,
            cgroups: Vec::new(),
            check_only: true,
            program: runner.path.clone(),
            args: Vec::new(),
        };
        let mut command = Command::new(&init.path);
        command.args(&init.args).arg(INIT_COMMAND).args(plan.to_args());
        command.env_clear().stdin(Stdio::null()).output()
    });
    let output = match found {
        Ok(output) => output,
        Err(error) => return missing(&error.to_string()),
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let prefix = format!("{INIT_COMMAND}: ");
        let step = text.lines().rev().find_map(|line| line.strip_prefix(&prefix));
        return missing(step.unwrap_or("the keeper of the sandbox did not start"));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let mut capabilities: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    capabilities.extend(Controllers::detect().map(|controllers| controllers.name().to_owned()));
    Probe { capabilities, missing: None }
}

/// How this process can confine: as root with a user that owns nothing, or with its own user.
pub(crate) fn mode() -> io::Result<Mode> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Mode::Confined { uid: None });
    }
    for capability in
        [caps::Capability::CAP_SYS_ADMIN, caps::Capability::CAP_SETUID, caps::Capability::CAP_SETGID]
    {
        if !caps::has_cap(None, caps::CapSet::Effective, capability).unwrap_or(false) {
            return Err(io::Error::other(format!("root without rights: {capability} is missing")));
        }
    }
    Ok(Mode::Confined { uid: Some(nobody()) })
}

/// A user that owns nothing. One far from those that people and packages have, where this machine
/// or container has so many; else the traditional one.
fn nobody() -> u32 {
    const UNUSED: u32 = 0x7000_5ea0;
    const NOBODY: u32 = 65534;
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let has = |line: &str| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>());
        let (Some(Ok(first)), _, Some(Ok(n))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        (first..first.saturating_add(n)).contains(&u64::from(UNUSED))
    };
    if map.lines().any(has) { UNUSED } else { NOBODY }
}

fn missing(step: &str) -> Probe {
    let remedy = remedy(step, |name| std::fs::read_to_string(name).ok());
    Probe { capabilities: Vec::new(), missing: Some(Missing { reason: step.to_owned(), remedy }) }
}

/// What to do about a failed step; `read` gives the kernel's settings.
fn remedy(step: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let is = |name: &str, value: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        read(&path).is_some_and(|text| text.trim() == value)
    };
    let name = step.split(':').next().unwrap_or(step);
    if step.starts_with("root without rights") {
        return "run the service as an ordinary user, or as root with all its capabilities".to_owned();
    }
    if name == "runner and libraries" || name == "bind mounts" {
        return "let every user read and execute the runner's binary and its libraries".to_owned();
    }
    if is("kernel.apparmor_restrict_unprivileged_userns", "1") {
        return "copy service/sandbox/apparmor/seance to /etc/apparmor.d/seance and run \
            `sudo apparmor_parser -r /etc/apparmor.d/seance`, or run \
            `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
            .to_owned();
    }
    if is("kernel.unprivileged_userns_clone", "0") {
        return "run `sudo sysctl kernel.unprivileged_userns_clone=1`".to_owned();
    }
    if is("user.max_user_namespaces", "0") {
        return "run `sudo sysctl user.max_user_namespaces=15000`".to_owned();
    }
    match name {
        "proc filesystem" => "use Linux 5.8 or newer; in a container, run it with its /proc unmasked \
            (`--security-opt systempaths=unconfined`)"
            .to_owned(),
        "user namespace" | "namespaces" | "private mounts" | "root filesystem" | "new root"
        | "work folder" => "use a kernel with user namespaces; in a container, allow it to make them \
            (`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`)"
            .to_owned(),
        _ => "see the reason; with --unconfined programs run without any of this, which is fit only \
            for programs you would run yourself"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// O2, sandbox 42: the refusal says exactly what to do.
    #[test]
    fn a_refusal_names_the_setting() {
        let eperm = "user namespace: Operation not permitted (os error 1)";
        let with = |set: &'static str, value: &'static str| {
            remedy(eperm, move |name| (name == set).then(|| format!("{value}\n")))
        };
        let apparmor = with("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1");
        assert!(apparmor.contains("apparmor_parser -r /etc/apparmor.d/seance"), "{apparmor}");
        assert!(
            with("/proc/sys/kernel/unprivileged_userns_clone", "0").contains("unprivileged_userns_clone=1")
        );
        assert!(with("/proc/sys/user/max_user_namespaces", "0").contains("max_user_namespaces=15000"));
        assert!(remedy(eperm, |_| None).contains("--security-opt"));
        assert!(remedy("proc filesystem: Invalid argument", |_| None).contains("5.8"));
        assert!(remedy("root without rights: CAP_SYS_ADMIN is missing", |_| None).contains("ordinary user"));
    }

    #[test]
    fn the_profile_allows_user_namespaces() {
        assert!(APPARMOR_PROFILE.contains("userns,"));
    }
}
