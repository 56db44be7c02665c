//! A provider's result within bounds: what is too large becomes an error of the call, names are
//! made safe. A provider is the caller's own, but its mistakes must not become ours.

use seance_core::program::CallError;
use seance_core::reasons;

use super::types::{ArtifactBytes, Content, Outcome, ResultLimits, ToolResult};

/// The most artifacts of one call (P4).
pub const CALL_ARTIFACTS_MAX: usize = 20;
/// The longest error code and artifact name, in characters.
const NAME_CHARS_MAX: usize = 128;
/// The longest media type, in bytes.
const MEDIA_TYPE_BYTES_MAX: usize = 127;
/// The name of an artifact that has none (P17).
const NAMELESS: &str = "artifact";
/// The media type of an artifact with none, or with one that isn't.
const UNKNOWN_MEDIA_TYPE: &str = "application/octet-stream";

/// The outcome of a result, and what it leaves behind: all of it or nothing (P7).
pub(super) fn bounded(result: ToolResult, limits: &ResultLimits) -> (Outcome, Vec<ArtifactBytes>) {
    let ToolResult { content, artifacts } = result;
    let outcome = bounded_content(content, limits);
    match &outcome {
        Outcome::Failure(_) | Outcome::NotStarted => return (outcome, Vec::new()),
        Outcome::Error(error) if error.code == reasons::RESULT_TOO_LARGE => return (outcome, Vec::new()),
        _ => {}
    }
    match artifacts_error(&artifacts, limits) {
        Some(error) => (Outcome::Error(error), Vec::new()),
        None => (outcome, artifacts.into_iter().map(safe_artifact).collect()),
    }
}

fn bounded_content(content: Content, limits: &ResultLimits) -> Outcome {
    match content {
        Content::Value(text) | Content::Text(text) if text.len() as u64 > limits.result_bytes => {
            let message = format!(
                "the result has {} bytes, over the limit of {} (result_bytes)",
                text.len(),
                limits.result_bytes
            );
            Outcome::Error(CallError::new(reasons::RESULT_TOO_LARGE, message))
        }
        Content::Value(json) => Outcome::Value(json),
        Content::Text(text) => Outcome::Text(text),
        Content::Error(error) => Outcome::Error(bounded_error(error, limits)),
        Content::Failure(text) => Outcome::Failure(cut_middle(text, limits.error_bytes)),
        Content::NotStarted(text) => {
            let text = cut_middle(text, limits.error_bytes);
            tracing::warn!(text, "a provider did not begin a call");
            Outcome::NotStarted
        }
    }
}

fn bounded_error(error: CallError, limits: &ResultLimits) -> CallError {
    let code: String = error.code.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
    let code = if code.trim().is_empty() { reasons::TOOL_ERROR.to_owned() } else { code };
    CallError { code, message: cut_middle(error.message, limits.error_bytes), retryable: error.retryable }
}

fn artifacts_error(artifacts: &[ArtifactBytes], limits: &ResultLimits) -> Option<CallError> {
    let refuse = |message: String| Some(CallError::new(reasons::ARTIFACT_LIMIT, message));
    if artifacts.len() > CALL_ARTIFACTS_MAX {
        return refuse(format!(
            "the call leaves {} artifacts, over the limit of {CALL_ARTIFACTS_MAX}",
            artifacts.len()
        ));
    }
    let bytes = |artifact: &ArtifactBytes| artifact.data.len() as u64;
    if let Some(bytes) = artifacts.iter().map(bytes).find(|bytes| *bytes > limits.artifact_bytes) {
        let limit = limits.artifact_bytes;
        return refuse(format!("an artifact has {bytes} bytes, over the limit of {limit} (artifact_bytes)"));
    }
    let total: u64 = artifacts.iter().map(bytes).sum();
    if total > limits.artifacts_bytes {
        let limit = limits.artifacts_bytes;
        return refuse(format!(
            "the artifacts have {total} bytes, over the limit of {limit} (artifacts_bytes)"
        ));
    }
    None
}

fn safe_artifact(artifact: ArtifactBytes) -> ArtifactBytes {
    ArtifactBytes {
        name: safe_name(&artifact.name),
        media_type: safe_media_type(&artifact.media_type),
        data: artifact.data,
    }
}

/// A name that is no path and shows as it is.
fn safe_name(name: &str) -> String {
    let safe = |c: char| if matches!(c, '/' | '\\' | ':') { '_' } else { c };
    let hidden = |c: &char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let name: String = name.chars().filter(|c| !hidden(c)).map(safe).take(NAME_CHARS_MAX).collect();
    match name.trim() {
        "" | "." | ".." => NAMELESS.to_owned(),
        name => name.to_owned(),
    }
}

