//! The Python host: CPython as it is found on the machine, one process for each program.
//!
//! The host itself is Python, in the files beside this one, and is given to the interpreter on its
//! command line: in isolated mode, so that neither the environment nor the working folder has a say in
//! what is imported. The warm parent imports what programs import, forks hosts, and never sees a
//! program. A host confines itself after the fork, says that it is ready, and waits for its program.
//!
//! What a program may rely on:
//!
//! - `await` and `return` work at its top. The value is what it returns, else its last statement when
//!   that is an expression; an awaitable is awaited. `None` is no value.
//! - Its names are global, as in a module named `__main__`; `asyncio.run()` works where nothing is
//!   awaited at the top.
//! - A tool call is under way from the moment it is made. It is awaited like a coroutine, by itself or
//!   in `gather` and `TaskGroup`; used without `await` it waits for its value there and passes for it.
//! - `tools`, `ALL_TOOLS`, `INPUTS`, `text`, `finish`, `store`, `ToolError`, and the language with its
//!   standard library. `print` writes lines as `text` does.
//! - Values cross as JSON; `values.py` says how each kind is written.
//! - Threads may be started, but only the program's own calls tools. Processes can't be, and no file
//!   can be written.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::engine::Engine;
use super::readable;

mod confine;

/// The parser recurses on the process's stack.
const STACK_BYTES: u64 = 64 * 1024 * 1024;

/// Starts the others, in this order, each with those before it at hand.
const BOOT: &str = include_str!("python/boot.py");
const MODULES: &[(&str, &str)] = &[
    ("_seance_frames", include_str!("python/frames.py")),
    ("_seance_values", include_str!("python/values.py")),
    ("_seance_errors", include_str!("python/errors.py")),
    ("_seance_calls", include_str!("python/calls.py")),
    ("_seance_surface", include_str!("python/surface.py")),
    ("_seance_source", include_str!("python/source.py")),
    ("_seance_host", include_str!("python/host.py")),
    ("_seance_parent", include_str!("python/parent.py")),
];

/// Where an interpreter is looked for in a pod, first come.
pub const INTERPRETERS: [&str; 2] = ["/usr/local/bin/python3", "/usr/bin/python3"];
/// Where interpreters, their libraries and the time zones are.
const READABLE: [&str; 6] = ["/usr", "/lib", "/lib64", "/opt", "/etc/ld.so.cache", "/etc/localtime"];

/// The engine that this interpreter makes.
pub fn engine(interpreter: &Path) -> Result<Engine, confine::Error> {
    let filters: Vec<String> = confine::filters()?.iter().map(hex::encode).collect();
    let facts = serde_json::json!({
        "clone": libc::SYS_clone,
        "filters": filters,
        "own_pid": confine::OWN_PID,
    });
    let mut command: Vec<OsString> = vec![interpreter.into()];
    command.extend(["-I", "-B", "-X", "utf8", "-c", BOOT].map(OsString::from));
    command.push(facts.to_string().into());
    let mut confinement = vec!["no_new_privs", "rlimits", "seccomp"];
    if readable::has_landlock() {
        confinement.push("landlock");
    }
    command.extend(MODULES.iter().flat_map(|(name, source)| [name.into(), source.into()]));
    Ok(Engine {
        languages: &["python"],
        command,
        stack_bytes: STACK_BYTES,
        readable: Some(readable_by(interpreter)),
        confinement: confinement.into_iter().map(str::to_owned).collect(),
    })
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
    fn every_part_of_the_host_fits_in_an_argument() {
        let engine = engine(Path::new("/usr/bin/python3")).unwrap();
        assert!(engine.command.iter().all(|argument| argument.len() < 128 * 1024));
    }
}
