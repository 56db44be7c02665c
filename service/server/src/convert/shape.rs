//! Messages held to the size that clients with default settings take.
//!
//! Sizes are bounded where things are recorded, so most messages never get here whole. What together
//! is still too large loses, in this order: arguments of calls from the last on, long texts of call
//! errors, warnings, the last calls and artifacts, and the middle of the error. Everything cut here can
//! be read whole as an event or a blob.

use prost::Message;
use seance_core::text;
use seance_proto::PUBLIC_MESSAGE_BYTES_MAX;
use seance_proto::v1alpha1 as proto;

/// What a message around the shaped parts may take.
const ENVELOPE_BYTES: usize = 4 * 1024;
/// The largest budget of an observation's output, in tokens of four bytes. A larger one that a
/// caller asks for is held to it, and the observation says how much was cut.
pub const OUTPUT_TOKENS_MAX: u64 = 256 * 1024;

const CALL_ERROR_BYTES: usize = 512;
const PROGRAM_ERROR_BYTES: usize = 16 * 1024;

/// Holds a program to what one message can carry.
pub fn program(program: &mut proto::Program) {
    fit_program(program, PUBLIC_MESSAGE_BYTES_MAX - ENVELOPE_BYTES);
}

/// Holds an observation to what one message can carry. Its output stays whole.
pub fn observation(observation: &mut proto::Observation) {
    let bytes_max = PUBLIC_MESSAGE_BYTES_MAX - ENVELOPE_BYTES;
    if observation.encoded_len() <= bytes_max {
        return;
    }
    let over = observation.encoded_len() - bytes_max;
    if let Some(program) = &mut observation.program {
        let program_bytes_max = program.encoded_len().saturating_sub(over);
        fit_program(program, program_bytes_max);
    }
    let over = excess(observation.encoded_len(), bytes_max);
    drop_arguments(&mut observation.pending_calls, over);
    while observation.encoded_len() > bytes_max && observation.artifacts.pop().is_some() {}
    while observation.encoded_len() > bytes_max && observation.pending_calls.pop().is_some() {}
}

/// Holds an event to what one message can carry. Output needs no shaping: an event has at most 256 KiB
/// of it.
pub fn event(event: &mut proto::Event) {
    if let Some(proto::event::Kind::ProgramEnded(ended)) = &mut event.kind {
        program(ended);
    }
}

/// As many of the sessions as one message can carry, and whether some were left out.
pub fn sessions(sessions: &mut Vec<proto::Session>) -> bool {
    let mut bytes = 0;
    let fitting = sessions
        .iter()
        .take_while(|session| {
            let session_bytes = session.encoded_len();
            bytes += session_bytes + prost::length_delimiter_len(session_bytes) + 1;
            bytes <= PUBLIC_MESSAGE_BYTES_MAX - ENVELOPE_BYTES
        })
        .count();
    let is_cut = fitting < sessions.len();
    sessions.truncate(fitting);
    is_cut
}

fn fit_program(program: &mut proto::Program, bytes_max: usize) {
    if program.encoded_len() <= bytes_max {
        return;
    }
    let over = excess(program.encoded_len(), bytes_max);
    drop_arguments(&mut program.calls, over);
    if program.encoded_len() <= bytes_max {
        return;
    }
    for error in program.calls.iter_mut().filter_map(|call| call.error.as_mut()) {
        cut(&mut error.message, CALL_ERROR_BYTES);
        cut(&mut error.code, CALL_ERROR_BYTES);
    }
    program.warnings.truncate(100);
    for warning in &mut program.warnings {
        cut(&mut warning.message, CALL_ERROR_BYTES);
    }
    let over = excess(program.encoded_len(), bytes_max);
    truncate(&mut program.calls, over, Message::encoded_len);
    let over = excess(program.encoded_len(), bytes_max);
    truncate(&mut program.artifacts, over, Message::encoded_len);
    if program.encoded_len() > bytes_max
        && let Some(error) = &mut program.error
    {
        cut(&mut error.message, PROGRAM_ERROR_BYTES);
        cut(&mut error.backtrace, PROGRAM_ERROR_BYTES);
        error.effective_call_ids.truncate(1_000);
    }
}

fn excess(bytes: usize, bytes_max: usize) -> usize {
    bytes.saturating_sub(bytes_max)
}

/// Removes arguments from the last call on until at least `excess` bytes are gone.
fn drop_arguments(calls: &mut [proto::Call], mut excess: usize) {
    for call in calls.iter_mut().rev() {
        if excess == 0 {
            return;
        }
        excess = excess.saturating_sub(std::mem::take(&mut call.arguments_json).len());
    }
}

/// Removes items from the last on until at least `excess` bytes are gone.
fn truncate<M>(items: &mut Vec<M>, mut excess: usize, bytes: impl Fn(&M) -> usize) {
    while excess > 0 {
        let Some(item) = items.pop() else { return };
        excess = excess.saturating_sub(bytes(&item));
    }
}

fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        *text = text::truncate_bytes(text, bytes_max).into_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(n: usize, bytes: usize) -> proto::Call {
        proto::Call {
            call_id: format!("call_{n}"),
            arguments_json: "x".repeat(bytes),
            error: Some(proto::ToolError { message: "e".repeat(bytes), ..Default::default() }),
            ..Default::default()
        }
    }

    fn large_program() -> proto::Program {
        proto::Program {
            value_json: Some("v".repeat(1024 * 1024)),
            error: Some(proto::ProgramError {
                message: "m".repeat(256 * 1024),
                backtrace: "b".repeat(256 * 1024),
                ..Default::default()
            }),
            calls: (0..1_000).map(|n| call(n, 4_000)).collect(),
            warnings: vec![proto::Warning { message: "w".repeat(1_000), ..Default::default() }; 1_000],
            ..Default::default()
        }
    }

    #[test]
    fn the_largest_program_fits_and_keeps_its_calls_fates() {
        let mut large = large_program();
        program(&mut large);
        assert!(large.encoded_len() < PUBLIC_MESSAGE_BYTES_MAX);
        assert_eq!(large.calls.len(), 1_000);
        assert_eq!(large.value_json.unwrap().len(), 1024 * 1024);
    }

    #[test]
    fn the_largest_observation_fits_and_keeps_its_output() {
        let mut large = proto::Observation {
            output: "o".repeat(1024 * 1024),
            program: Some(large_program()),
            pending_calls: (0..64).map(|n| call(n, 64 * 1024)).collect(),
            ..Default::default()
        };
        observation(&mut large);
        assert!(large.encoded_len() < PUBLIC_MESSAGE_BYTES_MAX, "{}", large.encoded_len());
        assert_eq!(large.output.len(), 1024 * 1024);
    }

    #[test]
    fn a_small_program_is_left_alone() {
        let mut small = proto::Program { calls: vec![call(1, 100)], ..Default::default() };
        let before = small.clone();
        program(&mut small);
        assert_eq!(small, before);
    }

    #[test]
    fn a_page_ends_where_the_message_is_full() {
        let session = proto::Session { engine: "x".repeat(100 * 1024), ..Default::default() };
        let mut page = vec![session; 100];
        assert!(sessions(&mut page));
        assert!(page.len() < 31 && page.len() > 25);
        let mut short = page[..2].to_vec();
        assert!(!sessions(&mut short));
        assert_eq!(short.len(), 2);
    }
}
