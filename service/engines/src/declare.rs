//! The tools of a catalog, declared in a language within a budget.

use std::collections::HashSet;

use seance_core::catalog::{Catalog, Tool};
use seance_core::value::{Bounds, JsonText};
use serde_json::Value;

use crate::engine::Error;
use crate::names::Alias;
use crate::schemas::{Detail, Remarks, Shapes, TypeNames, cut, walk};

/// The most that the declarations of all tools take, in bytes.
const DECLARATIONS_BYTES_MAX: usize = 1024 * 1024;
/// The most that one tool takes, in bytes; over it the tool is shown with less detail.
pub(crate) const TOOL_BYTES_MAX: usize = 32 * 1024;
/// The longest text about one tool, in bytes.
const DOC_BYTES_MAX: usize = 8 * 1024;

/// How much of a schema is shown, from most to least.
const DETAILS: &[Detail] = &[
    Detail { depth_max: 32, has_remarks: true },
    Detail { depth_max: 4, has_remarks: true },
    Detail { depth_max: 3, has_remarks: false },
];
const TOO_LARGE: &str = "(The schema is too large to show in full.)";

/// How a language declares tools.
pub(crate) trait Dialect {
    /// What stands before everything, between the types and the tools, and at the end.
    fn frame(&self) -> [String; 3];

    /// How schemas are remarked.
    fn remarks(&self) -> Remarks;

    /// The name of a type of a tool, made of the tool's name and a word.
    fn type_name(&self) -> fn(&str, &str) -> String {
        |alias, word| format!("{alias}_{word}")
    }

    /// Names that no type of a tool may have.
    fn own_types(&self) -> &'static [&'static str];

    /// The least there is to say about a tool; `doc` is often empty.
    fn short(&self, alias: &str, doc: &str) -> String;

    /// A tool as it is called, after the types that it needs, which this appends to `types`.
    fn tool(
        &self,
        tool: &Documented<'_>,
        shapes: &Shapes<'_>,
        names: &mut TypeNames<'_>,
        types: &mut String,
    ) -> String;
}

/// A tool with all that is said about it in words, each on one line.
#[derive(Debug)]
pub(crate) struct Documented<'a> {
    pub alias: &'a str,
    /// What it does, with its limits.
    pub doc: String,
    /// What its schema says of its result.
    pub returns: Option<String>,
    /// Whether a call without arguments is valid as far as can be seen at once.
    pub may_be_empty: bool,
}

/// The tools of a catalog, declared.
#[derive(Debug)]
pub(crate) struct Declarations {
    frame: [String; 3],
    tools: Vec<Declared>,
}

/// One tool, declared.
#[derive(Debug)]
struct Declared {
    types: String,
    tool: String,
    names: HashSet<String>,
    /// Whether its description is in it.
    is_described: bool,
}

impl Declarations {
    /// Of all tools. A tool of which there is no room for more has its short form.
    pub(crate) fn new(dialect: &dyn Dialect, catalog: &Catalog, aliases: &[Alias]) -> Result<Self, Error> {
        let frame = dialect.frame();
        let shortest: usize = aliases.iter().map(|alias| dialect.short(&alias.alias, "").len()).sum();
        // A catalog's own bounds keep the shortest form of all its tools below the budget.
        let framed: usize = frame.iter().map(String::len).sum();
        let mut left = DECLARATIONS_BYTES_MAX.saturating_sub(shortest + framed);
        let mut tools = Vec::with_capacity(aliases.len());
        // A type that is called as a tool is would hide it, or be hidden.
        let mut taken: HashSet<String> = aliases.iter().map(|alias| alias.alias.clone()).collect();
        taken.extend(dialect.own_types().iter().map(|name| (*name).to_owned()));
        for (tool, alias) in catalog.tools().iter().zip(aliases) {
            let short = dialect.short(&alias.alias, "");
            let mut declared = declare(dialect, tool, &alias.alias, &taken)?;
            let extra = (declared.types.len() + declared.tool.len()).saturating_sub(short.len());
            if extra > left {
                declared = Declared::short(short, false);
            } else {
                left -= extra;
            }
            taken.extend(std::mem::take(&mut declared.names));
            tools.push(declared);
        }
        Ok(Self { frame, tools })
    }

