//! `seance run`: a service for one program, in this process and with nothing left behind.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use seance_proto::v1alpha1 as proto;
use seance_sandbox::local::INTERPRETED;
use seance_server::Service;
use seance_server::config::Settings;
use seance_server::telemetry::Telemetry;

use crate::args::Run;
use crate::backend;
use crate::client::{Bearer, Client, EXIT_REFUSED, Exit};
use crate::display::Display;
use crate::exec::{self, Source};

/// How long the service may take to end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Runs a program with the sandbox, broker and log that a service has, over an in-process channel.
pub async fn run(run: Run, json: bool) -> Result<ExitCode> {
    let source = Source::read(&run.program)?;
    let settings = Settings {
        admin_listen: Some("off".to_owned()),
        data_dir: Some("memory".into()),
        warm: Some(1),
        max_sandboxes: Some(2),
        unconfined: run.unconfined.then_some(true),
        log_filter: Some(std::env::var("SEANCE_LOG").unwrap_or_else(|_| "error".to_owned())),
        ..Settings::default()
    };
    let mut config = settings.parse()?;
    // Nobody but this process calls it.
    config.edge.listen = None;
    let telemetry = Telemetry::install(&config.telemetry).context("can't set up logs")?;
    let cannot_start = || Exit(EXIT_REFUSED, "the program can't start".to_owned());
    // What starts is what this program needs.
    let engine = source.engine();
    let interpreted: Vec<_> = INTERPRETED.iter().copied().filter(|name| *name == engine).collect();
    let backend = backend::local(&config.sandboxes, &interpreted).await.with_context(cannot_start)?;
    let service = Service::start(&config, backend).await.with_context(cannot_start)?;
    let client = Client::over(service.channel(), Bearer::default());
    let result = in_session(&client, &run, source, json).await;
    drop(client);
    service.shutdown(SHUTDOWN, std::future::pending()).await;
    telemetry.shutdown(SHUTDOWN).await;
    result
}

async fn in_session(client: &Client, run: &Run, source: Source, json: bool) -> Result<ExitCode> {
    let mut display = Display::new(json, run.program.quiet);
    let session = exec::open(client, &run.program, &source).await?;
    let stop = proto::OnDisconnect::Stop;
    let result = exec::program(client, &session, &run.program, source, &mut display, stop).await;
    let closed = exec::close(client, &session).await;
    let code = result?;
    closed?;
    Ok(ExitCode::from(code))
}
