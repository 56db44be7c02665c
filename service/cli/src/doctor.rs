//! `seance doctor`: what this machine has, and what it lacks.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use seance_sandbox::confine::{Program, probe};

use crate::args::Doctor;
use crate::display;

/// Prints the confinement that can be had here. Exit status 1 when programs can't be confined.
pub fn doctor(_doctor: Doctor, json: bool) -> Result<ExitCode> {
    let binary = Program::new(std::env::current_exe().context("can't find this program's own file")?);
    let probe = probe(&binary, &binary);
    if json {
        let missing = probe.missing.as_ref();
        let object = serde_json::json!({
            "available": probe.available(),
            "confinement": probe.capabilities,
            "reason": missing.map(|missing| &missing.reason),
            "remedy": missing.map(|missing| &missing.remedy),
        });
        display::say(&object.to_string())?;
    } else {
        for capability in &probe.capabilities {
            display::say(&format!("✓ {capability}"))?;
        }
        match &probe.missing {
            None => display::say("Programs can be confined on this machine.")?,
            Some(missing) => display::say(&format!("✗ {}\n  {}", missing.reason, missing.remedy))?,
        }
    }
    Ok(if probe.available() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
