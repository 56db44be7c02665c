//! What a runner writes to its standard outputs: hostile text that goes to the service's log, a
//! little of it. The pipe is always read to its end, so that a runner never waits for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use seance_core::ids::SandboxId;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// The longest line that is logged, in bytes; the rest is dropped.
const LINE_BYTES_MAX: usize = 1024;
/// Lines of one sandbox logged in a [`WINDOW`]; more are counted and dropped.
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// The last line that a runner wrote, for the message when it doesn't start.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLine(Arc<Mutex<String>>);

impl LastLine {
    pub(super) fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, line: &str) {
        line.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Reads an output until it ends.
pub(super) async fn follow(sandbox: SandboxId, mut output: impl AsyncRead + Unpin, last: LastLine) {
    let mut lines = Lines::default();
    let mut budget = Budget::new(Instant::now());
    let mut buffer = [0; 4096];
    loop {
        match output.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(n) => lines.push(&buffer[..n], |line| log(sandbox, line, &last, &mut budget)),
        }
    }
    lines.end(|line| log(sandbox, line, &last, &mut budget));
}

fn log(sandbox: SandboxId, line: &[u8], last: &LastLine, budget: &mut Budget) {
    let line = harmless(line);
    last.set(&line);
    let Some(n_dropped) = budget.take(Instant::now()) else { return };
    tracing::info!(%sandbox, n_dropped, line, "runner output");
}

/// Text that can't steer a terminal or forge a line of the log.
fn harmless(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Cuts bytes into lines of bounded length.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let room = LINE_BYTES_MAX - self.0.len();
            self.0.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < part.len() {
                each(&self.0);
                self.0.clear();
            }
        }
    }

    fn end(self, mut each: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            each(&self.0);
        }
    }
}

/// How many lines may still be logged.
struct Budget {
    window_start: Instant,
    n_logged: u32,
    n_dropped: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { window_start: now, n_logged: 0, n_dropped: 0 }
    }

    /// Whether another line may be logged, and how many were dropped before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.window_start) >= WINDOW {
            self.window_start = now;
            self.n_logged = 0;
        }
        if self.n_logged == LINES_MAX {
            self.n_dropped += 1;
            return None;
        }
        self.n_logged += 1;
        Some(std::mem::take(&mut self.n_dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_bounded_and_harmless() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for bytes in [&b"a"[..], b"b\nc\n", &[b'x'; 5000], b"\n\x1b[2Jz"] {
            lines.push(bytes, |line| seen.push(harmless(line)));
        }
        lines.end(|line| seen.push(harmless(line)));
        assert_eq!(seen, ["ab", "c", &"x".repeat(LINE_BYTES_MAX), "\u{fffd}[2Jz"]);
    }

    #[test]
    fn a_flood_is_dropped_and_counted() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let n = (0..1000).filter(|_| budget.take(start).is_some()).count();
        assert_eq!(n, LINES_MAX as usize);
        assert_eq!(budget.take(start + WINDOW), Some(1000 - u64::from(LINES_MAX)));
    }
}
