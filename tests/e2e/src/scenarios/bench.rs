//! `seance bench --kubernetes` against an installed chart: all its figures are there, and nothing that it
//! made stays, whether it ends by itself or is interrupted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use seance_operator_api::SandboxPool;
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::process::Command;

use super::clients::file;
use crate::agent::Endpoint;
use crate::place::{POOL, Place, READY_WITHIN, TENANTS, pool};
use crate::wait;

/// What the bench labels pods and pools with.
const LABEL: &str = "seance.dev/bench";
/// All that is measured.
const FIGURES: [&str; 14] = [
    "resident_pod",
    "next_program",
    "tool_call",
    "tool_call_committed",
    "warm_open",
    "open_to_first_output",
    "api_calls_per_open",
    "api_calls_per_open_service",
    "api_calls_per_open_operator",
    "api_conflicts_per_open",
    "burst_open",
    "cold_open",
    "isolation_probe",
    "bare_pod",
];
/// A quick run may take so long.
const QUICK_WITHIN: Duration = Duration::from_secs(600);
/// How an interrupted command of ours exits.
const EXIT_STOPPED: i32 = 3;

/// A quick run, and one that is interrupted at its first bare pod.
pub async fn all_figures_are_measured_and_nothing_stays(place: &mut Place) -> anyhow::Result<()> {
    // The certificate has no other name that can be dialled where nothing resolves names.
    let mut values = place.values();
    values["pools"][POOL] = pool(6);
    values["api"] = serde_json::json!({ "service": { "clusterIP": place.free_address().await? } });
    place.install(&values).await?;
    place.warm().await?;
    let way = Way::to(place).await?;

    let running = way.bench(place)?.args(["--quick"]).output();
    let output = tokio::time::timeout(QUICK_WITHIN, running).await.context("the bench takes too long")??;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the bench failed: {said}");
    let figures = figures(&String::from_utf8_lossy(&output.stdout))?;
    for name in FIGURES {
        let figure = figures.get(name).with_context(|| format!("no figure {name}; it said {said}"))?;
        ensure!(figure["n"].as_u64() > Some(0), "{figure}");
        ensure!(figure["p50"].as_f64() > Some(0.0) || name == "api_conflicts_per_open", "{figure}");
    }
    let cold_beside = &figures["cold_open"]["floor_p50"];
    ensure!(*cold_beside == figures["bare_pod"]["p50"], "{cold_beside} is not the bare pod's");
    nothing_stays(place).await?;

    let mut command = way.bench(place)?;
    let mut running =
        command.args(["--only", "bare_pod"]).kill_on_drop(true).spawn().context("starting the bench")?;
    let is_its = |pods: &[Pod]| pods.iter().any(|pod| pod.labels().contains_key(LABEL)).then_some(());
    let what = "the bench made a bare pod";
    wait::until(&place.theirs(), what, READY_WITHIN, is_its, |pod: &Pod| pod.name_any()).await?;
    let id = running.id().context("the bench has ended")?.to_string();
    Command::new("kill").args(["-INT", &id]).status().await.context("interrupting the bench")?;
    let status = tokio::time::timeout(READY_WITHIN, running.wait()).await.context("it doesn't end")??;
    ensure!(status.code() == Some(EXIT_STOPPED), "an interrupted bench ended with {status}");
    nothing_stays(place).await?;
    place.nothing_is_leaked().await
}

/// How the bench reaches the service.
struct Way {
    endpoint: Endpoint,
    ca: NamedTempFile,
    token: NamedTempFile,
}

impl Way {
    async fn to(place: &Place) -> anyhow::Result<Self> {
        let endpoint = place.endpoint().await?;
        let ca = file(&endpoint.ca)?;
        let token = file(place.token(TENANTS[0]).context("the tenant has a token")?)?;
        Ok(Self { endpoint, ca, token })
    }

    /// The command, which was built beside this program.
    fn bench(&self, place: &Place) -> anyhow::Result<Command> {
        let own = std::env::current_exe().context("finding this program's own file")?;
        let mut command = Command::new(own.parent().unwrap_or(Path::new(".")).join("seance"));
        command.args(["--json", "--address", &self.endpoint.url, "--ca"]).arg(self.ca.path());
        command.arg("--token-file").arg(self.token.path());
        command.args(["bench", "--kubernetes", "--sandbox-namespace", &place.sandboxes]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// Figures by name; each is one line with six members.
fn figures(text: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut figures = BTreeMap::new();
    for line in text.lines() {
        let figure: Value = serde_json::from_str(line).with_context(|| format!("{line} is no figure"))?;
        let members: Vec<&str> =
            figure.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        ensure!(members == ["name", "unit", "n", "p50", "p99", "floor_p50"], "{line}");
        figures.insert(figure["name"].as_str().unwrap_or_default().to_owned(), figure);
    }
    Ok(figures)
}

/// Neither a pod nor a pool of the bench, nor a session that holds a sandbox.
async fn nothing_stays(place: &Place) -> anyhow::Result<()> {
    let pods = wait::all(&place.theirs::<Pod>()).await?;
    ensure!(!pods.iter().any(|pod| pod.labels().contains_key(LABEL)), "a pod of the bench stays");
    let pools: Vec<_> =
        wait::all(&place.theirs::<SandboxPool>()).await?.iter().map(ResourceExt::name_any).collect();
    ensure!(pools == [POOL], "there are the pools {pools:?}");
    let free = |pool: &SandboxPool| (pool.status.as_ref()?.assigned == 0).then_some(());
    place.pool_until("no session has a sandbox", READY_WITHIN, free).await
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn a_line_that_is_no_figure_is_found() {
        let line = r#"{"name":"a","unit":"ms","n":1,"p50":1.0,"p99":1.0,"floor_p50":null}"#;
        assert!(figures(&format!("{line}\n")).expect("a figure").contains_key("a"));
        assert!(figures("nothing").is_err());
        assert!(figures(r#"{"name":"a"}"#).is_err());
    }
}
