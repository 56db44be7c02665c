//! From the author's source to what the engine runs.
//!
//! The source is the body of an async function, so `await` and `return` work at its top. It is
//! parsed once as that, and the tree proves that it is nothing else: source that closes the
//! function is refused. The tree also shows where the last expression is, which becomes the value,
//! where enums are, and where the program waits. Types are erased in place.

use swc_common::{BytePos, SourceMap, Span, Spanned, sync::Lrc};
use swc_ecma_ast::{
    ArrowExpr, ArrowFunctionBody, AwaitExpr, CallExpr, Callee, Class, Decl, EsVersion, Expr, Function, Lit,
    ModuleDecl, ModuleItem, Script, Stmt, TsEnumDecl,
};
use swc_ecma_parser::{EsSyntax, Parser, StringInput, Syntax, TsSyntax, lexer::Lexer};
use swc_ecma_visit::{Visit, VisitWith};

use super::positions::{Edit, Position, Positions};
use super::{brackets, enums, erase};

/// Brackets may be nested this deep. The parser recurses, and its stack must not be the limit.
pub const NESTING_MAX: usize = 256;

/// Source that cannot run, as the author should read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub code: &'static str,
    pub message: String,
    pub position: Position,
}

/// Source that can run.
#[derive(Debug)]
pub struct Compiled {
    /// A function expression. Its one parameter notes where the program waits.
    pub code: String,
    positions: Positions,
    awaits: Vec<usize>,
}

impl Compiled {
    /// The author's position of a position the engine reported.
    pub fn position(&self, line: u32, column: u32) -> Position {
        self.positions.of_run(&self.code, line, column)
    }

    /// The author's position of the `index`th `await` outside of functions.
    pub fn await_position(&self, index: usize) -> Option<Position> {
        self.awaits.get(index).map(|offset| self.positions.of_source(*offset))
    }
}

/// Compiles a program. `types` says that the author means TypeScript; plain JavaScript is then
/// still what most of it is, and source that is not plain is tried as TypeScript anyway.
/// `waiting` is a name the source cannot know.
pub fn compile(source: &str, types: bool, waiting: &str) -> Result<Compiled, Rejected> {
    refuse_fences(source)?;
    brackets::check(source, NESTING_MAX).map_err(|offset| {
        rejected(source, offset, "syntax_error", format!("brackets are nested more than {NESTING_MAX} deep"))
    })?;
    let frame = Frame::new(source, waiting);
    if types {
        return frame.parse(typescript()).and_then(|script| frame.finish(&script, true));
    }
    match frame.parse(javascript()) {
        Ok(script) => frame.finish(&script, false),
        // The error of the language that was asked for is the one to show.
        Err(error) => match frame.parse(typescript()) {
            Ok(script) => frame.finish(&script, true),
            Err(_) => Err(error),
        },
    }
}

/// The frame around the source. Offsets in the framed text are those in the source plus `before`.
struct Frame<'a> {
    source: &'a str,
    waiting: &'a str,
    text: String,
    before: usize,
}

impl<'a> Frame<'a> {
    fn new(source: &'a str, waiting: &'a str) -> Self {
        let open = format!("(async({waiting})=>{{");
        // The line break ends a comment on the last line.
        let text = format!("{open}{source}\n}})");
        Self { source, waiting, before: open.len(), text }
    }

    fn parse(&self, syntax: Syntax) -> Result<Script, Rejected> {
        let (script, errors) = parse_script(&self.text, syntax);
        match script {
            Ok(script) if errors.is_empty() => Ok(script),
            Ok(_) => Err(self.syntax_error(&errors[0])),
            Err(error) => Err(self.syntax_error(&error)),
        }
    }

    fn syntax_error(&self, error: &swc_ecma_parser::error::Error) -> Rejected {
        if let Some(import) = static_import(self.source) {
            return import;
        }
        let offset = self.source_offset(error.span());
        rejected(self.source, offset, "syntax_error", error.kind().msg().into_owned())
    }

