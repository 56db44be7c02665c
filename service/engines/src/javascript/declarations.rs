//! The tools of a catalog as TypeScript, within a budget.

use std::collections::HashSet;

use seance_core::catalog::{Catalog, Tool};
use seance_core::value::{Bounds, JsonText};
use serde_json::Value;

use super::comments::{self, doc};
use super::schema::{Detail, Renderer, Side};
use crate::engine::Error;
use crate::names::Alias;

/// The most that the declarations of all tools take, in bytes.
const DECLARATIONS_BYTES_MAX: usize = 1024 * 1024;
/// The most that one tool takes, in bytes; over it the tool is shown with less detail.
const TOOL_BYTES_MAX: usize = 32 * 1024;
/// The longest doc comment of a tool, in bytes.
const TOOL_DOC_BYTES_MAX: usize = 8 * 1024;

/// How much of a schema is shown, from most to least.
const DETAILS: &[Detail] = &[
    Detail { depth_max: 32, has_comments: true },
    Detail { depth_max: 4, has_comments: true },
    Detail { depth_max: 3, has_comments: false },
];
const TOO_LARGE: &str = "(The schema is too large to show in full.)";

const HEAD: &str = "type CallOptions = { signal?: AbortSignal };\n";
const BEGIN: &str = "declare const tools: {\n";
const END: &str = "  /** Calls a tool by its name in the catalog or here. */
  call(name: string, args?: object, options?: CallOptions): Promise<unknown>;
};
";

/// One tool, declared.
struct Declared {
    types: String,
    method: String,
    names: Vec<String>,
}

/// Declares all tools of a catalog.
pub(crate) fn declarations(catalog: &Catalog, aliases: &[Alias]) -> Result<String, Error> {
    let shortest: usize = aliases.iter().map(|alias| short_method(&alias.alias).len()).sum();
    // A catalog's own bounds keep the shortest form of all its tools below the budget.
    let mut left = DECLARATIONS_BYTES_MAX.saturating_sub(shortest + HEAD.len() + BEGIN.len() + END.len());
    let (mut types, mut methods, mut taken) = (String::new(), String::new(), HashSet::new());
    for (tool, alias) in catalog.tools().iter().zip(aliases) {
        let short = short_method(&alias.alias);
        let declared = declare(tool, &alias.alias, &taken)?;
        let extra = (declared.types.len() + declared.method.len()).saturating_sub(short.len());
        if extra > left {
            methods += &short;
            continue;
        }
        left -= extra;
        types += &declared.types;
        methods += &declared.method;
        taken.extend(declared.names);
    }
    Ok(format!("{HEAD}{types}\n{BEGIN}{methods}{END}"))
}

/// The least there is to say about a tool.
fn short_method(alias: &str) -> String {
    format!(
        "  {}(args?: Record<string, unknown>, options?: CallOptions): Promise<unknown>;\n",
        method_name(alias)
    )
}

/// `new` before a parenthesis would be a constructor.
fn method_name(alias: &str) -> &str {
    if alias == "new" { "\"new\"" } else { alias }
}

fn declare(tool: &Tool, alias: &str, taken: &HashSet<String>) -> Result<Declared, Error> {
    let input = parse(tool, "input", &tool.input_schema)?;
    let output = parse(tool, "output", &tool.output_schema)?;
    for (n, detail) in DETAILS.iter().enumerate() {
        let declared = render(tool, alias, taken, *detail, (&input, &output), n > 0);
        if let Some(declared) = declared.filter(|d| d.types.len() + d.method.len() <= TOOL_BYTES_MAX) {
            return Ok(declared);
        }
    }
    let doc = doc(&format!("{} {TOO_LARGE}", tool.description), &[], TOOL_DOC_BYTES_MAX, 1);
    Ok(Declared { types: String::new(), method: doc + &short_method(alias), names: Vec::new() })
}

fn parse(tool: &Tool, which: &'static str, schema: &Option<String>) -> Result<Value, Error> {
    let Some(schema) = schema else { return Ok(Value::Bool(true)) };
    match JsonText::parse(schema.as_str(), &Bounds::default()) {
        Ok(text) => Ok(text.to_value()),
        Err(source) => Err(Error::Schema { tool: tool.name.clone(), which, source }),
    }
}

/// None when the schema is more than can be gone through.
fn render(
    tool: &Tool,
    alias: &str,
    taken: &HashSet<String>,
    detail: Detail,
    (input, output): (&Value, &Value),
    is_reduced: bool,
) -> Option<Declared> {
    let mut renderer = Renderer::new(alias, taken, detail, input, output);
    let mut args = renderer.root(Side::Input);
    if args == "unknown" {
        args = "Record<string, unknown>".to_owned();
    }
    let result = renderer.root(Side::Output);
    let rendered = renderer.finish()?;
    let mut text = tool.description.clone();
    if let Some(returns) = comments::text_of(output) {
        text = format!("{text} Returns: {returns}");
    }
    if is_reduced {
        text = format!("{text} {TOO_LARGE}");
    }
    let doc = doc(&text, &comments::notes(input), TOOL_DOC_BYTES_MAX, 1);
    let optional = if may_be_empty(input) { "?" } else { "" };
    let name = method_name(alias);
    let method =
        format!("{doc}  {name}(args{optional}: {args}, options?: CallOptions): Promise<{result}>;\n");
    Some(Declared { types: rendered.types, method, names: rendered.names })
}

/// Whether a call without arguments is valid as far as can be seen at once.
fn may_be_empty(input: &Value) -> bool {
    let Value::Object(schema) = input else { return true };
    let is_asked = schema.get("required").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
    let asks_more = ["$ref", "allOf", "anyOf", "oneOf", "const", "enum", "minProperties", "not", "if"];
    !is_asked && !asks_more.iter().any(|keyword| schema.contains_key(*keyword))
}
