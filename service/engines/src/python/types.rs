//! Python's types as text, and how they combine.

use serde_json::Value;

use super::words::Words;
use crate::schemas::cut;
use crate::text::quoted;

/// The longest note on a type, in bytes.
const NOTE_BYTES_MAX: usize = 200;

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Type {
    /// As it is written.
    Plain(String),
    /// Anything, with a word on why.
    Any(String),
    /// No value at all.
    Never(String),
    /// A value that can be written in a `Literal`.
    Literal(String),
    /// Any of several types, none of which is one.
    Union(Vec<Type>),
}

impl Words {
    pub(super) fn plain(&self, word: &str) -> Type {
        Type::Plain(self.write(word))
    }

    pub(super) fn any(&self) -> Type {
        Type::Any(self.write("Any"))
    }

    /// A type as text.
    pub(super) fn text(&self, kind: &Type) -> String {
        match kind {
            Type::Plain(text) | Type::Any(text) | Type::Never(text) => text.clone(),
            Type::Literal(value) => format!("{}[{value}]", self.write("Literal")),
            Type::Union(types) => self.union_text(types),
        }
    }

    /// Literals stand together, where the first of them is.
    fn union_text(&self, types: &[Type]) -> String {
        let literals: Vec<&str> = types.iter().filter_map(Type::as_literal).collect();
        let mut texts = Vec::new();
        let mut has_literals = false;
        for kind in types {
            if kind.as_literal().is_none() {
                texts.push(self.text(kind));
            } else if !has_literals {
                has_literals = true;
                texts.push(format!("{}[{}]", self.write("Literal"), literals.join(", ")));
            }
        }
        texts.join(" | ")
    }

    /// A type with a note on what it can't say. A note that would need escapes in escapes is left out.
    pub(super) fn noted(&self, kind: &Type, note: &str) -> Type {
        let (text, note) = (self.text(kind), quoted(&cut(note, NOTE_BYTES_MAX)));
        if note.contains('\\') && text.contains('\\') {
            return kind.clone();
        }
        let text = format!("{}[{text}, {note}]", self.write("Annotated"));
        if matches!(kind, Type::Any(_)) { Type::Any(text) } else { Type::Plain(text) }
    }

    /// A list of these.
    pub(super) fn list(&self, item: &Type) -> Type {
        Type::Plain(format!("{}[{}]", self.write("list"), self.text(item)))
    }

    /// An object of any keys whose values are these.
    pub(super) fn dict(&self, item: &Type) -> Type {
        Type::Plain(format!("{}[{}, {}]", self.write("dict"), self.write("str"), self.text(item)))
    }

    /// The type of this value: of just this one where Python has a way to say that.
    pub(super) fn exactly(&self, value: &Value) -> Type {
        match value {
            Value::Null => Type::Plain("None".to_owned()),
            Value::Bool(true) => Type::Literal("True".to_owned()),
            Value::Bool(false) => Type::Literal("False".to_owned()),
            Value::Number(number) => {
                let text = number.to_string();
                let is_integer = text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
                if is_integer { Type::Literal(text) } else { self.noted(&self.plain("float"), &text) }
            }
            Value::String(text) => Type::Literal(quoted(text)),
            Value::Array(_) => self.noted(&self.list(&self.any()), &value.to_string()),
            Value::Object(_) => self.noted(&self.dict(&self.any()), &value.to_string()),
        }
    }

    /// A value of one of these types.
    pub(super) fn union(&self, types: Vec<Type>) -> Type {
        let mut seen = std::collections::HashSet::new();
        let mut flat = Vec::new();
        for kind in types {
            let parts = if let Type::Union(parts) = kind { parts } else { vec![kind] };
            for part in parts {
                if matches!(part, Type::Any(_)) {
                    return part;
                }
                if !matches!(part, Type::Never(_)) && seen.insert(self.text(&part)) {
                    flat.push(part);
                }
            }
        }
        match flat.len() {
            0 => Type::Never(self.write("Never")),
            1 => flat.remove(0),
            _ => Type::Union(flat),
        }
    }
}

impl Type {
    fn as_literal(&self) -> Option<&str> {
        if let Type::Literal(value) = self { Some(value) } else { None }
    }
}
