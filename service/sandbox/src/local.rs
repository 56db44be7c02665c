//! Sandboxes as confined processes on this machine.
//!
//! Some runners are kept warm: started, confined, said hello. A claim takes one off the list; the
//! list is filled again behind it. Every sandbox has a new id and is given away once; when its
//! session is done with it, it is ended, and its place is free when the end is proven.
//!
//! Fit for one's own agents, not for tenants of a shared service: programs share this kernel.

mod engines;
mod launch;
mod output;
mod pool;
mod sandbox;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use seance_core::sandbox::{ClaimError, ClaimRequest, Claimed, EngineStatus, SandboxBackend};
use tokio::time::Instant;

use crate::confine::{Missing, Program, probe};
use engines::Engine;
use launch::Launcher;
use pool::Pool;
use sandbox::Sandbox;

/// The engines whose interpreters are those of the machine. JavaScript's is in the runner, and always there.
pub const INTERPRETED: &[&str] = &["python", "ruby"];

/// How sandboxes are made.
#[derive(Debug, Clone)]
pub struct Config {
    /// The service's own binary, which is started again as each sandbox's keeper: followed by
    /// [`crate::confine::INIT_COMMAND`].
    pub init: Program,
    /// The runner: followed by `runner --link-fd N --self-exe PATH`, and `--interpreter ENGINE PATH`
    /// for an engine of this machine.
    pub runner: Program,
    /// Whether programs are confined.
    pub confinement: Confinement,
    /// The engines that are offered with this machine's interpreters, of [`INTERPRETED`].
    pub interpreted: Vec<&'static str>,
    /// Runners kept ready, at most `max_sandboxes`: so many for JavaScript, and one for each other engine.
    pub warm: usize,
    /// Sandboxes at one time, warm ones included. Claims over it wait.
    pub max_sandboxes: usize,
    /// The most memory that a session's programs may ask for, in bytes. Claims over it are refused.
    pub memory_bytes_max: u64,
    /// The folder that a sandbox can write to, in bytes; it is memory.
    pub scratch_bytes: u64,
    /// How long a runner may take to say hello.
    pub start_timeout: Duration,
}

impl Config {
    /// The defaults for one binary that is the service, the keeper and the runner.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        let program = Program::new(binary);
        Self {
            init: program.clone(),
            runner: program,
            confinement: Confinement::Required,
            interpreted: INTERPRETED.to_vec(),
            warm: 2,
            max_sandboxes: 64,
            memory_bytes_max: 4096 << 20,
            scratch_bytes: 64 << 20,
            start_timeout: Duration::from_secs(10),
        }
    }
}

/// Whether programs are confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// Entirely, or there is no backend.
    Required,
    /// Not at all: programs run as the service's own user, with its files and its network. Only
    /// for programs that one would run oneself.
    Unconfined,
}

/// Why there is no local backend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Programs can't be confined here.
    #[error(transparent)]
    Unconfinable(#[from] Missing),
    /// The runner did not start.
    #[error("the runner did not start: {message}")]
    Runner {
        /// What happened.
        message: String,
    },
}

/// Makes sandboxes on this machine.
pub struct LocalBackend {
    pool: Arc<Pool>,
    confinement: Vec<String>,
    engines: Vec<EngineStatus>,
}

impl LocalBackend {
    /// Checks the confinement, starts a first runner of each engine to learn its version, and warms up.
    /// Without JavaScript there is no backend; any other engine may be unavailable.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let confinement = confinement(&config).await?;
        let runner_error = |error: std::io::Error| StartError::Runner { message: error.to_string() };
        let launcher = Launcher::new(&config).map_err(runner_error)?;
        let pool = Pool::new(&config, launcher);
        let javascript = Arc::new(Engine::javascript());
        let interpreted = config.interpreted.iter().map(|name| first_of(&pool, name));
        let (first, others) = tokio::join!(pool.start_one(&javascript), join_all(interpreted));
        let first = match first {
            Ok(first) => first,
            Err(message) => {
                drop(others);
                pool.shut_down(config.start_timeout).await;
                return Err(StartError::Runner { message });
            }
        };
        let mut engines = statuses(&first);
        let mut ready = vec![first];
        for (name, other) in config.interpreted.iter().zip(others) {
            match other {
                Ok(first) => {
                    engines.extend(statuses(&first));
                    ready.push(first);
                }
                Err(why) => {
                    tracing::warn!(engine = name, why, "an engine is unavailable");
                    engines.push(EngineStatus { name: (*name).to_owned(), version: Err(why) });
                }
            }
        }
        pool.warm_up(ready);
        Ok(Self { pool, confinement, engines })
    }

    /// The sandboxes that exist, for a diagnostics page.
    pub fn sandboxes(&self) -> Vec<SandboxStatus> {
        self.pool.sandboxes()
    }
}

