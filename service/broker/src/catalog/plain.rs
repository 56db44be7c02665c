//! Schemas that can be judged without building a validator from them.
//!
//! Building one costs a hundred times what its check against the meta-schema does, and a catalog can
//! have thousands of schemas that no program ever calls. A plain schema has only keywords whose
//! validators can't fail to be built once the meta-schema holds: no patterns, no references but to
//! definitions that the meta-schema has looked at, no numbers outside what every reader has. What is
//! not plain is built at once. It is no harm to call a plain schema something else.

use serde_json::Value;

/// The meta-schemas that look at `$defs`.
const KNOW_DEFS: [&str; 2] =
    ["https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema"];
/// The ones before, which look at `definitions` only.
const KNOW_DEFINITIONS: [&str; 2] =
    ["http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema"];
/// Keywords that hold schemas by names, which may be any.
const BY_NAME: [&str; 3] = ["properties", "$defs", "definitions"];
/// Keywords whose meaning goes beyond the meta-schema, or that hold schemas by names and are rare.
const BEYOND: [&str; 12] = [
    "pattern",
    "patternProperties",
    "dependencies",
    "dependentSchemas",
    "$schema",
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "$vocabulary",
];
/// The longest number that every reader has, in characters.
const NUMBER_CHARS_MAX: usize = 15;

/// Whether a schema that was weighed, and whose own address is gone, is plain.
pub(super) fn is_plain(schema: &Value) -> bool {
    let Value::Object(keywords) = schema else { return schema.is_boolean() };
    let knows_defs = match keywords.get("$schema") {
        None => true,
        Some(Value::String(address)) => {
            let address = address.trim_end_matches('#');
            let knows_defs = KNOW_DEFS.contains(&address);
            if !knows_defs && !KNOW_DEFINITIONS.contains(&address) {
                return false;
            }
            knows_defs
        }
        Some(_) => return false,
    };
    let at = Judge { root: schema, knows_defs };
    keywords.iter().all(|(key, part)| key == "$schema" || at.keyword_is_plain(key, part))
}

struct Judge<'a> {
    root: &'a Value,
    knows_defs: bool,
}

impl Judge<'_> {
    fn keyword_is_plain(&self, key: &str, part: &Value) -> bool {
        match part {
            _ if BEYOND.contains(&key) => false,
            Value::Object(named) if BY_NAME.contains(&key) => {
                named.values().all(|part| self.part_is_plain(part))
            }
            Value::String(reference) if key == "$ref" => self.leads_to_definition(reference),
            part => self.part_is_plain(part),
        }
    }

    /// Whether a schema within is plain, or what a keyword has that is none.
    fn part_is_plain(&self, part: &Value) -> bool {
        match part {
            Value::Null | Value::Bool(_) | Value::String(_) => true,
            Value::Number(number) => {
                number.as_str().len() <= NUMBER_CHARS_MAX && !number.as_str().contains(['e', 'E'])
            }
            Value::Array(items) => items.iter().all(|item| self.part_is_plain(item)),
            Value::Object(keywords) => keywords.iter().all(|(key, part)| self.keyword_is_plain(key, part)),
        }
    }

    /// Whether a reference is to the whole, or to a definition that the meta-schema looks at.
    fn leads_to_definition(&self, reference: &str) -> bool {
        let defined = |keyword: &str, name: &str| {
            let definitions = self.root.get(keyword).and_then(Value::as_object);
            !name.contains(['/', '~', '%']) && definitions.is_some_and(|named| named.contains_key(name))
        };
        match reference.strip_prefix("#/").and_then(|path| path.split_once('/')) {
            Some(("$defs", name)) => self.knows_defs && defined("$defs", name),
            Some(("definitions", name)) => defined("definitions", name),
            _ => reference == "#",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_the_meta_schema_judges_is_plain() {
        let draft_7 = "http://json-schema.org/draft-07/schema#";
        for (schema, expected) in [
            (json!({"properties": {"a": {"type": "integer", "minimum": 1}}}), true),
            (json!(true), true),
            (json!({"$schema": draft_7, "definitions": {"a": {}}, "$ref": "#/definitions/a"}), true),
            (json!({"$schema": draft_7, "$defs": {"a": {}}, "$ref": "#/$defs/a"}), false),
            (json!({"$schema": "https://example.com/mine"}), false),
            (json!({"$defs": {"a": {}}, "items": {"$ref": "#/$defs/a"}}), true),
            (json!({"items": {"$ref": "#/$defs/a"}}), false),
            (json!({"x": {"minimum": "a"}, "$ref": "#/x"}), false),
            (json!({"properties": {"a": {"pattern": "^a"}}}), false),
            (json!({"properties": {"pattern": {"type": "string"}, "id": {}, "$id": {}}}), true),
            (json!({"properties": {"properties": {"pattern": "("}}}), false),
            (json!({"dependentSchemas": {"properties": {"pattern": "("}}}), false),
            (json!({"allOf": [{"patternProperties": {}}]}), false),
            (json!({"maxLength": serde_json::from_str::<Value>("1e999").unwrap()}), false),
            (json!({"enum": [serde_json::from_str::<Value>("12345678901234567890").unwrap()]}), false),
            (json!({"items": {"$dynamicRef": "#"}}), false),
        ] {
            assert_eq!(is_plain(&schema), expected, "{schema}");
        }
    }
}
