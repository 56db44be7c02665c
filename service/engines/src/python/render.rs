//! Tools and the shapes of their values as Python stubs.
//!
//! An object with named members is a `TypedDict` of its own. A tool's arguments are the keywords of its
//! call; a key that can't be one goes through `**others`, and the docstring says so.

use super::is_plain;
use super::types::Type;
use super::words::Words;
use crate::declare::{Dialect, Documented, TOOL_BYTES_MAX};
use crate::schemas::{
    Further, Member, Named, Object, Remarks, Shape, Shapes, TypeNames, alternatives, common, forms,
};
use crate::text::quoted;

/// The longest line of a signature before each parameter has its own.
const LINE_CHARS_MAX: usize = 100;
/// How many types of one tool are put together of parts.
const MERGES_MAX: usize = 64;
/// How deep types that are put together of parts are in one another.
const MERGE_DEPTH_MAX: usize = 4;

const END: &str = "    async def call(self, name: {str}, arguments: {dict}[{str}, {Any}] = ..., /) -> {Any}:
        \"\"\"Calls a tool by its name in the catalog or here.\"\"\"

tools: Tools
";

/// Declares tools in stubs.
pub(crate) struct Stubs {
    words: Words,
}

impl Stubs {
    /// For a catalog with these aliases.
    pub(crate) fn new<'a>(aliases: impl Iterator<Item = &'a str>) -> Self {
        Self { words: Words::new(aliases) }
    }
}

impl Dialect for Stubs {
    fn frame(&self) -> [String; 3] {
        let end = ["str", "dict", "Any"]
            .into_iter()
            .fold(END.to_owned(), |end, word| end.replace(&format!("{{{word}}}"), &self.words.write(word)));
        [self.words.imports() + "\n", "class Tools:\n".to_owned(), end]
    }

    fn remarks(&self) -> Remarks {
        Remarks { says_integer: false }
    }

    fn type_name(&self) -> fn(&str, &str) -> String {
        |alias, word| {
            let name = pascal(alias) + &pascal(word);
            if name.starts_with(|c: char| c.is_ascii_uppercase()) { name } else { format!("T{name}") }
        }
    }

    fn own_types(&self) -> &'static [&'static str] {
        &[
            "Annotated",
            "Any",
            "Exception",
            "False",
            "Literal",
            "Never",
            "None",
            "NotRequired",
            "ToolError",
            "ToolInfo",
            "Tools",
            "True",
            "TypeAlias",
            "TypedDict",
        ]
    }

    fn short(&self, alias: &str, about: &str) -> String {
        let any = self.words.write("Any");
        method(alias, &[format!("**arguments: {any}")], &any, &docstring(about, &[], None, 2))
    }

    fn tool(
        &self,
        tool: &Documented<'_>,
        shapes: &Shapes<'_>,
        names: &mut TypeNames<'_>,
        types: &mut String,
    ) -> String {
        let prefix = (self.type_name())(tool.alias, "");
        let mut render = Render {
            words: &self.words,
            named: &shapes.named,
            prefix,
            names,
            types,
            n_bytes: 0,
            n_merges: 0,
            merge_depth: 0,
        };
        render.declare_named();
        let (parameters, about) = render.parameters(&shapes.input);
        let result = render.kind(&shapes.output, "Result");
        let doc = docstring(&tool.doc, &about, tool.returns.as_deref(), 2);
        method(tool.alias, &parameters, &self.words.text(&result), &doc)
    }
}

/// Whether an object has keys that a TypedDict can't: such as have no name of their own, or none at all.
fn has_more(object: &Object<'_>) -> bool {
    object.is_open() || object.members.iter().any(|member| member.name.is_empty())
}

/// A word or several with a capital each.
fn pascal(text: &str) -> String {
    let capital = |word: &str| {
        let mut chars = word.chars();
        chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
    };
    text.split(|c: char| !c.is_ascii_alphanumeric()).map(capital).collect()
}

/// A method of `Tools`.
fn method(alias: &str, parameters: &[String], result: &str, doc: &str) -> String {
    let stars = match parameters.first() {
        Some(first) if !first.starts_with("**") => &["self".to_owned(), "*".to_owned()][..],
        _ => &["self".to_owned()],
    };
    let all: Vec<&str> = stars.iter().chain(parameters).map(String::as_str).collect();
    let line = format!("    async def {alias}({}) -> {result}:", all.join(", "));
    let head = match line.chars().count() <= LINE_CHARS_MAX {
        true => line,
        false => {
            let lines: String = all.iter().map(|one| format!("        {one},\n")).collect();
            format!("    async def {alias}(\n{lines}    ) -> {result}:")
        }
    };
    if doc.is_empty() { format!("{head} ...\n") } else { format!("{head}\n{doc}") }
}

