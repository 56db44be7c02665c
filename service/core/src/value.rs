//! Values: JSON text that crosses a trust line, and the one parser that judges it.
//!
//! A value stays the text it came as; nothing here puts a number through a float. What passes
//! [`JsonText::parse`] is strict RFC 8259 within [`Bounds`], so that every client can read it. Three
//! points the RFC leaves open are settled here:
//!
//! - **Equal keys** in one object are accepted, and the last one counts, as in JavaScript, Python and
//!   Ruby. To refuse them would cost memory in the size of the largest object.
//! - **Half of a surrogate pair** (`"\ud800"`) is refused: many clients can't hold it. Programs make
//!   such strings by accident, so what comes from one goes through [`JsonText::parse_guest`], which
//!   puts `\ufffd` in its place (M5).
//! - **Numbers** of digits alone are exact up to `digits_max` digits; with a fraction or an exponent
//!   they are doubles, and one too large for a double is refused.

mod cut;
mod scan;
mod tree;

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use cut::{CUT_BYTES_MIN, Cut, cut};
use scan::Scanner;

/// What a value may cost its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The length of the text, in bytes. Texts of 4 GiB and more are refused whatever this says.
    pub bytes_max: usize,
    /// How deep arrays and objects may nest; `[[]]` is two deep.
    pub depth_max: usize,
    /// How many values there may be in all, arrays and objects included.
    pub count_max: usize,
    /// How many digits one number may have.
    pub digits_max: usize,
}

impl Default for Bounds {
    /// Bounds for any value: 32 MiB, 512 deep (a 500-deep argument is valid, case 32), a million
    /// values, 4,300 digits.
    fn default() -> Self {
        Self { bytes_max: 32 * 1024 * 1024, depth_max: 512, count_max: 1_000_000, digits_max: 4_300 }
    }
}

impl Bounds {
    /// The default bounds with another limit on the length.
    pub fn bytes(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }
}

/// Where in a value something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The path, such as `$.a[3]`; the middle is left out where it is long.
    pub path: String,
    /// The byte in the text, from 0.
    pub offset: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (byte {})", self.path, self.offset)
    }
}

/// Why a text is no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has more bytes than [`Bounds::bytes_max`].
    #[error("the JSON text has {bytes} bytes, over the limit of {max}")]
    Bytes { bytes: usize, max: usize },
    /// It nests deeper than [`Bounds::depth_max`].
    #[error("the JSON text nests more than {max} deep at {at}")]
    Depth { max: usize, at: Place },
    /// It has more values than [`Bounds::count_max`].
    #[error("the JSON text has more than {max} values at {at}")]
    Count { max: usize, at: Place },
    /// A number has more digits than [`Bounds::digits_max`].
    #[error("a number has {digits} digits, over the limit of {max}, at {at}")]
    Digits { digits: usize, max: usize, at: Place },
    /// A number with a fraction or an exponent is too large for a double.
    #[error("a number is too large for a double at {at}")]
    NumberOverflow { at: Place },
    /// A string has half of a surrogate pair.
    #[error("a string has half of a surrogate pair at {at}")]
    LoneSurrogate { at: Place },
    /// It is no JSON.
    #[error("not JSON: {problem} at {at}")]
    Syntax { problem: &'static str, at: Place },
}

/// Checks that `text` is one value within `bounds`. Takes one pass, never recurses, and holds
/// memory only for the nesting that `bounds` allow.
pub fn check(text: &str, bounds: &Bounds) -> Result<(), Error> {
    let mut scanner = Scanner::new(text, bounds)?;
    while scanner.next()?.is_some() {}
    Ok(())
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// Digits.
    Number,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
}

impl Kind {
    /// The kind of the value that begins with this byte.
    fn of(first: u8) -> Kind {
        match first {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }
}

/// JSON text that was checked: one value, with no space around it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct JsonText(String);

impl JsonText {
    /// Takes `text` if it is one value within `bounds`.
    pub fn parse(text: impl Into<String>, bounds: &Bounds) -> Result<Self, Error> {
        let text = text.into();
        check(&text, bounds)?;
        Ok(Self(trimmed(text)))
    }

    /// Takes `text` from a program: as [`JsonText::parse`], with `\ufffd` in the place of each half
    /// of a surrogate pair.
    pub fn parse_guest(text: impl Into<String>, bounds: &Bounds) -> Result<Self, Error> {
        let mut text = text.into();
        match check(&text, bounds) {
            Ok(()) => Ok(Self(trimmed(text))),
            Err(Error::LoneSurrogate { at }) => {
                replace_lone_surrogates(&mut text, at.offset);
                Self::parse(text, bounds)
            }
            Err(error) => Err(error),
        }
    }

    /// The value `null`.
    pub fn null() -> Self {
        Self("null".to_owned())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, taken out.
    pub fn into_string(self) -> String {
        self.0
    }

    /// What the value is.
    pub fn kind(&self) -> Kind {
        Kind::of(self.0.as_bytes()[0])
    }

    /// The value as a tree, numbers as they are written. Built without recursion, for texts deeper
    /// than serde_json's own parser takes.
    pub fn to_value(&self) -> serde_json::Value {
        tree::build(&self.0)
    }
}

impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<JsonText> for String {
    fn from(text: JsonText) -> String {
        text.0
    }
}

impl TryFrom<String> for JsonText {
    type Error = Error;

    /// [`JsonText::parse`] with the default bounds.
    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(text, &Bounds::default())
    }
}

fn trimmed(mut text: String) -> String {
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r');
    text.truncate(text.trim_end_matches(is_space).len());
    text.drain(..text.len() - text.trim_start_matches(is_space).len());
    text
}

/// Puts `\ufffd` in the place of every half surrogate pair from byte `from` on, which is the first.
/// Both have six bytes, so nothing moves. Outside strings there are no escapes in valid text, and
/// invalid text stays invalid.
fn replace_lone_surrogates(text: &mut String, from: usize) {
    let halves: Vec<Range<usize>> = scan::lone_surrogates(text, from).collect();
    for half in halves {
        text.replace_range(half, "\\ufffd");
    }
}

#[cfg(test)]
mod tests;
