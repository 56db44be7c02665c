//! How a runner is started.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use crate::hosts::engine::Engine;
use crate::hosts::{confine, interpreted, javascript, readable};

/// The most forbidden ways out that a runner tries.
const TARGETS_MAX: usize = 64;

/// Arguments that make no runner.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument is not known.
    #[error("unknown argument {0:?}")]
    Unknown(OsString),
    /// An argument lacks its value, or the value is not of its kind.
    #[error("argument {0} needs a proper value")]
    Value(&'static str),
    /// The filters of an interpreter's hosts can't be made for this machine.
    #[error("confining an interpreter's hosts")]
    Confinement(#[source] confine::Error),
    /// The image has no interpreter.
    #[error("the image has no interpreter at any of {0:?}; give the pool one that has")]
    NoInterpreter(&'static [&'static str]),
    /// Programs that can read files could read the link's token.
    #[error("this node's kernel has no Landlock, without which {0} programs could read the link's token")]
    NoLandlock(&'static str),
    /// There is no way to the service.
    #[error("one of the arguments is missing: --link-fd")]
    NoLink,
    /// A variable of the environment is missing, or its value is not of its kind.
    #[error("the environment's {name} needs {wanted}")]
    Variable {
        /// Which.
        name: &'static str,
        /// What would have been right.
        wanted: &'static str,
    },
}

/// A runner's configuration.
#[derive(Debug)]
pub struct Config {
    /// How the service is reached.
    pub dialer: Dialer,
    /// The engine that it offers.
    pub engine: Engine,
    /// What is looked at before and while it serves; nothing where the service made the sandbox itself.
    pub isolation: Option<Isolation>,
}

/// A way to the service.
#[derive(Debug)]
pub enum Dialer {
    /// A connected stream socket that was left open for us. It breaks once and for all.
    Inherited(OwnedFd),
    /// An address that is dialled again whenever the link breaks.
    Network(Network),
}

/// The service's link port.
#[derive(Debug, Clone)]
pub struct Network {
    /// `https://<IP>:<port>`.
    pub address: String,
    /// The name that its certificate has.
    pub server_name: String,
    /// The file with the token that is shown at the first contact; read at each dial.
    pub token_file: PathBuf,
    /// The file with the certificates that its certificate must lead to; read at each dial.
    pub ca_file: PathBuf,
}

/// What has to be closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// The forbidden ways out: a check's name and where something listens.
    pub targets: Vec<(String, SocketAddr)>,
    /// Whether it serves although nothing limits the number of its processes.
    pub accepts_no_pids_limit: bool,
}

impl Config {
    /// Reads `--link-fd N [--interpreter ENGINE PATH] [--self-exe PATH] [--host-prefix ARGUMENT]...`.
    ///
    /// With an interpreter the engine is its own, else JavaScript.
    /// The warm parent of hosts is started as `PATH ARGUMENT... host-javascript`; without a path it is this very
    /// program. A binary that has the runner under a command of its own gives that as prefixes.
    pub fn from_args(args: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let (mut link, mut interpreter) = (None, None);
        let host_command = host_command(args, |arg, args| {
            match arg {
                "--link-fd" => link = Some(fd(args.next().as_deref())?),
                "--interpreter" => {
                    let language = args.next().and_then(|name| interpreted::by_engine(name.to_str()?));
                    interpreter = Some(language.zip(args.next()).ok_or(Error::Value("--interpreter"))?);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let link = link.ok_or(Error::NoLink)?;
        let engine = match interpreter {
            Some((language, path)) => language.engine(Path::new(&path)).map_err(Error::Confinement)?,
            None => javascript::engine(host_command),
        };
        Ok(Self { dialer: Dialer::Inherited(link), engine, isolation: None })
    }

    /// Reads `[--self-exe PATH] [--host-prefix ARGUMENT]...` and what a pod's environment says:
    /// `SEANCE_LINK_ADDRESS`, `SEANCE_LINK_SERVER_NAME`, `SEANCE_LINK_TOKEN_FILE`,
    /// `SEANCE_LINK_CA_FILE`, `SEANCE_ISOLATION_CHECKS`, `SEANCE_ACCEPT_NO_PIDS_LIMIT`, and
    /// `SEANCE_ENGINE`, which is JavaScript where it doesn't say.
    pub fn for_pod(
        args: impl Iterator<Item = OsString>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let host_command = host_command(args, |_, _| Ok(false))?;
        let needed = |name: &'static str, wanted| {
            environment(name).filter(|value| !value.is_empty()).ok_or(Error::Variable { name, wanted })
        };
        let address = needed("SEANCE_LINK_ADDRESS", "https://<IP>:<port>")?;
        if address.strip_prefix("https://").is_none_or(|rest| rest.parse::<SocketAddr>().is_err()) {
            return Err(Error::Variable { name: "SEANCE_LINK_ADDRESS", wanted: "https://<IP>:<port>" });
        }
        let network = Network {
            address,
            server_name: needed("SEANCE_LINK_SERVER_NAME", "a name")?,
            token_file: needed("SEANCE_LINK_TOKEN_FILE", "a path")?.into(),
            ca_file: needed("SEANCE_LINK_CA_FILE", "a path")?.into(),
        };
        let isolation = Isolation {
            targets: targets(&environment("SEANCE_ISOLATION_CHECKS").unwrap_or_default())?,
            accepts_no_pids_limit: environment("SEANCE_ACCEPT_NO_PIDS_LIMIT").as_deref() == Some("true"),
        };
        let engine = match environment("SEANCE_ENGINE").as_deref() {
            None | Some("javascript") => javascript::engine(host_command),
            Some(name) => {
                const WANTED: &str = "javascript, python or ruby";
                let language = interpreted::by_engine(name);
                of_image(language.ok_or(Error::Variable { name: "SEANCE_ENGINE", wanted: WANTED })?)?
            }
        };
        Ok(Self { dialer: Dialer::Network(network), engine, isolation: Some(isolation) })
    }
}

fn of_image(language: &'static interpreted::Language) -> Result<Engine, Error> {
    if !readable::has_landlock() {
        return Err(Error::NoLandlock(language.engine[0]));
    }
    let path = language.interpreters.iter().map(Path::new).find(|path| path.exists());
    language.engine(path.ok_or(Error::NoInterpreter(&language.interpreters))?).map_err(Error::Confinement)
}

/// Reads what all modes have; `other` takes an argument of its own, or says that it has none such.
fn host_command(
    mut args: impl Iterator<Item = OsString>,
    mut other: impl FnMut(&str, &mut dyn Iterator<Item = OsString>) -> Result<bool, Error>,
) -> Result<Vec<OsString>, Error> {
    let mut command = vec![OsString::from("/proc/self/exe")];
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--self-exe") => {
                command[0] = PathBuf::from(args.next().ok_or(Error::Value("--self-exe"))?).into();
            }
            Some("--host-prefix") => command.push(args.next().ok_or(Error::Value("--host-prefix"))?),
            Some(name) if other(name, &mut args)? => {}
            _ => return Err(Error::Unknown(arg)),
        }
    }
    Ok(command)
}

