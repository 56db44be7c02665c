//! Declarations as the real TypeScript compiler reads them (case 35): valid values have the declared
//! types, invalid ones don't, and no schema makes the declarations unreadable.
//!
//! The schemas are in `golden/schemas.json`, each with values; a validator confirms which are valid.
//! Set `SEANCE_UPDATE_GOLDEN=1` to write `golden/declarations.ts` anew.

mod common;

use std::process::Command;

use common::cases::{Case, cases, expect_golden, hostile, tool_of};
use common::{describe, node, surface, tool};
use serde_json::{Value, json};

#[test]
fn declarations_are_as_golden() {
    let actual = describe(cases().iter().map(tool_of).collect()).declarations;
    expect_golden("declarations.ts", &actual);
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
    let harm = surface(&describe(hostile()).instructions).to_owned();
    let files = [("values.ts", values), ("program.ts", program()), ("hostile.ts", harm)];
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

/// Compiles modules under the strictest checks.
fn compile(folder: &str, files: &[(&str, String)]) {
    let compiler = node::installed("typescript", "typescript", "bin/tsc");
    let files: Vec<_> = files.iter().map(|(name, text)| (*name, format!("{text}\nexport {{}};\n"))).collect();
    let mut command = Command::new("node");
    command.arg(compiler).args(["--project", ".", "--pretty", "false"]);
    node::check(folder, &files, "typescript/tsconfig.json", &mut command);
}
