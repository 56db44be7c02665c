//! From what a program threw to what its author reads: the class, the message, the place in the
//! author's own source, and the author's own frames.

use rquickjs::{Ctx, Value};
use seance_proto::host::v1alpha1::ProgramError;

use super::host::Host;
use super::positions::Position;
use super::prelude::Prelude;
use super::raw;

/// Messages and traces are cut here; what a program throws can be as long as its memory.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
const FRAMES_MAX: usize = 32;

/// Codes of our own errors that say more than "exception" when nobody caught them.
const OWN_CODES: &[&str] = &["unserializable", "number_limit", "value_limit", "store_limit", "import_denied"];

/// How the engine says that there is no room for a value.
const OUT_OF_MEMORY: &[&str] = &["out of memory", "string too long"];

/// Describes an uncaught exception.
pub fn describe<'js>(
    ctx: &Ctx<'js>,
    host: &Host,
    prelude: &Prelude<'js>,
    thrown: &Value<'js>,
) -> ProgramError {
    let class = class(ctx, thrown);
    let message = message(ctx, thrown);
    let own_code = prelude.code_of(thrown);
    let code = match own_code.as_deref() {
        Some("call_limit") => "call_limit",
        Some(code) if !prelude.is_tool_error(thrown) && OWN_CODES.contains(&code) => code,
        _ if class == "InternalError" && OUT_OF_MEMORY.contains(&message.as_str()) => "memory_limit",
        _ if thrown.is_null() && is_memory_used_up(ctx, host) => "memory_limit",
        _ => "exception",
    };
    let frames = frames(ctx, host, thrown);
    let place = frames.first().map(|frame| frame.position).or_else(|| waiting_at(host));
    ProgramError {
        code: code.to_owned(),
        message,
        class,
        line: place.map_or(0, |place| place.line),
        column: place.map_or(0, |place| place.column),
        backtrace: frames.iter().map(|frame| frame.text.as_str()).collect::<Vec<_>>().join("\n"),
    }
}

/// One line for a warning about an exception.
pub fn summary<'js>(ctx: &Ctx<'js>, host: &Host, thrown: &Value<'js>) -> String {
    let place = frames(ctx, host, thrown).first().map(|frame| format!(" (line {})", frame.position.line));
    format!("{}: {}{}", class(ctx, thrown), message(ctx, thrown), place.unwrap_or_default())
}

/// The place of the `await` at the top of the program that it reached last.
pub fn waiting_at(host: &Host) -> Option<Position> {
    host.compiled.get()?.await_position(host.waiting_at.get()?)
}

/// Whether the interpreter's memory is or was as good as full, so that it may have failed to say
/// so. What was in use may have been freed by the failure itself.
pub fn is_memory_used_up(ctx: &Ctx<'_>, host: &Host) -> bool {
    let limit = host.limits.memory_bytes;
    limit > 0 && (raw::heap_bytes(ctx) >= limit / 10 * 9 || host.peak_memory_bytes() >= limit / 4 * 3)
}

fn class<'js>(ctx: &Ctx<'js>, thrown: &Value<'js>) -> String {
    match thrown.is_error() {
        true => property(ctx, thrown, "name").unwrap_or_else(|| "Error".to_owned()),
        false => thrown.type_name().to_owned(),
    }
}

fn message<'js>(ctx: &Ctx<'js>, thrown: &Value<'js>) -> String {
    let text = match thrown.as_object() {
        Some(_) => property(ctx, thrown, "message").unwrap_or_default(),
        None if thrown.is_symbol() => "a symbol was thrown".to_owned(),
        None => raw::text(thrown).unwrap_or_default(),
    };
    cut(text, MESSAGE_BYTES_MAX)
}

/// A string property. What its getter throws is dropped.
fn property<'js>(ctx: &Ctx<'js>, object: &Value<'js>, key: &str) -> Option<String> {
    let value = object.as_object()?.get::<_, Value<'js>>(key);
    match value {
        Ok(value) if value.is_string() => raw::text(&value).ok(),
        Ok(_) => None,
        Err(_) => {
            ctx.catch();
            None
        }
    }
}

struct Frame {
    position: Position,
    text: String,
}

/// The frames in the author's source, innermost first.
fn frames<'js>(ctx: &Ctx<'js>, host: &Host, thrown: &Value<'js>) -> Vec<Frame> {
    if !thrown.is_error() {
        return Vec::new();
    }
    let Some(compiled) = host.compiled.get() else { return Vec::new() };
    let stack = property(ctx, thrown, "stack").unwrap_or_default();
    let stack = cut(stack, MESSAGE_BYTES_MAX);
    let own = stack.lines().filter_map(|line| parse_frame(line, &host.source_name));
    own.take(FRAMES_MAX)
        .map(|(function, line, column)| {
            let position = compiled.position(line, column);
            let place = format!("{}:{}:{}", host.source_name, position.line, position.column);
            let text = match function {
                "" | "<anonymous>" => format!("at {place}"),
                function => format!("at {function} ({place})"),
            };
            Frame { position, text }
        })
        .collect()
}

/// A line such as `    at name (file:1:2)`, when the file is the author's.
fn parse_frame<'a>(line: &'a str, file: &str) -> Option<(&'a str, u32, u32)> {
    let rest = line.trim().strip_prefix("at ")?;
    let (function, place) = match rest.strip_suffix(')').and_then(|rest| rest.rsplit_once(" (")) {
        Some((function, place)) => (function, place),
        None => ("", rest),
    };
    let (place, column) = place.rsplit_once(':')?;
    let (place, line) = place.rsplit_once(':')?;
    (place == file).then_some((function, line.parse().ok()?, column.parse().ok()?))
}

fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let mut end = bytes_max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}
