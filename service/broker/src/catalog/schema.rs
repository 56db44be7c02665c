//! One schema, ready to check values, and its violations in words.
//!
//! Patterns run on an engine that takes linear time, so look-around and back-references are refused
//! when the catalog is put, not when a program waits. Only the first violation is told, always the
//! same one for the same value.

use std::sync::OnceLock;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use seance_core::value::{Bounds, JsonText, Kind};
use serde_json::Value;

use super::error::{Problem, Which};
use super::{shape, stack, weight};
use crate::providers::cut_middle;

/// The largest schema, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 512 * 1024;
/// How deep a schema's text may nest.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// The largest compiled form of one pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// The longest message about a violation, in bytes.
const MESSAGE_BYTES_MAX: u64 = 2_000;
/// Values up to this length stand in a message, in bytes.
const SHOWN_BYTES_MAX: usize = 100;
/// The search for the place of a violation may copy this much, in bytes: nested alternatives are
/// copied at each level.
const SEARCH_BYTES_MAX: usize = 32 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Schema {
    value: Value,
    /// Built when first used: a validator has many times the size of its schema, and most tools
    /// of a large catalog are never called.
    validator: OnceLock<Validator>,
}

impl Schema {
    /// Reads, weighs and builds the schema, so that whatever is wrong shows here.
    pub(super) fn compile(text: &str, which: Which) -> Result<Self, Problem> {
        let bounds = Bounds { depth_max: SCHEMA_DEPTH_MAX, ..Bounds::bytes(SCHEMA_BYTES_MAX) };
        let text = JsonText::parse(text, &bounds).map_err(|error| Problem::new("", error.to_string()))?;
        let value = text.to_value();
        match which {
            Which::Input => check_describes_object(&text, &value)?,
            Which::Output if !matches!(text.kind(), Kind::Object | Kind::Bool) => {
                return Err(Problem::new("", "a schema is an object or a boolean"));
            }
            Which::Output => {}
        }
        weight::weigh(&value)?;
        build(&value).map_err(|error| problem_of(&error))?;
        Ok(Self { value, validator: OnceLock::new() })
    }

    /// The arguments as they are to be sent; else the first violation.
    pub(super) fn check_input(&self, text: &JsonText) -> Result<String, String> {
        stack::for_depth_of(text.as_str(), || {
            let mut value = text.to_value();
            shape::apply(&self.value, &mut value)?;
            self.validate(&value, text.as_str())?;
            Ok(serde_json::to_string(&value).expect("a tree of JSON has a JSON form"))
        })
    }

    /// Whether a value is what the schema says; else the first violation.
    pub(super) fn check_output(&self, text: &JsonText) -> Result<(), String> {
        stack::for_depth_of(text.as_str(), || self.validate(&text.to_value(), text.as_str()))
    }

    fn validate(&self, value: &Value, text: &str) -> Result<(), String> {
        let validator = self.validator.get_or_init(|| build(&self.value).expect("it was built before"));
        if validator.is_valid(value) {
            return Ok(());
        }
        if text.len().saturating_mul(stack::depth(text)) > SEARCH_BYTES_MAX {
            return Err("the value doesn't match the schema; it is too large to say where".to_owned());
        }
        let found = validator.validate(value).err();
        Err(found.map_or_else(|| "the value doesn't match the schema".to_owned(), |error| in_words(&error)))
    }
}

fn build(schema: &Value) -> Result<Validator, ValidationError<'static>> {
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    jsonschema::options().offline().with_pattern_options(patterns).build(schema)
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
            let pattern = shown(error.instance()).unwrap_or_else(|| "the pattern".to_owned());
            format!(
                "{pattern} is no pattern that takes linear time: look-around and back-references are not supported, and its size is bounded"
            )
        }
        _ => error.to_string(),
    };
    Problem::new(error.instance_path().as_str(), cut_middle(message, MESSAGE_BYTES_MAX))
}

/// A violation with its place: `at "/n": 9 is greater than the maximum of 5`.
fn in_words(error: &ValidationError<'_>) -> String {
    let error = innermost(error);
    let mut path = error.instance_path().as_str().to_owned();
    let unexpected = match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => unexpected.first(),
        _ => None,
    };
    let message = match (unexpected, shown(error.instance())) {
        (Some(name), _) => {
            path.push('/');
            path.push_str(&name.replace('~', "~0").replace('/', "~1"));
            "the property is not allowed here".to_owned()
        }
        (None, Some(_)) => error.to_string(),
        (None, None) => error.masked_with("the value").to_string(),
    };
    let path = cut_middle(path, MESSAGE_BYTES_MAX / 2);
    format!("at {path:?}: {}", cut_middle(message, MESSAGE_BYTES_MAX))
}

/// Where alternatives failed, the one that got furthest says more than all of them together.
fn innermost<'a>(mut error: &'a ValidationError<'a>) -> &'a ValidationError<'a> {
    while let ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } =
        error.kind()
    {
        let depth = |error: &ValidationError<'_>| error.instance_path().segments().count();
        let here = depth(error);
        let deeper = context.iter().filter_map(|branch| branch.first()).filter(|first| depth(first) > here);
        match deeper.max_by_key(|first| depth(first)) {
            Some(first) => error = first,
            None => break,
        }
    }
    error
}

/// The value as it can stand in a message; none when it is long or has parts.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Array(_) | Value::Object(_) => None,
        Value::String(text) if text.len() > SHOWN_BYTES_MAX => None,
        Value::Number(number) if number.as_str().len() > SHOWN_BYTES_MAX => None,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value.to_string()),
    }
}