/// A docstring of these parts; nothing when there is nothing to say. No part can end it.
fn docstring(about: &str, parameters: &[String], returns: Option<&str>, level: usize) -> String {
    let parameters = (!parameters.is_empty()).then(|| parameters.to_vec());
    let about = Some(about.trim()).filter(|text| !text.is_empty()).map(|text| vec![text.to_owned()]);
    let returns = returns.map(|text| vec![format!("Returns: {text}")]);
    let parts: Vec<Vec<String>> = [about, parameters, returns].into_iter().flatten().collect();
    let indent = "    ".repeat(level);
    let one = match &parts[..] {
        [] => return String::new(),
        [part] if part.len() == 1 => Some(&part[0]),
        _ => None,
    };
    if let Some(text) = one {
        let text = match text.strip_suffix('"') {
            Some(text) => in_docstring(text) + "\\\"",
            None => in_docstring(text),
        };
        return format!("{indent}\"\"\"{text}\"\"\"\n");
    }
    let lines = |part: &Vec<String>| {
        part.iter().map(|text| in_docstring(text)).collect::<Vec<_>>().join(&format!("\n{indent}"))
    };
    let parts: Vec<_> = parts.iter().map(lines).collect();
    format!("{indent}\"\"\"{}\n{indent}\"\"\"\n", parts.join(&format!("\n\n{indent}")))
}

fn in_docstring(text: &str) -> String {
    text.replace('\\', "\\\\").replace("\"\"\"", "\\\"\\\"\\\"")
}

/// A comment that documents what stands below it. Checkers of types take orders from comments, behind a
/// second `#` as well.
fn comment(text: &str, indent: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut harmless = text.to_owned();
    if text.contains('#') {
        for order in ["type", "pyright", "mypy"] {
            harmless = harmless.replace(&format!("{order}:"), &format!("{order} :"));
        }
    }
    format!("{indent}#: {harmless}\n")
}

struct Render<'r, 'a, 't> {
    words: &'r Words,
    named: &'r [Named<'a>],
    /// What the names of this tool's types begin with.
    prefix: String,
    names: &'r mut TypeNames<'t>,
    types: &'r mut String,
    n_bytes: usize,
    n_merges: usize,
    merge_depth: usize,
}

impl<'a> Render<'_, 'a, '_> {
    fn declare_named(&mut self) {
        let named = self.named;
        for Named { name, remark, shape, .. } in named {
            if let Shape::Object(object) = shape
                && !object.members.is_empty()
                && !has_more(object)
            {
                self.typed_dict(name, remark, object);
                continue;
            }
            let kind = self.kind(shape, name.strip_prefix(&self.prefix).unwrap_or_default());
            let about = comment(remark, "");
            let alias = self.words.write("TypeAlias");
            *self.types += &format!("{about}{name}: {alias} = {}\n", self.words.text(&kind));
        }
    }

    /// A shape as a type; a type that needs a name has this word in it.
    fn kind(&mut self, shape: &Shape<'a>, word: &str) -> Type {
        let words = self.words;
        match shape {
            Shape::Any(None) => words.any(),
            Shape::Any(Some(why)) => words.noted(&words.any(), why),
            Shape::Never => words.union(Vec::new()),
            Shape::Null => Type::Plain("None".to_owned()),
            Shape::Boolean => words.plain("bool"),
            Shape::Integer => words.plain("int"),
            Shape::Number => words.plain("float"),
            Shape::String => words.plain("str"),
            Shape::Exactly(value, _) => words.exactly(value),
            Shape::List(None) => words.list(&words.any()),
            Shape::List(Some(item)) => words.list(&self.kind(item, word)),
            Shape::Tuple { items, rest } => self.tuple(items, rest.as_deref(), word),
            Shape::Object(object) => self.object(object, word),
            Shape::Named(n) => Type::Plain(self.named[*n].name.clone()),
            Shape::OneOf(shapes) => {
                let kinds = shapes.iter().map(|shape| self.kind(shape, word)).collect();
                words.union(kinds)
            }
            Shape::AllOf(shapes) => self.all_of(shape, shapes, word),
        }
    }

