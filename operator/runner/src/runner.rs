//! The runner: takes one session over the link and runs its programs, each in a host of its own.
//!
//! One task holds everything. Each round it waits for the first of: a limit to look after, a frame
//! from the service, an event of the running host, an event of the spare one, room on the wire.
//! What waits loses nothing when another is first.

mod active;
mod assembly;
mod catalogs;
mod config;
mod link;
mod outbox;
mod process;
mod sample;
mod spare;

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seance_proto::link::v1alpha1::{
    Assign, Assigned, AttachRequest, AttachResponse, Engine, Execute, Hello, ProgramStarted, Refused, Resume,
    attach_request, attach_response,
};
use seance_proto::prost::Message;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Streaming;

use active::{Active, Told};
use assembly::Assembly;
use catalogs::Catalogs;
pub use config::Config;
use outbox::Outbox;
use process::Event;
use spare::Spare;

/// The version of the link that this runner speaks.
const LINK_VERSION: u32 = 1;
/// Rounds of killing what a program left behind.
const STRAY_ROUNDS_MAX: usize = 64;

/// Why a runner ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments make no runner.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// No host gets ready.
    #[error("hosts end before they are ready: status {exit_status} {signal}, {stderr_bytes} bytes on stderr")]
    NoHost { exit_status: i32, signal: String, stderr_bytes: u64 },
    /// The link could not be made, or broke.
    #[error(transparent)]
    Link(#[from] link::Error),
    /// The service sent chunks that make no frame.
    #[error(transparent)]
    Chunks(#[from] assembly::Error),
    /// The service sent a frame that cannot be read.
    #[error("frame from the service is malformed")]
    Malformed(#[source] seance_proto::prost::DecodeError),
    /// The process lacks something it needs.
    #[error("preparing the process")]
    Process(#[source] std::io::Error),
}

/// Runs a runner until the service ends it or the link is gone.
pub fn run(config: Config) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Process)?;
    runtime.block_on(async {
        prepare_process()?;
        let Config { dialer, host_command } = config;
        // The first host starts before there is anything it must not see.
        let spare = first_host(host_command).await?;
        let mut runner = Runner::new(spare);
        let (wire, incoming) = link::attach(dialer, runner.hello()).await?;
        runner.serve(wire, incoming).await
    })
}

/// Becomes the parent of whatever a program leaves behind.
fn prepare_process() -> Result<(), Error> {
    // SAFETY: both attributes take one integer and touch no memory of ours.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) < 0 || libc::prctl(libc::PR_SET_DUMPABLE, 0) < 0
    };
    if failed { Err(Error::Process(std::io::Error::last_os_error())) } else { Ok(()) }
}

async fn first_host(command: Vec<std::ffi::OsString>) -> Result<Spare, Error> {
    let mut spare = Spare::new(command);
    while spare.version().is_none() {
        if let Some(exited) = spare.next_change().await
            && spare.is_hopeless()
        {
            let seance_proto::link::v1alpha1::HostExited { signal, exit_status, stderr_bytes } = exited;
            return Err(Error::NoHost { exit_status, signal, stderr_bytes });
        }
    }
    Ok(spare)
}

struct Runner {
    outbox: Outbox,
    /// The connection, until the service has said from where frames are wanted.
    wire: Option<mpsc::Sender<AttachRequest>>,
    spare: Spare,
    assembly: Assembly,
    catalogs: Catalogs,
    session: Option<String>,
    session_deadline: Option<Instant>,
    epoch: u64,
    active: Option<Active>,
    /// Taken, but no host is ready for it yet.
    queued: Option<Execute>,
    last_program: u64,
    /// Strays were not looked for, because a host was being forked.
    has_strays: bool,
}

/// Whether the runner goes on.
enum Next {
    GoOn,
    Exit,
}

impl Runner {
    fn new(spare: Spare) -> Self {
        Self {
            outbox: Outbox::new(),
            wire: None,
            spare,
            assembly: Assembly::default(),
            catalogs: Catalogs::default(),
            session: None,
            session_deadline: None,
            epoch: 0,
            active: None,
            queued: None,
            last_program: 0,
            has_strays: false,
        }
    }

