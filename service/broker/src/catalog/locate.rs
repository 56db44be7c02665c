//! Where a value breaks its schema, and what is wrong there.
//!
//! The validator's own errors carry those of every alternative, with copies of the values: for
//! alternatives that recurse they are more than there is memory. So the violation is searched from
//! the top, one step at a time, asking only whether a part is valid. The keyword order of the schema
//! decides which of several violations is told: always the same one for the same value.

use std::collections::HashMap;

use jsonschema::{Draft, Registry, ValidationError, Validator};
use serde_json::{Map, Value};

use super::schema::options;
use super::shape::only_beside_null;
use super::weight::resolve;
use crate::providers::cut_middle;

/// The longest message about a violation, in bytes.
const MESSAGE_BYTES_MAX: u64 = 2_000;
/// Values up to this length stand in a message, in bytes.
const SHOWN_BYTES_MAX: usize = 100;
/// How many steps a search takes at most; past it the place found so far is told.
const STEPS_MAX: usize = 20_000;
/// The address of the schema for the parts of it that are asked.
const ADDRESS: &str = "urn:seance:schema";
/// Keywords that say something of a value by themselves, without another schema.
const ASSERTIONS: [&str; 19] = [
    "type",
    "enum",
    "const",
    "multipleOf",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "maxProperties",
    "minProperties",
    "required",
    "dependentRequired",
    "format",
];
/// Keywords with schemas for parts of the value that a search doesn't go into.
const OTHERS: [&str; 10] = [
    "not",
    "contains",
    "propertyNames",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
    "minContains",
    "maxContains",
    "unevaluatedProperties",
    "unevaluatedItems",
];

/// What is wrong with a value that doesn't match the schema, such as
/// `at "/n": 9 is greater than the maximum of 5`.
pub(super) fn violation(root: &Value, draft: Draft, value: &Value) -> String {
    let resource = draft.create_resource_ref(root);
    let registry =
        Registry::new().draft(draft).add(ADDRESS, resource).and_then(jsonschema::RegistryBuilder::prepare);
    let Ok(registry) = registry else { return "the value doesn't match the schema".to_owned() };
    let mut search = Search { root, draft, registry: &registry, validators: HashMap::new(), n_steps: 0 };
    let mut spot = Spot { pointer: String::new(), schema: root, value, path: String::new() };
    while let Some(next) = search.step(&spot) {
        spot = next;
    }
    search.tell(&spot)
}

/// A part of the value that doesn't match its part of the schema.
struct Spot<'a> {
    pointer: String,
    schema: &'a Value,
    value: &'a Value,
    path: String,
}

struct Search<'a> {
    root: &'a Value,
    draft: Draft,
    registry: &'a Registry<'a>,
    validators: HashMap<String, Option<Validator>>,
    n_steps: usize,
}

impl<'a> Spot<'a> {
    /// The same value under another part of the schema.
    fn under(&self, pointer: String, schema: &'a Value) -> Self {
        Self { pointer, schema, value: self.value, path: self.path.clone() }
    }

    /// A part of the value under a part of the schema.
    fn into(&self, key: &str, value: &'a Value, keyword: &str, schema: &'a Value) -> Self {
        let (pointer, path) =
            (format!("{}/{keyword}", self.pointer), format!("{}/{}", self.path, escaped(key)));
        Self { pointer, schema, value, path }
    }
}

