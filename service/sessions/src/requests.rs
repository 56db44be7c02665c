//! What callers ask for, parsed.

use std::collections::BTreeMap;
use std::time::Duration;

use seance_core::catalog::Catalog;
use seance_core::ids::{CatalogDigest, ProgramNumber};

/// Makes a repeated request safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's key.
    pub key: String,
    /// The digest of the whole request.
    pub request_digest: String,
}

/// A catalog, by digest or in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogSource {
    /// One that was put before.
    Digest(CatalogDigest),
    /// The catalog itself.
    Inline(Catalog),
}

/// Opens a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpenRequest {
    /// The engine's name.
    pub engine: String,
    /// The lowest interpreter version; empty for any.
    pub min_version: String,
    /// Limits by name.
    pub limits: BTreeMap<String, u64>,
    /// The catalog of programs that name none.
    pub catalog: Option<CatalogSource>,
    /// How long the sandbox is kept with no program running; none for the default.
    pub idle_timeout: Option<Duration>,
    /// How long the session lives; none for the default.
    pub session_ttl: Option<Duration>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Optional parts of the engine.
    pub engine_options: Vec<String>,
    /// Makes a repeated request safe.
    pub idempotency: Option<Idempotency>,
}

/// Runs a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecuteRequest {
    /// The source as it came.
    pub source: bytes::Bytes,
    /// The language; empty for the engine's own.
    pub language: String,
    /// The catalog, when not the session's.
    pub catalog: Option<CatalogSource>,
    /// The inputs as JSON text, not checked.
    pub inputs: Option<String>,
    /// Limits for this program; they can only be lower.
    pub limits: BTreeMap<String, u64>,
    /// Makes a repeated request safe.
    pub idempotency: Option<Idempotency>,
}

/// Ends a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopRequest {
    /// Which; none for the active one.
    pub program: Option<ProgramNumber>,
    /// Where to go on with the output.
    pub cursor: Option<String>,
    /// The budget of the observation's output, in tokens.
    pub max_output_tokens: Option<u64>,
    /// Makes a repeated request safe.
    pub idempotency: Option<Idempotency>,
}
