//! The fixture tools of the program cases: their declarations and what they do. They run on the
//! host's side, and every call to them is recorded by [`crate::provider`].

use std::time::Duration;

use seance_proto::v1alpha1 as api;
use serde_json::{Map, Value};

use crate::case;

/// What `boom` fails with. It may stand in the provider's log and nowhere else (case 43).
pub const BOOM_SECRET: &str = "boom-secret-5f2c: connection to db-7.internal refused";

/// What `pic` leaves behind: a picture of exactly 1 KiB.
pub const PIC: &[u8] = include_bytes!("../data/pic.png");

/// The fixture tools' names, in catalog order.
pub const NAMES: [&str; 12] =
    ["echo", "sleep", "fail", "boom", "count", "big", "ids", "raw", "pic", "pay", "strict", "tree"];

/// What a call comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A structured value as JSON text.
    Value(String),
    /// Text.
    Text(String),
    /// An expected failure: code and message.
    Error(String, String),
    /// An unexpected one.
    Failure(String),
    /// A value and a picture beside it.
    Picture(String),
    /// A value and other things beside it.
    Leaving(String, Vec<case::Leaves>),
    /// Nothing, ever.
    Never,
}

impl Answer {
    /// The answer as the API takes it.
    pub fn to_proto(&self) -> api::ToolResult {
        use api::tool_result::Outcome;
        let error = |code: &String, message: &String| api::ToolError {
            code: code.clone(),
            message: message.clone(),
            retryable: false,
        };
        let picture = api::ArtifactData {
            name: "pic.png".to_owned(),
            media_type: "image/png".to_owned(),
            data: PIC.into(),
        };
        let (outcome, artifacts) = match self {
            Answer::Value(json) => (Some(Outcome::ValueJson(json.clone())), vec![]),
            Answer::Picture(json) => (Some(Outcome::ValueJson(json.clone())), vec![picture]),
            Answer::Leaving(json, things) => {
                let things = things.iter().map(|thing| api::ArtifactData {
                    name: thing.name.clone(),
                    media_type: thing.media_type.clone(),
                    data: vec![b'x'; thing.bytes].into(),
                });
                (Some(Outcome::ValueJson(json.clone())), things.collect())
            }
            Answer::Text(text) => (Some(Outcome::Text(text.clone())), vec![]),
            Answer::Error(code, message) => (Some(Outcome::Error(error(code, message))), vec![]),
            Answer::Failure(cause) => (Some(Outcome::Failure(cause.clone())), vec![]),
            Answer::Never => (None, vec![]),
        };
        api::ToolResult { outcome, artifacts }
    }
}

/// The tools of a case: the fixtures it names and its own.
pub fn catalog(fixtures: Option<&[String]>, own: &[case::Tool]) -> anyhow::Result<api::Catalog> {
    let names: Vec<&str> = match fixtures {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => NAMES.to_vec(),
    };
    let mut tools = names.into_iter().map(declaration).collect::<anyhow::Result<Vec<_>>>()?;
    tools.extend(own.iter().map(|tool| api::Tool {
        name: tool.name.clone(),
        description: tool.description.clone(),
        input_schema_json: tool.input.clone(),
        output_schema_json: tool.output.clone(),
        read_only: tool.read_only,
        ..api::Tool::default()
    }));
    Ok(api::Catalog { tools })
}

