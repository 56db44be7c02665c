//! One schema, ready to check values, and its violations in words.
//!
//! Patterns run on an engine that takes linear time, so look-around and back-references are refused
//! when the catalog is put, not when a program waits. Only the first violation is told, always the
//! same one for the same value.

use std::sync::{Arc, OnceLock};

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, ValidationOptions, Validator};
use seance_core::catalog::Tool;
use seance_core::value::{Bounds, JsonText, Kind};
use serde_json::Value;

use super::error::{Problem, Which};
use super::{locate, plain, shape, stack, weight};
use crate::providers::cut_middle;

/// The largest schema, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 512 * 1024;
/// How deep a schema's text may nest.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// The largest compiled form of one pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// The longest message about a schema, in bytes.
const MESSAGE_BYTES_MAX: u64 = 2_000;
/// The search for the place of a violation may read this much, in bytes: it reads what is below at
/// each level.
const SEARCH_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A tool's schema that was looked at. What validates with it is built when first used: it has many
/// times the size of the text, and most tools of a large catalog are never called.
#[derive(Debug)]
pub(super) struct Schema {
    tool: Arc<Tool>,
    which: Which,
    ready: OnceLock<Result<Box<Ready>, String>>,
}

#[derive(Debug)]
struct Ready {
    value: Value,
    validator: Validator,
}

impl Schema {
    /// The schema of a tool, where it has one. Whatever is wrong with it shows here.
    pub(super) fn of(tool: &Arc<Tool>, which: Which) -> Result<Option<Self>, Problem> {
        let Some(text) = which.text(tool) else { return Ok(None) };
        let value = read(text, which)?;
        if plain::is_plain(&value) {
            jsonschema::meta::validate(&value).map_err(|error| problem_of(&error))?;
        } else {
            options().build(&value).map_err(|error| problem_of(&error))?;
        }
        Ok(Some(Self { tool: Arc::clone(tool), which, ready: OnceLock::new() }))
    }

    /// The length of the schema's text while it still has to be made ready; else 0.
    pub(super) fn bytes_to_ready(&self) -> usize {
        if self.ready.get().is_some() { 0 } else { self.which.text(&self.tool).map_or(0, str::len) }
    }

    /// The arguments as they are to be sent; else the first violation.
    pub(super) fn check_input(&self, text: &JsonText) -> Result<String, String> {
        let ready = self.ready()?;
        stack::for_depth_of(text.as_str(), || {
            let mut value = text.to_value();
            shape::apply(&ready.value, &mut value)?;
            ready.validate(&value, text.as_str())?;
            Ok(serde_json::to_string(&value).expect("a tree of JSON has a JSON form"))
        })
    }

    /// Whether a value is what the schema says; else the first violation.
    pub(super) fn check_output(&self, text: &JsonText) -> Result<(), String> {
        let ready = self.ready()?;
        stack::for_depth_of(text.as_str(), || ready.validate(&text.to_value(), text.as_str()))
    }

    fn ready(&self) -> Result<&Ready, String> {
        let ready = self.ready.get_or_init(|| {
            let text = self.which.text(&self.tool).unwrap_or_default();
            let ready = || {
                let value = read(text, self.which)?;
                let validator = options().build(&value).map_err(|error| problem_of(&error))?;
                Ok(Box::new(Ready { value, validator }))
            };
            let unusable = |Problem { path, message }| {
                format!("the {} of the tool can't be used, at {path:?}: {message}", self.which)
            };
            stack::for_depth_of(text, ready).map_err(unusable)
        });
        ready.as_deref().map_err(Clone::clone)
    }
}

impl Ready {
    fn validate(&self, value: &Value, text: &str) -> Result<(), String> {
        if self.validator.is_valid(value) {
            return Ok(());
        }
        if text.len().saturating_mul(stack::depth(text)) > SEARCH_BYTES_MAX {
            return Err("the value doesn't match the schema; it is too large to say where".to_owned());
        }
        Err(locate::violation(&self.value, self.validator.draft(), value))
    }
}

/// Reads and weighs a schema.
fn read(text: &str, which: Which) -> Result<Value, Problem> {
    let bounds = Bounds { depth_max: SCHEMA_DEPTH_MAX, ..Bounds::bytes(SCHEMA_BYTES_MAX) };
    let text = JsonText::parse(text, &bounds).map_err(|error| Problem::new("", error.to_string()))?;
    let mut value = text.to_value();
    match which {
        Which::Input => check_describes_object(&text, &value)?,
        Which::Output if !matches!(text.kind(), Kind::Object | Kind::Bool) => {
            return Err(Problem::new("", "a schema is an object or a boolean"));
        }
        Which::Output => {}
    }
    weight::weigh(&value)?;
    // References are into this schema only, so its own address can't matter.
    if let Value::Object(keywords) = &mut value {
        keywords.shift_remove("$id");
    }
    Ok(value)
}

/// How every schema is built: nothing is fetched, and patterns take linear time.
pub(super) fn options<'i>() -> ValidationOptions<'i> {
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    jsonschema::options().offline().with_pattern_options(patterns)
}

fn check_describes_object(text: &JsonText, schema: &Value) -> Result<(), Problem> {
    if text.kind() != Kind::Object {
        return Err(Problem::new("", "the schema of arguments is an object"));
    }
    match schema.get("type") {
        None => Ok(()),
        Some(Value::String(kind)) if kind == "object" => Ok(()),
        Some(_) => {
            Err(Problem::new("/type", "arguments are an object: the type must be \"object\" or absent"))
        }
    }
}

fn problem_of(error: &ValidationError<'_>) -> Problem {
    let message = match error.kind() {
        ValidationErrorKind::Format { format } if format == "regex" => {
            format!(
                "{} is no pattern that takes linear time: look-around and back-references are not supported, and its size is bounded",
                error.instance()
            )
        }
        _ => error.to_string(),
    };
    Problem::new(error.instance_path().as_str(), cut_middle(message, MESSAGE_BYTES_MAX))
}
