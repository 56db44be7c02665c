//! Hosts of languages whose interpreter is found on the machine or in the image: what they have in common.
//!
//! The host itself is written in the language, and is given to the interpreter on its command line. The warm
//! parent loads what programs load, forks hosts, and never sees a program. A host confines itself after the
//! fork, says that it is ready, and waits for its program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::engine::Engine;
use super::{confine, python, readable, ruby};

/// Parsers recurse on the process's stack.
const STACK_BYTES: u64 = 64 * 1024 * 1024;
/// Where interpreters, their libraries and the time zones are.
const READABLE: [&str; 7] =
    ["/usr", "/lib", "/lib64", "/opt", "/var/lib/gems", "/etc/ld.so.cache", "/etc/localtime"];

/// A language with an interpreter.
#[derive(Debug)]
pub struct Language {
    /// The engine's name, and that of the one language it runs.
    pub engine: &'static [&'static str; 1],
    /// Where an interpreter is looked for in a pod, first come.
    pub interpreters: [&'static str; 2],
    /// What it is told before the host.
    pub(super) arguments: &'static [&'static str],
    /// Loads the files, in their order, each with those before it at hand.
    pub(super) boot: &'static str,
    pub(super) files: &'static [(&'static str, &'static str)],
    /// System calls that it needs beside those of every interpreter.
    pub(super) calls: &'static [i64],
}

/// All of them.
pub const LANGUAGES: [&Language; 2] = [&python::LANGUAGE, &ruby::LANGUAGE];

/// The language of the engine of this name.
pub fn by_engine(name: &str) -> Option<&'static Language> {
    LANGUAGES.into_iter().find(|language| language.engine[0] == name)
}

impl Language {
    /// The engine that this interpreter makes.
    pub fn engine(&self, interpreter: &Path) -> Result<Engine, confine::Error> {
        let filters: Vec<String> = confine::filters(self.calls)?.iter().map(hex::encode).collect();
        let facts = serde_json::json!({
            "calls": {
                "clone": libc::SYS_clone,
                "dup3": libc::SYS_dup3,
                "getrusage": libc::SYS_getrusage,
                "mmap": libc::SYS_mmap,
                "munmap": libc::SYS_munmap,
                "prctl": libc::SYS_prctl,
                "seccomp": libc::SYS_seccomp,
                "setitimer": libc::SYS_setitimer,
            },
            "filters": filters,
            "own_pid": confine::OWN_PID,
        });
        let mut command: Vec<OsString> = vec![interpreter.into()];
        command.extend(self.arguments.iter().map(OsString::from));
        command.extend([self.boot.into(), facts.to_string().into()]);
        command.extend(self.files.iter().flat_map(|(name, source)| [name.into(), source.into()]));
        let mut confinement = vec!["no_new_privs", "rlimits", "seccomp"];
        if readable::has_landlock() {
            confinement.push("landlock");
        }
        Ok(Engine {
            languages: self.engine,
            command,
            stack_bytes: STACK_BYTES,
            readable: Some(readable_by(interpreter)),
            confinement: confinement.into_iter().map(str::to_owned).collect(),
        })
    }
}

/// The usual places, and the folder tree that the interpreter was installed in.
fn readable_by(interpreter: &Path) -> Vec<PathBuf> {
    let file = interpreter.canonicalize().unwrap_or_else(|_| interpreter.to_owned());
    let prefix = file.parent().and_then(Path::parent).filter(|prefix| prefix.parent().is_some());
    READABLE.iter().map(PathBuf::from).chain(prefix.map(Path::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel takes no argument that is longer.
    #[test]
    fn every_part_of_a_host_fits_in_an_argument() {
        for language in LANGUAGES {
            let engine = language.engine(Path::new("/usr/bin/interpreter")).unwrap();
            assert!(engine.command.iter().all(|argument| argument.len() < 128 * 1024));
        }
    }
}
