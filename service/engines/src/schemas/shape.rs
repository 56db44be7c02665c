//! What values have a schema, without a word of any language.

use serde_json::Value;

use super::notes::cut;

/// The longest text on patterns of names, in bytes.
const PATTERNS_BYTES_MAX: usize = 2 * 1024;

/// The values that a schema takes. It can be wider than the schema, never narrower, but for two habits
/// of authors: a list of items by position means those items and no more, and an object with named
/// members means those.
#[derive(Debug, Clone)]
pub(crate) enum Shape<'a> {
    /// Anything; with a word on why no more is known, where there is one.
    Any(Option<String>),
    /// No value at all.
    Never,
    Null,
    Boolean,
    Integer,
    Number,
    String,
    /// Just this value, shown down to so many levels.
    Exactly(&'a Value, usize),
    /// A list; none when nothing is said of its items.
    List(Option<Box<Shape<'a>>>),
    /// A list by position.
    Tuple {
        /// The items, and whether each may be missing.
        items: Vec<(Shape<'a>, bool)>,
        /// What may follow.
        rest: Option<Box<Shape<'a>>>,
    },
    Object(Object<'a>),
    /// A type with a name, by its number among [`super::Shapes::named`].
    Named(usize),
    /// A value of any of these.
    OneOf(Vec<Shape<'a>>),
    /// A value of all of these at once.
    AllOf(Vec<Shape<'a>>),
}

impl Shape<'_> {
    /// Whether nothing is known of the value.
    pub(crate) fn is_any(&self) -> bool {
        match self {
            Shape::Any(_) => true,
            Shape::OneOf(shapes) => shapes.iter().any(Shape::is_any),
            Shape::AllOf(shapes) => shapes.iter().all(Shape::is_any),
            _ => false,
        }
    }
}

/// An object.
#[derive(Debug, Clone)]
pub(crate) struct Object<'a> {
    /// The members with names, in the schema's order.
    pub members: Vec<Member<'a>>,
    /// Members by the pattern of their name.
    pub patterns: Vec<(&'a str, Shape<'a>)>,
    /// Members of other names.
    pub further: Further<'a>,
}

impl Object<'_> {
    /// Whether members of other names are expressly allowed.
    pub(crate) fn is_open(&self) -> bool {
        !self.patterns.is_empty() || matches!(self.further, Further::Any | Further::Of(_))
    }

    /// Whether it says nothing of any member.
    pub(crate) fn says_nothing(&self) -> bool {
        self.members.is_empty() && matches!(self.further, Further::Unsaid)
    }

    /// What the patterns of names say, in words.
    pub(crate) fn patterns_text(&self) -> String {
        let names: Vec<_> = self.patterns.iter().map(|(pattern, _)| *pattern).collect();
        cut(&format!("keys that match {}", names.join(" or ")), PATTERNS_BYTES_MAX)
    }
}

/// What an object says of members without a name of their own.
#[derive(Debug, Clone)]
pub(crate) enum Further<'a> {
    /// Nothing.
    Unsaid,
    /// There are none.
    None,
    /// They can be anything.
    Any,
    /// They have this shape.
    Of(Box<Shape<'a>>),
}

/// A member of an object.
#[derive(Debug, Clone)]
pub(crate) struct Member<'a> {
    /// Its key.
    pub name: &'a str,
    /// What its schema says beside its shape, on one line; often empty.
    pub remark: String,
    /// Whether it is always there.
    pub is_required: bool,
    /// Its value.
    pub shape: Shape<'a>,
}