impl<'a> Search<'a> {
    /// Goes one step nearer to the violation.
    fn step(&mut self, spot: &Spot<'a>) -> Option<Spot<'a>> {
        let Value::Object(keywords) = spot.schema else { return None };
        for (keyword, part) in keywords {
            self.n_steps += 1;
            if self.n_steps > STEPS_MAX {
                return None;
            }
            let within = self.candidates(spot, keywords, keyword, part);
            if let Some(next) = within.into_iter().find(|next| !self.is_valid(next)) {
                return Some(next);
            }
        }
        None
    }

    /// The places that a keyword's violation can be at.
    fn candidates(
        &mut self,
        spot: &Spot<'a>,
        keywords: &'a Map<String, Value>,
        keyword: &str,
        part: &'a Value,
    ) -> Vec<Spot<'a>> {
        let at = |suffix: &str| format!("{}/{suffix}", spot.pointer);
        match (keyword, part, spot.value) {
            ("$ref", Value::String(reference), _) => {
                let target = resolve(self.root, reference);
                target.map(|target| spot.under(reference[1..].to_owned(), target)).into_iter().collect()
            }
            ("allOf", Value::Array(all), _) => {
                all.iter().enumerate().map(|(n, part)| spot.under(at(&format!("allOf/{n}")), part)).collect()
            }
            ("anyOf" | "oneOf", Value::Array(alternatives), _) => {
                self.likely_alternative(spot, keywords, keyword, alternatives).into_iter().collect()
            }
            ("then" | "else", _, _) => {
                let asked = keywords.get("if").map(|asked| spot.under(at("if"), asked));
                let applies = asked.is_some_and(|asked| self.is_valid(&asked) == (keyword == "then"));
                if applies { vec![spot.under(at(keyword), part)] } else { Vec::new() }
            }
            ("properties", Value::Object(properties), Value::Object(map)) => properties
                .iter()
                .filter_map(|(name, schema)| {
                    Some(spot.into(name, map.get(name)?, &format!("properties/{}", escaped(name)), schema))
                })
                .collect(),
            ("additionalProperties", _, Value::Object(map))
                if !keywords.contains_key("patternProperties") =>
            {
                let named =
                    |name: &str| keywords.get("properties").is_some_and(|named| named.get(name).is_some());
                let others = map.iter().filter(|(name, _)| !named(name));
                others.map(|(name, value)| spot.into(name, value, keyword, part)).collect()
            }
            ("items" | "prefixItems" | "additionalItems", _, Value::Array(items)) => {
                items_under(spot, keywords, keyword, part, items)
            }
            _ => Vec::new(),
        }
    }

