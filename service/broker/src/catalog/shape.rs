//! Defaults put in, and integers written as integers, before a value is checked.
//!
//! Only where the schema says so without alternatives: under `properties`, `items`, `prefixItems`,
//! `additionalProperties`, `allOf` and `$ref`, and in the one alternative beside `null`. A default
//! goes in whole and is completed by the defaults below it; one that would bring itself back is left
//! out there.

use serde_json::{Map, Number, Value};

use super::weight::resolve;

/// The most defaults in one value, which bounds what a schema can make of a small one.
const DEFAULTS_MAX: usize = 1_000;
/// How many references lead to one another at most.
const REFERENCES_MAX: usize = 32;

/// Applies the schema's defaults and integer types to a value.
///
/// # Errors
///
/// More than [`DEFAULTS_MAX`] defaults would go in.
pub(super) fn apply(root: &Value, value: &mut Value) -> Result<(), String> {
    let mut shaper = Shaper { root, n_defaults: 0, within: Vec::new() };
    shaper.shape(root, value, 0)
}

struct Shaper<'a> {
    root: &'a Value,
    n_defaults: usize,
    /// The schemas whose defaults are being completed.
    within: Vec<*const Value>,
}

impl<'a> Shaper<'a> {
    /// `n_refs` counts what was followed without going deeper into the value.
    fn shape(&mut self, schema: &'a Value, value: &mut Value, n_refs: usize) -> Result<(), String> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        if n_refs > REFERENCES_MAX {
            return Ok(());
        }
        if let Some(Value::String(reference)) = keywords.get("$ref")
            && let Some(target) = resolve(self.root, reference)
        {
            self.shape(target, value, n_refs + 1)?;
        }
        if let Some(Value::Array(all)) = keywords.get("allOf") {
            for part in all {
                self.shape(part, value, n_refs + 1)?;
            }
        }
        if !value.is_null()
            && let Some(only) = only_beside_null(keywords)
        {
            self.shape(only, value, n_refs + 1)?;
        }
        match value {
            Value::Object(map) => self.shape_object(keywords, map),
            Value::Array(items) => self.shape_items(keywords, items),
            Value::Number(number) if is_integer_type(keywords) => {
                if let Some(integer) = as_integer(number.as_str()) {
                    *number = integer;
                }
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Number(_) => Ok(()),
        }
    }

    fn shape_object(
        &mut self,
        keywords: &'a Map<String, Value>,
        map: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let properties = match keywords.get("properties") {
            Some(Value::Object(properties)) => Some(properties),
            _ => None,
        };
        for (name, schema) in properties.into_iter().flatten() {
            match map.get_mut(name) {
                Some(value) => self.shape(schema, value, 0)?,
                None => {
                    if let Some(value) = self.default_of(schema)? {
                        map.insert(name.clone(), value);
                    }
                }
            }
        }
        if let Some(other) =
            keywords.get("additionalProperties").filter(|_| !keywords.contains_key("patternProperties"))
        {
            let named = |name: &String| properties.is_some_and(|properties| properties.contains_key(name));
            for (_, value) in map.iter_mut().filter(|(name, _)| !named(name)) {
                self.shape(other, value, 0)?;
            }
        }
        Ok(())
    }

    fn shape_items(&mut self, keywords: &'a Map<String, Value>, items: &mut [Value]) -> Result<(), String> {
        // `items` is a tuple up to draft 2019-09, and what follows `prefixItems` since.
        let (prefix, rest) = match (keywords.get("prefixItems"), keywords.get("items")) {
            (_, Some(Value::Array(tuple))) => (tuple.as_slice(), keywords.get("additionalItems")),
            (Some(Value::Array(tuple)), rest) => (tuple.as_slice(), rest),
            (_, rest) => (&[] as &[Value], rest),
        };
        for (index, item) in items.iter_mut().enumerate() {
            if let Some(schema) = prefix.get(index).or(rest) {
                self.shape(schema, item, 0)?;
            }
        }
        Ok(())
    }

    /// A property's default, completed.
    fn default_of(&mut self, schema: &'a Value) -> Result<Option<Value>, String> {
        let Some(default) = self.find_default(schema) else { return Ok(None) };
        if self.within.iter().any(|outer| std::ptr::eq(*outer, default)) {
            return Ok(None);
        }
        self.n_defaults += 1;
        if self.n_defaults > DEFAULTS_MAX {
            return Err(format!("the schema has more than {DEFAULTS_MAX} defaults for this value"));
        }
        let mut value = default.clone();
        self.within.push(default);
        let shaped = self.shape(schema, &mut value, 0);
        self.within.pop();
        shaped.map(|()| Some(value))
    }

