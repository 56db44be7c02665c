//! The host that is ready before it is needed, and the warm parent that it is forked from.

use std::time::Duration;

use nix::unistd::Pid;
use seance_proto::host::v1alpha1::from_host;
use seance_proto::link::v1alpha1::{HostExited, OutputSource};
use tokio::time::Instant;

use crate::hosts::engine::Engine;

use super::process::{Event, Exit, HostProcess, Requested};

/// A host that ends before it was used is tried again after this, doubling each time.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// How long after a host was taken the next one is started, where its program goes on that long:
/// forking would take the processor from the program that has just begun.
const START_DELAY: Duration = Duration::from_millis(10);
/// How long a host may take to get ready, the start of its parent included.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of standard error that are counted.
const STDERR_BYTES_MAX: u64 = 64 * 1024;
/// Failures in a row after which a program is no longer kept waiting.
pub const FAILURES_MAX: u32 = 5;

/// The next host, its parent, and what became of those before it.
pub struct Spare {
    engine: Engine,
    parent: Option<HostProcess>,
    state: State,
    n_failures: u32,
    stderr_bytes: u64,
}

enum State {
    /// None is asked for until then.
    None {
        until: Instant,
    },
    /// The parent was asked for one.
    Requested {
        host: Requested,
        deadline: Instant,
    },
    Starting {
        host: HostProcess,
        deadline: Instant,
    },
    Ready {
        host: HostProcess,
        version: String,
    },
}

impl State {
    fn nothing() -> Self {
        State::None { until: Instant::now() }
    }
}

/// Whose event it is.
enum Source {
    Parent,
    Host,
}

impl Spare {
    /// Starts the parent and the first host at once.
    pub fn new(engine: Engine) -> Self {
        let mut spare =
            Self { engine, parent: None, state: State::nothing(), n_failures: 0, stderr_bytes: 0 };
        spare.start();
        spare
    }

    /// The ready host and its version; nothing when none is ready. The next one is started by
    /// [`Self::next_change`], a little later or after [`Self::start_soon`].
    pub fn take(&mut self) -> Option<(HostProcess, String)> {
        if !matches!(&self.state, State::Ready { host, .. } if !host.has_ended()) {
            return None;
        }
        let later = State::None { until: Instant::now() + START_DELAY };
        let State::Ready { host, version } = std::mem::replace(&mut self.state, later) else {
            return None;
        };
        self.n_failures = 0;
        Some((host, version))
    }

    /// Starts the next host without the delay after the last was taken.
    pub fn start_soon(&mut self) {
        if let (State::None { until }, 0) = (&mut self.state, self.n_failures) {
            *until = Instant::now();
        }
    }

    /// What the hosts are of.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The version of the host that is ready.
    pub fn version(&self) -> Option<&str> {
        match &self.state {
            State::Ready { version, .. } => Some(version),
            _ => None,
        }
    }

    /// Whether hosts fail so often that waiting for one is no use.
    pub fn is_hopeless(&self) -> bool {
        self.n_failures >= FAILURES_MAX
    }

    /// Whether there may be a process of ours whose number is not known yet.
    pub fn is_forking(&self) -> bool {
        matches!(self.state, State::Requested { .. })
    }

    /// The processes that are known: the parent and the host.
    pub fn processes(&self) -> impl Iterator<Item = Pid> {
        self.parent.iter().chain(self.host()).map(HostProcess::pid)
    }

    fn host(&self) -> Option<&HostProcess> {
        match &self.state {
            State::None { .. } | State::Requested { .. } => None,
            State::Starting { host, .. } | State::Ready { host, .. } => Some(host),
        }
    }

