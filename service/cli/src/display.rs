//! What people see: output on standard output, everything else on standard error.
//!
//! What a program writes reaches a terminal without its control characters: it is as hostile as the
//! program, and a terminal obeys more than colours. A pipe or a file gets every byte as it is.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};

use anyhow::Result;
use proto::{CallState, ObservationStatus, Program};
use seance_proto::v1alpha1 as proto;

/// The longest tool name in the status line, in characters.
const TOOL_CHARS_MAX: usize = 30;
/// Puts the cursor at the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Shows a program as it runs: each call in a line when it ends or, on a terminal, all of them in one
/// status line that is gone at the end, and the failed ones in lines.
pub struct Display {
    json: bool,
    quiet: bool,
    /// Standard error is a terminal: there is a status line.
    live: bool,
    color: bool,
    to_terminal: bool,
    wrote_output: bool,
    ends_line: bool,
    has_status: bool,
    /// Calls that have not ended, by id.
    open: HashMap<String, Open>,
    n_finished: u64,
    n_failed: u64,
}

/// A call that has not ended.
struct Open {
    tool: String,
    at_work: bool,
}

impl Display {
    /// A display for one program. With `json` only the observation is shown, with `quiet` no calls and no summary.
    pub fn new(json: bool, quiet: bool) -> Self {
        let live = std::io::stderr().is_terminal();
        Self {
            json,
            quiet,
            live,
            color: live && std::env::var_os("NO_COLOR").is_none(),
            to_terminal: std::io::stdout().is_terminal(),
            wrote_output: false,
            ends_line: true,
            has_status: false,
            open: HashMap::new(),
            n_finished: 0,
            n_failed: 0,
        }
    }

    /// Output of the program.
    pub fn output(&mut self, chunk: &proto::OutputChunk) -> Result<()> {
        let Some(last) = chunk.data.last().filter(|_| !self.json) else { return Ok(()) };
        self.clear_status();
        let mut stdout = std::io::stdout().lock();
        match self.to_terminal {
            true => stdout.write_all(&harmless(&chunk.data))?,
            false => stdout.write_all(&chunk.data)?,
        }
        stdout.flush()?;
        self.wrote_output = true;
        self.ends_line = *last == b'\n';
        Ok(())
    }

    /// A call, or what became of one. Its later events name it by its id only.
    pub fn call(&mut self, call: &proto::Call) {
        if self.json || self.quiet {
            return;
        }
        let id = &call.call_id;
        match call.state() {
            CallState::Unspecified | CallState::Queued => {
                self.open.insert(id.clone(), Open { tool: call.tool.clone(), at_work: false });
            }
            CallState::Dispatched => {
                let open = self
                    .open
                    .entry(id.clone())
                    .or_insert_with(|| Open { tool: call.tool.clone(), at_work: true });
                open.at_work = true;
            }
            ended => {
                let open = self.open.remove(id);
                let tool = if call.tool.is_empty() {
                    open.map_or(String::new(), |open| open.tool)
                } else {
                    call.tool.clone()
                };
                self.call_ended(&tool, ended, call);
            }
        }
        self.show_status();
    }

    fn call_ended(&mut self, tool: &str, state: CallState, call: &proto::Call) {
        if state == CallState::Finished {
            self.n_finished += 1;
            if !self.live {
                self.note(&format!("{} {tool} {}", self.paint("✓", "32"), took(call)));
            }
            return;
        }
        self.n_failed += 1;
        let (mark, color, why) = match state {
            CallState::Cancelled => ("✗", "33", "cancelled".to_owned()),
            CallState::NotStarted => ("✗", "33", "not started".to_owned()),
            CallState::OutcomeUnknown => ("?", "31", "outcome unknown".to_owned()),
            _ => {
                let error = call.error.as_ref();
                ("✗", "31", error.map_or(String::new(), |error| format!("{}: {}", error.code, error.message)))
            }
        };
        self.note(&format!("{} {tool} {why}", self.paint(mark, color)));
    }

