//! The runner: takes one session over the link and runs its programs, each in a host of its own.
//!
//! One task holds everything. Each round it waits for the first of: a limit to look after, an event
//! of the link, of the running host, of the spare one, room on the wire, a look at the isolation.
//! What waits loses nothing when another is first. Where the link is one that can be dialled again, a
//! program goes on without it, and what the service doesn't have yet waits.

mod active;
mod assembly;
mod catalogs;
mod config;
mod inherited;
mod isolation;
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
    Applied, Assign, Assigned, AttachRequest, AttachResponse, CallResult, Engine, Execute, Goodbye, Hello,
    ProgramStarted, Refused, Resume, Welcome, attach_request, attach_response,
};
use seance_proto::prost::Message;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use active::{Active, Told};
use assembly::Assembly;
use catalogs::Catalogs;
pub use config::{Config, Dialer, Error as ConfigError};
use isolation::Isolation;
use link::Link;
use outbox::Outbox;
use process::{Event, HostProcess};
use spare::Spare;

/// The versions of the link that this runner speaks.
const LINK_VERSION_MIN: u32 = 1;
const LINK_VERSION: u32 = 2;
/// So many results, or bytes of them, are told of together as applied.
const APPLIED_MAX: usize = 16;
const APPLIED_BYTES_MAX: usize = 64 * 1024;
/// How long the service is waited for to have a program's end in its log, before what the program left
/// is seen to.
const TIDY_DELAY: Duration = Duration::from_millis(5);
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
        let Config { dialer, engine, isolation } = config;
        // Nothing but the service and the pod's end are an order to end: a handler that does
        // nothing takes the place of the signal's own way. Without one, a signal ends us.
        let _ignored = match &dialer {
            Dialer::Network(_) => Some(signal(SignalKind::terminate()).map_err(Error::Process)?),
            Dialer::Inherited(_) => None,
        };
        let isolation = isolation.map(Isolation::new);
        // The first host starts before there is anything it must not see.
        let spare = first_host(engine).await?;
        Runner::new(spare, Link::new(dialer), isolation).serve().await
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

async fn first_host(engine: crate::hosts::engine::Engine) -> Result<Spare, Error> {
    let mut spare = Spare::new(engine);
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
    link: Link,
    isolation: Option<Isolation>,
    /// Whether a link was made before.
    was_linked: bool,
    /// The version of the link as it is spoken.
    version: u32,
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
    /// The host of the last program: killed by [`Self::tidy`], and not reaped yet.
    dying: Option<HostProcess>,
    /// A program has ended, and what it left is seen to at the latest then.
    untidy: Option<Instant>,
    /// Taken, but no host is ready for it yet.
    queued: Option<Execute>,
    last_program: u64,
    /// Results that reached the active program and were not told of yet, and their bytes.
    applied: Vec<u64>,
    applied_bytes: usize,
    /// Strays were not looked for, because a host was being forked.
    has_strays: bool,
}

/// Whether the runner goes on.
enum Next {
    GoOn,
    Exit,
}

impl Runner {
    fn new(spare: Spare, link: Link, isolation: Option<Isolation>) -> Self {
        Self {
            link,
            isolation,
            was_linked: false,
            version: LINK_VERSION_MIN,
            outbox: Outbox::new(),
            wire: None,
            spare,
            assembly: Assembly::default(),
            catalogs: Catalogs::default(),
            session: None,
            session_deadline: None,
            epoch: 0,
            active: None,
            dying: None,
            untidy: None,
            queued: None,
            last_program: 0,
            applied: Vec::new(),
            applied_bytes: 0,
            has_strays: false,
        }
    }

    /// Who we are, and on a reconnect where we stand.
    fn hello(&self) -> Hello {
        let version = self.spare.version().unwrap_or_default();
        let offered = self.spare.engine();
        let engine =
            |language: &&str| Engine { language: (*language).to_owned(), version: version.to_owned() };
        let resume = self.was_linked.then(|| Resume {
            session_id: self.session.clone().unwrap_or_default(),
            program: self.active.as_ref().map_or(0, |active| active.program),
            first_unacknowledged: self.outbox.first_unacknowledged(),
            applied_calls: self.active.iter().flat_map(Active::answered).collect(),
            epoch: self.epoch,
            last_program: self.last_program,
        });
        Hello {
            version_min: LINK_VERSION_MIN,
            version_max: LINK_VERSION,
            engines: offered.languages.iter().map(engine).collect(),
            confinement_parts: offered.confinement.clone(),
            resume,
        }
    }

