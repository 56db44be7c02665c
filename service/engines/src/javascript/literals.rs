//! JSON values and keys as TypeScript.

use serde_json::{Number, Value};

use super::is_identifier;
use super::render::inline;
use crate::notation::Type;
use crate::text::quoted;

/// The largest integer that a number holds exactly, together with all below it.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// The type of exactly this value; `unknown` where values nest deeper than `depth_left`.
pub(super) fn literal(value: &Value, depth_left: usize) -> Type {
    match value {
        Value::Null => Type::atom("null"),
        Value::Bool(value) => Type::atom(value.to_string()),
        Value::Number(number) => Type::atom(number_literal(number)),
        Value::String(text) => Type::atom(quoted(text)),
        Value::Array(_) | Value::Object(_) if depth_left == 0 => {
            Type::atom(format!("unknown {}", inline("too deep to show")))
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| literal(item, depth_left - 1).text);
            Type::atom(format!("[{}]", items.collect::<Vec<_>>().join(", ")))
        }
        Value::Object(entries) if entries.is_empty() => Type::atom("Record<string, never>"),
        Value::Object(entries) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", key(name), literal(value, depth_left - 1).text)
            };
            Type::atom(format!("{{ {} }}", entries.iter().map(member).collect::<Vec<_>>().join("; ")))
        }
    }
}

/// A number as it is written; an integer that is a bigint in programs, as one.
fn number_literal(number: &Number) -> String {
    let text = number.to_string();
    let digits = text.strip_prefix('-').unwrap_or(&text);
    let is_integer = digits.bytes().all(|b| b.is_ascii_digit());
    let is_safe = digits.parse::<u64>().is_ok_and(|n| n <= SAFE_INTEGER_MAX);
    if is_integer && !is_safe { format!("{text}n") } else { text }
}

/// A key of an object type, in quotes where it needs them (G6).
pub(super) fn key(name: &str) -> String {
    if is_identifier(name) { name.to_owned() } else { quoted(name) }
}
