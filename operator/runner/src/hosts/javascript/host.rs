//! What a running program's host knows that is not the interpreter's: its limits and clocks, its
//! channel, what it kept, and what the reader of the result should know.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use seance_proto::host::v1alpha1::{Ended, HostLimits, ProgramError, Text, Warning, from_host, to_host};

use super::source::Compiled;
use crate::hosts::channel::Channel;
use crate::hosts::exit_now;

/// Warnings beyond this many are only counted.
const WARNINGS_MAX: usize = 32;
/// Rejections that may be remembered until somebody handles them.
const REJECTIONS_MAX: usize = 256;
/// No value, argument or text is longer, so that each fits in a frame.
pub const JSON_BYTES_MAX: usize = 48 * 1024 * 1024;

/// How a program ends.
pub enum Outcome {
    /// It ran to its end, with a value as JSON text or none.
    Completed(Option<String>),
    /// It failed.
    Failed(ProgramError),
}

/// The host's side of one program.
pub struct Host {
    channel: RefCell<Channel>,
    pub limits: HostLimits,
    pub source_name: String,
    pub compiled: OnceCell<Compiled>,
    /// The index of the `await` at the top of the program that it waits at, or waited at last.
    pub waiting_at: Cell<Option<usize>>,
    pub store: RefCell<Store>,
    /// Processor time when the turn began. Time spent blocked is the runner's, not the program's.
    turn_started: Cell<Duration>,
    cpu_before: Duration,
    memory_before: u64,
    output_bytes: Cell<u64>,
    warnings: RefCell<Vec<Warning>>,
    is_lossy: Cell<bool>,
    rejections: RefCell<Vec<(usize, String)>>,
    unawaited: RefCell<Vec<u64>>,
}

impl Host {
    /// Takes up a program. The clocks start now.
    pub fn new(channel: Channel, limits: HostLimits, source_name: String, store: Store) -> Self {
        let (cpu_before, memory_before) = used();
        Self {
            channel: RefCell::new(channel),
            limits,
            source_name,
            compiled: OnceCell::new(),
            waiting_at: Cell::new(None),
            store: RefCell::new(store),
            turn_started: Cell::new(cpu_before),
            cpu_before,
            memory_before,
            output_bytes: Cell::new(0),
            warnings: RefCell::default(),
            is_lossy: Cell::new(false),
            rejections: RefCell::default(),
            unawaited: RefCell::default(),
        }
    }

    /// Sends a frame. Without a runner there is nobody to tell, so the process ends.
    pub fn send(&self, frame: from_host::Frame) {
        if self.channel.borrow_mut().send(frame).is_err() {
            exit_now(1);
        }
    }

    /// Waits for the next frame, between turns.
    pub fn receive(&self, timeout: Option<Duration>) -> Option<to_host::Frame> {
        let received = self.channel.borrow_mut().receive(timeout);
        self.turn_started.set(used().0);
        received.unwrap_or_else(|_| exit_now(1))
    }

    /// Writes text, up to the output limit; at the limit the program is over.
    pub fn text(&self, text: String) {
        let bytes = self.output_bytes.get() + text.len() as u64;
        if over(bytes, self.limits.output_bytes) || text.len() > JSON_BYTES_MAX {
            self.fail("output_limit", format!("wrote more than {} bytes of text", self.limits.output_bytes));
        }
        self.output_bytes.set(bytes);
        self.send(from_host::Frame::Text(Text { text }));
    }

    /// Ends the program when one of its clocks has run out. Called by the engine while it runs.
    pub fn check_clocks(&self) {
        let cpu = used().0;
        let turn = cpu.saturating_sub(self.turn_started.get()).as_millis() as u64;
        if over(turn, self.limits.turn_ms) {
            let limit = self.limits.turn_ms;
            self.fail("turn_limit", format!("ran for more than {limit} ms without waiting for anything"));
        }
        if over(cpu.saturating_sub(self.cpu_before).as_millis() as u64, self.limits.cpu_ms) {
            let limit = self.limits.cpu_ms;
            self.fail("cpu_limit", format!("used more than {limit} ms of processor time"));
        }
    }

    /// The most memory that the process has had since the program began.
    pub fn peak_memory_bytes(&self) -> u64 {
        used().1.saturating_sub(self.memory_before)
    }

    /// Adds a warning to the result.
    pub fn warn(&self, code: &str, message: String) {
        let mut warnings = self.warnings.borrow_mut();
        if warnings.len() < WARNINGS_MAX {
            warnings.push(Warning { code: code.to_owned(), message });
        }
    }

