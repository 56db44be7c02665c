//! Kubernetes quantities as people write them: `500m`, `1`, `256Mi`.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// A quantity, as written. A plain integer is taken too, as Kubernetes does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Quantity(String);

/// What the API server checks; [`Quantity::value`] reads every text that matches and isn't too large.
const PATTERN: &str = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$";

/// The suffixes: what one of them is in thousandths.
const SUFFIXES: &[(&str, u128)] = &[
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("Ei", 1000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
];

impl Quantity {
    /// The quantity as written.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value in thousandths, rounded up; `None` when it is no quantity of ours or too large.
    pub fn thousandths(&self) -> Option<u64> {
        let suffix = SUFFIXES.iter().find(|(suffix, _)| self.0.ends_with(suffix));
        let (suffix, unit) = suffix.copied().unwrap_or(("", 1000));
        let number = &self.0[..self.0.len() - suffix.len()];
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, n_max: usize| {
            let is_number =
                !text.is_empty() && text.len() <= n_max && text.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| text.parse::<u128>().ok()).flatten()
        };
        let scale = 10u128.pow(u32::try_from(fraction.len().min(9)).ok()?);
        let scaled = digits(whole, 15)?.checked_mul(scale)? + digits(fraction, 9)?;
        u64::try_from(scaled.checked_mul(unit)?.div_ceil(scale)).ok()
    }

    /// The value in whole units (bytes, processors), rounded up.
    pub fn value(&self) -> Option<u64> {
        self.thousandths().map(|thousandths| thousandths.div_ceil(1000))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity(value.to_string()))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity(value.to_string()))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "pattern": PATTERN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let cases = [
            ("1", Some(1000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("256Mi", Some(268_435_456_000)),
            ("1k", Some(1_000_000)),
            ("0.0001", Some(1)),
            ("", None),
            ("Mi", None),
            ("1e3", None),
            ("-1", None),
            ("1.", None),
            ("999999999999999Ei", None),
            ("1Kim", None),
            ("\u{661}", None),
        ];
        for (text, thousandths) in cases {
            assert_eq!(Quantity::new(text).thousandths(), thousandths, "{text}");
        }
        assert_eq!(Quantity::new("500m").value(), Some(1));
    }

    #[test]
    fn integers_and_text_are_both_quantities() {
        let read: Vec<Quantity> = serde_json::from_str(r#"[1, "250m"]"#).expect("two quantities");
        assert_eq!(read, [Quantity::new("1"), Quantity::new("250m")]);
        assert_eq!(serde_json::to_string(&read).expect("text"), r#"["1","250m"]"#);
    }
}
