//! The program that runs: its host, its limits, and what the service has to know of it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use seance_proto::host::v1alpha1::{CallResult, Ended, HostLimits, Start, from_host, to_host};
use seance_proto::link::v1alpha1::{
    CancelCall, Execute, HostEnd, Output, OutputSource, ProgramEnded, ToolCall, attach_request::Frame,
};
use tokio::time::Instant;

use super::process::{Event, Exit, HostProcess};
use super::sample::sample;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// How long a host may go on after its turn's limit.
const TURN_GRACE: Duration = Duration::from_millis(500);
/// Resident memory beyond the program's heap: the host itself and copies of large values.
const MEMORY_RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// Unanswered calls when the service sets no limit.
const PENDING_CALLS_MAX: u64 = 65_536;
/// Answered calls that are told of on a reconnect.
const ANSWERED_MAX: usize = 16_384;
/// Threads of a program, of which JavaScript has one.
const THREADS_MAX: u64 = 64;

/// A running program.
pub struct Active {
    pub program: u64,
    host: HostProcess,
    limits: HostLimits,
    started: Instant,
    wall_deadline: Option<Instant>,
    next_sample: Instant,
    /// Processor time when the host last waited, spoke or was spoken to, as far as was seen.
    turn_began: Duration,
    /// Whether a frame has gone either way since the last look.
    has_spoken: bool,
    report: Option<Ended>,
    /// What the host had used when it was dismissed.
    used: Option<Exit>,
    verdict: Option<(HostEnd, String)>,
    output_bytes: u64,
    last_call: u64,
    pending: BTreeSet<u64>,
    answered: VecDeque<u64>,
    peak_memory_bytes: u64,
}

/// What the service is told of an event.
pub enum Told {
    Nothing,
    Frame(Frame),
    /// The program is over and its host is gone, or killed and about to be. The last of a program.
    Ended(ProgramEnded),
}

impl Active {
    /// Gives a ready host its program.
    pub fn start(
        mut host: HostProcess,
        execute: Execute,
        tools: Vec<seance_proto::host::v1alpha1::ToolName>,
    ) -> Self {
        let now = Instant::now();
        let limits = execute.limits.unwrap_or_default();
        let wall = Duration::from_millis(execute.wall_ms);
        let start = Start {
            program: execute.program,
            language: execute.language,
            source: execute.source,
            source_name: execute.source_name,
            tools,
            inputs_json: execute.inputs_json,
            kept: execute.kept,
            limits: Some(limits),
            options: execute.options,
        };
        let sent = host.send(to_host::Frame::Start(start));
        let mut active = Self {
            program: execute.program,
            host,
            limits,
            started: now,
            wall_deadline: (!wall.is_zero()).then(|| now + wall),
            next_sample: now + SAMPLE_INTERVAL,
            turn_began: Duration::ZERO,
            has_spoken: true,
            report: None,
            used: None,
            verdict: None,
            output_bytes: 0,
            last_call: 0,
            pending: BTreeSet::new(),
            answered: VecDeque::new(),
            peak_memory_bytes: 0,
        };
        if let Err(error) = sent {
            active.condemn(HostEnd::Protocol, error.to_string());
        }
        active
    }

    /// The host's process.
    pub fn pid(&self) -> nix::unistd::Pid {
        self.host.pid()
    }

    /// What the host does next; see [`HostProcess::next_event`].
    pub async fn next_event(&mut self, is_held: bool) -> Event {
        self.host.next_event(is_held).await
    }

    /// When [`Self::tick`] is due.
    pub fn next_tick(&self) -> Instant {
        self.wall_deadline.map_or(self.next_sample, |deadline| deadline.min(self.next_sample))
    }

    /// Holds the limits that need a look from outside.
    pub fn tick(&mut self) {
        let now = Instant::now();
        if self.wall_deadline.is_some_and(|deadline| deadline <= now) {
            self.wall_deadline = None;
            self.condemn(HostEnd::WallLimit, String::new());
        }
        if self.next_sample <= now {
            self.next_sample = now + SAMPLE_INTERVAL;
            self.sample();
        }
    }

    /// Takes an event of the host.
    pub fn event(&mut self, event: Event) -> Told {
        match event {
            Event::Frame(frame) => self.frame(frame),
            Event::Output(source, data) => self.output(source, data),
            Event::Violation(what) => {
                self.condemn(HostEnd::Protocol, what);
                Told::Nothing
            }
            Event::Silent => {
                let used = self.used.take().unwrap_or_default();
                Told::Ended(self.ended(used))
            }
            Event::Exited(exit) => Told::Ended(self.ended(exit)),
        }
    }

    /// The host of a program that is over; it may still have to be reaped.
    pub fn into_host(self) -> HostProcess {
        self.host
    }

    /// Passes a result on, once.
    pub fn call_result(&mut self, result: CallResult) {
        let call = result.call;
        if !self.pending.remove(&call) {
            return;
        }
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back(call);
        self.has_spoken = true;
        if let Err(error) = self.host.send(to_host::Frame::CallResult(result)) {
            self.condemn(HostEnd::Protocol, error.to_string());
        }
    }

    /// Ends the program because the service asked. A program that has ended by itself has.
    pub fn stop(&mut self) {
        self.condemn(HostEnd::Stopped, String::new());
    }

    /// Calls that were answered to the program, the latest of them at least.
    pub fn answered(&self) -> impl Iterator<Item = u64> {
        self.answered.iter().copied()
    }

