//! The Ruby host: CRuby as it is found on the machine, one process for each program.
//!
//! What a program may rely on:
//!
//! - Its value is that of its last expression, or of `return` at its top. `nil` is no value.
//! - `tools.name(key: value)` waits for the value. `tools.parallel` runs callables side by side, each a fiber
//!   that gives way to the others where it calls a tool or sleeps; threads that the program starts may call
//!   tools, too.
//! - `tools`, `ALL_TOOLS`, `INPUTS` (`FRAME` where it was given), `text`, `finish`, `store`, `ToolError`, and the
//!   language with its standard library and the gems of the machine. Standard output and error are output.
//! - Values cross as JSON; `values.rb` says how each kind is written.
//! - What it registers with `at_exit` is not run. Processes can't be started, and no file can be written.

use super::interpreted::Language;

/// Ruby.
pub const LANGUAGE: Language = Language {
    engine: &["ruby"],
    interpreters: ["/usr/local/bin/ruby", "/usr/bin/ruby"],
    // Messages of errors without a second copy of the source's line.
    arguments: &["-W0", "-E", "UTF-8", "--disable=error_highlight", "-e"],
    boot: include_str!("ruby/boot.rb"),
    files: &[
        ("frames", include_str!("ruby/frames.rb")),
        ("values", include_str!("ruby/values.rb")),
        ("errors", include_str!("ruby/errors.rb")),
        ("calls", include_str!("ruby/calls.rb")),
        ("surface", include_str!("ruby/surface.rb")),
        ("host", include_str!("ruby/host.rb")),
        ("parent", include_str!("ruby/parent.rb")),
    ],
    calls: &[
        libc::SYS_timer_create,
        libc::SYS_timer_settime,
        libc::SYS_timer_delete,
        libc::SYS_sched_getparam,
        libc::SYS_sched_getscheduler,
    ],
};
