//! The chart's values, their schema and their page tell of the same ones.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn values() -> Value {
    serde_saphyr::from_str(&text("charts/seance/values.yaml")).expect("values.yaml is YAML")
}

fn schema() -> Value {
    serde_json::from_str(&text("charts/seance/values.schema.json")).expect("the schema is JSON")
}

/// The paths of a schema's leaves: `a.b`, `a[].b` in lists, `a.NAME.b` where names are free.
fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let has_properties = |schema: &Value| schema["properties"].is_object();
    if has_properties(schema) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            leaves(schema, &below(name), found);
        }
    } else if has_properties(&schema["additionalProperties"]) {
        leaves(&schema["additionalProperties"], &below("NAME"), found);
    } else if has_properties(&schema["items"]) {
        leaves(&schema["items"], &format!("{path}[]"), found);
    } else {
        found.insert(path.to_owned());
    }
}

fn known() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    leaves(&schema(), "", &mut found);
    found
}

#[test]
fn every_value_is_documented_and_nothing_else_is() {
    let page = text("docs/chart.md");
    let (_, tables) = page.split_once("## Values").expect("the page has values");
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<String> = rows.map(|(name, _)| name.to_owned()).collect();
    let known = known();
    let missing: Vec<_> = known.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&known).collect();
    assert!(missing.is_empty(), "docs/chart.md lacks {missing:?}");
    assert!(unknown.is_empty(), "docs/chart.md has {unknown:?}, which are no values");
}

#[test]
fn every_value_has_its_default_in_the_file_of_values() {
    let values = values();
    let free = |path: &&String| {
        ["pools.", "tenants[]", "global", "api.tls.issuerRef."].iter().all(|prefix| !path.starts_with(prefix))
    };
    for path in known().iter().filter(free) {
        let pointer = format!("/{}", path.replace('.', "/"));
        assert!(values.pointer(&pointer).is_some(), "values.yaml lacks {path}");
    }
}

/// Helm refuses unknown values only where the schema says so, at every level.
#[test]
fn no_level_of_the_schema_takes_unknown_values() {
    fn check(schema: &Value, path: &str) {
        if schema["properties"].is_object() {
            assert_eq!(schema["additionalProperties"], Value::Bool(false), "{path} takes unknown values");
        }
        let parts = schema.as_object().into_iter().flatten();
        for (name, part) in parts.filter(|(_, part)| part.is_object()) {
            check(part, &format!("{path}/{name}"));
        }
    }
    check(&schema(), "");
}

/// The runbook says where to look for every reason of a condition.
#[test]
fn every_reason_of_a_condition_is_in_the_runbook() {
    let page = text("docs/runbook.md");
    for file in ["operator/api/src/pool.rs", "operator/api/src/sandbox.rs"] {
        let source = text(file);
        let (_, reasons) = source.split_once("pub mod reason").expect("the file has reasons");
        let names =
            reasons.lines().filter_map(|line| line.trim().strip_prefix("pub const ")?.split('"').nth(1));
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "docs/runbook.md lacks {name} of {file}");
        }
    }
}