    /// Objects are put together; of anything else there is only one part to show.
    fn all_of(&mut self, whole: &Shape<'a>, shapes: &[Shape<'a>], word: &str) -> Type {
        let mut known = shapes.iter().filter(|shape| !shape.is_any());
        let (first, more) = (known.next(), known.next().is_some());
        let Some(first) = first else {
            return shapes.first().map_or_else(|| self.words.any(), |shape| self.kind(shape, word));
        };
        let may_merge = more && self.n_merges < MERGES_MAX && self.merge_depth < MERGE_DEPTH_MAX;
        let objects = may_merge.then(|| alternatives(whole, self.named)).flatten();
        let Some(objects) = objects else { return self.kind(first, word) };
        self.n_merges += 1;
        self.merge_depth += 1;
        let kinds = objects.iter().map(|object| self.object(object, word)).collect();
        self.merge_depth -= 1;
        self.words.union(kinds)
    }

    fn object(&mut self, object: &Object<'a>, word: &str) -> Type {
        if self.n_bytes > TOOL_BYTES_MAX {
            return self.words.any();
        }
        if object.members.is_empty() {
            let all = self.words.dict(&self.further(object, word));
            let has_patterns = !object.patterns.is_empty();
            return if has_patterns { self.words.noted(&all, &object.patterns_text()) } else { all };
        }
        let name = self.names.free(word, "Value");
        self.typed_dict(&name, "", object);
        let own = Type::Plain(name);
        if has_more(object) { self.words.union(vec![own, self.words.dict(&self.words.any())]) } else { own }
    }

    /// The values of keys without a name of their own.
    fn further(&mut self, object: &Object<'a>, word: &str) -> Type {
        let mut kinds: Vec<_> = object.patterns.iter().map(|(_, shape)| self.kind(shape, word)).collect();
        match &object.further {
            Further::Any | Further::Unsaid if kinds.is_empty() => kinds.push(self.words.any()),
            Further::Any => kinds.push(self.words.any()),
            Further::Of(shape) => kinds.push(self.kind(shape, word)),
            Further::None | Further::Unsaid => {}
        }
        self.words.union(kinds)
    }

    fn tuple(&mut self, items: &[(Shape<'a>, bool)], rest: Option<&Shape<'a>>, word: &str) -> Type {
        let mut kinds: Vec<_> = items.iter().map(|(shape, _)| self.kind(shape, word)).collect();
        let mut places: Vec<_> = kinds.iter().map(|kind| self.words.text(kind)).collect();
        for ((_, may_lack), place) in items.iter().zip(&mut places) {
            *place += if *may_lack { " (may be missing)" } else { "" };
        }
        if let Some(rest) = rest {
            let kind = self.kind(rest, word);
            places.push(format!("then any number of {}", self.words.text(&kind)));
            kinds.push(kind);
        }
        let list = self.words.list(&self.words.union(kinds));
        self.words.noted(&list, &format!("by place: {}", places.join(", ")))
    }

    fn typed_dict(&mut self, name: &str, remark: &str, object: &Object<'a>) {
        let fits = |member: &Member<'_>| {
            is_plain(member.name) && !Words::is_own(member.name) && !member.name.starts_with(&self.prefix)
        };
        let is_class = object.members.iter().all(fits);
        let is_total = object.members.iter().any(|member| member.is_required);
        let mut lines = String::new();
        for member in object.members.iter().filter(|member| !member.name.is_empty()) {
            let kind = self.kind(&member.shape, member.name);
            let mut text = self.words.text(&kind);
            if is_total && !member.is_required {
                text = format!("{}[{text}]", self.words.write("NotRequired"));
            }
            lines += &comment(&member.remark, "    ");
            lines += &match is_class {
                true => format!("    {}: {text}\n", member.name),
                false => format!("    {}: {text},\n", quoted(member.name)),
            };
            if lines.len() + self.n_bytes > 2 * TOOL_BYTES_MAX {
                break;
            }
        }
        self.n_bytes += lines.len();
        let total = if is_total { "" } else { ", total=False" };
        let dict = self.words.write("TypedDict");
        *self.types += &match is_class {
            true => format!("class {name}({dict}{total}):\n{}{lines}", docstring(remark, &[], None, 1)),
            false => {
                let about = comment(remark, "");
                format!("{about}{name} = {dict}({}, {{\n{lines}}}{total})\n", quoted(name))
            }
        };
    }

    /// The parameters of a call with such arguments, and what is said of each.
    fn parameters(&mut self, input: &Shape<'a>) -> (Vec<String>, Vec<String>) {
        let any = self.words.write("Any");
        let Some(objects) = alternatives(input, self.named) else {
            return (vec![format!("**arguments: {any}")], Vec::new());
        };
        let object = common(&objects);
        let (mut parameters, mut about) = (Vec::new(), forms(&objects));
        let mut has_others = object.is_open();
        for member in &object.members {
            let kind = self.kind(&member.shape, member.name);
            let text = self.words.text(&kind);
            let colon = if member.remark.is_empty() { "" } else { ": " };
            if is_plain(member.name) && member.name != "self" {
                let default = if member.is_required { "" } else { " = ..." };
                parameters.push(format!("{}: {text}{default}", member.name));
                if !member.remark.is_empty() {
                    about.push(format!("{}{colon}{}", member.name, member.remark));
                }
            } else {
                has_others = true;
                let need = if member.is_required { "required" } else { "optional" };
                let key = quoted(member.name);
                about.push(format!("**{{{key}: {text}}}, {need}{colon}{}", member.remark));
            }
        }
        if object.members.is_empty() && object.is_open() {
            let kind = self.further(&object, "Value");
            parameters.push(format!("**others: {}", self.words.text(&kind)));
        } else if has_others || object.says_nothing() {
            parameters.push(format!("**others: {any}"));
        }
        if !object.patterns.is_empty() {
            about.push(format!("**others: {}", object.patterns_text()));
        }
        (parameters, about)
    }
}
