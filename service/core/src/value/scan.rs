//! Reads JSON text token by token, without recursion and within bounds.

use std::ops::Range;

use super::{Bounds, Error, Kind, Place};

/// The longest path in an error, in bytes before its middle is left out.
const PATH_BYTES_MAX: usize = 400;

/// A part of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// An array or object begins.
    Begin(Kind),
    /// The innermost array or object ends.
    End,
    /// A key, quotes included.
    Key,
    /// A value that is neither array nor object.
    Scalar(Kind),
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    FirstItemOrEnd,
    FirstKeyOrEnd,
    Key,
    CommaOrEnd,
    Nothing,
}

/// Where the scanner is in an open array or object, for the paths in errors.
#[derive(Debug, Clone)]
enum Open {
    Array { index: usize },
    Object { key: Range<usize> },
}

/// Reads one value.
pub(super) struct Scanner<'a> {
    text: &'a str,
    bounds: &'a Bounds,
    pos: usize,
    expect: Expect,
    open: Vec<Open>,
    n_values: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str, bounds: &'a Bounds) -> Result<Self, Error> {
        let max = bounds.bytes_max.min(u32::MAX as usize);
        if text.len() > max {
            return Err(Error::Bytes { bytes: text.len(), max });
        }
        Ok(Self { text, bounds, pos: 0, expect: Expect::Value, open: Vec::new(), n_values: 0 })
    }

    /// The next token and the bytes it stands on; none at the end of the value.
    pub(super) fn next(&mut self) -> Result<Option<(Token, Range<usize>)>, Error> {
        loop {
            self.skip_space();
            let Some(&byte) = self.text.as_bytes().get(self.pos) else { return self.end_of_text() };
            let start = self.pos;
            let token = match (self.expect, byte) {
                (Expect::Nothing, _) => return Err(self.syntax("more text after the value")),
                (Expect::FirstItemOrEnd, b']') | (Expect::FirstKeyOrEnd, b'}') => self.close(),
                (Expect::CommaOrEnd, _) => match self.comma_or_end(byte)? {
                    Some(token) => token,
                    None => continue,
                },
                (Expect::Value | Expect::FirstItemOrEnd, _) => self.value(byte)?,
                (Expect::Key | Expect::FirstKeyOrEnd, b'"') => return self.key().map(Some),
                (Expect::Key | Expect::FirstKeyOrEnd, _) => {
                    return Err(self.syntax("expected a key in quotes"));
                }
            };
            return Ok(Some((token, start..self.pos)));
        }
    }

    fn end_of_text(&self) -> Result<Option<(Token, Range<usize>)>, Error> {
        if self.expect == Expect::Nothing { Ok(None) } else { Err(self.syntax("the text ends too early")) }
    }

    fn value(&mut self, byte: u8) -> Result<Token, Error> {
        self.n_values += 1;
        if self.n_values > self.bounds.count_max {
            return Err(Error::Count { max: self.bounds.count_max, at: self.place(self.pos) });
        }
        let kind = Kind::of(byte);
        match byte {
            b'{' | b'[' => return self.open(kind).map(|()| Token::Begin(kind)),
            b'"' => self.string()?,
            b't' => self.word("true")?,
            b'f' => self.word("false")?,
            b'n' => self.word("null")?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return Err(self.syntax("expected a value")),
        }
        self.expect = self.after_value();
        Ok(Token::Scalar(kind))
    }

    fn open(&mut self, kind: Kind) -> Result<(), Error> {
        if self.open.len() >= self.bounds.depth_max {
            return Err(Error::Depth { max: self.bounds.depth_max, at: self.place(self.pos) });
        }
        self.pos += 1;
        let (open, expect) = match kind {
            Kind::Object => (Open::Object { key: 0..0 }, Expect::FirstKeyOrEnd),
            _ => (Open::Array { index: 0 }, Expect::FirstItemOrEnd),
        };
        self.open.push(open);
        self.expect = expect;
        Ok(())
    }

    fn close(&mut self) -> Token {
        self.pos += 1;
        self.open.pop();
        self.expect = self.after_value();
        Token::End
    }

    fn after_value(&self) -> Expect {
        if self.open.is_empty() { Expect::Nothing } else { Expect::CommaOrEnd }
    }

    /// Ends the innermost array or object, or steps over a comma.
    fn comma_or_end(&mut self, byte: u8) -> Result<Option<Token>, Error> {
        let next = match (self.open.last_mut().expect("a comma is only expected inside one"), byte) {
            (Open::Array { .. }, b']') | (Open::Object { .. }, b'}') => return Ok(Some(self.close())),
            (Open::Array { index }, b',') => {
                *index += 1;
                Expect::Value
            }
            (Open::Object { .. }, b',') => Expect::Key,
            (Open::Array { .. }, _) => return Err(self.syntax("expected a comma or the end of the array")),
            (Open::Object { .. }, _) => return Err(self.syntax("expected a comma or the end of the object")),
        };
        self.pos += 1;
        self.expect = next;
        Ok(None)
    }

    fn key(&mut self) -> Result<(Token, Range<usize>), Error> {
        let start = self.pos;
        self.string()?;
        let key = start..self.pos;
        if let Some(Open::Object { key: current }) = self.open.last_mut() {
            *current = key.clone();
        }
        self.skip_space();
        if self.text.as_bytes().get(self.pos) != Some(&b':') {
            return Err(self.syntax("expected a colon after the key"));
        }
        self.pos += 1;
        self.expect = Expect::Value;
        Ok((Token::Key, key))
    }

    fn skip_space(&mut self) {
        let rest = &self.text.as_bytes()[self.pos..];
        self.pos += rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')).count();
    }

    fn word(&mut self, word: &'static str) -> Result<(), Error> {
        if !self.text.as_bytes()[self.pos..].starts_with(word.as_bytes()) {
            return Err(self.syntax("expected true, false or null"));
        }
        self.pos += word.len();
        Ok(())
    }

    fn string(&mut self) -> Result<(), Error> {
        let bytes = self.text.as_bytes();
        self.pos += 1;
        loop {
            let rest = &bytes[self.pos..];
            let plain = rest.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20);
            let Some(plain) = plain else {
                self.pos = bytes.len();
                return Err(self.syntax("the text ends inside a string"));
            };
            self.pos += plain;
            match bytes[self.pos] {
                b'"' => {
                    self.pos += 1;
                    return Ok(());
                }
                b'\\' => self.escape()?,
                _ => return Err(self.syntax("a control character inside a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Error> {
        match unit(&self.text.as_bytes()[self.pos..]) {
            Unit::Whole(n_bytes) => self.pos += n_bytes,
            Unit::LoneSurrogate => return Err(Error::LoneSurrogate { at: self.place(self.pos) }),
            Unit::Invalid => return Err(self.syntax("an invalid escape inside a string")),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Error> {
        let rest = &self.text.as_bytes()[self.pos..];
        let Some(number) = Number::read(rest) else { return Err(self.syntax("an invalid number")) };
        let (digits, max) = (number.n_digits, self.bounds.digits_max);
        if digits > max {
            return Err(Error::Digits { digits, max, at: self.place(self.pos) });
        }
        let text = &self.text[self.pos..self.pos + number.n_bytes];
        if !number.is_integer && text.parse::<f64>().is_ok_and(f64::is_infinite) {
            return Err(Error::NumberOverflow { at: self.place(self.pos) });
        }
        self.pos += number.n_bytes;
        Ok(())
    }

    fn syntax(&self, problem: &'static str) -> Error {
        Error::Syntax { problem, at: self.place(self.pos) }
    }

    fn place(&self, offset: usize) -> Place {
        let mut path = "$".to_owned();
        for open in &self.open {
            match open {
                Open::Array { index } => path += &format!("[{index}]"),
                Open::Object { key } if key.is_empty() => {}
                Open::Object { key } => push_key(&mut path, &self.text[key.clone()]),
            }
        }
        if path.len() > PATH_BYTES_MAX {
            let head = path.floor_char_boundary(PATH_BYTES_MAX / 2);
            let tail = path.ceil_char_boundary(path.len() - PATH_BYTES_MAX / 2);
            path = format!("{}…{}", &path[..head], &path[tail..]);
        }
        Place { path, offset }
    }
}

/// Adds a key, quotes included, to a path: `.name`, or `["a b"]` where it is no plain word.
fn push_key(path: &mut String, key: &str) {
    let name = &key[1..key.len() - 1];
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'$') {
        *path += ".";
        *path += &name[..name.len().min(PATH_BYTES_MAX)];
    } else {
        *path += &format!("[{}]", &key[..key.floor_char_boundary(PATH_BYTES_MAX)]);
    }
}

/// A number as it is written.
struct Number {
    n_bytes: usize,
    n_digits: usize,
    is_integer: bool,
}

impl Number {
    /// Reads the number at the beginning of `bytes`.
    fn read(bytes: &[u8]) -> Option<Self> {
        let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut at = usize::from(bytes.first() == Some(&b'-'));
        let mut n_digits = digits(at);
        if n_digits == 0 || (n_digits > 1 && bytes[at] == b'0') {
            return None;
        }
        at += n_digits;
        let end_of_integer = at;
        if bytes.get(at) == Some(&b'.') {
            let n_fraction = digits(at + 1);
            (at, n_digits) = (at + 1 + n_fraction, n_digits + n_fraction);
            if n_fraction == 0 {
                return None;
            }
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            let n_exponent = digits(at);
            (at, n_digits) = (at + n_exponent, n_digits + n_exponent);
            if n_exponent == 0 {
                return None;
            }
        }
        Some(Self { n_bytes: at, n_digits, is_integer: at == end_of_integer })
    }
}

/// One character of a string as it is written.
pub(super) enum Unit {
    /// A character or a whole escape of so many bytes.
    Whole(usize),
    /// A `\u` escape with half of a surrogate pair: six bytes.
    LoneSurrogate,
    /// An escape that is none.
    Invalid,
}

/// The character at the beginning of `bytes`, which are not empty.
pub(super) fn unit(bytes: &[u8]) -> Unit {
    match (bytes[0], bytes.get(1)) {
        (b'\\', Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')) => Unit::Whole(2),
        (b'\\', Some(b'u')) => match (hex(bytes, 2), low_surrogate(bytes, 6)) {
            (None, _) => Unit::Invalid,
            (Some(0xd800..=0xdbff), true) => Unit::Whole(12),
            (Some(0xd800..=0xdfff), _) => Unit::LoneSurrogate,
            (Some(_), _) => Unit::Whole(6),
        },
        (b'\\', _) => Unit::Invalid,
        (first, _) => Unit::Whole(match first {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        }),
    }
}

fn low_surrogate(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..at + 2) == Some(b"\\u") && matches!(hex(bytes, at + 2), Some(0xdc00..=0xdfff))
}

fn hex(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |sum, &b| Some(sum * 16 + char::from(b).to_digit(16)?))
}

/// The half surrogate pairs in `text` from byte `from` on, where a character begins.
pub(super) fn lone_surrogates(text: &str, from: usize) -> impl Iterator<Item = Range<usize>> {
    let bytes = text.as_bytes();
    let mut at = from;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            at += bytes[at..].iter().position(|&b| b == b'\\').unwrap_or(bytes.len() - at);
            let start = at;
            match bytes.get(at).map(|_| unit(&bytes[at..])) {
                Some(Unit::Whole(n_bytes)) => at += n_bytes,
                Some(Unit::Invalid) => at += 1,
                Some(Unit::LoneSurrogate) => {
                    at += 6;
                    return Some(start..at);
                }
                None => {}
            }
        }
        None
    })
}