    async fn serve(&mut self) -> Result<(), Error> {
        let mut children = signal(SignalKind::child()).map_err(Error::Process)?;
        loop {
            self.outbox.flush();
            let is_held = self.outbox.is_full();
            let is_linked = self.outbox.is_connected();
            tokio::select! {
                biased;
                _ = due(self.active.as_ref().map(Active::next_tick)) => {
                    if let Some(active) = &mut self.active {
                        active.tick();
                    }
                }
                event = self.link.next() => if let Next::Exit = self.link_event(event)? {
                    self.leave().await;
                    return Ok(());
                },
                event = next_event(&mut self.active, is_held) => if self.event(event) {
                    self.untidy = Some(Instant::now() + TIDY_DELAY);
                },
                exited = self.spare.next_change() => {
                    if let Some(exited) = exited {
                        self.outbox.push(attach_request::Frame::HostExited(exited));
                    }
                    self.start_queued();
                    if self.has_strays {
                        self.reap_strays(self.active.is_none());
                    }
                }
                () = due(self.untidy) => self.tidy(),
                () = gone(&mut self.dying) => self.dying = None,
                () = self.outbox.writable(), if self.outbox.is_waiting() => {}
                // Whoever orphaned it, it has become ours; between programs nobody may be left.
                _ = children.recv() => self.reap_strays(self.active.is_none()),
                () = due(self.session_deadline) => return Ok(()),
                report = next_report(&mut self.isolation), if is_linked && self.version > 1 => {
                    self.outbox.push_unnumbered(attach_request::Frame::IsolationReport(report));
                }
            }
        }
    }

    fn link_event(&mut self, event: link::Event) -> Result<Next, Error> {
        match event {
            link::Event::Dial => {
                let hello = self.hello();
                self.link.dial(hello);
            }
            link::Event::Connected(wire) => {
                self.was_linked = true;
                self.assembly = Assembly::default();
                self.wire = Some(wire);
            }
            link::Event::Message(message) => return self.message(*message),
            link::Event::Lost(error) => {
                eprintln!("seance-runner: {:#}; dialling again", anyhow::Error::new(error));
                self.wire = None;
                self.outbox.disconnect();
            }
            // An inherited socket that ends is an order to end.
            link::Event::Over(Ok(())) => return Ok(Next::Exit),
            link::Event::Over(Err(error)) => return Err(error.into()),
        }
        Ok(Next::GoOn)
    }

    /// Kills everything, says so, and lets that leave.
    async fn leave(&mut self) {
        (self.active, self.dying, self.queued) = (None, None, None);
        self.reap_strays(true);
        if self.version > 1 && self.link.is_dialled_again() {
            self.outbox.say_last(attach_request::Frame::Goodbye(Goodbye {}));
            self.link.farewell().await;
        }
    }

