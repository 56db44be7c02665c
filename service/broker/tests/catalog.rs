//! What a catalog allows: names, schemas, arguments and values.

use std::sync::Arc;

use seance_broker::catalog::*;
use seance_broker::providers::Outcome;
use seance_core::catalog::{Catalog, Tool};
use seance_core::limits::Limits;
use seance_core::program::CallError;
use serde_json::{Value, json};

fn tool(name: &str, input: Option<Value>, output: Option<Value>) -> Tool {
    Tool {
        name: name.to_owned(),
        description: String::new(),
        input_schema: input.map(|schema| schema.to_string()),
        output_schema: output.map(|schema| schema.to_string()),
        read_only: false,
        replay_safe: false,
        timeout: None,
    }
}

fn compile(tools: Vec<Tool>) -> Result<CompiledCatalog, CatalogError> {
    CompiledCatalog::compile(&Catalog::new(tools).unwrap())
}

fn input(schema: Value) -> CompiledCatalog {
    compile(vec![tool("t", Some(schema), None)]).unwrap()
}

fn output(schema: Option<Value>) -> CompiledCatalog {
    compile(vec![tool("t", None, schema)]).unwrap()
}

fn check(catalog: &CompiledCatalog, arguments: &str) -> Result<String, CallError> {
    catalog.check("t", arguments, &Limits::default()).map(|checked| checked.arguments)
}

fn refused(catalog: &CompiledCatalog, arguments: &str) -> String {
    let error = check(catalog, arguments).unwrap_err();
    assert_eq!(error.code, "invalid_arguments");
    error.message
}

fn strict() -> CompiledCatalog {
    input(json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 5},
            "mode": {"type": "string", "default": "fast"}
        },
        "required": ["n"],
        "additionalProperties": false
    }))
}

