//! The runner: the program inside a sandbox that runs a session's programs, each in a host.
//!
//! It dials out over the link and is hostile in the eyes of the service. One binary has three modes,
//! chosen by its first argument:
//!
//! - `runner --link-fd N [--interpreter ENGINE PATH] [--self-exe PATH] [--host-prefix ARGUMENT]...`, the default:
//!   takes one session over the connected stream socket N and ends when the service says so or the
//!   socket breaks. Exit status 0 for an ending in order, 1 otherwise with the reason on standard error.
//! - `pod`: the same in a pod, over the network; how is said by the environment, see
//!   [`runner::Config::for_pod`]. A link that breaks is dialled again, and programs go on meanwhile.
//! - `host-javascript`: the warm parent that forks a host for each program, as asked over the
//!   socket at descriptor 3. Only a runner starts it.
//!
//! A runner offers one engine. With an interpreter that is its own, whose warm parent is the interpreter
//! itself, given the host's source. Else it is JavaScript, whose warm parent is started as
//! `PATH ARGUMENT... host-javascript`, by default this very program.
//! A binary that offers [`main_from_args`] under a command of its own passes that command's words
//! as prefixes: `--host-prefix runner-internal`.

pub mod hosts;
pub mod runner;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs one of the modes; `args` starts with the mode and does not have the program's name.
pub fn main_from_args(args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut args = args.peekable();
    match args.peek().and_then(|mode| mode.to_str()) {
        Some("host-javascript") => hosts::javascript::host_main(),
        Some("runner") => runner_main(args.skip(1)),
        Some("pod") => {
            let environment = |name: &str| std::env::var(name).ok();
            run(runner::Config::for_pod(args.skip(1), environment))
        }
        _ => runner_main(args),
    }
}

/// Runs a runner with its arguments.
pub fn runner_main(args: impl Iterator<Item = OsString>) -> ExitCode {
    run(runner::Config::from_args(args))
}

fn run(config: Result<runner::Config, runner::ConfigError>) -> ExitCode {
    match config.map_err(runner::Error::from).and_then(runner::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seance-runner: {:#}", anyhow::Error::new(error));
            ExitCode::FAILURE
        }
    }
}
