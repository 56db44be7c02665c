//! The engines of this machine: what a runner is told for each, and the files that it needs inside.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::confine::needed_by;

/// An interpreter that a machine can have.
struct Interpreter {
    /// The engine's name.
    engine: &'static str,
    /// What people call it.
    title: &'static str,
    /// Where it is looked for, first come.
    paths: [&'static str; 2],
    /// The oldest that has what is promised to programs.
    version_min: (u32, u32),
    /// What it is told before the probe: to take nothing from its surroundings.
    arguments: &'static [&'static str],
    /// Tells the version and the files of the interpreter that runs it.
    probe: &'static str,
}

const INTERPRETERS: [Interpreter; 2] = [
    Interpreter {
        engine: "python",
        title: "Python",
        paths: ["/usr/local/bin/python3", "/usr/bin/python3"],
        version_min: (3, 11),
        arguments: &["-I", "-B", "-c"],
        probe: include_str!("python_files.py"),
    },
    Interpreter {
        engine: "ruby",
        title: "Ruby",
        paths: ["/usr/local/bin/ruby", "/usr/bin/ruby"],
        version_min: (3, 1),
        arguments: &["-W0", "-e"],
        probe: include_str!("ruby_files.rb"),
    },
];

/// What the probe may print before we stop reading, in bytes.
const LISTING_BYTES_MAX: u64 = 64 * 1024;
/// How long the probe may take. It is killed then.
const LISTING_TIMEOUT: Duration = Duration::from_secs(10);
/// Files and folders of an interpreter.
const FILES_MAX: usize = 160;

/// An engine that runners here can offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Engine {
    /// Its name.
    pub(super) name: &'static str,
    /// The interpreter; empty for one that the runner has in it.
    pub(super) interpreter: PathBuf,
    /// Files and folders beside the runner's own that are needed inside, by absolute path.
    pub(super) files: Vec<PathBuf>,
}

impl Engine {
    /// The one that the runner has in it.
    pub(super) fn javascript() -> Self {
        Self { name: "javascript", interpreter: PathBuf::new(), files: Vec::new() }
    }

    /// The one of this machine's interpreter, or why there is none and what to do. Runs it, which takes
    /// some hundred milliseconds.
    pub(super) async fn interpreted(name: &str) -> Result<Self, String> {
        let known = INTERPRETERS.iter().find(|interpreter| interpreter.engine == name);
        let interpreter = known.ok_or_else(|| format!("no interpreter is known for {name:?}"))?;
        let Interpreter { engine, title, paths, .. } = interpreter;
        let path = paths.iter().map(Path::new).find(|path| path.exists()).ok_or_else(|| {
            format!("no {title} interpreter is at {}; install {}", paths.join(" or "), package(paths[1]))
        })?;
        let files = interpreter.files(path).await;
        let files = files.map_err(|error| format!("{} is of no use: {error}", path.display()))?;
        Ok(Self { name: engine, interpreter: path.to_owned(), files })
    }

    /// What its runner is told.
    pub(super) fn args(&self) -> Vec<OsString> {
        if self.interpreter.as_os_str().is_empty() {
            return Vec::new();
        }
        vec!["--interpreter".into(), self.name.into(), self.interpreter.clone().into()]
    }
}

/// The package that a program of this path is in.
fn package(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Interpreter {
    /// The files and folders that the one at `path` needs.
    async fn files(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let listing = self.listing(path).await?;
        let mut lines = listing.lines();
        let version = lines.next().unwrap_or_default();
        if parsed(version).is_none_or(|version| version < self.version_min) {
            let (major, minor) = self.version_min;
            return Err(io::Error::other(format!(
                "its version is {version:?}, and {major}.{minor} is needed"
            )));
        }
        let binary = path.to_owned();
        let needed = tokio::task::spawn_blocking(move || needed_by(&binary)).await;
        let mut files = needed.expect("looking doesn't panic and is never aborted")?;
        files.push(path.to_owned());
        files.extend(lines.map(PathBuf::from).filter(|path| path.is_absolute()));
        // How libraries are found that are in no usual place.
        files.extend(Some(PathBuf::from("/etc/ld.so.cache")).filter(|path| path.exists()));
        files.sort();
        files.dedup();
        if files.len() > FILES_MAX {
            return Err(io::Error::other(format!("it needs {} files", files.len())));
        }
        Ok(files)
    }

    async fn listing(&self, path: &Path) -> io::Result<String> {
        let mut command = Command::new(path);
        command.args(self.arguments).arg(self.probe).env_clear().current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let mut listing = String::new();
        let mut output = child.stdout.take().expect("it was asked for").take(LISTING_BYTES_MAX);
        let told = async {
            output.read_to_string(&mut listing).await?;
            child.wait().await
        };
        let told = tokio::time::timeout(LISTING_TIMEOUT, told).await;
        let status =
            told.map_err(|_| io::Error::other(format!("it ran for {LISTING_TIMEOUT:?} without an end")))??;
        if status.success() { Ok(listing) } else { Err(io::Error::other(format!("it ended with {status}"))) }
    }
}

/// The first two numbers of a version such as "3.11.2".
fn parsed(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 5: the interpreter and its standard library, and no folder around them.
    #[tokio::test]
    async fn the_files_of_this_machines_interpreters_are_found() {
        for (name, binary, library) in
            [("python", "python3", "asyncio/base_events.py"), ("ruby", "ruby", "net/http.rb")]
        {
            let engine = Engine::interpreted(name).await.expect("the tests need python3 and ruby");
            assert!(engine.files.iter().any(|path| path.ends_with(binary)), "{engine:?}");
            assert!(engine.files.iter().any(|path| path.join(library).is_file()), "{engine:?}");
            for broad in ["/", "/usr", "/usr/lib", "/usr/bin", "/lib", "/etc"] {
                assert!(!engine.files.contains(&PathBuf::from(broad)), "{broad}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_interpreter_is_said_to_be_none() {
        for (program, why) in
            [("/bin/true", "version"), ("/bin/false", "ended"), ("/bin/none", "No such file")]
        {
            let error = INTERPRETERS[0].files(Path::new(program)).await.unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(parsed("3.11.2"), Some((3, 11)));
        assert_eq!(parsed("3"), None);
        assert!(parsed("3.9.2") < Some(INTERPRETERS[0].version_min));
    }
}
