//! JavaScript values to JSON text: the one rendering for arguments, values, text and the store.
//!
//! As JSON.stringify, with what JSON has no form for told apart instead of lost. Integers are
//! exact, big ones too. Undefined properties and functions are left out of objects and are null in
//! arrays. `toJSON` is honoured, except on dates, which have their own form. The rest has one form,
//! and the first place where it is used is remembered for a warning:
//!
//! | value | JSON |
//! |---|---|
//! | NaN, Infinity, -Infinity | the same word as a string |
//! | a date | ISO 8601 text; null when it is no date |
//! | a map | an object when all keys are strings, else an array of pairs |
//! | a set | an array |
//! | bytes | Base64 text |
//! | an array of numbers of one size | an array |
//! | an error | `{"name", "message"}` |
//! | a function or symbol | left out, null in arrays |
//! | a promise | `{}` |

use base64::Engine as _;
use rquickjs::atom::PredefinedAtom;
use rquickjs::object::Filter;
use rquickjs::{Function, Object, Type, Value, function::This};

use super::prelude::Prelude;
use super::raw::{self, Kind};

/// Arrays and objects may be nested this deep.
pub const DEPTH_MAX: usize = 512;

/// Why a value has no JSON text.
#[derive(Debug)]
pub enum Error {
    /// It contains itself, at this path.
    Cycle(String),
    /// It is nested too deep, at this path.
    Depth(String),
    /// The text is longer than the limit, in bytes.
    Size(usize),
    /// A getter or `toJSON` threw, or the engine failed.
    Thrown(rquickjs::Error),
}

impl From<rquickjs::Error> for Error {
    fn from(error: rquickjs::Error) -> Self {
        Self::Thrown(error)
    }
}

/// JSON text, and the first place where something has another form than its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Json {
    /// Absent for undefined and functions.
    pub text: Option<String>,
    pub lossy: Option<String>,
}

/// Writes one value in at most `bytes_max` bytes.
pub fn write<'js>(prelude: &Prelude<'js>, value: &Value<'js>, bytes_max: usize) -> Result<Json, Error> {
    let mut writer =
        Writer { prelude, out: String::new(), bytes_max, parents: Vec::new(), path: Vec::new(), lossy: None };
    let value = writer.own_form(value.clone(), &Step::Root)?;
    let written = writer.value(&value)?;
    writer.within_limit()?;
    Ok(Json { text: written.then_some(writer.out), lossy: writer.lossy })
}

enum Step {
    Root,
    Key(String),
    Index(usize),
}

struct Writer<'a, 'js> {
    prelude: &'a Prelude<'js>,
    out: String,
    bytes_max: usize,
    parents: Vec<usize>,
    path: Vec<Step>,
    lossy: Option<String>,
}

