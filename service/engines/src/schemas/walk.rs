//! JSON Schema as shapes (G4, G5, G9).
//!
//! Every `$ref` within a schema is a named type, so recursion and sharing cost nothing; a type can only
//! not be itself, and where a schema says so it is anything.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value};

use super::notes::{Remarks, cut};
use super::pointer::resolve;
use super::shape::{Further, Member, Object, Shape};
use super::type_names::TypeNames;

/// How many schemas one tool's declaration goes through.
const VISITS_MAX: usize = 20_000;
/// How many bytes of remarks and keys one tool's declaration has before it is given up.
const BYTES_MAX: usize = 64 * 1024;
/// How many types may be one another before the last is anything.
const CHAIN_MAX: usize = 16;
/// The longest remark inside a type, in bytes.
const REMARK_BYTES_MAX: usize = 2 * 1024;

/// How much of a schema is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Detail {
    /// How deep shapes nest before they are anything.
    pub depth_max: usize,
    /// Whether members have their remarks.
    pub has_remarks: bool,
}

/// Which schema of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Side {
    Input,
    Output,
}

/// A type with a name.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    pub name: String,
    side: Side,
    /// What its schema says beside its shape, on one line; often empty.
    pub remark: String,
    pub shape: Shape<'a>,
}

impl Named<'_> {
    /// Whether it is a type of arguments, not of results.
    pub(crate) fn is_input(&self) -> bool {
        self.side == Side::Input
    }
}

/// What a tool's schemas became.
#[derive(Debug)]
pub(crate) struct Shapes<'a> {
    pub input: Shape<'a>,
    pub output: Shape<'a>,
    /// The named types, in the order in which they were met.
    pub named: Vec<Named<'a>>,
}

/// Goes through the schemas of one tool; none when that is more than can be gone through.
pub(crate) fn walk<'a>(
    names: &mut TypeNames<'_>,
    detail: Detail,
    remarks: Remarks,
    (input, output): (&'a Value, &'a Value),
) -> Option<Shapes<'a>> {
    let mut walker = Walker {
        names,
        detail,
        remarks,
        roots: [input, output],
        met: Vec::new(),
        by_pointer: HashMap::new(),
        waiting: VecDeque::new(),
        n_chained: 0,
        n_visits: 0,
        n_bytes: 0,
    };
    let (input, output) = (walker.root(Side::Input), walker.root(Side::Output));
    walker.finish().map(|named| Shapes { input, output, named })
}

/// Where a schema stands.
#[derive(Debug, Clone, Copy)]
struct At {
    side: Side,
    /// How many objects, lists and alternatives it is in.
    depth: usize,
    /// In a named type and not inside an object or list of it: a type can't be itself.
    is_direct: bool,
}

impl At {
    fn inside(self) -> Self {
        Self { depth: self.depth + 1, is_direct: false, ..self }
    }

    fn beside(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }
}

/// A type that was referred to.
struct Met<'a> {
    name: String,
    side: Side,
    schema: &'a Value,
    state: State<'a>,
}

enum State<'a> {
    Waiting,
    Begun,
    Done(Shape<'a>),
}

struct Walker<'a, 'n, 't> {
    names: &'n mut TypeNames<'t>,
    detail: Detail,
    remarks: Remarks,
    roots: [&'a Value; 2],
    met: Vec<Met<'a>>,
    by_pointer: HashMap<(Side, String), usize>,
    waiting: VecDeque<usize>,
    n_chained: usize,
    n_visits: usize,
    n_bytes: usize,
}