    /// Warns that a value has another form in JSON; once a program.
    pub fn warn_lossy(&self, lossy: Option<String>) {
        if let Some(message) = lossy
            && !self.is_lossy.replace(true)
        {
            self.warn("lossy_value", message);
        }
    }

    /// Remembers that a promise was rejected and nobody has handled it yet.
    pub fn rejected(&self, promise: usize, message: String) {
        let mut rejections = self.rejections.borrow_mut();
        if rejections.len() < REJECTIONS_MAX {
            rejections.push((promise, message));
        }
    }

    /// Forgets a rejection that was handled after all. An earlier promise may have lived at the
    /// same address and be gone; its rejection stays.
    pub fn handled(&self, promise: usize) {
        let mut rejections = self.rejections.borrow_mut();
        if let Some(at) = rejections.iter().rposition(|(rejected, _)| *rejected == promise) {
            rejections.remove(at);
        }
    }

    /// Notes a call that the program did not wait for.
    pub fn unawaited(&self, call: u64, tool: &str) {
        self.unawaited.borrow_mut().push(call);
        self.warn(
            "unawaited_call",
            format!("call {call} of {tool:?} was not awaited; it was finished first"),
        );
    }

    /// Fails the program without an exception.
    pub fn fail(&self, code: &str, message: String) -> ! {
        self.end(Outcome::Failed(ProgramError { code: code.to_owned(), message, ..Default::default() }))
    }

    /// Tells the runner how the program ended and waits to be killed by it, after it has taken the
    /// measure of this process. No code of the program runs any more.
    pub fn end(&self, outcome: Outcome) -> ! {
        for (_, message) in self.rejections.take() {
            self.warn("unhandled_rejection", message);
        }
        let mut ended = Ended {
            warnings: self.warnings.take(),
            unawaited_calls: self.unawaited.take(),
            cpu_us: used().0.saturating_sub(self.cpu_before).as_micros() as u64,
            peak_memory_bytes: self.peak_memory_bytes(),
            ..Ended::default()
        };
        match outcome {
            Outcome::Completed(value_json) => {
                ended.value_json = value_json;
                (ended.kept, ended.removed_keys) = self.store.take().into_changes();
            }
            Outcome::Failed(error) => ended.error = Some(error),
        }
        self.send(from_host::Frame::Ended(ended));
        self.channel.borrow_mut().until_killed();
        exit_now(0)
    }
}

/// What programs of a session keep: JSON text by key, bounded in bytes.
#[derive(Default)]
pub struct Store {
    values: BTreeMap<String, String>,
    changed: BTreeSet<String>,
    bytes: u64,
    bytes_max: u64,
}

impl Store {
    /// What earlier programs kept; `bytes_max` 0 means no limit.
    pub fn new(values: impl IntoIterator<Item = (String, String)>, bytes_max: u64) -> Self {
        let values: BTreeMap<_, _> = values.into_iter().collect();
        let bytes = values.iter().map(|(key, value)| size(key, value)).sum();
        Self { values, changed: BTreeSet::new(), bytes, bytes_max }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Keeps a value; false when there is no room for it and nothing changed.
    pub fn set(&mut self, key: String, value: String) -> bool {
        let before = self.values.get(&key).map_or(0, |before| size(&key, before));
        let bytes = self.bytes - before + size(&key, &value);
        if over(bytes, self.bytes_max) {
            return false;
        }
        self.bytes = bytes;
        self.changed.insert(key.clone());
        self.values.insert(key, value);
        true
    }

    /// Forgets a value; false when there was none.
    pub fn remove(&mut self, key: &str) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.bytes -= size(key, &value);
        self.changed.insert(key.to_owned());
        true
    }

    pub fn keys(&self) -> Vec<String> {
        self.values.keys().cloned().collect()
    }

    fn into_changes(mut self) -> (std::collections::HashMap<String, String>, Vec<String>) {
        let mut kept = std::collections::HashMap::new();
        let mut removed = Vec::new();
        for key in self.changed {
            match self.values.remove(&key) {
                Some(value) => drop(kept.insert(key, value)),
                None => removed.push(key),
            }
        }
        (kept, removed)
    }
}

fn size(key: &str, value: &str) -> u64 {
    (key.len() + value.len()) as u64
}

/// Whether something is over its limit; 0 is no limit.
pub fn over(used: u64, limit: u64) -> bool {
    limit > 0 && used > limit
}

/// Processor time and the largest resident size of this process so far.
fn used() -> (Duration, u64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return (Duration::ZERO, 0) };
    let micros = |time: nix::sys::time::TimeVal| {
        Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()).unsigned_abs())
    };
    (micros(usage.user_time()) + micros(usage.system_time()), usage.max_rss().unsigned_abs() * 1024)
}
