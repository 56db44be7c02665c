//! The runner's binary; everything is in the library, so that the `seance` binary can be a runner
//! too.

use std::process::ExitCode;

fn main() -> ExitCode {
    seance_runner::main_from_args(std::env::args_os().skip(1))
}
