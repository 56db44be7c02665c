//! A runner for tests, which is the test's own binary started again: it speaks the link and does
//! what its "programs" name, from inside the real sandbox.
//!
//! [`ENTRY`] runs before the test harness, as the service's binary runs its hidden commands
//! before anything else.

pub mod runner;

use std::process::ExitCode;
use std::time::Duration;

use seance_core::ids::{Epoch, ProgramNumber, SessionId, TenantId};
use seance_core::limits::Limits;
use seance_core::link::{Addressed, FromRunner, RunProgram, ToRunner};
use seance_core::sandbox::{ClaimRequest, Claimed, LinkEvent, SandboxBackend};
use seance_core::time::Timestamp;
use seance_sandbox::confine::{INIT_COMMAND, init_main};
use seance_sandbox::local::{Config, Confinement, LocalBackend};

/// Called by the loader before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static ENTRY: extern "C" fn() = entry;

/// Comes before the arguments of the real runner, as a command of the service's binary would.
pub const REAL_RUNNER: &str = "real-runner";

extern "C" fn entry() {
    let mut args = std::env::args_os().skip(1);
    let code = match args.next().as_ref().and_then(|arg| arg.to_str()) {
        Some(INIT_COMMAND) => init_main(args),
        Some("runner") => runner::main(),
        Some(REAL_RUNNER) => seance_runner::main_from_args(args),
        Some("sleeper") => {
            // SAFETY: starts a session; whether it could doesn't matter.
            unsafe { libc::setsid() };
            std::thread::sleep(Duration::from_secs(600));
            ExitCode::SUCCESS
        }
        Some("service") => {
            let text: Vec<_> = args.map(|arg| arg.into_string().expect("we wrote it")).collect();
            let unconfined = text[0] == "Unconfined";
            let confinement = if unconfined { Confinement::Unconfined } else { Confinement::Required };
            let runtime = tokio::runtime::Runtime::new().expect("this machine can run one");
            runtime.block_on(crate::service(confinement, &text[1]));
            ExitCode::SUCCESS
        }
        _ => return,
    };
    std::process::exit(if code == ExitCode::SUCCESS { 0 } else { status(code) });
}

/// An exit code as a number; the type has no way to say it.
fn status(code: ExitCode) -> i32 {
    let text = format!("{code:?}");
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(1)
}

/// Every wait of a test ends here at the latest.
pub const DEADLINE: Duration = Duration::from_secs(20);

pub fn config(confinement: Confinement) -> Config {
    let mut config = Config::new(std::env::current_exe().expect("a test has a binary"));
    config.confinement = confinement;
    config.warm = 1;
    // What is started here is no real runner.
    config.interpreted = Vec::new();
    config.max_sandboxes = 4;
    config.scratch_bytes = 4 << 20;
    config
}

pub fn request() -> ClaimRequest {
    ClaimRequest {
        tenant: TenantId::default_tenant(),
        engine: "javascript".to_owned(),
        memory_bytes: 64 << 20,
        wait: Duration::from_secs(5),
        position: Default::default(),
    }
}

/// The order to run a program.
pub fn program(language: &str, program: ProgramNumber, source: &str) -> ToRunner {
    ToRunner::Execute(Box::new(RunProgram {
        program,
        language: language.to_owned(),
        source: source.to_owned(),
        source_name: "test.js".to_owned(),
        catalog: None,
        inputs: None,
        kept: Default::default(),
        limits: Limits::default(),
        wall_left: Duration::from_secs(60),
        options: Vec::new(),
    }))
}

/// A claimed sandbox with its session assigned.
pub struct Guest {
    pub claimed: Claimed,
    engine: &'static str,
    n_programs: u64,
}

impl Guest {
    #[allow(dead_code, reason = "the tests of pods have their own")]
    pub async fn new(backend: &dyn SandboxBackend) -> Self {
        Self::of(backend, "javascript").await
    }

    #[allow(dead_code, reason = "the tests of pods have their own")]
    pub async fn of(backend: &dyn SandboxBackend, engine: &'static str) -> Self {
        let request = ClaimRequest { engine: engine.to_owned(), ..request() };
        let claimed = backend.claim(request).await.expect("there is a place");
        let mut guest = Self { claimed, engine, n_programs: 0 };
        let session = SessionId::mint(Timestamp(1), [1; 10]);
        guest.send(ToRunner::Assign { session, engine: engine.to_owned(), deadline: None }).await;
        assert_eq!(guest.frame().await, FromRunner::Assigned { session });
        guest
    }

    pub async fn send(&self, frame: ToRunner) {
        let sent = self.claimed.sender.send(Addressed { epoch: Epoch(1), frame });
        tokio::time::timeout(DEADLINE, sent).await.expect("in time").expect("the link is there");
    }

    pub async fn event(&mut self) -> LinkEvent {
        let event = self.claimed.receiver.recv();
        tokio::time::timeout(DEADLINE, event).await.expect("something comes in time")
    }

    pub async fn frame(&mut self) -> FromRunner {
        match self.event().await {
            LinkEvent::Frame(numbered) => {
                if numbered.number > 0 {
                    self.send(ToRunner::Ack { number: numbered.number }).await;
                }
                numbered.frame
            }
            LinkEvent::Ended(end) => panic!("the sandbox ended: {end:?}"),
        }
    }

    pub async fn start(&mut self, source: &str) -> ProgramNumber {
        self.n_programs += 1;
        let program = ProgramNumber(self.n_programs);
        self.send(self::program(self.engine, program, source)).await;
        program
    }

    #[allow(dead_code, reason = "the tests of the real runner have their own")]
    /// Runs a program to its end and gives what it wrote.
    pub async fn run(&mut self, source: &str) -> String {
        let program = self.start(source).await;
        let mut output = Vec::new();
        loop {
            match self.frame().await {
                FromRunner::Output { program: of, data, .. } if of == program => {
                    output.extend_from_slice(&data)
                }
                FromRunner::ProgramEnded(ended) if ended.program == program => break,
                FromRunner::ProgramStarted { .. } => {}
                other => panic!("unexpected frame: {other:?}"),
            }
        }
        String::from_utf8(output).expect("the test's runner writes text")
    }
}

/// One whose runners are those of this test.
#[allow(dead_code, reason = "the tests of the real runner have their own")]
pub async fn backend(confinement: Confinement) -> LocalBackend {
    LocalBackend::start(config(confinement)).await.expect("this machine can make sandboxes")
}

#[allow(dead_code, reason = "not every test waits")]
/// Waits for a condition, looking at it often.
pub async fn eventually(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the condition holds in time");
}
