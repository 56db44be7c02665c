//! `/healthz`, `/readyz` and `/metrics`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// What is told of the operator's health.
#[derive(Clone, Default)]
pub struct Health {
    waits: Arc<Mutex<BTreeMap<&'static str, ()>>>,
}

impl Health {
    /// Not ready until this is there.
    pub fn waits_for(&self, what: &'static str) {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).insert(what, ());
    }

    /// It is there.
    pub fn has(&self, what: &'static str) {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    fn missing(&self) -> Vec<&'static str> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

/// What the handlers use.
#[derive(Clone)]
pub struct Shown {
    /// What is counted.
    pub metrics: Metrics,
    /// What is waited for.
    pub health: Health,
    /// Brings gauges up to date before they are read.
    pub refresh: Arc<dyn Fn() + Send + Sync>,
}

/// Serves until it is stopped.
///
/// # Errors
/// When the address can't be had or the listener fails.
pub async fn serve(address: SocketAddr, shown: Shown, stop: CancellationToken) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "health and metrics are served");
    axum::serve(listener, router(shown)).with_graceful_shutdown(stop.cancelled_owned()).await
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shown)
}

async fn ready(State(shown): State<Shown>) -> (StatusCode, String) {
    let missing = shown.health.missing();
    if missing.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("waits for: {}\n", missing.join(", ")))
}

async fn metrics(State(shown): State<Shown>) -> String {
    (shown.refresh)();
    shown.metrics.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ready_names_what_it_waits_for() {
        let health = Health::default();
        let shown = Shown { metrics: Metrics::new(), health: health.clone(), refresh: Arc::new(|| ()) };
        health.waits_for("sandboxes");
        health.waits_for("link");
        let answer = ready(State(shown.clone())).await;
        assert_eq!(answer, (StatusCode::SERVICE_UNAVAILABLE, "waits for: link, sandboxes\n".to_owned()));
        health.has("sandboxes");
        health.has("link");
        assert_eq!(ready(State(shown)).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_brought_up_to_date_when_they_are_read() {
        let metrics_of = Metrics::new();
        let leaked = metrics_of.leaked.clone();
        let refresh = Arc::new(move || leaked.with_label_values(&["operator"]).set(3));
        let shown = Shown { metrics: metrics_of, health: Health::default(), refresh };
        let text = metrics(State(shown)).await;
        assert!(text.contains("seance_leaked_sandboxes{side=\"operator\"} 3"), "{text}");
    }
}
