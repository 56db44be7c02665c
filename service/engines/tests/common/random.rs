//! Schemas of the keywords that declarations show, at random: right ones, odd ones and some that mean
//! harm.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use seance_core::catalog::Tool;
use serde_json::{Map, Value, json};

use super::tool;

/// What could end a comment or a string of some language, and some names and words.
const PIECES: &[&str] = &[
    "*/",
    "/*",
    "\"\"\"",
    "'''",
    "\"",
    "\\",
    "#{",
    "#",
    "\n",
    "\r",
    "\u{2028}",
    "\0",
    "`",
    "```",
    "${",
    "=begin",
    "=end",
    "__END__",
    "evil",
    " ",
    "type: ignore",
    "class",
    "str",
    "list",
    "None",
    "self",
    "__x",
    "Any",
    "end",
    "a",
    "b",
    "c",
    "-",
    "ключ",
    "\u{202e}",
    "{",
    "}",
    "(",
    ")",
    "]",
    "1",
    "$ref",
    "\u{1f600}",
    "%",
    "~1",
    "/",
];

/// Text of such pieces.
pub fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES), 0..6).prop_map(|pieces| pieces.concat())
}

/// A schema, its references within itself.
pub fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["string", "integer", "number", "boolean", "null", "object", "array"])
            .prop_map(|name| json!({"type": name})),
        Just(json!(true)),
        Just(json!(false)),
        Just(json!({})),
        prop::collection::vec(value(), 0..4).prop_map(|values| json!({"enum": values})),
        value().prop_map(|value| json!({"const": value})),
        reference(),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let few = |inner: &BoxedStrategy<Value>| prop::collection::vec(inner.clone(), 0..4);
        let inner = inner.boxed();
        prop_oneof![
            3 => object(inner.clone()),
            1 => few(&inner).prop_map(|items| json!({"anyOf": items})),
            1 => few(&inner).prop_map(|items| json!({"oneOf": items, "nullable": true})),
            1 => few(&inner).prop_map(|items| json!({"allOf": items})),
            1 => inner.clone().prop_map(|items| json!({"type": ["array", "null"], "items": items, "minItems": 1})),
            1 => (few(&inner), inner.clone(), 0..3).prop_map(|(first, rest, least)| json!({"type": "array", "prefixItems": first, "items": rest, "minItems": least})),
            1 => (text(), text(), inner.clone()).prop_map(|(description, pattern, schema)| with(schema, [("description", json!(description)), ("pattern", json!(pattern)), ("default", json!(pattern))])),
            1 => (object(inner.clone()), few(&inner)).prop_map(|(schema, parts)| with(schema, [("allOf", json!(parts))])),
            1 => (text(), inner.clone(), inner).prop_map(|(name, definition, schema)| with(schema, [("$defs", json!({"d": definition, name: true}))])),
        ]
    })
}

fn object(inner: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    let members = prop::collection::vec((text(), inner.clone(), any::<bool>()), 0..5);
    (members, prop::option::of(inner.clone()), prop::option::of((text(), inner)), text()).prop_map(
        |(members, further, pattern, description)| {
            let required: Vec<_> = members.iter().filter(|member| member.2).map(|member| member.0.clone()).collect();
            let properties: Map<_, _> = members.into_iter().map(|(name, schema, _)| (name, schema)).collect();
            let mut schema = json!({"type": "object", "properties": properties, "required": required, "description": description});
            if let Some(further) = further {
                schema["additionalProperties"] = further;
            }
            if let Some((pattern, of_pattern)) = pattern {
                schema["patternProperties"] = json!({pattern: of_pattern});
            }
            schema
        },
    )
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|n| json!(n)),
        (-1e9..1e9).prop_map(|n: f64| json!(n)),
        text().prop_map(Value::String),
        (text(), text()).prop_map(|(key, value)| json!({key: [value, 1]})),
    ]
}

fn reference() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just("#".to_owned()),
        Just("#/$defs/d".to_owned()),
        text().prop_map(|name| format!("#/properties/{name}")),
        text(),
    ]
    .prop_map(|reference| json!({"$ref": reference}))
}

fn with<const N: usize>(mut schema: Value, entries: [(&str, Value); N]) -> Value {
    if let Value::Object(schema) = &mut schema {
        schema.extend(entries.map(|(key, value)| (key.to_owned(), value)));
    }
    schema
}

/// A tool of such schemas.
pub fn tool_with(name: &str, description: String, input: &Value, output: &Value) -> Tool {
    let (input, output) = (Some(input.to_string()), Some(output.to_string()));
    Tool { description, input_schema: input, output_schema: output, ..tool(name) }
}

/// So many tools, the same each time.
pub fn tools(n_tools: usize) -> Vec<Tool> {
    let mut runner = TestRunner::deterministic();
    let tools = (0..n_tools).map(|n| {
        let (description, input, output) =
            (text(), schema(), schema()).new_tree(&mut runner).unwrap().current();
        tool_with(&format!("random_{n}"), description, &input, &output)
    });
    tools.collect()
}
