//! For the tests of the runner: a warm parent whose hosts become what a script says.
//!
//! `hostile_parent SCRIPT host-javascript`, as a runner starts it with that prefix.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let script = std::env::args_os().nth(1).expect("the test gives a script");
    let failed = match seance_runner::hosts::parent::fork_hosts() {
        Ok(()) => Command::new(script).exec(),
        Err(error) => error,
    };
    eprintln!("hostile_parent: {failed}");
    ExitCode::FAILURE
}
