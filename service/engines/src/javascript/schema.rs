//! JSON Schema as TypeScript types (G4 to G6, G9).
//!
//! A type shows what a model has to know to write a value: it can be wider than the schema, never
//! narrower, but for two habits of authors: a list of items by position means those items and no
//! more, and an object with named properties means those. Every `$ref` within the schema is a named
//! type, so recursion and sharing cost nothing; a type can only not be itself, and where a schema
//! says so it is `unknown`.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use super::comments::{self, doc, inline};
use super::is_identifier;
use super::literals::{key, literal};
use super::pointer::resolve;
use super::types::{Type, intersection, union};

/// How many schemas one tool's declaration goes through.
const VISITS_MAX: usize = 20_000;
/// How many bytes of comments and keys one tool's declaration has before it is given up.
const BYTES_MAX: usize = 64 * 1024;
/// How many types may be one another before the last is `unknown`.
const CHAIN_MAX: usize = 16;
/// The longest doc comment inside a type, in bytes.
const DOC_BYTES_MAX: usize = 2 * 1024;
/// The longest type of further keys that is spelled out beside named keys, in bytes.
const INDEX_BYTES_MAX: usize = 400;

/// How much of a schema is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detail {
    /// How deep types nest before they are `unknown`.
    pub depth_max: usize,
    /// Whether properties have their comments.
    pub has_comments: bool,
}

/// Which schema of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Input,
    Output,
}

/// Where a schema stands.
#[derive(Debug, Clone, Copy)]
struct At {
    side: Side,
    /// How many objects, lists and alternatives it is in.
    depth: usize,
    /// How far its lines are indented.
    level: usize,
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

    fn indent(self) -> String {
        "  ".repeat(self.level)
    }
}

/// A type with a name.
struct Named<'a> {
    name: String,
    side: Side,
    schema: &'a Value,
    state: State,
}

enum State {
    Waiting,
    Rendering,
    Done(String),
}

/// What a tool's schemas became.
pub(super) struct Rendered {
    /// The declarations of the named types.
    pub types: String,
    /// Their names.
    pub names: Vec<String>,
}

/// Renders the schemas of one tool.
pub(super) struct Renderer<'a> {
    alias: &'a str,
    taken: &'a HashSet<String>,
    detail: Detail,
    roots: [&'a Value; 2],
    named: Vec<Named<'a>>,
    /// How many types wanted each name.
    wanted: HashMap<String, usize>,
    used: HashSet<String>,
    by_pointer: HashMap<(Side, String), usize>,
    waiting: VecDeque<usize>,
    n_chained: usize,
    n_visits: usize,
    n_bytes: usize,
}

impl<'a> Renderer<'a> {
    pub(super) fn new(
        alias: &'a str,
        taken: &'a HashSet<String>,
        detail: Detail,
        input: &'a Value,
        output: &'a Value,
    ) -> Self {
        Self {
            alias,
            taken,
            detail,
            roots: [input, output],
            named: Vec::new(),
            wanted: HashMap::new(),
            used: HashSet::new(),
            by_pointer: HashMap::new(),
            waiting: VecDeque::new(),
            n_chained: 0,
            n_visits: 0,
            n_bytes: 0,
        }
    }

    /// The type of a whole schema; its name where the schema refers to itself as a whole.
    pub(super) fn root(&mut self, side: Side) -> String {
        let at = At { side, depth: 0, level: 1, is_direct: false };
        let whole = self.render(self.root_of(side), at);
        match self.by_pointer.get(&(side, String::new())) {
            Some(n) => self.named[*n].name.clone(),
            None => whole.text,
        }
    }

    /// Renders what was referred to; none when that is more than can be gone through.
    pub(super) fn finish(mut self) -> Option<Rendered> {
        while let Some(n) = self.waiting.pop_front() {
            if matches!(self.named[n].state, State::Waiting) {
                self.render_named(n);
            }
        }
        if self.is_spent() {
            return None;
        }
        let mut types = String::new();
        for named in &self.named {
            let State::Done(text) = &named.state else { unreachable!("nothing waits any more") };
            if self.detail.has_comments {
                types += &doc(
                    comments::description(named.schema),
                    &comments::notes(named.schema),
                    DOC_BYTES_MAX,
                    0,
                );
            }
            types += &format!("type {} = {text};\n", named.name);
        }
        Some(Rendered { types, names: self.named.into_iter().map(|named| named.name).collect() })
    }

    /// Whether there is more than can be shown: the rest is not worth going through.
    fn is_spent(&self) -> bool {
        self.n_visits > VISITS_MAX || self.n_bytes > BYTES_MAX
    }