    fn message(&mut self, message: AttachResponse) -> Result<Next, Error> {
        if message.epoch < self.epoch {
            self.refuse("stale_epoch", 0, format!("epoch {} after {}", message.epoch, self.epoch));
            return Ok(Next::GoOn);
        }
        self.epoch = message.epoch;
        match message.frame {
            Some(attach_response::Frame::Welcome(welcome)) => self.welcome(&welcome),
            Some(attach_response::Frame::Assign(assign)) => self.assign(assign),
            Some(attach_response::Frame::Catalog(catalog)) => self.catalogs.insert(catalog),
            Some(attach_response::Frame::Execute(execute)) => self.execute(execute),
            Some(attach_response::Frame::CallResult(result)) => self.call_result(result),
            Some(attach_response::Frame::StopProgram(stop)) => self.stop(stop.program),
            Some(attach_response::Frame::Ack(ack)) => {
                self.outbox.acknowledge(ack.number);
                if self.outbox.is_acknowledged() {
                    self.tidy();
                }
            }
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

    fn welcome(&mut self, welcome: &Welcome) {
        self.version = welcome.version;
        self.link.keep_ticket(&welcome.ticket);
        match self.wire.take() {
            Some(wire) => self.outbox.connect(wire, welcome.acknowledged),
            None => self.outbox.acknowledge(welcome.acknowledged),
        }
    }

    fn call_result(&mut self, result: CallResult) {
        let bytes = result.encoded_len();
        let tells = self.version > 1 && self.link.is_dialled_again();
        let (Some(active), Some(answer)) = (self.active_as(result.program), result.result) else { return };
        let call = answer.call;
        active.call_result(answer);
        if !tells {
            return;
        }
        self.applied.push(call);
        self.applied_bytes += bytes;
        if self.applied.len() >= APPLIED_MAX || self.applied_bytes >= APPLIED_BYTES_MAX {
            let calls = std::mem::take(&mut self.applied);
            self.applied_bytes = 0;
            self.outbox
                .push_unnumbered(attach_request::Frame::Applied(Applied { program: result.program, calls }));
        }
    }

    fn assign(&mut self, assign: Assign) {
        if self.isolation.as_ref().is_some_and(|isolation| !isolation.may_serve()) {
            self.refuse("no_pids_limit", 0, "nothing limits the number of processes here".to_owned());
            return;
        }
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
        self.tidy();
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
        (self.applied, self.applied_bytes) = (Vec::new(), 0);
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

    /// Takes an event of the running host; whether it was its program's last.
    fn event(&mut self, event: Event) -> bool {
        let Some(active) = &mut self.active else { return false };
        match active.event(event) {
            Told::Nothing => {}
            Told::Frame(frame) => self.outbox.push(frame),
            Told::Ended(ended) => {
                // One before it that is still there is waited for here.
                self.dying = self.active.take().map(Active::into_host);
                self.outbox.push(attach_request::Frame::ProgramEnded(ended));
                return true;
            }
        }
        false
    }

    fn active_as(&mut self, program: u64) -> Option<&mut Active> {
        self.active.as_mut().filter(|active| active.program == program)
    }

    fn refuse(&mut self, reason: &str, program: u64, detail: String) {
        let refused = Refused { reason: reason.to_owned(), detail, program };
        self.outbox.push_unnumbered(attach_request::Frame::Refused(refused));
    }

    /// Ends what an ended program left, once, and has the next host made. Taking a host's memory down and
    /// making another take the processor for longer than a small program: so the end is told before,
    /// and where the service has it in its log, that is done too.
    fn tidy(&mut self) {
        if self.untidy.take().is_none() {
            return;
        }
        if let Some(dying) = &self.dying {
            dying.kill();
        }
        self.reap_strays(true);
        self.spare.start_soon();
    }

    /// Reaps children that are no host of ours; after a program, kills them first. As the first
    /// process of a namespace it kills all there are, which no child can outrun, and warms up again.
    fn reap_strays(&mut self, kills: bool) {
        // A host that is being forked looks like a stray until its number is known.
        self.has_strays = self.spare.is_forking();
        if self.has_strays {
            return;
        }
        let own = self.active.as_ref().map(Active::pid).into_iter();
        let own = own.chain(self.dying.as_ref().map(HostProcess::pid));
        let hosts: BTreeSet<Pid> = own.chain(self.spare.processes()).collect();
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

async fn gone(dying: &mut Option<HostProcess>) {
    match dying {
        Some(dying) => dying.gone().await,
        None => std::future::pending().await,
    }
}

async fn next_report(isolation: &mut Option<Isolation>) -> seance_proto::link::v1alpha1::IsolationReport {
    match isolation {
        Some(isolation) => isolation.report().await,
        None => std::future::pending().await,
    }
}

/// Waits until then. What is due already costs no wait: a timer rounds up to a millisecond.
async fn due(at: Option<Instant>) {
    match at {
        Some(at) if at <= Instant::now() => {}
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
