//! The schemas of `golden/schemas.json`, each with values, and those that mean harm or nothing.

use std::fs;
use std::path::{Path, PathBuf};

use seance_core::catalog::Tool;
use serde_json::{Value, json};

use super::tool;

pub struct Case {
    pub name: String,
    pub schema: Value,
    pub valid: Vec<Value>,
    pub invalid: Vec<Value>,
}

/// A file of these tests.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

pub fn cases() -> Vec<Case> {
    let text = fs::read_to_string(here("golden/schemas.json")).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    let case = |case: &Value| Case {
        name: case["name"].as_str().unwrap().to_owned(),
        schema: case["schema"].clone(),
        valid: list(&case["valid"]),
        invalid: list(&case["invalid"]),
    };
    cases.iter().map(case).collect()
}

/// A tool that takes the schema where it is an object, and gives it in any case.
pub fn tool_of(case: &Case) -> Tool {
    let schema = Some(case.schema.to_string());
    let is_object = case.schema.get("type") == Some(&json!("object"));
    let input_schema = schema.clone().filter(|_| is_object);
    let description = format!("Case {}.", case.name.replace('_', " "));
    Tool { description, input_schema, output_schema: schema, ..tool(&case.name) }
}

/// Fails where a text differs from the file of this name in `golden`; writes it when
/// `SEANCE_UPDATE_GOLDEN` is set.
pub fn expect_golden(name: &str, actual: &str) {
    let path = here("golden").join(name);
    if std::env::var_os("SEANCE_UPDATE_GOLDEN").is_some() {
        fs::write(&path, actual).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    let differs = golden.lines().zip(actual.lines()).position(|(golden, actual)| golden != actual);
    assert!(golden == actual, "declarations differ from {} at line {differs:?}", path.display());
}

/// Tools whose schemas and descriptions mean harm, or nothing.
pub fn hostile() -> Vec<Tool> {
    let schemas = [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "string"}]},
            "b": {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"a": {"$ref": "#/$defs/a"}}}]}}}),
        json!({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "prefixItems": [{"$ref": "#/$defs/t"}]}}}),
        json!({"$ref": "#/$defs/t", "$defs": {"t": {"additionalProperties": {"$ref": "#/$defs/t"}}}}),
        json!({"properties": {"x": {"$ref": "#/nowhere"}, "y": {"$ref": "https://example.com/*/schema.json"}, "z": {"$ref": "#/properties/x/$ref"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a/b*~1"}, "b": {"$ref": "#/$defs/a.b"}},
            "$defs": {"a": {"b*/": {"type": "string"}}, "a.b": {"enum": []}}}),
        json!({"type": ["nonsense", 7], "enum": "x", "anyOf": [], "allOf": {}, "required": "a", "properties": []}),
        json!({"type": "object", "required": ["a", "a", 1, "constructor"], "properties": {"a": {}}}),
        json!({"enum": [[], {}, [[1]], {"a": {"b-c": "*/"}}, -0.0, 1e300, "\u{202e}\u{0}`${}#{x}\"\"\""]}),
        json!({"properties": {"*/ } evil": {"description": "*/ } /*", "default": "*/", "pattern": "*/", "title": "*/"}},
            "patternProperties": {"*/": {"type": "string"}}}),
        json!({"type": "array", "items": [], "minItems": 0}),
        json!({"type": "array", "prefixItems": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, true, false], "minItems": 1, "items": true}),
        json!({"type": "array", "items": false}),
        json!({"allOf": [{"type": "object", "additionalProperties": {"type": "string"}}, {"properties": {"a": {"type": "number"}}}]}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"$ref": "#"}}),
        // Parts that refer to each other on every level.
        json!({"$ref": "#/$defs/c", "$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/c"}}}, "b": {"properties": {"x": {"$ref": "#/$defs/c"}, "y": {"$ref": "#/$defs/a"}}},
            "c": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}}),
        json!({"allOf": [{"anyOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {}}}]}, {"type": "string"}]}),
        json!({"type": "object", "properties": words(), "required": ["class", "str", "__x", "_1"]}),
        json!(true),
        json!(false),
    ];
    let mut tools: Vec<Tool> = schemas
        .iter()
        .enumerate()
        .map(|(n, schema)| {
            let schema = Some(schema.to_string());
            Tool { input_schema: schema.clone(), output_schema: schema, ..tool(&format!("hostile_{n}")) }
        })
        .collect();
    let descriptions = [
        "*/ evil /*",
        "\"\"\" evil \"\"\"",
        "x\"\"\"",
        "\\\"",
        "\"\"\"\" evil",
        "\\",
        "\"",
        "ends in \"\"\"\"\"",
        "\\\"\"\" x \\N{",
        "# type: ignore",
        "type: int",
        "a\nevil\revil\u{2028}evil\u{85}evil\u{b}evil\u{c}evil",
        "=begin",
        "=end",
        "__END__",
        "#{evil} #$0 #@x",
        "```\nevil",
        "-*- coding: utf-7 -*-",
        "\u{202e}evil",
        "mypy: ignore-errors",
    ];
    for (n, description) in descriptions.into_iter().enumerate() {
        let property = json!({"description": description, "type": "object", "properties": {"b": {"description": description, "type": "integer"}}});
        let schema = json!({"type": "object", "description": description, "properties": {"a": property, "r": {"$ref": "#/$defs/r"}}, "$defs": {"r": property}});
        tools.push(Tool {
            description: description.to_owned(),
            input_schema: Some(schema.to_string()),
            output_schema: Some(schema.to_string()),
            ..tool(&format!("described_{n}"))
        });
    }
    // The names of their types would be one: a_b_c.
    for (name, definition) in [("a_b", "c"), ("a.", "b_c")] {
        let schema =
            json!({"$ref": format!("#/$defs/{definition}"), "$defs": {definition: {"type": "string"}}});
        tools.push(Tool { input_schema: Some(schema.to_string()), ..tool(name) });
    }
    // Names that a language has for itself.
    let listed = json!({"type": "object", "properties": {"x": {"type": "array", "items": {"type": ["integer", "null", "boolean"]}}, "y": {"enum": ["a"]}, "z": {}}});
    for name in [
        "str",
        "list",
        "dict",
        "int",
        "float",
        "bool",
        "builtins",
        "typing",
        "typing_",
        "Any",
        "Literal",
        "TypedDict",
        "tools",
        "Tools",
        "None",
        "class",
        "self",
        "type",
        "object",
        "print",
        "end",
        "nil",
        "BEGIN",
        "p",
    ] {
        tools.push(Tool {
            input_schema: Some(listed.to_string()),
            output_schema: Some(listed.to_string()),
            ..tool(name)
        });
    }
    tools
}

/// Properties whose names are words of a language.
fn words() -> Value {
    let names = [
        "class",
        "from",
        "None",
        "self",
        "str",
        "list",
        "Any",
        "Literal",
        "__x",
        "__debug__",
        "_1",
        "__FILE__",
        "end",
        "nil",
        "self",
        "true",
        "if",
        "Foo",
        "typing",
        "print",
        "a-b",
        "",
        "9",
        "ключ",
        "a\"b\\",
        "#{x}",
        "\"\"\"",
        "x\ny",
        "match",
        "Hostile18A",
        "async",
        "TypedDict",
    ];
    names
        .iter()
        .map(|name| ((*name).to_owned(), json!({"type": ["string", "null"], "description": "A word."})))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
