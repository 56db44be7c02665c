//! What is the same for every request: an id, a tenant, a deadline, a span, and its count.
//!
//! The layer stands in front of all services. It refuses who has no credentials, gives the handler a
//! [`Caller`], and sees the end of the response, also of one that the client gave up.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full, Limited};
use seance_core::ids::TenantId;
use seance_core::reasons;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::{Instrument, Span};

use crate::auth::Access;
use crate::metrics::{Method, Metrics, Running};
use crate::status::{self, Plain, REASON_HEADER, REQUEST_ID_HEADER};
use crate::{telemetry, unknown};

/// The largest message that is taken. A little more than is sent, so that what a client built of our
/// messages fits with its own fields around it.
pub const INBOUND_BYTES_MAX: usize = seance_proto::PUBLIC_MESSAGE_BYTES_MAX + 64 * 1024;
const TOO_LARGE: &str = "the message is over 3 MiB";
/// What stands before a message: whether it is compressed, and its length.
const MESSAGE_PREFIX_BYTES: usize = 5;
/// An answer leaves this long before the call's own deadline, so that it arrives.
pub const DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// Who makes a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Whom the caller belongs to.
    pub tenant: TenantId,
    /// The request's id, which the log has too.
    pub request_id: Arc<str>,
    /// When the call's own deadline is.
    pub deadline: Option<Instant>,
}

impl Caller {
    /// The caller of a request that came through [`RequestLayer`].
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get::<Caller>().expect("the layer stands before every service").clone()
    }

    /// A window that ends before the call's own deadline does.
    pub fn window_before_deadline(&self, window: Duration) -> Duration {
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        left.map_or(window, |left| window.min(left.saturating_sub(DEADLINE_MARGIN)))
    }

    /// A caller without a request.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self { tenant: TenantId::default_tenant(), request_id: "req_test".into(), deadline: None }
    }
}

/// Puts a [`Requests`] before a service.
#[derive(Clone)]
pub struct RequestLayer {
    access: Access,
    metrics: Metrics,
    stopping: CancellationToken,
}

impl RequestLayer {
    /// A layer that lets in whom `access` knows, until `stopping` is cancelled.
    pub fn new(access: Access, metrics: Metrics, stopping: CancellationToken) -> Self {
        Self { access, metrics, stopping }
    }
}

impl<S> Layer<S> for RequestLayer {
    type Service = Requests<S>;

    fn layer(&self, inner: S) -> Requests<S> {
        Requests { inner, layer: self.clone() }
    }
}

/// A service whose requests have a [`Caller`].
#[derive(Clone)]
pub struct Requests<S> {
    inner: S,
    layer: RequestLayer,
}

type ResponseFuture<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Requests<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = Method::of_path(request.uri().path());
        let request_id = mint_request_id();
        let span = tracing::info_span!(
            "request",
            otel.name = method.name(),
            otel.kind = "server",
            rpc.system = "grpc",
            method = method.name(),
            request_id = &*request_id,
            tenant = tracing::field::Empty,
            code = tracing::field::Empty,
        );
        telemetry::set_parent(&span, request.headers());
        let running = self.layer.metrics.begin(method);
        let layer = self.layer.clone();
        // The one that was polled ready is the one that is called.
        let unpolled = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, unpolled);
        Box::pin(async move {
            let caller = match layer.admit(method, request.headers(), &request_id).await {
                Ok(caller) => caller,
                Err(refused) => return Ok(finish((*refused).into_http(), &request_id, running, span)),
            };
            span.record("tenant", caller.tenant.as_str());
            request.extensions_mut().insert(caller.clone());
            let request = match with_known_fields(request, &caller).instrument(span.clone()).await {
                Ok(request) => request,
                Err(refused) => return Ok(finish((*refused).into_http(), &request_id, running, span)),
            };
            let response = inner.call(request).instrument(span.clone()).await?;
            Ok(finish(with_our_reason(response, &caller), &request_id, running, span))
        })
    }
}

impl RequestLayer {
    async fn admit(
        &self,
        method: Method,
        headers: &HeaderMap,
        request_id: &Arc<str>,
    ) -> Result<Caller, Box<Status>> {
        let mut caller = Caller {
            tenant: TenantId::default_tenant(),
            request_id: Arc::clone(request_id),
            deadline: deadline_of(headers),
        };
        // Probes come without credentials and also while the service drains.
        if method == Method::Health {
            return Ok(caller);
        }
        if self.stopping.is_cancelled() {
            let stopping = Plain::new(reasons::SERVICE_STOPPING, "the service is stopping");
            return Err(Box::new(status::of(&stopping, &caller)));
        }
        match self.access.tenant(headers).await {
            Ok(tenant) => caller.tenant = tenant,
            Err(denied) => return Err(Box::new(status::of(&denied, &caller))),
        }
        Ok(caller)
    }
}