    /// Waits until something about the spare host changes: it got ready or was forked (nothing), or
    /// it or its parent ended. Losing this future loses nothing.
    pub async fn next_change(&mut self) -> Option<HostExited> {
        loop {
            let (source, event) = match self.next_event().await {
                Some(happened) => happened,
                None => {
                    self.start();
                    if matches!(self.state, State::None { .. }) && self.parent.is_none() {
                        return Some(HostExited::default());
                    }
                    continue;
                }
            };
            match (source, event) {
                (Source::Parent, Event::Frame(from_host::Frame::Forked(forked))) if self.is_forking() => {
                    return self.forked(Pid::from_raw(forked.pid));
                }
                (Source::Host, Event::Frame(from_host::Frame::Ready(ready))) if self.is_starting() => {
                    self.ready(ready.engine_version);
                    return None;
                }
                (_, Event::Output(OutputSource::Stderr, data)) => {
                    self.stderr_bytes = (self.stderr_bytes + data.len() as u64).min(STDERR_BYTES_MAX);
                }
                // None of them is ever dismissed.
                (_, Event::Output(..) | Event::Silent) => {}
                // Who speaks before being spoken to is not fit for a program.
                (Source::Parent, Event::Frame(_) | Event::Violation(_)) => self.kill(),
                (Source::Host, Event::Frame(_) | Event::Violation(_)) => {
                    if let Some(host) = self.host() {
                        host.kill();
                    }
                }
                (Source::Parent, Event::Exited(exit)) => {
                    self.parent = None;
                    return self.parent_exited(exit);
                }
                (Source::Host, Event::Exited(exit)) => return Some(self.exited(exit)),
            }
        }
    }

    /// What the parent or the host does next; nothing when it is time to start one.
    async fn next_event(&mut self) -> Option<(Source, Event)> {
        loop {
            let Self { parent, state, .. } = self;
            let (host, due) = match state {
                State::None { until } => (None, Some(*until)),
                State::Requested { deadline, .. } => (None, Some(*deadline)),
                State::Starting { host, deadline } => (Some(host), Some(*deadline)),
                State::Ready { host, .. } => (Some(host), None),
            };
            tokio::select! {
                biased;
                event = next(host) => return Some((Source::Host, event)),
                event = next(parent.as_mut()) => return Some((Source::Parent, event)),
                () = super::due(due) => {}
            }
            match &mut self.state {
                // What is late is killed, its parent too: that may be what hangs. Their ends follow.
                State::Requested { deadline, .. } | State::Starting { deadline, .. } => {
                    *deadline += READY_TIMEOUT;
                    self.kill();
                }
                State::None { .. } | State::Ready { .. } => return None,
            }
        }
    }

    fn kill(&self) {
        for process in self.parent.iter().chain(self.host()) {
            process.kill();
        }
    }

    fn is_starting(&self) -> bool {
        matches!(self.state, State::Starting { .. })
    }

    fn forked(&mut self, pid: Pid) -> Option<HostExited> {
        let State::Requested { host, deadline } = std::mem::replace(&mut self.state, State::nothing()) else {
            return None;
        };
        let adopted = if pid.as_raw() > 0 { host.adopt(pid).ok() } else { None };
        match adopted {
            Some(host) => {
                self.state = State::Starting { host, deadline };
                None
            }
            None => Some(self.exited(Exit::default())),
        }
    }

    fn ready(&mut self, version: String) {
        if let State::Starting { host, .. } = std::mem::replace(&mut self.state, State::nothing()) {
            self.state = State::Ready { host, version };
        }
    }

    fn start(&mut self) {
        self.stderr_bytes = 0;
        match self.request() {
            Ok(host) => self.state = State::Requested { host, deadline: Instant::now() + READY_TIMEOUT },
            Err(_) => {
                // A parent that can't be asked is of no use; its end follows.
                self.kill();
                self.back_off();
            }
        }
    }

    fn request(&mut self) -> std::io::Result<Requested> {
        let parent = match self.parent.take() {
            Some(parent) => parent,
            None => HostProcess::spawn(&self.engine)?,
        };
        self.parent.insert(parent).request()
    }

    /// A host that is ready or starting needs its parent no more; one that was asked for will not come.
    fn parent_exited(&mut self, exit: Exit) -> Option<HostExited> {
        match self.state {
            State::Requested { .. } => Some(self.exited(exit)),
            _ => Some(self.told(exit)),
        }
    }

    fn exited(&mut self, exit: Exit) -> HostExited {
        self.back_off();
        self.told(exit)
    }

    fn told(&self, exit: Exit) -> HostExited {
        HostExited { signal: exit.signal, exit_status: exit.status, stderr_bytes: self.stderr_bytes }
    }

    fn back_off(&mut self) {
        let wait = BACKOFF_MIN.saturating_mul(1 << self.n_failures.min(10)).min(BACKOFF_MAX);
        self.n_failures = self.n_failures.saturating_add(1);
        self.state = State::None { until: Instant::now() + wait };
    }
}

async fn next(process: Option<&mut HostProcess>) -> Event {
    match process {
        Some(process) => process.next_event(false).await,
        None => std::future::pending().await,
    }
}
