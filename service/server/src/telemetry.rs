//! Logs and spans: what is written where, and the W3C trace context in and out.
//!
//! Spans go to an OpenTelemetry collector when an endpoint is configured. Only our own spans do: the
//! exporter is itself a gRPC client, and exporting its spans would never end.

use std::io::IsTerminal as _;
use std::time::Duration;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Span, Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{LogFormat, TelemetryConfig};

/// One export waits at most this long for the collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Our crates' targets start with this.
const OUR_TARGETS: &str = "seance";

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log filter is malformed.
    #[error("log filter {filter:?} is malformed")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The exporter can't be made.
    #[error("spans can't be exported to {endpoint}")]
    Exporter {
        /// The endpoint.
        endpoint: String,
        /// What is wrong.
        #[source]
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// The process has a subscriber already.
    #[error("logs are set up already")]
    Installed(#[source] tracing_subscriber::util::TryInitError),
}

/// The process's telemetry. Shut it down before the process ends, or the last spans are lost.
#[derive(Debug)]
#[must_use = "the last spans are exported by shutdown"]
pub struct Telemetry {
    provider: SdkTracerProvider,
}

impl Telemetry {
    /// Sets up logs, to standard error, and spans for the whole process. Once a process; with an
    /// endpoint, on a tokio runtime.
    pub fn install(config: &TelemetryConfig) -> Result<Self, Error> {
        let filter = EnvFilter::try_new(&config.log_filter)
            .map_err(|source| Error::Filter { filter: config.log_filter.clone(), source })?;
        // Without an endpoint spans go nowhere, and still pass the caller's trace on to providers.
        let provider = match &config.otlp_endpoint {
            Some(endpoint) => provider_to(endpoint)?,
            None => SdkTracerProvider::builder().build(),
        };
        let color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(color);
        let lines = match config.log_format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(spans_to(&provider))
            .with(lines.with_filter(filter))
            .try_init()
            .map_err(Error::Installed)?;
        Ok(Self { provider })
    }

    /// Exports what is left, for at most `within`.
    pub async fn shutdown(self, within: Duration) {
        let Self { provider } = self;
        // It blocks for as long as the collector takes: off the async threads, and with our deadline.
        let exporting = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(within));
        match tokio::time::timeout(within, exporting).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the last spans were not exported"),
            Ok(Err(_)) | Err(_) => tracing::warn!("the last spans were not exported in time"),
        }
    }
}

fn provider_to(endpoint: &str) -> Result<SdkTracerProvider, Error> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|source| Error::Exporter { endpoint: endpoint.to_owned(), source })?;
    let resource = Resource::builder()
        .with_service_name("seance")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

fn spans_to<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("seance"))
        .with_location(false)
        .with_threads(false)
        .with_filter(Targets::new().with_target(OUR_TARGETS, LevelFilter::INFO))
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

fn context_in(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

/// Makes the caller's span the parent of a span that has not begun. Without a valid trace context
/// the span begins a trace of its own.
pub fn set_parent(span: &Span, headers: &HeaderMap) {
    if headers.contains_key("traceparent") {
        // The errors say that the span is not recorded, which needs no parent.
        let _ = span.set_parent(context_in(headers));
    }
}

/// The trace context of a span, to be sent on; none when [`Telemetry`] is not installed.
pub fn traceparent_of(span: &Span) -> Option<String> {
    text_of(span.context().span().span_context())
}

fn text_of(span: &SpanContext) -> Option<String> {
    let flags = span.trace_flags().to_u8();
    span.is_valid().then(|| format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_trace_context_is_passed_on() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let given = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", text.parse().unwrap());
            text_of(context_in(&headers).span().span_context())
        };
        assert_eq!(given(valid).as_deref(), Some(valid));
        for invalid in [
            "",
            "00",
            &valid.replace("0af7", "zzzz"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        ] {
            assert_eq!(given(invalid), None, "{invalid:?}");
        }
    }
}