/// Reads the one message of a request and refuses it where it has a field that this version doesn't
/// know. Streams of messages pass as they are.
async fn with_known_fields(request: Request<Body>, caller: &Caller) -> Result<Request<Body>, Box<Status>> {
    if !unknown::takes_one_message(request.uri().path()) {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let refused = |reason, message: String| Box::new(status::of(&Plain::new(reason, message), caller));
    let body = Limited::new(body, MESSAGE_PREFIX_BYTES + INBOUND_BYTES_MAX).collect().await;
    let body = body.map_err(|error| {
        let is_too_large = error.is::<http_body_util::LengthLimitError>();
        let message = if is_too_large { TOO_LARGE } else { "the request was cut off" };
        refused(reasons::INVALID_REQUEST, message.to_owned())
    })?;
    let bytes = body.to_bytes();
    let message = bytes.get(MESSAGE_PREFIX_BYTES..).unwrap_or_default();
    if let Some(place) = unknown::unknown_field(parts.uri.path(), message) {
        let message = format!("the request has a field that this version does not know: {place}");
        return Err(refused(reasons::UNSUPPORTED, message));
    }
    Ok(Request::from_parts(parts, Body::new(Full::new(bytes).map_err(|never| match never {}))))
}

fn mint_request_id() -> Arc<str> {
    let mut random = [0; 12];
    // A request id only names a line in the log: a repeated one costs nobody anything.
    if getrandom::fill(&mut random).is_err() {
        return "req_unknown".into();
    }
    format!("req_{}", hex::encode(random)).into()
}

/// The deadline in `grpc-timeout`: at most 8 digits and a unit. What is malformed is no deadline,
/// which is also how the transport takes it.
fn deadline_of(headers: &HeaderMap) -> Option<Instant> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    let timeout = match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    };
    Instant::now().checked_add(timeout)
}

/// Refusals of the transport itself, put in our words: a message that is too large, and one that is
/// no message of the method.
fn with_our_reason(response: Response<Body>, caller: &Caller) -> Response<Body> {
    if response.headers().contains_key(REASON_HEADER) {
        return response;
    }
    let message = match code_in(response.headers()) {
        Some(Code::OutOfRange) => TOO_LARGE,
        Some(Code::Internal) => "the message can't be decoded as the method's request",
        _ => return response,
    };
    status::of(&Plain::new(reasons::INVALID_REQUEST, message), caller).into_http()
}

/// Adds the request's id and watches the response to its end.
fn finish(mut response: Response<Body>, request_id: &str, running: Running, span: Span) -> Response<Body> {
    if let Ok(id) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(REQUEST_ID_HEADER, id);
    }
    if let Some(code) = code_in(response.headers()) {
        end(running, code, &span);
        return response;
    }
    response.map(|inner| Body::new(Watched { inner, running: Some(running), span }))
}

fn end(running: Running, code: Code, span: &Span) {
    span.record("code", crate::metrics::code_name(code));
    running.end(code);
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()))
}

/// A response body that is counted when it ends, or as cancelled when it is dropped before.
struct Watched {
    inner: Body,
    running: Option<Running>,
    span: Span,
}

impl Watched {
    fn end(&mut self, code: Code) {
        if let Some(running) = self.running.take() {
            end(running, code, &self.span);
        }
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let span = self.span.clone();
        let frame = span.in_scope(|| {
            ready!(Pin::new(&mut self.inner).poll_frame(cx))
                .map_or(Poll::Ready(None), |f| Poll::Ready(Some(f)))
        });
        let Poll::Ready(frame) = frame else { return Poll::Pending };
        match &frame {
            Some(Ok(frame)) => {
                if let Some(code) = frame.trailers_ref().and_then(code_in) {
                    self.end(code);
                }
            }
            Some(Err(status)) => self.end(status.code()),
            None => self.end(Code::Ok),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_shortens_the_window_by_half_a_second_more() {
        let mut headers = HeaderMap::new();
        let minute = Duration::from_secs(60);
        let window = |headers: &HeaderMap| {
            let caller = Caller { deadline: deadline_of(headers), ..Caller::for_tests() };
            caller.window_before_deadline(minute)
        };
        assert_eq!(window(&headers), minute);
        headers.insert("grpc-timeout", "10S".parse().unwrap());
        let left = window(&headers);
        assert!(left <= Duration::from_millis(9_500) && left > Duration::from_secs(9), "{left:?}");
        headers.insert("grpc-timeout", "300m".parse().unwrap());
        assert_eq!(window(&headers), Duration::ZERO);
        for malformed in ["", "S", "10", "123456789S", "-1S", "1x", "ü"] {
            headers.insert("grpc-timeout", HeaderValue::from_bytes(malformed.as_bytes()).unwrap());
            assert_eq!(window(&headers), minute, "{malformed:?}");
        }
    }
}
