//! The next program in the languages of the machine's interpreters.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use seance_core::sandbox::SandboxBackend as _;

use super::figures;
use super::floors::{Floors, median};
use super::report::{Effort, Figure};
use super::world::World;

/// A figure of a language: its name, the engine, and the least that its interpreter can be told to do.
struct Language {
    figure: &'static str,
    engine: &'static str,
    bare: [&'static str; 3],
}

const LANGUAGES: [Language; 2] = [
    Language { figure: "next_program_python", engine: "python", bare: ["python3", "-c", "1"] },
    Language { figure: "next_program_ruby", engine: "ruby", bare: ["ruby", "-e", "1"] },
];

/// The smallest program in each, in a session that has run others. The floor is what it would cost to start the
/// bare interpreter for it. An engine that this machine doesn't have is left out, and said.
///
/// Each is measured in a service of its own, so that its warm runners don't disturb other figures.
pub async fn next_program(_world: &World, _floors: &Floors, effort: Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for language in &LANGUAGES {
        let world = World::start(&[language.engine]).await?;
        let measured = one(&world, language, effort).await;
        world.stop().await;
        figures.extend(measured?);
    }
    Ok(figures)
}

async fn one(world: &World, language: &Language, effort: Effort) -> Result<Option<Figure>> {
    let status = world.backend.engines().into_iter().find(|status| status.name == language.engine);
    if let Err(why) = status.with_context(|| format!("{} is not listed", language.engine))?.version {
        eprintln!("seance: {} is not measured: {why}", language.figure);
        return Ok(None);
    }
    figures::until_warm(world).await;
    let mut request = world.caller.session(&[]);
    request.engine = language.engine.to_owned();
    let session = world.caller.open_as(request).await?;
    let samples = world.caller.programs(&session, effort.samples(200), Duration::ZERO).await?;
    world.caller.close(&session).await?;
    let floor_p50 = Some(bare(&language.bare, effort.samples(50))?);
    Ok(Some(Figure { name: language.figure, unit: "ms", samples, floor_p50, floor: "the bare interpreter" }))
}

/// The median of starting this program and waiting for its end, in milliseconds.
fn bare([program, arguments @ ..]: &[&str; 3], n: usize) -> Result<f64> {
    let path = ["/usr/local/bin", "/usr/bin"].map(|folder| Path::new(folder).join(program));
    let path = path.iter().find(|path| path.exists()).with_context(|| format!("there is no {program}"))?;
    let mut samples = Vec::with_capacity(n);
    for _ in 0..n {
        let began = Instant::now();
        let status = Command::new(path).args(arguments).env_clear().stdin(Stdio::null()).status();
        samples.push(began.elapsed());
        ensure!(
            status.with_context(|| format!("can't start {}", path.display()))?.success(),
            "{program} failed"
        );
    }
    Ok(median(&samples))
}
