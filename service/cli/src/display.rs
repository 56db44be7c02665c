//! What people see: output on standard output, everything else on standard error.

use std::io::{IsTerminal as _, Write as _};

use anyhow::Result;
use seance_proto::v1alpha1 as proto;
use proto::{CallState, ObservationStatus, Program};

/// The longest arguments or value that is shown of a call, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// Shows a program as it runs.
pub struct Display {
    json: bool,
    quiet: bool,
    color: bool,
    wrote_output: bool,
    ends_line: bool,
}

impl Display {
    pub fn new(json: bool, quiet: bool) -> Self {
        let color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { json, quiet, color, wrote_output: false, ends_line: true }
    }

    /// Output of the program.
    pub fn output(&mut self, chunk: &proto::OutputChunk) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&chunk.data)?;
        stdout.flush()?;
        if let Some(last) = chunk.data.last() {
            self.wrote_output = true;
            self.ends_line = *last == b'\n';
        }
        Ok(())
    }

    /// A call, or what became of one.
    pub fn call(&mut self, call: &proto::Call) {
        if self.json || self.quiet {
            return;
        }
        let took = took(call);
        let (mark, color, more) = match call.state() {
            CallState::Queued | CallState::Unspecified => return,
            CallState::Dispatched => ("→", "36", shortened(&call.arguments_json)),
            CallState::Finished => ("✓", "32", took),
            CallState::Failed => ("✗", "31", call.error.as_ref().map_or(String::new(), |error| format!("{}: {}", error.code, error.message))),
            CallState::Cancelled => ("✗", "33", "cancelled".to_owned()),
            CallState::NotStarted => ("✗", "33", "not started".to_owned()),
            CallState::OutcomeUnknown => ("?", "31", "outcome unknown".to_owned()),
        };
        self.note(&format!("{} {} {more}", self.paint(mark, color), call.tool));
    }

    /// A line for people.
    pub fn note(&mut self, line: &str) {
        if self.json {
            return;
        }
        // A program's unfinished line stays its own.
        if !self.ends_line && std::io::stdout().is_terminal() {
            println!();
            self.ends_line = true;
        }
        eprintln!("{line}");
    }

    /// The end of the observation.
    pub fn end(&mut self, observation: &proto::Observation) -> Result<()> {
        if self.json {
            return crate::json::print("Observation", observation);
        }
        if self.wrote_output && !self.ends_line {
            println!();
            self.ends_line = true;
        }
        let Some(program) = &observation.program else { return Ok(()) };
        if let Some(value) = &program.value_json {
            println!("{value}");
        }
        for warning in &program.warnings {
            self.note(&format!("{} {}: {}", self.paint("warning", "33"), warning.code, warning.message));
        }
        if let Some(error) = &program.error {
            self.note(&self.program_error(error));
        }
        if !self.quiet {
            self.note(&self.summary(observation.status(), program));
        }
        Ok(())
    }

    fn program_error(&self, error: &proto::ProgramError) -> String {
        let place = if error.line > 0 { format!(" at line {}, column {}", error.line, error.column) } else { String::new() };
        let class = if error.class.is_empty() { String::new() } else { format!("{}: ", error.class) };
        let mut text = format!("{} {}{place}: {class}{}", self.paint("error", "31"), error.code, error.message);
        if !error.safe_to_repeat {
            let n = error.effective_call_ids.len();
            text.push_str(&format!("\n  {n} call(s) took effect or may have; look before you run it again"));
        }
        text
    }

    fn summary(&self, status: ObservationStatus, program: &Program) -> String {
        let (word, color) = match status {
            ObservationStatus::Completed => ("completed", "32"),
            ObservationStatus::StillWorking => ("still working", "33"),
            ObservationStatus::Terminated => ("stopped", "33"),
            ObservationStatus::Error | ObservationStatus::Unspecified => ("failed", "31"),
        };
        let usage = program.usage.unwrap_or_default();
        let (wall, cpu) = (millis(usage.wall_us), millis(usage.cpu_us));
        let memory = usage.peak_memory_bytes as f64 / (1024.0 * 1024.0);
        let calls = program.n_calls;
        format!("{} in {wall}, {cpu} of processor time, {memory:.1} MiB, {calls} call(s)", self.paint(word, color))
    }

    fn paint(&self, text: &str, color: &str) -> String {
        if self.color { format!("\x1b[{color}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1000.0)
}

fn took(call: &proto::Call) -> String {
    let micros = |at: &Option<prost_types::Timestamp>| at.map(|at| at.seconds * 1_000_000 + i64::from(at.nanos) / 1_000);
    match (micros(&call.dispatched_at), micros(&call.ended_at)) {
        (Some(from), Some(to)) => millis(u64::try_from(to - from).unwrap_or(0)),
        _ => String::new(),
    }
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// An error for people: what was being done, and why it went wrong, down to the first cause.
pub fn error_text(error: &anyhow::Error) -> String {
    if let Some(status) = error.downcast_ref::<tonic::Status>() {
        let reason = status.metadata().get("seance-reason").and_then(|reason| reason.to_str().ok());
        let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
        return format!("{}{reason}", status.message());
    }
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
