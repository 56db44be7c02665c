//! Checked text as a tree.

use serde_json::{Map, Number, Value};

use super::scan::{Scanner, Token};
use super::{Bounds, Kind};

/// The bounds that every checked text passes.
pub(super) const ANY: Bounds =
    Bounds { bytes_max: usize::MAX, depth_max: usize::MAX, count_max: usize::MAX, digits_max: usize::MAX };

const CHECKED: &str = "the text was checked";

/// Builds the tree of a checked text.
pub(super) fn build(text: &str) -> Value {
    let mut scanner = Scanner::new(text, &ANY).expect(CHECKED);
    let mut open: Vec<(Value, Option<String>)> = Vec::new();
    let mut key = None;
    while let Some((token, at)) = scanner.next().expect(CHECKED) {
        let value = match token {
            Token::Key => {
                key = Some(unquoted(&text[at]));
                continue;
            }
            Token::Begin(kind) => {
                let empty =
                    if kind == Kind::Object { Value::Object(Map::new()) } else { Value::Array(Vec::new()) };
                open.push((empty, key.take()));
                continue;
            }
            Token::End => {
                let (value, its_key) = open.pop().expect(CHECKED);
                key = its_key;
                value
            }
            Token::Scalar(kind) => scalar(kind, &text[at]),
        };
        match open.last_mut() {
            None => return value,
            Some((Value::Object(map), _)) => drop(map.insert(key.take().expect(CHECKED), value)),
            Some((Value::Array(items), _)) => items.push(value),
            Some(_) => unreachable!("only arrays and objects are open"),
        }
    }
    unreachable!("a checked text has a value")
}

fn scalar(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::String => Value::String(unquoted(text)),
        Kind::Number => Value::Number(text.parse::<Number>().expect(CHECKED)),
        Kind::Bool => Value::Bool(text == "true"),
        Kind::Null | Kind::Array | Kind::Object => Value::Null,
    }
}

fn unquoted(text: &str) -> String {
    serde_json::from_str(text).expect(CHECKED)
}
