//! `seance doctor --kubernetes` against a real cluster: what is installed and well is told so, and what
//! lacks is told with its remedy.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::ends::not_ready;
use crate::place::{POOL, Place, READY_WITHIN};

/// Each of its looks has ten seconds.
const EXAMINED_WITHIN: Duration = Duration::from_secs(120);

/// A pool that is warm, and the same pool when its image can't be had.
pub async fn what_a_cluster_lacks_is_told(place: &mut Place) -> anyhow::Result<()> {
    place.install_and_warm().await?;
    let found = Found::of(place).await?;
    let pool = format!("{}/{POOL}", place.sandboxes);
    for (check, subject) in
        [("version", ""), ("pool", &*pool), ("isolation", &pool), ("pod-security", &place.sandboxes)]
    {
        let finding = found.one(check, subject)?;
        ensure!(finding["outcome"] == "good", "{finding}");
    }
    ensure!(found.is_refusal == found.is_any_lacking(), "the exit status is not what was found: {found:?}");

    let mut values = place.values();
    values["pools"][POOL]["template"]["image"] = json!("seance/no-such-image:0");
    values["pools"][POOL]["template"]["imagePullPolicy"] = json!("Never");
    values["pools"][POOL]["warm"] = json!({ "min": 3, "max": 3 });
    place.upgrade(&values).await?;
    place.pool_until("the pool says why", READY_WITHIN, not_ready).await?;
    let found = Found::of(place).await?;
    let finding = found.one("pool", &pool)?;
    let says = |member: &str| finding[member].as_str().unwrap_or_default();
    ensure!(says("outcome") == "lacking" && says("message").starts_with("ImagePullFailed"), "{finding}");
    ensure!(!says("remedy").is_empty() && found.is_refusal, "{finding}");
    place.nothing_is_leaked().await
}

/// What it found.
#[derive(Debug)]
struct Found {
    findings: Vec<Value>,
    /// Its exit status says that something is lacking.
    is_refusal: bool,
}

impl Found {
    async fn of(place: &Place) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("finding this program's own file")?;
        let mut command = Command::new(own.with_file_name("seance"));
        command.args(["--json", "doctor", "--kubernetes", "--namespace", &place.sandboxes]);
        let running = command.kill_on_drop(true).output();
        let output = tokio::time::timeout(EXAMINED_WITHIN, running).await.context("it takes too long")?;
        let output = output.context("running seance doctor")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let is_refusal = match output.status.code() {
            Some(0) => false,
            Some(1) => true,
            _ => bail!("seance doctor ended with {}: {said}", output.status),
        };
        let lines = String::from_utf8_lossy(&output.stdout);
        let parsed = lines.lines().map(|line| serde_json::from_str(line).context(line.to_owned()));
        Ok(Self { findings: parsed.collect::<anyhow::Result<_>>()?, is_refusal })
    }

    fn one(&self, check: &str, subject: &str) -> anyhow::Result<&Value> {
        let mut of_it = self.findings.iter().filter(|is| is["check"] == check && is["subject"] == subject);
        of_it.next().with_context(|| format!("nothing is said of {check} {subject}: {:?}", self.findings))
    }

    fn is_any_lacking(&self) -> bool {
        self.findings.iter().any(|finding| finding["outcome"] == "lacking")
    }
}
