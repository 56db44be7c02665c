//! Types as text, and how they combine.

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Type {
    /// As it is written.
    pub text: String,
    /// Needs parentheses in an intersection.
    is_union: bool,
}

impl Type {
    /// A type that stands by itself.
    pub(super) fn atom(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_union: false }
    }

    pub(super) fn unknown() -> Self {
        Self::atom("unknown")
    }

    /// An object of which nothing is known.
    pub(super) fn any_object() -> Self {
        Self::atom("Record<string, unknown>")
    }

    fn is_unknown(&self) -> bool {
        self.text == "unknown" || self.text.starts_with("unknown /*")
    }
}

/// A value of one of these types.
pub(super) fn union(types: Vec<Type>) -> Type {
    if let Some(unknown) = types.iter().find(|kind| kind.is_unknown()) {
        return unknown.clone();
    }
    let mut types = without_doubles(types);
    types.retain(|kind| kind.text != "never");
    match types.len() {
        0 => Type::atom("never"),
        1 => types.remove(0),
        _ => Type { text: joined(types.iter().map(|kind| kind.text.clone()), " | "), is_union: true },
    }
}

/// A value of all of these types at once.
pub(super) fn intersection(types: Vec<Type>) -> Type {
    let unknown = types.iter().find(|kind| kind.is_unknown()).cloned();
    let mut types = without_doubles(types);
    types.retain(|kind| !kind.is_unknown());
    if types.len() > 1 {
        types.retain(|kind| *kind != Type::any_object());
    }
    match types.len() {
        0 => unknown.unwrap_or_else(Type::unknown),
        1 => types.remove(0),
        _ => {
            let text =
                |kind: &Type| if kind.is_union { format!("({})", kind.text) } else { kind.text.clone() };
            Type::atom(joined(types.iter().map(text), " & "))
        }
    }
}

fn joined(texts: impl Iterator<Item = String>, between: &str) -> String {
    texts.collect::<Vec<_>>().join(between)
}

fn without_doubles(types: Vec<Type>) -> Vec<Type> {
    let mut seen = std::collections::HashSet::new();
    types.into_iter().filter(|kind| seen.insert(kind.text.clone())).collect()
}
