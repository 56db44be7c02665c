//! Catalogs with their schemas made ready: whether a call is allowed, and whether its arguments and
//! its value are what the catalog's owner declared.
//!
//! What was checked is what is sent: arguments of a tool with a schema go on as the checked tree
//! writes itself, so a second reader can't see another value (equal keys). Numbers keep their digits.

mod cache;
mod error;
mod locate;
mod near;
mod plain;
mod schema;
mod shape;
mod stack;
mod weight;

use std::sync::Arc;

use indexmap::IndexMap;
use seance_core::catalog::{Catalog, Tool};
use seance_core::limits::Limits;
use seance_core::program::CallError;
use seance_core::reasons;
use seance_core::value::{self, Bounds, JsonText, Kind};

use crate::providers::Outcome;
use schema::Schema;

pub use cache::{CACHED_BYTES_MAX, CACHED_CATALOGS_MAX, Catalogs};
pub use error::{CatalogError, Which};
pub use schema::{SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX};

/// Texts up to this size are checked where the caller is; larger ones belong on a blocking thread,
/// in bytes.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Schemas up to this size are built where the caller is, in bytes.
const READY_BYTES_MAX: usize = 4 * 1024;

/// A catalog whose schemas were all looked at. Immutable; share it in an `Arc`.
#[derive(Debug)]
pub struct CompiledCatalog {
    tools: IndexMap<String, CompiledTool>,
    bytes: usize,
}

#[derive(Debug)]
struct CompiledTool {
    tool: Arc<Tool>,
    input: Option<Schema>,
    output: Option<Schema>,
}

/// A call that is allowed.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The tool.
    pub tool: Arc<Tool>,
    /// The arguments as JSON text, with the schema's defaults in them.
    pub arguments: String,
}

impl CompiledCatalog {
    /// Looks at every schema; validators are built when a tool is first called. Takes a fraction of
    /// a second for the largest catalog and uses other threads; call it from a blocking thread, or
    /// use [`Catalogs::get_or_compile`].
    ///
    /// # Errors
    ///
    /// The first tool, in the catalog's order, with a schema that can't be used, and where.
    pub fn compile(catalog: &Catalog) -> Result<Self, CatalogError> {
        let compiled = stack::map_in_order(catalog.tools(), compile_tool);
        let mut tools = IndexMap::with_capacity(catalog.tools().len());
        let mut bytes = 0;
        for tool in compiled {
            let tool = tool?;
            bytes += tool.bytes();
            tools.insert(tool.tool.name.clone(), tool);
        }
        Ok(Self { tools, bytes })
    }

