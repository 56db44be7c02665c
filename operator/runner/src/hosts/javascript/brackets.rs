//! How deep brackets are nested, found without recursion and before anything recursive runs.
//!
//! Strings and comments are skipped. A regular expression with a quote in it can hide brackets up
//! to the end of its line; the parser's large stack covers what is missed.

/// Checks the nesting; the error is the offset of the bracket that is too deep.
pub fn check(source: &str, nesting_max: usize) -> Result<(), usize> {
    let bytes = source.as_bytes();
    let mut depth = 0usize;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'(' | b'[' | b'{' => {
                depth += 1;
                if depth > nesting_max {
                    return Err(at);
                }
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            quote @ (b'"' | b'\'') => at = skip_string(bytes, at + 1, quote),
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = skip_to(bytes, at, b"\n"),
            b'/' if bytes.get(at + 1) == Some(&b'*') => at = skip_to(bytes, at + 2, b"*/"),
            b'\\' => at += 1,
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The offset of the closing quote, or of the end of the line.
fn skip_string(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote && bytes[at] != b'\n' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

/// The offset of the last byte of `end`, or of the end.
fn skip_to(bytes: &[u8], from: usize, end: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    let found = rest.windows(end.len()).position(|window| window == end);
    found.map_or(bytes.len(), |n| from + n + end.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_counted_outside_of_strings_and_comments() {
        assert_eq!(check("((()))", 3), Ok(()));
        assert_eq!(check("((()))", 2), Err(2));
        assert_eq!(check("'(((' + \"[[[\" /* ((( */ // {{{\n+ 1", 1), Ok(()));
        assert_eq!(check("'\\'((('", 1), Ok(()));
        assert_eq!(check("'unclosed\n((", 1), Err(11));
        assert_eq!(check("/*", 1), Ok(()));
    }
}
