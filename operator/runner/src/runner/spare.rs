//! The host that is ready before it is needed.

use std::ffi::OsString;
use std::time::Duration;

use seance_proto::host::v1alpha1::from_host;
use seance_proto::link::v1alpha1::{HostExited, OutputSource};
use tokio::time::Instant;

use super::process::{Event, Exit, HostProcess};

/// A host that ends before it was used is tried again after this, doubling each time.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// How long a host may take to get ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of standard error that are counted.
const STDERR_BYTES_MAX: u64 = 64 * 1024;
/// Failures in a row after which a program is no longer kept waiting.
pub const FAILURES_MAX: u32 = 5;

/// The next host, and what became of those before it.
pub struct Spare {
    command: Vec<OsString>,
    state: State,
    n_failures: u32,
    stderr_bytes: u64,
}

enum State {
    /// None is running until then.
    None {
        until: Instant,
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

impl Spare {
    /// Starts the first host at once.
    pub fn new(command: Vec<OsString>) -> Self {
        let mut spare =
            Self { command, state: State::None { until: Instant::now() }, n_failures: 0, stderr_bytes: 0 };
        spare.start();
        spare
    }

    /// The ready host and its version, with the next one started; nothing when none is ready.
    pub fn take(&mut self) -> Option<(HostProcess, String)> {
        if !matches!(&self.state, State::Ready { host, .. } if !host.has_ended()) {
            return None;
        }
        let none = State::None { until: Instant::now() };
        let State::Ready { host, version } = std::mem::replace(&mut self.state, none) else { return None };
        self.n_failures = 0;
        Some((host, version))
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

    /// The process, when there is one.
    pub fn process(&self) -> Option<&HostProcess> {
        match &self.state {
            State::None { .. } => None,
            State::Starting { host, .. } | State::Ready { host, .. } => Some(host),
        }
    }

    /// Waits until something about the spare host changes: it got ready (nothing), or it ended.
    /// Losing this future loses nothing.
    pub async fn next_change(&mut self) -> Option<HostExited> {
        loop {
            let event = match &mut self.state {
                State::None { until } => {
                    tokio::time::sleep_until(*until).await;
                    self.start();
                    if matches!(self.state, State::None { .. }) {
                        return Some(HostExited::default());
                    }
                    continue;
                }
                State::Starting { host, deadline } => {
                    match tokio::time::timeout_at(*deadline, host.next_event(false)).await {
                        Ok(event) => event,
                        Err(_) => {
                            host.kill();
                            host.next_event(false).await
                        }
                    }
                }
                State::Ready { host, .. } => host.next_event(false).await,
            };
            match event {
                Event::Frame(from_host::Frame::Ready(ready)) if self.is_starting() => {
                    self.ready(ready.engine_version);
                    return None;
                }
                Event::Output(OutputSource::Stderr, data) => {
                    self.stderr_bytes = (self.stderr_bytes + data.len() as u64).min(STDERR_BYTES_MAX);
                }
                Event::Output(..) => {}
                // A host that speaks before it is spoken to is not fit for a program.
                Event::Frame(_) | Event::Violation(_) => {
                    if let Some(host) = self.process() {
                        host.kill();
                    }
                }
                Event::Exited(exit) => return Some(self.exited(exit)),
            }
        }
    }

    fn is_starting(&self) -> bool {
        matches!(self.state, State::Starting { .. })
    }

    fn ready(&mut self, version: String) {
        let none = State::None { until: Instant::now() };
        if let State::Starting { host, .. } = std::mem::replace(&mut self.state, none) {
            self.state = State::Ready { host, version };
        }
    }

    fn start(&mut self) {
        self.stderr_bytes = 0;
        match HostProcess::spawn(&self.command) {
            Ok(host) => self.state = State::Starting { host, deadline: Instant::now() + READY_TIMEOUT },
            Err(_) => self.back_off(),
        }
    }

    fn exited(&mut self, exit: Exit) -> HostExited {
        let told =
            HostExited { signal: exit.signal, exit_status: exit.status, stderr_bytes: self.stderr_bytes };
        self.back_off();
        told
    }

    fn back_off(&mut self) {
        let wait = BACKOFF_MIN.saturating_mul(1 << self.n_failures.min(10)).min(BACKOFF_MAX);
        self.n_failures = self.n_failures.saturating_add(1);
        self.state = State::None { until: Instant::now() + wait };
    }
}
