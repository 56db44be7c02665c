//! `seance doctor`: what this machine or a cluster has, and what it lacks.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use seance_sandbox::confine::{Program, probe};
use seance_sandbox::kubernetes::doctor::{Finding, Outcome, connect, examine};

use crate::args::Doctor;
use crate::display;

/// The exit status when a cluster can't be reached, as for a service.
const UNREACHABLE: u8 = 5;

/// Prints what can be had, and what to do about what can't. Exit status 1 when something is lacking.
pub async fn doctor(doctor: Doctor, json: bool) -> Result<ExitCode> {
    if doctor.kubernetes { cluster(&doctor, json).await } else { machine(json) }
}

async fn cluster(doctor: &Doctor, json: bool) -> Result<ExitCode> {
    let examined = async {
        let client = connect(doctor.kubeconfig.as_deref(), doctor.context.as_deref()).await?;
        examine(&client, doctor.namespace.as_deref()).await
    };
    let findings = match examined.await {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("seance: {}", display::shown(&error.to_string()));
            return Ok(ExitCode::from(UNREACHABLE));
        }
    };
    for finding in &findings {
        display::say(&if json { as_json(finding) } else { as_text(finding) })?;
    }
    let n = |outcome| findings.iter().filter(|finding| finding.outcome == outcome).count();
    let (n_lacking, n_unknown) = (n(Outcome::Lacking), n(Outcome::Unknown));
    if !json {
        display::say(&match (n_lacking, n_unknown) {
            (0, 0) => "This cluster lacks nothing.".to_owned(),
            (0, unknown) => format!("Nothing is known to be lacking; {unknown} things can't be seen."),
            (lacking, _) => format!("{lacking} things are lacking."),
        })?;
    }
    Ok(if n_lacking == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(finding: &Finding) -> String {
    let mark = match finding.outcome {
        Outcome::Good => "✓",
        Outcome::Lacking => "✗",
        Outcome::Unknown => "?",
    };
    let subject = if finding.subject.is_empty() { String::new() } else { format!(" {}", finding.subject) };
    let remedy = if finding.remedy.is_empty() { String::new() } else { format!("\n  {}", finding.remedy) };
    // Part of it comes from the cluster.
    let (subject, message) = (display::shown(&subject), display::shown(&finding.message));
    format!("{mark} {}{subject}: {message}{remedy}", finding.check)
}

fn as_json(finding: &Finding) -> String {
    let outcome = match finding.outcome {
        Outcome::Good => "good",
        Outcome::Lacking => "lacking",
        Outcome::Unknown => "unknown",
    };
    let object = serde_json::json!({
        "check": finding.check,
        "subject": finding.subject,
        "outcome": outcome,
        "message": finding.message,
        "remedy": (!finding.remedy.is_empty()).then_some(&finding.remedy),
    });
    object.to_string()
}

/// The confinement that can be had here.
fn machine(json: bool) -> Result<ExitCode> {
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
