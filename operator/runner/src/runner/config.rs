//! How a runner is started.

use std::ffi::{OsStr, OsString};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// Arguments that make no runner.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument is not known.
    #[error("unknown argument {0:?}")]
    Unknown(OsString),
    /// An argument lacks its value, or the value is not of its kind.
    #[error("argument {0} needs a proper value")]
    Value(&'static str),
    /// There is no way to the service.
    #[error("one of the arguments is missing: --link-fd")]
    NoLink,
}

/// A runner's configuration.
#[derive(Debug)]
pub struct Config {
    /// How the service is reached.
    pub dialer: Dialer,
    /// The program that a host is, and the arguments before its mode.
    pub host_command: Vec<OsString>,
}

/// A way to the service. A network address with TLS is another one, which only clusters need.
#[derive(Debug)]
pub enum Dialer {
    /// A connected stream socket that was left open for us. It breaks once and for all.
    Inherited(OwnedFd),
}

impl Config {
    /// Reads `--link-fd N [--self-exe PATH] [--host-prefix ARGUMENT]...`.
    ///
    /// The warm parent of hosts is started as `PATH ARGUMENT... host-javascript`; without a path it is this very
    /// program. A binary that has the runner under a command of its own gives that as prefixes.
    pub fn from_args(args: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let mut args = args;
        let mut link = None;
        let mut command = vec![OsString::from("/proc/self/exe")];
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--link-fd") => link = Some(fd(args.next().as_deref())?),
                Some("--self-exe") => {
                    command[0] = PathBuf::from(args.next().ok_or(Error::Value("--self-exe"))?).into();
                }
                Some("--host-prefix") => command.push(args.next().ok_or(Error::Value("--host-prefix"))?),
                _ => return Err(Error::Unknown(arg)),
            }
        }
        let link = link.ok_or(Error::NoLink)?;
        Ok(Self { dialer: Dialer::Inherited(link), host_command: command })
    }
}

fn fd(value: Option<&OsStr>) -> Result<OwnedFd, Error> {
    let number = value.and_then(OsStr::to_str).and_then(|value| value.parse::<RawFd>().ok());
    let number = number.filter(|number| *number > 2).ok_or(Error::Value("--link-fd"))?;
    // SAFETY: asks about a descriptor by number only.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(Error::Value("--link-fd"));
    }
    // SAFETY: it is open, and whoever started us left it for us alone; this runs once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_make_no_runner_are_refused() {
        for args in
            [&[][..], &["--link-fd"], &["--link-fd", "x"], &["--link-fd", "1"], &["--link-fd", "987654"]]
        {
            assert!(Config::from_args(args.iter().map(OsString::from)).is_err(), "{args:?}");
        }
        assert!(matches!(Config::from_args(["--other".into()].into_iter()), Err(Error::Unknown(_))));
    }
}
