//! What a type can't say: descriptions, and limits on values beyond their type (G7, G9).

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

/// Text on one line: white space is collapsed, and what can't be seen becomes white space, marks that
/// turn the direction of writing among it.
pub(crate) fn plain(text: &str) -> String {
    let is_unseen = |c: char| {
        c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let spaced = text.replace(is_unseen, " ");
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text on one line, its middle cut beyond `bytes_max`.
pub(crate) fn cut(text: &str, bytes_max: usize) -> String {
    truncate_bytes(&plain(text), bytes_max).into_owned()
}

/// What the schemas of a language's tools are remarked with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remarks {
    /// Whether an integer has to be called one, where its type doesn't.
    pub says_integer: bool,
}

impl Remarks {
    /// The description and the notes of a schema, on one line; none when there is nothing to say.
    pub(crate) fn of(self, schema: &Value) -> Option<String> {
        let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        self.beside(text, schema)
    }

    /// A text, and the notes of a schema behind it.
    pub(crate) fn beside(self, text: &str, schema: &Value) -> Option<String> {
        let (text, notes) = (plain(text), plain(&self.notes(schema).join(", ")));
        match (text.is_empty(), notes.is_empty()) {
            (true, true) => None,
            (true, false) => Some(notes),
            (false, true) => Some(text),
            (false, false) => Some(format!("{text} ({notes})")),
        }
    }

    /// What limits a value beyond its type, parts of the schema included, each once.
    fn notes(self, schema: &Value) -> Vec<String> {
        let mut notes = Vec::new();
        self.gather(schema, "", 0, &mut notes);
        notes
    }

    fn gather(self, schema: &Value, about: &str, depth: usize, notes: &mut Vec<String>) {
        let Value::Object(schema) = schema else { return };
        for note in self.own_notes(schema) {
            let note = format!("{about}{note}");
            if notes.len() < NOTES_MAX && !notes.contains(&note) {
                notes.push(note);
            }
        }
        if depth == DEPTH_MAX || notes.len() == NOTES_MAX {
            return;
        }
        for part in ["anyOf", "oneOf", "allOf"]
            .iter()
            .filter_map(|keyword| schema.get(*keyword)?.as_array())
            .flatten()
        {
            self.gather(part, about, depth + 1, notes);
        }
        if let Some(items) = schema.get("items") {
            self.gather(items, &format!("{about}each: "), depth + 1, notes);
        }
    }

    fn own_notes(self, schema: &Map<String, Value>) -> Vec<String> {
        let is_integer = match schema.get("type") {
            Some(Value::String(one)) => one == "integer",
            Some(Value::Array(several)) => several.iter().any(|one| one == "integer"),
            _ => false,
        };
        let mut notes = if is_integer && self.says_integer { vec!["integer".to_owned()] } else { Vec::new() };
        for keyword in SHOWN {
            match (*keyword, schema.get(*keyword)) {
                (_, None) => {}
                ("default", Some(value)) => notes.push(format!("default {}", shown(&value.to_string()))),
                (_, Some(Value::Bool(is_on))) => notes.extend(is_on.then(|| (*keyword).to_owned())),
                (_, Some(Value::String(text))) => notes.push(format!("{keyword} {}", shown(text))),
                (_, Some(value)) => notes.push(format!("{keyword} {}", shown(&value.to_string()))),
            }
        }
        notes.extend(
            NAMED.iter().filter(|k| schema.contains_key(**k)).map(|k| format!("also limited by {k}")),
        );
        notes
    }
}

fn shown(text: &str) -> std::borrow::Cow<'_, str> {
    truncate_bytes(text, NOTE_BYTES_MAX)
}