    /// A line for people.
    pub fn note(&mut self, line: &str) {
        if self.json {
            return;
        }
        self.clear_status();
        // A program's unfinished line stays its own.
        if !self.ends_line && self.to_terminal {
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
        // Events of the last calls may still be on their way; the program tells what they came to.
        for call in observation.program.iter().flat_map(|program| &program.calls) {
            if self.open.contains_key(&call.call_id) {
                self.call(call);
            }
        }
        self.clear_status();
        if self.wrote_output && !self.ends_line {
            say("")?;
            self.ends_line = true;
        }
        let Some(program) = &observation.program else { return Ok(()) };
        if let Some(value) = &program.value_json {
            match self.to_terminal {
                true => say(&String::from_utf8_lossy(&harmless(value.as_bytes())))?,
                false => say(value)?,
            }
        }
        for warning in &program.warnings {
            self.note(&format!(
                "{} {}: {}",
                self.paint("warning", "33"),
                warning.code,
                shown(&warning.message)
            ));
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
        let place = if error.line > 0 {
            format!(" at line {}, column {}", error.line, error.column)
        } else {
            String::new()
        };
        let class = if error.class.is_empty() { String::new() } else { format!("{}: ", shown(&error.class)) };
        let message = shown(&error.message);
        let mut text = format!("{} {}{place}: {class}{message}", self.paint("error", "31"), error.code);
        if !error.safe_to_repeat {
            let calls = n_calls(error.effective_call_ids.len() as u64);
            text.push_str(&format!("\n  {calls} took effect or may have; look before you run it again"));
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
        let (wall, cpu) = (duration(usage.wall_us), duration(usage.cpu_us));
        let memory = usage.peak_memory_bytes as f64 / (1024.0 * 1024.0);
        let calls = n_calls(program.n_calls);
        let failed = if self.n_failed > 0 { format!(" ({} failed)", self.n_failed) } else { String::new() };
        format!(
            "{} in {wall}, {cpu} of processor time, {memory:.1} MiB, {calls}{failed}",
            self.paint(word, color)
        )
    }

    /// Draws the status line anew, unless it would be drawn over an unfinished line of the program.
    fn show_status(&mut self) {
        if !self.live || (!self.ends_line && self.to_terminal) {
            return;
        }
        let at_work = self.open.values().filter(|open| open.at_work).map(|open| open.tool.as_str());
        let (n_at_work, tool) = (at_work.clone().count(), at_work.min().unwrap_or_default());
        let mut line = format!("{} at work", n_calls(n_at_work as u64));
        if !tool.is_empty() {
            line.push_str(&format!(" ({})", shown(tool).chars().take(TOOL_CHARS_MAX).collect::<String>()));
        }
        line.push_str(&format!(", {} finished, {} failed", self.n_finished, self.n_failed));
        let mut stderr = std::io::stderr().lock();
        // What can't be shown is not missed: the calls are in the session's log.
        let _ = write!(stderr, "{CLEAR_LINE}{}", self.paint(&line, "2")).and_then(|()| stderr.flush());
        self.has_status = true;
    }

    /// Takes the status line away, for something else to be written.
    fn clear_status(&mut self) {
        if std::mem::take(&mut self.has_status) {
            eprint!("{CLEAR_LINE}");
        }
    }

    fn paint(&self, text: &str, color: &str) -> String {
        if self.color { format!("\x1b[{color}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.clear_status();
        // What follows is a shell's prompt or an error.
        if !self.ends_line && self.to_terminal {
            let _ = say("");
        }
    }
}

/// Writes a line to standard output. A reader that has gone away is an error, not a panic.
pub fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.write_all(b"\n")?;
    Ok(stdout.flush()?)
}

fn n_calls(n: u64) -> String {
    if n == 1 { "1 call".to_owned() } else { format!("{n} calls") }
}

fn duration(micros: u64) -> String {
    match micros {
        0..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

fn took(call: &proto::Call) -> String {
    let micros = |at: &Option<prost_types::Timestamp>| {
        at.map(|at| at.seconds * 1_000_000 + i64::from(at.nanos) / 1_000)
    };
    match (micros(&call.dispatched_at), micros(&call.ended_at)) {
        (Some(from), Some(to)) => duration(u64::try_from(to - from).unwrap_or(0)),
        _ => String::new(),
    }
}

/// Text of a program or a tool without what a terminal would obey.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// The same for bytes, which may end within a character. In UTF-8, C2 80 to C2 9F are controls too.
fn harmless(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    let mut before = 0;
    for &byte in bytes {
        let is_control = (byte < 0x20 && byte != b'\n' && byte != b'\t') || byte == 0x7f;
        match byte {
            _ if is_control => shown.extend_from_slice("\u{fffd}".as_bytes()),
            0x80..=0x9f if before == 0xc2 => {
                shown.pop();
                shown.extend_from_slice("\u{fffd}".as_bytes());
            }
            _ => shown.push(byte),
        }
        before = byte;
    }
    shown
}

/// An error for people: what was being done, and why it went wrong, down to the first cause.
pub fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = match cause.downcast_ref::<tonic::Status>() {
            Some(status) => status_text(status),
            None => cause.to_string(),
        };
        let cause = cause.trim_end();
        if !text.ends_with(cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(cause);
        }
    }
    text
}

/// A status of the service starts with its reason; one without a reason is the connection's.
fn status_text(status: &tonic::Status) -> String {
    match crate::client::reason(status) {
        Some(_) => status.message().to_owned(),
        None => format!("the connection to the service broke: {}", status.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(
            harmless("a\tb\nü\u{9b}31m\x1b]0;x\x07\x7f".as_bytes()),
            "a\tb\nü\u{fffd}31m\u{fffd}]0;x\u{fffd}\u{fffd}".as_bytes()
        );
        assert_eq!(harmless(&"ü".as_bytes()[..1]), &"ü".as_bytes()[..1]);
        assert_eq!(shown("a\u{9b}b\r\nc"), "a\u{fffd}b\u{fffd}\nc");
    }

    #[test]
    fn an_error_tells_each_cause_once() {
        let cause = anyhow::anyhow!("no such file\n");
        assert_eq!(
            error_text(&cause.context("can't read x: no such file").context("can't start")),
            "can't start: can't read x: no such file"
        );
        let mut refused = tonic::Status::invalid_argument("UNSUPPORTED: unknown limit");
        refused
            .metadata_mut()
            .insert("seance-reason", tonic::metadata::MetadataValue::from_static("UNSUPPORTED"));
        assert_eq!(error_text(&refused.into()), "UNSUPPORTED: unknown limit");
    }

    #[test]
    fn a_call_is_counted_once_and_named_by_its_first_event() {
        let mut display = Display::new(false, false);
        let call = |state: CallState, tool: &str| proto::Call {
            call_id: "1".into(),
            tool: tool.into(),
            state: state.into(),
            ..Default::default()
        };
        display.call(&call(CallState::Queued, "find"));
        display.call(&call(CallState::Dispatched, ""));
        assert!(display.open["1"].at_work && display.open["1"].tool == "find");
        display.call(&call(CallState::Failed, ""));
        assert_eq!((display.open.len(), display.n_finished, display.n_failed), (0, 0, 1));
    }
}