fn safe_media_type(text: &str) -> String {
    let token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    // Parameters such as a charset are let through in their plain form only.
    let parameter = |part: &str| part.trim().split_once('=').is_some_and(|(k, v)| token(k) && token(v));
    let mut parts = text.trim().split(';');
    let essence = parts.next().and_then(|essence| essence.trim().split_once('/'));
    let known = text.len() <= MEDIA_TYPE_BYTES_MAX
        && essence.is_some_and(|(kind, subtype)| token(kind) && token(subtype))
        && parts.all(parameter);
    if known { text.trim().to_ascii_lowercase() } else { UNKNOWN_MEDIA_TYPE.to_owned() }
}

/// The text with its middle cut to at most `bytes_max` bytes.
pub(crate) fn cut_middle(text: String, bytes_max: u64) -> String {
    const MARK: &str = " … ";
    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    if text.len() <= bytes_max {
        return text;
    }
    let kept = bytes_max.saturating_sub(MARK.len());
    let head = text.floor_char_boundary(kept.div_ceil(2));
    let tail = text.ceil_char_boundary(text.len() - kept / 2);
    format!("{}{MARK}{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const LIMITS: ResultLimits =
        ResultLimits { result_bytes: 10, artifact_bytes: 4, artifacts_bytes: 6, error_bytes: 20 };

    fn artifact(name: &str, media_type: &str, n_bytes: usize) -> ArtifactBytes {
        ArtifactBytes {
            name: name.to_owned(),
            media_type: media_type.to_owned(),
            data: Bytes::from(vec![7; n_bytes]),
        }
    }

    fn code_of(content: Content, artifacts: Vec<ArtifactBytes>) -> Option<String> {
        let (outcome, kept) = bounded(ToolResult { content, artifacts }, &LIMITS);
        let error = outcome.error()?;
        assert!(kept.is_empty(), "{error:?} keeps nothing");
        Some(error.code)
    }

    #[test]
    fn results_over_their_bytes_are_an_error_of_the_call() {
        assert_eq!(code_of(Content::Text("0123456789".to_owned()), vec![]), None);
        for content in [Content::Text, Content::Value] {
            assert_eq!(code_of(content("01234567890".to_owned()), vec![]).unwrap(), "result_too_large");
        }
    }

    /// P4, P7: sizes and numbers, and all or nothing.
    #[test]
    fn artifacts_over_a_limit_fail_the_call_and_none_is_kept() {
        let text = || Content::Text("x".to_owned());
        for (artifacts, fails) in [
            (vec![artifact("a", "a/b", 4)], false),
            (vec![artifact("a", "a/b", 5)], true),
            (vec![artifact("a", "a/b", 4), artifact("b", "a/b", 3)], true),
            (vec![artifact("a", "a/b", 0); 20], false),
            (vec![artifact("a", "a/b", 0); 21], true),
        ] {
            let code = code_of(text(), artifacts.clone());
            assert_eq!(code.as_deref(), fails.then_some("artifact_limit"), "{artifacts:?}");
        }
    }

    /// P17.
    #[test]
    fn names_and_media_types_are_made_safe() {
        for (name, safe) in [
            ("chart.png", "chart.png"),
            ("../../etc/passwd", ".._.._etc_passwd"),
            ("a\r\nb", "ab"),
            ("gpj.\u{202e}exe", "gpj.exe"),
            ("  ", "artifact"),
            ("..", "artifact"),
        ] {
            assert_eq!(safe_name(name), safe);
        }
        assert_eq!(safe_name(&"x".repeat(1000)).len(), NAME_CHARS_MAX);
        for (text, safe) in [
            ("image/png", "image/png"),
            ("Text/Plain; charset=utf-8", "text/plain; charset=utf-8"),
            ("", UNKNOWN_MEDIA_TYPE),
            ("png", UNKNOWN_MEDIA_TYPE),
            ("a/b\r\nx: y", UNKNOWN_MEDIA_TYPE),
        ] {
            assert_eq!(safe_media_type(text), safe);
        }
    }

    #[test]
    fn errors_are_cut_and_always_have_a_code() {
        let error = CallError { code: "\n".to_owned(), message: "ä".repeat(50), retryable: true };
        let (outcome, _) = bounded(Content::Error(error).into(), &LIMITS);
        let Outcome::Error(error) = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.code, "tool_error");
        assert!(error.message.len() <= 20 && error.message.contains('…') && error.retryable, "{error:?}");
    }
}
