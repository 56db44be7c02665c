//! Enums: the one TypeScript declaration with a value that programs use. Everything else that is
//! erased leaves nothing behind; an enum becomes an expression on one line.

use std::fmt::Write;

use swc_common::{Span, Spanned};
use swc_ecma_ast::{Expr, Lit, TsEnumDecl, TsEnumMemberId};

/// The JavaScript that declares an enum. `text` gives the source of a span. Errors with the span
/// of a member that has no value where one is needed.
pub fn expression<'s>(declaration: &TsEnumDecl, text: impl Fn(Span) -> &'s str) -> Result<String, Span> {
    let name = declaration.id.sym.as_str();
    let mut code = format!("var {name}=(($enum)=>{{");
    let mut previous = Previous::None;
    for member in &declaration.members {
        let key = match &member.id {
            TsEnumMemberId::Ident(id) => id.sym.to_string(),
            TsEnumMemberId::Str(string) => string.value.to_string_lossy().into_owned(),
        };
        let quoted = serde_json::Value::from(key.as_str()).to_string();
        let value = match (&member.init, &previous) {
            (Some(value), _) => format!("({})", text(value.span())),
            (None, Previous::None) => "0".to_owned(),
            (None, Previous::Number(before)) => format!("$enum[{before}]+1"),
            (None, Previous::String) => return Err(member.span),
        };
        // A computed value may turn out to be a string, which has no way back to its name.
        let _ = write!(
            code,
            "$enum[{quoted}]={value};if(typeof $enum[{quoted}]!==\"string\")$enum[$enum[{quoted}]]={quoted};"
        );
        if is_plain_name(&key) && key != "$enum" {
            // Later members may refer to this one by its bare name.
            let _ = write!(code, "const {key}=$enum[{quoted}];");
        }
        previous = match &member.init {
            Some(value) if is_string(value) => Previous::String,
            _ => Previous::Number(quoted),
        };
    }
    let _ = write!(code, "return $enum}})({name}||{{}});");
    Ok(code)
}

enum Previous {
    None,
    Number(String),
    String,
}

fn is_string(value: &Expr) -> bool {
    match value {
        Expr::Lit(Lit::Str(_)) | Expr::Tpl(_) => true,
        Expr::Paren(paren) => is_string(&paren.expr),
        _ => false,
    }
}

/// Whether a member's name can also be a constant's.
fn is_plain_name(name: &str) -> bool {
    let mut characters = name.chars();
    let first = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_' || c == '$');
    let rest = characters.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
    first && rest && !RESERVED.contains(&name)
}

const RESERVED: &[&str] = &[
    "arguments",
    "await",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "debugger",
    "default",
    "delete",
    "do",
    "else",
    "enum",
    "eval",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "function",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "new",
    "null",
    "package",
    "private",
    "protected",
    "public",
    "return",
    "static",
    "super",
    "switch",
    "this",
    "throw",
    "true",
    "try",
    "typeof",
    "var",
    "void",
    "while",
    "with",
    "yield",
];