    fn finish(&self, script: &Script, types: bool) -> Result<Compiled, Rejected> {
        let statements = self.statements(script)?;
        let mut found = Found::default();
        statements.visit_with(&mut found);
        if let Some((span, module)) = found.imports.first() {
            let module = module.as_deref().unwrap_or("a computed name");
            return Err(import_denied(self.source, self.source_offset(*span), module));
        }
        let mut edits = vec![Edit { at: 0, removed: 0, text: self.text[..self.before].to_owned() }];
        let mut awaits = Vec::with_capacity(found.awaits.len());
        for (at, argument) in &found.awaits {
            let index = awaits.len();
            awaits.push(self.source_offset(*at));
            edits.extend(self.around(*argument, format!("{}({index},", self.waiting)));
        }
        if let Some(last) = last_expression(statements) {
            // The engine notes a place for a statement that is an expression, but not for `return`.
            edits.extend(self.around(last, "0;return (".to_owned()));
        }
        for declaration in &found.enums {
            edits.push(self.replace_enum(declaration)?);
        }
        edits.push(Edit { at: self.source.len(), removed: 0, text: "\n})".to_owned() });
        let positions = Positions::new(self.source, without_overlaps(edits));
        let code = match types {
            true => erase::erase(&positions)?,
            false => positions.edited().to_owned(),
        };
        Ok(Compiled { code, positions, awaits })
    }

    /// The statements of the source, when the script is our function and nothing else.
    fn statements<'s>(&self, script: &'s Script) -> Result<&'s [Stmt], Rejected> {
        let escaped = || {
            let message = "unbalanced brackets: the source closes more than it opens".to_owned();
            rejected(self.source, self.source.len(), "syntax_error", message)
        };
        let [Stmt::Expr(statement)] = script.body.as_slice() else { return Err(escaped()) };
        let Expr::Paren(paren) = &*statement.expr else { return Err(escaped()) };
        let Expr::Arrow(ArrowExpr { body, is_async: true, params, .. }) = &*paren.expr else {
            return Err(escaped());
        };
        let ArrowFunctionBody::FunctionBody(block) = &**body else { return Err(escaped()) };
        let whole = offset(block.span.lo) + 1 == self.before
            && offset(block.span.hi) + 1 == self.text.len()
            && params.len() == 1;
        if whole { Ok(&block.stmts) } else { Err(escaped()) }
    }

    fn around(&self, span: Span, open: String) -> [Edit; 2] {
        let end = self.source_end(span);
        [
            Edit { at: self.source_offset(span), removed: 0, text: open },
            Edit { at: end, removed: 0, text: ")".to_owned() },
        ]
    }

    fn replace_enum(&self, declaration: &TsEnumDecl) -> Result<Edit, Rejected> {
        let at = self.source_offset(declaration.span);
        let removed = self.source_end(declaration.span) - at;
        let text = enums::expression(declaration, |span| {
            &self.source[self.source_offset(span)..self.source_end(span)]
        })
        .map_err(|span| {
            let message = "this enum member needs a value: the one before it is a string".to_owned();
            rejected(self.source, self.source_offset(span), "syntax_error", message)
        })?;
        let lines = self.source[at..at + removed].matches('\n').count();
        Ok(Edit { at, removed, text: text + &"\n".repeat(lines) })
    }

    fn source_offset(&self, span: Span) -> usize {
        offset(span.lo).saturating_sub(self.before).min(self.source.len())
    }

    fn source_end(&self, span: Span) -> usize {
        offset(span.hi).saturating_sub(self.before).min(self.source.len())
    }
}

/// What a program contains that matters before it runs.
#[derive(Default)]
struct Found {
    /// Where an `await` outside of functions starts, and its operand.
    awaits: Vec<(Span, Span)>,
    enums: Vec<TsEnumDecl>,
    imports: Vec<(Span, Option<String>)>,
    functions: usize,
}

impl Found {
    fn inside(&mut self, visit: impl FnOnce(&mut Self)) {
        self.functions += 1;
        visit(self);
        self.functions -= 1;
    }
}

impl Visit for Found {
    fn visit_function(&mut self, function: &Function) {
        self.inside(|found| function.visit_children_with(found));
    }

    fn visit_arrow_expr(&mut self, arrow: &ArrowExpr) {
        self.inside(|found| arrow.visit_children_with(found));
    }

    fn visit_class(&mut self, class: &Class) {
        self.inside(|found| class.visit_children_with(found));
    }

    fn visit_await_expr(&mut self, waits: &AwaitExpr) {
        if self.functions == 0 {
            self.awaits.push((waits.span, waits.arg.span()));
        }
        waits.visit_children_with(self);
    }

