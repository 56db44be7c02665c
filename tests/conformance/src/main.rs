//! `seance-conformance`: runs the acceptance lists against a service and says line by line what
//! holds. Exits with 1 when a line fails, with 2 when nothing could be run.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, ValueEnum};
use seance_conformance::door::Door;
use seance_conformance::plan::{self, Entry, Work};
use seance_conformance::report::{Report, Row, State};
use seance_conformance::run::{self, Target};
use seance_conformance::service::{Process, Service};

/// Runs the acceptance lists against a Seance service, line by line.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// How the service makes sandboxes.
    #[arg(long, value_enum, default_value_t = Backend::Local)]
    backend: Backend,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Runs only these lines, such as "case 9,A12".
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    only: Vec<String>,
    /// Lists the lines with what they assert, and runs nothing.
    #[arg(long)]
    list: bool,
    /// Runs against this service instead of starting one.
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// The certificate authority of an https --address, PEM.
    #[arg(long, value_name = "FILE", requires = "address")]
    ca: Option<PathBuf>,
    /// A file with the bearer token for --address.
    #[arg(long, value_name = "FILE", requires = "address")]
    token_file: Option<PathBuf>,
    /// The process of the service at --address, for the lines that look at it or kill parts of it.
    #[arg(long, value_name = "PID", requires = "address")]
    service_pid: Option<i32>,
    /// The seed of the property tests; a new one each time when left out.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    Local,
    Kubernetes,
}

impl Backend {
    /// As the service names it.
    fn name(self) -> &'static str {
        match self {
            Backend::Local => "local",
            Backend::Kubernetes => "kubernetes",
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("seance-conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.backend == Backend::Kubernetes && arguments.address.is_none() {
        bail!(
            "a cluster's service is not started here: give the --address of an installed one, with --ca and --token-file"
        );
    }
    let entries = chosen(plan::all()?, &arguments.only)?;
    if arguments.list {
        print(&list(&entries))?;
        return Ok(ExitCode::SUCCESS);
    }
    let seed = arguments.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}; to run the same programs again: --seed {seed}");
    let report = match &arguments.address {
        Some(address) => {
            let process = arguments.service_pid.map(|pid| Process { pid });
            let ca = arguments.ca.as_deref().map(read).transpose()?;
            let token = arguments.token_file.as_deref().map(read).transpose()?;
            let door = Door::connect_as(address, ca.as_deref(), token.as_deref()).await?;
            let backend = arguments.backend.name();
            run_all(Target { door, backend, process, log: None, seed }, entries).await
        }
        None => run_own(seed, entries).await?,
    };
    match arguments.json {
        true => print(&serde_json::to_string(&report)?)?,
        false => print(&report.to_table(None))?,
    }
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs against a service of our own and ends it, whatever came of the rows.
async fn run_own(seed: u64, entries: Vec<Entry>) -> anyhow::Result<Report> {
    let service = Service::start().await?;
    let door = Door::connect(&service.address).await?;
    let (process, log) = (Some(service.process), Some(service.log.clone()));
    let target = Target { door, backend: Backend::Local.name(), process, log, seed };
    let report = run_all(target, entries).await;
    service.end().await.context("ending the service")?;
    Ok(report)
}

async fn run_all(target: Target, entries: Vec<Entry>) -> Report {
    let began = Instant::now();
    let mut times = Vec::new();
    let progress = |row: &Row, took: Duration| {
        if row.state == State::Failed {
            eprintln!("failed: {} in {}: {}", row.id, row.language, row.note);
        }
        times.push((took, format!("{} in {}", row.id, row.language)));
    };
    let report = Report::of(run::rows(&target, entries, progress).await);
    times.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
    let slowest: Vec<String> =
        times.iter().take(5).map(|(took, name)| format!("{name} {:.1} s", took.as_secs_f64())).collect();
    eprintln!(
        "{} in {:.0} s; the slowest: {}",
        report.summary(),
        began.elapsed().as_secs_f64(),
        slowest.join(", ")
    );
    report
}

fn chosen(entries: Vec<Entry>, only: &[String]) -> anyhow::Result<Vec<Entry>> {
    let wanted: Vec<String> = only.iter().map(|id| full_id(id.trim())).collect();
    for id in &wanted {
        ensure!(entries.iter().any(|entry| entry.id == *id), "no line has the id {id:?}; --list shows all");
    }
    Ok(entries.into_iter().filter(|entry| wanted.is_empty() || wanted.contains(&entry.id)).collect())
}

/// "9" is short for "case 9", and "a12" for "A12".
fn full_id(id: &str) -> String {
    match id.parse::<u32>() {
        Ok(number) => format!("case {number}"),
        Err(_) if id.to_ascii_lowercase().starts_with("case ") => id.to_ascii_lowercase(),
        Err(_) => id.to_ascii_uppercase(),
    }
}

/// Prints a text and a newline. A reader that has seen enough, such as `head`, is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("printing"),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn list(entries: &[Entry]) -> String {
    let line = |Entry { id, language, work }: &Entry| {
        let what = match work {
            Work::Run(blocks) => blocks.iter().map(|case| case.what.as_str()).collect::<Vec<_>>().join("; "),
            Work::Later(note) => format!("unbuilt: {note}"),
        };
        format!("{id:<8} {language:<10} {what}")
    };
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_can_be_written_short_and_unknown_ones_are_refused() {
        assert_eq!((full_id("9"), full_id("a12")), ("case 9".to_owned(), "A12".to_owned()));
        let entries = plan::all().unwrap();
        let only = chosen(entries.clone(), &["9".to_owned()]).unwrap();
        assert!(!only.is_empty() && only.iter().all(|entry| entry.id == "case 9"));
        assert!(chosen(entries, &["case 2".to_owned()]).is_err());
    }
}
