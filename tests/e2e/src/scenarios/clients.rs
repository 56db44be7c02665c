//! Clients in other languages, whose own checks run against an installed chart.

use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::place::{POOL, Place, TENANTS, pool};

/// All checks of one client may take so long: each session of the acceptance lists needs a pod.
const CLIENT_WITHIN: Duration = Duration::from_secs(1500);

/// Runs each command with the way to the service in its environment.
pub async fn other_clients_find_what_they_expect(place: &mut Place) -> anyhow::Result<()> {
    // Some of them take no other name for the certificate than the address that they dial.
    let mut values = place.values();
    let address = place.free_address().await?;
    values["pools"][POOL] = pool(6);
    values["api"] = serde_json::json!({ "service": { "clusterIP": address } });
    place.install(&values).await?;
    place.warm().await?;
    let endpoint = place.endpoint().await?;
    let ca = file(&endpoint.ca)?;
    let token = file(place.token(TENANTS[0]).context("the tenant has a token")?)?;
    let folder = place.setting.logs.join("clients");
    std::fs::create_dir_all(&folder).context("making the folder of logs")?;
    for (number, command) in place.setting.clients.iter().enumerate() {
        // In a file, so that what was said until then is there when it takes too long.
        let path = folder.join(format!("{number}.log"));
        let log = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        let address = endpoint.url.trim_start_matches("https://");
        let running = Command::new("sh")
            .args(["-c", command])
            .env("SEANCE_ADDRESS", address)
            .env("SEANCE_CA", ca.path())
            .env("SEANCE_TOKEN_FILE", token.path())
            .env("SEANCE_SERVER_NAME", &endpoint.server_name)
            .env("SEANCE_TENANT", TENANTS[0])
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("sharing a log")?)
            .stderr(log)
            .kill_on_drop(true)
            .status();
        let status = tokio::time::timeout(CLIENT_WITHIN, running).await;
        let status =
            status.with_context(|| format!("{command}: not over in time; see {}", path.display()))??;
        ensure!(status.success(), "{command}: {status}; see {}", path.display());
    }
    place.nothing_is_leaked().await
}

/// A file with this text, gone with the value.
pub(super) fn file(text: &str) -> anyhow::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new().context("making a file")?;
    file.write_all(text.as_bytes()).context("writing a file")?;
    Ok(file)
}
