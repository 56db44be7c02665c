//! The prelude's functions as the host calls them.

use rquickjs::object::Property;
use rquickjs::{Ctx, Function, Object, Persistent, Result, Value, context::EvalOptions};

/// The prelude's name in traces, where programs do not see it.
const FILE_NAME: &str = "prelude";

/// Functions captured before the program ran.
#[derive(Clone)]
pub struct Prelude<'js>(Object<'js>);

impl<'js> Prelude<'js> {
    /// Runs the prelude. The result outlives this turn of the context.
    pub fn load(ctx: &Ctx<'js>) -> Result<Persistent<Object<'static>>> {
        let mut options = EvalOptions::default();
        options.filename = Some(FILE_NAME.to_owned());
        let object: Object<'js> = ctx.eval_with_options(include_str!("prelude.js"), options)?;
        Ok(Persistent::save(ctx, object))
    }

    /// Takes up a prelude that was loaded before.
    pub fn restore(ctx: &Ctx<'js>, saved: Persistent<Object<'static>>) -> Result<Self> {
        saved.restore(ctx).map(Self)
    }

    /// One of the classes that programs see.
    pub fn class(&self, name: &str) -> Result<Value<'js>> {
        self.0.get(name)
    }

    /// A date as ISO 8601 text; null when it is no valid date.
    pub fn date_text(&self, date: &Object<'js>) -> Result<Value<'js>> {
        self.function("dateText")?.call((date.clone(),))
    }

    /// A map's keys and values, in turn.
    pub fn map_items(&self, map: &Object<'js>) -> Result<Object<'js>> {
        self.function("mapItems")?.call((map.clone(),))
    }

    /// A set's items.
    pub fn set_items(&self, set: &Object<'js>) -> Result<Object<'js>> {
        self.function("setItems")?.call((set.clone(),))
    }

    /// A big integer from decimal digits.
    pub fn big_integer(&self, digits: &str) -> Result<Value<'js>> {
        self.function("BigInt")?.call((digits,))
    }

    /// Whether a signal is aborted; nothing when it is no signal of ours.
    pub fn aborted(&self, signal: &Value<'js>) -> Result<Option<bool>> {
        self.function("aborted")?.call((signal.clone(),))
    }

    /// Why a signal was aborted.
    pub fn reason(&self, signal: &Value<'js>) -> Result<Value<'js>> {
        self.function("reason")?.call((signal.clone(),))
    }

    /// Calls `hook` with the reason when the signal is aborted.
    pub fn on_abort(&self, signal: &Value<'js>, hook: Function<'js>) -> Result<()> {
        self.function("onAbort")?.call((signal.clone(), hook))
    }

    /// The error of a failed tool call.
    pub fn tool_error(&self, error: ToolFailure<'_>) -> Result<Value<'js>> {
        let ToolFailure { message, code, tool, call, retryable } = error;
        let made = self.function("toolError")?.call((message, code, tool, call as f64, retryable))?;
        without_own_frames(made)
    }

    /// An error of ours that a program may catch.
    pub fn program_error(&self, code: &str, message: &str) -> Result<Value<'js>> {
        without_own_frames(self.function("programError")?.call((message, code))?)
    }

    /// A TypeError, for arguments of the wrong kind.
    pub fn type_error(&self, message: &str) -> Result<Value<'js>> {
        without_own_frames(self.function("typeError")?.call((message,))?)
    }

    /// The code of an error that the host made; nothing for any other value.
    pub fn code_of(&self, error: &Value<'js>) -> Option<String> {
        let code: Value<'js> = self.function("codeOf").ok()?.call((error.clone(),)).ok()?;
        code.as_string().and_then(|code| code.to_string().ok())
    }

    /// Whether an error is that of a failed tool call.
    pub fn is_tool_error(&self, error: &Value<'js>) -> bool {
        self.function("isToolError").and_then(|is| is.call((error.clone(),))).unwrap_or(false)
    }

    fn function(&self, name: &str) -> Result<Function<'js>> {
        self.0.get(name)
    }
}

/// The error with a trace of the program's frames only.
fn without_own_frames(error: Object<'_>) -> Result<Value<'_>> {
    let stack: Value<'_> = error.get("stack")?;
    let stack = if stack.is_string() { super::raw::text(&stack)? } else { String::new() };
    let own = format!("{FILE_NAME}:");
    let kept: String = stack
        .split_inclusive('\n')
        .filter(|line| !line.contains(&own) && !line.contains("(native)"))
        .collect();
    error.prop("stack", Property::from(kept).writable().configurable())?;
    Ok(error.into_value())
}

/// What a program may know of a failed tool call.
pub struct ToolFailure<'a> {
    pub message: &'a str,
    pub code: &'a str,
    pub tool: &'a str,
    pub call: u64,
    pub retryable: bool,
}
