//! Doc comments: descriptions, and what a type can't say (G7, G9).

use seance_core::text::truncate_bytes;
use serde_json::{Map, Value};

/// Keywords that are shown with their value.
const SHOWN: &[&str] = &[
    "format",
    "pattern",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
];
/// Keywords that limit a value in ways that are only named.
const NAMED: &[&str] = &[
    "not",
    "if",
    "contains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
];

/// How many notes one comment has at most.
const NOTES_MAX: usize = 24;
/// The longest value in a note, in bytes.
const NOTE_BYTES_MAX: usize = 200;
/// How deep notes are gathered from parts of a schema.
const DEPTH_MAX: usize = 3;

/// A doc comment on a line of its own; nothing when there is nothing to say. White space is
/// collapsed, the end of a comment inside it neutralised, and its middle cut beyond `bytes_max`.
pub(super) fn doc(text: &str, notes: &[String], bytes_max: usize, level: usize) -> String {
    let mut text = plain(text);
    if !notes.is_empty() {
        let notes = plain(&notes.join(", "));
        text = if text.is_empty() { notes } else { format!("{text} ({notes})") };
    }
    if text.is_empty() {
        return text;
    }
    let text = truncate_bytes(&text, bytes_max).replace("*/", "*\\/");
    format!("{}/** {text} */\n", "  ".repeat(level))
}

/// A comment inside a type.
pub(super) fn inline(text: &str) -> String {
    format!("/* {} */", truncate_bytes(&plain(text), NOTE_BYTES_MAX).replace("*/", "*\\/"))
}

fn plain(text: &str) -> String {
    let spaced = text.replace(|c: char| c.is_control(), " ");
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The description and the notes of a schema; none when there is nothing to say.
pub(super) fn text_of(schema: &Value) -> Option<String> {
    let (text, notes) = (description(schema), notes(schema));
    match (text.is_empty(), notes.is_empty()) {
        (true, true) => None,
        (true, false) => Some(notes.join(", ")),
        (false, true) => Some(text.to_owned()),
        (false, false) => Some(format!("{text} ({})", notes.join(", "))),
    }
}

/// A schema's own description.
pub(super) fn description(schema: &Value) -> &str {
    schema.get("description").and_then(Value::as_str).unwrap_or_default()
}

/// What limits a value beyond its type, parts of the schema included, each once.
pub(super) fn notes(schema: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    gather(schema, "", 0, &mut notes);
    notes
}

fn gather(schema: &Value, about: &str, depth: usize, notes: &mut Vec<String>) {
    let Value::Object(schema) = schema else { return };
    for note in own_notes(schema) {
        let note = format!("{about}{note}");
        if notes.len() < NOTES_MAX && !notes.contains(&note) {
            notes.push(note);
        }
    }
    if depth == DEPTH_MAX || notes.len() == NOTES_MAX {
        return;
    }
    for part in
        ["anyOf", "oneOf", "allOf"].iter().filter_map(|keyword| schema.get(*keyword)?.as_array()).flatten()
    {
        gather(part, about, depth + 1, notes);
    }
    if let Some(items) = schema.get("items") {
        gather(items, &format!("{about}each: "), depth + 1, notes);
    }
}

fn own_notes(schema: &Map<String, Value>) -> Vec<String> {
    let is_integer = match schema.get("type") {
        Some(Value::String(one)) => one == "integer",
        Some(Value::Array(several)) => several.iter().any(|one| one == "integer"),
        _ => false,
    };
    let mut notes = if is_integer { vec!["integer".to_owned()] } else { Vec::new() };
    for keyword in SHOWN {
        match (*keyword, schema.get(*keyword)) {
            (_, None) => {}
            ("default", Some(value)) => notes.push(format!("default {}", shown(&value.to_string()))),
            (_, Some(Value::Bool(is_on))) => notes.extend(is_on.then(|| (*keyword).to_owned())),
            (_, Some(Value::String(text))) => notes.push(format!("{keyword} {}", shown(text))),
            (_, Some(value)) => notes.push(format!("{keyword} {}", shown(&value.to_string()))),
        }
    }
    notes.extend(NAMED.iter().filter(|k| schema.contains_key(**k)).map(|k| format!("also limited by {k}")));
    notes
}

fn shown(text: &str) -> std::borrow::Cow<'_, str> {
    truncate_bytes(text, NOTE_BYTES_MAX)
}
