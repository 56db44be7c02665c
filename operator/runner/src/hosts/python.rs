//! The Python host: CPython as it is found on the machine, one process for each program.
//!
//! The interpreter runs in isolated mode, so that neither the environment nor the working folder has a say
//! in what is imported.
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

use super::interpreted::Language;

/// Python.
pub const LANGUAGE: Language = Language {
    engine: &["python"],
    interpreters: ["/usr/local/bin/python3", "/usr/bin/python3"],
    arguments: &["-I", "-B", "-X", "utf8", "-c"],
    boot: include_str!("python/boot.py"),
    files: &[
        ("_seance_frames", include_str!("python/frames.py")),
        ("_seance_values", include_str!("python/values.py")),
        ("_seance_errors", include_str!("python/errors.py")),
        ("_seance_calls", include_str!("python/calls.py")),
        ("_seance_surface", include_str!("python/surface.py")),
        ("_seance_source", include_str!("python/source.py")),
        ("_seance_host", include_str!("python/host.py")),
        ("_seance_parent", include_str!("python/parent.py")),
    ],
    calls: &[],
};