    fn frame(&mut self, frame: from_host::Frame) -> Told {
        self.has_spoken = true;
        if self.verdict.is_some() {
            // What was already on its way when the host was killed; its calls must not happen.
            return match frame {
                from_host::Frame::Text(text) => self.output(OutputSource::Text, text.text.into()),
                _ => Told::Nothing,
            };
        }
        if self.report.is_some() {
            return self.violation("a frame after the last");
        }
        match frame {
            from_host::Frame::Ready(_) => self.violation("ready twice"),
            from_host::Frame::Forked(_) => self.violation("an answer to no request"),
            from_host::Frame::Text(text) => self.output(OutputSource::Text, text.text.into()),
            from_host::Frame::ToolCall(call) => {
                if call.call != self.last_call + 1 {
                    return self.violation("a call number out of order");
                }
                let limit =
                    if self.limits.pending_calls > 0 { self.limits.pending_calls } else { PENDING_CALLS_MAX };
                if self.pending.len() as u64 >= limit {
                    return self.violation("more unanswered calls than it may have");
                }
                self.last_call = call.call;
                self.pending.insert(call.call);
                Told::Frame(Frame::ToolCall(ToolCall {
                    program: self.program,
                    call: call.call,
                    tool: call.tool,
                    arguments_json: call.arguments_json,
                }))
            }
            from_host::Frame::CancelCall(cancel) => {
                // The answer may have been on its way.
                if !self.pending.remove(&cancel.call) && !self.answered.contains(&cancel.call) {
                    return self.violation("a call cancelled that was not made");
                }
                Told::Frame(Frame::CancelCall(CancelCall { program: self.program, call: cancel.call }))
            }
            from_host::Frame::Ended(ended) => {
                self.report = Some(ended);
                self.used = self.host.dismiss();
                Told::Nothing
            }
        }
    }

    fn violation(&mut self, what: &str) -> Told {
        // A report from a host that breaks the protocol is worth nothing.
        self.report = None;
        self.condemn(HostEnd::Protocol, what.to_owned());
        Told::Nothing
    }

    fn output(&mut self, source: OutputSource, data: bytes::Bytes) -> Told {
        self.output_bytes += data.len() as u64;
        if self.limits.output_bytes > 0 && self.output_bytes > self.limits.output_bytes {
            // What a program wrote before its end may be read after it.
            self.report = None;
            self.condemn(HostEnd::OutputLimit, String::new());
            return Told::Nothing;
        }
        Told::Frame(Frame::Output(Output { program: self.program, source: source.into(), data }))
    }

    fn condemn(&mut self, end: HostEnd, detail: String) {
        if self.report.is_none() && self.verdict.is_none() {
            self.verdict = Some((end, detail));
        }
        self.host.kill();
    }

    fn sample(&mut self) {
        let Some(sample) = sample(self.host.pid()) else { return };
        self.peak_memory_bytes = self.peak_memory_bytes.max(sample.resident_bytes);
        if sample.is_waiting || std::mem::take(&mut self.has_spoken) {
            self.turn_began = sample.cpu;
        }
        let memory = self.limits.memory_bytes;
        let turn = Duration::from_millis(self.limits.turn_ms) + TURN_GRACE;
        if memory > 0 && sample.resident_bytes > memory.saturating_add(MEMORY_RESERVE_BYTES) {
            self.condemn(HostEnd::MemoryLimit, String::new());
        } else if sample.n_threads > THREADS_MAX {
            self.condemn(HostEnd::ProcessLimit, String::new());
        } else if self.limits.turn_ms > 0 && sample.cpu.saturating_sub(self.turn_began) > turn {
            self.condemn(HostEnd::TurnLimit, String::new());
        }
    }

    fn ended(&mut self, exit: Exit) -> ProgramEnded {
        let peak_memory_bytes = self.peak_memory_bytes.max(exit.peak_memory_bytes);
        let (end, detail) = match (&self.report, self.verdict.take()) {
            (Some(_), _) => (HostEnd::Reported, String::new()),
            (None, Some(verdict)) => verdict,
            (None, None) => (self.classify(&exit, peak_memory_bytes), String::new()),
        };
        // A host that told its end was killed by us and not by what it did.
        let is_killed = self.report.is_some();
        ProgramEnded {
            program: self.program,
            end: end.into(),
            report: self.report.take(),
            signal: if is_killed { String::new() } else { exit.signal },
            exit_status: if is_killed { 0 } else { exit.status },
            cpu_us: exit.cpu_us,
            wall_us: self.started.elapsed().as_micros() as u64,
            peak_memory_bytes,
            detail,
        }
    }

    /// Why a host ended that neither told nor was killed by us.
    fn classify(&self, exit: &Exit, peak_memory_bytes: u64) -> HostEnd {
        let cpu_limit = self.limits.cpu_ms.saturating_mul(1000);
        let memory = self.limits.memory_bytes;
        let is_crash = matches!(exit.signal.as_str(), "SIGABRT" | "SIGSEGV" | "SIGBUS" | "SIGILL");
        match exit.signal.as_str() {
            "SIGXCPU" => HostEnd::CpuLimit,
            "SIGKILL" if cpu_limit > 0 && exit.cpu_us >= cpu_limit => HostEnd::CpuLimit,
            // An allocation that fails outside of the interpreter's own heap ends the process.
            _ if is_crash && memory > 0 && peak_memory_bytes >= memory / 10 * 9 => HostEnd::MemoryLimit,
            _ => HostEnd::Lost,
        }
    }
}