    /// Who we are, and on a reconnect where we stand.
    fn hello(&self) -> Hello {
        let version = self.spare.version().unwrap_or_default();
        let engine = |language: &str| Engine { language: language.to_owned(), version: version.to_owned() };
        let resume = self.session.as_ref().map(|session| Resume {
            session_id: session.clone(),
            program: self.active.as_ref().map_or(0, |active| active.program),
            first_unacknowledged: self.outbox.first_unacknowledged(),
            applied_calls: self.active.iter().flat_map(Active::answered).collect(),
            epoch: self.epoch,
        });
        Hello {
            version_min: LINK_VERSION,
            version_max: LINK_VERSION,
            engines: vec![engine("javascript"), engine("typescript")],
            confinement_parts: crate::hosts::javascript::confinement(),
            resume,
        }
    }

    async fn serve(
        &mut self,
        wire: mpsc::Sender<AttachRequest>,
        mut incoming: Streaming<AttachResponse>,
    ) -> Result<(), Error> {
        self.wire = Some(wire);
        let mut children = signal(SignalKind::child()).map_err(Error::Process)?;
        loop {
            self.outbox.flush();
            let is_held = self.outbox.is_full();
            tokio::select! {
                biased;
                _ = due(self.active.as_ref().map(Active::next_tick)) => {
                    if let Some(active) = &mut self.active {
                        active.tick();
                    }
                }
                message = incoming.message() => match message {
                    Ok(Some(message)) => if let Next::Exit = self.message(message)? { return Ok(()) },
                    // An inherited socket breaks once and for all.
                    Ok(None) => return Ok(()),
                    Err(status) => return Err(link::Error::Refused(Box::new(status)).into()),
                },
                event = next_event(&mut self.active, is_held) => self.event(event),
                exited = self.spare.next_change() => {
                    if let Some(exited) = exited {
                        self.outbox.push(attach_request::Frame::HostExited(exited));
                    }
                    self.start_queued();
                    if self.has_strays {
                        self.reap_strays(self.active.is_none());
                    }
                }
                () = self.outbox.writable(), if self.outbox.is_waiting() => {}
                // Whoever orphaned it, it has become ours; between programs nobody may be left.
                _ = children.recv() => self.reap_strays(self.active.is_none()),
                () = due(self.session_deadline) => return Ok(()),
            }
        }
    }

    fn message(&mut self, message: AttachResponse) -> Result<Next, Error> {
        if message.epoch < self.epoch {
            self.refuse("stale_epoch", 0, format!("epoch {} after {}", message.epoch, self.epoch));
            return Ok(Next::GoOn);
        }
        self.epoch = message.epoch;
        match message.frame {
            Some(attach_response::Frame::Welcome(welcome)) => match self.wire.take() {
                Some(wire) => self.outbox.connect(wire, welcome.acknowledged),
                None => self.outbox.acknowledge(welcome.acknowledged),
            },
            Some(attach_response::Frame::Assign(assign)) => self.assign(assign),
            Some(attach_response::Frame::Catalog(catalog)) => self.catalogs.insert(catalog),
            Some(attach_response::Frame::Execute(execute)) => self.execute(execute),
            Some(attach_response::Frame::CallResult(result)) => {
                if let (Some(active), Some(answer)) = (self.active_as(result.program), result.result) {
                    active.call_result(answer);
                }
            }
            Some(attach_response::Frame::StopProgram(stop)) => self.stop(stop.program),
            Some(attach_response::Frame::Ack(ack)) => self.outbox.acknowledge(ack.number),
            Some(attach_response::Frame::Shutdown(_)) => return Ok(Next::Exit),
            Some(attach_response::Frame::Chunk(chunk)) => {
                if let Some(whole) = self.assembly.add(chunk)? {
                    let message = AttachResponse::decode(whole).map_err(Error::Malformed)?;
                    // A chunk in a chunk would make the bounds worth nothing.
                    if !matches!(message.frame, Some(attach_response::Frame::Chunk(_))) {
                        return self.message(message);
                    }
                }
            }
            // A frame of a later version that we were not asked to understand.
            None => {}
        }
        Ok(Next::GoOn)
    }

