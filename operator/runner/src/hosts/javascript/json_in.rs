//! JSON text to JavaScript values.
//!
//! Integers stay exact: beyond 2^53 they become big integers. Properties are defined, not
//! assigned, so nothing a program did to a prototype runs or shows here.

use rquickjs::object::Property;
use rquickjs::{Array, Ctx, Object, Value};

use super::json_out::DEPTH_MAX;
use super::prelude::Prelude;
use super::raw;

/// Longer integers are refused, as converting them takes more than linear time.
pub const INTEGER_DIGITS_MAX: usize = 4300;

/// Every integer of this many digits is exact as a double.
const EXACT_DIGITS: usize = 15;
const EXACT_MAX: u64 = (1 << 53) - 1;

/// Why JSON text has no value here.
#[derive(Debug)]
pub enum Error {
    /// The text is no JSON.
    Malformed,
    /// An integer has too many digits, or another number is beyond the range of doubles.
    Number,
    /// Arrays and objects are nested too deep.
    Depth,
    /// The engine failed, such as by running out of memory.
    Engine(rquickjs::Error),
}

impl From<rquickjs::Error> for Error {
    fn from(error: rquickjs::Error) -> Self {
        Self::Engine(error)
    }
}

/// Reads one value. `frozen` makes every array and object in it immutable.
pub fn read<'js>(
    ctx: &Ctx<'js>,
    prelude: &Prelude<'js>,
    text: &str,
    frozen: bool,
) -> Result<Value<'js>, Error> {
    let mut reader = Reader { ctx, prelude, text, at: 0, depth: 0, frozen };
    let value = reader.value()?;
    reader.space();
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(Error::Malformed),
    }
}

struct Reader<'a, 'js> {
    ctx: &'a Ctx<'js>,
    prelude: &'a Prelude<'js>,
    text: &'a str,
    at: usize,
    depth: usize,
    frozen: bool,
}

impl<'a, 'js> Reader<'a, 'js> {
    fn value(&mut self) -> Result<Value<'js>, Error> {
        self.space();
        match self.peek().ok_or(Error::Malformed)? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => {
                let text = self.string()?;
                Ok(rquickjs::String::from_str(self.ctx.clone(), &text)?.into_value())
            }
            b't' => self.word("true", Value::new_bool(self.ctx.clone(), true)),
            b'f' => self.word("false", Value::new_bool(self.ctx.clone(), false)),
            b'n' => self.word("null", Value::new_null(self.ctx.clone())),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Object<'js>, Error>) -> Result<Value<'js>, Error> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Error::Depth);
        }
        let object = read(self)?;
        if self.frozen {
            raw::freeze(&object)?;
        }
        self.depth -= 1;
        Ok(object.into_value())
    }

    fn object(&mut self) -> Result<Object<'js>, Error> {
        let object = Object::new(self.ctx.clone())?;
        self.at += 1;
        if self.skip(b'}') {
            return Ok(object);
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(Error::Malformed);
            }
            let key = self.string()?;
            if !self.skip(b':') {
                return Err(Error::Malformed);
            }
            let value = self.value()?;
            object.prop(key.as_ref(), plain(value))?;
            if self.skip(b'}') {
                return Ok(object);
            }
            if !self.skip(b',') {
                return Err(Error::Malformed);
            }
        }
    }

    fn array(&mut self) -> Result<Object<'js>, Error> {
        let array = Array::new(self.ctx.clone())?.into_object();
        self.at += 1;
        if self.skip(b']') {
            return Ok(array);
        }
        for index in 0u32.. {
            let value = self.value()?;
            array.prop(index, plain(value))?;
            if self.skip(b']') {
                return Ok(array);
            }
            if !self.skip(b',') {
                return Err(Error::Malformed);
            }
        }
        Err(Error::Malformed)
    }

    /// A string with its escapes resolved. Half a surrogate pair becomes U+FFFD.
    fn string(&mut self) -> Result<std::borrow::Cow<'a, str>, Error> {
        let start = self.at;
        self.at += 1;
        let mut escaped = false;
        loop {
            match self.peek().ok_or(Error::Malformed)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    self.at += 2;
                }
                0..0x20 => return Err(Error::Malformed),
                _ => self.at += 1,
            }
        }
        self.at += 1;
        let text = self.text;
        if !escaped {
            return Ok(text[start + 1..self.at - 1].into());
        }
        unescape(&text[start + 1..self.at - 1]).map(Into::into).ok_or(Error::Malformed)
    }

    fn number(&mut self) -> Result<Value<'js>, Error> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.as_bytes()[0].is_ascii_digit() {
            return Err(Error::Malformed);
        }
        let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_integer && digits.len() > INTEGER_DIGITS_MAX {
            return Err(Error::Number);
        }
        let is_exact = digits.len() <= EXACT_DIGITS || digits.parse().is_ok_and(|n: u64| n <= EXACT_MAX);
        if is_integer && !is_exact {
            return Ok(self.prelude.big_integer(text)?);
        }
        let number: f64 = text.parse().map_err(|_| Error::Malformed)?;
        if !number.is_finite() {
            return Err(Error::Number);
        }
        Ok(Value::new_number(self.ctx.clone(), number))
    }

    fn word(&mut self, word: &str, value: Value<'js>) -> Result<Value<'js>, Error> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Error::Malformed);
        }
        self.at += word.len();
        Ok(value)
    }

    /// Takes one mark, when it is the next thing.
    fn skip(&mut self, mark: u8) -> bool {
        self.space();
        let found = self.peek() == Some(mark);
        self.at += usize::from(found);
        found
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// An ordinary property: it may be changed, is listed, and may be removed.
pub fn plain<T>(value: T) -> Property<T> {
    Property::from(value).writable().enumerable().configurable()
}

fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let kind = *rest.as_bytes().get(at + 1)?;
        rest = rest.get(at + 2..)?;
        let character = match kind {
            b'"' | b'\\' | b'/' => kind as char,
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (character, used) = unit(rest)?;
                rest = &rest[used..];
                character
            }
            _ => return None,
        };
        plain.push(character);
    }
    plain.push_str(rest);
    Some(plain)
}

/// The character after `\u` and how many bytes it takes.
fn unit(rest: &str) -> Option<(char, usize)> {
    let hex = |text: Option<&str>| {
        text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|text| u16::from_str_radix(text, 16).ok())
    };
    let first = hex(rest.get(..4))?;
    let low = rest.get(4..6).filter(|mark| *mark == "\\u").and_then(|_| hex(rest.get(6..10)));
    if let (0xd800..0xdc00, Some(low @ 0xdc00..0xe000)) = (first, low) {
        let pair = 0x10000 + ((u32::from(first) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
        return char::from_u32(pair).map(|character| (character, 10));
    }
    Some((char::from_u32(u32::from(first)).unwrap_or('\u{fffd}'), 4))
}
