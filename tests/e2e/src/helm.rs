//! helm, with a deadline for each command.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::setting::Setting;

/// A command that waits for nothing may take so long.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs helm with these arguments and gives what it printed.
///
/// # Errors
/// With what it said, when it fails.
pub async fn helm(arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("helm");
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output())
        .await
        .with_context(|| format!("helm {arguments:?} took over {} s", DEADLINE.as_secs()))?
        .context("running helm, which has to be on the PATH")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `helm COMMAND RELEASE CHART` with these values.
///
/// # Errors
/// With what helm said, when it fails.
pub async fn with_values(command: &[&str], values: &Value) -> anyhow::Result<String> {
    let file = tempfile::Builder::new().suffix(".json").tempfile().context("making a file of values")?;
    serde_json::to_writer(file.as_file(), values).context("writing values")?;
    let path = file.path().to_string_lossy();
    helm(&[command, &["--values", &path]].concat()).await
}

/// Installs the chart of the custom resources, or brings it up to date. It stays: it is the cluster's.
///
/// # Errors
/// With what helm said, when it fails.
pub async fn install_resources(setting: &Setting) -> anyhow::Result<()> {
    let chart = setting.chart("seance-crds");
    let arguments = ["upgrade", "--install", "seance-crds", &chart];
    helm(&[&arguments[..], &["--namespace", "kube-system", "--wait", "--timeout", "60s"]].concat()).await?;
    Ok(())
}
