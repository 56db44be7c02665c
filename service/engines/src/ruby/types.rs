//! Values and shapes as types in the words of RBS, for comments.

use serde_json::Value;

use crate::notation::{Notation, Type};
use crate::schemas::{Further, Member, Named, Object, Shape, cut};
use crate::text::quoted;

/// The longest note inside a type, in bytes.
const NOTE_BYTES_MAX: usize = 200;

const NOTATION: Notation =
    Notation { any: "untyped", any_noted: "untyped (", never: "bot", any_object: None };

/// Which way values go: arguments are written with symbols, results have keys that are strings (J6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    In,
    Out,
}

/// Writes types.
pub(super) struct Types<'r, 'a> {
    pub named: &'r [Named<'a>],
}

impl Types<'_, '_> {
    /// A shape as a type whose lines are so far indented.
    pub(super) fn kind(&self, shape: &Shape<'_>, way: Way, level: usize) -> Type {
        let several = |shapes: &[Shape<'_>]| shapes.iter().map(|one| self.kind(one, way, level)).collect();
        match shape {
            Shape::Any(None) => Type::atom(NOTATION.any),
            Shape::Any(Some(why)) => Type::atom(format!("untyped ({})", cut(why, NOTE_BYTES_MAX))),
            Shape::Never => Type::atom("bot"),
            Shape::Null => Type::atom("nil"),
            Shape::Boolean => Type::atom("bool"),
            Shape::Integer => Type::atom("Integer"),
            Shape::Number => Type::atom("Numeric"),
            Shape::String => Type::atom("String"),
            Shape::Exactly(value, depth) => Type::atom(literal(value, way, *depth)),
            Shape::List(None) => Type::atom("Array[untyped]"),
            Shape::List(Some(item)) => Type::atom(format!("Array[{}]", self.kind(item, way, level).text)),
            Shape::Tuple { items, rest } => self.tuple(items, rest.as_deref(), way, level),
            Shape::Object(object) => self.object(object, way, level),
            Shape::Named(n) => Type::atom(self.named[*n].name.clone()),
            Shape::OneOf(shapes) => NOTATION.union(several(shapes)),
            Shape::AllOf(shapes) => NOTATION.intersection(several(shapes)),
        }
    }

    fn object(&self, object: &Object<'_>, way: Way, level: usize) -> Type {
        let further = self.further(object, way, level + 1);
        if object.members.is_empty() {
            return match further {
                Some(kind) => Type::atom(format!("Hash[String, {kind}]")),
                None if matches!(object.further, Further::None) => Type::atom("{}"),
                None => Type::atom("Hash[String, untyped]"),
            };
        }
        let mut lines: String =
            object.members.iter().map(|member| self.member(member, way, level + 1)).collect();
        if let Some(kind) = further {
            lines += &format!("{}String => {kind},\n", "  ".repeat(level + 1));
        }
        Type::atom(format!("{{\n{lines}{}}}", "  ".repeat(level)))
    }

    fn member(&self, member: &Member<'_>, way: Way, level: usize) -> String {
        let indent = "  ".repeat(level);
        let remark = match &member.remark[..] {
            "" => String::new(),
            text => format!("{indent}# {text}\n"),
        };
        let optional = if member.is_required { "" } else { "?" };
        let kind = self.kind(&member.shape, way, level).text;
        format!("{remark}{indent}{optional}{}{kind},\n", key(member.name, way))
    }

    /// The type of members without a name of their own.
    fn further(&self, object: &Object<'_>, way: Way, level: usize) -> Option<String> {
        let mut types: Vec<_> = object.patterns.iter().map(|(_, one)| self.kind(one, way, level)).collect();
        match &object.further {
            Further::Any => types.push(Type::atom(NOTATION.any)),
            Further::Of(shape) => types.push(self.kind(shape, way, level)),
            Further::None | Further::Unsaid => {}
        }
        let note = if object.patterns.is_empty() { String::new() } else { object.patterns_text() };
        let note = if note.is_empty() { note } else { format!(" ({note})") };
        (!types.is_empty()).then(|| NOTATION.union(types).text + &note)
    }

    fn tuple(&self, items: &[(Shape<'_>, bool)], rest: Option<&Shape<'_>>, way: Way, level: usize) -> Type {
        let item = |(shape, is_optional): &(Shape<'_>, bool)| {
            let text = self.kind(shape, way, level).text;
            if *is_optional { format!("?({text})") } else { text }
        };
        let mut items: Vec<_> = items.iter().map(item).collect();
        items.extend(rest.map(|rest| format!("*{}", self.kind(rest, way, level).text)));
        Type::atom(format!("[{}]", items.join(", ")))
    }
}

/// A key with what stands between it and its type.
pub(super) fn key(name: &str, way: Way) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_label =
        name.chars().all(is_word) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    match way {
        Way::In if is_label => format!("{name}: "),
        Way::In => format!("{}: ", string(name)),
        Way::Out => format!("{} => ", string(name)),
    }
}

/// A string as a program would write it.
pub(super) fn string(text: &str) -> String {
    ["{", "$", "@"]
        .iter()
        .fold(quoted(text), |text, next| text.replace(&format!("#{next}"), &format!("\\#{next}")))
}

/// A value as a program would write it, down to so many levels.
fn literal(value: &Value, way: Way, depth_left: usize) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::String(text) => string(text),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) if depth_left == 0 => "untyped (too deep to show)".to_owned(),
        Value::Array(items) => {
            let items = items.iter().map(|item| literal(item, way, depth_left - 1));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        Value::Object(entries) => {
            let entry =
                |(name, value): (&String, &Value)| key(name, way) + &literal(value, way, depth_left - 1);
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}
