//! `seance serve`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use seance_server::config::{ServerConfig, Settings};
use seance_server::telemetry::Telemetry;
use seance_server::{DRAIN_TIMEOUT, Service};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::Serve;
use crate::backend::{self, Backend};
use crate::client::{EXIT_REFUSED, Exit};
use crate::display;

/// How long spans that are not sent yet may take at the end.
const TELEMETRY_SHUTDOWN: std::time::Duration = std::time::Duration::from_secs(3);

/// Runs the service until a signal ends it; a second signal cuts what is left.
pub async fn serve(serve: Serve) -> Result<ExitCode> {
    let config = settings(serve)?.parse()?;
    let telemetry = Telemetry::install(&config.telemetry).context("can't set up logs")?;
    let result = run(&config).await;
    telemetry.shutdown(TELEMETRY_SHUTDOWN).await;
    result.map(|()| ExitCode::SUCCESS)
}

async fn run(config: &ServerConfig) -> Result<()> {
    let (first, second) = stop_signals()?;
    let cannot_start = || Exit(EXIT_REFUSED, "the service can't start".to_owned());
    let Backend { sandboxes, metrics } = backend::start(config).await.with_context(cannot_start)?;
    let mut service = Service::start(config, sandboxes).await.with_context(cannot_start)?;
    if let Some(metrics) = metrics {
        metrics.register(service.registry()).context("metrics can't be registered")?;
    }
    if let Some(address) = service.local_addr() {
        let scheme = if config.edge.tls.is_some() { "https" } else { "http" };
        display::say(&format!("listening on {scheme}://{address}"))?;
    }
    let failed = tokio::select! {
        () = first => None,
        error = service.failed() => Some(error),
    };
    service.shutdown(DRAIN_TIMEOUT, second).await;
    match failed {
        Some(error) => Err(error).context(Exit(EXIT_REFUSED, "the service ended".to_owned())),
        None => Ok(()),
    }
}

fn settings(serve: Serve) -> Result<Settings> {
    let below = match &serve.config {
        Some(path) => {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
            Settings::from_toml(&text).with_context(|| format!("can't use {}", path.display()))?
        }
        None => Settings::default(),
    };
    let flags = Settings {
        listen: serve.listen,
        admin_listen: serve.admin_listen,
        data_dir: serve.data_dir,
        tokens_file: serve.tokens_file,
        tls_cert: serve.tls_cert,
        tls_key: serve.tls_key,
        warm: serve.warm,
        max_sandboxes: serve.max_sandboxes,
        claim_wait_seconds: serve.claim_wait_seconds,
        unconfined: serve.unconfined.then_some(true),
        max_sessions: serve.max_sessions,
        max_running: serve.max_running,
        retention_days: serve.retention_days,
        retention_bytes: serve.retention_bytes,
        redact_source: serve.redact_source.then_some(true),
        log_format: serve.log_format,
        log_filter: serve.log_filter,
        otlp_endpoint: serve.otlp_endpoint,
        ..Settings::default()
    };
    let defaults = Settings { data_dir: default_data_dir(), ..Settings::default() };
    Ok(flags.over(below).over(defaults))
}

/// The user's data folder for seance, as the XDG base directory specification has it.
fn default_data_dir() -> Option<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    Some(data.filter(|data| data.is_absolute()).or(home)?.join("seance"))
}

/// Two futures: the first is ready at the first signal to end, the second at the second.
fn stop_signals() -> Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let mut interrupt = signal(SignalKind::interrupt()).context("can't take signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("can't take signals")?;
    let (sender, first) = watch::channel(0);
    let second = first.clone();
    tokio::spawn(async move {
        for n_signals in 1..=2 {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            sender.send_replace(n_signals);
        }
    });
    Ok((at_least(first, 1), at_least(second, 2)))
}

async fn at_least(mut signals: watch::Receiver<u8>, n_signals: u8) {
    if signals.wait_for(|seen| *seen >= n_signals).await.is_err() {
        std::future::pending().await
    }
}