    /// All of them.
    pub(crate) fn text(&self) -> String {
        let [head, begin, end] = &self.frame;
        let types: String = self.tools.iter().map(|declared| declared.types.as_str()).collect();
        let tools: String = self.tools.iter().map(|declared| declared.tool.as_str()).collect();
        format!("{head}{types}{begin}{tools}{end}")
    }

    /// Each tool by itself, with its types, and described, in the catalog's order.
    pub(crate) fn each(&self, catalog: &Catalog) -> Vec<String> {
        let described = |(tool, declared): (&Tool, &Declared)| {
            let text = format!("{}{}", declared.types, declared.tool);
            if declared.is_described {
                text
            } else {
                format!("{}\n{text}", tool.description).trim().to_owned()
            }
        };
        catalog.tools().iter().zip(&self.tools).map(described).collect()
    }
}

impl Declared {
    fn short(tool: String, is_described: bool) -> Self {
        Self { types: String::new(), tool, names: HashSet::new(), is_described }
    }
}

fn declare(
    dialect: &dyn Dialect,
    tool: &Tool,
    alias: &str,
    taken: &HashSet<String>,
) -> Result<Declared, Error> {
    let input = parse(tool, "input", &tool.input_schema)?;
    let output = parse(tool, "output", &tool.output_schema)?;
    for (n, detail) in DETAILS.iter().enumerate() {
        let mut names = TypeNames::new(alias, dialect.type_name(), taken);
        let Some(shapes) = walk(&mut names, *detail, dialect.remarks(), (&input, &output)) else { continue };
        let documented = documented(dialect, tool, alias, (&input, &output), n > 0);
        let mut types = String::new();
        let tool = dialect.tool(&documented, &shapes, &mut names, &mut types);
        if types.len() + tool.len() <= TOOL_BYTES_MAX {
            return Ok(Declared { types, tool, names: names.into_used(), is_described: true });
        }
    }
    let doc = cut(&format!("{} {TOO_LARGE}", tool.description), DOC_BYTES_MAX);
    Ok(Declared::short(dialect.short(alias, &doc), true))
}

fn parse(tool: &Tool, which: &'static str, schema: &Option<String>) -> Result<Value, Error> {
    let Some(schema) = schema else { return Ok(Value::Bool(true)) };
    match JsonText::parse(schema.as_str(), &Bounds::default()) {
        Ok(text) => Ok(text.to_value()),
        Err(source) => Err(Error::Schema { tool: tool.name.clone(), which, source }),
    }
}

fn documented<'a>(
    dialect: &dyn Dialect,
    tool: &Tool,
    alias: &'a str,
    (input, output): (&Value, &Value),
    is_reduced: bool,
) -> Documented<'a> {
    let remarks = dialect.remarks();
    let mut text = tool.description.clone();
    if is_reduced {
        text = format!("{text} {TOO_LARGE}");
    }
    let doc = remarks.beside(&text, input).unwrap_or_default();
    let returns = remarks.of(output).map(|text| cut(&text, DOC_BYTES_MAX));
    Documented { alias, doc: cut(&doc, DOC_BYTES_MAX), returns, may_be_empty: may_be_empty(input) }
}

fn may_be_empty(input: &Value) -> bool {
    let Value::Object(schema) = input else { return true };
    let is_asked = schema.get("required").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
    let asks_more = ["$ref", "allOf", "anyOf", "oneOf", "const", "enum", "minProperties", "not", "if"];
    !is_asked && !asks_more.iter().any(|keyword| schema.contains_key(*keyword))
}
