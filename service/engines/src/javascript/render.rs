//! Tools and the shapes of their values as TypeScript (G4 to G7).

use super::literals::{key, literal};
use crate::declare::{Dialect, Documented};
use crate::notation::{Notation, Type};
use crate::schemas::{Further, Member, Named, Object, Remarks, Shape, Shapes, TypeNames, cut};

/// The longest type of further keys that is spelled out beside named keys, in bytes.
const INDEX_BYTES_MAX: usize = 400;
/// The longest comment inside a type, in bytes.
const INLINE_BYTES_MAX: usize = 200;

/// An object of which nothing is known.
const ANY_OBJECT: &str = "Record<string, unknown>";

const NOTATION: Notation =
    Notation { any: "unknown", any_noted: "unknown /*", never: "never", any_object: Some(ANY_OBJECT) };

const HEAD: &str = "type CallOptions = { signal?: AbortSignal };\n";
const BEGIN: &str = "\ndeclare const tools: {\n";
const END: &str = "  /** Calls a tool by its name in the catalog or here. */
  call(name: string, args?: object, options?: CallOptions): Promise<unknown>;
};
";

/// Declares tools in TypeScript.
pub(crate) struct TypeScript;

impl Dialect for TypeScript {
    fn frame(&self) -> [String; 3] {
        [HEAD, BEGIN, END].map(str::to_owned)
    }

    fn remarks(&self) -> Remarks {
        Remarks { says_integer: true }
    }

    fn own_types(&self) -> &'static [&'static str] {
        &["AbortController", "AbortSignal", "Array", "CallOptions", "Error", "Promise", "Record", "ToolError"]
    }

    fn short(&self, alias: &str, about: &str) -> String {
        let args = "args?: Record<string, unknown>, options?: CallOptions";
        format!("{}  {}({args}): Promise<unknown>;\n", doc(about, 1), method_name(alias))
    }

    fn tool(
        &self,
        tool: &Documented<'_>,
        shapes: &Shapes<'_>,
        _: &mut TypeNames<'_>,
        types: &mut String,
    ) -> String {
        let render = Render { named: &shapes.named };
        for named in &shapes.named {
            *types += &doc(&named.remark, 0);
            *types += &format!("type {} = {};\n", named.name, render.kind(&named.shape, 0).text);
        }
        let args = match render.kind(&shapes.input, 1) {
            kind if kind == Type::atom(NOTATION.any) => Type::atom(ANY_OBJECT),
            kind => kind,
        };
        let result = render.kind(&shapes.output, 1);
        let about = match &tool.returns {
            Some(returns) => format!("{} Returns: {returns}", tool.doc),
            None => tool.doc.clone(),
        };
        let optional = if tool.may_be_empty { "?" } else { "" };
        let args = format!("args{optional}: {}, options?: CallOptions", args.text);
        let name = method_name(tool.alias);
        format!("{}  {name}({args}): Promise<{}>;\n", doc(&about, 1), result.text)
    }
}

/// `new` before a parenthesis would be a constructor.
fn method_name(alias: &str) -> &str {
    if alias == "new" { "\"new\"" } else { alias }
}

/// A doc comment on a line of its own, its end inside it neutralised; nothing when there is nothing to
/// say.
fn doc(text: &str, level: usize) -> String {
    match text.trim() {
        "" => String::new(),
        text => format!("{}/** {} */\n", "  ".repeat(level), text.replace("*/", "*\\/")),
    }
}

/// A comment inside a type.
pub(super) fn inline(text: &str) -> String {
    format!("/* {} */", cut(text, INLINE_BYTES_MAX).replace("*/", "*\\/"))
}

struct Render<'r, 'a> {
    named: &'r [Named<'a>],
}

