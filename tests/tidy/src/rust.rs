//! Rust source with its comments and literals taken out, so that rules look at code alone.
//!
//! This is no parser: it knows comments, strings, characters and braces, which is what the rules
//! need, and it can't fail.

/// A string literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// Where its opening quote is, in bytes.
    pub start: usize,
    /// What stands between the quotes, as written.
    pub text: String,
}

/// Source taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// The source with blanks for comments and for what is in quotes; lines and offsets are kept.
    pub code: String,
    /// The string literals in order.
    pub literals: Vec<Literal>,
}

impl Parts {
    /// Takes source apart.
    pub fn of(source: &str) -> Self {
        let mut taker = Taker { bytes: source.as_bytes(), code: Vec::with_capacity(source.len()), at: 0 };
        let mut literals = Vec::new();
        while taker.at < taker.bytes.len() {
            if let Some((start, end)) = taker.step() {
                let text = String::from_utf8_lossy(&source.as_bytes()[start + 1..end]).into_owned();
                literals.push(Literal { start, text });
            }
        }
        Self { code: String::from_utf8_lossy(&taker.code).into_owned(), literals }
    }

    /// The line of an offset, from 1.
    pub fn line(&self, offset: usize) -> usize {
        1 + self.code.as_bytes()[..offset.min(self.code.len())].iter().filter(|byte| **byte == b'\n').count()
    }

    /// The ranges of items under `#[cfg(test)]`, in bytes.
    pub fn test_ranges(&self) -> Vec<std::ops::Range<usize>> {
        let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
        for (start, found) in self.code.match_indices("#[cfg(test)]") {
            if ranges.last().is_none_or(|last| last.end <= start) {
                ranges.push(start..item_end(self.code.as_bytes(), start + found.len()));
            }
        }
        ranges
    }
}

/// Where the item that follows `from` ends: at its `;`, or at the brace that closes its first.
fn item_end(code: &[u8], from: usize) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in code.iter().enumerate().skip(from) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return offset + 1,
            b'}' => depth -= 1,
            b';' if depth == 0 => return offset + 1,
            _ => {}
        }
    }
    code.len()
}

struct Taker<'a> {
    bytes: &'a [u8],
    code: Vec<u8>,
    at: usize,
}

impl Taker<'_> {
    /// Takes one thing; gives where the quotes of a string literal are.
    fn step(&mut self) -> Option<(usize, usize)> {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(b"//") {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            self.blank(end);
        } else if rest.starts_with(b"/*") {
            self.blank(block_comment(rest));
        } else if let Some(raw) = raw_string(rest).filter(|_| !self.in_word()) {
            let text = (self.at + raw.quote, self.at + raw.close);
            self.blank(raw.end);
            return Some(text);
        } else if rest[0] == b'"' {
            let end = quoted(rest);
            let text = (self.at, self.at + (end - 1).max(1));
            self.blank(end);
            return Some(text);
        } else if rest[0] == b'\'' && is_character(rest) {
            let end = 1 + rest[1..].iter().skip(1).position(|byte| *byte == b'\'').unwrap_or(0) + 2;
            self.blank(end.min(rest.len()));
        } else {
            self.code.push(rest[0]);
            self.at += 1;
        }
        None
    }

    /// Whether the byte before is of a word, so that an `r` here begins no raw string.
    fn in_word(&self) -> bool {
        self.at > 0 && matches!(self.bytes[self.at - 1], b'_' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9')
    }

    fn blank(&mut self, n_bytes: usize) {
        for byte in &self.bytes[self.at..self.at + n_bytes] {
            self.code.push(if *byte == b'\n' { b'\n' } else { b' ' });
        }
        self.at += n_bytes;
    }
}

/// The length of a comment that opens here; comments nest.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0usize);
    while at < rest.len() {
        match rest.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") if depth == 1 => return at + 2,
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

/// Where a raw string's quotes are, and where it ends, hashes counted.
struct Raw {
    quote: usize,
    close: usize,
    end: usize,
}

fn raw_string(rest: &[u8]) -> Option<Raw> {
    let prefix = [b"br".as_slice(), b"r"].into_iter().find(|prefix| rest.starts_with(prefix))?.len();
    let n_hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
    let quote = prefix + n_hashes;
    if rest.get(quote) != Some(&b'"') {
        return None;
    }
    let ending = [b"\"".as_slice(), &b"#".repeat(n_hashes)].concat();
    let body = &rest[quote + 1..];
    let length = body.windows(ending.len()).position(|window| window == ending);
    let close = quote + 1 + length.unwrap_or(body.len());
    Some(Raw { quote, close, end: (close + ending.len()).min(rest.len()) })
}

/// The length of the string that opens here, both quotes counted.
fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Whether the apostrophe opens a character and not a lifetime.
fn is_character(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(first) if first.is_ascii() => rest.get(2) == Some(&b'\''),
        // A character of several bytes.
        Some(_) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        Parts::of(source).literals.into_iter().map(|literal| literal.text).collect()
    }

    #[test]
    fn comments_and_literals_are_blank_and_lines_are_kept() {
        let source =
            "a(); // b()\n/* c()\n /* d() */ e() */ f(\"g()\", 'h', '\\'', 'ä', r#\"i\"()\"#);\n'l: loop {}";
        let parts = Parts::of(source);
        for gone in ["b()", "c()", "d()", "e()", "g()", "'h'", "i\""] {
            assert!(!parts.code.contains(gone), "{gone} in {}", parts.code);
        }
        for kept in ["a();", "f(", "'l: loop"] {
            assert!(parts.code.contains(kept), "{kept} in {}", parts.code);
        }
        assert_eq!(parts.code.len(), source.len());
        assert_eq!(parts.line(parts.code.find("'l").unwrap()), 4);
    }

    #[test]
    fn literals_are_as_written() {
        assert_eq!(texts(r##"f("a\"b", r"c\", br#"d"e"#, "", b"g")"##), ["a\\\"b", "c\\", "d\"e", "", "g"]);
    }

    #[test]
    fn broken_source_is_taken_to_its_end() {
        for source in ["\"open", "r#\"open", "/* open", "'", "'\\", "\"\\", "r\"", "\""] {
            assert_eq!(Parts::of(source).code.len(), source.len(), "{source}");
        }
    }

    #[test]
    fn test_items_are_found_to_their_end() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { '}'; } }\nfn c() {}\n#[cfg(test)]\nuse d;\nfn e() {}";
        let parts = Parts::of(source);
        let ranges = parts.test_ranges();
        assert_eq!(ranges.len(), 2);
        assert!(parts.code[ranges[0].clone()].ends_with("} }"));
        assert!(parts.code[ranges[1].clone()].ends_with("use d;"));
    }
}