fn declaration(name: &str) -> anyhow::Result<api::Tool> {
    let (description, input, output, read_only) = match name {
        "echo" => ("Gives its value back.", r#"{"type":"object","properties":{"value":{}}}"#, "", true),
        "sleep" => (
            "Gives its value after ms milliseconds.",
            r#"{"type":"object","properties":{"ms":{"type":"integer","minimum":0},"value":{}},"required":["ms"]}"#,
            "",
            false,
        ),
        "fail" => (
            "Fails as told.",
            r#"{"type":"object","properties":{"message":{"type":"string"},"code":{"type":"string"}},"required":["message"]}"#,
            "",
            false,
        ),
        "boom" => ("Fails unexpectedly.", r#"{"type":"object"}"#, "", false),
        "count" => ("Counts from 1.", r#"{"type":"object"}"#, r#"{"type":"integer"}"#, false),
        "big" => (
            "Gives a string of this many bytes.",
            r#"{"type":"object","properties":{"bytes":{"type":"integer","minimum":0}},"required":["bytes"]}"#,
            r#"{"type":"string"}"#,
            true,
        ),
        "ids" => (
            "Gives an id over 2^53.",
            r#"{"type":"object"}"#,
            r#"{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}"#,
            true,
        ),
        "raw" => (
            "Gives this JSON text as its structured value.",
            r#"{"type":"object","properties":{"json":{"type":"string"}},"required":["json"]}"#,
            "",
            true,
        ),
        "pic" => ("Leaves a picture behind.", r#"{"type":"object"}"#, "", false),
        "pay" => (
            "Pays.",
            r#"{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"]}"#,
            "",
            false,
        ),
        "strict" => (
            "Takes exactly what it says.",
            r#"{"type":"object","properties":{"n":{"type":"integer","minimum":1,"maximum":5},"mode":{"type":"string","default":"fast"}},"required":["n"],"additionalProperties":false}"#,
            "",
            false,
        ),
        "tree" => (
            "Takes a tree.",
            r##"{"type":"object","properties":{"node":{"$ref":"#"},"leaf":{"type":"integer"}},"additionalProperties":false}"##,
            "",
            false,
        ),
        other => anyhow::bail!("no fixture tool is named {other:?}"),
    };
    Ok(api::Tool {
        name: name.to_owned(),
        description: description.to_owned(),
        input_schema_json: input.to_owned(),
        output_schema_json: output.to_owned(),
        read_only,
        ..api::Tool::default()
    })
}

/// What a call of a tool comes to, and how long it takes. `count` is the number of this call to
/// `count` in its session, from 1.
pub fn answer(tool: &str, arguments: &str, count: u64, own: &[case::Tool]) -> (Duration, Answer) {
    if let Some(tool) = own.iter().find(|own| own.name == tool) {
        return (Duration::ZERO, own_answer(tool, arguments));
    }
    match tool {
        "count" => return (Duration::ZERO, Answer::Value(count.to_string())),
        // Its arguments nest deeper than a JSON tree is read here.
        "tree" => return (Duration::ZERO, Answer::Value("\"ok\"".to_owned())),
        _ => {}
    }
    let arguments: Map<String, Value> = match serde_json::from_str(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return (Duration::ZERO, Answer::Failure(format!("arguments: {error}"))),
    };
    let text = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |name: &str| arguments.get(name).and_then(Value::as_u64).unwrap_or_default();
    let value = || arguments.get("value").unwrap_or(&Value::Null).to_string();
    let answer = match tool {
        "echo" => Answer::Value(value()),
        "sleep" => return (Duration::from_millis(number("ms")), Answer::Value(value())),
        "fail" => Answer::Error(text("code"), text("message")),
        "boom" => Answer::Failure(BOOM_SECRET.to_owned()),
        "big" => Answer::Value(format!("\"{}\"", "x".repeat(number("bytes").min(32 << 20) as usize))),
        "ids" => Answer::Value(r#"{"id":9007199254740993}"#.to_owned()),
        "raw" => Answer::Value(text("json")),
        "pic" => Answer::Picture(r#"{"ok":true}"#.to_owned()),
        "pay" => Answer::Value(format!(r#"{{"paid":{}}}"#, number("amount"))),
        "strict" => Answer::Value(Value::Object(arguments).to_string()),
        other => Answer::Failure(format!("no fixture tool is named {other:?}")),
    };
    (Duration::ZERO, answer)
}

fn own_answer(tool: &case::Tool, arguments: &str) -> Answer {
    if !tool.leaves.is_empty() {
        return Answer::Leaving("true".to_owned(), tool.leaves.clone());
    }
    match (&tool.value, &tool.text) {
        (Some(json), _) => Answer::Value(json.clone()),
        (None, Some(text)) => Answer::Text(text.clone()),
        (None, None) => Answer::Value(arguments.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fixture_is_declared_and_answers() {
        let catalog = catalog(None, &[]).unwrap();
        assert_eq!(catalog.tools.len(), NAMES.len());
        for tool in &catalog.tools {
            serde_json::from_str::<Value>(&tool.input_schema_json).unwrap();
            let (_, answer) = answer(&tool.name, "{}", 1, &[]);
            assert!(!matches!(answer, Answer::Failure(ref m) if m.contains("no fixture")), "{}", tool.name);
        }
        assert!(super::catalog(Some(&["nope".to_owned()]), &[]).is_err());
    }

    #[test]
    fn numbers_go_through_the_tools_digit_by_digit() {
        let (_, answer) = answer("echo", r#"{"value":9007199254740993}"#, 1, &[]);
        assert_eq!(answer, Answer::Value("9007199254740993".to_owned()));
    }

    #[test]
    fn the_picture_is_one_kib() {
        assert_eq!(PIC.len(), 1024);
    }
}