impl<'a> Walker<'a, '_, '_> {
    /// The shape of a whole schema; its name where the schema refers to itself as a whole.
    fn root(&mut self, side: Side) -> Shape<'a> {
        let whole = self.shape(self.root_of(side), At { side, depth: 0, is_direct: false });
        self.by_pointer.get(&(side, String::new())).map_or(whole, |n| Shape::Named(*n))
    }

    /// Goes through what was referred to.
    fn finish(mut self) -> Option<Vec<Named<'a>>> {
        while let Some(n) = self.waiting.pop_front() {
            if matches!(self.met[n].state, State::Waiting) {
                self.go_through(n);
            }
        }
        if self.is_spent() {
            return None;
        }
        let named = std::mem::take(&mut self.met).into_iter().map(|Met { name, side, schema, state }| {
            let State::Done(shape) = state else { unreachable!("nothing waits any more") };
            Named { name, side, remark: self.remark(schema), shape }
        });
        Some(named.collect())
    }

    /// Whether there is more than can be shown: the rest is not worth going through.
    fn is_spent(&self) -> bool {
        self.n_visits > VISITS_MAX || self.n_bytes > BYTES_MAX
    }

    /// What a schema says beside its shape; empty where that isn't shown.
    fn remark(&self, schema: &Value) -> String {
        let remark = if self.detail.has_remarks { self.remarks.of(schema) } else { None };
        remark.map(|text| cut(&text, REMARK_BYTES_MAX)).unwrap_or_default()
    }

    fn root_of(&self, side: Side) -> &'a Value {
        self.roots[side as usize]
    }

    fn shape(&mut self, schema: &'a Value, at: At) -> Shape<'a> {
        let schema = match schema {
            Value::Bool(false) => return Shape::Never,
            Value::Object(schema) => schema,
            _ => return Shape::Any(None),
        };
        self.n_visits += 1;
        if self.is_spent() {
            return Shape::Any(None);
        }
        if at.depth > self.detail.depth_max {
            return Shape::Any(Some("too deep to show".to_owned()));
        }
        let mut parts = self.parts(schema, at);
        let whole = match parts.len() {
            1 => parts.remove(0),
            _ => Shape::AllOf(parts),
        };
        match schema.get("nullable") {
            Some(Value::Bool(true)) => Shape::OneOf(vec![whole, Shape::Null]),
            _ => whole,
        }
    }

    /// The shapes that a value has all of.
    fn parts(&mut self, schema: &'a Map<String, Value>, at: At) -> Vec<Shape<'a>> {
        let mut parts = Vec::new();
        if let Some(Value::String(reference)) = schema.get("$ref") {
            parts.push(self.reference(reference, at));
        }
        match (schema.get("const"), schema.get("enum")) {
            (Some(value), _) => parts.push(self.one_of(std::slice::from_ref(value), at)),
            (None, Some(Value::Array(values))) => parts.push(self.one_of(values, at)),
            _ => parts.extend(self.typed(schema, at)),
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(branches) = schema.get(keyword).and_then(Value::as_array).filter(|b| !b.is_empty()) {
                let branches = branches.iter().map(|branch| self.shape(branch, at.beside()));
                parts.push(Shape::OneOf(branches.collect()));
            }
        }
        for branch in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            parts.push(self.shape(branch, at.beside()));
        }
        parts
    }

    fn one_of(&mut self, values: &'a [Value], at: At) -> Shape<'a> {
        let depth_left = self.detail.depth_max.saturating_sub(at.depth);
        let mut left = VISITS_MAX.saturating_sub(self.n_visits + values.len());
        let is_counted = values.iter().all(|value| count(value, depth_left, &mut left));
        self.n_visits = if is_counted { VISITS_MAX - left } else { VISITS_MAX + 1 };
        match is_counted {
            true => Shape::OneOf(values.iter().map(|value| Shape::Exactly(value, depth_left)).collect()),
            false => Shape::Any(None),
        }
    }

    /// The shape by the `type` keyword, or by what only one type has.
    fn typed(&mut self, schema: &'a Map<String, Value>, at: At) -> Option<Shape<'a>> {
        let has = |keywords: &[&str]| keywords.iter().any(|keyword| schema.contains_key(*keyword));
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ if has(&["properties", "patternProperties", "additionalProperties"]) => vec!["object"],
            _ if has(&["items", "prefixItems"]) => vec!["array"],
            _ => return None,
        };
        let shapes = types.into_iter().map(|name| match name {
            "object" => Shape::Object(self.object(schema, at.inside())),
            "array" => self.array(schema, at.inside()),
            "string" => Shape::String,
            "integer" => Shape::Integer,
            "number" => Shape::Number,
            "boolean" => Shape::Boolean,
            "null" => Shape::Null,
            _ => Shape::Any(None),
        });
        let mut shapes: Vec<_> = shapes.collect();
        match shapes.len() {
            0 => None,
            1 => Some(shapes.remove(0)),
            _ => Some(Shape::OneOf(shapes)),
        }
    }

    fn object(&mut self, schema: &'a Map<String, Value>, at: At) -> Object<'a> {
        let required: Vec<&str> = match schema.get("required") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let is_required: std::collections::HashSet<&str> = required.iter().copied().collect();
        let properties = schema.get("properties").and_then(Value::as_object);
        let mut members = Vec::new();
        for (name, property) in properties.into_iter().flatten() {
            if self.is_spent() {
                break;
            }
            let remark = self.remark(property);
            self.n_bytes += remark.len() + name.len() + 8;
            let shape = self.shape(property, at);
            members.push(Member { name, remark, is_required: is_required.contains(name.as_str()), shape });
        }
        let mut seen = std::collections::HashSet::new();
        let is_named = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
        for name in required.into_iter().filter(|name| !is_named(name) && seen.insert(*name)) {
            self.n_bytes += name.len() + 8;
            members.push(Member { name, remark: String::new(), is_required: true, shape: Shape::Any(None) });
        }
        let patterns = schema.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        let patterns = patterns.map(|(pattern, schema)| (pattern.as_str(), self.shape(schema, at))).collect();
        let further = match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => Further::None,
            Some(Value::Bool(true)) => Further::Any,
            Some(schema @ Value::Object(_)) => Further::Of(Box::new(self.shape(schema, at))),
            _ => Further::Unsaid,
        };
        Object { members, patterns, further }
    }

    fn array(&mut self, schema: &'a Map<String, Value>, at: At) -> Shape<'a> {
        match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(first)), rest) => self.tuple(schema, first, rest, at),
            (_, Some(Value::Array(first))) => self.tuple(schema, first, schema.get("additionalItems"), at),
            (_, Some(items)) => Shape::List(Some(Box::new(self.shape(items, at)))),
            (_, None) => Shape::List(None),
        }
    }

    /// A list by position. Without a word on further items there are none.
    fn tuple(
        &mut self,
        schema: &Map<String, Value>,
        first: &'a [Value],
        rest: Option<&'a Value>,
        at: At,
    ) -> Shape<'a> {
        let n_required = schema.get("minItems").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let items = first.iter().enumerate().map(|(n, item)| (self.shape(item, at), n as u64 >= n_required));
        let items = items.collect();
        let rest = match rest {
            None | Some(Value::Bool(false)) => None,
            Some(rest) => Some(Box::new(self.shape(rest, at))),
        };
        Shape::Tuple { items, rest }
    }

    fn reference(&mut self, reference: &str, at: At) -> Shape<'a> {
        let Some((pointer, schema)) = resolve(self.root_of(at.side), reference) else {
            return Shape::Any(Some(format!("$ref {reference:?}")));
        };
        let known = self.by_pointer.get(&(at.side, pointer.clone())).copied();
        let n = known.unwrap_or_else(|| self.meet(at.side, pointer, schema));
        match self.met[n].state {
            State::Waiting if at.is_direct && self.n_chained < CHAIN_MAX => {
                self.n_chained += 1;
                self.go_through(n);
                self.n_chained -= 1;
            }
            State::Begun | State::Waiting if at.is_direct => {
                return Shape::Any(Some("refers to itself".to_owned()));
            }
            State::Waiting | State::Begun | State::Done(_) => {}
        }
        Shape::Named(n)
    }

    fn meet(&mut self, side: Side, pointer: String, schema: &'a Value) -> usize {
        let n = self.met.len();
        let word = pointer.rsplit('/').next().unwrap_or_default();
        let name = self.names.free(word, if side == Side::Input { "Args" } else { "Result" });
        self.met.push(Met { name, side, schema, state: State::Waiting });
        self.by_pointer.insert((side, pointer), n);
        self.waiting.push_back(n);
        n
    }

    fn go_through(&mut self, n: usize) {
        let Met { side, schema, .. } = self.met[n];
        self.met[n].state = State::Begun;
        let shape = self.shape(schema, At { side, depth: 0, is_direct: true });
        self.met[n].state = State::Done(shape);
    }
}

/// Takes one from `left` for each value in a value, down to so many levels; false when too few are left.
fn count(value: &Value, depth_left: usize, left: &mut usize) -> bool {
    let n_inside = value.as_array().map_or(0, Vec::len) + value.as_object().map_or(0, Map::len);
    if n_inside >= *left {
        return false;
    }
    *left -= 1;
    match (value, depth_left.checked_sub(1)) {
        (Value::Array(items), Some(depth)) => items.iter().all(|item| count(item, depth, left)),
        (Value::Object(entries), Some(depth)) => entries.values().all(|item| count(item, depth, left)),
        _ => true,
    }
}
