//! Metrics and probes, on a port of their own that only this machine reaches.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What the service waits for before it is ready: empty when it is.
pub type Awaited = Vec<&'static str>;

/// What the admin port tells.
#[derive(Clone)]
pub struct Admin {
    registry: Registry,
    awaited: watch::Receiver<Arc<Awaited>>,
}

impl Admin {
    /// Tells the metrics of a registry and what is awaited.
    pub fn new(registry: Registry, awaited: watch::Receiver<Arc<Awaited>>) -> Self {
        Self { registry, awaited }
    }

    /// Serves until `stop` is cancelled.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/ready", get(ready))
            .with_state(self);
        let serving = axum::serve(listener, router);
        // Scrapes are short: what is not done by now is cut.
        tokio::select! {
            served = serving => served,
            () = stop.cancelled() => Ok(()),
        }
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match crate::metrics::render(&admin.registry) {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics can't be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn ready(State(admin): State<Admin>) -> Response {
    let awaited = Arc::clone(&admin.awaited.borrow());
    if awaited.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", awaited.join(", "))).into_response()
}
