//! Types as text, and how they combine, in languages that write `|` and `&` between them.

use std::collections::HashSet;

/// A language's words for types that combine in a way of their own.
#[derive(Debug)]
pub(crate) struct Notation {
    /// Anything.
    pub any: &'static str,
    /// What `any` with a word on why begins with.
    pub any_noted: &'static str,
    /// No value at all.
    pub never: &'static str,
    /// An object of which nothing is known, where another type says that better.
    pub any_object: Option<&'static str>,
}

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Type {
    /// As it is written.
    pub text: String,
    /// Needs parentheses in an intersection.
    is_union: bool,
}

impl Type {
    /// A type that stands by itself.
    pub(crate) fn atom(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_union: false }
    }
}

impl Notation {
    /// A value of one of these types.
    pub(crate) fn union(&self, types: Vec<Type>) -> Type {
        if let Some(any) = types.iter().find(|kind| self.is_any(kind)) {
            return any.clone();
        }
        let mut types = without_doubles(types);
        types.retain(|kind| kind.text != self.never);
        match types.len() {
            0 => Type::atom(self.never),
            1 => types.remove(0),
            _ => Type { text: joined(types.into_iter().map(|kind| kind.text), " | "), is_union: true },
        }
    }

    /// A value of all of these types at once.
    pub(crate) fn intersection(&self, types: Vec<Type>) -> Type {
        let any = types.iter().find(|kind| self.is_any(kind)).cloned();
        let mut types = without_doubles(types);
        types.retain(|kind| !self.is_any(kind));
        if types.len() > 1 {
            types.retain(|kind| Some(kind.text.as_str()) != self.any_object);
        }
        match types.len() {
            0 => any.unwrap_or_else(|| Type::atom(self.any)),
            1 => types.remove(0),
            _ => {
                let text = |kind: Type| if kind.is_union { format!("({})", kind.text) } else { kind.text };
                Type::atom(joined(types.into_iter().map(text), " & "))
            }
        }
    }

    fn is_any(&self, kind: &Type) -> bool {
        kind.text == self.any || kind.text.starts_with(self.any_noted)
    }
}

fn joined(texts: impl Iterator<Item = String>, between: &str) -> String {
    texts.collect::<Vec<_>>().join(between)
}

fn without_doubles(types: Vec<Type>) -> Vec<Type> {
    let mut seen = HashSet::new();
    types.into_iter().filter(|kind| seen.insert(kind.text.clone())).collect()
}
