//! Declarations as the real TypeScript compiler reads them (case 35): valid values have the declared
//! types, invalid ones don't, and no schema makes the declarations unreadable.
//!
//! The schemas are in `golden/schemas.json`, each with values; a validator confirms which are valid.
//! Set `SEANCE_UPDATE_GOLDEN=1` to write `golden/declarations.ts` anew.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{describe, surface, tool};
use seance_core::catalog::Tool;
use serde_json::{Value, json};

struct Case {
    name: String,
    schema: Value,
    valid: Vec<Value>,
    invalid: Vec<Value>,
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

fn cases() -> Vec<Case> {
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
fn tool_of(case: &Case) -> Tool {
    let schema = Some(case.schema.to_string());
    let is_object = case.schema.get("type") == Some(&json!("object"));
    let input_schema = schema.clone().filter(|_| is_object);
    let description = format!("Case {}.", case.name.replace('_', " "));
    Tool { description, input_schema, output_schema: schema, ..tool(&case.name) }
}

#[test]
fn declarations_are_as_golden() {
    let actual = describe(cases().iter().map(tool_of).collect()).declarations;
    let path = here("golden/declarations.ts");
    if std::env::var_os("SEANCE_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &actual).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    let differs = golden.lines().zip(actual.lines()).position(|(golden, actual)| golden != actual);
    assert!(golden == actual, "declarations differ from {} at line {differs:?}", path.display());
}

#[test]
fn a_validator_agrees_on_the_values() {
    let cases = cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    for Case { name, schema, valid, invalid } in cases {
        let validator = jsonschema::validator_for(&schema).unwrap();
        for value in valid {
            assert!(validator.is_valid(&value), "{name}: {value}");
        }
        for value in invalid {
            assert!(!validator.is_valid(&value), "{name}: {value}");
        }
    }
}

#[test]
fn the_compiler_accepts_valid_values_and_nothing_else() {
    let cases = cases();
    let description = describe(cases.iter().map(tool_of).collect());
    let mut values = surface(&description.instructions).to_owned();
    for case in &cases {
        let kind = format!("Awaited<ReturnType<typeof tools.{}>>", case.name);
        let takes = tool_of(case).input_schema.is_some();
        for (values_of, expected) in [(&case.valid, ""), (&case.invalid, "// @ts-expect-error\n")] {
            for value in values_of {
                let value = expression(value);
                values += &format!("{expected}((value: {kind}) => value)({value});\n");
                if takes {
                    values += &format!("{expected}tools.{}({value});\n", case.name);
                }
            }
        }
    }
    let files = [("values.ts", values), ("program.ts", program()), ("hostile.ts", hostile())];
    compile("typescript-cases", &files);
}

/// What the instructions promise beside tools, used as they say.
fn program() -> String {
    let description =
        describe(vec![tool("get-user"), tool("then"), tool("new"), tool("delete"), tool("9lives")]);
    let program = r#"
const controller = new AbortController();
const user: unknown = await tools.get_user({ id: 1 }, { signal: controller.signal });
await Promise.all([tools._then(), tools.new({}), tools.delete({ a: 1n }), tools._9lives()]);
try {
  await tools.call("get-user", { id: 2 });
} catch (error) {
  if (error instanceof ToolError) text([error.name, error.message, error.code, error.tool, error.call, error.retryable]);
}
controller.abort();
for (const { name, description } of ALL_TOOLS) text(name + description);
store.set("seen", [...store.keys(), store.get("seen"), INPUTS]);
store.delete("seen");
if (user === undefined) exit();
// @ts-expect-error: there is no such tool
await tools.get_usr({});
"#;
    surface(&description.instructions).to_owned() + program
}

/// Schemas that mean harm, or nothing: what is declared of them must still compile.
fn hostile() -> String {
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
        json!({"enum": [[], {}, [[1]], {"a": {"b-c": "*/"}}, -0.0, 1e300, "\u{202e}\u{0}`${}"]}),
        json!({"properties": {"*/ } evil": {"description": "*/ } /*", "default": "*/", "pattern": "*/", "title": "*/"}},
            "patternProperties": {"*/": {"type": "string"}}}),
        json!({"type": "array", "items": [], "minItems": 0}),
        json!({"type": "array", "prefixItems": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, true, false], "minItems": 1, "items": true}),
        json!({"type": "array", "items": false}),
        json!({"allOf": [{"type": "object", "additionalProperties": {"type": "string"}}, {"properties": {"a": {"type": "number"}}}]}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"$ref": "#"}}),
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
    tools.push(Tool { description: "*/ } declare const evil: 1; /*".to_owned(), ..tool("a") });
    // The names of their types would be one: a_b_c.
    for (name, definition) in [("a_b", "c"), ("a.", "b_c")] {
        let schema =
            json!({"$ref": format!("#/$defs/{definition}"), "$defs": {definition: {"type": "string"}}});
        tools.push(Tool { input_schema: Some(schema.to_string()), ..tool(name) });
    }
    surface(&describe(tools).instructions).to_owned()
}

/// A value as a program would write it.
fn expression(value: &Value) -> String {
    match value {
        Value::Number(n) if n.to_string().parse::<i128>().is_ok_and(|n| n.abs() >= 1 << 53) => {
            format!("{n}n")
        }
        Value::Array(items) => format!("[{}]", items.iter().map(expression).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| format!("{}: {}", json!(key), expression(value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

/// Compiles modules under the strictest checks and shows what the compiler says against them.
fn compile(folder: &str, files: &[(&str, String)]) {
    let compiler = compiler();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), format!("{text}\nexport {{}};\n")).unwrap();
    }
    fs::copy(here("typescript/tsconfig.json"), folder.join("tsconfig.json")).unwrap();
    let output = run(Command::new("node")
        .arg(compiler)
        .args(["--project", ".", "--pretty", "false"])
        .current_dir(&folder));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "in {}:\n{said}{}",
        folder.display(),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The pinned compiler, installed once from `tests/typescript/package-lock.json`.
fn compiler() -> PathBuf {
    let package: Value =
        serde_json::from_str(&fs::read_to_string(here("typescript/package.json")).unwrap()).unwrap();
    let version = package["devDependencies"]["typescript"].as_str().unwrap();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("typescript-{version}"));
    let compiler = cache.join("node_modules/typescript/bin/tsc");
    if compiler.is_file() {
        return compiler;
    }
    // Installed aside and moved, so that a broken installation is never used.
    let aside = cache.with_extension(format!("{}.tmp", std::process::id()));
    fs::create_dir_all(&aside).unwrap();
    for file in ["package.json", "package-lock.json"] {
        fs::copy(here("typescript").join(file), aside.join(file)).unwrap();
    }
    let output = run(Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&aside));
    assert!(output.status.success(), "npm ci failed:\n{}", String::from_utf8_lossy(&output.stderr));
    if let Err(error) = fs::rename(&aside, &cache) {
        assert!(compiler.is_file(), "{} can't be moved to {}: {error}", aside.display(), cache.display());
    }
    compiler
}

fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().unwrap_or_else(|error| {
        panic!("{program} does not start ({error}); this test needs Node.js 18 or later with npm: apt install nodejs npm")
    })
}
