//! One type for each kind of id, built only by parsing or minting.
//!
//! The text form has a prefix that names the kind, so that an id in the wrong place is seen.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The text is no id of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseError {
    /// What was given, cut to 64 characters.
    pub text: String,
    /// What would have been right.
    pub expected: &'static str,
}

fn refused(text: &str, expected: &'static str) -> ParseError {
    ParseError { text: text.chars().take(64).collect(), expected }
}

macro_rules! minted_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Uuid);

        impl $name {
            /// A new id. The random bytes come from outside, the time orders ids by age.
            pub fn mint(now: crate::time::Timestamp, random: [u8; 10]) -> Self {
                let millis = u64::try_from(now.0 / 1000).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                text.strip_prefix($prefix)
                    .filter(|rest| rest.len() == 32 && !rest.bytes().any(|b| b.is_ascii_uppercase()))
                    .and_then(|rest| Uuid::try_parse(rest).ok())
                    .map(Self)
                    .ok_or_else(|| refused(text, $expected))
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseError;

            fn try_from(text: String) -> Result<Self, ParseError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

minted_id!(
    /// A session.
    SessionId, "ses_", "a session id (ses_ and 32 hexadecimal digits)"
);
minted_id!(
    /// A sandbox: one pod, or one confined local process. Never assigned twice.
    SandboxId, "sbx_", "a sandbox id (sbx_ and 32 hexadecimal digits)"
);
minted_id!(
    /// A blob: bytes kept beside a session's log.
    BlobId, "blob_", "a blob id (blob_ and 32 hexadecimal digits)"
);

/// Whom a caller belongs to: 1 to 63 lower-case letters, digits and dashes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(String);

impl TenantId {
    /// The one tenant of a service without authentication.
    pub fn default_tenant() -> Self {
        Self("default".to_owned())
    }

    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TenantId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let ok = (1..=63).contains(&text.len())
            && text.bytes().all(|b| inner(b) || b == b'-')
            && text.bytes().next().is_some_and(inner)
            && text.bytes().last().is_some_and(inner);
        ok.then(|| Self(text.to_owned()))
            .ok_or_else(|| refused(text, "a tenant (1 to 63 lower-case letters, digits and inner dashes)"))
    }
}

impl TryFrom<String> for TenantId {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<TenantId> for String {
    fn from(id: TenantId) -> String {
        id.0
    }
}

/// A program's number in its session, from 1, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProgramNumber(pub u64);

impl fmt::Display for ProgramNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An event's number in its session, from 1, rising by one, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventSeq(pub u64);

impl EventSeq {
    /// The first event of a session.
    pub const FIRST: EventSeq = EventSeq(1);

    /// The next number.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for EventSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Fences the owner of a session: a record written under a lower epoch is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// A tool call: unique in the service, because it has the session, the program and the number in
/// it (D17). It is also the provider's idempotency key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CallId {
    /// The session.
    pub session: SessionId,
    /// The program.
    pub program: ProgramNumber,
    /// The call's number in the program, from 1.
    pub number: u64,
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call_{}_{}_{}", self.session.0.simple(), self.program, self.number)
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CallId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parse = || {
            let mut parts = text.strip_prefix("call_")?.splitn(3, '_');
            let session = format!("ses_{}", parts.next()?).parse().ok()?;
            let program = ProgramNumber(parts.next()?.parse().ok()?);
            let number = parts.next()?.parse().ok()?;
            let id = Self { session, program, number };
            (id.to_string() == text).then_some(id)
        };
        parse().ok_or_else(|| refused(text, "a call id"))
    }
}

impl TryFrom<String> for CallId {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<CallId> for String {
    fn from(id: CallId) -> String {
        id.to_string()
    }
}

/// The digest that names a catalog: `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CatalogDigest(String);

impl CatalogDigest {
    /// The digest of a catalog's canonical bytes.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::{Digest, Sha256};
        Self(format!("sha256:{}", hex::encode(Sha256::digest(bytes))))
    }

    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CatalogDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for CatalogDigest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        text.strip_prefix("sha256:")
            .filter(|rest| rest.len() == 64 && rest.bytes().all(hex))
            .map(|_| Self(text.to_owned()))
            .ok_or_else(|| refused(text, "a catalog digest (sha256: and 64 hexadecimal digits)"))
    }
}

impl TryFrom<String> for CatalogDigest {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<CatalogDigest> for String {
    fn from(digest: CatalogDigest) -> String {
        digest.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn ids_survive_their_text_form_and_refuse_others() {
        let session = SessionId::mint(Timestamp(1_700_000_000_000_000), [7; 10]);
        assert_eq!(session.to_string().parse::<SessionId>().unwrap(), session);
        assert!(session.to_string().parse::<SandboxId>().is_err());
        let call = CallId { session, program: ProgramNumber(3), number: 12 };
        assert_eq!(call.to_string().parse::<CallId>().unwrap(), call);
        let padded = call.to_string().replace("_12", "_012");
        for text in ["", "ses_", "ses_zz", "call_1_2_3", padded.as_str()] {
            assert!(text.parse::<SessionId>().is_err() && text.parse::<CallId>().is_err(), "{text}");
        }
    }

    #[test]
    fn later_ids_sort_later() {
        let mint = |t| SessionId::mint(Timestamp(t), [9; 10]);
        assert!(mint(1_000_000) < mint(2_000_000));
    }

    #[test]
    fn tenants_have_rules() {
        for good in ["default", "a", "team-1"] {
            assert!(good.parse::<TenantId>().is_ok(), "{good}");
        }
        let long = "a".repeat(64);
        for bad in ["", "-a", "a-", "A", "a b", "ä", long.as_str()] {
            assert!(bad.parse::<TenantId>().is_err(), "{bad}");
        }
    }
}