    /// The one alternative that was meant: the one beside `null`, or the only one for a value of
    /// this type. None when one matches, or none is more likely than the others.
    fn likely_alternative(
        &mut self,
        spot: &Spot<'a>,
        keywords: &'a Map<String, Value>,
        keyword: &str,
        alternatives: &'a [Value],
    ) -> Option<Spot<'a>> {
        let under = |n: usize| spot.under(format!("{}/{keyword}/{n}", spot.pointer), &alternatives[n]);
        if (0..alternatives.len()).any(|n| self.is_valid(&under(n))) {
            return None;
        }
        let meant = only_beside_null(keywords);
        let fits = |schema: &Value| {
            meant.is_some_and(|meant| std::ptr::eq(meant, schema))
                || meant.is_none() && self.takes_type(schema, spot.value)
        };
        let mut fitting = (0..alternatives.len()).filter(|n| fits(&alternatives[*n]));
        let only = fitting.next().filter(|_| fitting.next().is_none())?;
        // `null` is the other alternative: what has the wrong type altogether is told of both.
        self.takes_type(&alternatives[only], spot.value).then(|| under(only))
    }

    /// Whether a schema's `type` lets the value in.
    fn takes_type(&self, schema: &Value, value: &Value) -> bool {
        let target = schema.get("$ref").and_then(|reference| resolve(self.root, reference.as_str()?));
        let schema = target.unwrap_or(schema);
        let has = |kind: &Value| match value {
            Value::Null => kind == "null",
            Value::Bool(_) => kind == "boolean",
            Value::Number(_) => kind == "number" || kind == "integer",
            Value::String(_) => kind == "string",
            Value::Array(_) => kind == "array",
            Value::Object(_) => kind == "object",
        };
        match schema.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().any(has),
            Some(kind) => has(kind),
            None => true,
        }
    }

    fn is_valid(&mut self, spot: &Spot<'a>) -> bool {
        let validator = self.validators.entry(spot.pointer.clone()).or_insert_with(|| {
            let part = Value::from_iter([("$ref", format!("{ADDRESS}#{}", fragment(&spot.pointer)))]);
            options().with_draft(self.draft).with_registry(self.registry).build(&part).ok()
        });
        // What can't be asked isn't where the violation is told.
        validator.as_ref().is_none_or(|validator| validator.is_valid(spot.value))
    }

    /// Says what is wrong at the end of a search.
    fn tell(&mut self, spot: &Spot<'a>) -> String {
        let (path, message) = match spot.schema {
            Value::Bool(false) => (spot.path.clone(), "the property is not allowed here".to_owned()),
            Value::Object(keywords) => self.tell_keywords(spot, keywords),
            _ => (spot.path.clone(), "the value doesn't match the schema".to_owned()),
        };
        let path = cut_middle(path, MESSAGE_BYTES_MAX / 2);
        format!("at {path:?}: {}", cut_middle(message, MESSAGE_BYTES_MAX))
    }

    fn tell_keywords(&mut self, spot: &Spot<'a>, keywords: &'a Map<String, Value>) -> (String, String) {
        let of_kind =
            |known: &[&str]| keywords.iter().filter(|(k, _)| known.contains(&k.as_str())).collect::<Vec<_>>();
        let assertions = of_kind(&ASSERTIONS).into_iter().map(|(k, part)| (k.clone(), part.clone()));
        let assertions = options().with_draft(self.draft).build(&Value::Object(assertions.collect()));
        if let Some(error) =
            assertions.as_ref().ok().and_then(|validator| validator.validate(spot.value).err())
        {
            return in_words(&spot.path, &error);
        }
        let value = shown(spot.value).unwrap_or_else(|| "the value".to_owned());
        for (keyword, part) in of_kind(&["anyOf", "oneOf"]) {
            let n_valid = self.n_valid(spot, keyword, part);
            if n_valid == 0 {
                return (spot.path.clone(), format!("{value} matches none of the alternatives of {keyword}"));
            }
            if n_valid > 1 && keyword == "oneOf" {
                return (spot.path.clone(), format!("{value} matches more than one alternative of oneOf"));
            }
        }
        let others: Vec<_> = of_kind(&OTHERS).into_iter().map(|(keyword, _)| keyword.as_str()).collect();
        (spot.path.clone(), format!("{value} doesn't match the schema ({})", others.join(", ")))
    }

    fn n_valid(&mut self, spot: &Spot<'a>, keyword: &str, part: &'a Value) -> usize {
        let alternatives = part.as_array().map_or(&[] as &[Value], Vec::as_slice).iter().enumerate();
        alternatives
            .filter(|(n, schema)| {
                self.is_valid(&spot.under(format!("{}/{keyword}/{n}", spot.pointer), schema))
            })
            .count()
    }
}

/// The items that one of the keywords for items is about. `items` is a tuple up to draft 2019-09, and
/// what follows `prefixItems` since.
fn items_under<'a>(
    spot: &Spot<'a>,
    keywords: &'a Map<String, Value>,
    keyword: &str,
    part: &'a Value,
    items: &'a [Value],
) -> Vec<Spot<'a>> {
    let item = |n: usize, keyword: &str, schema| spot.into(&n.to_string(), &items[n], keyword, schema);
    let length = |keyword: &str| keywords.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
    match part {
        Value::Array(tuple) => tuple
            .iter()
            .take(items.len())
            .enumerate()
            .map(|(n, schema)| item(n, &format!("{keyword}/{n}"), schema))
            .collect(),
        schema => {
            let first = if keyword == "items" { length("prefixItems") } else { length("items") };
            (first..items.len()).map(|n| item(n, keyword, schema)).collect()
        }
    }
}

fn in_words(path: &str, error: &ValidationError<'_>) -> (String, String) {
    let path = format!("{path}{}", error.instance_path());
    match shown(error.instance()) {
        Some(_) => (path, error.to_string()),
        None => (path, error.masked_with("the value").to_string()),
    }
}

/// The value as it can stand in a message; none when it is long or has parts.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Array(_) | Value::Object(_) => None,
        Value::String(text) if text.len() > SHOWN_BYTES_MAX => None,
        Value::Number(number) if number.as_str().len() > SHOWN_BYTES_MAX => None,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value.to_string()),
    }
}

/// A pointer as the fragment of a reference.
fn fragment(pointer: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@?".contains(&b);
    pointer.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