    fn root_of(&self, side: Side) -> &'a Value {
        self.roots[side as usize]
    }

    fn render(&mut self, schema: &'a Value, at: At) -> Type {
        let schema = match schema {
            Value::Bool(false) => return Type::atom("never"),
            Value::Object(schema) => schema,
            _ => return Type::unknown(),
        };
        self.n_visits += 1;
        if self.is_spent() {
            return Type::unknown();
        }
        if at.depth > self.detail.depth_max {
            return Type::atom(format!("unknown {}", inline("too deep to show")));
        }
        let whole = intersection(self.parts(schema, at));
        match schema.get("nullable") {
            Some(Value::Bool(true)) => union(vec![whole, Type::atom("null")]),
            _ => whole,
        }
    }

    /// The types that a value has all of.
    fn parts(&mut self, schema: &'a Map<String, Value>, at: At) -> Vec<Type> {
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
                parts.push(union(branches.iter().map(|branch| self.render(branch, at.beside())).collect()));
            }
        }
        for branch in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            parts.push(self.render(branch, at.beside()));
        }
        parts
    }

    fn one_of(&mut self, values: &[Value], at: At) -> Type {
        let depth_left = self.detail.depth_max.saturating_sub(at.depth);
        let mut left = VISITS_MAX.saturating_sub(self.n_visits + values.len());
        let types = values.iter().map(|value| (left > 0).then(|| literal(value, depth_left, &mut left)));
        let types: Option<Vec<_>> = types.collect();
        self.n_visits = if left == 0 { VISITS_MAX + 1 } else { VISITS_MAX - left };
        types.map_or_else(Type::unknown, union)
    }

    /// The type by the `type` keyword, or by what only one type has.
    fn typed(&mut self, schema: &'a Map<String, Value>, at: At) -> Option<Type> {
        let has = |keywords: &[&str]| keywords.iter().any(|keyword| schema.contains_key(*keyword));
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ if has(&["properties", "patternProperties", "additionalProperties"]) => vec!["object"],
            _ if has(&["items", "prefixItems"]) => vec!["array"],
            _ => return None,
        };
        let types = types.into_iter().map(|name| match name {
            "object" => self.object(schema, at),
            "array" => self.array(schema, at),
            "string" => Type::atom("string"),
            "integer" | "number" => Type::atom("number"),
            "boolean" => Type::atom("boolean"),
            "null" => Type::atom("null"),
            _ => Type::unknown(),
        });
        Some(types.collect::<Vec<_>>()).filter(|types| !types.is_empty()).map(union)
    }

    fn object(&mut self, schema: &'a Map<String, Value>, at: At) -> Type {
        let inside = At { level: at.level + 1, ..at.inside() };
        let required = names(schema.get("required"));
        let properties = schema.get("properties").and_then(Value::as_object);
        let (mut lines, mut types) = (String::new(), Vec::new());
        let mut n_optional = 0;
        for (name, property) in properties.into_iter().flatten() {
            if self.is_spent() {
                break;
            }
            let is_required = required.contains(&name.as_str());
            let kind = self.render(property, inside);
            lines += &self.member(property, name, is_required, &kind.text, inside);
            n_optional += usize::from(!is_required);
            types.push(kind);
        }
        let is_named = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
        for name in required.into_iter().filter(|name| !is_named(name)) {
            lines += &format!("{}{}: unknown;\n", inside.indent(), key(name));
            types.push(Type::unknown());
        }
        if n_optional > 0 {
            types.push(Type::atom("undefined"));
        }
        let further = self.further_keys(schema, types, inside);
        match (lines.is_empty(), &further) {
            (true, None) if schema.get("additionalProperties") == Some(&Value::Bool(false)) => {
                Type::atom("Record<string, never>")
            }
            (true, None) => Type::any_object(),
            _ => Type::atom(format!("{{\n{lines}{}{}}}", further.unwrap_or_default(), at.indent())),
        }
    }

    fn member(&mut self, schema: &Value, name: &str, is_required: bool, kind: &str, at: At) -> String {
        let comment = match self.detail.has_comments {
            true => doc(comments::description(schema), &comments::notes(schema), DOC_BYTES_MAX, at.level),
            false => String::new(),
        };
        self.n_bytes += comment.len() + name.len();
        let optional = if is_required { "" } else { "?" };
        format!("{comment}{}{}{optional}: {kind};\n", at.indent(), key(name))
    }

    /// The line for keys that are not named. TypeScript asks that it covers the named ones too.
    fn further_keys(&mut self, schema: &'a Map<String, Value>, named: Vec<Type>, at: At) -> Option<String> {
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let patterns = patterns.filter(|patterns| !patterns.is_empty());
        let mut types = Vec::new();
        for pattern in patterns.into_iter().flat_map(Map::values) {
            types.push(self.render(pattern, at));
        }
        match schema.get("additionalProperties") {
            Some(Value::Bool(true)) if named.is_empty() && types.is_empty() => return None,
            Some(Value::Bool(true)) => types.push(Type::unknown()),
            Some(schema @ Value::Object(_)) => types.push(self.render(schema, at)),
            _ if types.is_empty() => return None,
            _ => {}
        }
        let of_patterns = patterns.map(|patterns| {
            let names: Vec<_> = patterns.keys().map(String::as_str).collect();
            format!("keys that match {}", names.join(" or "))
        });
        let further = union(types);
        let all = union(std::iter::once(further.clone()).chain(named).collect());
        let (kind, note) = if all.text.len() <= INDEX_BYTES_MAX || all.text == further.text {
            (all, of_patterns)
        } else {
            (Type::unknown(), of_patterns.or_else(|| Some("further keys".to_owned())))
        };
        let comment = doc(&note.unwrap_or_default(), &[], DOC_BYTES_MAX, at.level);
        Some(format!("{comment}{}[key: string]: {};\n", at.indent(), kind.text))
    }

    fn array(&mut self, schema: &'a Map<String, Value>, at: At) -> Type {
        match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(first)), rest) => self.tuple(schema, first, rest, at),
            (_, Some(Value::Array(first))) => self.tuple(schema, first, schema.get("additionalItems"), at),
            (_, Some(items)) => Type::atom(format!("Array<{}>", self.render(items, at.inside()).text)),
            (_, None) => Type::atom("unknown[]"),
        }
    }

    /// A list by position. Without a word on further items there are none.
    fn tuple(
        &mut self,
        schema: &Map<String, Value>,
        first: &'a [Value],
        rest: Option<&'a Value>,
        at: At,
    ) -> Type {
        let n_required = schema.get("minItems").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let mut items = Vec::new();
        for (n, item) in first.iter().enumerate() {
            let item = self.render(item, at.inside());
            let is_optional = n as u64 >= n_required;
            items.push(if is_optional { format!("({})?", item.text) } else { item.text });
        }
        match rest {
            None | Some(Value::Bool(false)) => {}
            Some(rest) => items.push(format!("...Array<{}>", self.render(rest, at.inside()).text)),
        }
        Type::atom(format!("[{}]", items.join(", ")))
    }

    fn reference(&mut self, reference: &str, at: At) -> Type {
        let Some((pointer, schema)) = resolve(self.root_of(at.side), reference) else {
            return Type::atom(format!("unknown {}", inline(&format!("$ref {reference:?}"))));
        };
        let known = self.by_pointer.get(&(at.side, pointer.clone())).copied();
        let n = known.unwrap_or_else(|| self.name(at.side, pointer, schema));
        match self.named[n].state {
            State::Waiting if at.is_direct && self.n_chained < CHAIN_MAX => {
                self.n_chained += 1;
                self.render_named(n);
                self.n_chained -= 1;
            }
            State::Rendering | State::Waiting if at.is_direct => {
                return Type::atom(format!("unknown {}", inline("refers to itself")));
            }
            State::Waiting | State::Rendering | State::Done(_) => {}
        }
        Type::atom(self.named[n].name.clone())
    }

    fn name(&mut self, side: Side, pointer: String, schema: &'a Value) -> usize {
        let n = self.named.len();
        let name = self.free_name(side, &pointer);
        self.named.push(Named { name, side, schema, state: State::Waiting });
        self.by_pointer.insert((side, pointer), n);
        self.waiting.push_back(n);
        n
    }

    /// A name for a type that no other has: the tool's and the last word of the pointer.
    fn free_name(&mut self, side: Side, pointer: &str) -> String {
        let last = pointer.rsplit('/').next().unwrap_or_default();
        let word: String = last.chars().filter(|c| is_identifier(&format!("_{c}"))).take(64).collect();
        let word = match (word.is_empty(), side) {
            (false, _) => word,
            (true, Side::Input) => "Args".to_owned(),
            (true, Side::Output) => "Result".to_owned(),
        };
        let name = format!("{}_{word}", self.alias);
        loop {
            let n_wanted = self.wanted.entry(name.clone()).or_default();
            *n_wanted += 1;
            let name = if *n_wanted == 1 { name.clone() } else { format!("{name}_{n_wanted}") };
            // A number at the end of one name can make it the name of another.
            if !self.taken.contains(&name) && self.used.insert(name.clone()) {
                return name;
            }
        }
    }

    fn render_named(&mut self, n: usize) {
        let Named { side, schema, .. } = self.named[n];
        self.named[n].state = State::Rendering;
        let kind = self.render(schema, At { side, depth: 0, level: 0, is_direct: true });
        self.named[n].state = State::Done(kind.text);
    }
}

fn names(required: Option<&Value>) -> Vec<&str> {
    required.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}
