//! The one place where errors become gRPC statuses.
//!
//! A status carries its reason four times, for four kinds of clients: as `ErrorInfo` in the details,
//! as the plain trailer `seance-reason`, at the start of the message, and by its code. What caused an
//! error of ours goes to the log under the request's id and never to the caller.

use std::error::Error as StdError;
use std::time::Duration;

use seance_core::reasons::{self, Code};
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::request::Caller;

/// The domain of our reasons in `ErrorInfo`.
pub const DOMAIN: &str = "seance.dev";
/// The trailer that carries the reason alone.
pub const REASON_HEADER: &str = "seance-reason";
/// The header and trailer that carry the request's id, which the log has too.
pub const REQUEST_ID_HEADER: &str = "seance-request-id";

/// Statuses travel in headers, of which stock clients take 8 KiB. The message stands there three
/// times, so it is cut here, in bytes.
const MESSAGE_BYTES_MAX: usize = 1_000;
const METADATA_BYTES_MAX: usize = 256;
const METADATA_ENTRIES_MAX: usize = 8;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An error that can be told to a caller.
pub trait Refusal: StdError {
    /// A status reason of [`seance_core::reasons`].
    fn reason(&self) -> &'static str;

    /// Facts for programs, such as the session's id.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The field of the request that is wrong, where it is one.
    fn field(&self) -> Option<&str> {
        None
    }

    /// When to try again, where the reason says that it can help; a second when not said.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

/// The status of an error. Errors of ours are logged with their causes.
pub fn of(error: &dyn Refusal, caller: &Caller) -> Status {
    let (reason, code) = match reasons::status(error.reason()) {
        Some(row) => row,
        None => {
            tracing::error!(reason = error.reason(), "an error has a reason that is no status reason");
            reasons::status(reasons::INTERNAL).expect("the table has INTERNAL")
        }
    };
    let text = if matches!(code, Code::Internal) {
        tracing::error!(causes = causes(error), request_id = %caller.request_id, "request failed");
        format!("{} (request id {})", reason.meaning, caller.request_id)
    } else {
        if error.source().is_some() {
            tracing::warn!(causes = causes(error), request_id = %caller.request_id, "request refused");
        }
        error.to_string()
    };
    let mut details = ErrorDetails::new();
    let mut facts: std::collections::HashMap<String, String> = error
        .facts()
        .into_iter()
        .take(METADATA_ENTRIES_MAX)
        .map(|(name, value)| (name.to_owned(), cut(&value, METADATA_BYTES_MAX).to_owned()))
        .collect();
    facts.insert("request_id".to_owned(), caller.request_id.to_string());
    details.set_error_info(reason.name, DOMAIN, facts);
    if let Some(field) = error.field() {
        details.set_bad_request(vec![FieldViolation::new(
            cut(field, METADATA_BYTES_MAX),
            cut(&text, METADATA_BYTES_MAX),
        )]);
    }
    if reason.retry {
        details.set_retry_info(Some(error.retry_after().unwrap_or(RETRY_AFTER)));
    }
    let mut metadata = MetadataMap::new();
    metadata.insert(REASON_HEADER, MetadataValue::from_static(reason.name));
    if let Ok(id) = caller.request_id.parse() {
        metadata.insert(REQUEST_ID_HEADER, id);
    }
    let message = format!("{}: {text}", reason.name);
    let message = cut(&message, MESSAGE_BYTES_MAX);
    Status::with_error_details_and_metadata(code_of(code), message, details, metadata)
}

/// A refusal that needs no more than a reason and a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Plain {
    reason: &'static str,
    message: String,
}

impl Plain {
    /// A refusal with a status reason and a sentence about it.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl Refusal for Plain {
    fn reason(&self) -> &'static str {
        self.reason
    }
}

fn code_of(code: Code) -> tonic::Code {
    match code {
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::NotFound => tonic::Code::NotFound,
        Code::FailedPrecondition => tonic::Code::FailedPrecondition,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        Code::Aborted => tonic::Code::Aborted,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::Internal => tonic::Code::Internal,
        Code::Unimplemented => tonic::Code::Unimplemented,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
    }
}

fn causes(error: &dyn Refusal) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the store failed while {doing}")]
    struct Failed {
        reason: &'static str,
        doing: String,
        #[source]
        source: std::io::Error,
    }

    impl Refusal for Failed {
        fn reason(&self) -> &'static str {
            self.reason
        }
        fn facts(&self) -> Vec<(&'static str, String)> {
            vec![("session_id", "ses_1".to_owned())]
        }
        fn field(&self) -> Option<&str> {
            Some("limits")
        }
    }

    fn failed(reason: &'static str, doing: &str) -> Failed {
        Failed { reason, doing: doing.to_owned(), source: std::io::Error::other("secret path") }
    }

    #[test]
    fn every_status_reason_arrives_with_its_code_details_and_trailer() {
        for reason in reasons::TABLE {
            let Some((_, code)) = reasons::status(reason.name) else { continue };
            let status = of(&failed(reason.name, "appending"), &Caller::for_tests());
            assert_eq!(status.code(), code_of(code));
            assert!(status.message().starts_with(&format!("{}: ", reason.name)));
            assert_eq!(status.metadata().get(REASON_HEADER).unwrap(), reason.name);
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason.name, DOMAIN));
            assert_eq!(info.metadata["session_id"], "ses_1");
            assert_eq!(details.retry_info().is_some(), reason.retry);
            assert_eq!(details.bad_request().unwrap().field_violations[0].field, "limits");
        }
    }

    #[test]
    fn causes_stay_out_of_the_status() {
        for reason in [reasons::INTERNAL, reasons::STORE_UNAVAILABLE] {
            let status = of(&failed(reason, "appending"), &Caller::for_tests());
            assert!(!format!("{status:?}").contains("secret path"));
        }
        let status = of(&failed(reasons::INTERNAL, "reading /var/x"), &Caller::for_tests());
        assert!(!format!("{status:?}").contains("/var/x"));
        assert!(status.message().contains(&*Caller::for_tests().request_id));
    }

    /// Stock clients take 8 KiB of headers.
    #[test]
    fn a_status_fits_into_the_headers_of_stock_clients() {
        let long = "ü".repeat(100_000);
        let status = of(&failed(reasons::INVALID_REQUEST, &long), &Caller::for_tests());
        let response: http::Response<()> = status.into_http();
        let bytes: usize = response.headers().iter().map(|(k, v)| k.as_str().len() + v.len() + 32).sum();
        assert!(bytes < 8 * 1024, "{bytes}");
    }

    #[test]
    fn a_reason_that_is_no_status_becomes_internal() {
        let status = of(&failed("deadlock", "x"), &Caller::for_tests());
        assert_eq!(status.code(), tonic::Code::Internal);
    }
}
