//! Completion scripts of shells.

use std::process::ExitCode;

use clap::CommandFactory;

/// Prints the script.
pub fn completion(shell: clap_complete::Shell) -> ExitCode {
    clap_complete::generate(shell, &mut crate::args::Args::command(), "seance", &mut std::io::stdout());
    ExitCode::SUCCESS
}