    fn assign(&mut self, assign: Assign) {
        match &self.session {
            Some(session) if *session != assign.session_id => {
                self.refuse("already_assigned", 0, format!("to {session}"));
                return;
            }
            Some(_) => {}
            None => {
                let seconds = assign.deadline_seconds;
                self.session_deadline = (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds));
                self.session = Some(assign.session_id.clone());
            }
        }
        self.outbox
            .push_unnumbered(attach_request::Frame::Assigned(Assigned { session_id: assign.session_id }));
    }

    fn execute(&mut self, execute: Execute) {
        if execute.program <= self.last_program {
            return;
        }
        if self.active.is_some() || self.queued.is_some() {
            self.refuse("program_active", execute.program, String::new());
            return;
        }
        if self.catalogs.tools(&execute.catalog_digest).is_none() {
            self.refuse("unknown_catalog", execute.program, execute.catalog_digest);
            return;
        }
        self.last_program = execute.program;
        self.queued = Some(execute);
        self.start_queued();
    }

    fn start_queued(&mut self) {
        let Some(execute) = self.queued.take() else { return };
        let Some((host, engine_version)) = self.spare.take() else {
            if self.spare.is_hopeless() {
                self.last_program = execute.program - 1;
                self.refuse("no_host", execute.program, "hosts end before they are ready".to_owned());
            } else {
                self.queued = Some(execute);
            }
            return;
        };
        let program = execute.program;
        // Catalogs may have come and gone while no host was ready; what was known then is used.
        let tools = self.catalogs.tools(&execute.catalog_digest).unwrap_or_default();
        self.active = Some(Active::start(host, execute, tools));
        let started = ProgramStarted { program, engine_version };
        self.outbox.push(attach_request::Frame::ProgramStarted(started));
    }

    fn stop(&mut self, program: u64) {
        if let Some(active) = self.active_as(program) {
            active.stop();
        } else if self.queued.as_ref().is_some_and(|queued| queued.program == program) {
            self.queued = None;
            let end = seance_proto::link::v1alpha1::HostEnd::Stopped.into();
            let ended = seance_proto::link::v1alpha1::ProgramEnded { program, end, ..Default::default() };
            self.outbox.push(attach_request::Frame::ProgramEnded(ended));
        }
    }

    fn event(&mut self, event: Event) {
        let Some(active) = &mut self.active else { return };
        match active.event(event) {
            Told::Nothing => {}
            Told::Frame(frame) => self.outbox.push(frame),
            Told::Ended(ended) => {
                self.active = None;
                self.reap_strays(true);
                self.outbox.push(attach_request::Frame::ProgramEnded(ended));
            }
        }
    }

    fn active_as(&mut self, program: u64) -> Option<&mut Active> {
        self.active.as_mut().filter(|active| active.program == program)
    }

    fn refuse(&mut self, reason: &str, program: u64, detail: String) {
        let refused = Refused { reason: reason.to_owned(), detail, program };
        self.outbox.push_unnumbered(attach_request::Frame::Refused(refused));
    }

    /// Reaps children that are no host of ours; after a program, kills them first. As the first
    /// process of a namespace it kills all there are, which no child can outrun, and warms up again.
    fn reap_strays(&mut self, kills: bool) {
        // A host that is being forked looks like a stray until its number is known.
        self.has_strays = self.spare.is_forking();
        if self.has_strays {
            return;
        }
        let hosts: BTreeSet<Pid> =
            self.spare.processes().chain(self.active.as_ref().map(Active::pid)).collect();
        for _ in 0..STRAY_ROUNDS_MAX {
            let mut strays = sample::children();
            strays.retain(|pid| !hosts.contains(pid));
            if kills && !strays.is_empty() && std::process::id() == 1 {
                let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
            }
            let mut n_reaped = 0;
            for stray in strays {
                if kills {
                    let _ = kill(stray, Signal::SIGKILL);
                }
                n_reaped += usize::from(process::reap(stray, libc::WNOHANG).is_some());
            }
            // One that is dying tells by a signal; its own orphans become ours with that.
            if n_reaped == 0 {
                return;
            }
        }
    }
}

async fn next_event(active: &mut Option<Active>, is_held: bool) -> Event {
    match active {
        Some(active) => active.next_event(is_held).await,
        None => std::future::pending().await,
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