impl<'js> Writer<'_, 'js> {
    /// Writes a value; false when it has no form at all and nothing was written.
    fn value(&mut self, value: &Value<'js>) -> Result<bool, Error> {
        match value.type_of() {
            Type::Null => self.out.push_str("null"),
            Type::Bool => self.out.push_str(if value.as_bool() == Some(true) { "true" } else { "false" }),
            Type::Int | Type::Float => self.number(value)?,
            Type::BigInt => self.out.push_str(&raw::text(value)?),
            Type::String => {
                let text = raw::text(value)?;
                self.string(&text);
            }
            Type::Undefined | Type::Uninitialized => return Ok(false),
            Type::Symbol | Type::Function | Type::Constructor => {
                self.note("a function or symbol");
                return Ok(false);
            }
            _ => match value.as_object() {
                Some(object) => self.nested(object)?,
                None => return Ok(false),
            },
        }
        self.within_limit()?;
        Ok(true)
    }

    fn number(&mut self, value: &Value<'js>) -> Result<(), Error> {
        let number = value.as_number().unwrap_or(f64::NAN);
        let text = raw::text(value)?;
        if number.is_finite() {
            self.out.push_str(&text);
        } else {
            self.note(&text);
            self.string(&text);
        }
        Ok(())
    }

    fn nested(&mut self, object: &Object<'js>) -> Result<(), Error> {
        let identity = raw::identity(object);
        if self.parents.contains(&identity) {
            return Err(Error::Cycle(self.path_text()));
        }
        if self.parents.len() >= DEPTH_MAX {
            return Err(Error::Depth(self.path_text()));
        }
        self.parents.push(identity);
        self.object(object)?;
        self.parents.pop();
        Ok(())
    }

    fn object(&mut self, object: &Object<'js>) -> Result<(), Error> {
        if is_array(object) {
            return self.array(object);
        }
        match raw::kind(object) {
            Kind::Date => self.date(object),
            Kind::Map => self.map(object),
            Kind::Set => {
                self.note("a set");
                let items = self.prelude.set_items(object)?;
                self.array(&items)
            }
            Kind::Error => self.error(object),
            Kind::Bytes => {
                self.note("bytes");
                let text = base64::engine::general_purpose::STANDARD.encode(bytes(object)?);
                self.string(&text);
                Ok(())
            }
            Kind::Numbers => {
                self.note("an array of numbers of one size");
                self.array(object)
            }
            Kind::Other => self.record(object),
        }
    }

    fn record(&mut self, object: &Object<'js>) -> Result<(), Error> {
        if object.as_value().is_promise() {
            self.note("a promise that was not awaited");
        }
        let mut entries = Vec::new();
        for key in object.own_keys::<Value<'js>>(Filter::new().string().enum_only()) {
            entries.push(key?);
        }
        self.out.push('{');
        let mut first = true;
        for key in entries {
            let value: Value<'js> = object.get(key.clone())?;
            self.entry(&raw::text(&key)?, value, &mut first)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn entry(&mut self, key: &str, value: Value<'js>, first: &mut bool) -> Result<(), Error> {
        let before = self.out.len();
        if !*first {
            self.out.push(',');
        }
        self.string(key);
        self.out.push(':');
        let step = Step::Key(key.to_owned());
        let value = self.own_form(value, &step)?;
        self.path.push(step);
        if self.value(&value)? {
            *first = false;
        } else {
            self.out.truncate(before);
        }
        self.path.pop();
        Ok(())
    }

    fn array(&mut self, array: &Object<'js>) -> Result<(), Error> {
        let length: f64 = array.get(PredefinedAtom::Length)?;
        self.out.push('[');
        for index in 0..length as usize {
            if index > 0 {
                self.out.push(',');
            }
            let value: Value<'js> = array.get(atom(index))?;
            self.item(index, value)?;
        }
        self.out.push(']');
        Ok(())
    }

    fn item(&mut self, index: usize, value: Value<'js>) -> Result<(), Error> {
        let step = Step::Index(index);
        let value = self.own_form(value, &step)?;
        self.path.push(step);
        if !self.value(&value)? {
            self.out.push_str("null");
            self.within_limit()?;
        }
        self.path.pop();
        Ok(())
    }

    fn map(&mut self, map: &Object<'js>) -> Result<(), Error> {
        self.note("a map");
        let items = self.prelude.map_items(map)?;
        let n_items: usize = items.get(PredefinedAtom::Length)?;
        let pair = |index: usize| -> Result<(Value<'js>, Value<'js>), Error> {
            Ok((items.get(atom(index))?, items.get(atom(index + 1))?))
        };
        let mut all_strings = true;
        for index in (0..n_items).step_by(2) {
            all_strings &= pair(index)?.0.is_string();
        }
        self.out.push(if all_strings { '{' } else { '[' });
        let mut first = true;
        for index in (0..n_items).step_by(2) {
            let (key, value) = pair(index)?;
            if all_strings {
                self.entry(&raw::text(&key)?, value, &mut first)?;
                continue;
            }
            self.out.push_str(if index > 0 { ",[" } else { "[" });
            self.item(index / 2, key)?;
            self.out.push(',');
            self.item(index / 2, value)?;
            self.out.push(']');
        }
        self.out.push(if all_strings { '}' } else { ']' });
        Ok(())
    }

    fn error(&mut self, error: &Object<'js>) -> Result<(), Error> {
        self.note("an error");
        self.out.push('{');
        let mut first = true;
        for key in ["name", "message"] {
            let value: Value<'js> = error.get(key)?;
            self.entry(key, value, &mut first)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn date(&mut self, date: &Object<'js>) -> Result<(), Error> {
        self.note("a date");
        let text = self.prelude.date_text(date)?;
        match text.is_string() {
            true => self.string(&raw::text(&text)?),
            false => self.out.push_str("null"),
        }
        Ok(())
    }

    /// What the value says its JSON form is.
    fn own_form(&self, value: Value<'js>, step: &Step) -> Result<Value<'js>, Error> {
        let Some(object) = value.as_object() else { return Ok(value) };
        if raw::kind(object) == Kind::Date {
            return Ok(value);
        }
        let form: Value<'js> = object.get("toJSON")?;
        let Some(function) = form.as_function() else { return Ok(value) };
        let key = match step {
            Step::Root => String::new(),
            Step::Key(key) => key.clone(),
            Step::Index(index) => index.to_string(),
        };
        Ok(Function::call(function, (This(value.clone()), key))?)
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
            self.out.push_str(&rest[..at]);
            match rest.as_bytes()[at] {
                b'"' => self.out.push_str("\\\""),
                b'\\' => self.out.push_str("\\\\"),
                b'\n' => self.out.push_str("\\n"),
                0x08 => self.out.push_str("\\b"),
                0x0c => self.out.push_str("\\f"),
                b'\r' => self.out.push_str("\\r"),
                b'\t' => self.out.push_str("\\t"),
                byte => self.out.push_str(&format!("\\u{byte:04x}")),
            }
            rest = &rest[at + 1..];
        }
        self.out.push_str(rest);
        self.out.push('"');
    }

    fn within_limit(&self) -> Result<(), Error> {
        if self.out.len() > self.bytes_max { Err(Error::Size(self.bytes_max)) } else { Ok(()) }
    }

    fn note(&mut self, what: &str) {
        if self.lossy.is_none() {
            self.lossy = Some(format!("{what} at {} has no JSON form of its own", self.path_text()));
        }
    }

    /// Such as `$.items[2]["two words"]`.
    fn path_text(&self) -> String {
        let mut text = String::from("$");
        for step in &self.path {
            match step {
                Step::Root => {}
                Step::Index(index) => text.push_str(&format!("[{index}]")),
                Step::Key(key) if is_plain_name(key) => text.push_str(&format!(".{key}")),
                Step::Key(key) => text.push_str(&format!("[{}]", serde_json::Value::from(key.as_str()))),
            }
        }
        text
    }
}

/// An index as a property; no array is longer than 32 bits say.
pub fn atom(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Arrays and proxies of arrays.
fn is_array(object: &Object<'_>) -> bool {
    object.as_value().is_array()
}

fn is_plain_name(key: &str) -> bool {
    !key.is_empty()
        && !key.starts_with(|c: char| c.is_ascii_digit())
        && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// The bytes of a buffer, a view or a byte array.
fn bytes(object: &Object<'_>) -> Result<Vec<u8>, Error> {
    let copy = |buffer: Object<'_>, offset: usize, length: usize| {
        let Some(buffer) = rquickjs::ArrayBuffer::from_object(buffer) else { return Vec::new() };
        // SAFETY: the bytes are copied before the engine runs again and could move or free them.
        let whole = unsafe { buffer.as_bytes() }.unwrap_or_default();
        let end = offset.saturating_add(length).min(whole.len());
        whole.get(offset..end).unwrap_or_default().to_vec()
    };
    if rquickjs::ArrayBuffer::from_object(object.clone()).is_some() {
        return Ok(copy(object.clone(), 0, usize::MAX));
    }
    let buffer: Object<'_> = object.get("buffer")?;
    Ok(copy(buffer, object.get("byteOffset")?, object.get("byteLength")?))
}
