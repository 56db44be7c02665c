//! Stubs as a real checker of Python types reads them (case 35): valid values have the declared types,
//! invalid ones don't, and no schema makes the stubs unreadable.
//!
//! Set `SEANCE_UPDATE_GOLDEN=1` to write `golden/declarations.pyi` anew.

mod common;

use std::process::Command;

use common::cases::{Case, cases, expect_golden, hostile, tool_of};
use common::{describe_in, node, random, surface, tool};
use seance_core::catalog::Tool;
use seance_engines::Description;
use serde_json::{Value, json};

/// Cases with invalid values that Python's types can't tell from valid ones.
const TOO_WIDE: &[&str] = &[
    // True is an int.
    "integer",
    "type_list",
    "array_of_alternatives",
    // A literal is no float, list or dict.
    "const_number",
    "const_object",
    // Lists have no places, and arguments one list of names.
    "tuple_of_prefix_items",
    "tuple_with_rest",
    "tuple_with_optional_end",
    "tuple_of_draft_seven",
    "object_with_alternatives",
    // A TypedDict has no further keys, and none of that is empty.
    "object_with_further_numbers",
    "object_with_any_further",
    "object_with_further_objects",
    "pattern_properties",
    "pattern_and_named",
    "keys_that_need_quotes",
];

fn describe(tools: Vec<Tool>) -> Description {
    describe_in("python", tools)
}

#[test]
fn stubs_are_as_golden() {
    expect_golden("declarations.pyi", &describe(cases().iter().map(tool_of).collect()).declarations);
}

/// A tool that takes a value of the schema as its one argument.
fn taker_of(case: &Case) -> Tool {
    let schema =
        json!({"type": "object", "properties": {"value": moved(&case.schema)}, "required": ["value"]});
    Tool { input_schema: Some(schema.to_string()), ..tool(&format!("take_{}", case.name)) }
}

/// A schema whose references mean the same when it is the property `value` of another.
fn moved(schema: &Value) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(moved).collect(),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| match (key.as_str(), value) {
                ("$ref", Value::String(reference)) => {
                    (key.clone(), json!(reference.replacen('#', "#/properties/value", 1)))
                }
                _ => (key.clone(), moved(value)),
            };
            entries.iter().map(entry).collect::<serde_json::Map<_, _>>().into()
        }
        plain => plain.clone(),
    }
}

/// Nothing that a schema or a description says ends a docstring or a comment, or makes stubs wrong: what
/// would be code there names what there is not.
#[test]
fn the_checker_accepts_valid_values_and_nothing_else() {
    let ((values_stub, values), (program_stub, program)) = (values(), program());
    let checker = node::installed("python", "pyright", "index.js");
    let files = [
        ("values_stub.pyi", values_stub),
        ("values.py", values),
        ("program_stub.pyi", program_stub),
        ("program.py", program),
        ("hostile.pyi", describe(hostile()).declarations),
        ("random.pyi", describe(random::tools(150)).declarations),
    ];
    node::check("python", &files, "python/pyrightconfig.json", Command::new("node").arg(checker));
}

fn values() -> (String, String) {
    let cases = cases();
    let tools = cases.iter().flat_map(|case| [tool_of(case), taker_of(case)]).collect();
    let mut values = String::from("from values_stub import *\n\nasync def check() -> None:\n");
    for case in &cases {
        let takes = tool_of(case).input_schema.is_some();
        let is_told = !TOO_WIDE.contains(&case.name.as_str());
        for (values_of, expected) in [(&case.valid, ""), (&case.invalid, "  # pyright: ignore")] {
            if !expected.is_empty() && !is_told {
                continue;
            }
            for value in values_of {
                let (value, arguments) = (expression(value), arguments(value));
                values += &format!("    await tools.take_{}(value={value}){expected}\n", case.name);
                if let Some(arguments) = arguments.filter(|text| takes && !text.contains("**")) {
                    values += &format!("    await tools.{}({arguments}){expected}\n", case.name);
                }
            }
        }
    }
    let stub = surface(&describe(tools).instructions).to_owned();
    (stub, values)
}

/// What the instructions promise beside tools, used as they say.
fn program() -> (String, String) {
    let described = describe(vec![tool("get-user"), tool("class"), tool("9lives"), tool("list")]);
    let program = r#"
import asyncio
from program_stub import *

async def program() -> None:
    user = await tools.get_user(id=1)
    await asyncio.gather(tools.tool_class(), tools.tool_9lives(**{"a-b": 1}), tools.list())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(tools.get_user(id=2))
    try:
        await tools.call("get-user", {"id": task.result()})
    except ToolError as error:
        text([error.message, error.code, error.tool, error.call, error.retryable])
    for tool in ALL_TOOLS:
        text(tool["name"] + tool["description"])
    store.set("seen", [*store.keys(), store.get("seen"), INPUTS])
    store.delete("seen")
    if user is None:
        finish({"a": 1})
    await tools.get_usr()  # pyright: ignore
"#;
    let stub = surface(&described.instructions).to_owned();
    (stub, program.to_owned())
}

/// A value as a program would write it.
fn expression(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(expression).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| format!("{}: {}", json!(key), expression(value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

/// An object as the arguments of a call.
fn arguments(value: &Value) -> Option<String> {
    let is_name = |name: &str| {
        let mut chars = name.chars();
        chars.next().is_some_and(|c| c.is_ascii_alphabetic())
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !["class", "from"].contains(&name)
    };
    let argument = |(name, value): (&String, &Value)| match is_name(name) {
        true => format!("{name}={}", expression(value)),
        false => format!("**{{{}: {}}}", json!(name), expression(value)),
    };
    Some(value.as_object()?.iter().map(argument).collect::<Vec<_>>().join(", "))
}