/// Case 34.
#[test]
fn arguments_are_checked_completed_and_refused_with_their_path() {
    let strict = strict();
    assert_eq!(check(&strict, r#"{"n":2}"#).unwrap(), r#"{"n":2,"mode":"fast"}"#);
    assert_eq!(check(&strict, r#"{"n":2.0}"#).unwrap(), r#"{"n":2,"mode":"fast"}"#);
    for (arguments, message) in [
        (r#"{"n":9}"#, r#"at "/n": 9 is greater than the maximum of 5"#),
        (r#"{"n":2,"x":1}"#, r#"at "/x": the property is not allowed here"#),
        (r#"{"n":"2"}"#, r#"at "/n": "2" is not of type "integer""#),
        (r#"{"n":2.5}"#, r#"at "/n": 2.5 is not of type "integer""#),
        ("{}", r#"at "": "n" is a required property"#),
        ("[1]", "the arguments must be an object"),
        ("5", "the arguments must be an object"),
    ] {
        assert_eq!(refused(&strict, arguments), message, "{arguments}");
    }
}

/// D6: also where the tool has no schema.
#[test]
fn arguments_without_a_schema_are_any_object_within_bounds() {
    let any = output(None);
    assert_eq!(check(&any, r#" {"a":[1.50,1e2]} "#).unwrap(), r#"{"a":[1.50,1e2]}"#);
    assert!(refused(&any, "null").contains("must be an object"));
    assert!(refused(&any, "{").contains("not JSON"));
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&any, &deep).contains("deep"));
    let long = format!(r#"{{"a":{}}}"#, "9".repeat(10_000));
    assert!(refused(&any, &long).contains("digits"));
    let limits = Limits { argument_bytes: 20, ..Limits::default() };
    assert!(any.check("t", r#"{"a":"0123456789"}"#, &limits).is_ok());
    let error = any.check("t", r#"{"a":"012345678901234"}"#, &limits).unwrap_err();
    assert!(error.code == "invalid_arguments" && error.message.contains("argument_bytes"), "{error:?}");
}

/// Case 16.
#[test]
fn integers_are_exact() {
    let limit = "9007199254740992";
    let schema = format!(r#"{{"properties":{{"id":{{"type":"integer"}},"low":{{"maximum":{limit}}}}}}}"#);
    let catalog = input(serde_json::from_str(&schema).unwrap());
    assert_eq!(check(&catalog, r#"{"id":9007199254740993}"#).unwrap(), r#"{"id":9007199254740993}"#);
    let long = format!(r#"{{"id":{}}}"#, "9".repeat(4_300));
    assert_eq!(check(&catalog, &long).unwrap(), long);
    assert_eq!(
        refused(&catalog, r#"{"low":9007199254740993}"#),
        format!(r#"at "/low": 9007199254740993 is greater than the maximum of {limit}"#)
    );
}

/// What was checked is what is sent, whichever of equal keys a reader takes.
#[test]
fn equal_keys_cannot_smuggle_a_value_past_the_schema() {
    assert_eq!(check(&strict(), r#"{"n":99,"n":2}"#).unwrap(), r#"{"n":2,"mode":"fast"}"#);
    assert!(refused(&strict(), r#"{"n":2,"n":99}"#).contains("99"));
}

/// D3, D5, case 30.
#[test]
fn names_are_found_or_refused_with_near_ones() {
    let catalog = compile(vec![tool("get_user", None, None), tool("tools.odd", None, None)]).unwrap();
    let named =
        |name: &str| catalog.check(name, "{}", &Limits::default()).map(|checked| checked.tool.name.clone());
    assert_eq!(named("get_user").unwrap(), "get_user");
    assert_eq!(named("tools.get_user").unwrap(), "get_user");
    assert_eq!(named("tools.odd").unwrap(), "tools.odd");
    let error = named("tools.get_usr").unwrap_err();
    assert_eq!(error.code, "unknown_tool");
    assert_eq!(
        error.message,
        r#"the tool "get_usr" is not available in code mode; did you mean "get_user"?"#
    );
    let error = named(&"\n".repeat(1_000_000)).unwrap_err();
    assert!(error.message.len() < 500 && !error.message.contains('\n'), "{}", error.message);
}

/// Case 32: recursive schemas, 500 deep.
#[test]
fn deep_arguments_of_a_recursive_schema_are_checked() {
    let tree = json!({
        "$defs": {"node": {
            "type": "object",
            "properties": {"node": {"$ref": "#/$defs/node"}, "v": {"type": "string"}},
            "additionalProperties": false
        }},
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}}
    });
    let catalog = input(tree);
    let nested = |leaf: &str| format!("{}{leaf}{}", r#"{"node":"#.repeat(500), "}".repeat(500));
    assert_eq!(check(&catalog, &nested(r#"{"v":"x"}"#)).unwrap(), nested(r#"{"v":"x"}"#));
    let message = refused(&catalog, &nested(r#"{"v":5}"#));
    assert!(message.starts_with(r#"at "/node/node"#) && message.contains("/v\": 5 is not"), "{message}");
}

/// Alternatives that all recurse could cost 2^depth steps.
#[test]
fn alternatives_that_recurse_cost_little() {
    let node =
        |to: &str| json!({"properties": {"c": {"allOf": [{"$ref": to}, {"$ref": to}]}}, "type": "object"});
    let catalog = input(json!({
        "$defs": {"a": node("#/$defs/b"), "b": node("#/$defs/a")},
        "properties": {"c": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}
    }));
    let nested = |leaf: &str| format!("{}{leaf}{}", r#"{"c":"#.repeat(60), "}".repeat(60));
    check(&catalog, &nested("{}")).unwrap();
    let message = refused(&catalog, &nested("5"));
    assert!(message.starts_with("at \"/c"), "{message}");
}

#[test]
fn the_furthest_alternative_says_what_is_wrong() {
    let optional =
        json!({"anyOf": [{"type": "object", "properties": {"n": {"type": "integer"}}}, {"type": "null"}]});
    let catalog = input(json!({"properties": {"o": optional}}));
    assert_eq!(refused(&catalog, r#"{"o":{"n":"x"}}"#), r#"at "/o/n": "x" is not of type "integer""#);
    assert!(refused(&catalog, r#"{"o":5}"#).starts_with(r#"at "/o": 5 matches none of the alternatives"#));
}

/// A program can't make our messages long.
#[test]
fn messages_are_bounded() {
    let catalog = input(json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": false}));
    let long = "x".repeat(1_000_000);
    for arguments in [
        format!(r#"{{"a":"{long}"}}"#),
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"a":[{}1]}}"#, "1,".repeat(100_000)),
    ] {
        let message = refused(&catalog, &arguments);
        assert!(message.len() < 4_096, "{}", message.len());
    }
}

#[test]
fn a_broken_schema_names_its_tool_and_the_place() {
    let deep = (0..100).fold(json!({}), |inner, _| json!({"not": inner}));
    for (schema, path, part) in [
        (json!({"properties": {"a": {"type": "objekt"}}}), "/properties/a/type", "objekt"),
        (json!({"properties": {"x/y": {"minimum": "a"}}}), "/properties/x~1y/minimum", "number"),
        (json!({"properties": {"a": {"pattern": "(?=a)b"}}}), "/properties/a/pattern", "look-around"),
        (json!({"properties": {"a": {"pattern": "(a)\\1"}}}), "/properties/a/pattern", "back-references"),
        (json!({"properties": {"a": {"pattern": "\\w{1000}{1000}"}}}), "/properties/a/pattern", "size"),
        (
            json!({"properties": {"a": {"$ref": "https://example.com/s"}}}),
            "/properties/a/$ref",
            "nothing is fetched",
        ),
        (json!({"$ref": "file:///etc/passwd"}), "/$ref", "nothing is fetched"),
        (json!({"properties": {"a": {"$ref": "#/$defs/none"}}}), "", "/$defs/none"),
        (json!({"type": "array"}), "/type", "object"),
        (json!([1]), "", "object"),
        (deep, "", "deep"),
    ] {
        let tools = vec![tool("good", None, None), tool("bad", Some(schema.clone()), None)];
        let error = compile(tools).unwrap_err();
        assert_eq!(
            (error.tool.as_str(), error.which, error.path.as_str()),
            ("bad", Which::Input, path),
            "{error}"
        );
        assert!(error.message.contains(part), "{error}");
    }
    let mut broken = tool("bad", None, None);
    broken.output_schema = Some("{".to_owned());
    let error = compile(vec![broken]).unwrap_err();
    assert_eq!((error.which, error.tool.as_str()), (Which::Output, "bad"));
}

/// D18, D19, D20, cases 23 and 37.
#[test]
fn results_reach_the_program_as_the_schema_declares() {
    let text = |text: &str| Outcome::Text(text.to_owned());
    let value = |json: &str| Outcome::Value(json.to_owned());
    let string = Some(json!({"type": "string"}));
    for (schema, outcome, expected) in [
        (None, text("5"), r#""5""#),
        (None, text("null"), r#""null""#),
        (None, text(r#"{"a":1}"#), r#"{"a":1}"#),
        (None, text("[1, 2]\n"), "[1, 2]"),
        (None, text("{not json"), r#""{not json""#),
        (None, text("a\n\"b\""), r#""a\n\"b\"""#),
        (None, value("5"), "5"),
        (None, value(r#"{"id":9007199254740993}"#), r#"{"id":9007199254740993}"#),
        (string.clone(), text(r#"{"a":1}"#), r#""{\"a\":1}""#),
        (string, text("5"), r#""5""#),
        (
            Some(json!({"properties": {"result": {"type": "array"}}})),
            value(r#"{"result":[1]}"#),
            r#"{"result":[1]}"#,
        ),
    ] {
        let json = output(schema).check_result("t", outcome.clone(), &Limits::default());
        assert_eq!(json.as_deref(), Ok(expected), "{outcome:?}");
    }
}

/// Case 38 and the errors of results.
#[test]
fn what_gives_no_value_is_an_error_with_a_code() {
    let object = output(Some(json!({"type": "object", "properties": {"a": {"type": "integer"}}})));
    let own = CallError { code: "E1".to_owned(), message: "m".to_owned(), retryable: true };
    let small = Limits { result_bytes: 10, ..Limits::default() };
    let value = |json: &str| Outcome::Value(json.to_owned());
    for (outcome, code, part) in [
        (value(r#"{"a":"x"}"#), "invalid_result", r#"at "/a": "x" is not"#),
        (Outcome::Text("plain".to_owned()), "invalid_result", "object"),
        (value("{"), "invalid_result", "not JSON"),
        (value(r#"{"a":12345}"#), "result_too_large", "result_bytes"),
        (Outcome::Error(own), "E1", "m"),
        (Outcome::NoProvider, "no_provider", "wasn't started"),
        (Outcome::Timeout, "call_timeout", "in time"),
        (Outcome::NotStarted, "not_started", "never saw"),
        (Outcome::Unknown, "outcome_unknown", "nobody can tell"),
        (Outcome::Failure("secret".to_owned()), "internal", "correlation"),
    ] {
        let error = object.check_result("t", outcome, &small).unwrap_err();
        assert_eq!(error.code, code);
        assert!(error.message.contains(part) && !error.message.contains("secret"), "{error:?}");
    }
}

#[tokio::test]
async fn a_catalog_is_compiled_once_and_failures_are_not_kept() {
    let catalogs = Catalogs::default();
    let catalog = Arc::new(Catalog::new(vec![tool("t", Some(json!({"type": "object"})), None)]).unwrap());
    let digest = catalog.digest();
    assert!(catalogs.get(&digest).is_none());
    let asked = (0..10).map(|_| catalogs.get_or_compile(&digest, catalog.clone()));
    let asked: Vec<_> = asked.collect();
    let mut compiled = Vec::new();
    for one in asked {
        compiled.push(one.await.unwrap());
    }
    assert!(compiled.iter().all(|one| Arc::ptr_eq(one, &compiled[0])));
    assert!(Arc::ptr_eq(&catalogs.get(&digest).unwrap(), &compiled[0]));
    let bad = Arc::new(Catalog::new(vec![tool("bad", Some(json!({"type": 5})), None)]).unwrap());
    for _ in 0..2 {
        let error = catalogs.get_or_compile(&bad.digest(), bad.clone()).await.unwrap_err();
        assert_eq!(error.tool, "bad");
    }
    assert!(catalogs.get(&bad.digest()).is_none());
}

#[tokio::test]
async fn the_cache_forgets_what_was_used_longest_ago() {
    let catalogs = Catalogs::default();
    let named = |n: usize| Arc::new(Catalog::new(vec![tool(&format!("t{n}"), None, None)]).unwrap());
    for n in 0..=CACHED_CATALOGS_MAX {
        let catalog = named(n);
        catalogs.get_or_compile(&catalog.digest(), catalog).await.unwrap();
        assert!(catalogs.get(&named(0).digest()).is_some(), "the first is used all the time");
    }
    assert!(catalogs.get(&named(1).digest()).is_none());
    assert!(catalogs.get(&named(2).digest()).is_some());
}

#[tokio::test]
async fn large_arguments_and_results_are_checked_off_the_runtime() {
    let catalog = Arc::new(output(None));
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(3_000_000));
    let checked = catalog.check_off_thread("t".to_owned(), large.clone(), &Limits::default()).await.unwrap();
    assert_eq!(checked.arguments, large);
    let outcome = Outcome::Value(large.clone());
    let json = catalog.check_result_off_thread("t".to_owned(), outcome, &Limits::default()).await;
    assert_eq!(json, Ok(large));
}