fn targets(json: &str) -> Result<Vec<(String, SocketAddr)>, Error> {
    const NAME: &str = "SEANCE_ISOLATION_CHECKS";
    const WANTED: &str = r#"at most 64 of {"name": "...", "address": "<IP>:<port>"}"#;
    let refused = || Error::Variable { name: NAME, wanted: WANTED };
    if json.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<serde_json::Value> = serde_json::from_str(json).map_err(|_| refused())?;
    if list.len() > TARGETS_MAX {
        return Err(refused());
    }
    let target = |value: &serde_json::Value| {
        let name = value.get("name")?.as_str()?.to_owned();
        Some((name, value.get("address")?.as_str()?.parse().ok()?))
    };
    list.iter().map(|value| target(value).ok_or_else(refused)).collect()
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

    fn pod(change: (&str, &str)) -> Result<Config, Error> {
        let environment = |name: &str| {
            let value = match name {
                name if name == change.0 => change.1,
                "SEANCE_LINK_ADDRESS" => "https://10.0.0.1:7443",
                "SEANCE_LINK_SERVER_NAME" => "seance-link",
                "SEANCE_LINK_TOKEN_FILE" => "/t",
                "SEANCE_LINK_CA_FILE" => "/c",
                "SEANCE_ISOLATION_CHECKS" => r#"[{"name":"api-server","address":"10.96.0.1:443"}]"#,
                _ => return None,
            };
            Some(value.to_owned())
        };
        Config::for_pod(std::iter::empty(), environment)
    }

    #[test]
    fn a_pods_environment_is_checked_as_a_whole() {
        let isolation = pod(("", "")).unwrap().isolation.unwrap();
        assert_eq!(isolation.targets, [("api-server".to_owned(), "10.96.0.1:443".parse().unwrap())]);
        assert!(!isolation.accepts_no_pids_limit);
        assert!(
            pod(("SEANCE_ACCEPT_NO_PIDS_LIMIT", "true")).unwrap().isolation.unwrap().accepts_no_pids_limit
        );
        for (name, value) in [
            ("SEANCE_LINK_ADDRESS", "http://10.0.0.1:1"),
            ("SEANCE_LINK_ADDRESS", "https://a.name:1"),
            ("SEANCE_LINK_SERVER_NAME", ""),
            ("SEANCE_LINK_TOKEN_FILE", ""),
            ("SEANCE_ENGINE", "cobol"),
            ("SEANCE_LINK_CA_FILE", ""),
            ("SEANCE_ISOLATION_CHECKS", "{}"),
            ("SEANCE_ISOLATION_CHECKS", r#"[{"name":"a","address":"b"}]"#),
        ] {
            assert!(pod((name, value)).is_err(), "{name}={value}");
        }
    }
}