    fn find_default(&self, schema: &'a Value) -> Option<&'a Value> {
        let mut schema = schema;
        for _ in 0..REFERENCES_MAX {
            if let Some(default) = schema.get("default") {
                return Some(default);
            }
            schema = resolve(self.root, schema.get("$ref")?.as_str()?)?;
        }
        None
    }
}

/// The one alternative beside `null`, where there are no others.
pub(super) fn only_beside_null(keywords: &Map<String, Value>) -> Option<&Value> {
    let Some(Value::Array(alternatives)) = keywords.get("anyOf").or_else(|| keywords.get("oneOf")) else {
        return None;
    };
    let is_null = |schema: &&Value| schema.get("type").is_some_and(|kind| kind == "null");
    let mut others = alternatives.iter().filter(|schema| !is_null(schema));
    others.next().filter(|_| others.next().is_none())
}

fn is_integer_type(keywords: &Map<String, Value>) -> bool {
    match keywords.get("type") {
        Some(Value::String(kind)) => kind == "integer",
        Some(Value::Array(kinds)) => {
            kinds.iter().any(|kind| kind == "integer") && !kinds.iter().any(|kind| kind == "number")
        }
        _ => false,
    }
}

/// A number that is written with a fraction or an exponent and is whole, written as an integer. The
/// parser refused what is over a double, so that it has at most 309 digits.
fn as_integer(text: &str) -> Option<Number> {
    if !text.contains(['.', 'e', 'E']) {
        return None;
    }
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return "0".parse().ok();
    }
    let exponent = exponent.parse::<i64>().ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let integer = match usize::try_from(exponent) {
        Ok(zeros) if zeros <= 400 => format!("{significant}{}", "0".repeat(zeros)),
        Ok(_) => return None,
        Err(_) => {
            let n_fraction = usize::try_from(exponent.unsigned_abs()).ok()?;
            let (integer, rest) = significant.split_at_checked(significant.len().checked_sub(n_fraction)?)?;
            if integer.is_empty() || rest.bytes().any(|digit| digit != b'0') {
                return None;
            }
            integer.to_owned()
        }
    };
    format!("{sign}{integer}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_numbers_are_written_as_integers() {
        for (text, expected) in [
            ("2.0", Some("2")),
            ("-2.50e1", Some("-25")),
            ("2e3", Some("2000")),
            ("0.0", Some("0")),
            ("-0.0", Some("0")),
            ("120e-1", Some("12")),
            ("9007199254740993.0", Some("9007199254740993")),
            ("2.5", None),
            ("1e-1", None),
            ("10e-3", None),
            ("1e999999999999", None),
            ("7", None),
        ] {
            assert_eq!(as_integer(text).map(|number| number.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn defaults_go_in_at_every_level() {
        let schema = json!({
            "$defs": {"opts": {"properties": {"depth": {"type": "integer", "default": 1}}, "default": {}}},
            "properties": {
                "mode": {"default": "fast"},
                "opts": {"$ref": "#/$defs/opts"},
                "list": {"items": {"properties": {"on": {"default": true}}}},
                "pair": {"prefixItems": [{}, {"$ref": "#/$defs/opts"}]},
                "maybe": {"anyOf": [{"$ref": "#/$defs/opts"}, {"type": "null"}]},
                "either": {"anyOf": [{"$ref": "#/$defs/opts"}, {"type": "object"}]}
            },
            "additionalProperties": {"$ref": "#/$defs/opts"},
            "allOf": [{"properties": {"all": {"default": null}}}]
        });
        let mut value =
            json!({"list": [{}, {"on": false}, 5], "pair": [{}, {}, {}], "maybe": {}, "either": {}, "x": {}});
        apply(&schema, &mut value).unwrap();
        assert_eq!(
            value,
            json!({
                "list": [{"on": true}, {"on": false}, 5], "pair": [{}, {"depth": 1}, {}],
                "maybe": {"depth": 1}, "either": {}, "x": {"depth": 1},
                "all": null, "mode": "fast", "opts": {"depth": 1}
            })
        );
    }

    #[test]
    fn a_default_that_brings_itself_back_goes_in_once() {
        let schema = json!({"properties": {"next": {"$ref": "#", "default": {}}}});
        let mut value = json!({});
        apply(&schema, &mut value).unwrap();
        assert_eq!(value, json!({"next": {}}));
        apply(&json!({"$ref": "#", "properties": {"a": {"default": 1}}}), &mut json!({})).unwrap();
    }

    #[test]
    fn defaults_that_multiply_are_refused() {
        let mut properties = Map::new();
        for n in 0..200 {
            properties.insert(format!("p{n}"), json!({"$ref": "#", "default": {}}));
        }
        let error = apply(&json!({"properties": properties}), &mut json!({})).unwrap_err();
        assert!(error.contains("1000 defaults"), "{error}");
    }
}
