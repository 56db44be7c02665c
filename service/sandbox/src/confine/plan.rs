//! What the keeper is told, as its command line.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{At, Result};

/// How far the confinement goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All of it.
    Confined {
        /// The user to become, where the keeper has root's rights.
        uid: Option<u32>,
    },
    /// None of it: the runner is an ordinary process that dies with the service.
    Unconfined,
}

/// One sandbox to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The process that must be the keeper's parent.
    pub(crate) parent: u32,
    pub(crate) mode: Mode,
    /// The size of the folder inside that can be written, in bytes.
    pub(crate) scratch_bytes: u64,
    /// Files and folders that the runner needs, by absolute path.
    pub(crate) files: Vec<PathBuf>,
    /// Control groups to join.
    pub(crate) cgroups: Vec<PathBuf>,
    /// Only reports what would be in force.
    pub(crate) check_only: bool,
    /// The runner's binary outside, and its arguments.
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
}

impl Plan {
    /// The command line after [`super::INIT_COMMAND`].
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: OsString| args.extend([OsString::from(name), value]);
        option("--parent", self.parent.to_string().into());
        option("--scratch", self.scratch_bytes.to_string().into());
        for file in &self.files {
            option("--file", file.into());
        }
        for cgroup in &self.cgroups {
            option("--cgroup", cgroup.into());
        }
        match self.mode {
            Mode::Confined { uid: Some(uid) } => option("--uid", uid.to_string().into()),
            Mode::Confined { uid: None } => {}
            Mode::Unconfined => args.push("--unconfined".into()),
        }
        if self.check_only {
            args.push("--check".into());
        }
        args.push("--".into());
        args.push(self.program.clone().into());
        args.extend(self.args.iter().cloned());
        args
    }

    /// Reads what [`Plan::to_args`] wrote.
    pub(crate) fn from_args(args: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let mut args = args.into_iter();
        let mut plan = Self {
            parent: 0,
            mode: Mode::Confined { uid: None },
            scratch_bytes: 0,
            files: Vec::new(),
            cgroups: Vec::new(),
            check_only: false,
            program: PathBuf::new(),
            args: Vec::new(),
        };
        loop {
            let name = args.next().ok_or_else(|| bad("-- and a program")).at("arguments")?;
            let mut value = || args.next().ok_or_else(|| bad("a value")).at("arguments");
            match name.to_str() {
                Some("--parent") => plan.parent = number(&value()?)?,
                Some("--scratch") => plan.scratch_bytes = number(&value()?)?,
                Some("--file") => plan.files.push(value()?.into()),
                Some("--cgroup") => plan.cgroups.push(value()?.into()),
                Some("--uid") => plan.mode = Mode::Confined { uid: Some(number(&value()?)?) },
                Some("--unconfined") => plan.mode = Mode::Unconfined,
                Some("--check") => plan.check_only = true,
                Some("--") => break,
                _ => return Err(bad("a known option")).at("arguments"),
            }
        }
        plan.program = args.next().ok_or_else(|| bad("a program")).at("arguments")?.into();
        plan.args = args.collect();
        Ok(plan)
    }
}

fn number<T: std::str::FromStr>(text: &OsString) -> Result<T> {
    text.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| bad("a number")).at("arguments")
}

fn bad(expected: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_command_line() {
        for mode in [Mode::Confined { uid: None }, Mode::Confined { uid: Some(7) }, Mode::Unconfined] {
            let plan = Plan {
                parent: 12,
                mode,
                scratch_bytes: 1 << 40,
                files: vec!["/lib/a.so".into()],
                cgroups: vec!["/c/1".into(), "/c/2".into()],
                check_only: mode == Mode::Unconfined,
                program: "/bin/x".into(),
                args: vec!["runner".into(), "--".into(), "--uid".into()],
            };
            assert_eq!(Plan::from_args(plan.to_args()).unwrap(), plan);
        }
    }

    #[test]
    fn a_command_line_that_is_no_plan_is_refused() {
        for args in [&[][..], &["--parent"], &["--parent", "x", "--", "p"], &["--what", "--", "p"], &["--"]] {
            assert!(Plan::from_args(args.iter().map(OsString::from)).is_err(), "{args:?}");
        }
    }
}