impl Drop for LocalBackend {
    fn drop(&mut self) {
        self.pool.stop();
    }
}

/// A sandbox for the engine of this machine's interpreter, or why there is none and what to do.
async fn first_of(pool: &Pool, name: &'static str) -> Result<Sandbox, String> {
    let engine = Engine::interpreted(name).await?;
    let interpreter = engine.interpreter.display().to_string();
    let first = pool.start_one(&Arc::new(engine)).await;
    first.map_err(|error| format!("{interpreter} does not work in a sandbox: {error}"))
}

/// What a runner says it can run.
fn statuses(sandbox: &Sandbox) -> Vec<EngineStatus> {
    let status = |(name, version): &(String, String)| EngineStatus {
        name: name.clone(),
        version: Ok(version.clone()),
    };
    sandbox.engines.iter().map(status).collect()
}

/// A sandbox that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatus {
    /// Its id.
    pub id: seance_core::ids::SandboxId,
    /// The process id of its keeper, whose only child is the runner.
    pub keeper_pid: u32,
    /// Where it is in its life.
    pub state: SandboxState,
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Its runner has not said hello yet.
    Starting,
    /// It can be claimed.
    Warm,
    /// A session has it.
    Claimed,
    /// It is being ended.
    Ending,
}

async fn confinement(config: &Config) -> Result<Vec<String>, StartError> {
    if config.confinement == Confinement::Unconfined {
        tracing::warn!(
            "programs run UNCONFINED: with this user's rights, files and network, and without limits on \
             memory and processes; use this only for programs you would run yourself"
        );
        return Ok(vec!["unconfined".to_owned()]);
    }
    let (init, runner) = (config.init.clone(), config.runner.clone());
    let probed = tokio::task::spawn_blocking(move || probe(&init, &runner)).await;
    let probe = probed.expect("the probe doesn't panic and is never aborted");
    match probe.missing {
        Some(missing) => Err(missing.into()),
        None => Ok(probe.capabilities),
    }
}

#[async_trait]
impl SandboxBackend for LocalBackend {
    fn name(&self) -> &'static str {
        "local"
    }

    fn confinement(&self) -> Vec<String> {
        self.confinement.clone()
    }

    fn engines(&self) -> Vec<EngineStatus> {
        self.engines.clone()
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, ClaimError> {
        let status = self.engines.iter().find(|engine| engine.name == request.engine);
        let version = status.and_then(|engine| engine.version.clone().ok());
        let (Some(engine), Some(version)) = (self.pool.engine(&request.engine), version) else {
            let message = format!("there is no engine {:?} here", request.engine);
            let remedy = "Engines.List tells which there are".to_owned();
            return Err(ClaimError::Unavailable { message, remedy });
        };
        let most = self.pool.memory_bytes_max();
        if request.memory_bytes > most {
            let asked = request.memory_bytes;
            let message = format!("{asked} bytes of memory are over this service's {most} for a session");
            let remedy = "lower memory_bytes or raise the service's limit".to_owned();
            return Err(ClaimError::Unavailable { message, remedy });
        }
        let sandbox = self.pool.claim(&engine, request.wait, &request.position, Instant::now()).await?;
        let limited = sandbox.limit_memory(request.memory_bytes);
        limited.map_err(|error| ClaimError::StartFailed { message: error.to_string() })?;
        Ok(sandbox.into_claimed(version))
    }

    fn n_leaked(&self) -> usize {
        self.pool.n_leaked()
    }

    async fn shutdown(&self, within: Duration) {
        self.pool.shut_down(within).await;
    }
}
