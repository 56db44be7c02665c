//! What a request must be like: everything is checked before a record exists.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use seance_core::ids::{Epoch, EventSeq, SessionId, TenantId};
use seance_core::limits::Limits;
use seance_core::machine::Execute;
use seance_core::reasons;
use seance_core::session::{SessionRecord, SessionState};
use seance_core::value::{Bounds, JsonText};

use crate::error::Error;
use crate::prepare::Prepared;
use crate::requests::{CatalogSource, ExecuteRequest, OpenRequest};
use crate::sessions::Sessions;

/// The most labels of a session.
const LABELS_MAX: usize = 16;
/// The longest label name or value, in characters.
const LABEL_CHARS_MAX: usize = 63;
/// The longest time a session may be asked to live.
const SESSION_TTL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

impl Sessions {
    pub(crate) fn checked_record(
        &self,
        tenant: &TenantId,
        request: &OpenRequest,
    ) -> Result<SessionRecord, Error> {
        self.check_engine(&request.engine)?;
        check_options(&request.engine, &request.engine_options)?;
        check_labels(&request.labels)?;
        let limits = Limits::from_map(request.limits.iter().map(|(name, value)| (name.as_str(), *value)))?;
        let ttl = request.session_ttl.unwrap_or(self.inner.config.session_ttl);
        let idle_timeout = request.idle_timeout.unwrap_or(self.inner.config.idle_timeout);
        for (field, duration) in [("session_ttl", ttl), ("idle_timeout", idle_timeout)] {
            if duration.is_zero() || duration > SESSION_TTL_MAX {
                let message =
                    format!("{field} can be up to {} days and not zero", SESSION_TTL_MAX.as_secs() / 86_400);
                return Err(Error::invalid(reasons::LIMIT_OUT_OF_RANGE, field, message));
            }
        }
        let created_at = self.inner.now();
        Ok(SessionRecord {
            tenant: tenant.clone(),
            id: SessionId::mint(created_at, self.inner.config.environment.random()),
            state: SessionState::Open,
            reason: String::new(),
            engine: request.engine.clone(),
            min_version: request.min_version.clone(),
            engine_options: request.engine_options.clone(),
            limits,
            labels: request.labels.clone(),
            catalog: None,
            idle_timeout,
            created_at,
            expires_at: created_at.after(ttl),
            active_program: None,
            last_program: 0,
            sandbox: None,
            last_seq: EventSeq(0),
            kept: BTreeMap::new(),
            observed: None,
            epoch: Epoch(1),
        })
    }

    fn check_engine(&self, name: &str) -> Result<(), Error> {
        if seance_engines::by_name(name).is_none() {
            let message =
                format!("there is no engine {:?}; Engines.List tells which there are", shortened(name));
            return Err(Error::invalid(reasons::ENGINE_NOT_FOUND, "engine", message));
        }
        self.engine_version(name).map(drop).map_err(|why| {
            let message = format!("the {name} engine is unavailable here: {why}");
            Error::invalid(reasons::ENGINE_UNAVAILABLE, "engine", message)
        })
    }

    pub(crate) async fn checked_run(
        &self,
        tenant: &TenantId,
        record: &SessionRecord,
        request: ExecuteRequest,
    ) -> Result<(Execute, Option<Arc<Prepared>>), Error> {
        let limits =
            record.limits.lowered(request.limits.iter().map(|(name, value)| (name.as_str(), *value)))?;
        let source = checked_source(&request.source, &limits)?;
        let language = checked_language(&record.engine, request.language)?;
        let inputs = request.inputs.map(|text| checked_inputs(text, &limits)).transpose()?;
        let own = record.catalog.clone().map(CatalogSource::Digest);
        let prepared = match request.catalog.or(own) {
            Some(source) => Some(self.inner.preparer.prepare(tenant, &record.engine, &source).await?),
            None => None,
        };
        let run = Execute {
            source_name: source_name(&language),
            language,
            source,
            catalog: prepared.as_ref().map(|prepared| prepared.digest.clone()),
            inputs,
            limits,
            redact_source: self.inner.config.redact_source,
        };
        Ok((run, prepared))
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

fn check_options(engine: &str, options: &[String]) -> Result<(), Error> {
    let Some(engine) = seance_engines::by_name(engine) else { return Ok(()) };
    engine
        .check_options(options)
        .map_err(|error| Error::invalid(reasons::UNSUPPORTED, "engine_options", error.to_string()))
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    let fits = |text: &String| text.chars().count() <= LABEL_CHARS_MAX && !text.chars().any(char::is_control);
    if labels.len() <= LABELS_MAX && labels.iter().all(|(name, value)| fits(name) && fits(value)) {
        return Ok(());
    }
    let message = format!(
        "there can be {LABELS_MAX} labels of {LABEL_CHARS_MAX} characters, without control characters"
    );
    Err(Error::invalid(reasons::INVALID_REQUEST, "labels", message))
}

fn checked_source(source: &[u8], limits: &Limits) -> Result<String, Error> {
    if source.len() as u64 > limits.source_bytes {
        let message =
            format!("the source has {} bytes, over the limit of {}", source.len(), limits.source_bytes);
        return Err(Error::invalid(reasons::SOURCE_TOO_LARGE, "source", message));
    }
    match std::str::from_utf8(source) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => {
            let message = format!("the source is not UTF-8 at byte {}", error.valid_up_to());
            Err(Error::invalid(reasons::SOURCE_NOT_UTF8, "source", message))
        }
    }
}

fn checked_language(engine: &str, language: String) -> Result<String, Error> {
    let known = seance_engines::by_name(engine).map(|engine| engine.languages).unwrap_or_default();
    if language.is_empty() {
        return Ok(engine.to_owned());
    }
    if known.contains(&language.as_str()) {
        return Ok(language);
    }
    let message =
        format!("the {engine} engine takes {}, not {:?}", known.join(" and "), shortened(&language));
    Err(Error::invalid(reasons::UNSUPPORTED, "language", message))
}

fn checked_inputs(text: String, limits: &Limits) -> Result<String, Error> {
    if text.len() as u64 > limits.inputs_bytes {
        let message =
            format!("the inputs have {} bytes, over the limit of {}", text.len(), limits.inputs_bytes);
        return Err(Error::invalid(reasons::INPUTS_TOO_LARGE, "inputs_json", message));
    }
    JsonText::parse(text, &Bounds::default()).map(JsonText::into_string).map_err(|error| {
        Error::invalid(reasons::INVALID_INPUTS, "inputs_json", format!("the inputs are no JSON: {error}"))
    })
}

fn source_name(language: &str) -> String {
    let ending = match language {
        "typescript" => "ts",
        "javascript" => "js",
        "python" => "py",
        "ruby" => "rb",
        other => other,
    };
    format!("program.{ending}")
}
