//! Clients in other languages, whose own checks run against an installed chart.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::place::{Place, TENANTS};

/// All checks of one client may take so long.
const CLIENT_WITHIN: Duration = Duration::from_secs(400);

/// Runs each command with the way to the service in its environment.
pub async fn other_clients_find_what_they_expect(place: &mut Place) -> anyhow::Result<()> {
    // Some of them take no other name for the certificate than the address that they dial.
    let mut values = place.values();
    let address = place.free_address().await?;
    values["api"] = serde_json::json!({ "service": { "clusterIP": address } });
    place.install(&values).await?;
    place.warm().await?;
    let endpoint = place.endpoint().await?;
    let ca = file(&endpoint.ca)?;
    let token = file(place.token(TENANTS[0]).context("the tenant has a token")?)?;
    for command in &place.setting.clients {
        let address = endpoint.url.trim_start_matches("https://");
        let running = Command::new("sh")
            .args(["-c", command])
            .env("SEANCE_ADDRESS", address)
            .env("SEANCE_CA", ca.path())
            .env("SEANCE_TOKEN_FILE", token.path())
            .env("SEANCE_SERVER_NAME", &endpoint.server_name)
            .env("SEANCE_TENANT", TENANTS[0])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(CLIENT_WITHIN, running).await;
        let output = output.with_context(|| format!("{command} was not over in time"))??;
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {said}\n{complained}");
    }
    place.nothing_is_leaked().await
}

fn file(text: &str) -> anyhow::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new().context("making a file")?;
    file.write_all(text.as_bytes()).context("writing a file")?;
    Ok(file)
}