    fn visit_ts_enum_decl(&mut self, declaration: &TsEnumDecl) {
        if !declaration.declare {
            self.enums.push(declaration.clone());
        }
    }

    fn visit_call_expr(&mut self, call: &CallExpr) {
        if let Callee::Import(import) = &call.callee {
            let module = call.args.first().and_then(|argument| match &*argument.expr {
                Expr::Lit(Lit::Str(name)) => Some(name.value.to_string_lossy().into_owned()),
                _ => None,
            });
            self.imports.push((import.span, module));
        }
        call.visit_children_with(self);
    }
}

/// Where the value is: the last statement, when it is an expression. What only declares a name for
/// what came before is looked past.
fn last_expression(statements: &[Stmt]) -> Option<Span> {
    let last = statements.iter().rev().find(|statement| {
        !matches!(
            statement,
            Stmt::Empty(_) | Stmt::Decl(Decl::Fn(_) | Decl::TsInterface(_) | Decl::TsTypeAlias(_))
        )
    })?;
    match last {
        Stmt::Expr(statement) => Some(statement.expr.span()),
        _ => None,
    }
}

/// Insertions inside a replaced enum go with it.
fn without_overlaps(edits: Vec<Edit>) -> Vec<Edit> {
    let replaced: Vec<(usize, usize)> =
        edits.iter().filter(|edit| edit.removed > 0).map(|edit| (edit.at, edit.at + edit.removed)).collect();
    let inside = |at: usize| replaced.iter().any(|(from, to)| *from < at && at < *to);
    edits.into_iter().filter(|edit| !inside(edit.at)).collect()
}

/// An import or re-export at the top of a module, which a program is not.
fn static_import(source: &str) -> Option<Rejected> {
    let (module, _) = parse_module(source);
    let items = module.ok()?.body;
    items.iter().find_map(|item| {
        let ModuleItem::ModuleDecl(declaration) = item else { return None };
        let name = match declaration {
            ModuleDecl::Import(import) => &import.src,
            ModuleDecl::ExportAll(export) => &export.src,
            ModuleDecl::ExportNamed(export) => export.src.as_ref()?,
            _ => return None,
        };
        Some(import_denied(source, offset(declaration.span().lo), &name.value.to_string_lossy()))
    })
}

fn import_denied(source: &str, offset: usize, module: &str) -> Rejected {
    let message = format!("cannot import {module:?}: programs have no modules; use the tools they are given");
    rejected(source, offset, "import_denied", message)
}

fn refuse_fences(source: &str) -> Result<(), Rejected> {
    let start = source.len() - source.trim_start().len();
    if !source[start..].starts_with("```") {
        return Ok(());
    }
    let message = "the source starts with a Markdown fence: send the program without the ``` lines";
    Err(rejected(source, start, "syntax_error", message.to_owned()))
}

fn rejected(source: &str, offset: usize, code: &'static str, message: String) -> Rejected {
    Rejected { code, message, position: Positions::new(source, vec![]).of_source(offset) }
}

fn javascript() -> Syntax {
    Syntax::Es(EsSyntax { import_attributes: true, ..EsSyntax::default() })
}

fn typescript() -> Syntax {
    Syntax::Typescript(TsSyntax::default())
}

type Parsed<T> = (Result<T, swc_ecma_parser::error::Error>, Vec<swc_ecma_parser::error::Error>);

fn parse_script(text: &str, syntax: Syntax) -> Parsed<Script> {
    with_parser(text, syntax, |parser| parser.parse_script())
}

fn parse_module(text: &str) -> Parsed<swc_ecma_ast::Module> {
    with_parser(text, typescript(), |parser| parser.parse_module())
}

fn with_parser<T>(
    text: &str,
    syntax: Syntax,
    parse: impl FnOnce(&mut Parser<Lexer<'_>>) -> Result<T, swc_ecma_parser::error::Error>,
) -> Parsed<T> {
    let map: Lrc<SourceMap> = Lrc::default();
    let file = map.new_source_file(swc_common::FileName::Anon.into(), text.to_owned());
    let lexer = Lexer::new(syntax, EsVersion::latest(), StringInput::from(&*file), None);
    let mut parser = Parser::new_from(lexer);
    let parsed = parse(&mut parser);
    (parsed, parser.take_errors())
}

/// Positions of the first file of a source map start at 1.
fn offset(position: BytePos) -> usize {
    (position.0 as usize).saturating_sub(1)
}
