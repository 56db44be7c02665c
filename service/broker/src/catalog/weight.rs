//! What a schema may cost whoever validates with it.
//!
//! A validator can't be interrupted, and follows a reference each time it meets one: a few lines
//! of schema can mean 2^40 steps, or a stack of any depth. A catalog comes from a tenant, so a
//! schema is weighed before it is compiled. References that come back to where they are cost one
//! step: the validator remembers those.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::error::Problem;

/// The most steps when every reference is written out.
const STEPS_MAX: u64 = 10_000_000;
/// How deep references and combinations may nest without going deeper into the value.
const IN_PLACE_DEPTH_MAX: u32 = 32;
/// How long a chain of references and subschemas may be.
const CHAIN_MAX: u32 = 512;

/// Keywords whose schemas apply to the same part of the value.
const IN_PLACE: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"];
/// Keywords that hold no schema that applies by itself.
const INERT: [&str; 7] = ["$defs", "definitions", "default", "const", "enum", "examples", "example"];
/// Keywords that hold schemas by name.
const BY_NAME: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];

/// Refuses a schema that refers outside of itself or costs too much.
pub(super) fn weigh(root: &Value) -> Result<(), Problem> {
    refuse_foreign(root, &mut String::new(), true)?;
    let mut scale = Scale { root, known: HashMap::new() };
    let weight = scale.weigh(root, 0)?;
    if weight.steps > STEPS_MAX {
        return Err(Problem::new(
            "",
            "the schema is too complex: its references repeat each other too often",
        ));
    }
    Ok(())
}

/// The schema that a local reference names; none for anchors.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    if pointer.contains('%') { None } else { root.pointer(pointer) }
}

/// Only references within the schema are followed, and by pointer: nothing is fetched, and nothing
/// changes what a pointer means.
fn refuse_foreign(schema: &Value, path: &mut String, at_root: bool) -> Result<(), Problem> {
    let length = path.len();
    let mut visit = |key: &str, value: &Value| {
        path.push('/');
        path.push_str(&key.replace('~', "~0").replace('/', "~1"));
        let found = match value {
            Value::String(text) => match key {
                "$ref" if !(text == "#" || text.starts_with("#/") && !text.contains('%')) => Some(format!(
                    "the reference {:?} is not one into this schema (#/…); nothing is fetched",
                    shown(text)
                )),
                "$id" if !at_root => Some("a schema within has an id of its own".to_owned()),
                "$dynamicRef" | "$recursiveRef" if text != "#" => {
                    Some("only # can be a dynamic reference".to_owned())
                }
                _ => None,
            },
            _ => None,
        };
        let outcome = match found {
            Some(message) => Err(Problem::new(path.clone(), message)),
            None => refuse_foreign(value, path, false),
        };
        path.truncate(length);
        outcome
    };
    match schema {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| visit(key, value)),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(index, item)| visit(&index.to_string(), item))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

#[derive(Clone, Copy, Default)]
struct Weight {
    steps: u64,
    in_place_depth: u32,
}

struct Scale<'a> {
    root: &'a Value,
    /// What was weighed, by address; none while it is being weighed.
    known: HashMap<usize, Option<Weight>>,
}

impl Scale<'_> {
    fn weigh(&mut self, schema: &Value, chain: u32) -> Result<Weight, Problem> {
        let Value::Object(map) = schema else { return Ok(Weight { steps: 1, in_place_depth: 1 }) };
        let address = std::ptr::from_ref(schema) as usize;
        match self.known.get(&address) {
            Some(Some(weight)) => return Ok(*weight),
            Some(None) => return Ok(Weight { steps: 1, in_place_depth: 1 }),
            None => {}
        }
        if chain >= CHAIN_MAX {
            return Err(Problem::new("", format!("schemas and references nest more than {CHAIN_MAX} deep")));
        }
        self.known.insert(address, None);
        let weight = self.sum(map, chain)?;
        if weight.in_place_depth > IN_PLACE_DEPTH_MAX {
            let message = format!("references and combinations nest more than {IN_PLACE_DEPTH_MAX} deep");
            return Err(Problem::new("", message));
        }
        self.known.insert(address, Some(weight));
        Ok(weight)
    }

    fn sum(&mut self, map: &Map<String, Value>, chain: u32) -> Result<Weight, Problem> {
        let mut sum = Weight { steps: 1, in_place_depth: 0 };
        for (keyword, value) in map {
            let (parts, in_place): (Vec<&Value>, bool) = match (keyword.as_str(), value) {
                ("$ref", Value::String(reference)) => {
                    (resolve(self.root, reference).into_iter().collect(), true)
                }
                ("$dynamicRef" | "$recursiveRef", _) => (vec![self.root], true),
                (keyword, _) if INERT.contains(&keyword) => continue,
                (keyword, Value::Array(items)) => (items.iter().collect(), IN_PLACE.contains(&keyword)),
                (keyword, Value::Object(named)) if BY_NAME.contains(&keyword) => {
                    (named.values().collect(), IN_PLACE.contains(&keyword))
                }
                (keyword, Value::Object(_)) => (vec![value], IN_PLACE.contains(&keyword)),
                _ => continue,
            };
            for part in parts {
                let weight = self.weigh(part, chain + 1)?;
                sum.steps = sum.steps.saturating_add(weight.steps);
                if in_place {
                    sum.in_place_depth = sum.in_place_depth.max(weight.in_place_depth);
                }
            }
        }
        sum.in_place_depth += 1;
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chained(n: usize, link: impl Fn(String) -> Value) -> Value {
        let mut defs = Map::new();
        for i in 0..n {
            defs.insert(format!("a{i}"), link(format!("#/$defs/a{}", i + 1)));
        }
        defs.insert(format!("a{n}"), json!({"type": "string"}));
        json!({"$defs": defs, "properties": {"x": {"$ref": "#/$defs/a0"}}})
    }

    #[test]
    fn schemas_that_would_cost_for_ever_are_refused() {
        let twice = |to: String| json!({"allOf": [{"$ref": to}, {"$ref": to}]});
        let twice_below = |to: String| json!({"properties": {"c": twice(to)}});
        let once = |to: String| json!({"$ref": to});
        for (schema, accepted) in [
            (chained(8, twice), true),
            (chained(20, twice_below), true),
            (chained(40, twice_below), false),
            (chained(20, once), true),
            (chained(100, once), false),
            (chained(10_000, once), false),
        ] {
            assert_eq!(weigh(&schema).is_ok(), accepted);
        }
    }

    #[test]
    fn recursion_costs_little() {
        let tree = json!({
            "$defs": {"node": {"properties": {"l": {"$ref": "#/$defs/node"}, "r": {"$ref": "#"}}}},
            "anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]
        });
        weigh(&tree).unwrap();
        weigh(&json!({"$ref": "#"})).unwrap();
    }
}