    /// The tools in order.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values().map(|compiled| &compiled.tool)
    }

    /// The tool of this name, where a leading `tools.` is ignored (D5).
    pub fn find(&self, name: &str) -> Option<&Arc<Tool>> {
        self.entry(name).map(|compiled| &compiled.tool)
    }

    /// Whether a call is allowed, and its arguments as they are to be sent.
    ///
    /// # Errors
    ///
    /// What the program catches: `unknown_tool` with near names (D3), or `invalid_arguments` with the
    /// path of the first violation.
    pub fn check(&self, tool: &str, arguments: &str, limits: &Limits) -> Result<Checked, CallError> {
        let compiled = self.entry(tool).ok_or_else(|| self.unknown(tool))?;
        let refuse = |message: String| CallError::new(reasons::INVALID_ARGUMENTS, message);
        let bounds = Bounds::bytes(bytes_max(limits.argument_bytes));
        let oversize = |bytes: usize| {
            refuse(format!(
                "the arguments have {bytes} bytes, over the limit of {} (argument_bytes)",
                limits.argument_bytes
            ))
        };
        if arguments.len() > bounds.bytes_max {
            return Err(oversize(arguments.len()));
        }
        let text = JsonText::parse_guest(arguments, &bounds).map_err(|error| refuse(error.to_string()))?;
        if text.kind() != Kind::Object {
            return Err(refuse("the arguments must be an object".to_owned()));
        }
        let arguments = match &compiled.input {
            None => text.into_string(),
            Some(schema) => schema.check_input(&text).map_err(refuse)?,
        };
        if arguments.len() > bounds.bytes_max {
            return Err(oversize(arguments.len()));
        }
        Ok(Checked { tool: compiled.tool.clone(), arguments })
    }

    /// The value that the program gets, as JSON text: unchanged where it is structured (D18); a
    /// text is a string, unless it is a JSON object or array and the tool has no output schema
    /// (D19, D20).
    ///
    /// # Errors
    ///
    /// What the program catches: the outcome's own error, `invalid_result` with the path of the
    /// first violation, or `result_too_large`. An [`Outcome::Failure`] ends the program instead; see
    /// to it first.
    pub fn check_result(&self, tool: &str, outcome: Outcome, limits: &Limits) -> Result<String, CallError> {
        let schema = self.entry(tool).and_then(|compiled| compiled.output.as_ref());
        let bounds = Bounds::bytes(bytes_max(limits.result_bytes));
        let text = match outcome {
            Outcome::Value(json) => JsonText::parse(json, &bounds).map_err(unreadable)?,
            Outcome::Text(text) => text_as_json(text, schema.is_some(), &bounds)?,
            other => return Err(other.error().expect("only a value or a text is no error")),
        };
        if let Some(schema) = schema {
            let refuse = |message: String| CallError::new(reasons::INVALID_RESULT_CALL, message);
            schema.check_output(&text).map_err(refuse)?;
        }
        Ok(text.into_string())
    }

    /// [`CompiledCatalog::check`], on a blocking thread where it takes long.
    pub async fn check_off_thread(
        self: &Arc<Self>,
        tool: String,
        arguments: String,
        limits: &Limits,
    ) -> Result<Checked, CallError> {
        if arguments.len() <= INLINE_BYTES_MAX && self.is_ready(&tool, |compiled| &compiled.input) {
            return self.check(&tool, &arguments, limits);
        }
        let (this, limits) = (self.clone(), limits.clone());
        off_thread(move || this.check(&tool, &arguments, &limits)).await
    }

    /// [`CompiledCatalog::check_result`], on a blocking thread where it takes long.
    pub async fn check_result_off_thread(
        self: &Arc<Self>,
        tool: String,
        outcome: Outcome,
        limits: &Limits,
    ) -> Result<String, CallError> {
        match &outcome {
            Outcome::Value(text) | Outcome::Text(text)
                if text.len() > INLINE_BYTES_MAX || !self.is_ready(&tool, |compiled| &compiled.output) =>
            {
                let (this, limits) = (self.clone(), limits.clone());
                off_thread(move || this.check_result(&tool, outcome, &limits)).await
            }
            _ => self.check_result(&tool, outcome, limits),
        }
    }

    /// Whether a schema is built, or small enough to be built where the caller is.
    fn is_ready(&self, tool: &str, schema: impl Fn(&CompiledTool) -> &Option<Schema>) -> bool {
        let schema = self.entry(tool).and_then(|compiled| schema(compiled).as_ref());
        schema.is_none_or(|schema| schema.bytes_to_ready() <= READY_BYTES_MAX)
    }

    fn entry(&self, name: &str) -> Option<&CompiledTool> {
        let bare = name.strip_prefix("tools.");
        self.tools.get(name).or_else(|| self.tools.get(bare?))
    }

    fn unknown(&self, name: &str) -> CallError {
        let name = name.strip_prefix("tools.").unwrap_or(name);
        let near = near::names(name, self.tools.keys());
        let hint = match near.as_slice() {
            [] => String::new(),
            near => format!("; did you mean {}?", near.join(" or ")),
        };
        let shown: String = name.chars().take(seance_core::catalog::TOOL_NAME_CHARS_MAX).collect();
        let message = format!("the tool {shown:?} is not available in code mode{hint}");
        CallError::new(reasons::UNKNOWN_TOOL, message)
    }
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(CallError::new(reasons::INTERNAL_PROGRAM, "the service is stopping")),
        },
    }
}

impl CompiledTool {
    /// What the tool takes in the cache, in bytes: texts and schemas as they came.
    fn bytes(&self) -> usize {
        let schema = |s: &Option<String>| s.as_ref().map_or(0, String::len);
        let Tool { name, description, input_schema, output_schema, .. } = &*self.tool;
        name.len() + description.len() + schema(input_schema) + schema(output_schema)
    }
}

fn compile_tool(tool: &Tool) -> Result<CompiledTool, CatalogError> {
    let tool = Arc::new(tool.clone());
    let schema = |which| Schema::of(&tool, which).map_err(|problem| problem.of(&tool.name, which));
    Ok(CompiledTool { input: schema(Which::Input)?, output: schema(Which::Output)?, tool })
}

/// A tool's text as JSON.
fn text_as_json(text: String, has_schema: bool, bounds: &Bounds) -> Result<JsonText, CallError> {
    let structured = text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with(['{', '[']);
    if structured && !has_schema && value::check(&text, bounds).is_ok() {
        return JsonText::parse(text, bounds).map_err(unreadable);
    }
    let string = serde_json::to_string(&text).expect("a string has a JSON form");
    JsonText::parse(string, bounds).map_err(unreadable)
}

fn unreadable(error: value::Error) -> CallError {
    match error {
        value::Error::Bytes { bytes, max } => CallError::new(
            reasons::RESULT_TOO_LARGE,
            format!("the result has {bytes} bytes as JSON, over the limit of {max} (result_bytes)"),
        ),
        error => {
            CallError::new(reasons::INVALID_RESULT_CALL, format!("the tool's value is unusable: {error}"))
        }
    }
}

fn bytes_max(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