impl Render<'_, '_> {
    /// A shape as a type whose lines are so far indented.
    fn kind(&self, shape: &Shape<'_>, level: usize) -> Type {
        let several = |shapes: &[Shape<'_>]| shapes.iter().map(|shape| self.kind(shape, level)).collect();
        match shape {
            Shape::Any(None) => Type::atom(NOTATION.any),
            Shape::Any(Some(why)) => Type::atom(format!("unknown {}", inline(why))),
            Shape::Never => Type::atom("never"),
            Shape::Null => Type::atom("null"),
            Shape::Boolean => Type::atom("boolean"),
            Shape::Integer | Shape::Number => Type::atom("number"),
            Shape::String => Type::atom("string"),
            Shape::Exactly(value, depth) => literal(value, *depth),
            Shape::List(None) => Type::atom("unknown[]"),
            Shape::List(Some(item)) => Type::atom(format!("Array<{}>", self.kind(item, level).text)),
            Shape::Tuple { items, rest } => self.tuple(items, rest.as_deref(), level),
            Shape::Object(object) => self.object(object, level),
            Shape::Named(n) => Type::atom(self.named[*n].name.clone()),
            Shape::OneOf(shapes) => NOTATION.union(several(shapes)),
            Shape::AllOf(shapes) => NOTATION.intersection(several(shapes)),
        }
    }

    fn object(&self, object: &Object<'_>, level: usize) -> Type {
        let (mut lines, mut types) = (String::new(), Vec::new());
        for member in &object.members {
            let kind = self.kind(&member.shape, level + 1);
            lines += &self.member(member, &kind.text, level + 1);
            types.push(kind);
        }
        if object.members.iter().any(|member| !member.is_required) {
            types.push(Type::atom("undefined"));
        }
        let further = self.further_keys(object, types, level + 1);
        match (lines.is_empty(), &further) {
            (true, None) if matches!(object.further, Further::None) => Type::atom("Record<string, never>"),
            (true, None) => Type::atom(ANY_OBJECT),
            _ => Type::atom(format!("{{\n{lines}{}{}}}", further.unwrap_or_default(), "  ".repeat(level))),
        }
    }

    fn member(&self, member: &Member<'_>, kind: &str, level: usize) -> String {
        let optional = if member.is_required { "" } else { "?" };
        let indent = "  ".repeat(level);
        format!("{}{indent}{}{optional}: {kind};\n", doc(&member.remark, level), key(member.name))
    }

    /// The line for keys that are not named. TypeScript asks that it covers the named ones too.
    fn further_keys(&self, object: &Object<'_>, named: Vec<Type>, level: usize) -> Option<String> {
        let mut types: Vec<_> = object.patterns.iter().map(|(_, shape)| self.kind(shape, level)).collect();
        match &object.further {
            Further::Any if named.is_empty() && types.is_empty() => return None,
            Further::Any => types.push(Type::atom(NOTATION.any)),
            Further::Of(shape) => types.push(self.kind(shape, level)),
            Further::Unsaid | Further::None if types.is_empty() => return None,
            Further::Unsaid | Further::None => {}
        }
        let of_patterns = (!object.patterns.is_empty()).then(|| object.patterns_text());
        let further = NOTATION.union(types);
        let all = NOTATION.union(std::iter::once(further.clone()).chain(named).collect());
        let (kind, note) = if all.text.len() <= INDEX_BYTES_MAX || all.text == further.text {
            (all, of_patterns)
        } else {
            (Type::atom(NOTATION.any), of_patterns.or_else(|| Some("further keys".to_owned())))
        };
        let note = doc(&note.unwrap_or_default(), level);
        Some(format!("{note}{}[key: string]: {};\n", "  ".repeat(level), kind.text))
    }

    fn tuple(&self, items: &[(Shape<'_>, bool)], rest: Option<&Shape<'_>>, level: usize) -> Type {
        let item = |(shape, is_optional): &(Shape<'_>, bool)| {
            let text = self.kind(shape, level).text;
            if *is_optional { format!("({text})?") } else { text }
        };
        let mut items: Vec<_> = items.iter().map(item).collect();
        items.extend(rest.map(|rest| format!("...Array<{}>", self.kind(rest, level).text)));
        Type::atom(format!("[{}]", items.join(", ")))
    }
}
