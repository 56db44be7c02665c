//! References within a schema: `#`, or `#` and a JSON pointer. Nothing is ever fetched.

use serde_json::Value;

/// The schema that a reference within `root` means, with its pointer.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<(String, &'a Value)> {
    let pointer = percent_decoded(reference.strip_prefix('#')?)?;
    let schema = root.pointer(&pointer)?;
    matches!(schema, Value::Object(_) | Value::Bool(_)).then_some((pointer, schema))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}
