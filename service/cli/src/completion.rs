//! Completion scripts of shells.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;

use crate::display;

/// Prints the script.
pub fn completion(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::args::Args::command(), "seance", &mut script);
    display::say(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
